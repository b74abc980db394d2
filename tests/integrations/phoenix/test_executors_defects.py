"""Defects of Phoenix's executor that this one must not have.

Those of the engine are in test_phoenix.py; these concern the executor interface.
"""

import asyncio
import gc
import signal
import threading
import weakref
from typing import Any

import pytest
import trio

from evaljournal.integrations.phoenix import AsyncExecutor, ExecutionStatus, Incomplete, SyncExecutor
from evaljournal.integrations.phoenix.execution import Results
from evaljournal.runner.testing import Hang, Return, Scripted
from tests.integrations.phoenix.test_executors import execute
from tests.processes import wait_until

DONE = (ExecutionStatus.COMPLETED, ExecutionStatus.COMPLETED_WITH_RETRIES)


def done(results: Results) -> int:
    return sum(details.status in DONE for details in results[1])


async def test_6_inputs_that_fail_lose_nothing() -> None:
    """If reading the inputs fails, the exception has the results so far."""

    def inputs() -> Any:
        yield from range(200)
        raise OSError("the file is gone")

    with pytest.raises(Incomplete, match="the file is gone") as raised:
        await execute(Scripted(lambda value, _: Return(value, 1)), inputs())

    outputs, details = raised.value.outputs, raised.value.details
    finished = done((outputs, details))
    assert finished > 100
    assert [*range(finished), *[None] * (200 - finished)] == outputs
    assert isinstance(raised.value.__cause__, OSError)


async def test_7_a_signal_is_handled_immediately_and_grace_is_bounded() -> None:
    """A signal stops the run within its grace period; calls that could finish have, and the others are marked."""
    before = signal.getsignal(signal.SIGINT)
    task = Scripted(lambda value, _: Return(value, 12) if value == 0 else Hang())
    async with trio.open_nursery() as nursery:

        async def interrupt() -> None:
            await trio.sleep(10)
            signal.raise_signal(signal.SIGINT)

        nursery.start_soon(interrupt)
        start = trio.current_time()
        outputs, details = await execute(task, range(100))
    assert 15.0 == pytest.approx(trio.current_time() - start, abs=0.1)
    assert before is signal.getsignal(signal.SIGINT)
    assert ([0] + [None] * 99, ExecutionStatus.COMPLETED) == (outputs, details[0].status)
    assert [(True, 1)] * 2 + [(False, 0)] * 97 == [(detail.interrupted, detail.attempts) for detail in details[1:]]
    assert 15.0 == pytest.approx(details[1].execution_seconds, abs=2)


async def test_7_another_signal_can_be_chosen() -> None:
    """`termination_signal` may be another one; None changes no handler."""
    handlers = []

    async def look(_: Any) -> None:
        await trio.lowlevel.checkpoint()
        handlers.append([signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)])

    before = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    await execute(look, [1], termination_signal=signal.SIGTERM)
    await execute(look, [1], termination_signal=None)

    assert [True, False] == [expected == installed for expected, installed in zip(before, handlers[0], strict=True)]
    assert before == handlers[1] == [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]


def test_7_a_sync_call_may_finish() -> None:
    """After Ctrl-C a call in the main thread may finish; nothing else starts."""

    def interrupt(value: int) -> int:
        if value == 2:
            signal.raise_signal(signal.SIGINT)
        return value

    before = signal.getsignal(signal.SIGINT)
    outputs, details = SyncExecutor(interrupt).run(range(100))

    assert [0, 1, 2, None] == outputs[:4]
    assert {ExecutionStatus.DID_NOT_RUN} == {detail.status for detail in details[3:]}
    assert before is signal.getsignal(signal.SIGINT)


def test_7_a_second_signal_interrupts_a_sync_call() -> None:
    """A second Ctrl-C interrupts the call in flight."""
    reached = []

    def interrupt(value: int) -> int:
        signal.raise_signal(signal.SIGINT)
        reached.append(value)
        signal.raise_signal(signal.SIGINT)
        reached.append(-1)
        return value

    outputs, details = SyncExecutor(interrupt).run(range(3))

    assert ([0], [None] * 3) == (reached, outputs)
    assert [(True, 1), (False, 0), (False, 0)] == [(detail.interrupted, detail.attempts) for detail in details]


def test_7_the_grace_of_a_sync_call_is_bounded() -> None:
    """A blocking call in the main thread is interrupted at the end of the grace period."""

    def interrupt(_: int) -> None:
        signal.raise_signal(signal.SIGINT)
        threading.Event().wait()

    outputs, details = SyncExecutor(interrupt, options={"grace": 0.05}).run(range(3))

    assert ([None] * 3, True) == (outputs, details[0].interrupted)


def test_8_cancelling_leaves_nothing_running() -> None:
    """Cancelling `execute` in asyncio leaves no task and no thread."""
    running = 0

    async def main() -> int:
        started = asyncio.Event()

        async def hangs(_: int) -> None:
            nonlocal running
            running += 1
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                running -= 1

        task = asyncio.ensure_future(AsyncExecutor(hangs, 2).execute(range(10)))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return len(asyncio.all_tasks())

    assert (1, 0) == (asyncio.run(main()), running)
    assert wait_until(lambda: "evaljournal" not in {thread.name for thread in threading.enumerate()})


class Prompt:
    """A long text with weak references."""

    def __init__(self, text: str) -> None:
        self.text = text


async def test_9_exceptions_keep_no_frames() -> None:
    """Exceptions are kept without their frames, so prompts are freed."""
    watched: list[weakref.ref[Prompt]] = []

    async def fails(number: int) -> None:
        prompt = Prompt(f"{number} " * 1000)
        watched.append(weakref.ref(prompt))
        await trio.lowlevel.checkpoint()
        try:
            raise KeyError(prompt.text[:3])
        except KeyError as exc:
            raise ValueError("no") from exc

    results = await execute(fails, range(20), max_retries=2, exit_on_error=False)
    gc.collect()

    assert 60 == sum(len(details.exceptions) for details in results[1]) == len(watched)
    assert [] == [reference for reference in watched if reference() is not None]
    exception = results[1][0].exceptions[0]
    assert (None, None) == (exception.__traceback__, exception.__cause__ and exception.__cause__.__traceback__)
