"""The lock of a run: one writer at a time.

It is a lock of the operating system, so it ends with the process. The text in the file is only for messages.
"""

import os
import socket
import weakref
from pathlib import Path

from evaljournal.journal.disk.files import DISK, Files, NotRegularFile, retry_interrupted, write_all
from evaljournal.journal.errors import JournalLocked


class Lock:
    """The right to write one journal, held until it is released or the process ends."""

    def __init__(self, path: Path, files: Files) -> None:
        self._files = files
        file = self._file = str(files.absolute(path) / "LOCK")
        fd = retry_interrupted(lambda: files.open(file, os.O_RDWR | os.O_CREAT))
        self._fd: int | None = fd
        self.is_held = True
        """Whether this process holds it; a forked child does not. A plain attribute, because every append reads it."""

        try:
            if not files.lock(fd):
                raise JournalLocked(f"{path} is being written by {_holder(file, files)}", path=path, hint="watch")
            if files.link_count(fd) == 1:
                retry_interrupted(lambda: files.ftruncate(fd, 0))
                write_all(files, fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        except BaseException:
            self.release()
            raise
        _held_locks.add(self)

    def is_in_place(self) -> bool:
        """Whether the lock file is still at its path; the directory may have been moved or the file removed."""
        return self._fd is not None and self._files.is_same_file(self._fd, self._file)

    def release(self) -> None:
        if self._fd is not None:
            fd, self._fd, self.is_held = self._fd, None, False
            self._files.close(fd)


def is_held(path: Path, files: Files = DISK) -> bool:
    """Whether a process is writing this journal; changes nothing.

    It takes the lock for a moment. Another process may do the same, so it tries twice.
    """
    file = str(path / "LOCK")
    for is_last_try in (False, True):
        try:
            fd = retry_interrupted(lambda: files.open(file, os.O_RDONLY))
        except (FileNotFoundError, NotADirectoryError, NotRegularFile):
            return False
        try:
            if files.lock(fd):
                return False
        finally:
            files.close(fd)
        if not is_last_try:
            files.pause()
    return True


def _holder(file: str, files: Files) -> str:
    try:
        with files.read(file) as stream:
            return stream.read(200).decode(errors="replace").strip() or "another process"
    except OSError:
        return "another process"  # Windows does not allow reading a locked file.


_held_locks: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _release_in_child() -> None:
    """Release the locks that a fork has copied; otherwise a child that outlives the run would keep it locked."""
    for lock in list(_held_locks):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
