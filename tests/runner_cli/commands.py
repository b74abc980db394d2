"""Shared helpers of the tests of commands: two evaluations, and ways to run a command."""

import itertools
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from evaljournal.journal.disk.files import Files
from evaljournal.journal.events import TrialScored
from evaljournal.runner.cli import cli
from tests.journal.samples import segment
from tests.processes import TIMEOUT, Forked, run_forked, start_forked, wait_until
from tests.runs import events

SCRIPT = shutil.which("evaljournal")
COMMAND = [SCRIPT] if SCRIPT else [sys.executable, "-c", "from evaljournal.runner.cli import main; main()"]

QUICK = """
from evaljournal import Case, Retry, evaluation, note

CASES = [Case(name=name, input=name, expected=name.upper()) for name in ("peru", "chile", "cuba", "france", "japan")]

@evaluation(cases=CASES, slots=2, timeout=5, retry=Retry(errors=0))
async def capitals(name: str) -> str:
    print("asked about", name)
    note(tokens=10, cost=0.5)
    if name == FAILS:
        raise ValueError("no such country")
    return name.upper()

@capitals.score
def exact(output: str, case: Case[str, str]) -> bool:
    return output == case.expected
"""

SLOW = """
import os
import trio
from evaljournal import Case, evaluation

@evaluation(cases=[Case(name=f"t{number}", input=number) for number in range(40)], slots=4)
async def slow(number: int) -> int:
    with open("calls", "a") as file:
        file.write(f"t{number}\\n")
    if number >= 6 and "HOLD" in os.environ:
        await trio.sleep_forever()
    await trio.sleep(0.001)
    return number
"""

ONE_BY_ONE = ("--slots", "1", "-s", "policy=fixed")

ROWS = [
    {"id": "peru", "question": "lima", "answer": "LIMA", "topic": "west"},
    {"id": "cuba", "question": "havana", "answer": "HAVANA", "topic": "island"},
    {"id": "chile", "question": "santiago", "answer": "Santiago!", "topic": "south"},
]
COMMANDED = ("run", "--data", "qa.jsonl", "--command", "./answer.sh", "--score", "exact", "-s", "policy=fixed")
"""A run of these cases."""


def define(source: str) -> None:
    """Write the evaluation to a new file: Python distinguishes versions by second and length only."""
    file = Path("evals/capitals.py")
    file.unlink(missing_ok=True)
    file.write_text(f"{source}\n# {time.monotonic_ns()}\n")


def evaljournal(*arguments: object) -> Result:
    """Invoke a command; click leaves control characters in the output."""
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], color=True)


def rejected(*arguments: object) -> str:
    """Return the error of a command that ends with a usage error, and prints nothing else."""
    result = evaljournal(*arguments)
    assert (2, "") == (result.exit_code, result.stdout), result.output
    return result.stderr


def printed(*arguments: object) -> Any:
    """Return what a command prints with `--json`."""
    return orjson.loads(evaljournal(*arguments, "--json").stdout)


def process(*arguments: object, hold: bool = False) -> Forked:
    """Start a command as a process; `hold` pauses the slow evaluation in the middle."""
    return start_forked(["evaljournal", *arguments], environment={**os.environ, "HOLD": "1"} if hold else os.environ)


def run_process(*arguments: object) -> tuple[int, str, str]:
    """Run a command as a process until it exits."""
    return run_forked(["evaljournal", *arguments])


@contextmanager
def failing_writes(error: int, first: int) -> Generator[None]:
    """Let every write of a journal fail, from the given one on."""
    write, count = Files.write, itertools.count(1)

    def fail(self: Files, fd: int, data: memoryview) -> int:
        if next(count) >= first:
            raise OSError(error, os.strerror(error))
        return write(self, fd, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Files, "write", fail)
        yield


def wait_for(path: Path, text: str, times: int) -> None:
    """Wait until a journal has a text a number of times."""
    assert wait_until(lambda: segment(path).exists() and segment(path).read_text().count(text) >= times)


def run_in_terminal(*arguments: object, until: bytes, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a command in a pseudo-terminal; press Ctrl-C when a text appears."""
    import pty  # only on POSIX systems

    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(COMMAND[0], [*COMMAND, *map(str, arguments)], {**os.environ, "TERM": "xterm", **(environment or {})})  # noqa: S606
    screen, pressed = b"", False
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                screen += os.read(terminal, 65_536)
            except OSError:
                break
        if until in screen and not pressed:
            os.write(terminal, b"\x03")
            pressed = True
    else:
        os.kill(pid, signal.SIGKILL)
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), screen.decode()


def scores(path: Path | str, scorer: str) -> dict[str, Any]:
    """Return the last value of a scorer for each trial."""
    return {event.trial: event.value for event in events(path, TrialScored) if event.scorer == scorer}


def journal_lines(result: Result) -> list[str]:
    """Return the lines of a screen that have the number of the record."""
    return [line for line in result.stdout.splitlines() if line.startswith("journal")]
