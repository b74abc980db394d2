"""Runs that never happened: any order of events that the rules allow, at any time, decided by a seed.

Nothing here asserts anything.
"""

import itertools
import random
from collections.abc import Iterator

import attrs

from journal import Event, Record
from journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptReturnedLate,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    IntakePaused,
    IntakeResumed,
    JournalRecovered,
    LimitChanged,
    Noted,
    RetryScheduled,
    RunStopped,
    ScoringFailed,
    SegmentOpened,
    SessionStarted,
    TrialCompleted,
    TrialFailed,
    TrialScored,
    TrialWithdrawn,
)
from journal.lifecycle import Lifecycle
from tests.journal.samples import enqueued, started


@attrs.define
class _Life:
    """A run that is being made up: who stands where, and who holds which slot."""

    dice: random.Random
    lifecycle: Lifecycle = attrs.field(factory=Lifecycle)
    limit: int = 0
    slots: dict[str, int] = attrs.field(factory=dict)
    """Trial → the slot that it holds."""
    trials: list[str] = attrs.field(factory=list)

    def session(self) -> Iterator[Event]:
        """Begin a session, as a process does that finds what the one before has left."""
        if self.lifecycle.sessions and self.dice.random() < 0.5:
            yield JournalRecovered(after=1, bytes=1, file="torn/x")
        yield SessionStarted(n=self.lifecycle.sessions + 1, pid=1, host="here", boot_id="")
        for trial in list(self.slots):
            yield AttemptInterrupted(trial=trial, attempt=self.lifecycle.attempts_of(trial), why="process_died")
        self.slots.clear()
        self.limit = self.dice.randint(1, 4)
        yield LimitChanged(before=0, after=self.limit, cause="start")

    def anything(self, now: float) -> Iterator[Event]:
        """Let something happen that may."""
        kind = self.dice.random()
        if kind < 0.15:
            self.trials.append(f"case-{len(self.trials)}")
            yield enqueued(self.trials[-1])
        elif kind < 0.19:
            before, self.limit = self.limit, self.dice.randint(1, 4)
            yield LimitChanged(before=before, after=self.limit, cause="why not")
        elif kind < 0.22:
            yield IntakePaused(until=now + self.dice.uniform(-1, 5), cause="retry_after", key=self.dice.choice(["", "b"]))
        elif kind < 0.24:
            yield IntakeResumed(cause="retry_after", key=self.dice.choice(["", "b"]))
        elif kind < 0.25:
            yield SegmentOpened(format="evaljournal", version="1.0", run="r", segment=2)
        elif kind < 0.26:
            yield RunStopped(reason="deadline")
        elif kind < 0.28:
            yield from self.session()
        elif self.trials:
            yield from self._to_trial(self.dice.choice(self.trials))

    def _to_trial(self, trial: str) -> Iterator[Event]:
        stage, attempts = self.lifecycle.stage_of(trial), self.lifecycle.attempts_of(trial)
        match stage:
            case "queued" | "backing_off" | "interrupted" if self.dice.random() < 0.9:
                if len(self.slots) < self.limit:
                    slot = next(slot for slot in itertools.count() if slot not in self.slots.values())
                    self.slots[trial] = slot
                    yield AttemptStarted(trial=trial, attempt=attempts + 1, slot=slot)
            case "running":
                del self.slots[trial]
                yield self._ending(trial, attempts)
            case "unsettled" | "failed" if self.dice.random() < 0.8:
                delay = self.dice.choice([0.0, self.dice.uniform(0, 4)])
                yield RetryScheduled(trial=trial, attempt=attempts + 1, delay=delay, cause="error")
            case "unsettled" | "interrupted":
                yield TrialFailed(trial=trial, attempts=attempts, cause="exhausted")
            case "answered":
                yield TrialScored(trial=trial, scorer="exact", version="1", value=True, elapsed=0.0)
                yield ScoringFailed(trial=trial, scorer="judge", version="1", error="E", message="", elapsed=0.0)
                yield TrialCompleted(trial=trial, attempts=attempts)
            case "withdrawn":
                yield enqueued(trial)
            case _:
                if attempts:
                    yield AttemptReturnedLate(trial=trial, attempt=attempts, ending="failed", elapsed=1.0)
                yield Noted(name="tokens", value=1, trial=trial, attempt=attempts)
                yield TrialWithdrawn(trial=trial, why="removed")

    def _ending(self, trial: str, attempt: int) -> Event:
        match self.dice.randrange(4):
            case 0:
                return AttemptSucceeded(trial=trial, attempt=attempt, output="Lima", elapsed=0.25)
            case 1:
                return AttemptTimedOut(trial=trial, attempt=attempt, timeout=1.0, elapsed=1.0)
            case 2:
                return AttemptInterrupted(trial=trial, attempt=attempt, why="cancelled", elapsed=0.5)
            case _:
                category = self.dice.choice(["error", "rate_limited", "unavailable", "fatal"])
                return AttemptFailed(trial=trial, attempt=attempt, error="E", message="", category=category, elapsed=0.1)  # type: ignore[arg-type]  # one of them


def random_records(seed: int, length: int = 200) -> Iterator[Record]:
    """Make up the records of a run."""
    dice = random.Random(seed)
    life = _Life(dice)
    seq = itertools.count(1)
    t, wall = 0.0, 0.0

    def record(event: Event) -> Record:
        if not isinstance(event, SegmentOpened):
            life.lifecycle.advance(event)
        return Record(
            next(seq), f"2026-11-15T{int(wall / 60) % 24:02}:{int(wall) % 60:02}:00Z", round(t, 6), event, 0, "", 1, 0
        )

    yield record(started())
    for _ in range(length):
        t += dice.choice([0.0, 0.0, dice.uniform(0, 2)])
        wall += dice.uniform(-1, 10)
        events = life.session() if life.lifecycle.stage == "between_sessions" else life.anything(t)
        for event in events:
            if isinstance(event, SessionStarted | JournalRecovered):
                t = dice.uniform(0, 0.1)
            yield record(event)
