"""Whole lives of trials, to fold into the state of a run without a disk.

Nothing here asserts anything.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from journal import Event, Record
from journal.events import (
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    RetryScheduled,
    ScoringFailed,
    TrialCompleted,
    TrialEnqueued,
    TrialFailed,
    TrialScored,
)
from replay import RunState, fold
from tests.journal.samples import session, started

Scores = Mapping[str, Any]
"""Scorer → value; an exception is what the scorer raised."""


def records(events: Iterable[Event]) -> list[Record]:
    """Give events their places, half a second apart, in a run that has begun."""
    at = "2026-11-15T00:00:00.000000Z"
    facts = enumerate((started(), session(), *events), start=1)
    return [Record(seq, at, seq / 2, event, 0, "", 1, seq) for seq, event in facts]


def state_of(events: Iterable[Event]) -> RunState:
    """Fold events into the state of a run that has begun."""
    return fold(records(events))


def name_of(case: str, repeat: int) -> str:
    """Name a trial as the runner does."""
    return case if repeat == 1 else f"{case}#{repeat}"


def enqueued(case: str, repeat: int = 1, *, fingerprint: str = "", metadata: Any = None) -> TrialEnqueued:
    """Take in a trial; what is asked is the case's name."""
    return TrialEnqueued(
        trial=name_of(case, repeat),
        case=case,
        repeat=repeat,
        input=case,
        metadata=metadata,
        fingerprint=fingerprint or f"f-{case}",
    )


def answered(
    case: str,
    scores: Scores | None = None,
    *,
    repeat: int = 1,
    failures: int = 0,
    output: Any = "Lima",
    elapsed: float = 0.25,
    usage: Any = None,
    version: str = "v1",
    fingerprint: str = "",
    metadata: Any = None,
) -> list[Event]:
    """Tell the life of a trial that is answered, after some attempts that failed, and scored."""
    name = name_of(case, repeat)
    events: list[Event] = [enqueued(case, repeat, fingerprint=fingerprint, metadata=metadata)]
    for attempt in range(1, failures + 1):
        events += [
            AttemptStarted(trial=name, attempt=attempt, slot=0),
            AttemptFailed(
                trial=name, attempt=attempt, error="OSError", message="no", category="error", elapsed=0.1, usage=usage
            ),
            RetryScheduled(trial=name, attempt=attempt + 1, delay=0.5, cause="error"),
        ]
    events += [
        AttemptStarted(trial=name, attempt=failures + 1, slot=0),
        AttemptSucceeded(trial=name, attempt=failures + 1, output=output, elapsed=elapsed, usage=usage),
    ]
    for scorer, value in (scores or {}).items():
        events.append(
            ScoringFailed(trial=name, scorer=scorer, version=version, error=type(value).__name__, message="", elapsed=0.0)
            if isinstance(value, Exception)
            else TrialScored(trial=name, scorer=scorer, version=version, value=value, elapsed=0.0)
        )
    return [*events, TrialCompleted(trial=name, attempts=failures + 1)]


def failed(case: str, *, repeat: int = 1, message: str = "no", usage: Any = None, metadata: Any = None) -> list[Event]:
    """Tell the life of a trial that is given up at once."""
    name = name_of(case, repeat)
    return [
        enqueued(case, repeat, metadata=metadata),
        AttemptStarted(trial=name, attempt=1, slot=0),
        AttemptFailed(trial=name, attempt=1, error="ValueError", message=message, category="fatal", elapsed=0.1, usage=usage),
        TrialFailed(trial=name, attempts=1, cause="fatal"),
    ]
