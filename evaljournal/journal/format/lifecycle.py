"""Legal transitions of a run and its trials.

Two tables define which event may follow which; `Lifecycle` also checks the numbers of attempts and sessions, and the lines of
batches. The writer and `verify` apply these rules. The diagram in the documentation is generated from `TRIAL_RULES`. No clock,
disk or network here.
"""

from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Final

import attrs

from evaljournal.journal import events
from evaljournal.journal.errors import IllegalEvent, InvalidRecord
from evaljournal.journal.events import AttemptReturnedLate, BatchEvent, Event, FileEvent, Record, TrialEvent
from evaljournal.journal.format.batches import BatchLines

STAGES: Final = (
    "absent",
    "queued",
    "running",
    "scoring",
    "unsettled",
    "interrupted",
    "backing_off",
    "completed",
    "failed",
    "withdrawn",
)
"""Stages of a trial. `scoring`: has an output, scores are missing; `unsettled`: an attempt failed, retry not decided yet."""

END_STAGES: Final = frozenset({"completed", "failed", "withdrawn"})

_ENQUEUED_STAGES: Final = STAGES[1:]

TRIAL_RULES: Final[dict[type[TrialEvent], dict[str, str]]] = {
    events.TrialEnqueued: {"absent": "queued", "withdrawn": "queued"},
    events.AttemptStarted: {"queued": "running", "backing_off": "running", "interrupted": "running"},
    events.AttemptSucceeded: {"running": "scoring"},
    events.AttemptFailed: {"running": "unsettled"},
    events.AttemptTimedOut: {"running": "unsettled"},
    events.AttemptInterrupted: {"running": "interrupted"},
    AttemptReturnedLate: {stage: stage for stage in _ENQUEUED_STAGES},
    events.StepCompleted: {"running": "running"},
    events.StepFailed: {"running": "running"},
    events.StepReused: {"running": "running"},
    events.StepReplayed: {"running": "running"},
    events.RetryScheduled: {"unsettled": "backing_off", "interrupted": "backing_off", "failed": "backing_off"},
    events.ScorerCallStarted: {"scoring": "scoring", "completed": "completed"},
    events.ScorerCallFailed: {"scoring": "scoring", "completed": "completed"},
    events.TrialScored: {"scoring": "scoring", "completed": "completed"},
    events.ScoringFailed: {"scoring": "scoring", "completed": "completed"},
    events.TrialCompleted: {"scoring": "completed"},
    events.TrialFailed: {"unsettled": "failed", "interrupted": "failed"},
    events.TrialWithdrawn: {stage: "withdrawn" for stage in _ENQUEUED_STAGES if stage not in ("running", "withdrawn")},
}
"""Event → stage before → stage after. Everything else is illegal."""

RUN_RULES: Final[dict[type[Event], dict[str, str]]] = {
    events.RunStarted: {"new": "between_sessions"},
    events.SessionStarted: {"between_sessions": "in_session", "in_session": "in_session"},
    events.RunStopped: {"in_session": "between_sessions"},
    events.RunFinished: {"in_session": "between_sessions"},
    events.JournalRecovered: {
        "new": "new",
        "between_sessions": "between_sessions",
        "in_session": "between_sessions",
        "in_review": "in_review",
    },
    events.JournalSalvaged: {
        "between_sessions": "between_sessions",
        "in_session": "between_sessions",
        "in_review": "in_review",
    },
    events.LimitChanged: {"in_session": "in_session"},
    events.PaceChanged: {"in_session": "in_session"},
    events.RateLimitSeen: {"in_session": "in_session"},
    events.IntakePaused: {"in_session": "in_session"},
    events.IntakeResumed: {"in_session": "in_session"},
    events.BatchPrepared: {"in_session": "in_session"},
    events.BatchSubmitted: {"in_session": "in_session"},
    events.BatchChanged: {"in_session": "in_session"},
    events.BatchCollected: {"between_sessions": "between_sessions", "in_session": "in_session"},
    events.Noted: {"in_session": "in_session"},
    events.Extension: {"between_sessions": "between_sessions", "in_session": "in_session", "in_review": "in_review"},
    events.ReviewStarted: {"new": "in_review"},
    events.ReviewSampled: {"in_review": "in_review"},
    events.Annotated: {"in_review": "in_review"},
    events.ReviewSaved: {"in_review": "in_review"},
}
"""The same for the run, and for the journal of a review, which contains no run.

A session that follows another one directly means that the previous process died.
"""


@attrs.frozen
class _Transition:
    """One row of the table for the hot path. Stages are numbers, which keeps a million trials small."""

    change: tuple[int | None, ...]
    """Stage before → number to add to the trial's state; None if the event is illegal."""
    open_change: tuple[int, ...]
    """Stage before → change of the number of open trials."""
    attempt_of: Callable[[Event], int] | None
    """Returns the number of the attempt in the event, if that must be checked."""
    attempt_offset: int
    """0 if that is the current or last attempt, 1 if it is the next one."""
    is_start: bool
    """Whether the event may use a line of a batch."""


_NUMBER: Final = {stage: number for number, stage in enumerate(STAGES)}
_IS_OPEN: Final = tuple(int(stage != "absent" and stage not in END_STAGES) for stage in STAGES)
_ATTEMPT_FIELD: Final[dict[type[Event], tuple[str, int]]] = {
    events.AttemptStarted: ("attempt", 1),
    events.AttemptSucceeded: ("attempt", 0),
    events.AttemptFailed: ("attempt", 0),
    events.AttemptTimedOut: ("attempt", 0),
    events.AttemptInterrupted: ("attempt", 0),
    events.StepCompleted: ("attempt", 0),
    events.StepFailed: ("attempt", 0),
    events.StepReused: ("attempt", 0),
    events.StepReplayed: ("attempt", 0),
    events.RetryScheduled: ("attempt", 1),
    events.TrialCompleted: ("attempts", 0),
    events.TrialFailed: ("attempts", 0),
}


def _transition(event: type[TrialEvent], row: dict[str, str]) -> _Transition:
    field, attempt_offset = _ATTEMPT_FIELD.get(event, (None, 0))
    new_attempt = int(event is events.AttemptStarted) << 4
    next_stages = [_NUMBER[row[stage]] if stage in row else None for stage in STAGES]
    return _Transition(
        change=tuple(None if end is None else end - number + new_attempt for number, end in enumerate(next_stages)),
        open_change=tuple(0 if end is None else _IS_OPEN[end] - _IS_OPEN[number] for number, end in enumerate(next_stages)),
        attempt_of=attrgetter(field) if field else None,
        attempt_offset=attempt_offset,
        is_start=event in (events.AttemptStarted, events.ScorerCallStarted),
    )


_TRANSITIONS: Final[dict[type[Event], _Transition]] = {event: _transition(event, row) for event, row in TRIAL_RULES.items()}


class Lifecycle:
    """The stage of the run and of each trial."""

    def __init__(self) -> None:
        self.stage = "new"
        """Stage of the run: `new`, `between_sessions`, `in_session`, or `in_review` in the journal of a review."""
        self.sessions = 0
        self.open_trials = 0
        """Number of trials that are enqueued and not ended."""
        self.batch_lines = BatchLines()
        self._trials: dict[str, int] = {}
        """Trial → `attempts << 4 | stage`."""

    def advance(self, event: Event) -> None:
        """Apply an event; raise `IllegalEvent`, and change nothing, if it is not allowed."""
        transition = _TRANSITIONS.get(event.__class__)
        if transition is None:
            self._advance_run(event)
            return
        trial: str = event.trial  # type: ignore[union-attr]  # every event in the table has a trial
        state = self._trials.get(trial, 0)
        change = transition.change[state & 15]
        if (
            change is None
            or self.stage != "in_session"
            or (transition.attempt_of is not None and transition.attempt_of(event) != (state >> 4) + transition.attempt_offset)
        ):
            raise self._illegal_event(event, trial, transition)
        if type(event) is AttemptReturnedLate and not 1 <= event.attempt <= state >> 4:
            raise IllegalEvent("AttemptReturnedLate", f"attempt {event.attempt} was never started", trial=trial)
        if self.batch_lines.open or (transition.is_start and event.batch):  # type: ignore[union-attr]  # a start has a batch
            self.batch_lines.advance(event)
        self._trials[trial] = state + change
        self.open_trials += transition.open_change[state & 15]

    def replay_record(self, record: Record, path: Path) -> None:
        """Apply a record that was read from this path; raise `InvalidRecord` if it is not allowed."""
        if isinstance(record.event, FileEvent):
            return
        try:
            self.advance(record.event)
        except IllegalEvent as exc:
            raise InvalidRecord(path, record.seq, exc) from exc

    def stage_of(self, trial: str) -> str:
        """Return the stage of a trial; `absent` if it was never enqueued."""
        return STAGES[self._trials.get(trial, 0) & 15]

    def attempts_of(self, trial: str) -> int:
        """Return the number of attempts that were started."""
        return self._trials.get(trial, 0) >> 4

    def can_be_called(self, trial: str, scorer: str = "") -> bool:
        """Return whether an attempt at a trial, or a call of a scorer for it, could start now."""
        return self.stage_of(trial) in TRIAL_RULES[events.ScorerCallStarted if scorer else events.AttemptStarted]

    def counts(self) -> Counter[str]:
        """Return the number of trials in each stage."""
        return Counter(STAGES[state & 15] for state in self._trials.values())

    def _advance_run(self, event: Event) -> None:
        name = type(event).__name__
        row = RUN_RULES.get(type(event))
        if row is None:
            raise IllegalEvent(name, "only the journal itself writes it")
        next_stage = row.get(self.stage)
        if next_stage is None:
            raise IllegalEvent(name, _RUN_STAGE_TEXT[self.stage])
        match event:
            case events.SessionStarted(session=number):
                if number != self.sessions + 1:
                    raise IllegalEvent(name, f"expected session {self.sessions + 1}, got session {number}")
                self.sessions = number
            case events.RunFinished():
                if self.open_trials:
                    raise IllegalEvent(name, f"{self.open_trials} {'trial is' if self.open_trials == 1 else 'trials are'} open")
            case events.BatchPrepared():
                self._check_stages(event)
        if self.batch_lines.open or isinstance(event, BatchEvent):
            self.batch_lines.advance(event)
        self.stage = next_stage

    def _check_stages(self, event: events.BatchPrepared) -> None:
        """Raise unless the trials of a new batch could be called now."""
        for trial in filter(None, event.trials):
            if not self.can_be_called(trial, event.scorer):
                raise IllegalEvent("BatchPrepared", f"the trial is {self.stage_of(trial)}", trial=trial)

    def _illegal_event(self, event: Event, trial: str, transition: _Transition) -> IllegalEvent:
        name, stage, attempts = type(event).__name__, self.stage_of(trial), self.attempts_of(trial)
        if self.stage != "in_session":
            return IllegalEvent(name, _RUN_STAGE_TEXT[self.stage], trial=trial)
        if transition.change[_NUMBER[stage]] is None:
            allowed_events = [kind.__name__ for kind, row in TRIAL_RULES.items() if stage in row]
            return IllegalEvent(name, f"the trial is {stage}", trial=trial, allowed_events=allowed_events)
        number = transition.attempt_of(event) if transition.attempt_of is not None else None
        reason = f"expected attempt {attempts + transition.attempt_offset}, got attempt {number}"
        return IllegalEvent(name, reason, trial=trial)


_RUN_STAGE_TEXT: Final = {
    "new": "the run has not started",
    "between_sessions": "no session is open",
    "in_session": "a session is open",
    "in_review": "the journal is that of a review",
}
