"""One writer at a time.

The lock is the system's, so it ends with the process, however that dies. The text in the file is for messages only; nothing is
decided by it.
"""

import os
import socket
import weakref
from pathlib import Path

from journal.errors import JournalLocked, command
from journal.files import DISK, Files, retry_interrupted, write_all


class Lock:
    """The right to write one journal, held until it is released or the process ends."""

    def __init__(self, path: Path, files: Files) -> None:
        self._files = files
        file = self._file = str(path / "LOCK")
        fd = retry_interrupted(lambda: files.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)))
        self._fd: int | None = fd
        self.is_held = True
        """Whether this process has it; a child that was forked has not. Plain, because every record asks for it."""
        try:
            if not files.lock(fd):
                raise JournalLocked(f"{path} is being written by {_holder(file, files)}; {command('watch', path)} looks on")
            retry_interrupted(lambda: files.ftruncate(fd, 0))
            write_all(files, fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        except BaseException:
            self.release()
            raise
        _held.add(self)

    def is_in_place(self) -> bool:
        """Say whether the lock still is that of the directory at this path: neither may have been moved or removed."""
        return self._fd is not None and self._files.is_same_file(self._fd, self._file)

    def release(self) -> None:
        """Let the next writer in."""
        if self._fd is not None:
            fd, self._fd, self.is_held = self._fd, None, False
            self._files.close(fd)


def is_held(path: Path, files: Files = DISK) -> bool:
    """Say whether a writer is alive, without changing anything and without making a file.

    There is no way to look at a lock but to take it for a moment. Another onlooker may be doing just that, so what is held is
    looked at twice.
    """
    file = str(path / "LOCK")
    for last in (False, True):
        try:
            fd = retry_interrupted(lambda: files.open(file, os.O_RDONLY))
        except (FileNotFoundError, NotADirectoryError):
            return False  # Whoever reads what is there will say what it is.
        try:
            if files.lock(fd):
                return False
        finally:
            files.close(fd)
        if not last:
            files.pause()
    return True


def _holder(file: str, files: Files) -> str:
    try:
        with files.read(file) as stream:
            return stream.read(200).decode(errors="replace").strip() or "another process"
    except OSError:
        return "another process"  # Windows does not let the locked text be read.


_held: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _forget_in_child() -> None:
    """Close the locks that a fork has copied: a child that outlives the run must not keep others out of it."""
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
