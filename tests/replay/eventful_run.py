"""A run with everything that an export has to handle: two sessions, a crash, retries, pauses, control characters."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from evaljournal.integrations.otlp.export import otlp_json
from evaljournal.journal import Event
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptReturnedLate,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    Extension,
    IntakePaused,
    IntakeResumed,
    LimitChanged,
    Noted,
    RetryScheduled,
    RunStopped,
    ScoringFailed,
    TrialCompleted,
    TrialEnqueued,
    TrialFailed,
    TrialScored,
    TrialWithdrawn,
)
from evaljournal.replay.export import FORMATS, File, Rows, Source, TableFile
from tests.journal.samples import enqueued, session, started, write_sync

FORMULA = '=HYPERLINK("http://evil.example","click")'
UNSAFE = 'a <b> & "c"\x00\x1b[31m\r\n\ttab ] ]> \ufffe 🙂'
LARGE = "x" * 300_000
"""Large enough for a blob."""


def scored(name: str, scorer: str, value: Any, reason: str = "") -> TrialScored:
    """Return a score."""
    return TrialScored(trial=name, scorer=scorer, version="v1", value=value, reason=reason, elapsed=0.001)


def first_session() -> list[Event]:
    """Return the events before the process died."""
    return [
        started(),
        session(1),
        LimitChanged(before=0, after=2, reason="start"),
        TrialEnqueued(
            trial="peru",
            case="peru",
            repeat=1,
            input="The capital of Peru?",
            expected="Lima",
            metadata={"difficulty": "easy", "id": 7},
            fingerprint="f-peru",
        ),
        TrialEnqueued(
            trial="chad", case="chad", repeat=1, input={"q": "Chad?"}, expected=["N'Djamena", "Fort-Lamy"], fingerprint="f"
        ),
        TrialEnqueued(trial="chad#2", case="chad", repeat=2, input={"q": "Chad?"}, expected=["N'Djamena"], fingerprint="f"),
        enqueued("oslo", FORMULA),
        enqueued("gone"),
        enqueued("later"),
        AttemptStarted(trial="peru", attempt=1, slot=0),
        AttemptStarted(trial="chad", attempt=1, slot=1),
        Noted(name="tokens", value=12, trial="peru", attempt=1),
        AttemptSucceeded(trial="peru", attempt=1, output="Lima", elapsed=0.25, usage={"input_tokens": 5, "cost": 0.5}),
        scored("peru", "exact", value=True),
        scored("peru", "tone", "polite", "+ it says please"),
        scored("peru", "closeness", 1.0),
        TrialCompleted(trial="peru", attempts=1),
        AttemptFailed(
            trial="chad",
            attempt=1,
            error="RateLimited",
            message="slow down",
            category="rate_limited",
            retry_after=1.5,
            elapsed=0.125,
            usage={"input_tokens": 3},
        ),
        RetryScheduled(trial="chad", attempt=2, delay=0.001, reason="rate_limited"),
        IntakePaused(until=0.025, reason="rate_limited", evidence="429, Retry-After 1.5"),
        LimitChanged(before=2, after=1, reason="rate_limited", evidence="1 × 429"),
        IntakeResumed(reason="rate_limited"),
        AttemptStarted(trial="chad", attempt=2, slot=1),
        AttemptTimedOut(trial="chad", attempt=2, timeout=30.0, elapsed=30.0),
        AttemptReturnedLate(trial="chad", attempt=2, outcome="succeeded", elapsed=31.0),
        TrialFailed(trial="chad", attempts=2, reason="timed_out"),
        AttemptStarted(trial="chad#2", attempt=1, slot=0),
        AttemptStarted(trial="gone", attempt=1, slot=1),
        AttemptSucceeded(trial="gone", attempt=1, output="nowhere", elapsed=0.1),
        scored("gone", "exact", value=False),
        TrialCompleted(trial="gone", attempts=1),
    ]


def second_session() -> list[Event]:
    """Return the events after the resume, until the run was stopped."""
    return [
        session(2),
        AttemptInterrupted(trial="chad#2", attempt=1, reason="process_died"),
        LimitChanged(before=0, after=2, reason="start"),
        TrialWithdrawn(trial="gone", reason="removed"),
        AttemptStarted(trial="chad#2", attempt=2, slot=0),
        AttemptStarted(trial="oslo", attempt=1, slot=1),
        AttemptSucceeded(trial="chad#2", attempt=2, output={"answer": UNSAFE}, elapsed=0.5),
        scored("chad#2", "exact", value=False, reason=UNSAFE),
        TrialCompleted(trial="chad#2", attempts=2),
        AttemptSucceeded(trial="oslo", attempt=1, output=LARGE, elapsed=0.5),
        ScoringFailed(trial="oslo", scorer="exact", version="v1", error="ValueError", message="no verdict", elapsed=0.1),
        TrialCompleted(trial="oslo", attempts=1),
        Extension(type="x-ours", data={"trial": 5, "attempt": "none"}),
        AttemptStarted(trial="later", attempt=1, slot=0),
        RunStopped(reason="interrupted"),
    ]


def minute_clock(minute: int) -> Callable[[], tuple[str, float]]:
    """Return a clock that counts milliseconds from the start of a minute."""
    ticks: Iterator[int] = iter(range(1, 1_000))

    def read() -> tuple[str, float]:
        tick = next(ticks)
        return f"2026-11-15T00:{minute:02}:00.{tick:03}000Z", tick / 1_000

    return read


def eventful_run(path: Path) -> Path:
    """Write the run; return its path."""
    write_sync(path, first_session(), clock=minute_clock(0))
    write_sync(path, second_session(), new=False, clock=minute_clock(10))
    return path


def export_of(path: Path, name: str, rows: Rows = "trials") -> bytes:
    """Return the export of a run; several files are one JSON object."""
    source = Source(path)
    match FORMATS[name]:
        case TableFile() as table:
            return b"".join(table.write(source, rows))
        case File() as file:
            return b"".join(file.write(source))
        case files:
            return orjson.dumps(
                {name: b"".join(pieces).decode(errors="backslashreplace") for name, pieces in files.write(source)}
            )


def otlp_json_of(path: Path) -> bytes:
    """Return the spans of a run as OTLP JSON."""
    source = Source(path)
    return b"".join(otlp_json(source))


def export_files(path: Path, name: str) -> dict[str, str]:
    """Return the exported files by name."""
    contents: dict[str, str] = orjson.loads(export_of(path, name))
    return contents
