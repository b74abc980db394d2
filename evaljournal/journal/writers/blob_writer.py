"""Blobs that are being written. Blocking calls only; several threads may write at the same time.

A blob is complete before the line that refers to it is written, so killing the process loses neither. It is synced before that
record is confirmed, not before the line is written: otherwise that line and all later ones would wait for the disk.
"""

import contextlib
import os
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import get_ident
from typing import Final

from evaljournal.journal.disk.files import APPEND, CREATE_NEW, Files, open_new, retry_interrupted, write_all
from evaljournal.journal.format.blobs import PARENTS, location

SLOW_WRITE: Final = 0.01
"""Seconds from which a write counts as slow; the page cache takes less than one millisecond per megabyte."""
_THREADS: Final = 8
"""Maximum number of blobs that are written at the same time."""
_RECENT_WRITES: Final = 4
"""Number of last writes that must all have been slow: a single one may have been preempted."""


class BlobWriter:
    """Writes the blobs of a run, and syncs them later."""

    def __init__(self, path: Path, files: Files) -> None:
        self._path = str(path)
        self._files = files
        self._unsynced_files: deque[str] = deque()
        """Blobs that were written since the last sync."""
        self._synced_directories: set[str] = set()
        """Directories whose own names were synced in this session."""
        self._checked_directories: set[str] = set()
        """Directories that are not symlinks."""
        self._threads: ThreadPoolExecutor | None = None
        self._futures: dict[str, Future[None]] = {}
        """SHA-256 → write that was started in a thread."""
        self._durations = deque([0.0], maxlen=_RECENT_WRITES)
        """Seconds that the last writes took."""

    def start(self, contents: Mapping[str, bytes]) -> None:
        """Start writing blobs, by their SHA-256, in threads; `write` then waits for them."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "evaljournal-blobs")
        for sha256, content in contents.items():
            self._futures[sha256] = self._threads.submit(self._write, sha256, content)

    def write(self, sha256: str, data: bytes) -> None:
        """Write a blob, unless it exists, without syncing it."""
        future = self._futures.pop(sha256, None)
        if future is None:
            self._write(sha256, data)
        else:
            future.result()

    def close(self) -> None:
        """Cancel the writes that have not started; the threads end after their current write."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def is_slow(self) -> bool:
        """Whether the last writes took so long that the lines of other records should not wait for them."""
        return min(self._durations) > SLOW_WRITE

    def _write(self, sha256: str, data: bytes) -> None:
        # As few system calls as possible: after each one, the thread may have to wait for the GIL.
        file, start = os.path.join(self._path, location(sha256)), time.monotonic()
        try:
            # Only the first file in a directory needs the check for symlinks, which takes several calls.
            parents = 0 if os.path.dirname(file) in self._checked_directories else PARENTS
            self._write_and_close(retry_interrupted(lambda: self._files.open(file, CREATE_NEW, parents)), data)
            self._checked_directories.add(os.path.dirname(file))
        except FileNotFoundError:
            self._make_directories(file)
            return self._write(sha256, data)
        except FileExistsError:
            if not self._is_stored(file, data):  # A crash left it incomplete, or another thread is writing it.
                temporary = f"{file}.{get_ident()}.new"
                self._write_and_close(open_new(self._files, temporary, PARENTS), data)
                retry_interrupted(lambda: self._files.replace(temporary, file))
        self._unsynced_files.append(file)  # Also if it exists: its writer may have died before it was synced.
        self._durations.append(time.monotonic() - start)
        return None

    def sync(self) -> None:
        """Sync the blobs that were written so far, and their names."""
        directories: set[str] = set()
        for _ in range(len(self._unsynced_files)):
            file = self._unsynced_files.popleft()
            fd = retry_interrupted(lambda: self._files.open(file, APPEND))  # noqa: B023  # called immediately
            try:
                retry_interrupted(lambda: self._files.fsync(fd))  # noqa: B023  # called immediately
            finally:
                self._files.close(fd)
            directories.add(os.path.dirname(file))
        for directory in directories:
            retry_interrupted(lambda: self._files.sync_directory(directory))  # noqa: B023  # called immediately
            self._sync_name(directory)

    def _sync_name(self, directory: str) -> None:
        if directory != self._path and directory not in self._synced_directories:
            parent = os.path.dirname(directory)
            retry_interrupted(lambda: self._files.sync_directory(parent))
            self._synced_directories.add(directory)
            self._sync_name(parent)

    def _is_stored(self, file: str, data: bytes) -> bool:
        if self._files.size(file) != len(data):
            return False
        with self._files.read(file, PARENTS) as stream:
            return stream.read() == data

    def _write_and_close(self, fd: int, data: bytes) -> None:
        try:
            write_all(self._files, fd, data)
        finally:
            self._files.close(fd)

    def _make_directories(self, file: str) -> None:
        directory = os.path.dirname(file)
        for path in (os.path.dirname(directory), directory):
            with contextlib.suppress(FileExistsError):
                retry_interrupted(lambda: self._files.mkdir(path))  # noqa: B023  # called immediately
