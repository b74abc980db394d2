"""Exit codes when the user's code, the standard streams or the system fail: they are those of docs/guarantees.md."""

import errno
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from evaljournal import Retry, Score, note
from evaljournal.journal import verify
from evaljournal.journal.disk.files import Files
from evaljournal.journal.disk.segments import ROLL_AT
from evaljournal.journal.events import AttemptFailed, Noted, ScoringFailed
from evaljournal.journal.format.blobs import LIMIT
from evaljournal.runner.cli import cli
from tests.journal.disk import SimulatedDisk
from tests.journal.samples import session, started, trial, write_sync
from tests.processes import ROOT, TIMEOUT
from tests.runs import define, define_real, events, numbered_cases, run_real, run_virtual


class Exits:
    """An object whose attributes, methods and conversions raise SystemExit."""

    def __getattr__(self, name: str) -> Any:
        raise SystemExit(0)

    def __str__(self) -> str:
        raise SystemExit(0)

    __repr__ = __str__


class ExitingError(Exception):
    """An exception that cannot be examined."""

    def __str__(self) -> str:
        raise SystemExit(9)

    @property
    def response(self) -> Any:
        raise SystemExit(9)


class Model:
    """An output that cannot be converted."""

    def model_dump(self, **_: Any) -> Any:
        raise SystemExit(0)


def raising(error: BaseException) -> Callable[..., Any]:
    """Return a function that raises an exception."""

    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


def invalid_category(_: BaseException) -> Any:
    """Return an invalid category."""
    return "no such category"


exit_0, fail = raising(SystemExit(0)), raising(ExitingError())


async def run_one(task: Any, disk: SimulatedDisk, *, score: Any = None, **options: Any) -> Any:
    async def call(value: str) -> Any:
        result = task(value)
        return await result if inspect.isawaitable(result) else result

    evaluation = define(call, numbered_cases(1), **{"retry": Retry(errors=0), **options})
    if score is not None:
        evaluation.score(name="exact")(score)
    return await run_virtual(evaluation, disk)


@pytest.mark.parametrize(
    ("task", "options", "error"),
    [
        (exit_0, {}, "SystemExit"),
        (fail, {}, f"{__name__}.ExitingError"),
        (fail, {"retry": Retry(classify=exit_0)}, "SystemExit"),
        (fail, {"retry": Retry(classify=raising(ZeroDivisionError()))}, "ZeroDivisionError"),
        (fail, {"retry": Retry(classify=invalid_category)}, "evaljournal.UsageError"),
        (lambda _: Exits(), {}, "Unserializable"),
        (lambda _: Model(), {}, "Unserializable"),
    ],
    ids=["task", "exception", "classify", "classify fails", "wrong category", "attribute", "model_dump"],
)
async def test_a_system_exit_in_a_task_fails_its_trial(task: Any, options: Any, error: str, disk: SimulatedDisk) -> None:
    """Whatever a task, its exception, its output or `Retry(classify=…)` raises is the failure of that trial."""
    outcome = await run_one(task, disk, **options)

    assert ("", 1) == (outcome.stop_reason, outcome.state.failed)
    assert [error] == [event.error for event in events(disk, AttemptFailed)]


SCORES: dict[str, Any] = {
    "a call": exit_0,
    "an interrupt": raising(KeyboardInterrupt()),
    "a value": Exits,
    "a value in a mapping": lambda: {"a": Exits()},
    "a long reason": lambda: Score(value=True, reason="x" * 2_000_000),
}


@pytest.mark.parametrize("kind", SCORES)
async def test_a_system_exit_in_a_scorer_fails_its_score(kind: str, disk: SimulatedDisk) -> None:
    """Whatever a scorer or its score raises is the failure of that score; so is a score that is too large to record."""

    def score(**_: Any) -> Any:
        return SCORES[kind]()

    outcome = await run_one(lambda _: 1, disk, score=score)

    assert ("", 1) == (outcome.stop_reason, outcome.state.completed)
    assert ["exact"] == [event.scorer for event in events(disk, ScoringFailed)]


def test_a_system_exit_in_a_note_is_recorded(path: Path) -> None:
    """A note that cannot be converted is replaced by the error; a plain function sends it from another thread."""

    def task(_: str) -> int:
        note(model=Model(), **{"n" * 2_000_000: 1})
        return 1

    outcome = run_real(define_real(task), path)

    assert ("", 1) == (outcome.stop_reason, outcome.state.completed)
    assert ["Model cannot be converted: SystemExit: 0", 1] == [event.value for event in events(path, Noted)]


ENDING = """
class Cases(list):
    def __iter__(self):
        raise SystemExit(0)

def cases(count):
    for number in range(count):
        yield Case(name=str(number), input=number)
    raise SystemExit(0)

@evaluation(cases={cases})
async def task(number):
    return number
"""
STOPPING = """
import asyncio

async def exits():
    raise SystemExit(0)

@evaluation(cases=range(8), timeout=20, retry=Retry(errors=0))
async def task(number):
    if number == 2:
        asyncio.get_running_loop().stop()
    if number == 3:
        asyncio.create_task(exits()).add_done_callback(lambda task: task.exception())
    await asyncio.sleep(0.001)
    return number
"""
LONG_NAME = '(Case(name="n" * 600_000 if number == 20 else str(number), input=number) for number in range(30))'
LONG_KEY = '[Case(name="a", input=1, metadata={"key": "k" * 600_000})], limit_key="key"'


@pytest.mark.parametrize(
    ("source", "options", "code", "message"),
    [
        (ENDING.replace("{cases}", "lambda: cases(0)"), [], 2, "SystemExit: 0"),
        (ENDING.replace("{cases}", "lambda: cases(20)"), [], 3, "SystemExit: 0"),
        (ENDING.replace("{cases}", "Cases([1])"), [], 2, "SystemExit"),
        (ENDING.replace("{cases}", "Cases([1])"), ["--dry-run"], 2, "SystemExit"),
        (ENDING.replace("{cases}", LONG_NAME), [], 3, "600,000 characters"),
        (ENDING.replace("{cases}", LONG_KEY), [], 2, "600,000 characters"),
        (STOPPING, [], 0, "8 outputs · 0 errors"),
    ],
    ids=["no case", "later case", "list", "dry run", "long name", "long rate-limit key", "event loop"],
)
def test_files_that_end_or_stop_the_process(tmp_path: Path, source: str, options: list[str], code: int, message: str) -> None:
    """Cases that end the process, or that no record can contain, are a usage error (2), or 3 once the run has started.

    A task that stops the asyncio loop, or raises SystemExit in it, affects no other call.
    """
    (tmp_path / "task.py").write_text("from evaljournal import Case, Retry, evaluation\n" + source)
    result = CliRunner().invoke(cli, ["run", "task.py", *options])

    assert code == result.exit_code, result.output
    assert message in result.output


DRIVER = """
import json, os, sys, time
sys.path.insert(0, {root!r})
import evaljournal.runner.sessions.api, evaljournal.runner.cli.commands.run, evaljournal.runner.cli.terminal.display  # Once.

def run(prepare, *arguments):
    child = os.fork()
    if not child:
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        prepare()
        sys.argv = ["evaljournal", "run", *arguments, "--plain"]
        try:
            evaljournal.runner.cli.main()
        except SystemExit as exc:
            try:
                sys.stderr.flush()
            finally:
                os._exit(exc.code or 0)
        finally:
            os._exit(99)
    deadline = time.monotonic() + 60
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, 9)
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(ended[1])

def fill_stderr():
    os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
    sys.stderr = open(2, "w", closefd=False)

def close_streams():
    os.closerange(0, 3)
    sys.stdin = sys.stdout = sys.stderr = None

keep_streams = lambda: None
print(json.dumps({{
    "full": [run(fill_stderr, "tasks.py:good"), run(fill_stderr, "tasks.py:stopped")],
    "closed": [run(close_streams, "tasks.py:good"), run(close_streams, "tasks.py:stopped")],
    "closes standard output": [
        run(keep_streams, f"tasks.py:{{name}}", "--json") for name in ("closes", "closes_and_stops")
    ],
    "closes everything": [run(keep_streams, "tasks.py:closes_everything")],
    "no threads": [run(keep_streams, "tasks.py:no_threads")],
    "no asyncio": [run(keep_streams, "tasks.py:no_threads_in_asyncio")],
}}))
"""

TASKS = """
import os, threading
from evaljournal import Case, Retry, evaluation

CASES = [Case(name=str(number), input=number) for number in range(12)]
ONCE = Retry(errors=0)

@evaluation(cases=CASES)
async def good(number):
    print("prints to standard error")
    return number

@evaluation(cases=CASES, slots=1, fail_fast=True, retry=ONCE)
async def stopped(number):
    return 1 // (number - 5)

@evaluation(cases=CASES, slots=1)
async def closes(number):
    if number == 5:
        os.close(1)
        assert os.open("file", os.O_WRONLY | os.O_CREAT) == 1
    return number

@evaluation(cases=CASES, slots=1, fail_fast=True, retry=ONCE)
async def closes_and_stops(number):
    if number == 5:
        os.close(1)
        raise ValueError
    return number

@evaluation(cases=CASES, slots=1)
async def closes_everything(number):
    if number == 5:
        os.closerange(3, 100)
    return number

def cases_that_disable_threads():
    for number in range(12):
        if number == 3:
            threading.stack_size(1 << 46)
        yield Case(name=str(number), input=number)

@evaluation(cases=cases_that_disable_threads, slots=4, retry=ONCE)
def no_threads(number):
    return number

def case_that_disables_threads():
    threading.stack_size(1 << 46)
    yield Case(name="a", input=1)

@evaluation(cases=case_that_disables_threads, loop="asyncio", retry=ONCE)
async def no_threads_in_asyncio(number):
    return number
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_streams_files_and_threads(tmp_path: Path) -> None:
    """Closed or full standard streams do not change the exit code; it is 3 with a closed journal, 1 with no asyncio thread."""
    (tmp_path / "tasks.py").write_text(TASKS)
    driver = [sys.executable, "-c", DRIVER.format(root=str(ROOT))]
    process = subprocess.run(driver, cwd=tmp_path, capture_output=True, text=True, timeout=2 * TIMEOUT, check=True)

    log, codes = (tmp_path / "log").read_text(), json.loads(process.stdout)
    expected = {"full": [0, 3], "closed": [0, 3], "closes standard output": [0, 3], "closes everything": [3], "no asyncio": [1]}
    assert codes.pop("no threads") in ([0], [1])  # Threads that are idle already can still be used.
    assert expected == codes
    assert not (tmp_path / "file").read_bytes()
    assert 2 == log.count('"exit_code"')
    for journal in (tmp_path / "runs").glob("*/*"):
        assert verify(journal).ok, journal


DELETING = """
import os, pathlib, time
from evaljournal import Case, evaluation

@evaluation(cases=[Case(name=f"case-{number}", input=number) for number in range(200)], slots=2)
def deleting(number):
    if number == 5:
        pathlib.Path("run/journal-000001.jsonl").unlink()
    time.sleep(0.01)
    return number
"""


def test_a_deleted_journal_stops_the_run(tmp_path: Path) -> None:
    """A run whose journal is deleted stops with exit code 4, and names the file."""
    (tmp_path / "deleting.py").write_text(DELETING)
    result = CliRunner().invoke(cli, ["run", "deleting.py", "-o", "run", "--plain"])

    assert 4 == result.exit_code, result.output
    assert "journal-000001.jsonl was deleted" in result.output
    assert "no record is left" in result.output


@pytest.mark.parametrize("command", [["verify"], ["export", "--format", "jsonl", "-o", "out.jsonl"], ["salvage", "-o", "copy"]])
@pytest.mark.parametrize("unreadable", ["blob", "segment"])
def test_an_unreadable_file_is_damage(path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], unreadable: str) -> None:
    """If the system cannot read a blob or a segment, it is named, the exit code is 4, and the rest is exported or salvaged."""
    outputs = ["x" * (LIMIT + number) for number in range(2)] if unreadable == "blob" else ["short"] * 40
    trials = [event for number, output in enumerate(outputs) for event in trial(f"t{number}", output)]
    write_sync(path, [started(), session(), *trials], roll_at=6_000 if unreadable == "segment" else ROLL_AT)
    name = "journal-000002.jsonl" if unreadable == "segment" else next(path.glob("blobs/*/*.json")).name
    read = Files.read

    def failing_read(self: Files, file: str, *parents: int) -> Any:
        if file.endswith(name):
            raise OSError(errno.EIO, "Input/output error", file)
        return read(self, file, *parents)

    monkeypatch.setattr(Files, "read", failing_read)
    result = CliRunner().invoke(cli, [command[0], str(path), *command[1:]])

    assert 4 == result.exit_code, result.output
    assert name in result.output.splitlines()[-1]
    if command[0] == "export":
        assert Path("out.jsonl").read_text().count("\n") >= 1
    if command[0] == "salvage":
        assert verify("copy").ok
        assert verify("copy").records > 8
