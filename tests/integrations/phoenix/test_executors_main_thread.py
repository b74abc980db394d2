"""Where an executor may be called, and in which loop and thread its function runs; with real threads and loops."""

import asyncio
import contextvars
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import pytest
import trio

from evaljournal.integrations.phoenix import AsyncExecutor, SyncExecutor
from evaljournal.runner.testing import Return, Scripted
from tests.integrations.phoenix.test_executors import execute
from tests.runner.test_function import CALLERS

USER = contextvars.ContextVar("user", default="unknown")


async def in_asyncio(value: int) -> tuple[int, str, int]:
    await asyncio.sleep(0)
    return value, USER.get(), id(asyncio.get_running_loop())


async def in_trio(value: int) -> int:
    await trio.lowlevel.checkpoint()
    return value


def plain(value: int) -> tuple[int, str]:
    return value, USER.get()


@pytest.mark.parametrize("caller", CALLERS)
def test_run_can_be_called_from_everywhere(caller: Callable[[Callable[[], Any]], Any]) -> None:
    """Functions for asyncio and trio and plain ones work in a script, a thread and a loop; context variables are passed on."""

    def call() -> Any:
        USER.set("me")
        assert [1, 2] == AsyncExecutor(in_trio).run([1, 2])[0]
        return [executor.run([1, 2])[0] for executor in (AsyncExecutor(in_asyncio), AsyncExecutor(plain), SyncExecutor(plain))]

    assert [[(1, "me"), (2, "me")]] * 3 == [[output[:2] for output in outputs] for outputs in caller(call)]


def test_awaited_in_asyncio_the_function_runs_in_the_callers_loop() -> None:
    """The function can use clients and locks of the caller's loop."""

    async def main() -> tuple[bool, list[int]]:
        gate = asyncio.Event()

        async def opens(value: int) -> int:
            if value == 2:
                gate.set()
            await gate.wait()
            return value

        outputs, _ = await AsyncExecutor(in_asyncio).execute([1, 2])
        waited, _ = await AsyncExecutor(opens, 2, enable_dynamic_concurrency=False).execute([1, 2])
        return {id(asyncio.get_running_loop())} == {output[2] for output in outputs}, waited

    assert (True, [1, 2]) == asyncio.run(main())


def test_several_concurrent_executors_in_one_loop() -> None:
    """Executors can be gathered; each has its own results and threads."""

    async def to_thread(value: int) -> int:
        return await asyncio.to_thread(lambda: value + 1)

    async def main() -> list[list[int]]:
        executions = [AsyncExecutor(to_thread).execute([n, n]) for n in range(12)]
        return [outputs for outputs, _ in await asyncio.gather(*executions)]

    assert [[n + 1, n + 1] for n in range(12)] == asyncio.run(main())


def test_awaited_in_trio() -> None:
    """In trio, functions for trio run in the same loop and thread, those for asyncio in their own."""

    async def main() -> list[Any]:
        threads: list[threading.Thread] = []

        async def look(value: int) -> int:
            await trio.lowlevel.checkpoint()
            threads.append(threading.current_thread())
            return value

        in_trio_loop, _ = await AsyncExecutor(look).execute([1])
        in_asyncio_loop, _ = await AsyncExecutor(in_asyncio).execute([1])
        return [in_trio_loop, in_asyncio_loop[0][0], threads == [threading.current_thread()]]

    assert [[1], 1, True] == trio.run(main)


def test_a_keyboard_interrupt_reaches_the_caller() -> None:
    """A KeyboardInterrupt in a plain call without a signal handler ends the run and reaches the caller."""

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SyncExecutor(interrupted, termination_signal=None).run([1, 2])


class Bar:
    """Stand-in for tqdm."""

    bars: ClassVar[list["Bar"]] = []

    def __init__(self, **arguments: Any) -> None:
        self.arguments, self.n, self.closed = arguments, arguments["initial"], False
        Bar.bars.append(self)

    def update(self, count: int) -> None:
        self.n += count

    def close(self) -> None:
        self.closed = True


async def test_a_progress_bar_needs_a_format(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """With a format, tqdm shows progress on standard error; without one, nothing is shown."""
    module: Any = ModuleType("tqdm.auto")
    module.tqdm = Bar
    monkeypatch.setitem(sys.modules, "tqdm", ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", module)
    Bar.bars.clear()
    task = Scripted(lambda value, _: Return(value, 1))
    await execute(task, range(5))
    assert [] == Bar.bars
    await execute(task, range(5), tqdm_bar_format="{bar} {n_fmt}")

    [bar] = Bar.bars
    assert ("{bar} {n_fmt}", 5, sys.stderr) == (bar.arguments["bar_format"], bar.arguments["total"], bar.arguments["file"])
    assert (5, True) == (bar.n, bar.closed)
    assert ("", "") == capfd.readouterr()


async def test_tqdm_itself_shows_progress(capfd: pytest.CaptureFixture[str]) -> None:
    """The bar of the extra `tqdm` counts to the end on standard error."""
    pytest.importorskip("tqdm")
    await execute(Scripted(lambda value, _: Return(value, 1)), range(5), tqdm_bar_format="{n_fmt} of {total_fmt} calls")

    captured = capfd.readouterr()
    assert ("", "5 of 5 calls") == (captured.out, captured.err.split("\r")[-1].strip())


async def test_a_progress_line_without_tqdm(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Without tqdm a plain line is shown on standard error."""
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    await execute(Scripted(lambda value, _: Return(value, 1)), range(5), tqdm_bar_format="{bar}")

    captured = capfd.readouterr()
    assert "" == captured.out
    assert "5 of 5" in captured.err
