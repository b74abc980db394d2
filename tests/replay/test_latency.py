"""The latency of an output: the attempt that returned it and the steps that it reused; and the time to completion."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from evaljournal.journal import Event, Record
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    RetryScheduled,
    StepCompleted,
    StepFailed,
    StepReused,
    TrialCompleted,
)
from evaljournal.replay import load
from evaljournal.replay.export.source import Source
from evaljournal.replay.export.tables import jsonl
from evaljournal.replay.results.summary import summarize
from evaljournal.replay.runs.timeline import Timeline
from evaljournal.replay.state.run import RunState
from tests.journal.samples import enqueued, session, started, write_sync

Timed = tuple[float, Event]
OWN: float = 1.0
"""Seconds of the last attempt."""


def executed(attempt: int, number: int, start: float, end: float, *, parent: int = 0, **fields: Any) -> Timed:
    """Return the end of a step, in seconds since the start of its attempt; attempt n starts at 100 n."""
    fields = {"name": "ask", "fingerprint": "f", "output": 1, "elapsed": end - start, "parent": parent, **fields}
    return 100 * attempt + end, StepCompleted(trial="a", attempt=attempt, step=number, **fields)


def failed(attempt: int, number: int, end: float, *, parent: int = 0) -> Timed:
    """Return the end of a step that failed."""
    step: dict[str, Any] = {"step": number, "name": "ask", "fingerprint": "f", "elapsed": 1.0, "parent": parent}
    return 100 * attempt + end, StepFailed(trial="a", attempt=attempt, error="E", message="", **step)


def reused(attempt: int, number: int, completed_seq: int, *, parent: int = 0) -> Timed:
    """Return that the step of a record was reused; the attempts start at records 4, 24, 44 and so on."""
    return 100 * attempt, StepReused(trial="a", attempt=attempt, step=number, completed_seq=completed_seq, parent=parent)


def records_of(*attempts: list[Timed], reuses: int = 1) -> list[Record]:
    """Return a run with one trial: each attempt but the last is interrupted. Step n of attempt m is record 20 m - 16 + n."""
    records: list[Record] = []

    def append(seq: int, t: float, event: Event) -> None:
        records.append(Record(seq, "2026-11-15T00:00:00Z", t, event, 0, "", 1, 0))

    head: list[Event] = [started(), session(), enqueued("a")]
    for seq, event in enumerate(head, 1):
        append(seq, 0.0, event)
    for attempt, steps in enumerate(attempts, 1):
        first_seq = 20 * attempt - 16
        append(
            first_seq, 100 * attempt, AttemptStarted(trial="a", attempt=attempt, slot=0, reuses=reuses if attempt > 1 else 0)
        )
        for seq, (t, event) in enumerate(steps, first_seq + 1):
            append(seq, t, event)
        last = attempt == len(attempts)
        end: Event = AttemptInterrupted(trial="a", attempt=attempt, reason="stopped", elapsed=50.0)
        if last:
            end = AttemptSucceeded(trial="a", attempt=attempt, output="yes", elapsed=OWN)
        append(first_seq + 18, 100 * attempt + (OWN if last else 50), end)
    append(1_000, 100 * len(attempts) + OWN + 0.5, TrialCompleted(trial="a", attempts=len(attempts)))
    return records


def latency(*attempts: list[Timed], **options: Any) -> float:
    """Return the latency of the trial, which is never more than its time to completion."""
    state, timeline = RunState(), Timeline()
    for record in records_of(*attempts, **options):
        state.apply(record)
        timeline.apply(record)
    trial = state.trials["a"]

    assert trial.latency is not None
    assert [trial.latency] == list(state.trials.attempts.latencies)
    assert trial.latency <= timeline.times["a"].total
    return trial.latency


def test_reused_steps_count() -> None:
    """Consecutive steps that were reused are added to the time of the attempt; steps that were not reused are not."""
    steps = [executed(1, 1, 0, 3), executed(1, 2, 4, 9), executed(1, 3, 9, 20)]

    assert OWN + 3 + 5 == latency(steps, [reused(2, 1, 5), reused(2, 2, 6)])
    assert OWN == latency(steps, [executed(2, 1, 0, 1)])


@pytest.mark.parametrize(
    ("intervals", "seconds"),
    [
        ([(0, 3), (0, 5)], 5),
        ([(0, 3), (2, 5)], 5),
        ([(1, 9), (2, 3), (4, 5)], 8),
        ([(0, 2), (1, 4), (3, 6), (8, 9)], 7),
        ([(0, 4), (0, 4)], 4),
    ],
)
def test_concurrent_steps_count_once(intervals: list[tuple[float, float]], seconds: float) -> None:
    """The time in which several reused steps were in flight counts once, in any order of their ends."""
    for order in (intervals, intervals[::-1]):
        steps = [executed(1, number, *interval) for number, interval in enumerate(order, 1)]
        assert OWN + seconds == latency(steps, [reused(2, number, 4 + number) for number in range(1, len(steps) + 1)])


def test_nested_steps() -> None:
    """A reused step includes the steps inside it; a step that is reused inside a step that is executed again counts itself."""
    inner, outer = executed(1, 2, 1, 4, parent=1), executed(1, 1, 0, 6)

    assert OWN + 6 == latency([inner, outer], [reused(2, 1, 6)])
    assert OWN + 6 == latency([inner, outer], [reused(2, 1, 6), reused(2, 2, 5, parent=1)])
    assert OWN + 3 == latency([inner], [reused(2, 2, 5, parent=1), executed(2, 1, 0, 1)])
    assert OWN + 3 == latency([inner], [reused(2, 2, 5, parent=1)])  # The outer step has not ended.


def test_several_attempts() -> None:
    """Steps of several attempts are added up; one that each attempt reused counts once, in the attempt that executed it."""
    first, second = [executed(1, 1, 0, 3)], [reused(2, 1, 5), executed(2, 2, 0, 7)]

    assert OWN + 3 + 7 == latency(first, second, [reused(3, 1, 5), reused(3, 2, 26)])
    assert OWN + 3 == latency(first, second, [reused(3, 1, 5), reused(3, 2, 5)])
    assert OWN + 7 == latency(first, second, [reused(3, 1, 26)])


@pytest.mark.parametrize("outer", ["completed", "failed", "not reusable"])
def test_reused_step_inside_a_reused_step(outer: str) -> None:
    """A reused step that had itself reused a step of an earlier attempt includes that, however deep it was."""
    first = [executed(1, 1, 0, 3)]
    second = [
        reused(2, 3, 5, parent=2),
        failed(2, 2, 1, parent=1) if outer == "failed" else executed(2, 2, 0, 1, parent=1, reusable=outer == "completed"),
        executed(2, 1, 0, 2),
    ]

    assert OWN + 2 + 3 == latency(first, second, [reused(3, 1, 27)])


def test_unknown_steps() -> None:
    """Steps whose records are missing, or that may not be reused, do not count."""
    assert OWN == latency([], [reused(2, 1, 5)])
    assert OWN == latency([executed(1, 1, 0, 3)], [reused(2, 1, 5)], reuses=0)
    assert OWN + 3 == latency([executed(1, 1, 0, 3)], [reused(2, 1, 5), reused(2, 2, 999)])


@pytest.mark.parametrize(("elapsed", "seconds"), [(-5.0, 0), (1e300, 3), (float("inf"), 3)])
def test_foreign_times(elapsed: float, seconds: float) -> None:
    """The time of a reused step is never negative, and never more than the time since its attempt started."""
    assert OWN + seconds == latency([executed(1, 1, 0, 3, elapsed=elapsed)], [reused(2, 1, 5)])
    assert OWN + 5 == latency([executed(1, 1, 0, 3, elapsed=elapsed), executed(1, 2, 0, 5)], [reused(2, 1, 5), reused(2, 2, 6)])


def test_views(tmp_path: Path) -> None:
    """The summary, a trial and the exported table have the same latency, and the time to completion."""
    times = iter([*[0.0] * 5, 4.0, 4.0, 4.0, 10.0, 10.0, 10.5, 10.5, *[11.0] * 9])
    events: list[Event] = [
        *(started(), session(), enqueued("a"), AttemptStarted(trial="a", attempt=1, slot=0)),
        StepCompleted(trial="a", attempt=1, step=1, name="ask", fingerprint="f", output=1, elapsed=3.5),
        AttemptFailed(trial="a", attempt=1, error="E", message="", category="rate_limited", elapsed=4.0),
        RetryScheduled(trial="a", attempt=2, delay=6.0, reason="rate_limited"),
        AttemptStarted(trial="a", attempt=2, slot=0, reuses=1, spent=4.0),
        StepReused(trial="a", attempt=2, step=1, completed_seq=6),
        AttemptSucceeded(trial="a", attempt=2, output="yes", elapsed=0.5),
        TrialCompleted(trial="a", attempts=2),
    ]
    write_sync(tmp_path / "run", events, clock=lambda: ("2026-11-15T00:00:00Z", next(times)))
    run = load(tmp_path / "run")
    source = Source(tmp_path / "run")
    (row,) = [orjson.loads(line) for line in jsonl(source, "trials")]
    trial = run.trial("a")

    assert (4.0, 4.0) == (summarize(run.state).latency.p50, summarize(run.state).latency.max)
    assert (4.0, 10.5) == (trial.latency, trial.time_to_completion)
    assert (4.0, 10.5) == (row["latency"], row["time_to_completion"])
