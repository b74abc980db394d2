"""Numbered defects of Phoenix's executor that the engine must not have; and its `evaluate_dataframe`."""

import asyncio
import dataclasses
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped,unused-ignore]  # it has no stubs
import pytest
import trio

from evaljournal.integrations.phoenix import AsyncExecutor, SyncExecutor
from evaljournal.journal import read, verify
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    IntakePaused,
    RunStopped,
)
from evaljournal.runner.errors import RunChanged
from evaljournal.runner.testing import Fail, Hang, Return, Scripted, SimulatedEndpoint
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, define, events, numbered_cases, run_virtual


@pytest.mark.parametrize(("slots", "seconds"), [(3, 10.0), (10, 3.0), (30, 1.0)])
async def test_2_nothing_polls(slots: int, seconds: float, disk: SimulatedDisk) -> None:
    """Three hundred calls of 0.1 s take exactly 300 × 0.1 ÷ slots seconds."""
    start = trio.current_time()
    await run_virtual(define(Scripted(lambda *_: Return("yes", 0.1)), numbered_cases(300), slots=slots), disk, policy="fixed")

    assert seconds == pytest.approx(trio.current_time() - start, abs=1e-6)


async def test_4_connection_errors_open_the_breaker(disk: SimulatedDisk) -> None:
    """During a minute without a connection, starts are paused with a recorded reason, and few calls are made."""
    endpoint = SimulatedEndpoint(lambda value: value, latency=0.05)
    endpoint.down_until = trio.current_time() + 60.0
    outcome = await run_virtual(define(endpoint, numbered_cases(500), slots=50), disk)

    assert (500, 0) == (outcome.state.completed, outcome.state.failed)
    assert endpoint.rejected <= 150
    assert events(disk, IntakePaused)


async def test_8_cancelling_the_run_ends_its_tasks() -> None:
    """A run that is cancelled leaves no call running, and every started attempt has an end."""
    hanging = [f"case-{number}" for number in range(5)]
    task = Scripted(lambda value, times: Hang() if value in hanging and times == 1 else Return("yes"))
    evaluation, disk = define(task, numbered_cases(20), slots=5), SimulatedDisk()
    with trio.move_on_after(10):
        await run_virtual(evaluation, disk, policy="fixed")

    assert (5, 0) == (task.calls.total(), task.in_flight)
    assert hanging == [event.trial for event in events(disk, AttemptStarted)]
    assert verify(PATH, files=disk).ok

    outcome = await run_virtual(evaluation, disk, resume=True)
    assert [(trial, "cancelled") for trial in hanging] == sorted(
        (event.trial, event.reason) for event in events(disk, AttemptInterrupted)
    )
    assert [RunStopped(reason="interrupted")] == events(disk, RunStopped)
    assert (20, 25) == (outcome.state.completed, outcome.state.totals.attempts)


async def test_10_the_wall_clock_does_not_matter(disk: SimulatedDisk) -> None:
    """Durations and delays use the monotonic clock: setting the wall clock back changes none of them."""
    task = Scripted(lambda _, times: Fail(ConnectionError("no"), 1) if times == 1 else Return("yes", 2))

    def wall() -> float:
        now = trio.current_time()
        return 1_800_000_000 + now - (3_600 if now > 0.5 else 0)

    await run_virtual(define(task, numbered_cases(3)), disk, wall=wall)

    assert [1.0] * 3 == [event.elapsed for event in events(disk, AttemptFailed)]
    assert [2.0] * 3 == [event.elapsed for event in events(disk, AttemptSucceeded)]
    times = [record.t for record in read(PATH, files=disk)]
    assert sorted(times) == times
    assert times[-1] < 10


@dataclasses.dataclass(frozen=True, init=False)
class Score:
    """Stand-in for Phoenix's class, with a custom `__init__`."""

    name: str | None = None
    score: float | None = None
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __init__(self, *, name: str | None = None, score: float | None = None, metadata: dict[str, Any] | None = None) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "score", score)
        object.__setattr__(self, "metadata", metadata or {})


class Evaluator:
    """Stand-in for Phoenix's class: an object whose fields are its definition."""

    def __init__(self, name: str, function: Callable[[dict[str, Any]], float]) -> None:
        self._name, self._function = name, function

    def evaluate(self, row: dict[str, Any]) -> list[Score]:
        """Return scores with a name."""
        return [Score(name=self._name, score=self._function(row), metadata={"words": row["text"].split()})]


def evaluate_dataframe(frame: Any, evaluators: list[Evaluator], executor: Callable[..., Any]) -> list[float | None]:
    """Call an executor as Phoenix's function does: an input is a pair of indices, and the rows are in a closure."""
    rows: dict[int, dict[str, Any]] = dict(enumerate(frame.to_dict("records")))

    def _task(task_input: tuple[int, int]) -> list[Score]:
        row_index, evaluator_index = task_input
        return evaluators[evaluator_index].evaluate(rows[row_index])

    async def _async_task(task_input: tuple[int, int]) -> list[Score]:
        await asyncio.sleep(0)
        row_index, evaluator_index = task_input
        return evaluators[evaluator_index].evaluate(rows[row_index])

    inputs = list(itertools.product(range(len(frame)), range(len(evaluators))))
    is_async = getattr(executor, "func", executor) is AsyncExecutor
    results, _ = executor(generation_fn=_async_task if is_async else _task, fallback_return_value=None).run(inputs)
    return [None if scores is None else scores[0].score for scores in results]


@pytest.mark.parametrize("kind", [AsyncExecutor, SyncExecutor])
def test_evaluate_dataframe_is_resumed(tmp_path: Path, kind: Any) -> None:
    """Only rows without a score are evaluated again; scores are objects; a changed cell or evaluator is detected."""
    is_broken, calls = True, 0

    def count_words(row: dict[str, Any]) -> float:
        nonlocal calls
        calls += 1
        if is_broken and row["text"] == "a b c":
            raise ValueError("no")
        return len(row["text"].split())

    def count_characters(row: dict[str, Any]) -> float:
        return len(row["text"])

    def evaluate(last: str, *functions: Callable[[dict[str, Any]], float]) -> list[float | None]:
        frame = pd.DataFrame({"text": ["a", "a b", last], "year": [1999.0, float("nan"), 2026.0]})
        evaluators = [Evaluator(function.__name__, function) for function in functions]
        return evaluate_dataframe(
            frame, evaluators, partial(kind, journal=tmp_path / "run", max_retries=0, exit_on_error=False)
        )

    assert [1, 1, 2, 3, None, 5] == evaluate("a b c", count_words, count_characters)
    is_broken, calls = False, 0
    assert [1, 1, 2, 3, 3, 5] == evaluate("a b c", count_words, count_characters)
    assert 1 == calls
    with pytest.raises(RunChanged, match="'rows'"):
        evaluate("a b c d", count_words, count_characters)
    with pytest.raises(RunChanged, match="'evaluators'"):
        evaluate("a b c", count_characters, count_words)
    assert 1 == calls
