"""Where the cases are played: whole runs on a virtual clock and a disk in memory, stopped or killed at a moment of our choice.

Everything goes through a `Session`, which is behind every door that users have. Nothing here asserts anything.
"""

import copy
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import trio

from runner import Case, Evaluation, evaluation
from runner.engine.live_run import LiveRun
from runner.engine.session import Outcome, Session
from runner.signals import STOP_SIGNALS, handle_signals
from runner.testing import events_of, repeatable
from tests.journal.disk import SimulatedDisk

PATH = Path("/runs/it/0001")
Made = Evaluation[Any, Any, Any]
E = TypeVar("E")


def made(task: Callable[[Any], Any], cases: Any, **options: Any) -> Made:
    """Make an evaluation for trio."""
    defined: Made = evaluation(cases=cases, **{"loop": "trio", **options})(task)
    return defined


def named(count: int) -> list[Case[str, str]]:
    """Make so many cases, each with its name for a question."""
    return [Case(name=f"case-{number}", input=f"case-{number}", expected="yes") for number in range(count)]


async def go(it: Made, disk: SimulatedDisk, *, signals: bool = False, **options: Any) -> Outcome:
    """Run it in one order, on a disk in memory; if it hears `signals`, they stop it, as they do in `runner.run`."""
    session = Session(it, PATH, **{**repeatable(), "files": disk, **options})
    with handle_signals(lambda *_: session.interrupt(), *(STOP_SIGNALS if signals else ())):
        with trio.fail_after(1_000_000):  # Virtual seconds: what hangs is told, not waited for.
            return await session.run()


def stopping(after: float, *, times: int = 1, number: signal.Signals = signal.SIGINT) -> dict[str, Any]:
    """Give the options under which the process gets a signal after so many seconds, or several, half a second apart."""

    async def press(_: LiveRun) -> None:
        await trio.sleep(after)
        for _time in range(times):
            signal.raise_signal(number)
            await trio.sleep(0.5)

    return {"signals": True, "observer": press}


async def killed(it: Made, disk: SimulatedDisk, *, after: float, **options: Any) -> SimulatedDisk:
    """Run it on this disk; give what the next process finds there if this one is killed after so many seconds."""
    left: list[SimulatedDisk] = []
    with trio.CancelScope() as scope:

        async def kill(_: LiveRun) -> None:
            await trio.sleep(after)
            left.append(copy.deepcopy(disk))
            scope.cancel()

        await go(it, disk, observer=kill, **options)
    return left[0].killed()


def events(disk: SimulatedDisk, kind: type[E]) -> list[E]:
    """List the events of one kind."""
    return [event for event in events_of(PATH, files=disk) if isinstance(event, kind)]
