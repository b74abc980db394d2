"""Bad input and faults: a clear error, the right exit code, and no lost records.

Tested elsewhere:

- a missing file or function, 0 slots, a negative timeout, an empty dataset, resuming a finished, damaged or running run, or one
  whose task has changed, from the command line: `test_run.py` and `test_resume.py` in `tests/runner_cli`
- invalid datasets: `tests/runner/test_dataset.py`; tasks that cannot be called: `tests/runner/test_evaluation.py`
- BaseException, ignored cancellation, late outputs: `test_session.py` and `test_function.py` in `tests/runner`
- changed cases: `tests/runner/test_resume.py`, `tests/cases/test_inspect.py`
"""

import errno
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from evaljournal import Case, Retry, arun, evaluation, run
from evaljournal.journal import read, verify
from evaljournal.journal.errors import JournalLocked, WriteFailed
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptSucceeded,
    RunStopped,
    ScoringFailed,
    SessionStarted,
    TrialCompleted,
    TrialFailed,
)
from evaljournal.replay import fold
from evaljournal.runner.cli import cli
from evaljournal.runner.engine.session import Outcome
from evaljournal.runner.testing import Return, Scripted, events_of
from tests.journal.disk import SimulatedDisk
from tests.processes import TIMEOUT, Process
from tests.runner_cli.commands import COMMAND
from tests.runs import PATH, define, events, numbered_cases, run_killed, run_virtual


@pytest.fixture
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to an empty directory; restore `sys.modules` and `sys.path` after the test."""
    search_path = list(sys.path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.path[:] = search_path
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in (getattr(module, "__file__", None) or "")]:
        del sys.modules[name]


def write_task(source: str) -> None:
    """Write an evaluation into `task.py`."""
    Path("task.py").write_text(textwrap.dedent(source))


def evaljournal(*arguments: str, **environment: str) -> Result:
    """Run a command in this process."""
    return CliRunner(env=environment).invoke(cli, arguments)


def evaljournal_process(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in a process of its own."""
    return subprocess.run(
        [*COMMAND, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )


ROW = '{"id": "a", "question": "1?"}\n'


@pytest.mark.usefixtures("working_directory")
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("qa.jsonl", ROW + '{"id": "b", "question"', "qa.jsonl, line 2: not JSON: expecting ':' delimiter at column 23"),
        ("qa.jsonl", ROW * 2, "qa.jsonl, line 2: the id 'a' is already used by qa.jsonl, line 1; if ids are in another column"),
        ("qa.csv", "id,question\na,1?\nb\n", "qa.csv, line 3: 1 columns, expected 2"),
        ("qa.jsonl", "", "qa.jsonl has no cases"),
        ("other.jsonl", ROW, "qa.jsonl: cannot read the file: No such file or directory"),
    ],
    ids=["invalid JSON", "duplicate ids", "missing column", "empty", "missing"],
)
def test_an_invalid_dataset_is_a_usage_error(name: str, content: str, message: str) -> None:
    """The exit code is 2, one line names the file and the line in it, and no directory is created."""
    Path(name).write_text(content)
    dataset = name if name.startswith("qa") else "qa.jsonl"
    write_task(f"from evaljournal import evaluation\n@evaluation(cases={dataset!r})\ndef task(question): ...\n")
    result = evaljournal("run", "task.py")

    assert (2, "", True) == (result.exit_code, result.stdout, message in result.stderr)
    assert 1 == len(result.stderr.splitlines())
    assert not Path("runs").exists()


@pytest.mark.usefixtures("working_directory")
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("evaluation(cases=['a'])(3)", "task.py, line 2: a task is a function, not 3"),
        ("evaluation(cases=['a'])(len('no'))", "task.py, line 2: a task is a function, not 2"),
        ("evaluation(cases=['a'], slots=0)(str)", "task.py, line 2: slots=0: must be a whole number, 1 or more"),
        ("evaluation(cases=['a'], timeout=-3)(str)", "task.py, line 2: timeout=-3.0: must be a number of seconds above 0"),
    ],
)
def test_an_invalid_definition_is_a_usage_error(source: str, message: str) -> None:
    """The exit code is 2, and the error names the line in the user's file."""
    write_task(f"from evaljournal import evaluation\ntask = {source}\n")
    result = evaljournal("run", "task.py")

    assert (2, True) == (result.exit_code, message in result.stderr)
    assert not Path("runs").exists()


@pytest.mark.usefixtures("working_directory")
def test_a_pattern_without_a_match_is_an_error() -> None:
    """The error for a pattern that matches no case lists some names."""
    write_task(
        "from evaljournal import Case, evaluation\n@evaluation(cases=[Case(name='peru', input=1)])\ndef task(n): return n\n"
    )
    result = evaljournal("run", "task.py", "--only", "pero")

    assert 2 == result.exit_code
    assert "Error: no case of the dataset matches only=['pero']; names are, for example, 'peru'\n" == result.stderr
    assert not Path("runs").exists()


@pytest.mark.usefixtures("working_directory")
def test_a_dataset_that_fails_half_way_is_resumed_once_fixed() -> None:
    """Finished trials are kept, the exit code is 3, and the next session runs only the others."""
    write_task(
        """
        import os
        from evaljournal import Case, evaluation

        def cases():
            for number in range(60):
                if number == 40 and "BREAK" in os.environ:
                    raise OSError("the network share is not mounted")
                yield Case(name=f"t{number}", input=number)

        @evaluation(cases=cases, slots=2)
        def task(number):
            with open("calls", "a") as file:
                file.write(f"{number}\\n")
            return number
        """
    )
    broken = evaljournal("run", "task.py", "--policy", "fixed", BREAK="1")
    completed = len(events("runs/task/0001", TrialCompleted))
    fixed = evaljournal("resume")

    assert 3 == broken.exit_code
    assert "task stopped (the cases could not be read): " in broken.stdout
    assert "OSError: the network share is not mounted" in broken.stdout
    assert broken.stdout.endswith("next: evaljournal resume runs/task/0001\n")
    assert completed >= 1
    assert (0, True) == (fixed.exit_code, "task finished: 60 of 60 trials done" in fixed.stdout)
    assert list(range(60)) == sorted(map(int, Path("calls").read_text().split()))
    assert verify("runs/task/0001").ok


KILLING = """
    import os, signal, sys
    from evaljournal import Case, evaluation

    @evaluation(cases=[Case(name=f"t{number}", input=number) for number in range(20)], slots=3, write_ahead=True)
    def task(number):
        if number == 11 and "DIE" in os.environ:
            exec(os.environ["DIE"])
        return number
"""


@pytest.mark.usefixtures("working_directory")
@pytest.mark.parametrize(("statement", "code"), [("os._exit(9)", 9), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)])
def test_a_task_that_kills_the_interpreter(statement: str, code: int) -> None:
    """The next session records the attempt in flight as interrupted, and continues to the end."""
    write_task(KILLING)
    killed = evaljournal_process("run", "task.py", DIE=statement)
    killed_again = evaljournal_process("resume", DIE=statement)
    resumed = evaljournal_process("resume")

    assert (code, code, 0) == (killed.returncode, killed_again.returncode, resumed.returncode)
    assert "task finished: 20 of 20 trials done" in resumed.stdout
    recorded = events_of("runs/task/0001")
    for attempt in (1, 2):
        assert AttemptInterrupted(trial="t11", attempt=attempt, reason="process_died") in recorded
    outputs = {event.trial: event.output for event in recorded if isinstance(event, AttemptSucceeded)}
    assert {f"t{number}": number for number in range(20)} == outputs
    assert 3 == sum(isinstance(event, SessionStarted) for event in recorded)
    assert verify("runs/task/0001").ok


@pytest.mark.usefixtures("working_directory")
def test_a_task_that_always_kills_the_interpreter_can_be_skipped() -> None:
    """`--on-ambiguous fail` does not repeat attempts in flight at the crash; the other trials are completed."""
    write_task(KILLING)
    evaljournal_process("run", "task.py", DIE="os._exit(9)")
    result = evaljournal_process("resume", "--on-ambiguous", "fail", DIE="os._exit(9)")

    assert (1, True) == (result.returncode, "t11: interrupted, and not repeated" in result.stdout)
    assert TrialFailed(trial="t11", attempts=1, reason="ambiguous") in events_of("runs/task/0001")
    assert verify("runs/task/0001").ok


@pytest.mark.usefixtures("working_directory")
def test_a_task_that_ignores_cancellation_does_not_block_the_exit() -> None:
    """A task that catches every cancellation is abandoned: the run stops in time, and the process exits."""
    write_task(
        """
        import asyncio
        from evaljournal import Case, evaluation

        @evaluation(cases=[Case(name=f"t{number}", input=number) for number in range(3)], slots=2, timeout=0.3)
        async def task(number):
            while True:
                try: await asyncio.sleep(1)
                except BaseException: pass
        """
    )
    result = evaljournal_process("run", "task.py", "--grace", "1.5", "--deadline", "0.4")

    assert (3, True) == (result.returncode, "task stopped at its deadline" in result.stdout), result.stderr
    assert verify("runs/task/0001").ok


@pytest.mark.usefixtures("working_directory")
def test_a_full_disk_ends_with_3() -> None:
    """On a full disk the run stops, names the last complete record, and can be resumed later."""
    write_task(
        """
        import os
        from evaljournal import Case, evaluation

        if "FULL" in os.environ:
            import resource
            resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, resource.RLIM_INFINITY))

        @evaluation(cases=[Case(name=f"t{number}", input=number) for number in range(60)], slots=2, write_ahead=True)
        def task(number): return number
        """
    )
    full, verification = evaljournal_process("run", "task.py", FULL="1"), verify("runs/task/0001")
    resumed = evaljournal_process("resume")

    assert 3 == full.returncode
    assert "task stopped (disk full)" in full.stdout
    assert "no space left for runs/task/0001" in full.stdout
    match = re.search(r"complete up to record (\d+); free some disk space, then resume the run", full.stdout)
    assert match is not None
    assert int(match[1]) <= verification.records
    assert full.stdout.endswith("next: evaljournal resume runs/task/0001\n")
    assert (0, True) == (resumed.returncode, "task finished: 60 of 60 trials done" in resumed.stdout)
    assert verify("runs/task/0001").ok


def fail_from(disk: SimulatedDisk, call: str, first: int, code: int, *, accepted: int | None = None) -> None:
    """Let a disk fail from the given call of a kind on; the first write that fails may accept some bytes."""
    call_count = 0

    def fail_call(name: str) -> int | None:
        nonlocal call_count
        if name != call:
            return None
        call_count += 1
        if call_count == first and accepted is not None:
            return accepted
        if call_count >= first:
            raise OSError(code, os.strerror(code))
        return None

    disk.on_call = fail_call


@pytest.mark.parametrize("accepted", [None, 10], ids=["nothing", "ten bytes"])
async def test_a_disk_that_fills_up_at_any_write_loses_nothing(accepted: int | None) -> None:
    """Whichever write is the first without space: with space again, the run is resumed and finishes."""
    stopped = 0
    for write in range(1, 100):
        task = Scripted(lambda value, _: Return(f"answer to {value}", 1))
        evaluation_, disk = define(task, numbered_cases(8), slots=2), SimulatedDisk()
        fail_from(disk, "write", write, errno.ENOSPC, accepted=accepted)
        outcome = await run_virtual(evaluation_, disk)
        if not outcome.stop_reason:
            break
        stopped += 1
        assert "disk_full" == outcome.stop_reason
        assert "no space left" in outcome.detail
        disk.on_call = lambda _: None
        completed = completed_trials(disk)
        calls = dict(task.calls)
        outcome = await run_virtual(evaluation_, disk, resume=has_journal(disk))

        assert ("", 8) == (outcome.stop_reason, outcome.state.completed)
        assert all(calls[trial] == task.calls[trial] for trial in completed)
        assert verify(PATH, files=disk).ok
    assert stopped >= 10


def has_journal(disk: SimulatedDisk) -> bool:
    return disk.is_directory(str(PATH)) and any(name.startswith("journal-") for name in disk.list_directory(str(PATH)))


def completed_trials(disk: SimulatedDisk) -> list[str]:
    return [event.trial for event in events(disk, TrialCompleted)] if has_journal(disk) else []


async def test_a_full_disk_is_recorded_if_there_is_space() -> None:
    """If only a large value did not fit, the journal records that the disk was full."""
    task = Scripted(lambda value, _: Return("x" * 300_000 if value == "case-3" else "yes", 1))
    evaluation_, disk = define(task, numbered_cases(6), slots=1), SimulatedDisk()
    calls: list[str] = []

    def fail_call(call: str) -> int | None:
        calls.append(call)
        if calls.count("mkdir") == 5 and calls[-2:] == ["open", "write"]:  # The directory of blobs has just been created.
            calls.clear()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return None

    disk.on_call = fail_call
    outcome = await run_virtual(evaluation_, disk)

    assert "disk_full" == outcome.stop_reason
    assert [RunStopped(reason="disk_full")] == events(disk, RunStopped)
    assert 6 == (await run_virtual(evaluation_, disk, resume=True)).state.completed


@pytest.mark.parametrize("call", ["write", "fdatasync"])
async def test_a_disk_that_fails_confirms_nothing_more(call: str) -> None:
    """An I/O error ends the run with the last confirmed record; the run can be resumed from there."""
    task = Scripted(lambda value, _: Return(f"answer to {value}", 1))
    evaluation_, disk = define(task, numbered_cases(8), slots=2), SimulatedDisk()
    fail_from(disk, call, 6, errno.EIO)
    with pytest.raises(WriteFailed, match=r"records up to \d+ are on disk, later ones may be lost") as error:
        await run_virtual(evaluation_, disk)
    disk.on_call = lambda _: None
    disk = disk.after_kill()

    assert error.value.durable_seq <= max(record.seq for record in read(PATH, files=disk))
    assert ("", 8) == ((outcome := await run_virtual(evaluation_, disk, resume=True)).stop_reason, outcome.state.completed)
    assert verify(PATH, files=disk).ok


@pytest.mark.parametrize("seed", range(5))
def test_two_concurrent_sessions_in_one_process(seed: int) -> None:
    """One session gets the journal and finishes; the other gets an error that names the writer, and makes no call."""
    from trio._core import _run as scheduler

    task = Scripted(lambda *_: Return("yes", 1))
    evaluation_ = define(task, numbered_cases(10), slots=2)
    outcomes: list[Outcome | JournalLocked] = []

    async def main() -> SimulatedDisk:
        disk = await run_killed(evaluation_, SimulatedDisk(), after=2.5, policy="fixed")

        async def resume() -> None:
            try:
                outcomes.append(await run_virtual(evaluation_, disk, resume=True, policy="fixed"))
            except JournalLocked as exc:
                outcomes.append(exc)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(resume)
            nursery.start_soon(resume)
        return disk

    scheduler._r.seed(seed)
    disk = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    rejected, finished = outcomes
    assert isinstance(rejected, JournalLocked)
    assert "is being written by" in str(rejected)
    assert isinstance(finished, Outcome)
    assert ("", 10, 12) == (finished.stop_reason, finished.state.completed, task.calls.total())
    assert 2 == len(events(disk, SessionStarted))
    assert 10 == len(events(disk, TrialCompleted)) == fold(read(PATH, files=disk)).completed


@pytest.mark.usefixtures("working_directory")
def test_two_concurrent_sessions_in_two_processes() -> None:
    """One process exits with 0, the other with 2 or, if it started after the end, with 0 and no call."""
    write_task(
        """
        import os, time
        from evaljournal import Case, evaluation

        @evaluation(cases=[Case(name=f"t{number}", input=number) for number in range(20)], slots=2, write_ahead=True)
        def task(number):
            with open("calls", "a") as file:
                file.write(f"{number}\\n")
            if number == 5 and "DIE" in os.environ:
                os._exit(9)
            time.sleep(0.02)
            return number
        """
    )
    evaljournal_process("run", "task.py", DIE="1")
    processes = [Process([*COMMAND, "resume"], stderr=subprocess.PIPE) for _ in range(2)]
    errors = [process.communicate()[1] for process in processes]
    codes = [process.returncode for process in processes]

    assert 0 in codes, errors
    assert all(code == 0 or "is being written by" in error for code, error in zip(codes, errors, strict=True))
    trials = [event.trial for event in events("runs/task/0001", TrialCompleted)]
    assert sorted(f"t{number}" for number in range(20)) == sorted(trials)
    interrupted = sum(isinstance(event, AttemptInterrupted) for event in events_of("runs/task/0001"))
    # An interrupted attempt may not have made its call.
    assert 20 <= len(Path("calls").read_text().split()) <= 20 + interrupted
    assert verify("runs/task/0001").ok


def test_a_late_thread_of_a_cancelled_run_is_ignored(tmp_path: Path) -> None:
    """A thread that returns after its run was cancelled does not break the caller's loop."""
    has_started, is_cancelled, has_returned = threading.Event(), threading.Event(), threading.Event()

    def slow(value: str) -> str:
        has_started.set()
        is_cancelled.wait(TIMEOUT)
        has_returned.set()
        return value

    async def main() -> bool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(arun, evaluation(cases=["a"])(slow), tmp_path / "run"))
            await trio.to_thread.run_sync(has_started.wait, TIMEOUT)
            nursery.cancel_scope.cancel()
        is_cancelled.set()
        return await trio.to_thread.run_sync(has_returned.wait, TIMEOUT)

    assert trio.run(main)
    assert "interrupted" == fold(read(tmp_path / "run")).outcome


@pytest.mark.parametrize("loop", ["trio", "asyncio", "thread"])
@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, BaseExceptionGroup("", [KeyboardInterrupt()])])
def test_a_task_that_raises_keyboard_interrupt_fails(tmp_path: Path, loop: str, raised: Any) -> None:
    """A task that raises KeyboardInterrupt or SystemExit has failed; the run does not stop."""

    def task(number: int) -> int:
        if number == 3:
            raise raised
        return number

    async def async_task(number: int) -> int:
        return task(number)

    settings: dict[str, Any] = {} if loop == "thread" else {"loop": loop}
    evaluation_ = evaluation(cases=list(range(6)), retry=Retry(errors=2, base_delay=0.001), **settings)(
        task if loop == "thread" else async_task
    )
    outcome = run(evaluation_, tmp_path / "run")

    assert ("", 5, 1) == (outcome.stop_reason, outcome.state.completed, outcome.state.failed)
    failed = events(tmp_path / "run", AttemptFailed)
    assert ["fatal"] == [event.category for event in failed]


def test_a_scorer_that_raises_keyboard_interrupt_fails(tmp_path: Path) -> None:
    """A scorer that raises KeyboardInterrupt loses only its own score."""

    @evaluation(cases=[1, 2, 3], loop="trio")
    async def identity(number: int) -> int:
        return number

    @identity.score
    async def odd(output: int, case: Case[int, int]) -> bool:
        await trio.lowlevel.checkpoint()
        if output == 2:
            raise KeyboardInterrupt
        return True

    outcome = run(identity, tmp_path / "run")

    assert ("", 3) == (outcome.stop_reason, outcome.state.completed)
    assert ["KeyboardInterrupt"] == [event.error for event in events(tmp_path / "run", ScoringFailed)]


def test_a_blocking_generator_does_not_delay_earlier_cases(tmp_path: Path) -> None:
    """If a generator blocks after three cases, those three are run immediately."""
    calls: list[int] = []
    has_three = threading.Event()
    wait_results: list[bool] = []

    def cases() -> Iterator[int]:
        yield from (1, 2, 3)
        wait_results.append(has_three.wait(TIMEOUT))
        yield 4

    def task(number: int) -> int:
        calls.append(number)
        if len(calls) == 3:
            has_three.set()
        return number

    outcome = run(evaluation(cases=cases)(task), tmp_path / "run")

    assert ([True], [1, 2, 3, 4], 4) == (wait_results, sorted(calls), outcome.state.completed)


async def test_the_outcome_after_a_full_disk_counts_records_on_disk() -> None:
    """After a full disk, the outcome counts what is on disk, not what was in memory."""
    disk, call_count = SimulatedDisk(), 0

    def fail_call(call: str) -> None:
        nonlocal call_count
        call_count += call == "write"
        if call == "write" and call_count >= 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk.on_call = fail_call
    outcome = await run_virtual(define(Scripted(lambda *_: Return("yes", 1)), numbered_cases(8), slots=2), disk)
    disk.on_call = lambda _: None

    assert "disk_full" == outcome.stop_reason
    assert fold(read(PATH, files=disk)).completed == outcome.state.completed
