"""The segment that is being written. Blocking calls only; the writer makes them in a thread.

Two ordering rules are kept here: a segment is synced before the next one gets its name, and a blob is synced before the
segment with the line that refers to it.
"""

import contextlib
import errno
import math
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Final

from evaljournal.journal.disk import segments
from evaljournal.journal.disk.files import APPEND, Files, create, retry_interrupted, write_some
from evaljournal.journal.disk.lock import Lock
from evaljournal.journal.errors import Change
from evaljournal.journal.writers.blob_writer import BlobWriter

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)})
"""Errors that freeing space resolves."""
CHECK_INTERVAL: Final = 0.1
"""Seconds between two checks of the files while lines are written: a check costs as much as writing a line."""
_MIN_PAUSE: Final = 0.002
_MAX_PAUSE: Final = 0.01
_LINES_PER_SECOND: Final = 5_000
"""Rate of lines above which pauses become longer than the minimum: then waking a thread every 2 ms takes a tenth of the CPU."""


class NoSpace(Exception):  # Internal to this package; the writer raises `DiskFull` instead.
    """No space is left on the device."""

    def __init__(self, exc: OSError, *, written_data: bytes | None = None) -> None:
        super().__init__(str(exc))
        self.written_data = written_data
        """The part of the lines that was written; None if the failure was in another file."""


class SegmentChanged(Exception):  # Internal to this package; the writer raises `SegmentLost` instead.
    """Another process has changed the open segment, moved its directory or removed its lock."""

    def __init__(self, change: Change) -> None:
        super().__init__(change)
        self.change: Change = change


class SegmentFile:
    """The segment that is being written."""

    def __init__(self, path: Path, files: Files, lock: Lock) -> None:
        self._path = files.absolute(path)
        self.files = files
        self._lock = lock
        self._fd = -1
        self._size = 0
        self._has_sync_failed = False
        self.blobs = BlobWriter(self._path, files)
        self.segment = 0
        """Number of the open segment; 0 if none is open."""
        self._checked_at = -math.inf

    def open_existing(self, segment: int, size: int) -> None:
        """Open a segment to append to it."""
        self._fd = retry_interrupted(lambda: self.files.open(segments.file(self._path, segment), APPEND))
        self.segment, self._size = segment, size

    def create(self, segment: int, header: bytes) -> None:
        """Create a segment with this first line."""
        with _raise_no_space():
            create(self.files, str(self._path), segments.name(segment), header)
        self.open_existing(segment, len(header))

    def finish(self) -> None:
        """Sync and close a sealed segment; the next one must not get its name before."""
        if self.segment:
            self.sync()
            self.close(sealed=True)

    def write_blobs(self, values: Mapping[str, bytes]) -> None:
        """Write blobs, by their SHA-256; the lines that refer to them may be written afterwards."""
        with _raise_no_space():
            for sha256, value in values.items():
                self.blobs.write(sha256, value)

    def write(self, data: bytes) -> None:
        """Write complete lines."""
        remaining_data = memoryview(data)
        try:
            while remaining_data:
                remaining_data = write_some(self.files, self._fd, remaining_data)
        except OSError as exc:
            if exc.errno not in NO_SPACE:
                raise
            raise NoSpace(exc, written_data=data[: len(data) - len(remaining_data)]) from exc
        self._size += len(data)

    def pause(self, lines: int) -> None:
        """Sleep, so that the next write or sync takes more lines; longer if this one took many."""
        self.files.pause(min(max(_MIN_PAUSE, lines / _LINES_PER_SECOND), _MAX_PAUSE))

    def check_if_due(self) -> None:
        """Check the files if `CHECK_INTERVAL` has passed since the last check."""
        if time.monotonic() - self._checked_at >= CHECK_INTERVAL:
            self.check()

    def check(self) -> None:
        """Raise `SegmentChanged` if another process has changed the open segment, moved its directory or removed its lock."""
        is_intact = not self.segment or self.files.is_intact(self._fd, segments.file(self._path, self.segment), self._size)
        if not is_intact or not self._lock.is_in_place():
            raise SegmentChanged(self._change())
        self._checked_at = time.monotonic()

    def _change(self) -> Change:
        if self.segment:
            file, has_moved = segments.file(self._path, self.segment), self.files.link_count(self._fd) > 0
            if not self.files.exists(file):
                return "moved" if has_moved else "deleted"
            if not self.files.is_intact(self._fd, file, self._size):
                return "truncated or replaced"
        return "unlocked" if self.files.is_directory(str(self._path)) else "moved"

    def truncate_to_lines(self, written_data: bytes) -> int:
        """Remove the incomplete line at the end of the written bytes, and sync; return the number of complete lines."""
        length = written_data.rfind(b"\n") + 1
        retry_interrupted(lambda: self.files.ftruncate(self._fd, self._size + length))
        self._size += length
        self.sync()
        return written_data.count(b"\n")

    def sync(self) -> None:
        """Sync everything that was written. After a failure, every later call fails: a second sync could wrongly succeed."""
        if self._has_sync_failed:
            raise OSError(errno.EIO, "an earlier sync failed")
        try:
            self.blobs.sync()
            retry_interrupted(lambda: self.files.fdatasync(self._fd))
        except OSError:
            self._has_sync_failed = True
            raise

    def close(self, *, sealed: bool) -> None:
        """Close the segment; a sealed one becomes read-only."""
        if self.segment:
            if sealed:
                self.files.make_read_only(segments.file(self._path, self.segment))
            fd, self.segment = self._fd, 0
            self.files.close(fd)


@contextlib.contextmanager
def _raise_no_space() -> Generator[None]:
    try:
        yield
    except OSError as exc:
        if exc.errno in NO_SPACE:
            raise NoSpace(exc) from exc
        raise
