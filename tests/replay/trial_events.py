"""Events of trials, and the state of a run with them, without a disk."""

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from evaljournal.journal import Event, Record
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    RetryScheduled,
    RunStarted,
    ScoringFailed,
    TrialCompleted,
    TrialEnqueued,
    TrialFailed,
    TrialScored,
)
from evaljournal.replay import RunState, fold
from tests.journal.samples import session, started

Scores = Mapping[str, Any]
"""Scorer → value, or the exception that it raised."""

TimedEvent = tuple[float, Event]
"""`t` of an event, and the event."""


def records(events: Iterable[Event], run: RunStarted | None = None) -> list[Record]:
    """Return the records of a run with these events, half a second apart."""
    at = "2026-11-15T00:00:00.000000Z"
    numbered_events = enumerate((run or started(), session(), *events), start=1)
    return [Record(seq, at, seq / 2, event, 0, "", 1, seq) for seq, event in numbered_events]


def state_of(events: Iterable[Event]) -> RunState:
    """Return the state of a run with these events."""
    return fold(records(events))


def run_state(events: Iterable[Event], *, slots: int = 8, timeout: float | None = 30.0, **settings: Any) -> RunState:
    """Return the state of a run with these events and settings, and without scorers of its own."""
    run = attrs.evolve(started(), scorers={}, settings={"slots": slots, "timeout": timeout, **settings})  # type: ignore[misc]  # an event is an attrs class
    return fold(records(events, run))


def name_of(case: str, repeat: int, variant: str = "") -> str:
    """Return the name of a trial."""
    cell = f"{case}@{variant}" if variant else case
    return cell if repeat == 1 else f"{cell}#{repeat}"


def enqueued(case: str, repeat: int = 1, *, variant: str = "", fingerprint: str = "", metadata: Any = None) -> TrialEnqueued:
    """Return the event that enqueues a trial; its input is the name of the case."""
    return TrialEnqueued(
        trial=name_of(case, repeat, variant),
        case=case,
        variant=variant,
        repeat=repeat,
        input=case,
        metadata=metadata,
        fingerprint=fingerprint or f"f-{case}",
    )


def queued(*names: str) -> list[Event]:
    """Return the events that enqueue trials."""
    return [enqueued(name) for name in names]


def attempt_started(name: str, attempt: int = 1, slot: int = 0, *, key: str = "") -> AttemptStarted:
    """Return the start of an attempt."""
    return AttemptStarted(trial=name, attempt=attempt, slot=slot, key=key)


def rate_limited(name: str, attempt: int = 1, *, delay: float = 12.0) -> list[Event]:
    """Return a rate-limited attempt and its retry."""
    failure = AttemptFailed(
        trial=name, attempt=attempt, error="RateLimited", message="slow down", category="rate_limited", elapsed=0.1
    )
    return [failure, RetryScheduled(trial=name, attempt=attempt + 1, delay=delay, reason="rate_limited")]


def answered(
    case: str,
    scores: Scores | None = None,
    *,
    repeat: int = 1,
    variant: str = "",
    failures: int = 0,
    output: Any = "Lima",
    elapsed: float = 0.25,
    usage: Any = None,
    version: str = "v1",
    fingerprint: str = "",
    metadata: Any = None,
) -> list[Event]:
    """Return all events of a trial that completes after this number of failed attempts."""
    name = name_of(case, repeat, variant)
    events: list[Event] = [enqueued(case, repeat, variant=variant, fingerprint=fingerprint, metadata=metadata)]
    for attempt in range(1, failures + 1):
        events += [
            attempt_started(name, attempt),
            AttemptFailed(
                trial=name, attempt=attempt, error="OSError", message="no", category="error", elapsed=0.1, usage=usage
            ),
            RetryScheduled(trial=name, attempt=attempt + 1, delay=0.5, reason="error"),
        ]
    events += [
        attempt_started(name, failures + 1),
        AttemptSucceeded(trial=name, attempt=failures + 1, output=output, elapsed=elapsed, usage=usage),
    ]
    for scorer, value in (scores or {}).items():
        events.append(
            ScoringFailed(trial=name, scorer=scorer, version=version, error=type(value).__name__, message="", elapsed=0.0)
            if isinstance(value, Exception)
            else TrialScored(trial=name, scorer=scorer, version=version, value=value, elapsed=0.0)
        )
    return [*events, TrialCompleted(trial=name, attempts=failures + 1)]


def fatal(name: str, error: str = "ValueError", message: str = "no", *, usage: Any = None) -> list[Event]:
    """Return the end of a running trial that fails."""
    failure = AttemptFailed(trial=name, attempt=1, error=error, message=message, category="fatal", elapsed=0.1, usage=usage)
    return [failure, TrialFailed(trial=name, attempts=1, reason="fatal")]


def failed(
    case: str,
    *,
    repeat: int = 1,
    variant: str = "",
    error: str = "ValueError",
    message: str = "no",
    usage: Any = None,
    metadata: Any = None,
) -> list[Event]:
    """Return all events of a trial that fails at its first attempt."""
    name = name_of(case, repeat, variant)
    start: list[Event] = [enqueued(case, repeat, variant=variant, metadata=metadata), attempt_started(name)]
    return [*start, *fatal(name, error, message, usage=usage)]
