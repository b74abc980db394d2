"""Readers of a journal: all records, or one record.

Readers never change files. They return records up to the first one that cannot be trusted.
"""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self

from evaljournal.journal.disk import segments
from evaljournal.journal.disk.files import DISK, Files
from evaljournal.journal.errors import BlobDamaged, JournalDamaged, NotAJournal
from evaljournal.journal.events import Record
from evaljournal.journal.format import chain
from evaljournal.journal.format.blobs import with_loaded_blobs
from evaljournal.journal.readers.recovery import find_damage, scan_before_loss
from evaljournal.journal.readers.scan import BadLine, Cursor, Scan, ScanStop


class JournalReader:
    """The records of a journal, in order.

    Iterating raises `JournalDamaged` if confirmed records are missing or changed. An incomplete tail (after a crash, or while
    a writer is active) ends the iteration; `stop` is then its position.
    """

    def __init__(self, path: Path, files: Files, *, load_blobs: bool) -> None:
        self._path = path
        self._files = files
        self._scan = Scan(path, files)
        self._load_blobs = load_blobs

    def __iter__(self) -> Iterator[Record]:
        scan = self._scan = Scan(self._path, self._files)
        records = self._records_with_blobs(scan) if self._load_blobs else scan
        return itertools.chain(records, _raise_if_damaged(scan))

    def _records_with_blobs(self, scan: Scan) -> Iterator[Record]:
        for record in scan:
            try:
                yield with_loaded_blobs(record, scan.files)
            except BlobDamaged:
                earlier_scan = scan_before_loss(self._path, self._files, record.seq)
                if earlier_scan is None:
                    raise
                self._scan = earlier_scan
                return

    @property
    def run(self) -> str:
        """Id of the run; empty until the first record was read."""
        return self._scan.cursor.run.decode()

    @property
    def stop(self) -> ScanStop | None:
        """Where the last complete record ends, if unconfirmed bytes follow it."""
        return self._scan.stop


def _raise_if_damaged(scan: Scan) -> Iterator[Record]:
    damage = find_damage(scan)
    if damage is not None:
        raise damage
    yield from ()


def read(path: Path | str, *, load_blobs: bool = True, files: Files = DISK) -> JournalReader:
    """Read the records of a run; with `load_blobs=False`, large values are returned as `Blob`."""
    return JournalReader(Path(path), files, load_blobs=load_blobs)


class RecordReader:
    """Reads single records and lines by their position; keeps the last file open."""

    def __init__(self, path: Path | str, *, load_blobs: bool = True, files: Files = DISK) -> None:
        self._path = Path(path)
        self._load_blobs = load_blobs
        self._files = files
        self._cursor = Cursor(self._path)
        self._stream: BinaryIO | None = None
        self._header: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def find(self, segment: int, offset: int) -> Record:
        """Read one record and check its hash against the previous line."""
        try:
            stream = self._open(segment)
            stream.seek(max(0, offset - chain.NEXT_LINE))
            previous_h = stream.read(min(offset, chain.NEXT_LINE))[: chain.HASH_LENGTH]
            record = self._cursor.read_one(self._header, previous_h, stream.readline(), offset)
        except BadLine as exc:
            self.__exit__()  # The next call opens the file again; it may have been replaced.
            file = segments.name(segment)
            raise JournalDamaged(path=self._path, file=file, byte=offset, seq=None, check=str(exc)) from exc
        return with_loaded_blobs(record, self._files) if self._load_blobs else record

    def line_of(self, record: Record) -> bytes:
        """Return the line of a record that was read before, as it is on disk, with its LF."""
        for _ in range(2):
            with contextlib.suppress(BadLine):
                stream = self._open(record.segment)
                stream.seek(record.offset)
                if (line := stream.readline()).endswith(chain.OPENING + record.h.encode() + chain.LINE_CLOSING):
                    return line
            self.__exit__()  # Recovery may have replaced the file.
        file, check = segments.name(record.segment), "the line was changed or removed after it was read"
        raise JournalDamaged(path=self._path, file=file, byte=record.offset, seq=record.seq, check=check)

    def _open(self, segment: int) -> BinaryIO:
        if self._stream is not None and self._cursor.segment == segment:
            return self._stream
        self.__exit__()
        try:
            self._stream = self._files.read(segments.file(self._path, segment))
        except FileNotFoundError as exc:
            raise NotAJournal(f"{self._path}: {segments.name(segment)} is missing", path=self._path) from exc
        self._cursor = Cursor(self._path)
        self._cursor.enter(segment)
        self._header = self._cursor.read_header(self._stream.readline())
        return self._stream


def fetch(path: Path | str, segment: int, offset: int, *, load_blobs: bool = True, files: Files = DISK) -> Record:
    """Read one record by its position and check its hash against the previous line."""
    with RecordReader(path, load_blobs=load_blobs, files=files) as reader:
        return reader.find(segment, offset)
