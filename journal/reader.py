"""JournalReader a journal: all of it, one record of it, or as it grows.

Readers never change anything. They go as far as the records can be trusted, and say so where that is not the end.
"""

import collections
import functools
import itertools
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import trio

from journal import blobs, segments
from journal.errors import JournalDamaged, JournalError, NotAJournal
from journal.events import Record
from journal.files import DISK, Files
from journal.recovery import damage
from journal.scan import BadLine, Cursor, Scan, ScanStop
from journal.versions import UPCASTERS, Upcasters

POLL_INTERVAL: Final = 0.1
"""Seconds after which a follower looks whether the files have grown; files of another process tell nobody."""

_BEFORE: Final = 35
"""How far before a line's beginning the hash of the line before begins: 32 digits, a quote, a brace and the LF."""


class JournalReader:
    """The records of a journal, in order.

    Iterating raises `JournalDamaged` where confirmed data is not what was written; after an end that a crash (or a writer at
    work) has left unfinished, `unfinished` says where that is.
    """

    def __init__(self, path: Path, files: Files, *, load_blobs: bool, upcasters: Upcasters) -> None:
        self._new_scan = functools.partial(Scan, path, files, upcasters=upcasters)
        self._scan = self._new_scan()
        self._load_blobs = load_blobs

    def __iter__(self) -> Iterator[Record]:
        scan = self._scan = self._new_scan()
        records = (_whole(record, scan.files) for record in scan) if self._load_blobs else scan
        return itertools.chain(records, _end(scan))

    @property
    def run(self) -> str:
        """Identity of the run; empty until the first record was read."""
        return self._scan.cursor.run.decode()

    @property
    def unfinished(self) -> ScanStop | None:
        """Where the last good record ends, if something that nobody was promised stands behind it."""
        return self._scan.stop


def _end(scan: Scan) -> Iterator[Record]:
    """Give nothing more, and raise if what follows the last good record is damage."""
    damaged = damage(scan)
    if damaged is not None:
        raise damaged
    yield from ()


def read(path: Path | str, *, load_blobs: bool = True, files: Files = DISK, upcasters: Upcasters = UPCASTERS) -> JournalReader:
    """Read a run's records; with `load_blobs=False`, large values stay on disk as `Blob`s."""
    return JournalReader(Path(path), files, load_blobs=load_blobs, upcasters=upcasters)


class Finder:
    """Finds records again by their places; the file that it looked into last stays open for the next one."""

    def __init__(self, path: Path | str, *, load_blobs: bool = True, files: Files = DISK) -> None:
        self._path = Path(path)
        self._load_blobs = load_blobs
        self._files = files
        self._cursor = Cursor(self._path)
        self._stream: BinaryIO | None = None
        self._first: dict[str, Any] = {}
        """What the first line of that file says."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def find(self, segment: int, offset: int) -> Record:
        """Read one record again, and check that it still follows from the line before it."""
        try:
            stream = self._opened(segment)
            stream.seek(max(0, offset - _BEFORE))
            before = stream.read(min(offset, _BEFORE))[:32]
            record = self._cursor.revisit(self._first, before, stream.readline(), offset)
        except BadLine as exc:
            self.__exit__()  # If it is asked again, then of the file that stands there by then.
            file = segments.name(segment)
            raise JournalDamaged(path=self._path, file=file, byte=offset, seq=None, check=str(exc)) from exc
        return _whole(record, self._files) if self._load_blobs else record

    def _opened(self, segment: int) -> BinaryIO:
        if self._stream is not None and self._cursor.segment == segment:
            return self._stream
        self.__exit__()
        try:
            self._stream = self._files.read(segments.file(self._path, segment))
        except FileNotFoundError as exc:
            raise NotAJournal(f"{self._path} has no {segments.name(segment)}") from exc
        self._cursor = Cursor(self._path)
        self._cursor.enter(segment)
        self._first = self._cursor.greet(self._stream.readline())
        return self._stream


def fetch(path: Path | str, segment: int, offset: int, *, load_blobs: bool = True, files: Files = DISK) -> Record:
    """Read one record again by its place, and check that it still follows from the line before it."""
    with Finder(path, load_blobs=load_blobs, files=files) as finder:
        return finder.find(segment, offset)


class LineReader:
    """The lines of a journal as they stand on disk."""

    def __init__(self, path: Path | str, files: Files = DISK) -> None:
        self._path = Path(path)
        self._files = files
        self._segment = 0
        self._stream: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()

    def line_of(self, record: Record) -> bytes:
        """Read the line that a record was made of, with its LF."""
        line = b"" if self._stream is None or record.segment != self._segment else self._line(self._stream, record)
        if not line:  # Another file; or recovery has put a new one in the place of this one.
            self.__exit__()
            self._stream = self._files.read(segments.file(self._path, record.segment))
            self._segment = record.segment
            line = self._line(self._stream, record)
        if not line:
            raise JournalDamaged(
                path=self._path,
                file=segments.name(record.segment),
                byte=record.offset,
                seq=record.seq,
                check="the line that was read before is no longer there",
            )
        return line

    def _line(self, stream: BinaryIO, record: Record) -> bytes:
        stream.seek(record.offset)
        line = stream.readline()
        return line if line.endswith(b'"%b"}\n' % record.h.encode()) else b""


async def follow(
    path: Path | str, *, load_blobs: bool = True, poll_interval: float = POLL_INTERVAL, files: Files = DISK
) -> AsyncGenerator[Record, None]:
    """Read a run's records, and go on as more are written, across files and sessions, until cancelled.

    The end of a run is a record like any other (`RunFinished`, `RunStopped`): whether to stay after it is the caller's choice.
    """
    follower = await trio.to_thread.run_sync(lambda: _Follower(Path(path), files, load_blobs=load_blobs))
    while True:
        for record in await trio.to_thread.run_sync(follower.more):
            yield record
        if not follower.has_more:
            await trio.sleep(poll_interval)


class _Follower:
    """Where a follower stands: which file, which byte, which record must come next."""

    AT_ONCE: Final = 1 << 20

    def __init__(self, path: Path, files: Files, *, load_blobs: bool) -> None:
        self._files = files
        self._load_blobs = load_blobs
        self._path = path
        self._cursor = Cursor(path)
        self._cursor.enter(segments.numbers(path, files)[0])
        self.has_more = True
        self._judged: int | None = None
        """The length of the file when it was last found to be torn, but not damaged."""

    def more(self) -> list[Record]:
        """Take what has been written since, at most a megabyte at a time."""
        cursor = self._cursor
        # The file is opened anew each time: recovery may have put another in its place, with the same good beginning.
        try:
            opened = self._files.read(segments.file(self._path, cursor.segment))
        except FileNotFoundError as exc:
            raise NotAJournal(f"{self._path} has lost its {segments.name(cursor.segment)}") from exc
        with opened as stream:
            stream.seek(cursor.offset)
            lines = stream.readlines(self.AT_ONCE)
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()  # Half a line: its other half is still to come.
        records: list[Record] = []
        try:
            records.extend(cursor.take(lines))
        except BadLine:
            if not records:  # Otherwise hand over the good ones first.
                self._refuse_damage()
        except JournalError:
            if not records:  # The same.
                raise
        if cursor.sealed and self._files.size(segments.file(self._path, cursor.segment + 1)) is not None:
            cursor.enter(cursor.segment + 1)
            self.has_more = True
        else:
            self.has_more = bool(records)
        return [_whole(record, self._files) for record in records] if self._load_blobs else records

    def _refuse_damage(self) -> None:
        """Raise if confirmed data is damaged; a torn tail is left to the one who resumes the run."""
        size = self._files.size(segments.file(self._path, self._cursor.segment))
        if size == self._judged:
            return
        scan = Scan(self._path, self._files)
        collections.deque(scan, maxlen=0)
        damaged = damage(scan)
        if damaged is not None:
            raise damaged
        self._judged = size


def _whole(record: Record, files: Files) -> Record:
    """Load the values that were kept in blobs, if there are any."""
    event = blobs.loaded(record.event, files)
    return record if event is record.event else record._replace(event=event)
