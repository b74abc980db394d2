"""Which event may follow which.

Everything that decides whether a step is legal lives here, in one table: the writer refuses by it, `verify` checks by it,
and the diagram in the documentation is drawn from it. Nothing here knows the time, the disk or the network.
"""

from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Final

import attrs

from journal.errors import IllegalEvent, InvalidRecord
from journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptReturnedLate,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    Event,
    Extension,
    FileEvent,
    IntakePaused,
    IntakeResumed,
    JournalRecovered,
    JournalSalvaged,
    LimitChanged,
    Noted,
    PaceChanged,
    PolicyShared,
    Record,
    RetryScheduled,
    RunFinished,
    RunStarted,
    RunStopped,
    ScorerCallFailed,
    ScorerCallStarted,
    ScoringFailed,
    SessionStarted,
    TrialCompleted,
    TrialEnqueued,
    TrialEvent,
    TrialFailed,
    TrialScored,
    TrialWithdrawn,
)

STAGES: Final = (
    "absent",
    "queued",
    "running",
    "answered",
    "unsettled",
    "interrupted",
    "backing_off",
    "completed",
    "failed",
    "withdrawn",
)
"""Where a trial can stand. `answered` has an output and waits for scores; `unsettled` waits for a decision to retry."""

ENDED: Final = frozenset({"completed", "failed", "withdrawn"})
"""The stages in which a trial needs nothing more."""

_seen: Final = STAGES[1:]

TRIAL: Final[dict[type[TrialEvent], dict[str, str]]] = {
    TrialEnqueued: {"absent": "queued", "withdrawn": "queued"},
    AttemptStarted: {"queued": "running", "backing_off": "running", "interrupted": "running"},
    AttemptSucceeded: {"running": "answered"},
    AttemptFailed: {"running": "unsettled"},
    AttemptTimedOut: {"running": "unsettled"},
    AttemptInterrupted: {"running": "interrupted"},
    AttemptReturnedLate: {stage: stage for stage in _seen},
    RetryScheduled: {"unsettled": "backing_off", "interrupted": "backing_off", "failed": "backing_off"},
    ScorerCallStarted: {"answered": "answered", "completed": "completed"},
    ScorerCallFailed: {"answered": "answered", "completed": "completed"},
    TrialScored: {"answered": "answered", "completed": "completed"},
    ScoringFailed: {"answered": "answered", "completed": "completed"},
    TrialCompleted: {"answered": "completed"},
    TrialFailed: {"unsettled": "failed", "interrupted": "failed"},
    TrialWithdrawn: {stage: "withdrawn" for stage in _seen if stage not in ("running", "withdrawn")},
}
"""Event → stage before → stage after. What is not in the table may not happen."""

RUN: Final[dict[type[Event], dict[str, str]]] = {
    RunStarted: {"new": "between"},
    SessionStarted: {"between": "session", "session": "session"},
    RunStopped: {"session": "between"},
    RunFinished: {"session": "between"},
    JournalRecovered: {"new": "new", "between": "between", "session": "between"},
    JournalSalvaged: {"between": "between", "session": "between"},
    LimitChanged: {"session": "session"},
    PaceChanged: {"session": "session"},
    IntakePaused: {"session": "session"},
    IntakeResumed: {"session": "session"},
    PolicyShared: {"session": "session"},
    Noted: {"session": "session"},
    Extension: {"between": "between", "session": "session"},
}
"""The same for the run itself. A session that follows a session at once says that the one before died."""


@attrs.frozen
class _Step:
    """One row of the table in the form that the hot path reads: stages are numbers, for a million trials stay small."""

    change: tuple[int | None, ...]
    """Stage before → what is added to the number that stands for a trial; None where the event may not happen."""
    opens: tuple[int, ...]
    """Stage before → how many more trials are open."""
    number: Callable[[Event], int] | None
    """Which attempt the event speaks of; None where it speaks of none that could be wrong."""
    ahead: int
    """0 where that is the attempt under way or the last one, 1 where it is the next."""


_NUMBER: Final = {stage: number for number, stage in enumerate(STAGES)}
_IS_OPEN: Final = tuple(int(stage != "absent" and stage not in ENDED) for stage in STAGES)
_SPEAKS_OF: Final[dict[type[Event], tuple[str, int]]] = {
    AttemptStarted: ("attempt", 1),
    AttemptSucceeded: ("attempt", 0),
    AttemptFailed: ("attempt", 0),
    AttemptTimedOut: ("attempt", 0),
    AttemptInterrupted: ("attempt", 0),
    RetryScheduled: ("attempt", 1),
    TrialCompleted: ("attempts", 0),
    TrialFailed: ("attempts", 0),
}


def _step(event: type[TrialEvent], row: dict[str, str]) -> _Step:
    attribute, ahead = _SPEAKS_OF.get(event, (None, 0))
    begins = int(event is AttemptStarted) << 4
    after = [_NUMBER[row[stage]] if stage in row else None for stage in STAGES]
    return _Step(
        change=tuple(None if to is None else to - number + begins for number, to in enumerate(after)),
        opens=tuple(0 if to is None else _IS_OPEN[to] - _IS_OPEN[number] for number, to in enumerate(after)),
        number=attrgetter(attribute) if attribute else None,
        ahead=ahead,
    )


_STEPS: Final[dict[type[Event], _Step]] = {event: _step(event, row) for event, row in TRIAL.items()}


class Lifecycle:
    """Where the run and each of its trials stand."""

    def __init__(self) -> None:
        self.stage = "new"
        """Where the run stands: `new`, `between` two sessions, or in a `session`."""
        self.sessions = 0
        self.open = 0
        """Trials that are enqueued and not at their end."""
        self._trials: dict[str, int] = {}
        """Trial → `attempts << 4 | stage`."""

    def advance(self, event: Event) -> None:
        """Take one step, or refuse it and change nothing."""
        step = _STEPS.get(event.__class__)
        if step is None:
            self._advance_run(event)
            return
        trial: str = event.trial  # type: ignore[union-attr]  # every event that has a step has a trial
        before = self._trials.get(trial, 0)
        change = step.change[before & 15]
        if (
            change is None
            or self.stage != "session"
            or (step.number is not None and step.number(event) != (before >> 4) + step.ahead)
        ):
            raise self._refusal(event, trial, step)
        if isinstance(event, AttemptReturnedLate) and not 1 <= event.attempt <= before >> 4:
            raise IllegalEvent(f"attempt {event.attempt} of trial {trial!r} cannot return late: it was never made")
        self._trials[trial] = before + change
        self.open += step.opens[before & 15]

    def replay_record(self, record: Record, path: Path) -> None:
        """Take the step that a record tells of which was read at this path; refuse the journal if it may not stand there."""
        if isinstance(record.event, FileEvent):
            return
        try:
            self.advance(record.event)
        except IllegalEvent as exc:
            raise InvalidRecord(path, record.seq, exc) from exc

    def stage_of(self, trial: str) -> str:
        """Where the trial stands; `absent` if it was never enqueued."""
        return STAGES[self._trials.get(trial, 0) & 15]

    def attempts_of(self, trial: str) -> int:
        """How many attempts the trial has had, the one under way included."""
        return self._trials.get(trial, 0) >> 4

    def counts(self) -> Counter[str]:
        """How many trials stand where."""
        return Counter(STAGES[known & 15] for known in self._trials.values())

    def _advance_run(self, event: Event) -> None:
        name = type(event).__name__
        row = RUN.get(type(event))
        if row is None:
            raise IllegalEvent(f"{name} is written by the journal itself")
        after = row.get(self.stage)
        if after is None:
            raise IllegalEvent(f"{name} may not happen while the run is {_RUN_IN_WORDS[self.stage]}")
        match event:
            case SessionStarted(n=n):
                if n != self.sessions + 1:
                    raise IllegalEvent(f"session {n} may not follow session {self.sessions}")
                self.sessions = n
            case RunFinished():
                if self.open:
                    raise IllegalEvent(
                        f"RunFinished may not happen while {self.open} {'trial is' if self.open == 1 else 'trials are'} open"
                    )
            case _:
                pass
        self.stage = after

    def _refusal(self, event: Event, trial: str, step: _Step) -> IllegalEvent:
        name, stage, attempts = type(event).__name__, self.stage_of(trial), self.attempts_of(trial)
        if self.stage != "session":
            why = f"the run is {_RUN_IN_WORDS[self.stage]}"
        elif step.change[_NUMBER[stage]] is None:
            legal = ", ".join(kind.__name__ for kind, row in TRIAL.items() if stage in row)
            why = f"the trial is {stage}; what may follow is {legal}"
        else:
            given = step.number(event) if step.number is not None else None
            why = f"it speaks of attempt {given}, and attempt {attempts + step.ahead} was expected"
        return IllegalEvent(f"{name} may not happen to trial {trial!r}: {why}")


_RUN_IN_WORDS: Final = {"new": "not started", "between": "between two sessions", "session": "in a session"}


def diagram() -> str:
    """Draw the life of a trial as a Mermaid state diagram."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for event, row in TRIAL.items():
        for before, after in row.items():
            if event not in (AttemptReturnedLate, TrialWithdrawn):  # From nearly everywhere: they would hide the rest.
                arrows.setdefault((before, after), []).append(event.__name__)
    lines = [
        f"    {'[*]' if before == 'absent' else before} --> {after}: {' or '.join(events)}"
        for (before, after), events in arrows.items()
    ]
    ends = [f"    {stage} --> [*]" for stage in STAGES if stage in ENDED]
    return "\n".join(["stateDiagram-v2", *lines, "    note right of withdrawn: TrialWithdrawn, from all but running", *ends])
