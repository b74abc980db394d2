"""A run with batches, event by event: two sessions, a batch of the task and one of a judge."""

from typing import Any

import attrs

from evaljournal.journal import Event, Record
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    BatchChanged,
    BatchCollected,
    Noted,
    RetryScheduled,
    RunFinished,
    RunStopped,
    ScorerCallStarted,
    TrialCompleted,
    TrialScored,
)
from tests.journal.samples import collected, enqueued, from_line, session, started, submitted

EXPIRES = "2026-11-16T00:00:00Z"
FAILED: dict[str, Any] = {"error": "BadStatus", "message": "429", "category": "rate_limited", "elapsed": 0.0}


def judged(name: str, line: int, batch: int) -> list[Event]:
    """Return the call of the judge that uses a line, and its score."""
    return [
        ScorerCallStarted(trial=name, scorer="judge", call=1, batch=batch, line=line),
        TrialScored(trial=name, scorer="judge", version="v1", value=True, elapsed=0.0),
    ]


def batch_run(a: str = "a", b: str = "b", c: str = "c") -> list[Event]:
    """Return the events of a run of three trials: all are sent as a batch, b is sent again, c is called; all are judged."""
    batch, submission = submitted(a, b, c)
    return [
        attrs.evolve(started(), scorers={"judge": "v1"}),  # type: ignore[misc]  # an event is an attrs class
        session(1),
        *map(enqueued, (a, b, c)),
        batch,
        attrs.evolve(submission, expires=EXPIRES),  # type: ignore[misc]
        BatchChanged(batch=1, state="in_progress", completed=1, failed=0, total=3),
        RunStopped(reason="batches"),
        session(2),
        from_line(a, 1)[0],
        Noted(name="usage", value={"cost": 0.25}, trial=a, attempt=1),
        from_line(a, 1)[1],
        AttemptStarted(trial=b, attempt=1, slot=0, batch=1, line=2),
        AttemptFailed(trial=b, attempt=1, **FAILED),
        RetryScheduled(trial=b, attempt=2, delay=30.0, reason="rate_limited"),
        collected(2, 1, state="expired"),
        *submitted(b, batch=2),
        AttemptStarted(trial=c, attempt=1, slot=0),
        AttemptSucceeded(trial=c, attempt=1, output="Lima", elapsed=0.001),
        *from_line(b, 1, batch=2, attempt=2),
        collected(1, batch=2),
        *submitted(a, b, c, batch=3, scorer="judge"),
        *(event for line, name in enumerate((a, b, c), 1) for event in judged(name, line, 3)),
        BatchCollected(batch=3, state="completed", results=3, missing=0, unused=1),
        *(TrialCompleted(trial=name, attempts=attempts) for name, attempts in ((a, 1), (b, 2), (c, 1))),
        RunFinished(completed=3, failed=0, withdrawn=0, head=""),
    ]


def records(events: list[Event]) -> list[Record]:
    """Return the events as records, a millisecond apart."""
    at = "2026-11-15T00:00:{:06.3f}000Z"
    return [Record(seq, at.format(seq / 1000), seq / 1000, event, 0, "", 1, seq) for seq, event in enumerate(events, 1)]
