"""Phoenix's executor interface: its names, arguments, attributes and results."""

import asyncio
import inspect
import logging
import math
import signal
import threading
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest
import trio

from evaljournal import RateLimited, UsageError
from evaljournal.integrations.phoenix import (
    AsyncExecutor,
    ExecutionDetails,
    ExecutionStatus,
    Executor,
    Fatal,
    SyncExecutor,
    get_executor_on_sync_context,
)
from evaljournal.integrations.phoenix.execution import Results
from evaljournal.journal.events import LimitChanged
from evaljournal.runner.testing import Action, Fail, Hang, Return, Scripted, deterministic_options, events_of
from tests.journal.disk import SimulatedDisk
from tests.processes import TIMEOUT

DID_NOT_RUN, COMPLETED, COMPLETED_WITH_RETRIES, FAILED = ExecutionStatus


async def execute(
    function: Any, inputs: Iterable[Any], concurrency: int = 3, options: Mapping[str, Any] | None = None, **arguments: Any
) -> Results:
    """Execute in a deterministic order on the virtual clock."""
    executor = AsyncExecutor(function, concurrency, **arguments, options={**deterministic_options(), **(options or {})})
    with trio.fail_after(1_000_000):  # Virtual seconds.
        return await executor.execute(inputs)


def statuses(results: Results) -> list[ExecutionStatus]:
    return [details.status for details in results[1]]


async def double(value: int) -> int:
    await trio.sleep(1)
    return 2 * value


def test_execution_details() -> None:
    """Statuses have the names and values of Phoenix's; details start as not run, and have the four methods."""
    values = ["DID NOT RUN", "COMPLETED", "COMPLETED WITH RETRIES", "FAILED"]
    assert {value.replace(" ", "_"): value for value in values} == {status.name: status.value for status in ExecutionStatus}
    details = ExecutionDetails()
    assert ([], DID_NOT_RUN, 0) == (details.exceptions, details.status, details.execution_seconds)
    details.complete()
    assert COMPLETED == details.status
    exc = ValueError("once")
    details.log_exception(exc)
    details.complete()
    assert ([exc], COMPLETED_WITH_RETRIES) == (details.exceptions, details.status)
    details.fail()
    assert FAILED == details.status


def test_a_runtime_is_since_a_time_of_either_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """`log_runtime` adds up times since values of `time.monotonic()` and of `time.time()`, which Phoenix passes."""
    monkeypatch.setattr(time, "monotonic", lambda: 107.5)
    monkeypatch.setattr(time, "time", lambda: 1_800_000_002.0)
    details = ExecutionDetails()
    for start_time in (100.0, 107.0, 1_800_000_000.0, 1_800_000_003.0):  # The last one: the wall clock was set back.
        details.log_runtime(start_time)

    assert 10.0 == details.execution_seconds


COMMON = "tqdm_bar_format=None max_retries=10 exit_on_error=True fallback_return_value=None"
SIGNAL = f"termination_signal={signal.SIGINT!r}"
DYNAMIC = (
    "enable_dynamic_concurrency=True dynamic_initial_target=None dynamic_window_seconds=5.0 dynamic_increase_step=1 "
    "dynamic_decrease_ratio=0.5 dynamic_inactive_check_interval=1.0"
)
OWN_ARGUMENTS = "journal=None output_type=None options=None"


@pytest.mark.parametrize(
    ("callable_", "expected"),
    [
        (AsyncExecutor, f"generation_fn concurrency=3 {COMMON} {SIGNAL} timeout=None {DYNAMIC} {OWN_ARGUMENTS}"),
        (SyncExecutor, f"generation_fn {COMMON} {SIGNAL} {OWN_ARGUMENTS}"),
        (get_executor_on_sync_context, f"sync_fn async_fn run_sync=False concurrency=3 {COMMON} timeout=None {OWN_ARGUMENTS}"),
    ],
)
def test_the_signatures(callable_: Any, expected: str) -> None:
    """Arguments have Phoenix's names, order and defaults; additional ones are keyword-only."""
    actual = [
        name if parameter.default is inspect.Parameter.empty else f"{name}={parameter.default!r}"
        for name, parameter in inspect.signature(callable_).parameters.items()
    ]

    assert expected == " ".join(actual)


def test_the_attributes() -> None:
    """Arguments are attributes of the same names; `timeout` is 60 s by default."""
    names = ("concurrency", "max_retries", "exit_on_error", "fallback_return_value", "timeout", "tqdm_bar_format")
    values = (7, 2, False, "?", 5, "{bar}")
    arguments: dict[str, Any] = dict(zip(names, values, strict=True))
    executor = AsyncExecutor(double, **arguments, termination_signal=signal.SIGTERM)
    plain = AsyncExecutor(double)
    in_order = SyncExecutor(len, max_retries=2, exit_on_error=False, fallback_return_value="?", termination_signal=None)
    executors: list[Executor] = [executor, plain, in_order]

    assert values == tuple(getattr(executor, name) for name in names)
    assert (3, 10, True, None, 60, None) == tuple(getattr(plain, name) for name in names)
    assert (1, 2, False, "?", math.inf, None) == tuple(getattr(in_order, name) for name in names)
    assert [double, double, len] == [candidate.generate for candidate in (executor, plain, in_order)]
    assert [signal.SIGTERM, signal.SIGINT, None] == [candidate.termination_signal for candidate in (executor, plain, in_order)]
    assert 0 == plain.base_priority
    assert all(callable(candidate.run) for candidate in executors)


async def test_attributes_may_be_changed_before_a_run() -> None:
    """A run uses the attributes as they are when it starts, and checks them again."""
    task = Scripted({"a": [Fail(ValueError("no")), Return(1)]})
    executor = AsyncExecutor(double, max_retries=0, options=deterministic_options())
    executor.generate, executor.max_retries, executor.fallback_return_value = task, 1, "?"
    assert [1] == (await executor.execute(["a"]))[0]

    executor.timeout = 0
    with pytest.raises(UsageError, match="timeout=0"):
        await executor.execute(["a"])


async def test_outputs_are_in_the_order_of_inputs() -> None:
    """Outputs and details are in the order of the inputs."""
    task = Scripted(lambda value, _: Return(f"out {value}", after=10.0 - value))
    outputs, details = await execute(task, range(10), concurrency=10)

    assert [f"out {n}" for n in range(10)] == outputs
    assert [COMPLETED] * 10 == [detail.status for detail in details]
    assert [10.0 - n for n in range(10)] == [pytest.approx(detail.execution_seconds, abs=1e-5) for detail in details]


async def test_details_of_a_retried_item() -> None:
    """Success after failures is COMPLETED_WITH_RETRIES, with the exceptions and the time of all attempts."""
    error = ValueError("odd")
    task = Scripted({"a": [Fail(error, 2), Fail(ConnectionError("no"), 3), Return("x", 4)]})
    outputs, [details] = await execute(task, ["a"])

    assert ["x"] == outputs
    assert COMPLETED_WITH_RETRIES == details.status
    assert [error, "no"] == [details.exceptions[0], str(details.exceptions[1])]
    assert 3 == details.attempts
    assert pytest.approx(9.0, abs=1e-5) == details.execution_seconds


async def test_a_failure_never_raises() -> None:
    """A failed item has the fallback as output, and the others have theirs."""
    task = Scripted(lambda value, _: Fail(ValueError("no")) if value == 1 else Return(value))
    results = await execute(task, range(3), max_retries=2, exit_on_error=False, fallback_return_value="?")

    assert [0, "?", 2] == results[0]
    assert [COMPLETED, FAILED, COMPLETED] == statuses(results)
    assert 3 == len(results[1][1].exceptions)
    assert "ValueError: no" in results[1][1].traceback


@pytest.mark.parametrize("failure", [Fail(ValueError("no")), Fail(RateLimited()), Fail(ConnectionError("no")), Hang()])
@pytest.mark.parametrize("max_retries", [0, 1, 4])
async def test_max_retries_counts_everything(failure: Action, max_retries: int) -> None:
    """`max_retries` counts errors, rate limits and timeouts alike."""
    task = Scripted({"a": [failure]})
    results = await execute(task, ["a"], max_retries=max_retries, timeout=10)

    assert max_retries + 1 == task.calls["a"] == len(results[1][0].exceptions) == results[1][0].attempts
    assert [FAILED] == statuses(results)


async def test_programming_errors_are_retried() -> None:
    """As in Phoenix, every error is retried; equal errors of many inputs do not stop the others."""
    task = Scripted(lambda value, _: Fail(TypeError("no")) if value < 30 else Return(value))
    results = await execute(task, range(40), max_retries=2, exit_on_error=False)

    assert [FAILED] * 30 + [COMPLETED] * 10 == statuses(results)
    assert 3 * 30 + 10 == task.calls.total()


async def test_max_retries_is_one_budget_for_all_causes() -> None:
    """An error, a timeout and a rate limit together use up three retries."""
    for max_retries, status in ((3, COMPLETED_WITH_RETRIES), (2, FAILED)):
        task = Scripted({"a": [Fail(ValueError("no")), Hang(), Fail(RateLimited()), Return(1)]})
        assert [status] == statuses(await execute(task, ["a"], max_retries=max_retries, timeout=10))


@pytest.mark.parametrize(("argument", "seconds"), [(None, 60.0), (30, 30.0), (math.inf, 86_000.0)])
async def test_the_timeout(argument: float | None, seconds: float) -> None:
    """`timeout=None` is 60 s, as in Phoenix; `math.inf` turns the timeout off. Exceeding it is a TimeoutError."""
    task = Scripted({"a": [Return(1, after=86_000)]})
    results = await execute(task, ["a"], timeout=argument, max_retries=0)
    [details] = results[1]

    assert [COMPLETED if argument == math.inf else FAILED] == statuses(results)
    assert pytest.approx(seconds, abs=1e-5) == details.execution_seconds
    timeouts = [] if argument == math.inf else [(TimeoutError, f"timed out after {seconds:g} s")]
    assert timeouts == [(type(exc), str(exc)) for exc in details.exceptions]


class PhoenixException(Exception):
    """Stand-in for Phoenix's class, which is recognized by its name."""


class ContextLimitExceeded(PhoenixException):
    """A subclass that is fatal."""


class RateLimitError(PhoenixException):
    """A subclass that is retried."""


@pytest.mark.parametrize(
    ("exc", "calls"),
    [(Fatal("never"), 1), (PhoenixException("no"), 1), (ContextLimitExceeded("no"), 1), (RateLimitError("later"), 4)],
)
async def test_some_exceptions_bypass_retries(exc: Exception, calls: int) -> None:
    """`Fatal` and Phoenix's exceptions fail an item immediately, except its RateLimitError."""
    task = Scripted({"a": [Fail(exc)]})
    results = await execute(task, ["a"], max_retries=3)

    assert (calls, [FAILED]) == (task.calls["a"], statuses(results))


async def test_exit_on_error_ends_the_run() -> None:
    """The first failed item ends the run: attempts in flight may finish, and the others did not run."""
    task = Scripted(lambda value, _: Fail(ValueError("no"), 5) if value == 20 else Return(value, 1))
    results = await execute(task, range(1000), concurrency=2, max_retries=0)

    assert [COMPLETED] * 20 + [FAILED] == statuses(results)[:21]
    assert [DID_NOT_RUN] * 950 == statuses(results)[50:]
    assert 1000 == len(results[0]) == len(results[1])
    assert [(None, 0, False)] * 950 == [
        (output, item.attempts, item.interrupted) for output, item in zip(*results, strict=True)
    ][50:]


async def test_without_exit_on_error_an_unauthorized_key_does_not_end_the_run() -> None:
    """`exit_on_error=False` holds even if every item is unauthorized."""

    class Unauthorized(Exception):
        status_code = 401

    results = await execute(Scripted(lambda *_: Fail(Unauthorized("no"))), range(50), exit_on_error=False)

    assert [FAILED] * 50 == statuses(results)


@pytest.mark.parametrize("inputs", [[], (), iter([])])
async def test_no_inputs_no_outputs(inputs: Iterable[Any]) -> None:
    """Without inputs there are no outputs and no calls."""
    assert ([], []) == await execute(double, inputs)


async def test_inputs_are_read_as_they_are_needed() -> None:
    """A generator is read lazily."""
    read = 0

    def inputs() -> Any:
        nonlocal read
        for value in range(10_000):
            read += 1
            yield value

    task = Scripted(lambda value, _: Fail(ValueError("no")) if value == 5 else Return(value, 1))
    results = await execute(task, inputs(), max_retries=0)

    assert read < 200
    assert read == len(results[0]) == len(results[1])


async def test_inputs_and_outputs_may_be_any_object() -> None:
    """Without a journal, inputs and outputs are passed on as the same objects."""
    created: list[object] = []

    async def wrap(value: Any) -> object:
        await trio.lowlevel.checkpoint()
        created.append((value, threading.Lock()))
        return created[-1]

    arguments = [object(), threading.Lock(), float("nan"), {1, 2}, repeated := object(), repeated, lambda: 1]
    outputs, _ = await execute(wrap, arguments, concurrency=1)

    assert all(expected is output[0] for expected, output in zip(arguments, outputs, strict=True))
    assert all(expected is output for expected, output in zip(created, outputs, strict=True))


@pytest.mark.parametrize(
    "function",
    [
        lambda value: 2 * value,
        partial(lambda _, value: 2 * value, object()),
        partial(lambda _, value: _double_in_asyncio(value), object()),  # A plain function that returns a coroutine.
    ],
)
def test_functions_of_every_kind(function: Any) -> None:
    """A plain function, a lambda that returns a coroutine and a partial are called correctly."""
    assert [2, 4, 6] == AsyncExecutor(function).run([1, 2, 3])[0]


@pytest.mark.parametrize("kind", [AsyncMock, MagicMock, Mock])
def test_mocks(kind: Any) -> None:
    """A mock, which has every attribute and so the code of no function, is called like the function it stands for."""
    failing = kind(side_effect=[ValueError("once"), 4])

    assert [3] == AsyncExecutor(kind(return_value=3)).run([1])[0]
    assert [4] == AsyncExecutor(failing, options={"seed": 5}).run([1])[0]
    assert 2 == failing.call_count


async def _double_in_asyncio(value: int) -> int:
    await asyncio.sleep(0)
    return 2 * value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"concurrency": 0}, "concurrency=0: expected an integer, 1 or more"),
        ({"concurrency": 2.5}, "concurrency=2.5"),
        ({"max_retries": -1}, "max_retries=-1: expected an integer, 0 or more"),
        ({"timeout": 0}, "timeout=0: must be a number of seconds above 0; math.inf turns it off"),
        ({"timeout": True}, "timeout=True"),
        ({"timeout": float("nan")}, "timeout=nan"),
        ({"options": {"listener": print}}, "the option 'listener' is set by the executor"),
        ({"generation_fn": 3}, "generation_fn=3"),
        ({"inputs": 3}, "inputs=3"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: dict[str, Any], message: str) -> None:
    """An invalid argument is rejected by name, as is what is not callable, or not iterable."""
    inputs = arguments.pop("inputs", [])
    with pytest.raises(UsageError, match=message):
        AsyncExecutor(**{"generation_fn": double, **arguments}).run(inputs)


@pytest.mark.parametrize(
    ("arguments", "policy"),
    [
        ({}, "adaptive"),
        ({"enable_dynamic_concurrency": False}, "fixed"),
        ({"dynamic_initial_target": 4}, "AIMD"),
        ({"dynamic_window_seconds": 1.0, "dynamic_increase_step": 2}, "AIMD"),
    ],
)
async def test_the_policy_follows_the_arguments(arguments: dict[str, Any], policy: str) -> None:
    """The adaptive policy by default, a fixed one without dynamics, AIMD with any of Phoenix's numbers."""
    task = Scripted(lambda value, _: Return(value, 1))
    executor = AsyncExecutor(task, 20, **arguments, options=deterministic_options())
    config = executor._configure()

    assert list(range(200)) == (await executor.execute(range(200)))[0]
    assert task.max_in_flight <= 36
    assert (policy == "AIMD") == (config.settings.aimd is not None)
    assert ("fixed" if policy == "fixed" else "adaptive") == config.options["policy"]


async def test_aimd_follows_its_arguments(disk: SimulatedDisk) -> None:
    """With a window of 1 s and a step of 2, the limit grows from 4 by 2 per second, and the journal records it."""
    task = Scripted(lambda value, _: Return(value, 0.25))
    arguments: dict[str, Any] = {"dynamic_initial_target": 4, "dynamic_window_seconds": 1.0, "dynamic_increase_step": 2}
    await execute(task, range(200), 10, options={"files": disk}, journal="/runs/it", **arguments)

    moves = [event.after for event in events_of("/runs/it", files=disk) if isinstance(event, LimitChanged)]
    assert [4, 6, 8, 10] == moves


def test_sync_is_one_at_a_time_in_the_callers_thread() -> None:
    """A SyncExecutor makes one call at a time in the caller's thread, with the same results."""
    threads: set[threading.Thread] = set()
    in_flight = 0

    def double(value: int) -> int:
        nonlocal in_flight
        in_flight += 1
        threads.add(threading.current_thread())
        assert in_flight == 1
        in_flight -= 1
        if value == 3:
            raise Fatal("no")
        return 2 * value

    results = SyncExecutor(double, exit_on_error=False, fallback_return_value=-1).run(range(5))

    assert [0, 2, 4, -1, 8] == results[0]
    assert [COMPLETED, COMPLETED, COMPLETED, FAILED, COMPLETED] == statuses(results)
    assert {threading.current_thread()} == threads


def test_sync_retries_and_exits_too() -> None:
    """A SyncExecutor has the same retries, fatal exceptions and `exit_on_error`."""
    calls: list[int] = []

    def fragile(value: int) -> int:
        calls.append(value)
        if value == 1 and calls.count(1) < 2:
            raise ConnectionError("once")
        if value == 2:
            raise Fatal("no")
        return value

    results = SyncExecutor(fragile, options={"seed": 5}).run([0, 1])
    assert ([0, 1], [COMPLETED, COMPLETED_WITH_RETRIES]) == (results[0], statuses(results))
    results = SyncExecutor(fragile).run([0, 2, 5])
    assert ([0, None, None], [COMPLETED, FAILED, DID_NOT_RUN]) == (results[0], statuses(results))


def test_the_choice_between_the_two(caplog: pytest.LogCaptureFixture) -> None:
    """Sync if requested or, with a warning, outside the main thread; otherwise async, also inside a running loop."""

    def sync_double(value: int) -> int:
        return 2 * value

    def chosen(**arguments: Any) -> Any:
        return get_executor_on_sync_context(sync_double, _double_in_asyncio, **arguments)

    async def in_a_loop() -> Any:
        executor = chosen(concurrency=5)
        return executor, executor.run([1, 2])

    executors: list[Any] = []
    warnings: list[int] = []
    for run_sync in (True, False):
        thread = threading.Thread(target=lambda run_sync: executors.append(chosen(run_sync=run_sync)), args=[run_sync])
        thread.start()
        thread.join(TIMEOUT)
        warnings.append(sum(record.levelno == logging.WARNING for record in caplog.records))
    in_loop, results = asyncio.run(in_a_loop())

    kinds = [type(candidate) for candidate in (chosen(), chosen(run_sync=True), *executors, in_loop)]
    assert [AsyncExecutor, SyncExecutor, SyncExecutor, SyncExecutor, AsyncExecutor] == kinds
    assert [0, 1] == warnings
    assert [None, None, signal.SIGINT] == [candidate.termination_signal for candidate in (*executors, chosen(run_sync=True))]
    assert ([2, 4], 5) == (results[0], in_loop.concurrency)
