"""`python -m evaljournal.worker`: calls tasks and scorers for the session at the other end of its standard streams.

It exits within a second after the session has closed its standard input, even if a call has not ended.
"""

import contextlib
import faulthandler
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

CLEANUP_TIME: Final = 0.8
"""Seconds that calls get to clean up after the session has ended."""
_CHUNK: Final = 1 << 18


class PipeConnection:
    """The frames from and to the session; standard output and input are replaced, so that only frames use the pipe."""

    def __init__(self) -> None:
        self._input, self._output = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)  # The session forwards the prints of the task, as standard error.
        os.set_blocking(self._output, True)
        self._write_lock = threading.Lock()
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._deliver: Callable[[list[bytes] | None], None] | None = None
        threading.Thread(target=self._read, name="evaljournal-session", daemon=True).start()

    def send(self, frame: bytes) -> None:
        """Send a frame, from any thread."""
        view = memoryview(frame + b"\n")
        with self._write_lock:
            try:
                while view:
                    view = view[os.write(self._output, view) :]
            except OSError:
                _exit()  # The session has ended.

    def receive_first(self) -> bytes:
        frame = self._frames.get()
        return _exit() if frame is None else frame

    def deliver_to(self, deliver: Callable[[list[bytes] | None], None]) -> None:
        """Deliver frames to a function from now on, called in another thread; None at the end of the session."""
        with self._lock:
            while not self._frames.empty():
                frame = self._frames.get()
                deliver(None if frame is None else [frame])
            self._deliver = deliver

    def _read(self) -> None:
        fragments: list[bytes] = []
        while chunk := self._read_chunk():
            *lines, tail = chunk.split(b"\n")
            if lines:
                lines[0] = b"".join((*fragments, lines[0]))
                fragments = []
                self._put(lines)
            fragments.append(tail)
        self._put(None)
        time.sleep(CLEANUP_TIME)
        _exit()

    def _read_chunk(self) -> bytes:
        try:
            return os.read(self._input, _CHUNK)
        except OSError:
            return b""

    def _put(self, lines: list[bytes] | None) -> None:
        with self._lock:
            if self._deliver is not None:
                self._deliver(lines)
                return
            for line in [None] if lines is None else lines:
                self._frames.put(line)


def _exit() -> NoReturn:
    """Exit without waiting for threads, and kill the rest of the process group."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # The task may have closed or replaced it.
            stream.flush()
    if sys.platform != "win32" and os.getpgrp() == os.getpid():  # Another process's group may include the user's command.
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def main() -> None:
    connection = PipeConnection()
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115  # for the process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The session stops its workers.
    faulthandler.enable(all_threads=False)
    opening: Any = connection.receive_first()

    from evaljournal.runner.sessions.worker.calls import serve  # noqa: PLC0415  # slow; the connection is watched while it is imported

    serve(connection, opening)
    _exit()


if __name__ == "__main__":
    main()
