"""The concurrency history: spans and step functions that agree with each other, with the state, and with what was allowed."""

from collections import Counter
from collections.abc import Iterable
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal import Event, Record
from journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    IntakePaused,
    IntakeResumed,
    LimitChanged,
    PaceChanged,
    RetryScheduled,
    SegmentOpened,
    TrialCompleted,
)
from replay import RunState, Span, Timeline, Times
from replay.timeline import StepName
from replay.timeline_columns import Step
from tests.journal.samples import enqueued, examples, session, started
from tests.replay.random_runs import random_records

NAMES: tuple[StepName, ...] = get_args(StepName)


def timeline(records: Iterable[Record]) -> Timeline:
    """Take all these records in."""
    taken = Timeline()
    for record in records:
        taken.apply(record)
    return taken


def told(*facts: tuple[float, Event], at: str = "2026-11-15T00:00:00Z") -> Timeline:
    """Tell a timeline of events, each with its `t`."""
    return timeline(Record(seq, at, t, event, 0, "", 1, 0) for seq, (t, event) in enumerate(facts, start=1))


def start(trial: str = "a", attempt: int = 1, slot: int = 0) -> AttemptStarted:
    return AttemptStarted(trial=trial, attempt=attempt, slot=slot)


def success(trial: str = "a", attempt: int = 1) -> AttemptSucceeded:
    return AttemptSucceeded(trial=trial, attempt=attempt, output="Lima", elapsed=0.0)


def failure(trial: str = "a", attempt: int = 1) -> AttemptFailed:
    return AttemptFailed(trial=trial, attempt=attempt, error="E", message="", category="unavailable", elapsed=0.0)


RETRIED = (
    (0.0, started()),
    (0.0, session()),
    (0.5, LimitChanged(before=0, after=2, cause="start")),
    (1.0, enqueued("a")),
    (3.0, start()),
    (4.0, failure()),
    (4.0, RetryScheduled(trial="a", attempt=2, delay=5.0, cause="unavailable")),
    (9.5, start(attempt=2, slot=1)),
    (11.5, success(attempt=2)),
    (12.0, TrialCompleted(trial="a", attempts=2)),
)
"""A trial that waits 2 s, is served 1 s, backs off 5 s, waits another half, is served 2 s, and scored for half a second."""


def test_an_attempt_is_a_span() -> None:
    """Each attempt has its slot, its times, its ending and the records that say so."""
    assert [
        Span("a", 1, slot=0, session=1, start=3.0, end=4.0, ending="unavailable", seq=5, end_seq=6, queue_time=2.0),
        Span("a", 2, 1, 1, 9.5, 11.5, "succeeded", seq=8, end_seq=9, queue_time=0.5, backoff_time=5.0),
    ] == list(told(*RETRIED).spans)


def test_waiting_backing_off_and_being_served_are_apart() -> None:
    """A trial that could start, but does not, waits; as long as its delay runs, it backs off; in its slot, it is served."""
    assert {"a": Times(queue_time=2.5, backoff_time=5.0, run_time=3.0, scoring_time=0.5, attempts=2)} == dict(
        told(*RETRIED).times
    )


def test_a_delay_ends_when_it_said_it_would() -> None:
    """In back-off a trial is until its delay is over, not until a slot takes it; from then on it is queued."""
    seen = told(*RETRIED)

    assert [(0.0, 0, 2), (4.0, 1, 7), (9.0, 0, 7)] == seen.steps("backing_off", session=1)
    assert [(0.0, 0, 2), (1.0, 1, 4), (3.0, 0, 5), (9.0, 1, 7), (9.5, 0, 8)] == seen.steps("queued", session=1)


def test_an_open_attempt_lasts_until_now() -> None:
    """An attempt without an end has lasted as long as the records go, and so has what its trial has been served."""
    seen = told(*RETRIED[:5], (7.0, enqueued("b")))

    assert (3.0, 7.0, "", 0) == seen.spans[0][4:7] + seen.spans[0][8:9]
    assert 4.0 == seen.times["a"].run_time


def test_a_pause_ends_by_its_time_or_by_word() -> None:
    """A pause is over when its time has come, or earlier if that is said; a later one on the same key replaces it."""
    seen = told(
        (0.0, started()),
        (0.0, session()),
        (1.0, IntakePaused(until=3.0, cause="retry_after")),
        (2.0, IntakePaused(until=4.0, cause="retry_after")),
        (2.0, IntakePaused(until=9.0, cause="retry_after", key="other")),
        (6.0, enqueued("a")),
        (7.0, IntakeResumed(cause="retry_after", key="other")),
        (8.0, IntakePaused(until=8.0, cause="retry_after")),
    )

    assert [(0.0, 0, 2), (1.0, 1, 3), (2.0, 2, 5), (4.0, 1, 5), (7.0, 0, 7)] == seen.steps("paused", session=1)


def test_an_open_breaker_pauses_until_it_is_closed() -> None:
    """With the circuit breaker open, intake is paused beyond the time of the next probe, until a record ends it."""
    seen = told(
        (0.0, started()),
        (0.0, session()),
        (1.0, IntakePaused(until=3.0, cause="unavailable")),
        (5.0, IntakePaused(until=5.0, cause="unavailable")),
        (9.0, IntakeResumed(cause="unavailable")),
    )

    assert [(0.0, 0, 2), (1.0, 1, 3), (9.0, 0, 5)] == seen.steps("paused", session=1)


def test_the_pace_is_a_step_function() -> None:
    """The pace is in thousandths of a start per second, summed over the keys of attempts; 0 where starts are not paced."""
    seen = told(
        (0.0, started()),
        (0.0, session()),
        (1.0, PaceChanged(after=4.25, cause="rate_limit")),
        (2.0, PaceChanged(after=1.0, cause="rate_limit", key="other")),
        (2.5, PaceChanged(after=9.0, cause="rate_limit", key="scorer:judge")),
        (3.0, PaceChanged(before=4.25, cause="no_limit")),
        (0.5, session(2)),
    )

    assert [(1.0, 4250, 3), (2.0, 5250, 4), (3.0, 1000, 6)] == seen.steps("pace", session=1)
    assert [(0.5, 0, 7)] == seen.steps("pace", session=2)


def test_limits_of_several_keys_add_up() -> None:
    """The limit is the sum over all back ends, from when somebody says so; changes at one moment stay in their order."""
    seen = told(
        (0.0, started()),
        (0.0, session()),
        (1.0, LimitChanged(before=0, after=4, cause="start")),
        (1.0, LimitChanged(before=0, after=2, cause="start", key="other")),
        (5.0, LimitChanged(before=4, after=1, cause="rate_limited")),
    )

    assert [(1.0, 4, 3), (1.0, 6, 4), (5.0, 3, 5)] == seen.steps("limit", session=1)


CUT_OFF = (
    *RETRIED[:4],
    (2.0, enqueued("b")),
    (3.0, start()),
    (4.0, failure()),
    (4.0, RetryScheduled(trial="a", attempt=2, delay=5.0, cause="unavailable")),
    (5.0, start("b")),
    (6.0, enqueued("c")),
)
"""A run that dies at 6 s: with `a` in back-off for another 3 s, `b` in a slot, `c` in the queue."""


def resumed(at: str) -> Timeline:
    """Tell of the same run, taken up again."""
    seen = told(*CUT_OFF)
    rest: tuple[tuple[float, Event], ...] = (
        (0.2, SegmentOpened(format="", version="", run="", segment=2)),
        (0.5, session(2)),
        (4.0, enqueued("d")),
    )
    for seq, (t, event) in enumerate(rest, start=seen.seq + 1):
        seen.apply(Record(seq, at, t, event, 0, "", 2, 0))
    return seen


def test_what_was_in_the_air_ended_with_its_process() -> None:
    """An attempt whose process died lasted to the end of its session, and is not in flight in the next, said or unsaid."""
    seen = resumed("2026-11-15T00:01:00.500000Z")

    assert (1, 5.0, 6.0, "interrupted", 9, 12) == seen.spans[1][3:9]
    assert [(0.5, 0, 12)] == seen.steps("in_flight", session=2)
    seen.apply(Record(14, "", 5.0, AttemptInterrupted(trial="b", attempt=1, why="process_died"), 0, "", 2, 0))
    assert (1, 5.0, 6.0, "interrupted", 9, 14) == seen.spans[1][3:9]


def test_waits_go_on_in_the_next_session() -> None:
    """What is left of a delay is waited for; the time between two sessions counts for nobody."""
    seen = resumed("2026-11-15T00:01:00.500000Z")

    assert [(0.5, 2, 12), (3.0, 3, 12), (4.0, 4, 13)] == seen.steps("queued", session=2)
    assert Times(queue_time=2.0 + 1.0, backoff_time=2.0 + 2.5, run_time=1.0, scoring_time=0.0, attempts=1) == seen.times["a"]
    assert Times(queue_time=0.0 + 3.5, backoff_time=0.0, run_time=0.0, scoring_time=0.0, attempts=0) == seen.times["c"]


@pytest.mark.parametrize(
    ("at", "offset"),
    [
        ("2026-11-15T00:01:00.500000Z", 60.0),
        ("2026-11-14T00:00:00Z", 5.5),  # The clock was set back by a day.
        ("yesterday", 5.5),
    ],
)
def test_sessions_stand_on_one_axis_and_never_overlap(at: str, offset: float) -> None:
    """The wall clock says how far apart two sessions are; where it cannot be right, they follow each other at once."""
    seen = resumed(at)

    assert [(1, 0.0, 6.0, 0.0), (2, 0.5, 4.0, offset)] == [(s.n, s.start, s.end, s.offset) for s in seen.sessions]


def test_a_gap_is_a_gap() -> None:
    """On the common axis everything falls to nothing where a session ends."""
    seen = resumed("2026-11-15T00:01:00.500000Z")

    assert [(5.0, 1, 9), (6.0, 0, 11), (60.5, 0, 12)] == seen.steps("in_flight")[-3:]
    assert [(0.5, 2, 3), (6.0, 0, 11)] == seen.steps("limit")


def test_a_session_that_is_not_there() -> None:
    """Asking for a session that never was is an error that says how many there are."""
    with pytest.raises(ValueError, match="there is no session 2; there are 1"):
        told(*RETRIED).steps("queued", session=2)


@pytest.mark.parametrize(
    ("facts", "missing"),
    [
        ([(0.0, enqueued("a"))], "a session"),
        ([(0.0, session()), (0.0, start())], "'a'"),
        ([(0.0, session()), (0.0, enqueued("a")), (0.0, success())], "an attempt at a"),
    ],
)
def test_what_cannot_have_happened_is_refused(facts: list[tuple[float, Event]], missing: str) -> None:
    """A record that speaks of what was never there is refused, and says of what."""
    with pytest.raises(KeyError, match=missing):
        told(*facts)


def test_time_does_not_go_back() -> None:
    """Records whose `t` goes back are taken as if no time had passed."""
    seen = told((0.0, session()), (5.0, enqueued("a")), (2.0, start()), (1.0, success()))

    assert (5.0, 5.0) == (seen.spans[0].start, seen.spans[0].end)


def area(steps: Iterable[Step], end: float) -> float:
    """Add up value × time."""
    total = last = 0.0
    value = 0
    for t, following, _ in steps:
        total += value * (t - last)
        last, value = t, following
    return total + value * (end - last)


@given(st.integers(0, 10_000))
@examples(60)
def test_after_every_record_the_parts_agree(seed: int) -> None:
    """In any prefix of any run: open attempts are those in flight, a slot holds one, and the state counts the same."""
    seen, state = Timeline(), RunState()
    for record in random_records(seed):
        seen.apply(record)
        state.apply(record)
        spans = [span for span in seen.spans if not span.ending]
        last = (
            {name: (seen.steps(name, session=len(seen.sessions)) or [(0.0, 0, 0)])[-1][1] for name in NAMES}
            if seen.sessions
            else {}
        )

        assert len(spans) == last.get("in_flight", 0)
        assert len(spans) == len({span.slot for span in spans})
        stages = Counter(trial.stage for trial in state.trials.values())
        dead = stages["running"] - len(spans)  # Those whose process died, before somebody has said so.
        assert 0 <= dead
        waiting = stages["queued"] + stages["interrupted"] + stages["backing_off"] + dead
        assert waiting == last.get("queued", 0) + last.get("backing_off", 0)
        assert record.seq == seen.seq


@given(st.integers(0, 10_000))
@examples(60)
def test_times_are_the_areas_under_the_steps(seed: int) -> None:
    """What all trials spent waiting, backing off and being served is exactly what the step functions enclose."""
    seen = timeline(random_records(seed, length=400))

    spent = {
        name: sum(area(seen.steps(name, session=each.n), each.end) for each in seen.sessions)
        for name in ("in_flight", "queued", "backing_off")
    }
    assert sum(times.run_time for times in seen.times.values()) == pytest.approx(spent["in_flight"])
    assert sum(times.queue_time for times in seen.times.values()) == pytest.approx(spent["queued"])
    assert sum(times.backoff_time for times in seen.times.values()) == pytest.approx(spent["backing_off"])
    assert sum(span.end - span.start for span in seen.spans) == pytest.approx(spent["in_flight"])


@given(st.integers(0, 10_000))
@examples(60)
def test_steps_are_in_order_and_within_their_session(seed: int) -> None:
    """Times and numbers never go back, nothing lies outside its session, and on the common axis sessions never overlap."""
    seen = timeline(random_records(seed))

    for name in NAMES:
        for each in seen.sessions:
            steps = seen.steps(name, session=each.n)
            assert steps == sorted(steps, key=lambda step: (step[0], step[2]))
            assert all(each.start <= t <= each.end and value >= 0 and seq >= each.seq for t, value, seq in steps)
        axis = [t for t, _, _ in seen.steps(name)]
        assert axis == pytest.approx(sorted(axis))


@given(st.integers(0, 10_000))
@examples(60)
def test_no_attempt_starts_above_the_limit(seed: int) -> None:
    """When an attempt starts, there is room for it; what was in flight when a limit shrank may stay above it."""
    seen = timeline(random_records(seed))

    for span in seen.spans:
        then = {name: [value for _, value, seq in seen.steps(name, session=span.session) if seq <= span.seq] for name in NAMES}
        assert then["in_flight"][-1] <= then["limit"][-1]
