"""The interface of a policy: the signals that it takes and the decisions that it returns.

Nothing here decides, waits or reads a clock: every time is the `t` of the record that a signal was made from.

To drive a policy, call `may_start(t)` whenever a slot is free and a trial is ready. If the gate is open, start the attempt and
pass `Started` to `take`; pass each end of an attempt as it is recorded. If the gate is closed, call again at `gate.at`, or, if
that is None, after the next signal. Each decision contains what is in force from then on and what to record.
"""

from typing import Protocol, TypeAlias

from journal.events import FailureCategory, fact


@fact
class Started:
    """An attempt started."""

    t: float
    attempt: str
    """Name of its trial, which has at most one attempt in flight."""


@fact
class Succeeded:
    """An attempt returned an output."""

    t: float
    attempt: str
    elapsed: float
    """Seconds from its start to its end."""


@fact
class Failed:
    """An attempt raised."""

    t: float
    attempt: str
    category: FailureCategory
    retry_after: float | None = None
    """Seconds that the endpoint asked to wait."""


@fact
class TimedOut:
    """An attempt timed out."""

    t: float
    attempt: str


@fact
class Interrupted:
    """An attempt that this process interrupted; it is no evidence about the endpoint."""

    t: float
    attempt: str


Signal: TypeAlias = Started | Succeeded | Failed | TimedOut | Interrupted


@fact
class LimitMoved:
    """The limit changed; recorded as `LimitChanged`."""

    before: int
    after: int
    reason: str
    """One word: climbing, trying, in_flight, latency, timeouts, no_response, random_429s; from `Aimd`: window."""
    evidence: str


@fact
class Paused:
    """No attempt except a probe may start for a while; recorded as `IntakePaused`. A later pause replaces an earlier one."""

    until: float
    """When the next attempt may start, in the time of the signals."""
    reason: str
    """retry_after, rate_limited (a short pause), or unavailable, no_response, all_rate_limited (only probes start)."""
    evidence: str


@fact
class Resumed:
    """The pause is over; recorded as `IntakeResumed`."""

    reason: str
    """The reason of the pause that ended."""
    evidence: str


@fact
class PaceMoved:
    """The pace changed; recorded as `PaceChanged`."""

    before: float | None
    after: float | None
    """Starts per second; None: not paced."""
    reason: str
    """One word: start (the first starts of a run are spread), rate_limit, test or no_limit."""
    evidence: str


Change: TypeAlias = LimitMoved | PaceMoved | Paused | Resumed


@fact
class Decision:
    """What is in force after a signal, until the next one."""

    limit: int
    """Attempts that may be in flight; excess ones are not interrupted."""
    probe: bool = False
    """Whether the attempt that started is a probe, which does not use up its trial's retry budget."""
    changes: tuple[Change, ...] = ()
    """Changes since the previous decision, in order, to be recorded."""


@fact
class Gate:
    """Whether an attempt may start now."""

    open: bool
    at: float | None = None
    """If closed: when to ask again; None means after the next signal, because the limit is reached."""
    probe: bool = False
    """If open: whether the attempt would be a probe."""


OPEN = Gate(open=True)
PROBE = Gate(open=True, probe=True)
FULL = Gate(open=False)


class Policy(Protocol):
    """Decides how many attempts of one rate-limit key may be in flight, and when the next may start.

    Decisions depend only on the signals so far, so the same records always give the same decisions.
    """

    @property
    def limit(self) -> int:
        """Attempts that may be in flight now."""
        ...

    def take(self, signal: Signal) -> Decision:
        """Process a signal; return the decision."""
        ...

    def elapse(self, t: float) -> Decision:
        """Process that time has passed until `t`; called at the time `at` of a closed gate."""
        ...

    def may_start(self, t: float) -> Gate:
        """Return whether an attempt may start at `t`; changes nothing."""
        ...
