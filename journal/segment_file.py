"""The file under the writer's hand: blocking calls only, made from a thread.

It knows which file is open and how long it is, and keeps two orders that everything rests on: a file is on disk to its
last byte before the next one gets its name, and a value is on disk before the line that points to it is written.
"""

import contextlib
import errno
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Final

from journal import blobs, segments
from journal.files import APPEND, Files, create, retry_interrupted, write_some

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)})
"""The errors that go away when somebody makes space."""


class NoSpace(Exception):  # It never leaves this package: the writer makes a `DiskFull` of it.
    """The disk is full."""

    def __init__(self, why: OSError, *, partly: bytes | None = None) -> None:
        super().__init__(str(why))
        self.partly = partly
        """What of the lines was written before it was full; None if it did not come to that."""


class SegmentFile:
    """The segment that is being written."""

    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        self._files = files
        self._fd = -1
        self._size = 0
        self._is_broken = False
        self.segment = 0
        """The number of the open file; 0 while there is none."""

    def go_on(self, segment: int, size: int) -> None:
        """Open a file that is there already, to write at its end."""
        self._fd = retry_interrupted(lambda: self._files.open(segments.file(self._path, segment), APPEND))
        self.segment, self._size = segment, size

    def finish(self) -> None:
        """Leave a file that is sealed: only when it is on disk may the next one get its name."""
        if self.segment:
            self.sync()
            self.close(sealed=True)

    def begin(self, segment: int, header: bytes) -> None:
        """Begin a file with this line."""
        with _space_needed():
            create(self._files, str(self._path), segments.name(segment), header)
        self.go_on(segment, len(header))

    def write(self, data: bytes, values: Mapping[str, bytes]) -> None:
        """Write whole lines, after the values that they point to."""
        with _space_needed():
            for sha256, value in values.items():
                blobs.store(self._files, self._path, sha256, value)
        rest = memoryview(data)
        try:
            while rest:
                rest = write_some(self._files, self._fd, rest)
        except OSError as exc:
            if exc.errno not in NO_SPACE:
                raise
            raise NoSpace(exc, partly=data[: len(data) - len(rest)]) from exc
        self._size += len(data)

    def cut_back(self, partly: bytes) -> int:
        """Take back the line that did not fit, and make sure of those before it; say how many of these there are."""
        whole = partly.rfind(b"\n") + 1
        retry_interrupted(lambda: self._files.ftruncate(self._fd, self._size + whole))
        self._size += whole
        self.sync()
        return partly.count(b"\n")

    def sync(self) -> None:
        """Force everything that was written to the disk; after it has failed once, never again: it would seem to work."""
        if self._is_broken:
            raise OSError(errno.EIO, "an earlier sync has failed")
        try:
            retry_interrupted(lambda: self._files.fdatasync(self._fd))
        except OSError:
            self._is_broken = True
            raise

    def close(self, *, sealed: bool) -> None:
        """Let go of the file; one that is sealed becomes read-only."""
        if self.segment:
            if sealed:
                self._files.make_read_only(segments.file(self._path, self.segment))
            fd, self.segment = self._fd, 0
            self._files.close(fd)


@contextlib.contextmanager
def _space_needed() -> Generator[None]:
    """Tell a full disk, which can be emptied, from a broken one."""
    try:
        yield
    except OSError as exc:
        if exc.errno in NO_SPACE:
            raise NoSpace(exc) from exc
        raise
