"""The operating system, as far as the journal needs it: every call that can fail, in one place.

All file access goes through one object, so that a test can stand in for the disk: one that fails, one that writes short, one
that forgets what was not synced. Nothing here knows what the bytes mean.
"""

import contextlib
import errno
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable
from typing import BinaryIO, Final, TypeVar

T = TypeVar("T")

APPEND: Final = os.O_WRONLY | os.O_APPEND
CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_CLOSED_ON_EXEC: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class Files:
    """The real file system."""

    def open(self, path: str, flags: int) -> int:
        """Open a file that only its owner may read, and that no child process inherits."""
        return os.open(path, flags | _CLOSED_ON_EXEC, 0o600)

    def write(self, fd: int, data: memoryview) -> int:
        """Write some of the data; say how much."""
        return os.write(fd, data)

    def fdatasync(self, fd: int) -> None:
        """Force the file's bytes and its length to the disk itself."""
        if sys.platform == "darwin":  # There, fsync stops at the drive's cache.
            import fcntl  # noqa: PLC0415  # not on Windows

            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        elif hasattr(os, "fdatasync"):
            os.fdatasync(fd)
        else:
            os.fsync(fd)

    def fsync(self, fd: int) -> None:
        """Force a new file to the disk, with all that describes it."""
        if sys.platform == "darwin":
            self.fdatasync(fd)
        else:
            os.fsync(fd)

    def ftruncate(self, fd: int, size: int) -> None:
        """Cut a file to this size."""
        os.ftruncate(fd, size)

    def close(self, fd: int) -> None:
        """Let go of a file."""
        os.close(fd)

    def replace(self, source: str, target: str) -> None:
        """Give a file or a directory its final name, in one step."""
        os.replace(source, target)

    def remove(self, path: str) -> None:
        """Take away a directory with all that is in it."""
        shutil.rmtree(path)

    def mkdir(self, path: str) -> None:
        """Make a directory that only its owner may enter."""
        os.mkdir(path, 0o700)

    def sync_directory(self, path: str) -> None:
        """Force a directory's entries to the disk: until then, a new name in it can be forgotten."""
        if os.name == "nt":
            return  # Windows has no such call; NTFS journals its directories.
        fd = os.open(path, os.O_RDONLY | _CLOSED_ON_EXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def pause(self) -> None:
        """Let a moment pass."""
        time.sleep(0.002)

    def make_read_only(self, path: str) -> None:
        """Take the right to write away; a courtesy, which some file systems do not know."""
        with contextlib.suppress(OSError):
            os.chmod(path, 0o400)

    def read(self, path: str) -> BinaryIO:
        """Open a file for reading; one that has an end, for a journal from elsewhere may hold anything."""
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _CLOSED_ON_EXEC)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a regular file", path)
        return open(fd, "rb", buffering=1 << 16)  # The caller closes it. Lines come twice as fast as with the usual buffer.

    def list_directory(self, path: str) -> list[str]:
        """List a directory."""
        return os.listdir(path)

    def exists(self, path: str) -> bool:
        """Say whether the name is taken, be it by a link that leads nowhere."""
        return os.path.lexists(path)

    def is_directory(self, path: str) -> bool:
        """Say whether the path is a directory."""
        return os.path.isdir(path)

    def size(self, path: str) -> int | None:
        """Tell a file's length; None if there is no such file."""
        try:
            return os.stat(path).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def is_same_file(self, fd: int, path: str) -> bool:
        """Say whether an open file is the one that stands at this path."""
        try:
            return os.path.samestat(os.fstat(fd), os.stat(path))
        except FileNotFoundError:
            return False

    def lock(self, fd: int) -> bool:
        """Take the exclusive lock on an open file, or say that another process has it."""
        if os.name == "nt":
            import msvcrt  # noqa: PLC0415  # only there

            try:
                msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]  # only there
            except OSError:
                return False
            return True
        import fcntl  # noqa: PLC0415  # not on Windows

        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


DISK: Final = Files()


def retry_interrupted(call: Callable[[], T]) -> T:
    """Make a call until no signal cuts it short."""
    while True:
        try:
            return call()
        except InterruptedError:
            continue


def write_some(files: Files, fd: int, data: memoryview) -> memoryview:
    """Write as much of the data as the system takes at once, and return the rest."""
    written = retry_interrupted(lambda: files.write(fd, data))
    if written <= 0:
        raise OSError(errno.EIO, "the system took none of the data and gave no reason")
    return data[written:]


def write_all(files: Files, fd: int, data: bytes) -> None:
    """Write all of the data, however little the system takes at a time."""
    rest = memoryview(data)
    while rest:
        rest = write_some(files, fd, rest)


def create(files: Files, directory: str, name: str, data: bytes) -> None:
    """Make a file that is there whole or not at all, and stays after a power cut."""
    temporary = os.path.join(directory, f".{name}.new")
    fd = retry_interrupted(lambda: files.open(temporary, CREATE))
    try:
        write_all(files, fd, data)
        retry_interrupted(lambda: files.fsync(fd))
    finally:
        files.close(fd)
    retry_interrupted(lambda: files.replace(temporary, os.path.join(directory, name)))
    retry_interrupted(lambda: files.sync_directory(directory))


def sync_name(files: Files, path: str) -> None:
    """Make sure of the name of a directory that is there already: whoever made it may not have come to that."""
    with contextlib.suppress(PermissionError):  # Above what is ours, this is somebody else's to see to.
        retry_interrupted(lambda: files.sync_directory(os.path.dirname(path) or "."))


def make_directory(files: Files, path: str) -> None:
    """Make a directory and its parents, so that they stay after a power cut."""
    parent = os.path.dirname(path)
    if files.is_directory(path):
        sync_name(files, path)
        return
    if parent and parent != path:
        make_directory(files, parent)
    try:
        retry_interrupted(lambda: files.mkdir(path))
    except FileExistsError:
        if not files.is_directory(path):
            raise  # A file is in the way; otherwise another process was quicker.
    retry_interrupted(lambda: files.sync_directory(parent or "."))
