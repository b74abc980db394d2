"""What a policy is told, what it answers, and how an executor drives it.

Only the words that all policies share live here. Nothing here decides, waits, or reads a clock: every time is a
signal's own `t`, the monotonic seconds of the record that the signal was made from.

To drive a policy: ask `may_start(t)` whenever a slot is free and a trial is ready; if the gate is open, start the
attempt and hand in `Started`. Hand in every ending as it is recorded. If the gate is shut, ask again at `gate.at`, or,
where that is None, after the next signal. After each signal the decision says what now holds, and what to record.
"""

from typing import Protocol, TypeAlias

from journal.events import FailureCategory, fact


@fact
class Started:
    """An attempt began."""

    t: float
    attempt: str
    """Whose attempt it is: a trial has no more than one in flight, so its name tells them apart."""


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
    """Seconds after which the endpoint asked to be called again."""


@fact
class TimedOut:
    """An attempt outlived its time limit."""

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
    """The limit is another one now; to be recorded as `LimitChanged`."""

    before: int
    after: int
    reason: str
    """One word: climbing, trying, in_flight, latency, timeouts, no_response, random_429s; from `Aimd`: window."""
    evidence: str


@fact
class Paused:
    """No attempt may start for a while, but for a breaker's probes; to be recorded as `IntakePaused`.

    A later one replaces an earlier one.
    """

    until: float
    """When the next start may come, on the clock of the signals."""
    reason: str
    """retry_after, rate_limited (a short pause), or unavailable, no_response, all_rate_limited (only probes start)."""
    evidence: str


@fact
class Resumed:
    """The pause is over; to be recorded as `IntakeResumed`. Said by the first signal that shows it."""

    reason: str
    """The cause of the pause that ended."""
    evidence: str


@fact
class PaceMoved:
    """Starts are paced differently; to be recorded as `PaceChanged`."""

    before: float | None
    after: float | None
    """Starts per second; None: not paced."""
    reason: str
    """One word: rate_limit, test or no_limit."""
    evidence: str


Change: TypeAlias = LimitMoved | PaceMoved | Paused | Resumed


@fact
class Decision:
    """What holds after a signal, until the next one."""

    limit: int
    """Attempts that may be in flight at once. Those in excess are left to end by themselves."""
    probe: bool = False
    """True after the `Started` of a breaker's probe. Such an attempt must not spend its trial's budget."""
    changes: tuple[Change, ...] = ()
    """What is different from the decision before, for the journal, in order."""


@fact
class Gate:
    """Whether an attempt may start now."""

    open: bool
    at: float | None = None
    """When shut: the time to ask again; None means after the next signal, because every place is taken."""
    probe: bool = False
    """When open: the attempt would be a breaker's probe."""


OPEN = Gate(open=True)
PROBE = Gate(open=True, probe=True)
FULL = Gate(open=False)


class Policy(Protocol):
    """How many attempts may run at once on one key, and when the next may start.

    `take` depends on the state and the signal alone, so the same records always give the same decisions. It changes
    the state in place; the state is plain data, and a policy made with a copy of it goes on identically.
    """

    @property
    def limit(self) -> int:
        """Attempts that may be in flight at once, as things stand."""
        ...

    def take(self, signal: Signal) -> Decision:
        """Learn from one signal, and say what holds now."""
        ...

    def elapse(self, t: float) -> Decision:
        """Learn that it is `t` and that no signal came; to be called when the time `at` of a closed gate has come."""
        ...

    def may_start(self, t: float) -> Gate:
        """Return whether an attempt may start at `t`; asking changes nothing."""
        ...
