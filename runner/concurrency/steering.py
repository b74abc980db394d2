"""A policy at work in one session: told of records, it answers with the records that must follow.

The executor records what comes out of it, and an audit holds the same against what was recorded. Both go through here, so
whatever a policy has been told can be read back from the journal, and what it decided can be decided again.
"""

from collections import Counter
from typing import Final, assert_never, cast

from journal import Record
from journal.events import (
    AttemptEnding,
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    Decided,
    IntakePaused,
    IntakeResumed,
    LimitChanged,
    PaceChanged,
)
from runner.concurrency.policy import (
    Change,
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
"""Probes that cost a trial nothing, in one illness: after so many it may be the trial that is ill, and not the other side."""

AttemptEvent = AttemptStarted | AttemptEnding


class Steering:
    """A policy, and the trials whose attempts are its probes."""

    def __init__(self, policy: Policy, *, patience: float, key: str = "") -> None:
        """Let trials probe for free until the other side has been ill for `patience` seconds; `key` names it, among several."""
        self._key = key
        self._policy = policy
        self._patience = patience
        self._ill_since: float | None = None
        """When the first probe was made that no success has followed yet."""
        self._probes: Counter[str] = Counter()
        """Trial → how many probes it has made since."""
        self.limit = policy.limit
        """Attempts that may be in flight at once."""
        self.may_start = policy.may_start
        """Says whether an attempt may start at a time; asking changes nothing."""
        self.free: set[str] = set()
        """Trials whose last attempt was a probe that costs them nothing."""

    def begin(self) -> LimitChanged:
        """Say what holds before the first attempt."""
        return LimitChanged(before=0, after=self.limit, cause="start", key=self._key)

    def take(self, record: Record) -> list[Decided]:
        """Learn from the start or the end of an attempt; return the decisions to record after it."""
        kind = record.event.__class__  # Twice for every trial: to ask for the class itself costs the least.
        event = cast("AttemptEvent", record.event)
        trial = event.trial
        decision = self._policy.take(_signal(event, record.t))
        self.limit = decision.limit
        if kind is AttemptStarted:
            if decision.probe or self.free:
                self._started(trial, record.t, probe=decision.probe)
        elif kind is AttemptSucceeded and self._ill_since is not None:
            self._ill_since = None
            self._probes.clear()
        return [_event(change, self._key) for change in decision.changes] if decision.changes else []

    def elapse(self, t: float) -> list[Decided]:
        """Learn that it is `t`, and return the decisions to record."""
        decision = self._policy.elapse(t)
        self.limit = decision.limit
        return [_event(change, self._key) for change in decision.changes]

    def _started(self, trial: str, t: float, *, probe: bool) -> None:
        if probe:
            self._ill_since = t if self._ill_since is None else self._ill_since
            self._probes[trial] += 1
        if probe and self._probes[trial] <= PROBES and t - (self._ill_since or t) < self._patience:
            self.free.add(trial)
        else:
            self.free.discard(trial)


def _signal(event: AttemptEvent, t: float) -> Signal:
    match event:
        case AttemptStarted():
            return Started(t=t, attempt=event.trial)
        case AttemptSucceeded():
            return Succeeded(t=t, attempt=event.trial, elapsed=event.elapsed)
        case AttemptFailed():
            return Failed(t=t, attempt=event.trial, failure=event.category, retry_after=event.retry_after)
        case AttemptTimedOut():
            return TimedOut(t=t, attempt=event.trial)
        case AttemptInterrupted():
            return Interrupted(t=t, attempt=event.trial)
    assert_never(event)


def _event(change: Change, key: str) -> Decided:
    match change:
        case LimitMoved():
            return LimitChanged(before=change.before, after=change.after, cause=change.cause, evidence=change.evidence, key=key)
        case PaceMoved():
            return PaceChanged(before=change.before, after=change.after, cause=change.cause, evidence=change.evidence, key=key)
        case Paused():
            return IntakePaused(until=round(change.until, 6), cause=change.cause, evidence=change.evidence, key=key)
        case Resumed():
            return IntakeResumed(cause=change.cause, evidence=change.evidence, key=key)
    assert_never(change)
