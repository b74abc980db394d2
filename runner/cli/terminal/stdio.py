"""Standard streams that are closed, full, or closed by the user's code."""

import contextlib
import io
import os
import sys
from collections.abc import Generator
from typing import Final

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


@contextlib.contextmanager
def restore_streams() -> Generator[None]:
    """Restore standard output and standard error after code that may close or replace their file descriptors."""
    copies = {fd: os.dup(fd) for fd in _STANDARD[1:] if _is_open(fd)}
    try:
        yield
    finally:
        for fd, copy in copies.items():
            with contextlib.suppress(OSError):  # The copy may have been closed as well.
                if not _is_open(fd) or not os.path.sameopenfile(fd, copy):
                    os.dup2(copy, fd)
                os.close(copy)
