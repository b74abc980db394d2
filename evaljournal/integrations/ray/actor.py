"""The actor of a worker on Ray: it starts the worker's process on its node, and passes on its standard streams.

It runs in a process of Ray, and imports the standard library only. The worker is its child, so that the exit code is exact and
the main thread is free.
"""

import contextlib
import os
import platform
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

STARTED: Final = b"s"
NOT_STARTED: Final = b"n"
STDOUT: Final = b"o"
STDERR: Final = b"e"
EXITED: Final = b"x"
"""The first byte of each message from `read`; the rest is a reason, output of the process, or its exit code."""
CHUNK: Final = 1 << 20
POLL_INTERVAL: Final = 0.5
"""Seconds without output after which it is checked whether the process has exited."""


class RayActor:
    """A worker's process; `read` starts it, and the methods run in threads."""

    def __init__(self, code: str, directory: str | None, exit_timeout: float) -> None:
        """The process will run `code` in `directory`; None: the one that Ray has prepared."""
        self._line = [sys.executable, "-P", "-c", code, "\n".join(sys.path)]
        self._directory = directory
        self._exit_timeout = exit_timeout
        self._process: subprocess.Popen[bytes] | None = None

    def read(self) -> Iterator[bytes]:
        """Start the process, and yield messages until it has ended."""
        pipe = subprocess.PIPE
        try:
            self._process = process = subprocess.Popen(  # noqa: S603  # our own code
                self._line,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                bufsize=0,
                pipesize=CHUNK,
                cwd=self._directory,
                start_new_session=True,
            )
        except OSError as exc:
            yield NOT_STARTED + f"on {platform.node()}: {exc}".encode()
            return

        yield STARTED
        yield from self._messages(process)

        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self._exit_timeout)
        self.kill()
        code = process.wait()
        self._kill_group(process)
        yield EXITED + str(code).encode()

    def _messages(self, process: subprocess.Popen[bytes]) -> Iterator[bytes]:
        """Yield output of the process until it closes its standard output or has exited; its children may keep that open."""
        assert process.stdout is not None
        assert process.stderr is not None
        output_fd, error_fd = process.stdout.fileno(), process.stderr.fileno()
        with process.stdout, process.stderr, selectors.DefaultSelector() as selector:
            for fd in (output_fd, error_fd):
                os.set_blocking(fd, False)
                selector.register(fd, selectors.EVENT_READ)

            is_open = True
            while is_open:
                ready_fds = {key.fd for key, _ in selector.select(POLL_INTERVAL)}
                if not ready_fds and process.poll() is not None:
                    return

                chunk = _read(output_fd) if output_fd in ready_fds else b""
                is_open = bool(chunk) or output_fd not in ready_fds
                # Standard error is read after the frames and yielded before them: nothing that was printed before a frame is
                # lost, even if that frame is the last of the run.
                if stderr_chunk := _read(error_fd):
                    yield STDERR + stderr_chunk
                elif error_fd in ready_fds:
                    selector.unregister(error_fd)
                if chunk:
                    yield STDOUT + chunk

    def write(self, data: bytes) -> None:
        """Write to the standard input of the process; an error means that it has ended, which `read` reports."""
        assert self._process is not None
        assert self._process.stdin is not None
        view = memoryview(data)
        with contextlib.suppress(OSError, ValueError):
            while view:
                view = view[self._process.stdin.write(view) :]

    def close(self) -> None:
        """Close the standard input, so that the worker exits; kill it if it does not."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self._exit_timeout)
        self.kill()

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._kill_group(self._process)

    @staticmethod
    def _kill_group(process: "subprocess.Popen[bytes]") -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _read(fd: int) -> bytes:
    """Return the bytes in a pipe; none at its end, or if it is empty."""
    try:
        return os.read(fd, CHUNK)
    except OSError:
        return b""
