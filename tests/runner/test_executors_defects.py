"""What is proven to go wrong with Phoenix's executor, and does not go wrong here; numbered as it was found."""

import asyncio
import gc
import random
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import trio

from runner import RateLimited, UsageError
from runner.executors import AsyncExecutor, ConcurrencyController, ExecutionStatus, Incomplete, SyncExecutor
from runner.executors.execution import Results
from runner.testing import Answer, Fail, Hang, Scripted, SimulatedEndpoint, Step, repeatable

DONE = (ExecutionStatus.COMPLETED, ExecutionStatus.COMPLETED_WITH_RETRIES)


def made(function: Any, concurrency: int = 3, **given: Any) -> AsyncExecutor:
    """Make an executor for the virtual clock."""
    options = {**repeatable(), **given.pop("options", {})}
    return AsyncExecutor(function, concurrency, **given, options=options)


async def go(function: Any, inputs: Any, concurrency: int = 3, **given: Any) -> Results:
    with trio.fail_after(1_000_000):  # Virtual seconds: what hangs is told, not waited for.
        return await made(function, concurrency, **given).execute(inputs)


def done(results: Results) -> int:
    return sum(details.status in DONE for details in results[1])


async def test_1_a_straggler_does_not_hang_the_run() -> None:
    """One that times out lowers the limit at most; the others, and it, are done."""

    def step(value: int, times: int) -> Step:
        return Hang() if value == 19 and times == 1 else Answer(value, 1)

    for given in ({}, {"dynamic_initial_target": 3}, {"enable_dynamic_concurrency": False}):
        assert 20 == done(await go(Scripted(step), range(20), timeout=60, **given))


async def test_1_two_refusals_at_the_tail_do_not_hang_the_run() -> None:
    """Two 429s on the last items collapse a limit to 1, and the run goes on."""

    def step(value: int, times: int) -> Step:
        return Fail(RateLimited(), 0.1) if value >= 18 and times == 1 else Answer(value, 1)

    for given in ({}, {"dynamic_initial_target": 3}):
        assert 20 == done(await go(Scripted(step), range(20), **given))


async def test_2_nothing_polls() -> None:
    """One item costs its own time and no more; a thousand of 0.1 s, ten at a time, take 10 s."""
    before = trio.current_time()
    await go(Scripted(lambda *_: Answer(1)), ["a"])
    assert 0.0 == trio.current_time() - before
    await go(Scripted(lambda *_: Answer(1, 0.1)), range(1000), concurrency=10)

    assert 10.0 <= trio.current_time() - before < 10.5


async def test_3_an_outage_is_outlived() -> None:
    """A second of outage spends a few attempts with growing waits between, and all hundred are done."""
    endpoint = SimulatedEndpoint(lambda value: value, latency=0.1)
    endpoint.down_until = trio.current_time() + 1
    results = await go(endpoint, range(100))

    assert (100, list(range(100))) == (done(results), results[0])
    assert endpoint.refused < 20


async def test_4_a_percent_of_refusals_does_not_bring_it_to_a_halt() -> None:
    """With 1 % of 429s at concurrency 50 and a fixed number of calls, nine tenths of what is possible is done."""
    chance = random.Random(1)

    async def one_in_a_hundred(value: int) -> int:
        await trio.sleep(0.05)
        if chance.random() < 0.01:
            raise RateLimited
        return value

    before = trio.current_time()
    results = await go(one_in_a_hundred, range(3000), concurrency=50, enable_dynamic_concurrency=False)

    assert 3000 == done(results)
    assert 3000 / (trio.current_time() - before) > 0.75 * 990


def test_4_the_target_does_not_wind_up() -> None:
    """With at most 10, a thousand calm windows leave the target at 10."""
    now = 0.0
    controller = ConcurrencyController(10, 3, clock=lambda: now)
    for _ in range(1000):
        controller.record_success(1.0)
        now += 5.0

    assert 10 == controller.target_concurrency


async def test_4_connection_errors_reduce_the_load() -> None:
    """While an endpoint is down, it is asked now and then, not by everyone: 60 s cost some thirty calls, not thousands."""
    endpoint = SimulatedEndpoint(lambda value: value, latency=0.1)
    endpoint.down_until = trio.current_time() + 60
    results = await go(endpoint, range(100), concurrency=50)

    assert 100 == done(results)
    assert endpoint.refused < 50


async def test_4_it_recovers_in_seconds() -> None:
    """After an outage, a hundred slots are in use again within 30 s."""
    endpoint = SimulatedEndpoint(lambda value: value, latency=1.0)
    in_use: list[tuple[float, int]] = []

    async def ask(value: int) -> int:
        answer: int = await endpoint(value)
        in_use.append((trio.current_time(), endpoint.at_once + 1))
        return answer

    began = trio.current_time()
    async with trio.open_nursery() as nursery:

        async def outage() -> None:
            await trio.sleep(30)
            endpoint.down_until = trio.current_time() + 5

        nursery.start_soon(outage)
        assert 4500 == done(await go(ask, range(4500), concurrency=100))
    assert max(at_once for t, at_once in in_use if t < began + 30) > 90
    assert max(at_once for t, at_once in in_use if began + 35 < t < began + 65) > 90


KILLED = """
import os, pathlib, signal, sys
from runner.executors import AsyncExecutor

calls = []

async def answer(value):
    calls.append(value)
    if len(calls) == int(sys.argv[2]):
        while pathlib.Path(sys.argv[1], "journal-000001.jsonl").read_text().count("trial_completed") < len(calls) - 1:
            pass  # The journal is a millisecond behind.
        os.kill(os.getpid(), int(sys.argv[3]))
        if int(sys.argv[3]) != signal.SIGKILL:
            os.abort()  # Nobody heeds this signal here: not reached.
    return value * 2

outputs, details = AsyncExecutor(answer, 1, journal=sys.argv[1]).run(range(40))
print(len(calls), outputs == [2 * n for n in range(40)], {each.status.value for each in details})
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_5_what_was_done_survives_a_kill(tmp_path: Path, number: int) -> None:
    """A process killed at its thirtieth call leaves what came before; to run it again makes the rest of the calls."""
    script = tmp_path / "script.py"
    script.write_text(KILLED)
    command = [sys.executable, str(script), str(tmp_path / "run")]
    killed = subprocess.run([*command, "30", str(int(number))], capture_output=True, check=False, timeout=60)
    assert -number == killed.returncode
    again = subprocess.run([*command, "0", "0"], capture_output=True, text=True, check=True, timeout=60)

    calls, right, statuses = again.stdout.split(" ", 2)
    assert ("11", "True", "{'COMPLETED'}\n") == (calls, right, statuses)


def test_6_a_leaked_cancellation_is_one_items_failure() -> None:
    """An asyncio.CancelledError out of nowhere fails its attempt, and loses nothing."""
    calls: list[int] = []

    async def leaks(value: int) -> int:
        await asyncio.sleep(0)
        calls.append(value)
        if value == 3 and calls.count(3) == 1:
            raise asyncio.CancelledError
        return value

    results = AsyncExecutor(leaks).run(range(6))

    assert ([0, 1, 2, 3, 4, 5], 6) == (results[0], done(results))


async def test_6_inputs_that_fail_lose_nothing() -> None:
    """If the inputs cannot be read to their end, what was done until then comes with the exception."""

    def inputs() -> Any:
        yield from range(200)
        raise OSError("the file is gone")

    with pytest.raises(Incomplete, match="the file is gone") as raised:
        await go(Scripted(lambda value, _: Answer(value, 1)), inputs())

    outputs, details = raised.value.outputs, raised.value.details
    finished = done((outputs, details))
    assert finished > 100
    assert [*range(finished), *[None] * (200 - finished)] == outputs
    assert isinstance(raised.value.__cause__, OSError)


async def test_7_a_signal_is_noticed_at_once_and_grace_is_bounded() -> None:
    """While everyone waits, a signal stops the run within its grace; who could land has, who could not says so."""
    before = signal.getsignal(signal.SIGINT)
    task = Scripted(lambda value, _: Answer(value, 12) if value == 0 else Hang())
    async with trio.open_nursery() as nursery:

        async def press() -> None:
            await trio.sleep(10)
            signal.raise_signal(signal.SIGINT)

        nursery.start_soon(press)
        began = trio.current_time()
        outputs, details = await go(task, range(100))
    assert 15.0 == pytest.approx(trio.current_time() - began, abs=0.1)
    assert before is signal.getsignal(signal.SIGINT)
    assert ([0] + [None] * 99, ExecutionStatus.COMPLETED) == (outputs, details[0].status)
    assert [(True, 1)] * 2 + [(False, 0)] * 97 == [(each.interrupted, each.attempts) for each in details[1:]]
    assert 15.0 == pytest.approx(details[1].execution_seconds, abs=2)


async def test_7_a_second_signal_ends_it_at_once() -> None:
    """Whoever asks twice does not wait for the grace."""
    async with trio.open_nursery() as nursery:

        async def press() -> None:
            await trio.sleep(10)
            signal.raise_signal(signal.SIGINT)
            await trio.sleep(1)
            signal.raise_signal(signal.SIGINT)

        nursery.start_soon(press)
        began = trio.current_time()
        results = await go(Scripted(lambda *_: Hang()), range(100))

    assert 11.0 == pytest.approx(trio.current_time() - began, abs=0.1)
    assert 3 == sum(details.interrupted for details in results[1])


async def test_7_another_signal_can_be_chosen() -> None:
    """`termination_signal` may be another; None leaves all handlers alone."""
    handlers = []

    async def look(_: Any) -> None:
        await trio.lowlevel.checkpoint()
        handlers.append([signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)])

    before = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    await go(look, [1], termination_signal=signal.SIGTERM)
    await go(look, [1], termination_signal=None)

    assert [True, False] == [mine == theirs for mine, theirs in zip(before, handlers[0], strict=True)]
    assert before == handlers[1] == [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]


def test_7_off_the_main_thread_no_handler_is_touched() -> None:
    """In another thread, where signals cannot be heeded, the run goes on without."""
    found: list[Any] = []

    async def look(_: Any) -> Any:
        await asyncio.sleep(0)
        return signal.getsignal(signal.SIGINT)

    thread = threading.Thread(target=lambda: found.append(AsyncExecutor(look).run([1])[0]))
    thread.start()
    thread.join()

    assert [[signal.getsignal(signal.SIGINT)]] == found


async def test_7_runs_that_overlap_restore_the_handler_together() -> None:
    """Of two runs at once, the last to end puts back what was there; a signal in between stops those that are left."""
    before = signal.getsignal(signal.SIGINT)
    ended: list[float] = []

    async def one(seconds: float) -> None:
        await go(Scripted(lambda *_: Answer(1, seconds)), [1], options={"grace": 0.0})
        ended.append(trio.current_time() - began)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one, 5)
        nursery.start_soon(one, 100)
        await trio.sleep(10)
        signal.raise_signal(signal.SIGINT)

    assert [5.0, 10.0] == [pytest.approx(each, abs=0.1) for each in ended]
    assert before is signal.getsignal(signal.SIGINT)


def test_7_a_sync_call_is_let_land_and_the_rest_is_left() -> None:
    """Ctrl-C during a plain call in the main thread: the call is let end, nothing else is begun."""

    def press(value: int) -> int:
        if value == 2:
            signal.raise_signal(signal.SIGINT)
        return value

    before = signal.getsignal(signal.SIGINT)
    outputs, details = SyncExecutor(press).run(range(100))

    assert [0, 1, 2, None] == outputs[:4]
    assert {ExecutionStatus.DID_NOT_RUN} == {each.status for each in details[3:]}
    assert before is signal.getsignal(signal.SIGINT)


def test_7_a_sync_call_is_cut_off_by_a_second_signal() -> None:
    """Ctrl-C twice ends the very call that is being made, and it says so."""
    reached = []

    def press(value: int) -> int:
        signal.raise_signal(signal.SIGINT)
        reached.append(value)
        signal.raise_signal(signal.SIGINT)
        reached.append(-1)
        return value

    outputs, details = SyncExecutor(press).run(range(3))

    assert ([0], [None] * 3) == (reached, outputs)
    assert [(True, 1), (False, 0), (False, 0)] == [(each.interrupted, each.attempts) for each in details]


def test_7_the_grace_of_a_sync_call_is_bounded() -> None:
    """A plain call in the main thread that blocks for ever is cut off when the grace is over."""

    def press(_: int) -> None:
        signal.raise_signal(signal.SIGINT)
        threading.Event().wait()

    outputs, details = SyncExecutor(press, options={"grace": 0.05}).run(range(3))

    assert ([None] * 3, True) == (outputs, details[0].interrupted)


def test_8_cancelling_leaves_nothing_running() -> None:
    """Whoever cancels `execute` in asyncio has no task of it left, and no thread."""
    running = 0

    async def main() -> int:
        begun = asyncio.Event()

        async def hangs(_: int) -> None:
            nonlocal running
            running += 1
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                running -= 1

        task = asyncio.ensure_future(AsyncExecutor(hangs, 2).execute(range(10)))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return len(asyncio.all_tasks())

    assert (1, 0) == (asyncio.run(main()), running)
    assert [] == [thread.name for thread in threading.enumerate() if thread.name.startswith("evaljournal_")]


async def test_8_cancelling_in_trio_leaves_nothing_running() -> None:
    """The same for trio."""
    task = Scripted(lambda *_: Hang())
    with trio.move_on_after(5):
        await go(task, range(10))

    assert (3, 0) == (task.calls.total(), task.in_flight)


class Prompt:
    """A long text that can be watched."""

    def __init__(self, text: str) -> None:
        self.text = text


async def test_9_exceptions_do_not_pin_frames() -> None:
    """What failed is kept without its frames: the prompts, and all that the function held, are let go."""
    watched: list[weakref.ref[Prompt]] = []

    async def fails(number: int) -> None:
        prompt = Prompt(f"{number} " * 1000)
        watched.append(weakref.ref(prompt))
        await trio.lowlevel.checkpoint()
        try:
            raise KeyError(prompt.text[:3])
        except KeyError as exc:
            raise ValueError("no") from exc

    results = await go(fails, range(20), max_retries=2, exit_on_error=False)
    gc.collect()

    assert 60 == sum(len(details.exceptions) for details in results[1]) == len(watched)
    assert [] == [each for each in watched if each() is not None]
    chain = results[1][0].exceptions[0]
    assert (None, None) == (chain.__traceback__, chain.__cause__ and chain.__cause__.__traceback__)


async def test_9_a_mistake_is_made_once_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """A TypeError is not tried again, and neither standard output nor standard error hears of it."""
    task = Scripted({"a": [Fail(TypeError("takes no argument"))]})
    results = await go(task, ["a"])

    assert (1, ["takes no argument"]) == (task.calls["a"], [str(exc) for exc in results[1][0].exceptions])
    assert ("", "") == capfd.readouterr()


async def test_10_a_step_of_the_clock_bends_no_duration() -> None:
    """Durations are monotonic: with a wall clock that is set back by an hour at every look, they are what they were."""
    wall = iter(range(2_000_000_000, 0, -3600))
    results = await go(Scripted(lambda *_: Answer(1, 2.0)), range(3), options={"wall": lambda: float(next(wall))})

    assert [2.0] * 3 == [pytest.approx(details.execution_seconds, abs=1e-5) for details in results[1]]


@pytest.mark.parametrize("concurrency", [0, -1])
def test_10_no_concurrency_is_refused(concurrency: int) -> None:
    """`concurrency=0` is an error at once, not a hang."""
    with pytest.raises(UsageError, match=f"concurrency={concurrency}"):
        AsyncExecutor(print, concurrency)


async def test_10_no_timeout_is_none() -> None:
    """With `timeout=None` a call may take a day."""
    results = await go(Scripted(lambda *_: Answer(1, 86_000.0)), ["a"])

    assert 86_000.0 == pytest.approx(results[1][0].execution_seconds)


async def test_10_nothing_leaks_from_run_to_run() -> None:
    """An executor that has failed, or was stopped, runs the next inputs as if it were new."""
    executor = made(Scripted(lambda value, _: Fail(ValueError("no")) if value == 1 else Answer(value)), max_retries=0)
    first = await executor.execute([0, 1, 2, 3])
    second = await executor.execute([2, 3])

    assert ExecutionStatus.FAILED == first[1][1].status
    assert ([2, 3], [1, 1]) == (second[0], [details.attempts for details in second[1]])
    assert [ExecutionStatus.COMPLETED] * 2 == [details.status for details in second[1]]
