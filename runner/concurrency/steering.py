"""A policy at work in one session: told of records, it answers with the records that must follow.

The executor records what comes out of it, and an audit holds the same against what was recorded. Both go through here, so
whatever a policy has been told can be read back from the journal, and what it decided can be decided again.
"""

from typing import assert_never

from journal import Record
from journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    IntakePaused,
    IntakeResumed,
    LimitChanged,
)
from runner.concurrency.policy import (
    Change,
    Failed,
    Gate,
    Interrupted,
    LimitMoved,
    Paused,
    Policy,
    Quota,
    Resumed,
    Signal,
    Started,
    Succeeded,
    TimedOut,
)

Steered = LimitChanged | IntakePaused | IntakeResumed


class Steering:
    """A policy, and the trials whose attempts are its probes."""

    def __init__(self, policy: Policy, *, patience: float) -> None:
        """Let trials probe for free until the other side has been ill for `patience` seconds."""
        self._policy = policy
        self._patience = patience
        self._ill_since: float | None = None
        """When the first probe was made that no success has followed yet."""
        self.limit = policy.limit
        """Attempts that may be in flight at once."""
        self.free: set[str] = set()
        """Trials whose last attempt was a probe that costs them nothing."""

    def begin(self) -> LimitChanged:
        """Say what holds before the first attempt."""
        return LimitChanged(before=0, after=self.limit, cause="start")

    def may_start(self, t: float) -> Gate:
        """Say whether an attempt may start at `t`; asking changes nothing."""
        return self._policy.may_start(t)

    def take(self, record: Record) -> list[Steered]:
        """Learn from the start or the end of an attempt; give what is to be recorded behind it."""
        signal = _signal(record)
        decision = self._policy.take(signal)
        self.limit = decision.limit
        if isinstance(signal, Started):
            self._started(record, probe=decision.probe)
        elif isinstance(signal, Succeeded):
            self._ill_since = None
        return [_event(change) for change in decision.changes] if decision.changes else []

    def _started(self, record: Record, *, probe: bool) -> None:
        assert isinstance(record.event, AttemptStarted)
        if probe and self._ill_since is None:
            self._ill_since = record.t
        if probe and self._ill_since is not None and record.t - self._ill_since < self._patience:
            self.free.add(record.event.trial)
        else:
            self.free.discard(record.event.trial)


def _signal(record: Record) -> Signal:
    event, t = record.event, record.t
    match event:
        case AttemptStarted():
            return Started(t=t, attempt=_name(event))
        case AttemptSucceeded():
            return Succeeded(t=t, attempt=_name(event), elapsed=event.elapsed, quota=_quota(event))
        case AttemptFailed():
            quota = _quota(event)
            return Failed(t=t, attempt=_name(event), failure=event.category, retry_after=event.retry_after, quota=quota)
        case AttemptTimedOut():
            return TimedOut(t=t, attempt=_name(event))
        case AttemptInterrupted():
            return Interrupted(t=t, attempt=_name(event))
        case _:
            raise ValueError(f"a policy is told of attempts, not of {type(event).__name__}")


def _name(event: AttemptStarted | AttemptSucceeded | AttemptFailed | AttemptTimedOut | AttemptInterrupted) -> str:
    return f"{event.trial}/{event.attempt}"


def _quota(event: AttemptSucceeded | AttemptFailed) -> Quota | None:
    return None if event.quota is None else Quota(**event.quota)


def _event(change: Change) -> Steered:
    match change:
        case LimitMoved():
            return LimitChanged(before=change.before, after=change.after, cause=change.cause, evidence=change.evidence)
        case Paused():
            return IntakePaused(until=round(change.until, 6), cause=change.cause, evidence=change.evidence)
        case Resumed():
            return IntakeResumed(cause=change.cause, evidence=change.evidence)
    assert_never(change)
