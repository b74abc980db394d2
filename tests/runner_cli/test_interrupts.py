"""`run` with signals, kills and terminals: the screen, plain lines, exit codes, and what `resume` continues."""

import contextlib
import errno
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evaljournal.journal import verify
from evaljournal.journal.events import AttemptStarted
from tests.runner_cli.commands import evaljournal, failing_writes, printed, process, rejected, run_in_terminal, wait_for
from tests.runs import events

pytestmark = pytest.mark.usefixtures("evaluations")


def test_ctrl_c_then_resume(tmp_path: Path) -> None:
    """An interrupted run exits with 3, prints the resume command, and resumes without repeating completed trials."""
    with process("run", "evals/slow.py", "-s", "grace=0.1", hold=True) as first:
        wait_for(tmp_path / "runs/slow/0001", "attempt_started", 10)
        first.send_signal(signal.SIGINT)
        out, _ = first.communicate()

    assert 3 == first.returncode
    assert "slow interrupted: 6 of 40 trials done, in runs/slow/0001" in out
    assert "4 attempts were interrupted; if repeated" in out
    assert out.endswith("next: evaljournal resume runs/slow/0001\n")
    assert verify("runs/slow/0001").ok

    with process("resume") as second:
        out, _ = second.communicate()

    assert 0 == second.returncode
    assert "slow finished: 40 of 40 trials done" in out
    assert verify("runs/slow/0001").ok
    calls = Path("calls").read_text().split()
    assert {f"t{number}": 2 for number in range(6, 10)} == {name: times for name in calls if (times := calls.count(name)) > 1}


INTERRUPTED_IMPORT = """
import signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            signal.raise_signal(signal.SIGINT)

module = sys.argv.pop()
sys.argv.append("ls")
from evaljournal.__main__ import main
sys.meta_path.insert(0, Interrupt())
main()
"""


@pytest.mark.parametrize(
    "module",
    [
        "evaljournal.runner",
        "evaljournal.runner.cli",
        "click",
        "evaljournal.runner.cli.terminal.output",
        "evaljournal.runner.cli.commands.ls",
        "evaljournal.journal",
    ],
)
def test_ctrl_c_during_an_import(module: str) -> None:
    """Ctrl-C while evaljournal imports its own modules ends the process without a traceback."""
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, module]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert ended.returncode in {130, -signal.SIGINT}  # A shell shows both as 130.
    assert ended.stderr in {"", "Error: interrupted\n"}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("first", [2, 3])
def test_a_disk_that_fails_at_once(error: int, first: int) -> None:
    """If nothing was recorded, the message is to start again, not to resume; the same command then runs."""
    with failing_writes(error, first):
        failed = evaljournal("run", "evals/capitals.py", "-o", "r", "--plain")

    assert (3, True) == (failed.exit_code, "nothing was recorded" in failed.stderr)
    assert "resume" not in failed.stderr.splitlines()[-1]
    assert 0 == evaljournal("run", "evals/capitals.py", "-o", "r").exit_code
    assert verify("r").ok


def test_kill_then_resume(tmp_path: Path) -> None:
    """A killed run is reported as interrupted, not as running or stopped, and can be resumed."""
    with process("run", "evals/slow.py", hold=True) as first:
        wait_for(tmp_path / "runs/slow/0001", "attempt_started", 10)
        live = printed("status")
        status = evaljournal("status")
        errors = rejected("run", "evals/slow.py", "-o", "runs/slow/0001"), rejected("resume")
        first.kill()
        first.communicate()
    dead = printed("status")

    assert ("running", True, 4) == (live["status"], live["is_live"], live["trials"]["running"])
    assert f"running in process {first.pid} on " in status.stdout
    assert "slots    4 of 4 busy" in status.stdout
    assert (True, True) == ("is a run in progress" in errors[0], "is being written by" in errors[1])
    assert ("interrupted", False) == (dead["status"], dead["is_live"])
    assert "slow ended without a final record" in evaljournal("status").stdout
    assert 0 == evaljournal("resume").exit_code
    assert verify("runs/slow/0001").ok


def test_plain_lines(tmp_path: Path) -> None:
    """Without a terminal, there is a line per tenth and no control characters."""
    with process("run", "evals/slow.py", "-s", "grace=0", hold=True) as running:
        wait_for(tmp_path / "runs/slow/0001", "attempt_started", 10)
        assert running.stderr is not None
        lines = iter(running.stderr.readline, "")
        err = next(line for line in lines if line.startswith("6 of 40"))
        running.terminate()
        err += running.communicate()[1]

    assert re.search(r"^6 of 40 \(15 %\) · 6 outputs · 0 errors", err, re.MULTILINE)
    assert all(char == "\n" or char.isprintable() for char in err)
    assert 3 == running.returncode


def test_the_live_screen() -> None:
    """At a terminal the screen is drawn; Ctrl-C stops the run, clears the screen and restores the cursor."""
    code, screen = run_in_terminal("run", "evals/slow.py", "-s", "grace=0", until=b"4 of 4 busy", environment={"HOLD": "1"})

    assert 3 == code
    assert "longest  slot" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)
    assert screen.count("\x1b[?25l") == screen.count("\x1b[?25h") == 1
    assert "slow interrupted: 6 of 40 trials done" in screen.rpartition("\x1b[?25h")[2]


def test_stopping_is_shown() -> None:
    """Ctrl-C is acknowledged on the screen, or by a line, before in-flight attempts end."""
    hold = {"HOLD": "1"}
    _, screen = run_in_terminal("run", "evals/slow.py", "-s", "grace=2", until=b"4 of 4 busy", environment=hold)
    _, printed = run_in_terminal("run", "evals/slow.py", "-s", "grace=2", "--plain", until=b"6 of 40", environment=hold)

    pattern = r"stopping.* 4 attempts in flight, [01]\.\d+ s left; press Ctrl-C again to interrupt them"
    assert re.search(pattern, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen))
    assert re.search(pattern, printed)


STUCK = """
import time
import trio
from evaljournal import Case, evaluation

@evaluation(cases=[Case(name="t0", input=0)])
async def stuck(number: int) -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()

@evaluation(cases=[Case(name="t0", input=0), Case(name="t1", input=1)], loop="trio")
async def blocking(number: int) -> None:
    print("blocking")
    for _ in range(60_000):  # In pieces: a signal that comes just before a sleep begins does not end it.
        time.sleep(0.01)
"""


def test_the_screen_is_restored_before_a_forced_exit(tmp_path: Path) -> None:
    """If an attempt cannot be cancelled, the cursor is restored and the run can be resumed."""
    (tmp_path / "evals/stuck.py").write_text(STUCK)
    code, screen = run_in_terminal("run", "evals/stuck.py:stuck", "-s", "grace=0", until=b"1 of ")

    assert 3 == code
    assert screen.count("\x1b[?25l") == screen.count("\x1b[?25h") == 1
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.rpartition("\x1b[?25h")[2]).strip().split("\r\n")
    assert "not responding to cancellation, abandoned: t0 in slot 0" == lines[0]
    assert "stuck interrupted: 0 of 1 trial done, in runs/stuck/0001" == lines[1]
    assert "next: evaljournal resume runs/stuck/0001" == lines[-1]
    assert verify("runs/stuck/0001").ok


def test_repeated_ctrl_c_interrupts_a_blocking_task(tmp_path: Path) -> None:
    """A further Ctrl-C interrupts a blocking task, and the resume command is printed."""
    (tmp_path / "evals/stuck.py").write_text(STUCK)
    with process("run", "evals/stuck.py:blocking") as running:
        assert running.stderr is not None
        while running.stderr.readline() not in {"blocking\n", ""}:
            pass
        err = ""
        for patience in (0.1, 0.1, 30, 30):  # Two signals in quick succession may arrive as one; a fourth replaces it.
            running.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, err = running.communicate(timeout=patience)
                break
        running.kill()

    assert (3, "Error: interrupted; continue with `evaljournal resume runs/blocking/0001`") == (
        running.returncode,
        err.splitlines()[-1],
    )
    assert 1 == len(events("runs/blocking/0001", AttemptStarted))
    assert verify("runs/blocking/0001").ok


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["importing", "reading"])
def test_a_signal_before_the_start(tmp_path: Path, number: signal.Signals, when: str) -> None:
    """A signal while the file is imported or the cases are read ends the command and leaves no files."""
    (tmp_path / "evals/late.py").write_text(
        f"""
import sys, time
from evaljournal import evaluation

def wait(when):
    if when == {when!r}:
        print("waiting", file=sys.stderr, flush=True)
        for _ in range(60_000):  # In pieces: a signal that comes just before a sleep begins does not end it.
            time.sleep(0.01)

class Cases(list):
    def __iter__(self):
        wait("reading")
        return super().__iter__()

wait("importing")

@evaluation(cases=Cases([1]))
async def late(number):
    return number
"""
    )
    with process("run", "evals/late.py") as running:
        assert running.stderr is not None
        assert "waiting\n" == running.stderr.readline()
        running.send_signal(number)
        out, err = running.communicate()

    assert (130, "", "Error: interrupted\n") == (running.returncode, out, err)
    assert not Path("runs").exists()


@pytest.mark.parametrize("options", [["--plain"], []])
def test_no_live_screen_with_plain_or_in_ci(options: list[str]) -> None:
    """With --plain, or in CI, a terminal gets plain lines."""
    code, screen = run_in_terminal(
        "run", "evals/slow.py", *options, until=b"never", environment={} if options else {"CI": "true"}
    )

    assert (0, False, True) == (code, "\x1b" in screen, "slow finished: 40 of 40 trials done" in screen)
