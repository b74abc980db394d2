"""Bad input and faults: a clear word about what, where, why and what next; the right exit code; and nothing lost.

Shown elsewhere:

- no such file or function, slots of 0, a negative timeout, an empty dataset, a resumption of a finished, a damaged or a running
  run, and of one whose task was changed, all from the command line: `tests/runner_cli/test_run.py`
- every way in which a dataset can be broken: `tests/runner/test_dataset.py`; a task that cannot be called:
  `tests/runner/test_definition.py`
- BaseException, swallowed cancellation, answers after the limit: `test_session.py` and `test_function.py` in `tests/runner`
- changed cases: `tests/runner/test_resuming.py`, `tests/cases/test_inspect.py`
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

from journal import read, verify
from journal.errors import JournalLocked, WriteFailed
from journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptSucceeded,
    RunStopped,
    ScoringFailed,
    SessionStarted,
    TrialCompleted,
    TrialFailed,
)
from replay import fold
from runner import Case, Retry, arun, evaluation, run
from runner.cli import cli
from runner.engine.session import Outcome
from runner.testing import Answer, Hang, Scripted, events_of
from tests.journal.disk import SimulatedDisk
from tests.processes import Process
from tests.runner_cli.test_commands import COMMAND
from tests.runs import PATH, define, events, numbered_cases, run_killed, run_virtual


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in an empty directory, and leave Python's modules as they were."""
    before = list(sys.path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.path[:] = before
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in (getattr(module, "__file__", None) or "")]:
        del sys.modules[name]


def write_task(source: str) -> None:
    """Write an evaluation into `it.py`."""
    Path("it.py").write_text(textwrap.dedent(source))


def evaljournal(*arguments: str, **environment: str) -> Result:
    """Use a command in this process."""
    return CliRunner(env=environment).invoke(cli, arguments)


def process(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Use a command in a process of its own, which it may bring down."""
    return subprocess.run(
        [*COMMAND, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


ROW = '{"id": "a", "question": "1?"}\n'


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("qa.jsonl", ROW + '{"id": "b", "question"', "qa.jsonl, line 2: not JSON: expecting ':' delimiter at column 23"),
        ("qa.jsonl", ROW * 2, "qa.jsonl, line 2: the id 'a' is already used by qa.jsonl, line 1; if ids are in another column"),
        ("qa.csv", "id,question\na,1?\nb\n", "qa.csv, line 3: 1 columns, expected 2"),
        ("qa.jsonl", "", "qa.jsonl has no cases"),
        ("other.jsonl", ROW, "qa.jsonl: cannot read the file: No such file or directory"),
    ],
    ids=["broken at a line", "duplicate ids", "a field too few", "empty", "missing"],
)
def test_a_dataset_that_cannot_be_used_starts_nothing(name: str, content: str, said: str) -> None:
    """Code 2, one sentence with the file and the line, and not so much as a directory is left behind."""
    Path(name).write_text(content)
    used = name if name.startswith("qa") else "qa.jsonl"
    write_task(f"from runner import evaluation\n@evaluation(cases={used!r})\ndef it(question): ...\n")
    result = evaljournal("run", "it.py")

    assert (2, "", True) == (result.exit_code, result.stdout, said in result.stderr)
    assert 1 == len(result.stderr.splitlines())
    assert not Path("runs").exists()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("evaluation(cases=['a'])(3)", "it.py, line 2: a task is a function, not 3"),
        ("evaluation(cases=['a'])(len('no'))", "it.py, line 2: a task is a function, not 2"),
        ("evaluation(cases=['a'], slots=0)(str)", "it.py, line 2: slots=0: must be a whole number, 1 or more"),
        ("evaluation(cases=['a'], timeout=-3)(str)", "it.py, line 2: timeout=-3.0: must be a number of seconds above 0"),
    ],
)
def test_a_wrong_definition_starts_nothing(source: str, said: str) -> None:
    """Code 2, with the line of the user's own file."""
    write_task(f"from runner import evaluation\nit = {source}\n")
    result = evaljournal("run", "it.py")

    assert (2, True) == (result.exit_code, said in result.stderr)
    assert not Path("runs").exists()


@pytest.mark.usefixtures("here")
def test_no_such_case() -> None:
    """A pattern that fits no case is told, with some names that there are."""
    write_task("from runner import Case, evaluation\n@evaluation(cases=[Case(name='peru', input=1)])\ndef it(n): return n\n")
    result = evaljournal("run", "it.py", "--only", "pero")

    assert 2 == result.exit_code
    assert "Error: no case of the dataset matches only=['pero']; names are, for example, 'peru'\n" == result.stderr
    assert not Path("runs").exists()


@pytest.mark.usefixtures("here")
def test_cases_that_break_half_way_are_resumed_when_they_are_mended() -> None:
    """What was finished stays, code 3 says that more is to come, and the next session makes the rest and nothing twice."""
    write_task(
        """
        import os
        from runner import Case, evaluation

        def cases():
            for number in range(60):
                if number == 40 and "BREAK" in os.environ:
                    raise OSError("the network share went away")
                yield Case(name=f"t{number}", input=number)

        @evaluation(cases=cases, slots=2)
        def it(number):
            with open("calls", "a") as file:
                file.write(f"{number}\\n")
            return number
        """
    )
    broken = evaljournal("run", "it.py", "--policy", "fixed", BREAK="1")
    done = len([event for event in events_of("runs/it/0001") if isinstance(event, TrialCompleted)])
    mended = evaljournal("resume")

    assert (3, "") == (broken.exit_code, broken.stdout)
    assert "it stopped because its cases could not be read" in broken.stderr
    assert "OSError: the network share went away" in broken.stderr
    assert broken.stderr.endswith("next: evaljournal resume runs/it/0001\n")
    assert done >= 1
    assert (0, True) == (mended.exit_code, "it finished: 60 of 60 trials done" in mended.stderr)
    assert sorted(range(60)) == sorted(map(int, Path("calls").read_text().split()))
    assert verify("runs/it/0001").holds


@pytest.mark.usefixtures("here")
def test_an_output_that_cannot_be_kept_is_told_at_the_end() -> None:
    """The trial failed, the others did not; code 1, and the type and the place of what could not be written."""
    write_task("from runner import evaluation\n@evaluation(cases=[0, 1])\ndef it(n): return {'n': [n, object()]} if n else n\n")
    result = evaljournal("run", "it.py")

    assert (1, True) == (result.exit_code, "1 ok of 2 done" in result.stderr)
    assert "Unserialisable: output.n[1] of AttemptSucceeded cannot be written as JSON" in result.stderr
    assert {"unserialisable"} == {event.cause for event in events_of("runs/it/0001") if isinstance(event, TrialFailed)}


DEADLY = """
    import os, signal, sys
    from runner import Case, evaluation

    @evaluation(cases=[Case(name=f"t{number}", input=number) for number in range(20)], slots=3, write_ahead=True)
    def it(number):
        if number == 11 and "DIE" in os.environ:
            exec(os.environ["DIE"])
        return number
"""


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("how", "code"), [("os._exit(9)", 9), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)])
def test_a_task_that_kills_the_interpreter(how: str, code: int) -> None:
    """The next session closes the attempt that was in the air, and goes on; with nothing deadly in the way, to the end."""
    write_task(DEADLY)
    killed_by_it = process("run", "it.py", DIE=how)
    again = process("resume", DIE=how)
    resumed = process("resume")

    assert (code, code, 0) == (killed_by_it.returncode, again.returncode, resumed.returncode)
    assert "it finished: 20 of 20 trials done" in resumed.stderr
    found = events_of("runs/it/0001")
    for attempt in (1, 2):
        assert AttemptInterrupted(trial="t11", attempt=attempt, why="process_died") in found
    outputs = {event.trial: event.output for event in found if isinstance(event, AttemptSucceeded)}
    assert {f"t{number}": number for number in range(20)} == outputs
    assert 3 == sum(isinstance(event, SessionStarted) for event in found)
    assert verify("runs/it/0001").holds


@pytest.mark.usefixtures("here")
def test_a_task_that_kills_the_interpreter_every_time_can_be_left_out() -> None:
    """`--on-ambiguous fail` does not try again what may have been what killed the process: the others come to their end."""
    write_task(DEADLY)
    process("run", "it.py", DIE="os._exit(9)")
    result = process("resume", "--on-ambiguous", "fail", DIE="os._exit(9)")

    assert (1, True) == (result.returncode, "t11: interrupted, and not repeated" in result.stderr)
    assert TrialFailed(trial="t11", attempts=1, cause="ambiguous") in events_of("runs/it/0001")
    assert verify("runs/it/0001").holds


@pytest.mark.usefixtures("here")
def test_a_task_that_ignores_every_cancellation_does_not_keep_the_process() -> None:
    """A loop that catches whatever is thrown into it is left behind: the run stops in time, and the process ends."""
    write_task(
        """
        import asyncio
        from runner import Case, evaluation

        @evaluation(cases=[Case(name=f"deaf-{number}", input=number) for number in range(3)], slots=2, timeout=0.3)
        async def it(number):
            while True:
                try: await asyncio.sleep(1)
                except BaseException: pass
        """
    )
    result = process("run", "it.py", "--grace", "1.5", "--deadline", "0.4")

    assert (3, True) == (result.returncode, "it stopped at its deadline" in result.stderr), result.stderr
    assert verify("runs/it/0001").holds


@pytest.mark.usefixtures("here")
def test_a_full_disk_ends_with_3_and_says_what_to_do() -> None:
    """Where the system takes no more, the run stops, names the record up to which it is whole, and goes on when it can."""
    write_task(
        """
        import os
        from runner import Case, evaluation

        if "FULL" in os.environ:
            import resource
            resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, resource.RLIM_INFINITY))

        @evaluation(cases=[Case(name=f"t{number}", input=number) for number in range(60)], slots=2, write_ahead=True)
        def it(number): return number
        """
    )
    full, seen, resumed = process("run", "it.py", FULL="1"), verify("runs/it/0001"), process("resume")

    assert (3, "") == (full.returncode, full.stdout)
    assert "it stopped (disk full)" in full.stderr
    assert "no space left for runs/it/0001" in full.stderr
    whole = re.search(r"complete up to record (\d+); free some disk space, then resume the run", full.stderr)
    assert whole is not None
    assert int(whole[1]) <= seen.records
    assert full.stderr.endswith("next: evaljournal resume runs/it/0001\n")
    assert (0, True) == (resumed.returncode, "it finished: 60 of 60 trials done" in resumed.stderr)
    assert verify("runs/it/0001").holds


def refuse(disk: SimulatedDisk, call: str, times: int, number: int, *, takes: int | None = None) -> None:
    """Let a disk refuse the n-th call of a kind and all after it; of the n-th, it may `take` a part."""
    seen = 0

    def before(made_call: str) -> int | None:
        nonlocal seen
        if made_call != call:
            return None
        seen += 1
        if seen == times and takes is not None:
            return takes
        if seen >= times:
            raise OSError(number, os.strerror(number))
        return None

    disk.before = before


@pytest.mark.parametrize("takes", [None, 10], ids=["nothing", "ten bytes"])
async def test_a_disk_that_fills_up_at_any_write_loses_nothing(takes: int | None) -> None:
    """Whichever write is the first for which there is no space: with space again, the run goes on and ends as it should."""
    stopped = 0
    for write in range(1, 100):
        task = Scripted(lambda value, _: Answer(f"answer to {value}", 1))
        it, disk = define(task, numbered_cases(8), slots=2), SimulatedDisk()
        refuse(disk, "write", write, errno.ENOSPC, takes=takes)
        outcome = await run_virtual(it, disk)
        if not outcome.stopped:
            break
        stopped += 1
        assert "disk_full" == outcome.stopped
        assert "no space left" in outcome.why
        disk.before = lambda _: None
        done = completed(disk)
        asked = dict(task.calls)
        outcome = await run_virtual(it, disk, resume=is_there(disk))

        assert ("", 8) == (outcome.stopped, outcome.state.completed)
        assert all(asked[trial] == task.calls[trial] for trial in done)
        assert verify(PATH, files=disk).holds
    assert stopped >= 10


def is_there(disk: SimulatedDisk) -> bool:
    return disk.is_directory(str(PATH)) and any(name.startswith("journal-") for name in disk.list_directory(str(PATH)))


def completed(disk: SimulatedDisk) -> list[str]:
    return [event.trial for event in events(disk, TrialCompleted)] if is_there(disk) else []


async def test_space_for_a_last_word_is_used_for_it() -> None:
    """If only a long value did not fit, the journal says that the disk was full."""
    task = Scripted(lambda value, _: Answer("x" * 300_000 if value == "case-3" else "yes", 1))
    it, disk = define(task, numbered_cases(6), slots=1), SimulatedDisk()
    calls: list[str] = []

    def before(call: str) -> int | None:
        calls.append(call)
        if calls.count("mkdir") == 5 and calls[-2:] == ["open", "write"]:  # The folders for long values have just been made.
            calls.clear()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return None

    disk.before = before
    outcome = await run_virtual(it, disk)

    assert "disk_full" == outcome.stopped
    assert [RunStopped(reason="disk_full")] == events(disk, RunStopped)
    assert 6 == (await run_virtual(it, disk, resume=True)).state.completed


@pytest.mark.parametrize("call", ["write", "fdatasync"])
async def test_a_disk_that_fails_confirms_nothing_more(call: str) -> None:
    """An I/O error ends the run with the number of the last record that is certain; after it, the run goes on from there."""
    task = Scripted(lambda value, _: Answer(f"answer to {value}", 1))
    it, disk = define(task, numbered_cases(8), slots=2), SimulatedDisk()
    refuse(disk, call, 6, errno.EIO)
    with pytest.raises(WriteFailed, match=r"up to record \d+ it is confirmed on disk, what came after is not") as raised:
        await run_virtual(it, disk)
    disk.before = lambda _: None
    disk = disk.killed()

    assert raised.value.durable <= max(record.seq for record in read(PATH, files=disk))
    assert ("", 8) == ((outcome := await run_virtual(it, disk, resume=True)).stopped, outcome.state.completed)
    assert verify(PATH, files=disk).holds


@pytest.mark.parametrize("seed", range(5))
def test_of_two_resumptions_at_once_one_goes_on(seed: int) -> None:
    """One gets the journal and finishes; the other is told by whom it is written, and calls nothing."""
    from trio._core import _run as scheduler

    task = Scripted(lambda *_: Answer("yes", 1))
    it = define(task, numbered_cases(10), slots=2)
    endings: list[Outcome | JournalLocked] = []

    async def main() -> SimulatedDisk:
        disk = await run_killed(it, SimulatedDisk(), after=2.5, policy="fixed")

        async def resume() -> None:
            try:
                endings.append(await run_virtual(it, disk, resume=True, policy="fixed"))
            except JournalLocked as exc:
                endings.append(exc)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(resume)
            nursery.start_soon(resume)
        return disk

    scheduler._r.seed(seed)
    disk = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    refused, finished = endings
    assert isinstance(refused, JournalLocked)
    assert "is being written by" in str(refused)
    assert isinstance(finished, Outcome)
    assert ("", 10, 12) == (finished.stopped, finished.state.completed, task.calls.total())
    assert 2 == len(events(disk, SessionStarted))
    assert 10 == len(events(disk, TrialCompleted)) == fold(read(PATH, files=disk)).completed


@pytest.mark.usefixtures("here")
def test_of_two_resumptions_by_two_processes_one_goes_on() -> None:
    """The same for real processes: one ends with 0, the other with 2 or, where it came after the end, with 0 and no call."""
    write_task(
        """
        import os, time
        from runner import Case, evaluation

        @evaluation(cases=[Case(name=f"t{number}", input=number) for number in range(20)], slots=2, write_ahead=True)
        def it(number):
            with open("calls", "a") as file:
                file.write(f"{number}\\n")
            if number == 5 and "DIE" in os.environ:
                os._exit(9)
            time.sleep(0.02)
            return number
        """
    )
    process("run", "it.py", DIE="1")
    both = [Process([*COMMAND, "resume"], stderr=subprocess.PIPE) for _ in range(2)]
    said = [each.communicate(timeout=60)[1] for each in both]
    codes = [each.returncode for each in both]

    assert 0 in codes, said
    assert all(code == 0 or "is being written by" in words for code, words in zip(codes, said, strict=True))
    outputs = [event.trial for event in events_of("runs/it/0001") if isinstance(event, TrialCompleted)]
    assert sorted(f"t{number}" for number in range(20)) == sorted(outputs)
    cut = sum(isinstance(event, AttemptInterrupted) for event in events_of("runs/it/0001"))
    assert 20 <= len(Path("calls").read_text().split()) <= 20 + cut  # What was cut off may not have come to its call.
    assert verify("runs/it/0001").holds


def test_a_late_thread_of_a_cancelled_run_does_no_harm(tmp_path: Path) -> None:
    """A thread that comes back after its run was cancelled from outside does not bring down the caller's loop."""
    has_begun, is_over, came_back = threading.Event(), threading.Event(), threading.Event()

    def slow(value: str) -> str:
        has_begun.set()
        is_over.wait(10)
        came_back.set()
        return value

    async def main() -> bool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(arun, evaluation(cases=["a"])(slow), tmp_path / "run"))
            await trio.to_thread.run_sync(has_begun.wait, 10)
            nursery.cancel_scope.cancel()
        is_over.set()
        return await trio.to_thread.run_sync(came_back.wait, 10)

    assert trio.run(main)
    assert "interrupted" == fold(read(tmp_path / "run")).ending


@pytest.mark.parametrize("where", ["trio", "asyncio", "thread"])
@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, BaseExceptionGroup("", [KeyboardInterrupt()])])
def test_an_interrupt_that_a_task_raises_is_its_own(tmp_path: Path, where: str, raised: Any) -> None:
    """A task that raises KeyboardInterrupt or SystemExit, wherever it runs, has failed; nobody has asked the run to stop."""

    def task(number: int) -> int:
        if number == 3:
            raise raised
        return number

    async def in_loop(number: int) -> int:
        return task(number)

    settings: dict[str, Any] = {} if where == "thread" else {"loop": where}
    it = evaluation(cases=list(range(6)), retry=Retry(errors=2, base_delay=0.001), **settings)(
        task if where == "thread" else in_loop
    )
    outcome = run(it, tmp_path / "run")

    assert ("", 5, 1) == (outcome.stopped, outcome.state.completed, outcome.state.failed)
    failed = [event for event in events_of(tmp_path / "run") if isinstance(event, AttemptFailed)]
    assert ["fatal"] == [event.category for event in failed]


def test_an_interrupt_that_a_scorer_raises_is_its_own(tmp_path: Path) -> None:
    """A scorer that raises KeyboardInterrupt costs its own score only."""

    @evaluation(cases=[1, 2, 3], loop="trio")
    async def same(number: int) -> int:
        return number

    @same.score
    async def odd(output: int, case: Case[int, int]) -> bool:
        await trio.lowlevel.checkpoint()
        if output == 2:
            raise KeyboardInterrupt
        return True

    outcome = run(same, tmp_path / "run")

    assert ("", 3) == (outcome.stopped, outcome.state.completed)
    assert ["KeyboardInterrupt"] == [event.error for event in events_of(tmp_path / "run") if isinstance(event, ScoringFailed)]


def test_cases_that_are_there_do_not_wait_for_those_that_are_not(tmp_path: Path) -> None:
    """A generator that gives three cases and then blocks has those three run at once, before it goes on."""
    asked: list[int] = []
    three = threading.Event()
    waited: list[bool] = []

    def cases() -> Iterator[int]:
        yield from (1, 2, 3)
        waited.append(three.wait(20))
        yield 4

    def task(number: int) -> int:
        asked.append(number)
        if len(asked) == 3:
            three.set()
        return number

    outcome = run(evaluation(cases=cases)(task), tmp_path / "run")

    assert ([True], [1, 2, 3, 4], 4) == (waited, sorted(asked), outcome.state.completed)


async def test_a_full_disk_is_not_told_more_than_it_holds() -> None:
    """After a full disk, the outcome counts what is on it, not what was in memory."""
    disk, seen = SimulatedDisk(), 0

    def before(call: str) -> None:
        nonlocal seen
        seen += call == "write"
        if call == "write" and seen >= 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk.before = before
    outcome = await run_virtual(define(Scripted(lambda *_: Answer("yes", 1)), numbered_cases(8), slots=2), disk)
    disk.before = lambda _: None

    assert "disk_full" == outcome.stopped
    assert fold(read(PATH, files=disk)).completed == outcome.state.completed


async def test_a_cancelled_run_says_so() -> None:
    """What was in the air when a run was cancelled from outside is recorded as cancelled, and the run as stopped."""
    task = Scripted(lambda _, times: Hang() if times == 1 else Answer("yes"))
    it, disk = define(task, numbered_cases(2)), SimulatedDisk()
    with trio.move_on_after(10):
        await run_virtual(it, disk)

    assert ["cancelled"] * 2 == [event.why for event in events(disk, AttemptInterrupted)]
    assert [RunStopped(reason="interrupted")] == events(disk, RunStopped)
    assert 2 == (await run_virtual(it, disk, resume=True)).state.completed
