"""The timeline: spans and series that agree with each other, with the state, and with the limits."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaljournal.journal import Event, Record, read
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptSucceeded,
    IntakePaused,
    IntakeResumed,
    LimitChanged,
    PaceChanged,
    RetryScheduled,
    SegmentOpened,
    TrialCompleted,
)
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay import RunState, Span, Timeline, Times
from evaljournal.replay.runs.timeline import Point, SeriesName
from tests.journal.samples import enqueued, examples, session, started
from tests.replay.random_runs import random_records
from tests.replay.trial_events import TimedEvent, attempt_started

NAMES: tuple[SeriesName, ...] = get_args(SeriesName)


AT = "2026-11-15T00:00:00Z"


def apply_all(records: Iterable[Record]) -> Timeline:
    """Return the timeline of these records."""
    timeline = Timeline()
    for record in records:
        timeline.apply(record)
    return timeline


def timeline_at(*timed_events: tuple[str, float, Event]) -> Timeline:
    """Return the timeline of events, each with its wall time and `t`."""
    return apply_all(Record(seq, at, t, event, 0, "", 1, 0) for seq, (at, t, event) in enumerate(timed_events, start=1))


def timeline_of(*timed_events: TimedEvent) -> Timeline:
    """Return the timeline of events, each with its `t`."""
    return timeline_at(*((AT, t, event) for t, event in timed_events))


def success(trial: str = "a", attempt: int = 1) -> AttemptSucceeded:
    return AttemptSucceeded(trial=trial, attempt=attempt, output="Lima", elapsed=0.0)


def failure(trial: str = "a", attempt: int = 1) -> AttemptFailed:
    return AttemptFailed(trial=trial, attempt=attempt, error="E", message="", category="unavailable", elapsed=0.0)


RETRIED = (
    (0.0, started()),
    (0.0, session()),
    (0.5, LimitChanged(before=0, after=2, reason="start")),
    (1.0, enqueued("a")),
    (3.0, attempt_started("a")),
    (4.0, failure()),
    (4.0, RetryScheduled(trial="a", attempt=2, delay=5.0, reason="unavailable")),
    (9.5, attempt_started("a", 2, 1)),
    (11.5, success(attempt=2)),
    (12.0, TrialCompleted(trial="a", attempts=2)),
)
"""A trial: 2 s queued, an attempt of 1 s, 5 s of backoff, 0.5 s queued, an attempt of 2 s, 0.5 s of scoring."""


def test_spans() -> None:
    """Each attempt has its slot, times, outcome and records."""
    assert [
        Span("a", 1, slot=0, session=1, start=3.0, end=4.0, outcome="unavailable", seq=5, end_seq=6, queue_time=2.0),
        Span("a", 2, 1, 1, 9.5, 11.5, "succeeded", seq=8, end_seq=9, queue_time=0.5, backoff_time=5.0),
    ] == list(timeline_of(*RETRIED).spans)


def test_times() -> None:
    """Time in the queue, in backoff and in attempts is counted separately."""
    assert {"a": Times(queue_time=2.5, backoff_time=5.0, run_time=3.0, scoring_time=0.5, attempts=2)} == dict(
        timeline_of(*RETRIED).times
    )


def test_backoff_ends_with_its_delay() -> None:
    """A trial is in backoff until its delay is over, and queued from then on."""
    timeline = timeline_of(*RETRIED)

    assert [(0.0, 0, 2), (4.0, 1, 7), (9.0, 0, 7)] == timeline.points("backing_off", session=1)
    assert [(0.0, 0, 2), (1.0, 1, 4), (3.0, 0, 5), (9.0, 1, 7), (9.5, 0, 8)] == timeline.points("queued", session=1)


def test_open_attempt() -> None:
    """An attempt without an end lasts until the last record."""
    timeline = timeline_of(*RETRIED[:5], (7.0, enqueued("b")))

    assert (3.0, 7.0, "", 0) == timeline.spans[0][4:7] + timeline.spans[0][8:9]
    assert 4.0 == timeline.times["a"].run_time


def test_pause() -> None:
    """A pause ends at its `until` or with a record; a later one of the same key replaces it."""
    timeline = timeline_of(
        (0.0, started()),
        (0.0, session()),
        (1.0, IntakePaused(until=3.0, reason="retry_after")),
        (2.0, IntakePaused(until=4.0, reason="retry_after")),
        (2.0, IntakePaused(until=9.0, reason="retry_after", key="other")),
        (6.0, enqueued("a")),
        (7.0, IntakeResumed(reason="retry_after", key="other")),
        (8.0, IntakePaused(until=8.0, reason="retry_after")),
    )

    assert [(0.0, 0, 2), (1.0, 1, 3), (2.0, 2, 5), (4.0, 1, 5), (7.0, 0, 7)] == timeline.points("paused", session=1)


def test_open_breaker() -> None:
    """An open circuit breaker pauses starts beyond the next probe, until a record closes it."""
    timeline = timeline_of(
        (0.0, started()),
        (0.0, session()),
        (1.0, IntakePaused(until=3.0, reason="unavailable")),
        (5.0, IntakePaused(until=5.0, reason="unavailable")),
        (9.0, IntakeResumed(reason="unavailable")),
    )

    assert [(0.0, 0, 2), (1.0, 1, 3), (9.0, 0, 5)] == timeline.points("paused", session=1)


def test_pace() -> None:
    """The pace is in thousandths of a start per second, summed over the keys of attempts; 0 if starts are not paced."""
    timeline = timeline_of(
        (0.0, started()),
        (0.0, session()),
        (1.0, PaceChanged(after=4.25, reason="rate_limit")),
        (2.0, PaceChanged(after=1.0, reason="rate_limit", key="other")),
        (2.5, PaceChanged(after=9.0, reason="rate_limit", key="scorer:judge")),
        (3.0, PaceChanged(before=4.25, reason="no_limit")),
        (0.5, session(2)),
    )

    assert [(1.0, 4250, 3), (2.0, 5250, 4), (3.0, 1000, 6)] == timeline.points("pace", session=1)
    assert [(0.5, 0, 7)] == timeline.points("pace", session=2)


def test_limits_of_several_keys_add_up() -> None:
    """The limit is the sum over all rate-limit keys, from their first record; simultaneous changes stay in order."""
    timeline = timeline_of(
        (0.0, started()),
        (0.0, session()),
        (1.0, LimitChanged(before=0, after=4, reason="start")),
        (1.0, LimitChanged(before=0, after=2, reason="start", key="other")),
        (5.0, LimitChanged(before=4, after=1, reason="rate_limited")),
    )

    assert [(1.0, 4, 3), (1.0, 6, 4), (5.0, 3, 5)] == timeline.points("limit", session=1)


INTERRUPTED = (
    *RETRIED[:4],
    (2.0, enqueued("b")),
    (3.0, attempt_started("a")),
    (4.0, failure()),
    (4.0, RetryScheduled(trial="a", attempt=2, delay=5.0, reason="unavailable")),
    (5.0, attempt_started("b")),
    (6.0, enqueued("c")),
)
"""A run whose process dies at 6 s: `a` is in backoff for another 3 s, `b` in flight, `c` in the queue."""


def resumed_timeline(at: str) -> Timeline:
    """Return the timeline of the interrupted run after it was resumed at this time."""
    opened = SegmentOpened(format="", version="", run="", segment=2)
    resumed = ((at, 0.2, opened), (at, 0.5, session(2)), (at, 4.0, enqueued("d")))
    return timeline_at(*((AT, t, event) for t, event in INTERRUPTED), *resumed)


def test_attempt_of_a_dead_process() -> None:
    """An attempt whose process died lasts to the end of its session, with or without a record of it."""
    timeline = resumed_timeline("2026-11-15T00:01:00.500000Z")

    assert (1, 5.0, 6.0, "interrupted", 9, 12) == timeline.spans[1][3:9]
    assert [(0.5, 0, 12)] == timeline.points("in_flight", session=2)
    timeline.apply(Record(14, AT, 5.0, AttemptInterrupted(trial="b", attempt=1, reason="process_died"), 0, "", 2, 0))
    assert (1, 5.0, 6.0, "interrupted", 9, 14) == timeline.spans[1][3:9]


def test_waits_continue_in_the_next_session() -> None:
    """The remaining delay applies in the next session; the time between sessions does not count."""
    timeline = resumed_timeline("2026-11-15T00:01:00.500000Z")

    assert [(0.5, 2, 12), (3.0, 3, 12), (4.0, 4, 13)] == timeline.points("queued", session=2)
    assert Times(queue_time=3.0, backoff_time=2.0 + 2.5, run_time=1.0, scoring_time=0.0, attempts=1) == timeline.times["a"]
    assert Times(queue_time=0.0 + 3.5, backoff_time=0.0, run_time=0.0, scoring_time=0.0, attempts=0) == timeline.times["c"]


@pytest.mark.parametrize(
    ("at", "offset"),
    [
        ("2026-11-15T00:01:00.500000Z", 60.0),
        ("2026-11-14T00:00:00Z", 5.5),  # The clock was set back by a day.
    ],
)
def test_sessions_never_overlap(at: str, offset: float) -> None:
    """The wall clock gives the time between sessions; if it went back, there is no gap between them."""
    timeline = resumed_timeline(at)

    assert [(1, 0.0, 6.0, 0.0), (2, 0.5, 4.0, offset)] == [(s.number, s.start, s.end, s.offset) for s in timeline.sessions]


def test_gap_between_sessions() -> None:
    """On the common axis every value is 0 after the end of a session."""
    timeline = resumed_timeline("2026-11-15T00:01:00.500000Z")

    assert [(5.0, 1, 9), (6.0, 0, 11), (60.5, 0, 12)] == timeline.points("in_flight")[-3:]
    assert [(0.5, 2, 3), (6.0, 0, 11)] == timeline.points("limit")


def test_missing_session() -> None:
    """A missing session is an error that shows how many there are."""
    with pytest.raises(ValueError, match="there is no session 2; there are 1"):
        timeline_of(*RETRIED).points("queued", session=2)


@pytest.mark.parametrize(
    ("timed_events", "missing"),
    [
        ([(0.0, enqueued("a"))], "a session"),
        ([(0.0, session()), (0.0, attempt_started("a"))], "'a'"),
        ([(0.0, session()), (0.0, enqueued("a")), (0.0, success())], "an attempt at a"),
    ],
)
def test_unknown_references(timed_events: list[TimedEvent], missing: str) -> None:
    """A record that refers to a missing session, trial or attempt is an error."""
    with pytest.raises(KeyError, match=missing):
        timeline_of(*timed_events)


def test_time_does_not_go_back() -> None:
    """A record whose `t` goes back counts as simultaneous with the previous one."""
    timeline = timeline_of((0.0, session()), (5.0, enqueued("a")), (2.0, attempt_started("a")), (1.0, success()))

    assert (5.0, 5.0) == (timeline.spans[0].start, timeline.spans[0].end)


def area(points: Iterable[Point], end: float) -> float:
    """Return the area under a series."""
    total = last = 0.0
    value = 0
    for t, following, _ in points:
        total += value * (t - last)
        last, value = t, following
    return total + value * (end - last)


@pytest.mark.parametrize("length", [80, pytest.param(200, marks=pytest.mark.exhaustive)])
@given(seed=st.integers(0, 10_000))
@examples(20)
def test_timeline_agrees_with_state(length: int, seed: int) -> None:
    """After every record of any run: open spans are in flight, each in its own slot, and the state has the same counts."""
    timeline, state = Timeline(), RunState()
    for record in random_records(seed, length):
        timeline.apply(record)
        state.apply(record)
        spans = [span for span in timeline.spans if not span.outcome]
        last = (
            {name: (timeline.points(name, session=len(timeline.sessions)) or [(0.0, 0, 0)])[-1][1] for name in NAMES}
            if timeline.sessions
            else {}
        )

        assert len(spans) == last.get("in_flight", 0)
        assert len(spans) == len({span.slot for span in spans})
        stages = Counter(trial.stage for trial in state.trials.values())
        interrupted = stages["running"] - len(spans)  # Their process died, which is not recorded yet.
        assert 0 <= interrupted
        waiting = stages["queued"] + stages["interrupted"] + stages["backing_off"] + interrupted
        assert waiting == last.get("queued", 0) + last.get("backing_off", 0)
        assert record.seq == timeline.seq


@given(st.integers(0, 10_000))
@examples(20)
def test_times_are_the_areas_under_the_series(seed: int) -> None:
    """The times of all trials add up to the areas under the series."""
    timeline = apply_all(random_records(seed, length=400))

    spent = {
        name: sum(area(timeline.points(name, session=part.number), part.end) for part in timeline.sessions)
        for name in ("in_flight", "queued", "backing_off")
    }
    assert sum(times.run_time for times in timeline.times.values()) == pytest.approx(spent["in_flight"])
    assert sum(times.queue_time for times in timeline.times.values()) == pytest.approx(spent["queued"])
    assert sum(times.backoff_time for times in timeline.times.values()) == pytest.approx(spent["backing_off"])
    assert sum(span.end - span.start for span in timeline.spans) == pytest.approx(spent["in_flight"])


@given(st.integers(0, 10_000))
@examples(20)
def test_points_are_in_order_and_within_their_session(seed: int) -> None:
    """Times and records never go back, every point lies within its session, and sessions never overlap."""
    timeline = apply_all(random_records(seed))

    for name in NAMES:
        for part in timeline.sessions:
            points = timeline.points(name, session=part.number)
            assert points == sorted(points, key=lambda step: (step[0], step[2]))
            assert all(part.start <= t <= part.end and value >= 0 and seq >= part.seq for t, value, seq in points)
        axis = [t for t, _, _ in timeline.points(name)]
        assert axis == pytest.approx(sorted(axis))


def merged_timeline(*sessions: tuple[str, Sequence[TimedEvent]], shards: int) -> Timeline:
    """Return the timeline of a merged run: the first sessions are those of one shard each, with their wall times."""
    entries = [{"shard": f"{number}/{shards}", "sessions": 1} for number in range(1, shards + 1)]
    timed_events: list[tuple[str, float, Event]] = [(sessions[0][0], 0.0, evolve_fact(started(), merged_from=entries))]
    for number, (at, events) in enumerate(sessions, 1):
        timed_events += [(at, t, event) for t, event in [(0.0, session(number)), *events]]
    return timeline_at(*timed_events)


def test_open_trials_of_a_shard_do_not_wait_in_others() -> None:
    """A trial that a shard left open is not queued in other shards, but in the session that resumes the merged run."""
    at = "2026-11-15T00:00:{:02}Z".format
    timeline = merged_timeline(
        (at(0), [(1.0, enqueued("a")), (2.0, attempt_started("a")), (5.0, enqueued("b"))]),
        (at(2), [(1.0, enqueued("c")), (9.0, attempt_started("c"))]),
        (at(4), [(3.0, attempt_started("a", 2))]),
        shards=2,
    )

    assert [0.0, 2.0, 11.0] == [session.offset for session in timeline.sessions]
    assert ["1/2", "2/2", ""] == [session.shard for session in timeline.sessions]
    assert [(0.0, 0), (1.0, 1), (2.0, 0), (5.0, 1)] == [point[:2] for point in timeline.points("queued", 1)]
    assert [(0.0, 0), (1.0, 1), (9.0, 0)] == [point[:2] for point in timeline.points("queued", 2)]
    assert [(0.0, 3), (3.0, 2)] == [point[:2] for point in timeline.points("queued", 3)]
    sums = {t: value for t, value, _ in timeline.points("queued")}
    assert {0.0: 0, 1.0: 1, 2.0: 0, 3.0: 1, 5.0: 1, 11.0: 3, 14.0: 2} == sums
    assert Times(queue_time=4.0, backoff_time=0.0, run_time=3.0, scoring_time=0.0, attempts=2) == timeline.times["a"]
    assert 3.0 == timeline.times["b"].queue_time


def test_sessions_of_one_shard_do_not_overlap() -> None:
    """A shard that was resumed on a machine with an earlier clock is placed after its first session."""
    run, at = evolve_fact(started(), merged_from=[{"shard": "1/1", "sessions": 2}]), "2026-11-15T00:00:{:02}Z".format
    timeline = timeline_at(
        (at(10), 0.0, run), (at(10), 0.0, session(1)), (at(14), 4.0, enqueued("a")), (at(11), 0.0, session(2))
    )

    assert [0.0, 4.0] == [session.offset for session in timeline.sessions]


def test_a_merged_run_without_a_pace_has_no_points_of_it() -> None:
    """A session in which a series has no value adds nothing to the sum over shards."""
    timeline = apply_all(read(Path(__file__).parents[1] / "golden" / "merged-v2"))

    assert [] == timeline.points("pace")
