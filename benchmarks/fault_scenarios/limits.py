"""A disk that fills up, signals, and limits of files and memory: the exit code is right, and `resume` completes the run."""

import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks._figures import Figures
from evaljournal.journal.events import TrialCompleted
from evaljournal.runner.runs.verification import verify
from evaljournal.runner.testing import events_of

TIMEOUT = 120.0
"""Seconds for one command."""
TRIALS = 200
_TASK = """
import os
import trio
from evaljournal import evaluation

@evaluation(cases=[dict(id=str(n), input=n) for n in range({trials})], slots=20, timeout=30)
async def task(number: int) -> str:
    {body}
    await trio.sleep(0.02)
    return str(number) * {length}
"""


def full_disk(figures: Figures, directory: Path) -> None:
    """A file system of 1 MiB that fills up: exit code 3, then `resume` completes every trial once."""
    mount = directory / "mount"
    mount.mkdir()
    arguments = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)]
    if subprocess.run(arguments, capture_output=True, check=False).returncode:  # noqa: S603  # fixed arguments
        print("  not run: mounting a file system needs more rights")
        return
    try:
        filler = mount / "filler"
        filler.write_bytes(bytes(700_000))
        task = _write_task(directory, length=1_000)
        code = _run("run", str(task), "-o", str(mount / "run"))
        figures.show("exit code when the disk was full (3)", code, minimum=3, maximum=3)
        filler.unlink()
        _show_resumed(figures, mount / "run")
    finally:
        subprocess.run(["umount", str(mount)], check=True)  # noqa: S603, S607  # fixed arguments


def signals(figures: Figures, directory: Path) -> None:
    """SIGSTOP and SIGCONT change nothing; SIGHUP and SIGTERM stop the run with exit code 3, and `resume` completes it."""
    for number, sequence in enumerate(([signal.SIGSTOP, signal.SIGCONT], [signal.SIGHUP], [signal.SIGTERM])):
        path, hold = directory / str(number), directory / "hold"
        hold.touch()  # Half of the trials wait until the signals were sent.
        body = f"while number >= {TRIALS // 2} and os.path.exists({str(hold)!r}): await trio.sleep(0.01)"
        with _running("run", str(_write_task(directory, body=body)), "-o", str(path)) as process:
            _wait_for_records(path)
            for signal_number in sequence:
                process.send_signal(signal_number)
                time.sleep(0.5)
            hold.unlink()
            code = process.wait(TIMEOUT)
        expected = 0 if signal.SIGSTOP in sequence else 3
        figures.show(f"exit code after {sequence[0].name} ({expected})", code, minimum=expected, maximum=expected)
        _show_resumed(figures, path)


def few_files(figures: Figures, directory: Path) -> None:
    """With 30 file descriptors for 200 trials that open a file each: failures are recorded, and `resume` completes the run."""
    opens = "file = open(__file__)"
    path, task = directory / "run", _write_task(directory, body=opens, length=1)
    code = _run("run", str(task), "-o", str(path), "--slots", "100", "-s", "policy=fixed", limit=(resource.RLIMIT_NOFILE, 30))
    figures.show("exit code with too few file descriptors (0, 1 or 3)", code, minimum=0, maximum=3)
    _show_resumed(figures, path)


def little_memory(figures: Figures, directory: Path) -> None:
    """A task that needs more memory than the process may have: its trials fail, the others complete, exit code 1."""
    body = "data = bytearray(2_000_000_000 if number % 10 == 0 else 1)"
    path, task = directory / "run", _write_task(directory, body=body)
    code = _run("run", str(task), "-o", str(path), "-s", "retry.errors=0", limit=(resource.RLIMIT_AS, 1_500_000_000))
    figures.show("exit code with too little memory (1)", code, minimum=1, maximum=1)
    completed = sum(isinstance(event, TrialCompleted) for event in events_of(path))
    figures.show("trials completed of those that need little memory", completed, minimum=TRIALS * 0.9, maximum=TRIALS * 0.9)
    figures.show("runs that do not verify", not verify(path).ok, maximum=0)


def _write_task(directory: Path, *, body: str = "pass", length: int = 1) -> Path:
    path = directory / "task.py"
    path.write_text(_TASK.format(trials=TRIALS, body=body, length=length))
    return path


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "evaljournal", *arguments]


def _prepare(limit: tuple[int, int] | None) -> None:
    """Set a limit in a new process, and let SIGHUP reach it: it is ignored by the children of `nohup`."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if limit is not None:
        resource.setrlimit(limit[0], (limit[1], limit[1]))


def _run(*arguments: str, limit: tuple[int, int] | None = None) -> int:
    with _running(*arguments, limit=limit) as process:
        return process.wait(TIMEOUT)


@contextmanager
def _running(*arguments: str, limit: tuple[int, int] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command without output; it is killed if the block fails."""
    process = subprocess.Popen(  # noqa: S603  # our own command; without threads here, preexec_fn is safe
        _command(*arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=partial(_prepare, limit),  # noqa: PLW1509
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(TIMEOUT)


def _wait_for_records(path: Path) -> None:
    """Wait until a run has completed some trials."""
    until = time.monotonic() + TIMEOUT
    journal = path / "journal-000001.jsonl"
    while not journal.exists() or journal.read_bytes().count(b"trial_completed") < TRIALS // 10:
        if time.monotonic() > until:
            raise TimeoutError(f"{path} made no progress")
        time.sleep(0.01)


def _show_resumed(figures: Figures, path: Path) -> None:
    """Resume a run without limits; show what is wrong with it then."""
    _run("resume", str(path), "--retry-failed")
    completed = Counter(event.trial for event in events_of(path) if isinstance(event, TrialCompleted))
    wrong = sum(completed[str(number)] != 1 for number in range(TRIALS))
    figures.show("trials not completed exactly once after resume", wrong, maximum=0)
    figures.show("runs that do not verify", not verify(path).ok, maximum=0)
