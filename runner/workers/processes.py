"""Workers in processes: on this machine, or started through a command such as ssh or docker."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import attrs
import trio

from runner.errors import UsageError, is_whole, valid
from runner.secrets import mask
from runner.workers.pool import StartWorker, WorkerDied, valid_concurrency, valid_tasks
from runner.workers.streams import EXIT_TIMEOUT, START_CODE, FrameSplitter, StderrPrinter, exit_in_words

_CHUNK: Final = 1 << 18
_DRAINED: Final = 0.5
"""Seconds without a chunk after which everything that a process had sent before it exited was read."""
_CONNECTION_LOST: Final = 255
"""Exit code of ssh if the connection failed; that of the worker otherwise."""


class ProcessPipe:
    """The standard streams of a process that is a worker, or is connected to one."""

    def __init__(self, process: trio.Process, where: str, *, lost_codes: Sequence[int] = ()) -> None:
        self.where = where
        self._process = process
        self._lost_codes = lost_codes
        self._pending: list[bytes] = []
        self._has_pending = trio.Event()
        self._chunks = 0
        """Chunks that were read."""

    def send(self, frame: bytes, /) -> None:
        """Send a frame."""
        self._pending.append(frame)
        self._has_pending.set()

    def kill(self) -> None:
        """End the process and its group."""
        if self._process.returncode is None:
            self._kill_group()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL) if sys.platform != "win32" else self._process.kill()

    async def wait_ended(self) -> None:
        """Wait until the process has exited and everything it sent was read, then kill the processes that it has started.

        One of them may have left the group, and keep the pipe open.
        """
        await self._process.wait()
        self._kill_group()
        read = -1
        while read != self._chunks:
            read = self._chunks
            await trio.sleep(_DRAINED)

    async def write(self) -> None:
        """Write the frames that were sent, until the process has ended."""
        assert self._process.stdin is not None
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while True:
                await self._has_pending.wait()
                frames, self._pending, self._has_pending = self._pending, [], trio.Event()
                frames.append(b"")
                await self._process.stdin.send_all(b"\n".join(frames))

    async def frames(self) -> AsyncGenerator[list[bytes]]:
        """Yield the frames that arrive."""
        assert self._process.stdout is not None
        splitter = FrameSplitter()
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while chunk := await self._process.stdout.receive_some(_CHUNK):
                self._chunks += 1
                if lines := splitter.split(bytes(chunk)):
                    yield lines
        with trio.move_on_after(EXIT_TIMEOUT) as timeout:
            await self._process.wait()
        if timeout.cancelled_caught:
            self.kill()
            raise WorkerDied("killed: it closed its standard output")
        code = await self._process.wait()
        raise WorkerDied(exit_in_words(code), is_external=code in self._lost_codes)

    async def forward_stderr(self) -> None:
        """Print what the worker writes to standard error."""
        assert self._process.stderr is not None
        printer = StderrPrinter()
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for chunk in self._process.stderr:
                printer.print(bytes(chunk))
        printer.end()

    async def end(self) -> None:
        """Close the pipe, upon which the worker exits; kill it if it does not."""
        with trio.CancelScope(shield=True):
            assert self._process.stdin is not None
            await self._process.stdin.aclose()
            with trio.move_on_after(EXIT_TIMEOUT):
                await self._process.wait()
            self.kill()
            await self._process.wait()
            for stream in (self._process.stdout, self._process.stderr):
                if stream is not None:
                    await stream.aclose()


class _Processes:
    """The processes of a pool during a session."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    async def start(self, line: Sequence[str], where: str, *, lost_codes: Sequence[int] = ()) -> ProcessPipe:
        """Start a process; raise `WorkerDied` if that is not possible."""
        pipe = subprocess.PIPE
        try:
            # It has a session of its own, because Ctrl-C is for the process of the run, which stops its workers.
            process = await trio.lowlevel.open_process(line, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        except OSError as exc:
            raise WorkerDied(f"cannot run {line[0]!r}: {exc.strerror}", is_external=True) from exc
        worker = ProcessPipe(process, where, lost_codes=lost_codes)
        try:
            self._nursery.start_soon(self._serve, worker)
        except RuntimeError as exc:  # The session ended while the process was being started, which cannot be cancelled.
            await worker.end()
            raise WorkerDied("the session has ended", is_external=True) from exc
        return worker

    async def _serve(self, worker: ProcessPipe) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker.forward_stderr)
                nursery.start_soon(worker.write)
                await worker.wait_ended()
                nursery.cancel_scope.cancel()
        finally:
            await worker.end()


@asynccontextmanager
async def _processes() -> AsyncGenerator[_Processes]:
    async with trio.open_nursery() as nursery:
        try:
            yield _Processes(nursery)
        finally:
            nursery.cancel_scope.cancel()


_count: Final = valid(lambda value: is_whole(value, 1), "must be a whole number, 1 or more", prefix="workers.")


@attrs.frozen
class ProcessWorkers:
    """Runs attempts in processes on this machine: `@evaluation(…, workers=ProcessWorkers(8))`.

    Each process imports the evaluation from its file. One that crashes, or does not respond to the timeout of an attempt, is
    replaced.
    """

    workers: int = attrs.field(factory=lambda: os.cpu_count() or 1, validator=_count)
    """Number of processes (default: the number of CPUs)."""
    concurrency: int | None = attrs.field(default=None, validator=valid_concurrency, kw_only=True)
    """Attempts that a process runs concurrently. None: 1 for plain functions and commands, 16 for async functions,
    endpoints and chat models."""
    tasks: bool = attrs.field(default=True, validator=valid_tasks, kw_only=True)
    """Whether attempts run there. False: only scorers that are defined with `workers=True`."""

    @property
    def spares(self) -> int:
        """Workers that are kept ready to replace one that has ended."""
        return 1

    @property
    def is_local(self) -> bool:
        """Whether its workers run on this machine."""
        return True

    @property
    def environment(self) -> Sequence[str]:
        """Names of variables that are sent to its workers."""
        return ()

    def describe(self) -> Mapping[str, Any]:
        """Return what the journal records about it."""
        return {"kind": "processes", "workers": self.workers, "concurrency": self.concurrency, "tasks": self.tasks}

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[StartWorker]:
        """Open the pool for a session; its processes import modules from where this one does."""
        line = [sys.executable, "-P", "-c", START_CODE, "\n".join(sys.path)]
        async with _processes() as processes:
            yield lambda number: processes.start(line, f"process {number}")


def _line(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError as exc:
        raise UsageError(f"cannot parse the command {mask(command)!r}: {exc}; check its quotes") from exc
    if not words:
        raise UsageError("the command of the workers is empty")
    return command


@attrs.frozen
class CommandWorkers:
    """Runs attempts in workers that a command starts: `CommandWorkers("ssh gpu1 'cd project && python -m runner.worker'")`.

    The command is run once for each worker, without a shell. Its standard input and output must be those of
    `python -m runner.worker`, in a directory where the evaluation can be imported.
    """

    command: str = attrs.field(converter=_line, repr=lambda command: repr(mask(command)))
    """It is split like a shell command."""
    workers: int = attrs.field(default=1, validator=_count, kw_only=True)
    """How many times the command is run."""
    concurrency: int | None = attrs.field(default=None, validator=valid_concurrency, kw_only=True)
    """Attempts that a worker runs concurrently; see `ProcessWorkers`."""
    tasks: bool = attrs.field(default=True, validator=valid_tasks, kw_only=True)
    """Whether attempts run there; see `ProcessWorkers`."""

    @property
    def spares(self) -> int:
        """Workers that are kept ready to replace one that has ended."""
        return 0

    @property
    def is_local(self) -> bool:
        """Whether its workers run on this machine."""
        return False

    @property
    def environment(self) -> Sequence[str]:
        """Names of variables that are sent to its workers."""
        return ()

    def describe(self) -> Mapping[str, Any]:
        """Return what the journal records about it."""
        return {
            "kind": "command",
            "command": mask(self.command),
            "workers": self.workers,
            "concurrency": self.concurrency,
            "tasks": self.tasks,
        }

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[StartWorker]:
        """Open the pool for a session."""
        line = shlex.split(self.command)
        async with _processes() as processes:
            yield lambda _: processes.start(line, "", lost_codes=[_CONNECTION_LOST])
