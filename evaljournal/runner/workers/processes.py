"""Workers in processes: on this machine, or started through a command such as ssh or docker."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final

import attrs
import trio

from evaljournal.runner.errors import UsageError, whole_number
from evaljournal.runner.secrets.masking import mask
from evaljournal.runner.workers.pool import StartWorker, WorkerDied, WorkerPool, valid_concurrency, valid_runs_tasks
from evaljournal.runner.workers.streams import EXIT_TIMEOUT, START_CODE, FrameSplitter, StderrPrinter, exit_text

_CHUNK: Final = 1 << 18
_DRAIN_INTERVAL: Final = 0.5
"""Seconds without a chunk after which everything that a process sent before it exited has been read."""
_LAST_LINES_TIMEOUT: Final = 0.1
"""Seconds in which the last lines on standard error are read after a process has exited."""
_CONNECTION_LOST: Final = 255
"""Exit code of ssh if the connection failed; otherwise ssh exits with the code of the worker."""


class ProcessPipe:
    """The standard streams of a process that is a worker, or is connected to one."""

    def __init__(self, process: trio.Process, name: str, *, lost_codes: Sequence[int] = ()) -> None:
        self.name = name
        self._process = process
        self._lost_codes = lost_codes
        self._unsent_frames: list[bytes] = []
        self._has_unsent_frames = trio.Event()
        self._chunks_read = 0
        self._printer = StderrPrinter()

    def send(self, frame: bytes, /) -> None:
        self._unsent_frames.append(frame)
        self._has_unsent_frames.set()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._kill_group()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL) if sys.platform != "win32" else self._process.kill()

    async def wait_ended(self) -> None:
        """Wait until the process has exited, kill the rest of its group, and wait until everything it sent has been read.

        The end of the pipe does not show that: a process that has left the group may keep it open.
        """
        await self._process.wait()
        self._kill_group()
        chunks = -1
        while chunks != self._chunks_read:
            chunks = self._chunks_read
            await trio.sleep(_DRAIN_INTERVAL)

    async def write(self) -> None:
        """Write the frames that were sent, until the process has ended."""
        assert self._process.stdin is not None
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while True:
                await self._has_unsent_frames.wait()
                frames, self._unsent_frames, self._has_unsent_frames = self._unsent_frames, [], trio.Event()
                frames.append(b"")
                await self._process.stdin.send_all(b"\n".join(frames))

    async def frames(self) -> AsyncGenerator[list[bytes]]:
        assert self._process.stdout is not None
        splitter = FrameSplitter()
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while chunk := await self._process.stdout.receive_some(_CHUNK):
                self._chunks_read += 1
                if lines := splitter.split(bytes(chunk)):
                    yield lines

        with trio.move_on_after(EXIT_TIMEOUT) as timeout:
            await self._process.wait()
        if timeout.cancelled_caught:
            self.kill()
            raise WorkerDied("killed: it closed its standard output")
        code = await self._process.wait()
        raise WorkerDied(exit_text(code), is_external=code in self._lost_codes)

    async def forward_stderr(self) -> None:
        assert self._process.stderr is not None
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for chunk in self._process.stderr:
                self._printer.print(bytes(chunk))

    async def end(self) -> None:
        """Close the pipe, so that the worker exits; kill it if it does not."""
        with trio.CancelScope(shield=True):
            assert self._process.stdin is not None
            await self._process.stdin.aclose()
            with trio.move_on_after(EXIT_TIMEOUT):
                await self._process.wait()
            self.kill()
            await self._process.wait()
            with trio.move_on_after(_LAST_LINES_TIMEOUT):  # A process that has left the group may keep it open.
                await self.forward_stderr()
            self._printer.end()
            for stream in (self._process.stdout, self._process.stderr):
                if stream is not None:
                    await stream.aclose()


@asynccontextmanager
async def _open_processes(
    line: Sequence[str], *, name: str = "", lost_codes: Sequence[int] = ()
) -> AsyncGenerator[StartWorker]:
    """Yield a function that starts a process of a pool; the processes end with the block."""

    async def start(number: int) -> ProcessPipe:
        pipe = subprocess.PIPE
        try:
            # It has a process group of its own, because Ctrl-C is for the process of the run, which stops its workers.
            process = await trio.lowlevel.open_process(line, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        except OSError as exc:
            raise WorkerDied(f"cannot run {line[0]!r}: {exc.strerror}", is_external=True) from exc
        worker = ProcessPipe(process, name and f"{name} {number}", lost_codes=lost_codes)
        try:
            nursery.start_soon(_serve, worker)
        except RuntimeError as exc:  # The session ended while the process was being started, which cannot be cancelled.
            await worker.end()
            raise WorkerDied("the session has ended", is_external=True) from exc
        return worker

    async with trio.open_nursery() as nursery:
        try:
            yield start
        finally:
            nursery.cancel_scope.cancel()


async def _serve(worker: ProcessPipe) -> None:
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.forward_stderr)
            nursery.start_soon(worker.write)
            await worker.wait_ended()
            nursery.cancel_scope.cancel()
    finally:
        await worker.end()


_count: Final = whole_number(1, prefix="workers.")


@attrs.frozen
class ProcessWorkers(WorkerPool):
    """Runs attempts in processes on this machine: `@evaluation(…, workers=ProcessWorkers(8))`.

    Each process imports the evaluation. One that crashes, or does not respond to the timeout of an attempt, is replaced.
    """

    workers: int = attrs.field(factory=lambda: os.cpu_count() or 1, validator=_count)
    """Number of processes (default: the number of CPUs)."""
    concurrency: int | None = attrs.field(default=None, validator=valid_concurrency, kw_only=True)
    """Attempts that a process runs concurrently. None: 16 for async functions, endpoints and chat models; 1 for plain
    functions, for commands, and if only scorers run there."""
    runs_tasks: bool = attrs.field(default=True, validator=valid_runs_tasks, kw_only=True)
    """Whether attempts run there. False: only scorers that are defined with `workers=True`."""

    kind = "processes"
    spares = 1
    is_local = True

    def open(self) -> AbstractAsyncContextManager[StartWorker]:
        """Open the pool for a session; its processes import modules from where this one does."""
        return _open_processes([sys.executable, "-P", "-c", START_CODE, "\n".join(sys.path)], name="process")


def _valid_command(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError as exc:
        raise UsageError(f"cannot parse the command {mask(command)!r}: {exc}; check its quotes") from exc
    if not words:
        raise UsageError("the command of the workers is empty")
    return command


@attrs.frozen
class CommandWorkers(WorkerPool):
    """Runs attempts in workers started by a command: `CommandWorkers("ssh gpu1 'cd project && python -m evaljournal.worker'")`.

    The command is run once for each worker, without a shell. It must connect its standard input and output to
    `python -m evaljournal.worker`, in a directory where the evaluation can be imported.
    """

    command: str = attrs.field(converter=_valid_command, repr=lambda command: repr(mask(command)))
    """Split into words as in a shell."""
    workers: int = attrs.field(default=1, validator=_count, kw_only=True)
    """Number of workers."""
    concurrency: int | None = attrs.field(default=None, validator=valid_concurrency, kw_only=True)
    """Attempts that a worker runs concurrently; see `ProcessWorkers`."""
    runs_tasks: bool = attrs.field(default=True, validator=valid_runs_tasks, kw_only=True)
    """Whether attempts run there; see `ProcessWorkers`."""

    kind = "command"

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "command": mask(self.command)}

    def open(self) -> AbstractAsyncContextManager[StartWorker]:
        return _open_processes(shlex.split(self.command), lost_codes=[_CONNECTION_LOST])
