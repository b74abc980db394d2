"""Whole runs on a virtual clock and a disk in memory, in one order; the power may be cut at any record.

Nothing here asserts anything.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
import trio.lowlevel
import trio.testing

from journal.errors import WriteFailed
from runner import Case, Evaluation, Fatal, RateLimited, evaluation
from runner.api import arun
from runner.engine.session import Outcome
from runner.testing import Answer, Fail, Hang, Scripted, Step, events_of, repeatable
from tests.journal.disk import PowerCut, SimulatedDisk

PATH = Path("/runs/it/0001")
Made = Evaluation[Any, Any, Any]


def made(task: Callable[[Any], Any], cases: Any, **options: Any) -> Made:
    """Make an evaluation for trio."""
    defined: Made = evaluation(cases=cases, **{"loop": "trio", "timeout": 30.0, **options})(task)
    return defined


def named(count: int, first: int = 0) -> list[Case[str, str]]:
    """Make so many cases, each with its name for a question."""
    numbers = range(first, first + count)
    return [Case(name=f"case-{number}", input=f"case-{number}", expected="yes") for number in numbers]


async def go(it: Made, disk: SimulatedDisk, **options: Any) -> Outcome:
    """Run it in one order, on a disk in memory."""
    with trio.fail_after(100_000):  # Virtual seconds: what hangs is told, not waited for.
        return await arun(it, PATH, **{**repeatable(), "files": disk, **options})


def count(disk: SimulatedDisk, kind: type) -> int:
    """Count the events of one kind."""
    return sum(isinstance(event, kind) for event in events_of(PATH, files=disk))


def with_power_cut(it: Made, disk: SimulatedDisk, seq: int, **options: Any) -> Outcome | None:
    """Run it until a record of this number has been appended, and pull the plug there."""
    from journal import writer

    append = writer.Journal.append

    def cutting(self: writer.Journal, event: Any, when: float | None = None) -> Any:
        record = append(self, event, when)
        if record.seq >= seq:
            disk.before = cut
            raise PowerCut
        return record

    def cut(_: str) -> None:
        raise PowerCut

    async def main() -> Outcome:
        return await arun(it, PATH, **{**repeatable(), "files": disk, **options})

    writer.Journal.append = cutting  # type: ignore[method-assign]
    try:
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    except PowerCut:
        return None
    except BaseExceptionGroup as group:
        if group.split((PowerCut, WriteFailed))[1] is not None:
            raise
        return None
    finally:
        writer.Journal.append = append  # type: ignore[method-assign]
        disk.before = lambda _: None


def flaky(value: str, times: int) -> Step:
    """Fail now and then, as decided by the name alone."""
    luck = random.Random(f"{value}").random()
    if luck < 0.2 and times == 1:
        return Fail(ConnectionError("no"), 0.5)
    if luck < 0.3 and times == 1:
        return Fail(RateLimited(2.0), 0.1)
    if luck < 0.35 and times == 1:
        return Hang()
    if luck > 0.95:
        return Fail(Fatal("never"), 0.2)
    return Answer(f"answer to {value}", 0.1 + luck)


def flaky_evaluation(count: int, first: int = 0) -> tuple[Made, Scripted]:
    """Make an evaluation of so many cases whose task is such, with a scorer that waits."""
    task = Scripted(flaky)
    it = made(task, named(count, first), slots=3, timeout=5)

    @it.score
    async def length(output: str, case: Any) -> float:
        await trio.lowlevel.checkpoint()
        return float(len(output))

    return it, task
