"""File access: every system call on the files of a run.

The calls go through a `Files` object, so that tests can simulate errors, short writes and power failures. A run may be
foreign: its files are opened in one function, which follows no symlinks and opens only regular files of a limited size.
"""

import contextlib
import errno
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

T = TypeVar("T")

APPEND: Final = os.O_WRONLY | os.O_APPEND
CREATE_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL
MAX_SIZE: Final = 256 << 20
"""Maximum size of a file in bytes; a segment is sealed at 64 MiB."""
_CLOSE_ON_EXEC: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0) | _CLOSE_ON_EXEC
_NO_WAIT: Final = getattr(os, "O_NONBLOCK", 0)
"""Opening a pipe would wait for its other end."""
_DIRECTORY: Final = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)
_NOT_REGULAR_FILE: Final = {errno.ELOOP: "a symlink", errno.EMLINK: "a symlink", errno.ENXIO: "not a regular file"}
"""Errors from opening a symlink (EMLINK: BSD), and from opening a socket or a pipe."""


class NotRegularFile(OSError):
    """A file of a run is a symlink or below one, a pipe, a device or a directory, or is too large; it is not used."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(errno.EINVAL, reason, path)


def _open_regular(path: str, flags: int, parents: int) -> int:
    """Open a regular file; neither it nor one of the `parents` directories above it may be a symlink.

    These are part of the run. The path before them was chosen by the user, and may contain symlinks.
    """
    flags |= _NO_FOLLOW | _NO_WAIT
    if os.name == "nt":  # Windows has neither O_NOFOLLOW nor paths relative to a directory.
        _reject_links(path, parents)

    try:
        fd = _open_below(path, flags, parents) if parents and os.name != "nt" else os.open(path, flags, 0o600)
    except OSError as exc:
        exc.filename = path
        if parents and exc.errno == errno.ENOTDIR:
            raise NotRegularFile(path, "its directory is a symlink or a file") from exc
        if exc.errno in _NOT_REGULAR_FILE:
            raise NotRegularFile(path, _NOT_REGULAR_FILE[exc.errno]) from exc
        raise

    status = os.fstat(fd)
    is_regular = stat.S_ISREG(status.st_mode)
    if is_regular and status.st_size <= MAX_SIZE:
        return fd
    os.close(fd)
    raise NotRegularFile(path, f"larger than {MAX_SIZE:,} bytes" if is_regular else "not a regular file")


def _open_below(path: str, flags: int, parents: int) -> int:
    """Open a file through the directories above it, one by one, so that none can be replaced by a symlink meanwhile."""
    directory, names = path, list[str]()
    for _ in range(parents + 1):
        directory, name = os.path.split(directory)
        names.insert(0, name)

    parent = os.open(directory or ".", _DIRECTORY | _CLOSE_ON_EXEC)
    try:
        for name in names[:-1]:
            child = os.open(name, _DIRECTORY | _NO_FOLLOW, dir_fd=parent)
            os.close(parent)
            parent = child
        return os.open(names[-1], flags, 0o600, dir_fd=parent)
    finally:
        os.close(parent)


def _reject_links(path: str, parents: int) -> None:
    for _ in range(parents + 1):
        if os.path.islink(path) or getattr(os.path, "isjunction", os.path.islink)(path):
            raise NotRegularFile(path, "a symlink")
        path = os.path.dirname(path)


def _move_above_stderr(fd: int) -> int:
    """Return a descriptor above 2: if a standard stream was closed, printed text must not reach the journal."""
    standard_fds: list[int] = []
    while fd <= 2:  # noqa: PLR2004  # standard error
        standard_fds.append(fd)
        fd = os.dup(fd)
    for standard_fd in standard_fds:
        os.close(standard_fd)
    return fd


class Files:
    """The real file system."""

    idle_check_interval: float = 2.0
    """Seconds between two checks whether another process has changed the files of a run, while nothing is written."""

    def absolute(self, path: Path) -> Path:
        """Return an absolute path, for files that are used for as long as a task runs: it may change the working directory."""
        return path.absolute()

    def open(self, path: str, flags: int, parents: int = 0) -> int:
        """Open a regular file; a new one is readable by its owner only. Child processes do not inherit it.

        Symlinks are not followed: neither the file nor one of the `parents` directories above it may be one.
        """
        return _move_above_stderr(_open_regular(path, flags, parents))

    def write(self, fd: int, data: memoryview) -> int:
        """Write some of the data; return how many bytes."""
        return os.write(fd, data)

    def fdatasync(self, fd: int) -> None:
        """Sync the content and the length of a file to disk."""
        if sys.platform == "darwin":  # fsync does not flush the drive's cache there.
            import fcntl  # noqa: PLC0415  # not on Windows

            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        elif hasattr(os, "fdatasync"):
            os.fdatasync(fd)
        else:
            os.fsync(fd)

    def fsync(self, fd: int) -> None:
        """Sync a file with all of its metadata to disk."""
        if sys.platform == "darwin":
            self.fdatasync(fd)
        else:
            os.fsync(fd)

    def ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def close(self, fd: int) -> None:
        os.close(fd)

    def replace(self, source: str, target: str) -> None:
        """Rename a file or directory atomically."""
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def mkdir(self, path: str) -> None:
        """Create a directory that only its owner may access."""
        os.mkdir(path, 0o700)

    def sync_directory(self, path: str) -> None:
        """Sync the entries of a directory to disk; before that, a new name can be lost."""
        if os.name == "nt":
            return  # Windows has no such call; NTFS journals its directories.
        fd = os.open(path, os.O_RDONLY | _CLOSE_ON_EXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def pause(self, seconds: float = 0.002) -> None:
        time.sleep(seconds)

    def make_read_only(self, path: str) -> None:
        """Make a file read-only, where the file system supports that."""
        with contextlib.suppress(OSError):
            fd = _open_regular(path, os.O_RDONLY, 0)
            try:
                os.chmod(fd if os.chmod in os.supports_fd else path, 0o400)
            finally:
                os.close(fd)

    def read(self, path: str, parents: int = 0) -> BinaryIO:
        """Open a regular file for reading, as `open` does."""
        fd = _open_regular(path, os.O_RDONLY, parents)
        return open(fd, "rb", buffering=1 << 16)  # A larger buffer makes reading lines twice as fast.

    def list_directory(self, path: str) -> list[str]:
        return os.listdir(path)

    def exists(self, path: str) -> bool:
        """Whether the path exists, including dangling symlinks."""
        return os.path.lexists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int | None:
        """Return the length of a file; None if it does not exist."""
        try:
            return os.lstat(path).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def is_same_file(self, fd: int, path: str) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.lstat(path))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def link_count(self, fd: int) -> int:
        """Return how many names an open file has: 0 if it was deleted; another name may be outside the run."""
        return os.fstat(fd).st_nlink

    def is_intact(self, fd: int, path: str, size: int) -> bool:
        return os.fstat(fd).st_size == size and self.is_same_file(fd, path)

    def lock(self, fd: int) -> bool:
        """Take the exclusive lock on an open file; return False if another process has it."""
        if os.name == "nt":
            import msvcrt  # noqa: PLC0415  # Windows only

            try:
                msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]  # Windows only
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
    while True:
        try:
            return call()
        except InterruptedError:
            continue


def is_unreadable(exc: OSError) -> bool:
    """Whether a read error is about the file, not about a resource that the process has run out of."""
    return exc.errno not in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


def write_some(files: Files, fd: int, data: memoryview) -> memoryview:
    """Write as much of the data as the system accepts in one call; return the rest."""
    count = retry_interrupted(lambda: files.write(fd, data))
    if count <= 0:
        raise OSError(errno.EIO, "write() returned 0")
    return data[count:]


def write_all(files: Files, fd: int, data: bytes) -> None:
    remaining_data = memoryview(data)
    while remaining_data:
        remaining_data = write_some(files, fd, remaining_data)


def open_new(files: Files, path: str, parents: int = 0) -> int:
    """Create a file for writing; an existing one, from a crash, is removed and not overwritten, because it may be a link."""
    try:
        return retry_interrupted(lambda: files.open(path, CREATE_NEW, parents))
    except FileExistsError:
        retry_interrupted(lambda: files.remove(path))
        return retry_interrupted(lambda: files.open(path, CREATE_NEW, parents))


def create(files: Files, directory: str, name: str, data: bytes, parents: int = 0) -> None:
    """Create a file atomically and durably; `parents` is as in `Files.open`."""
    temporary = os.path.join(directory, f".{name}.new")
    fd = open_new(files, temporary, parents)
    try:
        write_all(files, fd, data)
        retry_interrupted(lambda: files.fsync(fd))
    finally:
        files.close(fd)
    retry_interrupted(lambda: files.replace(temporary, os.path.join(directory, name)))
    retry_interrupted(lambda: files.sync_directory(directory))


def sync_name(files: Files, path: str) -> None:
    """Sync the name of an existing directory; the process that created it may have died before that."""
    with contextlib.suppress(PermissionError):  # The parent may belong to another user.
        retry_interrupted(lambda: files.sync_directory(os.path.dirname(path) or "."))


def make_directory(files: Files, path: str) -> None:
    """Create a directory and its parents durably."""
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
            raise  # It is a file. Otherwise another process has created the directory.
    retry_interrupted(lambda: files.sync_directory(parent or "."))
