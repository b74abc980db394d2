"""The hint that calls of an async task block their event loop."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from evaljournal.journal.events import Noted
from evaljournal.replay.state.attempt_warnings import BLOCKING_CALLS
from tests import runs
from tests.journal.disk import SimulatedDisk
from tests.runner_cli.commands import run_process
from tests.runs import define, define_real, numbered_cases, run_real, run_virtual


def hints(run: SimulatedDisk | Path) -> list[Any]:
    return [event.value for event in runs.events(run, Noted) if event.name == BLOCKING_CALLS]


async def block(seconds: float) -> None:
    """Let time pass; nothing else runs in the loop meanwhile."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    clock.jump(seconds)


async def wait_and_block(seconds: float) -> None:
    await trio.lowlevel.checkpoint()
    await block(seconds)


async def work(_: float) -> None:
    """Take no time."""


@pytest.mark.parametrize(
    ("wait", "seconds", "options", "expected"),
    [
        (block, 0.5, {"slots": 4}, [{"calls": 3}]),
        (block, 0.5, {"slots": 1}, []),
        (block, 0.05, {"slots": 4}, []),
        (trio.sleep, 0.5, {"slots": 4}, []),
        (trio.sleep, 0.5, {"slots": 1}, []),
        (wait_and_block, 0.5, {"slots": 4}, []),
        (work, 0.0, {"slots": 4}, []),
    ],
)
async def test_calls_that_block_the_loop_are_noted_once(
    wait: Any, seconds: float, options: dict[str, Any], expected: list[Any], disk: SimulatedDisk
) -> None:
    """Three long calls in a row that never wait are noted once, if several could have been in flight."""

    async def task(value: str) -> str:
        await wait(seconds)
        return value

    await run_virtual(define(task, numbered_cases(12)), disk, policy="fixed", **options)

    assert expected == hints(disk)


async def test_three_calls_in_a_row_are_needed(disk: SimulatedDisk) -> None:
    """Single long calls between short ones are not noted: the machine may have been busy."""

    async def task(value: str) -> str:
        await block(0.5 if int(value.removeprefix("case-")) % 3 else 0.0)
        return value

    await run_virtual(define(task, numbered_cases(12)), disk, policy="fixed", slots=4)

    assert [] == hints(disk)


@pytest.mark.parametrize(("is_blocking", "expected"), [(True, [{"calls": 3}]), (False, [])])
def test_calls_that_block_an_asyncio_loop_are_noted(tmp_path: Path, expected: list[Any], *, is_blocking: bool) -> None:
    """`time.sleep` in an async function is noted, `asyncio.sleep` is not."""

    async def task(value: str) -> str:
        if is_blocking:
            time.sleep(0.12)  # noqa: ASYNC251  # a synchronous client
        else:
            await asyncio.sleep(0.12)
        return value

    run_real(define_real(task, numbered_cases(6)), tmp_path / "run", slots=3)

    assert expected == hints(tmp_path / "run")


BLOCKING = """
import time
from evaljournal import Case, evaluation

@evaluation(cases=[Case(name=f"t{number}", input=number) for number in range(8)], slots=4, policy="fixed")
async def blocking(number: int) -> int:
    time.sleep(0.15)
    return number
"""


def test_the_hint_is_printed_once() -> None:
    """It is one of the progress lines, and part of the summary."""
    Path("blocking.py").write_text(BLOCKING)
    code, out, err = run_process("run", "blocking.py", "--plain")

    assert 0 == code, err
    assert [1, 1] == [text.count("3 calls in a row blocked the event loop;") for text in (out, err)]
