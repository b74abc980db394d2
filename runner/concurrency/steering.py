"""A policy at work in one session: records in, decisions to be recorded out.

The executor records the decisions, and an audit compares them with what was recorded. Both go through here, so everything
that a policy consumes is in the journal, and its decisions can be recomputed.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, assert_never, cast, get_args

from journal import Record
from journal.events import (
    AttemptEnding,
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    IntakePaused,
    IntakeResumed,
    LimitChanged,
    PaceChanged,
    PolicyEvent,
    ScorerCallFailed,
    ScorerCallStarted,
    ScoringFailed,
    TrialScored,
)
from runner.concurrency.policy import (
    Change,
    Decision,
    Failed,
    Interrupted,
    LimitMoved,
    PaceMoved,
    Paused,
    Policy,
    Resumed,
    Signal,
    Started,
    Succeeded,
    TimedOut,
)

PROBES: Final = 3
"""Probes that cost a trial nothing in one outage; after so many it may be the trial that fails, and not the endpoint."""

AttemptEvent = AttemptStarted | AttemptEnding
CallEvent = ScorerCallStarted | ScorerCallFailed | TrialScored | ScoringFailed


def call_id(trial: str, scorer: str) -> str:
    """Return the name under which a policy knows the call of a scorer; an attempt is known by its trial."""
    return f"{trial}\0{scorer}"


class Steering:
    """A policy, and the trials and calls that are its probes."""

    def __init__(self, policy: Policy, *, patience: float, key: str = "") -> None:
        """Let trials probe for free until an outage has lasted `patience` seconds; `key` is the rate-limit key."""
        self._key = key
        self._policy = policy
        self._patience = patience
        self._outage_since: float | None = None
        """When the first probe was made that no success has followed yet."""
        self._probes: Counter[str] = Counter()
        """Trial or call → how many probes it has made since."""
        self.limit = policy.limit
        """Attempts and calls that may be in flight at once."""
        self.may_start = policy.may_start
        """Returns whether an attempt or a call may start at a time; asking changes nothing."""
        self.free: set[str] = set()
        """Trials and calls whose last start was a probe that costs them nothing."""

    def begin(self) -> LimitChanged:
        """Return what holds before the first start."""
        return LimitChanged(before=0, after=self.limit, reason="start", key=self._key)

    def take(self, record: Record) -> list[PolicyEvent]:
        """Learn from a start or an ending; return what is to be recorded after it.

        Of the scores of a call, only the first is an ending; the others are not to be handed in.
        """
        kind = record.event.__class__  # Twice for every trial: to ask for the class itself costs the least.
        if kind in _CALL_EVENTS:
            name, signal = _call_signal(cast("CallEvent", record.event), record.t)
        else:
            event = cast("AttemptEvent", record.event)
            name = event.trial
            signal = _signal(event, record.t)
        decision = self._policy.take(signal)
        self.limit = decision.limit
        if kind is AttemptStarted or kind is ScorerCallStarted:
            if decision.probe or self.free:
                self._started(name, record.t, probe=decision.probe)
        elif self._outage_since is not None and signal.__class__ is Succeeded:
            self._outage_since = None
            self._probes.clear()
        return self._events(decision) if decision.changes else []

    def elapse(self, t: float) -> list[PolicyEvent]:
        """Return what the policy decides because it is `t`, although nothing has happened; to be recorded with that time."""
        decision = self._policy.elapse(t)
        self.limit = decision.limit
        return self._events(decision)

    def adopt(self, changes: Sequence[Change]) -> list[PolicyEvent]:
        """Return what is to be recorded of changes that another run has caused, where the policy is shared."""
        self.limit = self._policy.limit
        return [_event(change, self._key) for change in changes]

    def _events(self, decision: Decision) -> list[PolicyEvent]:
        return [_event(change, self._key) for change in decision.changes]

    def _started(self, name: str, t: float, *, probe: bool) -> None:
        if probe:
            self._outage_since = t if self._outage_since is None else self._outage_since
            self._probes[name] += 1
        if probe and self._probes[name] <= PROBES and t - (self._outage_since or t) < self._patience:
            self.free.add(name)
        else:
            self.free.discard(name)


def _signal(event: AttemptEvent, t: float) -> Signal:
    match event:
        case AttemptStarted():
            return Started(t=t, attempt=event.trial)
        case AttemptSucceeded():
            return Succeeded(t=t, attempt=event.trial, elapsed=event.elapsed)
        case AttemptFailed():
            return Failed(t=t, attempt=event.trial, category=event.category, retry_after=event.retry_after)
        case AttemptTimedOut():
            return TimedOut(t=t, attempt=event.trial)
        case AttemptInterrupted():
            return Interrupted(t=t, attempt=event.trial)
    assert_never(event)


def _call_signal(event: CallEvent, t: float) -> tuple[str, Signal]:
    """Return the name of a call, and what a policy is told of it. A value that is not a score is an answer all the same."""
    name = call_id(event.trial, event.scorer.partition(".")[0])
    match event:
        case ScorerCallStarted():
            return name, Started(t=t, attempt=name)
        case TrialScored() | ScoringFailed():
            return name, Succeeded(t=t, attempt=name, elapsed=event.elapsed)
        case ScorerCallFailed():
            if event.category == "timed_out":
                return name, TimedOut(t=t, attempt=name)
            return name, Failed(t=t, attempt=name, category=event.category, retry_after=event.retry_after)
    assert_never(event)


_CALL_EVENTS: Final = frozenset(get_args(CallEvent))


def _event(change: Change, key: str) -> PolicyEvent:
    match change:
        case LimitMoved():
            return LimitChanged(
                before=change.before, after=change.after, reason=change.reason, evidence=change.evidence, key=key
            )
        case PaceMoved():
            return PaceChanged(
                before=change.before, after=change.after, reason=change.reason, evidence=change.evidence, key=key
            )
        case Paused():
            return IntakePaused(until=round(change.until, 6), reason=change.reason, evidence=change.evidence, key=key)
        case Resumed():
            return IntakeResumed(reason=change.reason, evidence=change.evidence, key=key)
    assert_never(change)
