"""The interface of a policy: the signals that it takes and the decisions that it returns.

Nothing here decides, waits or reads a clock: every time is the `t` of the record that a signal was made from.

To drive a policy, call `may_start(t)` whenever a slot is free and a trial is ready. If the permit is open, start the attempt
and pass `Started` to `observe`; pass each end of an attempt as it is recorded. If the permit is closed, call again at its
`check_at` or, if that is None, after the next signal. Each decision contains the limit from then on, and the changes to record.
"""

from typing import Literal, Protocol, TypeAlias

from evaljournal.journal.events import FailureCategory, Noted, PolicyEvent
from evaljournal.journal.fact import fact


@fact
class Started:
    """An attempt started."""

    t: float
    attempt: str
    """Name of its trial, which has at most one attempt in flight."""


@fact
class Ended:
    """An attempt ended."""

    t: float
    attempt: str
    outcome: Literal["succeeded", "timed_out", "interrupted"] | FailureCategory
    """The category of a failure, or how else it ended. An attempt that this process interrupted is no evidence about the
    endpoint."""
    elapsed: float = 0.0
    """Seconds from its start to its end, if it succeeded."""
    retry_after: float | None = None
    """Seconds to wait, from `Retry-After` or an equivalent."""

    @property
    def cause(self) -> str:
        """The category in a few characters, for evidence."""
        return "429" if self.outcome == "rate_limited" else self.outcome.replace("_", " ")


Signal: TypeAlias = Started | Ended


Change: TypeAlias = PolicyEvent | Noted
"""A change of the limit, the pace or a pause, or the note that a policy failed."""


@fact
class Decision:
    """The limit after a signal, until the next one, and the changes."""

    limit: int
    """Attempts that may be in flight; excess ones are not interrupted."""
    changes: tuple[Change, ...] = ()
    """The changes since the previous decision, in order, to be recorded; the rate-limit key is added then."""


@fact
class StartPermit:
    """Whether an attempt may start now."""

    open: bool
    check_at: float | None = None
    """If closed: when to ask again; None means after the next signal, because the limit is reached."""
    probe: bool = False
    """If open: whether the attempt would be a probe of an open circuit breaker."""


OPEN = StartPermit(open=True)
PROBE = StartPermit(open=True, probe=True)
FULL = StartPermit(open=False)


class Policy(Protocol):
    """Decides how many attempts of one rate-limit key may be in flight, and when the next may start.

    Decisions depend only on the signals so far, so the same records always give the same decisions.
    """

    @property
    def limit(self) -> int:
        """Attempts that may be in flight now."""
        ...

    def observe(self, signal: Signal) -> Decision:
        """Process a signal; return the decision."""
        ...

    def elapse(self, t: float) -> Decision:
        """Process that time has passed until `t`; called at the `check_at` of a closed permit."""
        ...

    def may_start(self, t: float) -> StartPermit:
        """Return whether an attempt may start at `t`; changes nothing."""
        ...
