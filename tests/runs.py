"""Shared helpers: runs on a virtual clock and a disk in memory that are stopped, are killed or lose power at a chosen moment.

Nothing here asserts anything.
"""

import copy
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import trio
import trio.lowlevel
import trio.testing

from evaljournal import Case, Evaluation, Fatal, Outcome, RateLimited, Retry, evaluation, run
from evaljournal.journal import read
from evaljournal.journal.errors import WriteFailed
from evaljournal.journal.events import AttemptSucceeded
from evaljournal.journal.writers import writer
from evaljournal.replay.auditing.auditor import audit
from evaljournal.replay.auditing.findings import Audit
from evaljournal.runner.retries.rules import retry_rules
from evaljournal.runner.sessions.options import LiveRun
from evaljournal.runner.sessions.session import Session
from evaljournal.runner.signals import STOP_SIGNALS, handle_signals
from evaljournal.runner.testing import Action, Fail, Hang, Return, Scripted, deterministic_options, events_of
from tests.journal.disk import PowerFailure, SimulatedDisk, power_failure

PATH = Path("/runs/it/0001")
AnyEvaluation = Evaluation[Any, Any, Any]
E = TypeVar("E")


def define(task: Callable[..., Any], cases: Any, **options: Any) -> AnyEvaluation:
    """Return an evaluation for trio."""
    evaluation_: AnyEvaluation = evaluation(cases=cases, **{"loop": "trio", "timeout": 30.0, **options})(task)
    return evaluation_


def numbered_cases(count: int, first: int = 0) -> list[Case[str, str]]:
    """Return cases `case-0`, `case-1` and so on, with their names as input."""
    numbers = range(first, first + count)
    return [Case(name=f"case-{number}", input=f"case-{number}", expected="yes") for number in numbers]


async def run_virtual(evaluation_: AnyEvaluation, disk: SimulatedDisk, *, signals: bool = False, **options: Any) -> Outcome:
    """Run an evaluation in a fixed order, on a disk in memory; with `signals`, they stop it as they do in `runner.run`."""
    session = Session(evaluation_, PATH, **{**deterministic_options(), "files": disk, **options})
    with handle_signals(lambda *_: session.interrupt(), *(STOP_SIGNALS if signals else ())):
        with trio.fail_after(1_000_000):  # Virtual seconds.
            return await session.run()


def define_real(task: Callable[..., Any], cases: Any = "lima", **options: Any) -> AnyEvaluation:
    """Return an evaluation for `run_real`, by default without retries; a text as `cases` is the name and input of one case."""
    cases = [Case(name=cases, input=cases)] if isinstance(cases, str) else cases
    retry = Retry(errors=0, timeouts=0, rate_limits=0)
    evaluation_: AnyEvaluation = evaluation(cases=cases, **{"timeout": 20.0, "retry": retry, **options})(task)
    return evaluation_


def run_real(evaluation_: AnyEvaluation, path: Path, **options: Any) -> Outcome:
    """Run an evaluation in real time under a fixed limit, without fsync and with a short grace."""
    return run(evaluation_, path, **{"durability": "os", "policy": "fixed", "grace": 0.5, **options})


def events(run: SimulatedDisk | Path | str, kind: type[E]) -> list[E]:
    """Return the events of one kind, of the run in memory or of one on disk."""
    recorded = events_of(run) if isinstance(run, Path | str) else events_of(PATH, files=run)
    return [event for event in recorded if isinstance(event, kind)]


def findings(disk: SimulatedDisk) -> list[Any]:
    """Return what the audit finds in the run on a disk in memory."""
    return list(audit(read(PATH, files=disk), rules=retry_rules).findings)


def outputs(path: Path) -> list[Any]:
    """Return the outputs of a run on disk, in the order of the records."""
    return [event.output for event in events(path, AttemptSucceeded)]


def count(disk: SimulatedDisk, kind: type) -> int:
    """Return the number of events of one kind."""
    return len(events(disk, kind))


def audited(disk: SimulatedDisk) -> Audit:
    """Return the audit of the run, with its retries recomputed."""
    return audit(read(PATH, files=disk), rules=retry_rules)


def has_journal(disk: SimulatedDisk) -> bool:
    """Return whether the run was started before the disk lost power."""
    return disk.is_directory(str(PATH)) and any(name.startswith("journal-") for name in disk.list_directory(str(PATH)))


def signal_after(seconds: float, *, times: int = 1, number: signal.Signals = signal.SIGINT) -> dict[str, Any]:
    """Return the options under which the process gets a signal after some seconds, or several, half a second apart."""

    async def send(_: LiveRun) -> None:
        await trio.sleep(seconds)
        for _time in range(times):
            signal.raise_signal(number)
            await trio.sleep(0.5)

    return {"signals": True, "observer": send}


async def run_killed(evaluation_: AnyEvaluation, disk: SimulatedDisk, *, after: float, **options: Any) -> SimulatedDisk:
    """Run an evaluation; return the disk that the next process finds if this one is killed after some seconds."""
    disks: list[SimulatedDisk] = []
    with trio.CancelScope() as scope:

        async def kill(_: LiveRun) -> None:
            await trio.sleep(after)
            disks.append(copy.deepcopy(disk))
            scope.cancel()

        await run_virtual(evaluation_, disk, observer=kill, **options)
    return disks[0].after_kill()


def run_until_power_failure(evaluation_: AnyEvaluation, disk: SimulatedDisk, seq: int, **options: Any) -> Outcome | None:
    """Run an evaluation until the power fails after record `seq`; return None if it did."""
    append = writer.Journal.append

    def append_or_fail(self: writer.Journal, event: Any, *arguments: Any, **options: Any) -> Any:
        record = append(self, event, *arguments, **options)
        if record.seq >= seq:
            disk.on_call = power_failure()
            raise PowerFailure
        return record

    async def main() -> Outcome:
        return await Session(evaluation_, PATH, **{**deterministic_options(), "files": disk, **options}).run()

    writer.Journal.append = append_or_fail  # type: ignore[method-assign]
    try:
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    except PowerFailure:
        return None
    except BaseExceptionGroup as group:
        if group.split((PowerFailure, WriteFailed))[1] is not None:
            raise
        return None
    finally:
        writer.Journal.append = append  # type: ignore[method-assign]
        disk.on_call = lambda _: None


def flaky_action(value: str, times: int) -> Action:
    """Fail for some inputs, the same ones every time."""
    number = random.Random(f"{value}").random()
    if number < 0.2 and times == 1:
        return Fail(ConnectionError("no"), 0.5)
    if number < 0.3 and times == 1:
        return Fail(RateLimited(2.0), 0.1)
    if number < 0.35 and times == 1:
        return Hang()
    if number > 0.95:
        return Fail(Fatal("never"), 0.2)
    return Return(f"answer to {value}", 0.1 + number)


def flaky_evaluation(count: int, first: int = 0) -> tuple[AnyEvaluation, Scripted]:
    """Return an evaluation with a flaky task and a scorer that waits, and its task."""
    task = Scripted(flaky_action)
    evaluation = define(task, numbered_cases(count, first), slots=3, timeout=5)

    @evaluation.score
    async def length(output: str, case: Any) -> float:
        await trio.lowlevel.checkpoint()
        return float(len(output))

    return evaluation, task
