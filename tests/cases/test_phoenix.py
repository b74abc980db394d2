"""Ten numbered defects of Phoenix's executor that evaljournal must not have; and its `evaluate_dataframe`.

Tested elsewhere:

- 3, an outage of a second loses no trial: `test_a_second_outage_loses_nothing` in `tests/runner/test_session.py`
- 4, the target stays within its maximum: `tests/runner/test_executors_controller.py`
- 5, results survive SIGTERM and SIGKILL; 7, bounded grace and a second Ctrl-C, in real processes: `tests/crash/test_kills.py`
- 6, a leaked cancellation: `tests/runner/test_function.py`; datasets that fail half-way, and lazy generators:
  `tests/runner/test_session.py`
- 9, a programming error is not retried: `tests/runner/test_session.py`
- 10, runs share no state: `tests/runner/test_registry.py`; no slots: `tests/runner/test_evaluation.py`; `timeout=None`:
  `tests/runner/test_session.py`
"""

import asyncio
import dataclasses
import gc
import itertools
import random
import signal
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped,unused-ignore]  # it has no stubs
import pytest
import trio

from evaljournal import RateLimited, Retry
from evaljournal.journal import read, verify
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    IntakePaused,
    RunStopped,
    TrialFailed,
)
from evaljournal.runner.errors import RunChanged
from evaljournal.runner.executors import AsyncExecutor, SyncExecutor
from evaljournal.runner.testing import Action, Fail, Hang, Return, Scripted, SimulatedEndpoint
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, define, events, numbered_cases, run_virtual, signal_after


@pytest.mark.parametrize("policy", ["adaptive", "aimd", "fixed"])
async def test_1_a_straggler_that_times_out_does_not_hang_the_run(policy: str, disk: SimulatedDisk) -> None:
    """With default settings, one call that never returns fails its own trial only."""
    task = Scripted(lambda value, _: Hang() if value == "case-9" else Return("yes", 0.1))
    outcome = await run_virtual(define(task, numbered_cases(40)), disk, policy=policy)

    assert ("", 39, 1) == (outcome.stop_reason, outcome.state.completed, outcome.state.failed)
    assert [TrialFailed(trial="case-9", attempts=3, reason="timed_out")] == events(disk, TrialFailed)


@pytest.mark.parametrize("policy", ["adaptive", "aimd", "fixed"])
async def test_1_rate_limits_at_the_end_do_not_hang_the_run(policy: str, disk: SimulatedDisk) -> None:
    """When the last two trials are rate limited twice, both are completed."""
    last = {"case-38", "case-39"}

    def action(value: str, times: int) -> Action:
        return Fail(RateLimited(), 0.1) if value in last and times <= 2 else Return("yes", 0.1)

    outcome = await run_virtual(define(Scripted(action), numbered_cases(40), slots=4), disk, policy=policy)

    assert ("", 40, 2) == (outcome.stop_reason, outcome.state.completed, outcome.state.recovered)


@pytest.mark.parametrize(("slots", "seconds"), [(3, 10.0), (10, 3.0), (30, 1.0)])
async def test_2_nothing_polls(slots: int, seconds: float, disk: SimulatedDisk) -> None:
    """Three hundred calls of 0.1 s take exactly 300 × 0.1 ÷ slots seconds."""
    start = trio.current_time()
    await run_virtual(define(Scripted(lambda *_: Return("yes", 0.1)), numbered_cases(300), slots=slots), disk, policy="fixed")

    assert seconds == pytest.approx(trio.current_time() - start, abs=1e-6)


async def test_3_an_outage_costs_few_calls(disk: SimulatedDisk) -> None:
    """During an outage of one second there are a few dozen calls, not a thousand."""
    endpoint = SimulatedEndpoint(lambda value: value, latency=0.05)
    endpoint.down_until = trio.current_time() + 1.0
    outcome = await run_virtual(define(endpoint, numbered_cases(100), slots=10), disk)

    assert 100 == outcome.state.completed
    assert endpoint.rejected <= 30


@pytest.mark.parametrize("rate", [0.01, 0.03])
async def test_4_random_rate_limits_cost_little(rate: float, disk: SimulatedDisk) -> None:
    """With random 429s among calls of 50 ms, fifty slots make at least 800 of 1,000 possible calls per second."""

    def action(value: str, times: int) -> Action:
        is_rate_limited = random.Random(f"{value}/{times}").random() < rate
        return Fail(RateLimited(), 0.05) if is_rate_limited else Return("yes", 0.05)

    await run_virtual(define(Scripted(action), numbered_cases(5_000), slots=50), disk, durability="os")
    end_times = sorted(record.t for record in read(PATH, files=disk) if isinstance(record.event, AttemptSucceeded))

    assert len(end_times) == 5_000
    assert end_times[4_499] - end_times[0] <= 4_500 / 800


@pytest.mark.parametrize("slots", [1, 2, 10])
async def test_2_the_first_second_is_not_idle(slots: int, disk: SimulatedDisk) -> None:
    """With default settings, ten calls of 10 ms take no longer than the slots need."""
    start = trio.current_time()
    await run_virtual(define(Scripted(lambda *_: Return("yes", 0.01)), numbered_cases(10), slots=slots), disk)

    assert trio.current_time() - start <= 0.1 / slots + 0.03


async def test_4_connection_errors_open_the_breaker(disk: SimulatedDisk) -> None:
    """During a minute without a connection, intake pauses with a recorded reason, and few calls are made."""
    endpoint = SimulatedEndpoint(lambda value: value, latency=0.05)
    endpoint.down_until = trio.current_time() + 60.0
    outcome = await run_virtual(define(endpoint, numbered_cases(500), slots=50), disk)

    assert (500, 0) == (outcome.state.completed, outcome.state.failed)
    assert endpoint.rejected <= 150
    assert events(disk, IntakePaused)


async def test_4_the_limit_recovers_after_an_outage(disk: SimulatedDisk) -> None:
    """After an outage, a hundred slots are in use again within seconds."""
    endpoint = SimulatedEndpoint(lambda value: value, latency=1.0)

    async def start_outage(_: Any) -> None:
        await trio.sleep(10)
        endpoint.down_until = trio.current_time() + 20

    await run_virtual(define(endpoint, numbered_cases(3_000), slots=100), disk, observer=start_outage, durability="os")

    in_flight, recovered_at = 0, None
    for record in read(PATH, files=disk):
        in_flight += isinstance(record.event, AttemptStarted) - isinstance(record.event, AttemptSucceeded | AttemptFailed)
        if record.t > 30 and in_flight >= 90 and recovered_at is None:
            recovered_at = record.t
    assert recovered_at is not None
    assert recovered_at <= 45


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_7_a_signal_is_detected_while_every_slot_waits(number: signal.Signals, disk: SimulatedDisk) -> None:
    """With every slot waiting, Ctrl-C takes effect immediately: the run ends with the grace period."""
    start = trio.current_time()
    outcome = await run_virtual(
        define(Scripted(lambda *_: Hang()), numbered_cases(20)), disk, grace=2, **signal_after(9.0, number=number)
    )

    assert "interrupted" == outcome.stop_reason
    assert 11.0 == pytest.approx(trio.current_time() - start, abs=0.1)


@pytest.mark.parametrize("outcome", ["finished", "interrupted", "rejected"])
async def test_7_signal_handlers_are_restored(outcome: str) -> None:
    """However a run ends, earlier handlers of SIGINT, SIGTERM and SIGHUP are restored."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    evaluation, disk = define(Scripted(lambda *_: Return("yes", 5)), numbered_cases(2)), SimulatedDisk()
    match outcome:
        case "finished":
            await run_virtual(evaluation, disk, signals=True)
        case "interrupted":
            await run_virtual(evaluation, disk, **signal_after(1))
        case _:
            await run_virtual(evaluation, disk)
            with pytest.raises(Exception, match="resume"):
                await run_virtual(evaluation, disk, signals=True)

    assert before == [signal.getsignal(number) for number in numbers]


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
    assert (20, 25) == (outcome.state.completed, outcome.state.attempts)


async def test_9_failures_keep_no_frames(disk: SimulatedDisk) -> None:
    """Of five hundred failures with long prompts in their frames, only the latest are in memory, none at the end."""

    class Broken(Exception):
        def __init__(self, length: int) -> None:
            super().__init__(length)
            alive.add(self)

    alive: weakref.WeakSet[Broken] = weakref.WeakSet()
    max_alive = 0

    async def task(value: str) -> str:
        nonlocal max_alive
        prompt = value * 2_000
        max_alive = max(max_alive, len(alive))
        await trio.sleep(0.1)
        raise Broken(len(prompt))

    evaluation = define(task, numbered_cases(500), slots=8, retry=Retry(errors=0), stop_on_same_error=None)
    outcome = await run_virtual(evaluation, disk, durability="os")
    gc.collect()

    assert 500 == outcome.state.failed
    assert max_alive <= 100
    assert 0 == len(alive)


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
