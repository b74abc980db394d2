"""What attempts and scorer calls of a trial waited for before they started."""

import attrs
import pytest

from evaljournal.journal import Event, Record
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
from evaljournal.replay.runs.waits import Wait, WaitLog
from tests.journal.samples import enqueued, session, started
from tests.replay.trial_events import TimedEvent, attempt_started

START = LimitChanged(before=0, after=2, reason="start")
"""A limit of all slots, unless a test has more of them."""


def waits(*events: TimedEvent, slots: int = 2) -> list[list[tuple[str, float, str]]]:
    """Return what each start of trial `a` waited for, the longest first."""
    log, waits_by_start = WaitLog("a"), list[list[Wait]]()
    run_started = attrs.evolve(started(), settings={"slots": slots})  # type: ignore[misc]  # an event is an attrs class
    before: list[TimedEvent] = [(0.0, run_started), (0.0, session())]
    for seq, (t, event) in enumerate([*before, *events], start=1):
        waited = log.apply(Record(seq, "2026-11-15T00:00:00.000000Z", t, event, 0, "", 1, 0))
        if isinstance(event, AttemptStarted | ScorerCallStarted) and event.trial == "a":
            waits_by_start.append(waited)
    return [[(wait.reason, round(wait.seconds, 6), wait.text) for wait in waits_of_start] for waits_of_start in waits_by_start]


@pytest.mark.parametrize(
    ("decision", "wait"),
    [
        (PaceChanged(after=4.2, reason="rate_limit"), ("pace", 2.0, "pace: 4.2 starts/s")),
        (IntakePaused(until=9.0, reason="retry_after"), ("pause", 2.0, "Retry-After")),
        (IntakePaused(until=1.0, reason="unavailable"), ("pause", 2.0, "endpoint unavailable")),
        (IntakePaused(until=9.0, reason="\x1b"), ("pause", 2.0, "\\x1b")),
    ],
)
def test_waits_for_the_policy(decision: Event, wait: tuple[str, float, str]) -> None:
    """A wait under a pace, a pause or an open breaker is named after it."""
    assert [[wait]] == waits((1.0, START), (1.0, decision), (1.0, enqueued("a")), (3.0, attempt_started("a")))


def test_a_single_slot() -> None:
    """A run with one slot has the text in the singular."""
    limit = LimitChanged(before=0, after=1, reason="start")
    queue: list[TimedEvent] = [(1.0, limit), (1.0, enqueued("b")), (1.0, enqueued("a"))]

    assert [[("limit", 3.0, "the only slot is busy")]] == waits(
        *queue, (1.0, attempt_started("b")), (4.0, attempt_started("a")), slots=1
    )


def test_busy_slots() -> None:
    """When the limit is reached, a trial waits for a slot; if the limit is lower than the slots, for the limit."""
    timed_events: list[TimedEvent] = [
        (1.0, START),
        *((1.0, enqueued(name)) for name in "bca"),
        (1.0, attempt_started("b")),
        (1.0, attempt_started("c")),
        (4.0, attempt_started("a")),
    ]

    assert [[("limit", 3.0, "all 2 slots busy")]] == waits(*timed_events)
    assert [[("limit", 3.0, "concurrency limit 2 of 8")]] == waits(*timed_events, slots=8)


def test_pause_that_ends_by_itself() -> None:
    """Between two records, only the time until the end of a pause counts as the pause."""
    paused: list[TimedEvent] = [
        (1.0, IntakePaused(until=3.0, reason="retry_after")),
        (1.0, PaceChanged(after=1.0, reason="rate_limit")),
    ]

    expected = [("pace", 5.0, "pace: 1 starts/s"), ("pause", 2.0, "Retry-After")]
    assert [expected] == waits((1.0, START), *paused, (1.0, enqueued("a")), (8.0, attempt_started("a")))


def test_backoff_is_no_wait() -> None:
    """Only the time after the delay counts as waiting."""
    failed = AttemptFailed(trial="a", attempt=1, error="E", message="", category="rate_limited", elapsed=1.0)
    retry = RetryScheduled(trial="a", attempt=2, delay=5.0, reason="rate_limited")
    timed_events: list[TimedEvent] = [
        (1.0, START),
        (1.0, enqueued("a")),
        (1.0, attempt_started("a")),
        (2.0, failed),
        (2.0, retry),
    ]
    timed_events += [(2.0, IntakePaused(until=30.0, reason="retry_after")), (9.0, attempt_started("a", 2))]

    assert [[], [("pause", 2.0, "Retry-After")]] == waits(*timed_events)


def test_other_keys_do_not_count() -> None:
    """Waits for other rate-limit keys do not count."""
    paused: list[TimedEvent] = [(1.0, IntakePaused(until=9.0, reason="retry_after", key=key)) for key in ("x", "y")]
    timed_events: list[TimedEvent] = [(1.0, enqueued("a")), *paused, (2.0, IntakeResumed(reason="retry_after", key="x"))]

    assert [[("pause", 1.0, "Retry-After")]] == waits(*timed_events, (5.0, attempt_started("a", key="x")))


def test_waits_start_over_in_a_new_session() -> None:
    """The time between sessions, and decisions of the previous policy, do not count."""
    timed_events: list[TimedEvent] = [
        (1.0, IntakePaused(until=9.0, reason="retry_after")),
        (1.0, enqueued("a")),
        (4.0, enqueued("b")),
        (0.0, session(2)),
    ]

    assert [[("pause", 3.0, "Retry-After"), ("pace", 2.0, "pace: 3 starts/s")]] == waits(
        *timed_events, (1.0, PaceChanged(after=3.0, reason="rate_limit")), (3.0, attempt_started("a"))
    )


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
