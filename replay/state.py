"""Fold a journal into the state it describes.

One function, `RunState.apply`, says what each record means. The live run keeps its own state by it, and so does everyone who
looks at a run later, so the two cannot differ. Only sums, and a few words about each trial, are kept here; inputs and outputs
stay on disk, and are found again by their place. Nothing here knows the time: `t` comes from the records.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

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
    RunFinished,
    RunStarted,
    RunStopped,
    ScoringFailed,
    SessionStarted,
    TrialCompleted,
    TrialEnqueued,
    TrialFailed,
    TrialScored,
    TrialWithdrawn,
)

Place = tuple[int, int]
"""Where a record stands: the number of its file, and the byte at which its line begins."""

Value = bool | int | float | str


@attrs.define
class Trouble:
    """What a trial that is not done yet has been through; it decides what is left of its budgets."""

    errors: int = 0
    timeouts: int = 0
    refusals: int = 0
    refused_for: float = 0.0
    """Seconds of back-off that rate limits have cost."""
    category: str = ""
    """What kind of trouble the last one was: a category of `AttemptFailed`, or `timed_out`."""
    retry_after: float | None = None


@attrs.define
class TrialState:
    """One trial, in a few hundred bytes."""

    stage: str
    """As in `journal.lifecycle.STAGES`."""
    fingerprint: str
    asked: Place
    """Where its input is."""
    attempts: int = 0
    answer: Place | None = None
    """Where its output is."""
    scores: dict[str, tuple[str, Value]] | None = None
    """Scorer → version and value; the latest of each."""
    unscored: tuple[str, ...] = ()
    """Scorers that failed."""
    slot: int = -1
    """Where it runs."""
    since: float = 0.0
    """When it came into its stage, in the seconds of `t`."""
    due: float = 0.0
    """When it may be tried again."""
    trouble: Trouble | None = None
    error: str = ""
    """What the last attempt that failed said, in short."""
    cause: str = ""
    """Why it was given up, the last time that it was."""
    elapsed: float = 0.0
    """Seconds of the attempt that gave the output."""


@attrs.define
class Tally:
    """What one scorer has said so far."""

    scored: int = 0
    failed: int = 0
    """How many times the scorer itself failed."""
    error: str = ""
    """What it said the last time, in short."""
    total: float = 0.0
    squares: float = 0.0
    labels: Counter[str] = attrs.field(factory=Counter)
    is_pass_or_fail: bool = True
    """Whether every value so far was true or false."""

    def add(self, value: Value, times: int = 1) -> None:
        """Count a value, or (-1) take it back because a later one supersedes it."""
        self.scored += times
        if isinstance(value, str):
            self.labels[value] += times
            self.is_pass_or_fail = False
        else:
            self.is_pass_or_fail = self.is_pass_or_fail and isinstance(value, bool)
            self.total += times * float(value)
            self.squares += times * float(value) ** 2

    @property
    def mean(self) -> float | None:
        """The mean of all numbers (true counts as 1); None for labels, or where there is nothing."""
        return None if not self.scored or self.labels else self.total / self.scored


@attrs.define
class Session:
    """One process life of the run."""

    n: int
    seq: int
    at: str
    pid: int
    host: str
    ended: str = ""
    """`finished`, or why it stopped; empty while it lives, or if it died."""


_SHOWN: Final = 200


class RunState:
    """Where a run stands after some record."""

    def __init__(self) -> None:
        self.seq = 0
        self.at = ""
        self.t = 0.0
        self._ended_at = 0.0
        """The moment of the record before; at the start of a session, the last of the one before."""
        self.head = ""
        """The hash of the last record."""
        self.started: RunStarted | None = None
        self.planned = 0
        """How many trials there are to be made; 0 where that was not known beforehand."""
        self.settings: dict[str, Any] = {}
        """Those in force in the present session."""
        self.sessions: list[Session] = []
        self.ending = ""
        """`finished`, or why the last session stopped; empty while it lives, or if it died."""

        self.trials: dict[str, TrialState] = {}
        self.stages: Counter[str] = Counter()
        """How many trials stand in each stage."""
        self.running: dict[str, TrialState] = {}
        """The trials that hold a slot."""
        self.backing_off: dict[str, TrialState] = {}
        self.recovered = 0
        """Trials that were completed after an attempt that failed."""
        self.attempts = 0
        self.retries: Counter[str] = Counter()
        """By cause."""
        self.errors: Counter[str] = Counter()
        """By type."""
        self.timeouts = 0
        self.interrupted = 0
        """Attempts that were cut off; a call that was paid for may be among them."""
        self.late = 0
        self.latencies = array("d")
        """Seconds of every attempt that gave an output."""
        self.scores: dict[str, Tally] = {}
        self.usage: Counter[str] = Counter()
        """The sums of every number that was noted or came with an attempt: tokens, cost."""

        self.limits: dict[str, int] = {}
        """Key → attempts that may run at once."""
        self.pauses: dict[str, tuple[float, str]] = {}
        """Key → until when nothing may start, and why."""
        self.recoveries = 0

    def apply(self, record: Record) -> None:
        """Take in one record."""
        self._ended_at = self.t
        self.seq, self.at, self.t, self.head = record.seq, record.at, record.t, record.h
        meaning = _MEANINGS.get(record.event.__class__)
        if meaning is not None:
            meaning(self, record.event, record)

    @property
    def total(self) -> int:
        """How many trials count: all that were enqueued and not withdrawn."""
        return len(self.trials) - self.stages["withdrawn"]

    @property
    def completed(self) -> int:
        """Trials that have an output, and have had every scorer's turn."""
        return self.stages["completed"]

    @property
    def failed(self) -> int:
        """Trials that were given up."""
        return self.stages["failed"]

    @property
    def done(self) -> int:
        """Trials that have come to their end."""
        return self.completed + self.failed

    def _move(self, name: str, trial: TrialState, stage: str, record: Record) -> None:
        self.stages[trial.stage] -= 1
        self.stages[stage] += 1
        if trial.stage == "running":
            del self.running[name]
        elif trial.stage == "backing_off":
            del self.backing_off[name]
        trial.stage = stage
        trial.since = record.t

    def _run_started(self, event: RunStarted, _: Record) -> None:
        self.started = event
        self.planned = event.trials
        self.settings = dict(event.settings)

    def _session_started(self, event: SessionStarted, record: Record) -> None:
        for trial in self.backing_off.values():  # Seconds count anew; what is left of a wait is waited for.
            trial.due = max(0.0, trial.due - self._ended_at)
        self.sessions.append(Session(n=event.n, seq=record.seq, at=record.at, pid=event.pid, host=event.host))
        self.settings.update(event.settings or {})
        self.ending = ""
        self.pauses.clear()
        self.limits.clear()

    def _trial_enqueued(self, event: TrialEnqueued, record: Record) -> None:
        before = self.trials.get(event.trial)
        attempts = 0
        if before is not None:
            attempts = before.attempts
            self.stages[before.stage] -= 1
        place = (record.segment, record.offset)
        self.trials[event.trial] = TrialState("queued", event.fingerprint, place, attempts=attempts, since=record.t)
        self.stages["queued"] += 1

    def _attempt_started(self, event: AttemptStarted, record: Record) -> None:
        trial = self.trials[event.trial]
        self._move(event.trial, trial, "running", record)
        self.running[event.trial] = trial
        trial.attempts = event.attempt
        trial.slot = event.slot
        self.attempts += 1

    def _attempt_succeeded(self, event: AttemptSucceeded, record: Record) -> None:
        trial = self.trials[event.trial]
        self._move(event.trial, trial, "answered", record)
        trial.answer = (record.segment, record.offset)
        trial.elapsed = event.elapsed
        self.latencies.append(event.elapsed)
        self._use(event.usage)

    def _attempt_failed(self, event: AttemptFailed, record: Record) -> None:
        trial = self.trials[event.trial]
        self._move(event.trial, trial, "unsettled", record)
        trouble = trial.trouble = trial.trouble or Trouble()
        trouble.category = event.category
        trouble.retry_after = event.retry_after
        if event.category == "rate_limited":
            trouble.refusals += 1
        else:
            trouble.errors += 1
        trial.error = f"{event.error}: {event.message}"[:_SHOWN]
        self.errors[event.error] += 1
        self._use(event.usage)

    def _attempt_timed_out(self, event: AttemptTimedOut, record: Record) -> None:
        trial = self.trials[event.trial]
        self._move(event.trial, trial, "unsettled", record)
        trouble = trial.trouble = trial.trouble or Trouble()
        trouble.category = "timed_out"
        trouble.retry_after = None
        trouble.timeouts += 1
        trial.error = f"timed out after {event.limit:g} s"
        self.timeouts += 1
        self._use(event.usage)

    def _attempt_interrupted(self, event: AttemptInterrupted, record: Record) -> None:
        self._move(event.trial, self.trials[event.trial], "interrupted", record)
        self.interrupted += 1

    def _attempt_returned_late(self, _: AttemptReturnedLate, __: Record) -> None:
        self.late += 1

    def _retry_scheduled(self, event: RetryScheduled, record: Record) -> None:
        trial = self.trials[event.trial]
        self._move(event.trial, trial, "backing_off", record)
        self.backing_off[event.trial] = trial
        trial.due = record.t + event.delay
        if trial.trouble is not None:
            match event.cause:
                case "rate_limited":
                    trial.trouble.refused_for += event.delay
                case "probe":  # Made for everyone's sake: the trial gets back what it seemed to have spent.
                    if trial.trouble.category == "timed_out":
                        trial.trouble.timeouts -= 1
                    elif trial.trouble.category != "rate_limited":
                        trial.trouble.errors -= 1
                case "asked":
                    trial.trouble = Trouble()
                case _:
                    pass
        self.retries[event.cause] += 1

    def _trial_scored(self, event: TrialScored, _: Record) -> None:
        trial = self.trials[event.trial]
        tally = self.scores.get(event.scorer)
        if tally is None:
            tally = self.scores[event.scorer] = Tally()
        scores = trial.scores = trial.scores or {}
        if event.scorer in scores:
            tally.add(scores[event.scorer][1], -1)
        tally.add(event.value)
        scores[event.scorer] = (event.version, event.value)

    def _scoring_failed(self, event: ScoringFailed, _: Record) -> None:
        trial = self.trials[event.trial]
        trial.unscored = (*trial.unscored, event.scorer)
        tally = self.scores.setdefault(event.scorer, Tally())
        tally.failed += 1
        tally.error = f"{event.error}: {event.message}"[:_SHOWN]

    def _trial_completed(self, event: TrialCompleted, record: Record) -> None:
        trial = self.trials[event.trial]
        self._move(event.trial, trial, "completed", record)
        if trial.trouble is not None:
            self.recovered += 1
            trial.trouble = None

    def _trial_failed(self, event: TrialFailed, record: Record) -> None:
        trial = self.trials[event.trial]
        self._move(event.trial, trial, "failed", record)
        trial.cause = event.cause

    def _trial_withdrawn(self, event: TrialWithdrawn, record: Record) -> None:
        trial = self.trials[event.trial]
        self._move(event.trial, trial, "withdrawn", record)
        for scorer, (_, value) in (trial.scores or {}).items():
            self.scores[scorer].add(value, -1)
        trial.scores = None

    def _limit_changed(self, event: LimitChanged, _: Record) -> None:
        self.limits[event.key] = event.after

    def _intake_paused(self, event: IntakePaused, _: Record) -> None:
        self.pauses[event.key] = (event.until, event.cause)

    def _intake_resumed(self, event: IntakeResumed, _: Record) -> None:
        self.pauses.pop(event.key, None)

    def _noted(self, event: Noted, _: Record) -> None:
        self._use(event.value if event.name == "usage" else {event.name: event.value})

    def _journal_recovered(self, _: JournalRecovered, __: Record) -> None:
        self.recoveries += 1

    def _run_stopped(self, event: RunStopped, _: Record) -> None:
        self._end(event.reason)

    def _run_finished(self, _: RunFinished, __: Record) -> None:
        self._end("finished")

    def _end(self, how: str) -> None:
        self.ending = how
        if self.sessions:
            self.sessions[-1].ended = how

    def _use(self, usage: Any) -> None:
        if isinstance(usage, dict):
            for name, value in usage.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    self.usage[name] += value  # type: ignore[assignment]  # cost is not whole


_MEANINGS: Final[dict[type[Event], Callable[[RunState, Any, Record], None]]] = {
    RunStarted: RunState._run_started,
    SessionStarted: RunState._session_started,
    TrialEnqueued: RunState._trial_enqueued,
    AttemptStarted: RunState._attempt_started,
    AttemptSucceeded: RunState._attempt_succeeded,
    AttemptFailed: RunState._attempt_failed,
    AttemptTimedOut: RunState._attempt_timed_out,
    AttemptInterrupted: RunState._attempt_interrupted,
    AttemptReturnedLate: RunState._attempt_returned_late,
    RetryScheduled: RunState._retry_scheduled,
    TrialScored: RunState._trial_scored,
    ScoringFailed: RunState._scoring_failed,
    TrialCompleted: RunState._trial_completed,
    TrialFailed: RunState._trial_failed,
    TrialWithdrawn: RunState._trial_withdrawn,
    LimitChanged: RunState._limit_changed,
    IntakePaused: RunState._intake_paused,
    IntakeResumed: RunState._intake_resumed,
    Noted: RunState._noted,
    JournalRecovered: RunState._journal_recovered,
    RunStopped: RunState._run_stopped,
    RunFinished: RunState._run_finished,
}


def fold(records: Iterable[Record], *, at: int | None = None) -> RunState:
    """Fold records into the state after the last of them, or after record `at`."""
    state = RunState()
    for record in records:
        if at is not None and record.seq > at:
            break
        state.apply(record)
    return state
