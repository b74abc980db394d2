"""Standard streams that are closed, full, or closed by the user's code."""

import contextlib
import io
import os
import sys
from collections.abc import Generator
from typing import Any, Final, Literal, TextIO

_STANDARD: Final = (0, 1, 2)


class _LossyStderr(io.TextIOWrapper):
    """Standard error that drops what cannot be written, to a full disk or a closed pipe for example.

    It stays open: a task may close `sys.stderr`, or `sys.stdout`, which is the same while a run executes tasks.
    """

    def write(self, text: str, /) -> int:
        with contextlib.suppress(OSError, ValueError):  # ValueError: its buffer was closed or detached.
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().flush()

    def close(self) -> None:
        self.flush()

    def detach(self) -> Any:
        self.flush()
        return self.buffer


def prepare_streams() -> None:
    """Open the null device for closed standard streams, and ignore failed writes to standard error."""
    for fd in _STANDARD:
        if not _is_open(fd):
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
    if os.name != "nt":  # The console of Windows has its own kind of stream.
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        binary = open(2, "wb", closefd=False)  # noqa: SIM115  # used until the end of the process
        sys.stderr = _LossyStderr(binary, encoding=encoding, errors="backslashreplace", line_buffering=True)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


_STREAM_NAMES: Final = ("stdout", "stderr", "__stdout__", "__stderr__")
_command_streams: dict[str, TextIO] = {}
"""The streams of the command while the user's code runs, which may replace those of `sys`, even with objects that raise."""


def command_stream(name: Literal["stdout", "stderr"]) -> TextIO:
    """Return standard output or standard error of the command, even if the user's code has replaced it."""
    stream: TextIO = _command_streams.get(name) or getattr(sys, name)
    return stream


@contextlib.contextmanager
def restore_streams() -> Generator[None]:
    """Restore standard output and standard error after code that may close or replace them or their file descriptors."""
    copies = {fd: os.dup(fd) for fd in _STANDARD[1:] if _is_open(fd)}
    streams = {name: getattr(sys, name) for name in _STREAM_NAMES}
    outer_streams = _command_streams.copy()
    _command_streams.update(outer_streams or streams)
    for name in ("__stdout__", "__stderr__"):  # If a task closed the real ones, the report would be lost.
        setattr(sys, name, sys.stderr)
    try:
        yield
    finally:
        if not outer_streams:
            _command_streams.clear()
        for name, stream in streams.items():
            setattr(sys, name, stream)
        for fd, copy in copies.items():
            with contextlib.suppress(OSError):  # The copy may have been closed as well.
                if not _is_open(fd) or not os.path.sameopenfile(fd, copy):
                    os.dup2(copy, fd)
                os.close(copy)
