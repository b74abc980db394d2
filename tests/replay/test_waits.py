"""What attempts and scorer calls of a trial waited for before they started."""

from typing import Any

import pytest

from evaljournal.journal import Record
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    IntakePaused,
    IntakeResumed,
    LimitChanged,
    PaceChanged,
    RetryScheduled,
    ScorerCallFailed,
    ScorerCallStarted,
    TrialCompleted,
)
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay import RunState
from evaljournal.replay.runs.waits import Wait, WaitLog
from tests.journal.samples import enqueued, session, started
from tests.replay.trial_events import TimedEvent, attempt_started

START = LimitChanged(before=0, after=2, reason="start")
"""A limit of all slots, unless a test has more of them."""


def waits(*events: TimedEvent, slots: int = 2) -> list[list[tuple[str, float, str]]]:
    """Return what each start of trial `a` waited for, the longest first."""
    state, waits_by_start = RunState(), list[list[Wait]]()
    log = WaitLog("a", state)
    before: list[TimedEvent] = [(0.0, evolve_fact(started(), settings={"slots": slots})), (0.0, session())]
    for seq, (t, event) in enumerate([*before, *events], start=1):
        record = Record(seq, "2026-11-15T00:00:00.000000Z", t, event, 0, "", 1, 0)
        log.before(record)
        state.apply(record)
        waited = log.after(record)
        if isinstance(event, AttemptStarted | ScorerCallStarted) and event.trial == "a":
            waits_by_start.append(waited)
    return [[(wait.reason, round(wait.seconds, 6), wait.text) for wait in waits_of_start] for waits_of_start in waits_by_start]


def paused(until: float, reason: str = "retry_after", *, key: str = "") -> TimedEvent:
    """Return a pause that begins at 1 s."""
    return 1.0, IntakePaused(until=until, reason=reason, key=key)


QUEUED: TimedEvent = (1.0, enqueued("a"))
PACED: TimedEvent = (1.0, PaceChanged(after=4.2, reason="rate_limit"))
FULL: list[TimedEvent] = [
    *((1.0, enqueued(name)) for name in "bca"),
    *((1.0, attempt_started(name)) for name in "bc"),
    (4.0, attempt_started("a")),
]
"""A trial that starts when both slots are free again."""
FAILED = AttemptFailed(trial="a", attempt=1, error="E", message="", category="rate_limited", elapsed=1.0)
RETRIED: list[TimedEvent] = [
    *(QUEUED, (1.0, attempt_started("a")), (2.0, FAILED)),
    (2.0, RetryScheduled(trial="a", attempt=2, delay=5.0, reason="rate_limited")),
    *(paused(30.0), (9.0, attempt_started("a", 2))),
]


@pytest.mark.parametrize(
    ("timed_events", "slots", "waits_of_starts"),
    [
        ([PACED, QUEUED, (3.0, attempt_started("a"))], 2, [[("pace", 2.0, "pace: 4.2 starts/s")]]),
        ([paused(9.0), QUEUED, (3.0, attempt_started("a"))], 2, [[("pause", 2.0, "Retry-After")]]),
        ([paused(1.0, "unavailable"), QUEUED, (3.0, attempt_started("a"))], 2, [[("pause", 2.0, "endpoint unavailable")]]),
        ([paused(9.0, "\x1b"), QUEUED, (3.0, attempt_started("a"))], 2, [[("pause", 2.0, "\\x1b")]]),
        (FULL, 2, [[("limit", 3.0, "all 2 slots busy")]]),
        (FULL, 8, [[("limit", 3.0, "concurrency limit 2 of 8")]]),
        ([(1.0, LimitChanged(before=2, after=1, reason="x")), *FULL], 1, [[("limit", 3.0, "the only slot is busy")]]),
        (
            [paused(3.0), PACED, QUEUED, (8.0, attempt_started("a"))],
            2,
            [[("pace", 5.0, "pace: 4.2 starts/s"), ("pause", 2.0, "Retry-After")]],
        ),
        (RETRIED, 2, [[], [("pause", 2.0, "Retry-After")]]),
        (
            [
                *(QUEUED, paused(9.0, key="x"), paused(9.0, key="y"), (2.0, IntakeResumed(reason="retry_after", key="x"))),
                (5.0, attempt_started("a", key="x")),
            ],
            2,
            [[("pause", 1.0, "Retry-After")]],
        ),
        (
            [paused(9.0), QUEUED, (4.0, enqueued("b")), (0.0, session(2)), PACED, (3.0, attempt_started("a"))],
            2,
            [[("pause", 3.0, "Retry-After"), ("pace", 2.0, "pace: 4.2 starts/s")]],
        ),
    ],
    ids=[
        *("pace", "pause", "open breaker", "unsafe reason", "busy slots", "limit below the slots", "one slot"),
        *("a pause that ends by itself", "backoff is no wait", "pauses of other keys", "pauses of the last session"),
    ],
)
def test_waits_of_attempts(timed_events: list[TimedEvent], slots: int, waits_of_starts: list[Any]) -> None:
    """An attempt waits for the pace, a pause or the limit of its key; neither for its backoff nor for the next session."""
    assert waits_of_starts == waits((1.0, START), *timed_events, slots=slots)


def test_scorer_calls() -> None:
    """A scorer's first call waits from the output, a retry from the end of its delay, under the scorer's own key."""
    key = "scorer:judge"
    failed = ScorerCallFailed(
        trial="a", scorer="judge", call=1, error="E", message="", category="rate_limited", elapsed=1.0, delay=2.0
    )
    timed_events: list[TimedEvent] = [
        (0.0, START),
        (1.0, enqueued("a")),
        (1.0, attempt_started("a")),
        (2.0, AttemptSucceeded(trial="a", attempt=1, output="x", elapsed=1.0)),
        (2.0, PaceChanged(after=0.5, reason="rate_limit", key=key)),
        (5.0, ScorerCallStarted(trial="a", scorer="judge", call=1, key=key)),
        (6.0, failed),
        (6.0, IntakePaused(until=12.0, reason="retry_after", key=key)),
        (12.0, ScorerCallStarted(trial="a", scorer="judge", call=2, key=key)),
        (13.0, TrialCompleted(trial="a", attempts=1)),
    ]

    assert [[], [("pace", 3.0, "pace: 0.5 starts/s")], [("pause", 4.0, "Retry-After")]] == waits(*timed_events)
