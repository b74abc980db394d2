"""Random runs: events in any legal order and at any times, from a seed."""

import itertools
import random
from collections.abc import Iterator

import attrs

from evaljournal.journal import Event, Record
from evaljournal.journal.events import (
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
from evaljournal.journal.format.lifecycle import Lifecycle
from tests.journal.samples import enqueued, started


@attrs.define
class _Generator:
    """Generates events that are legal in the current state."""

    rng: random.Random
    lifecycle: Lifecycle = attrs.field(factory=Lifecycle)
    limit: int = 0
    slots: dict[str, int] = attrs.field(factory=dict)
    """Trial → its slot."""
    trials: list[str] = attrs.field(factory=list)

    def session(self) -> Iterator[Event]:
        """Start a session, and interrupt the attempts of the previous one."""
        if self.lifecycle.sessions and self.rng.random() < 0.5:
            yield JournalRecovered(last_seq=1, bytes=1, file="torn/x")
        yield SessionStarted(session=self.lifecycle.sessions + 1, pid=1, host="here", boot_id="")
        for trial in list(self.slots):
            yield AttemptInterrupted(trial=trial, attempt=self.lifecycle.attempts_of(trial), reason="process_died")
        self.slots.clear()
        self.limit = self.rng.randint(1, 4)
        yield LimitChanged(before=0, after=self.limit, reason="start")

    def step(self, now: float) -> Iterator[Event]:
        """Return some events that are legal now."""
        kind = self.rng.random()
        if kind < 0.15:
            self.trials.append(f"case-{len(self.trials)}")
            yield enqueued(self.trials[-1])
        elif kind < 0.19:
            before, self.limit = self.limit, self.rng.randint(1, 4)
            yield LimitChanged(before=before, after=self.limit, reason="random")
        elif kind < 0.22:
            yield IntakePaused(until=now + self.rng.uniform(-1, 5), reason="retry_after", key=self.rng.choice(["", "b"]))
        elif kind < 0.24:
            yield IntakeResumed(reason="retry_after", key=self.rng.choice(["", "b"]))
        elif kind < 0.25:
            yield SegmentOpened(format="evaljournal", version="2.0", run="r", segment=2)
        elif kind < 0.26:
            yield RunStopped(reason="deadline")
        elif kind < 0.28:
            yield from self.session()
        elif self.trials:
            yield from self._to_trial(self.rng.choice(self.trials))

    def _to_trial(self, trial: str) -> Iterator[Event]:
        stage, attempts = self.lifecycle.stage_of(trial), self.lifecycle.attempts_of(trial)
        match stage:
            case "queued" | "backing_off" | "interrupted" if self.rng.random() < 0.9:
                if len(self.slots) < self.limit:
                    slot = next(slot for slot in itertools.count() if slot not in self.slots.values())
                    self.slots[trial] = slot
                    yield AttemptStarted(trial=trial, attempt=attempts + 1, slot=slot)
            case "running":
                del self.slots[trial]
                yield self._ending(trial, attempts)
            case "unsettled" | "failed" if self.rng.random() < 0.8:
                delay = self.rng.choice([0.0, self.rng.uniform(0, 4)])
                yield RetryScheduled(trial=trial, attempt=attempts + 1, delay=delay, reason="error")
            case "unsettled" | "interrupted":
                yield TrialFailed(trial=trial, attempts=attempts, reason="exhausted")
            case "scoring":
                yield TrialScored(trial=trial, scorer="exact", version="1", value=True, elapsed=0.0)
                yield ScoringFailed(trial=trial, scorer="judge", version="1", error="E", message="", elapsed=0.0)
                yield TrialCompleted(trial=trial, attempts=attempts)
            case "withdrawn":
                yield enqueued(trial)
            case _:
                if attempts:
                    yield AttemptReturnedLate(trial=trial, attempt=attempts, outcome="failed", elapsed=1.0)
                yield Noted(name="tokens", value=1, trial=trial, attempt=attempts)
                yield TrialWithdrawn(trial=trial, reason="removed")

    def _ending(self, trial: str, attempt: int) -> Event:
        match self.rng.randrange(4):
            case 0:
                return AttemptSucceeded(trial=trial, attempt=attempt, output="Lima", elapsed=0.25)
            case 1:
                return AttemptTimedOut(trial=trial, attempt=attempt, timeout=1.0, elapsed=1.0)
            case 2:
                return AttemptInterrupted(trial=trial, attempt=attempt, reason="cancelled", elapsed=0.5)
            case _:
                category = self.rng.choice(["error", "rate_limited", "unavailable", "fatal"])
                return AttemptFailed(trial=trial, attempt=attempt, error="E", message="", category=category, elapsed=0.1)  # type: ignore[arg-type]  # one of the literals


def random_records(seed: int, length: int = 200) -> Iterator[Record]:
    """Return the records of a random run."""
    rng = random.Random(seed)
    generator = _Generator(rng)
    seq = itertools.count(1)
    t, wall = 0.0, 0.0

    def record(event: Event) -> Record:
        if not isinstance(event, SegmentOpened):
            generator.lifecycle.advance(event)
        return Record(
            next(seq), f"2026-11-15T{int(wall / 60) % 24:02}:{int(wall) % 60:02}:00Z", round(t, 6), event, 0, "", 1, 0
        )

    yield record(started())
    for _ in range(length):
        t += rng.choice([0.0, 0.0, rng.uniform(0, 2)])
        wall += rng.uniform(-1, 10)
        events = generator.session() if generator.lifecycle.stage == "between_sessions" else generator.step(t)
        for event in events:
            if isinstance(event, SessionStarted | JournalRecovered):
                t = rng.uniform(0, 0.1)
            yield record(event)
