"""The interface of a policy: the events of the journal that it takes, and the decisions that it returns.

Nothing here decides, waits or reads a clock: every time is the `t` of a record.

To drive a policy, call `may_start(t)` whenever a slot is free and a trial is ready. If the permit is open, start the attempt
or scorer call, and pass its start and its end to `observe` as they are recorded. If the permit is closed, call again at its
`check_at` or, if that is None, after the next event. Both return the changes to record, and `limit` is the limit from then on.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, assert_never, get_args

from evaljournal.journal import events
from evaljournal.journal.fact import fact

CallStart: TypeAlias = events.AttemptStarted | events.ScorerCallStarted
CallEnd: TypeAlias = events.AttemptEnd | events.ScorerCallFailed | events.TrialScored | events.ScoringFailed
CallEvent: TypeAlias = CallStart | CallEnd
"""The start or the end of an attempt or a scorer call. A call that returns several scores ends with the first."""
STARTS: Final = (events.AttemptStarted, events.ScorerCallStarted)
_SCORER_EVENTS: Final = (events.ScorerCallStarted, events.ScorerCallFailed, events.TrialScored, events.ScoringFailed)

Outcome: TypeAlias = Literal["succeeded", "timed_out", "interrupted"] | events.FailureCategory
"""The category of a failure, or how else a call ended. One that this process interrupted is no evidence about the endpoint."""


class Result(NamedTuple):
    """How a call ended."""

    outcome: Outcome
    elapsed: float = 0.0
    """Seconds from its start to its end, if it succeeded."""
    retry_after: float | None = None
    """Seconds to wait, from `Retry-After` or an equivalent."""


def call_id(trial: str, scorer: str) -> str:
    """Return the id of a scorer call; the id of an attempt is its trial, which has at most one in flight."""
    return f"{trial}\0{scorer}"


def call_of(event: CallEvent) -> str:
    """Return the id of the attempt or the scorer call that an event belongs to."""
    return CALL_OF[event.__class__](event)


def _scorer_call(event: Any) -> str:
    return call_id(event.trial, event.scorer.partition(".")[0])


CALL_OF: Final[Mapping[type, Callable[[Any], str]]] = {
    **dict.fromkeys(get_args(CallEvent), attrgetter("trial")),
    **dict.fromkeys(_SCORER_EVENTS, _scorer_call),
}
"""Event class → the function that returns the id; for attempts, one not written in Python, because it is called often."""


def result_of(event: CallEnd) -> Result:
    """Return how a call ended; an invalid score is a success here, because the endpoint answered."""
    match event:
        case events.AttemptSucceeded() | events.TrialScored() | events.ScoringFailed():
            return Result("succeeded", event.elapsed)
        case events.AttemptFailed() | events.ScorerCallFailed():
            return Result(event.category, retry_after=event.retry_after)
        case events.AttemptTimedOut():
            return Result("timed_out")
        case events.AttemptInterrupted():
            return Result("interrupted")
    assert_never(event)


Change: TypeAlias = events.PolicyEvent | events.Noted
"""A change of the limit, the pace or a pause, or the note that a policy failed."""


@fact
class StartPermit:
    """Whether an attempt may start now."""

    open: bool
    check_at: float | None = None
    """If closed: when to ask again; None means after the next event, because the limit is reached."""
    probe: bool = False
    """If open: whether the attempt would be a probe of an open circuit breaker."""


OPEN = StartPermit(open=True)
PROBE = StartPermit(open=True, probe=True)
FULL = StartPermit(open=False)


class Policy(Protocol):
    """Decides how many attempts of one rate-limit key may be in flight, and when the next may start.

    Decisions depend only on the events so far and their times, so the same records always give the same decisions.
    """

    @property
    def limit(self) -> int:
        """Attempts that may be in flight now; excess ones are not interrupted."""
        ...

    def observe(self, event: CallEvent, t: float) -> Sequence[Change]:
        """Process the start or the end of a call, recorded at `t`; return the changes to record, without their key."""
        ...

    def elapse(self, t: float) -> Sequence[Change]:
        """Process that time has passed until `t`; called at the `check_at` of a closed permit."""
        ...

    def may_start(self, t: float) -> StartPermit:
        """Return whether an attempt may start at `t`; changes nothing."""
        ...
