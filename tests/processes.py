"""Child processes of tests: every wait has a limit, and none outlives its test."""

import atexit
import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from subprocess import TimeoutExpired
from types import TracebackType
from typing import Any, Final, Self

ROOT = Path(__file__).parents[1]
"""The repository; tests run in a temporary directory."""
TIMEOUT = 120.0
"""Seconds to wait for a child process or a thread: much more than any of them needs on a busy machine."""


def small_environment(**variables: str) -> dict[str, str]:
    """Return an environment with an empty PATH; the list of own runs is that of the tests, not the user's."""
    return {"PATH": "", "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"], **variables}


def run_command(
    *command: object, check: bool = False, timeout: float = TIMEOUT, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Run a command until it exits, and return its output as text."""
    options = {"capture_output": True, "text": True, **options}
    return subprocess.run([str(word) for word in command], check=check, timeout=timeout, **options)


class Process(subprocess.Popen[str]):
    """A `Popen` with text pipes and bounded waits; it is killed if its `with` block fails."""

    def __init__(self, args: list[str], **options: Any) -> None:
        super().__init__(args, text=True, encoding="utf-8", **options)

    def wait(self, timeout: float | None = None) -> int:
        return super().wait(TIMEOUT if timeout is None else timeout)

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:  # noqa: A002  # as in Popen
        return super().communicate(input, TIMEOUT if timeout is None else timeout)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        if kind is not None:
            self.kill()
        try:
            super().__exit__(kind, value, traceback)
        except TimeoutExpired:
            self.kill()
            raise


_NUMBER = struct.Struct("i")


class Forks:
    """Processes that run one program and start quickly: a first process imports the modules, then forks for each of them."""

    def __init__(self, *program: object) -> None:
        """Start the first process: `program` is a script, or `-c` and a text."""
        self._socket, child_end = socket.socketpair()
        with child_end:
            command = [sys.executable, *map(str, program), str(ROOT)]
            self._server = Process(command, stdin=child_end, env=small_environment())

    def start(self, *arguments: object) -> "Forked":
        """Start a process; `forked_arguments` returns its arguments to the script."""
        self._socket.settimeout(TIMEOUT)
        pipes = [os.pipe() for _ in range(3)]
        request = json.dumps([str(argument) for argument in arguments]).encode()
        socket.send_fds(self._socket, [request], [end for _, end in pipes])
        for _, child_end in pipes:
            os.close(child_end)
        return Forked(*(parent_end for parent_end, _ in pipes))

    def close(self) -> None:
        self._socket.close()
        self._server.wait()


@contextlib.contextmanager
def forks_of(source: str, directory: Path) -> Iterator[Forks]:
    """Yield what starts processes with this program, which is written to a directory."""
    script = directory / "script.py"
    script.write_text(source)
    forks = Forks(script)
    yield forks
    forks.close()


class Forked:
    """A process of `Forks`, with the methods of `Process`; its unread output must fit into a pipe."""

    def __init__(self, stdout: int, err: int, status: int) -> None:
        self.stdout, self.stderr = open(stdout, encoding="utf-8"), open(err, encoding="utf-8")  # noqa: SIM115  # see `__exit__`
        self._status = open(status, "rb", buffering=0)  # noqa: SIM115  # the same
        self.pid = self._receive()
        self.returncode: int | None = None

    def _receive(self, timeout: float = TIMEOUT) -> int:
        """Read the next of two numbers, the id of the process and its exit code."""
        if not select.select([self._status], [], [], timeout)[0]:
            raise TimeoutExpired("a forked process", timeout)
        (number,) = _NUMBER.unpack(self._status.read(_NUMBER.size))
        return int(number)

    def poll(self) -> int | None:
        with contextlib.suppress(TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float = TIMEOUT) -> int:
        if self.returncode is None:
            self.returncode = self._receive(timeout)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end of the process; return the rest of its output and of its standard error, and close them."""
        self.wait(TIMEOUT if timeout is None else timeout)
        try:
            return self.stdout.read(), self.stderr.read()
        finally:
            self._close_pipes()

    def end(self, timeout: float = TIMEOUT) -> tuple[int, str, str]:
        """Wait for the end of the process; return its exit code, the rest of its output and its standard error."""
        with self:
            return self.wait(timeout), *self.communicate()

    def close(self) -> None:
        """Kill the process if it is still running."""
        if self.returncode is None:
            self.kill()
            self.end()

    def send_signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self.returncode is None:
            self.kill()
        try:
            self.wait()
        finally:
            self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self.stdout, self.stderr, self._status):
            pipe.close()


_PYTHON: Final = """
import json, os, pkgutil, runpy, sys
import pytest
import evaljournal.runner.cli.session
from evaljournal.__main__ import main
from evaljournal.runner.cli import commands
for module in pkgutil.iter_modules(commands.__path__, f"{commands.__name__}."):
    __import__(module.name)
sys.path.insert(0, sys.argv[1])
from tests.processes import forked_arguments

directory, environment, *sys.argv = forked_arguments()
del sys.path[:2]  # The tests, and the working directory.
os.chdir(directory)
os.environ.clear()
os.environ.update(json.loads(environment))
sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
match sys.argv:
    case ["evaljournal", *_]:
        main()
    case ["-c", text, *_]:
        del sys.argv[1]
        sys.path.insert(0, "")
        exec(text, {"__name__": "__main__"})
    case ["-m", module, *_]:
        del sys.argv[0]
        sys.path.insert(0, directory)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    case [script, *_]:
        sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
        runpy.run_path(script, run_name="__main__")
"""
"""The command `evaljournal`, or `python` with its arguments, after the imports of all commands and of pytest."""


@functools.cache
def _python_forks() -> Forks:
    forks = Forks("-c", _PYTHON)
    atexit.register(forks.close)
    return forks


def start_forked(command: Iterable[object], directory: Path | str = ".", environment: Mapping[str, str] = os.environ) -> Forked:
    """Start `evaljournal` with its arguments, or `python`, in a process that starts quickly.

    For tests of what a command does to its process, or from the first import on, start a process of its own.
    """
    name, *arguments = command
    program = ["evaljournal"] if name == "evaljournal" else []
    return _python_forks().start(os.path.abspath(directory), json.dumps(dict(environment)), *program, *arguments)


def run_forked(
    command: Iterable[object], directory: Path | str = ".", environment: Mapping[str, str] = os.environ
) -> tuple[int, str, str]:
    """Run `evaljournal` or `python` so until it exits; return exit code, output and standard error."""
    with start_forked(command, directory, environment) as process:
        printed = process.stdout.read()
        return process.wait(), printed, process.stderr.read()


def wait_until(condition: Callable[[], bool]) -> bool:
    """Wait for a condition; return whether it became true."""
    deadline = time.monotonic() + TIMEOUT
    while not (is_true := condition()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return is_true


def is_alive(pid: int) -> bool:
    """Return whether a process is running; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def forked_arguments() -> list[str]:
    """Fork for each request of `Forks`, and return its arguments in the new process; call it after the imports."""
    gc.freeze()  # Otherwise each process copies all objects when it first looks for garbage.
    server = socket.socket(fileno=0)
    while True:
        request, pipes, _, _ = socket.recv_fds(server, 65_536, 3)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not request:
            sys.exit()
        if not os.fork():
            break
        for pipe in pipes:
            os.close(pipe)
    server.detach()
    status = pipes.pop()
    if pid := os.fork():
        for pipe in pipes:
            os.close(pipe)
        with contextlib.suppress(BrokenPipeError):
            os.write(status, _NUMBER.pack(pid))
            os.write(status, _NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        os._exit(0)
    os.close(status)
    for pipe, number in zip([os.open(os.devnull, os.O_RDONLY), *pipes], range(3), strict=True):
        os.dup2(pipe, number)
        os.close(pipe)
    arguments: list[str] = json.loads(request)
    return arguments
