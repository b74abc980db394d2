"""Read lines into records, up to the first line that cannot be trusted.

A `Cursor` has the number, the previous hash and the file that are expected of the next line; all readers use one.
`journal.readers.recovery` decides what an invalid line means.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import attrs
from orjson import loads

from evaljournal.journal.disk import segments
from evaljournal.journal.disk.files import DISK, Files, NotRegularFile, is_unreadable
from evaljournal.journal.errors import InvalidRecord, UnknownFormat
from evaljournal.journal.events import Event, Record, SegmentOpened, SegmentSealed, new_record
from evaljournal.journal.format import chain
from evaljournal.journal.format.blobs import unloaded_blobs
from evaljournal.journal.format.codec import DECODERS, MAX_TIME, RECORD_LIMIT, decode

MAX_LINE: Final = RECORD_LIMIT + chain.LINE_TAIL
"""Maximum length of a line in bytes."""
_BLOCK: Final = 4096
"""Block size in bytes for reading a file that is partly unreadable."""

_MAX_WALL_TIME: Final = 40
"""Maximum characters of `at`."""
_parse_wall_time: Final = datetime.fromisoformat

Fields = dict[str, Any]


class BadLine(Exception):  # Internal to this package.
    """A line is not the expected one; the message is the check that failed."""

    unfinished_line: bytes | None = None
    """The line, if it has no LF. A writer may have added to the file since it was read."""


class Cursor:
    """A position in a journal, which the next line must continue."""

    def __init__(self, path: Path, *, check_all: bool = False) -> None:
        self.path = path
        self.run = b""
        """The run's id; empty before the first line."""
        self.seq = 0
        """The last valid record."""
        self.h = chain.GENESIS
        self.watermark = 0
        """The highest seq that a valid record reports as durable."""
        self.segment = 0
        self.offset = 0
        """Start of the next line."""
        self.records = 0
        """Number of valid records in this segment so far."""
        self.is_sealed = False
        self.seqs_with_blobs: list[int] = []
        self._check_all = check_all
        """Whether to check the checksums of files and the order of `d` and `seq`, too."""
        self._digest = sha256()
        self._previous_file = (0, "")
        """Length and SHA-256 of the previous file."""

    @property
    def sha256(self) -> str:
        """The SHA-256 of the valid lines of this segment so far; of nothing, unless everything is checked."""
        return self._digest.hexdigest()

    def enter(self, segment: int) -> None:
        self._previous_file = (self.offset, self._digest.hexdigest())
        self._digest = sha256()
        self.segment = segment
        self.offset = 0
        self.records = 0
        self.is_sealed = False

    def read(self, lines: Iterable[bytes]) -> Iterator[Record]:  # noqa: C901  # one loop, for speed
        """Yield the records in the next lines; raise `BadLine`, and stay before it, at an unexpected one."""
        # The inner loop of every reader: it uses local names and few calls, and writes the position back when it is left.
        run, seq, h, offset, segment, records = self.run, self.seq, self.h, self.offset, self.segment, self.records
        watermark, decoders, check_all = self.watermark, DECODERS, self._check_all
        link, opening, closing, tail = chain.link, chain.OPENING, chain.LINE_CLOSING, -chain.LINE_TAIL

        try:
            for line in lines:
                if not records:
                    self.read_header(line)
                    run = self.run

                digits = link(run, h, line[:tail])
                next_h = digits.encode()
                if not line.endswith(opening + next_h + closing):
                    raise _bad_line(line)
                try:
                    fields = loads(line)
                    if "blobs" in fields:
                        self._add_blobs(fields)
                    decoder = decoders[fields["type"]]
                    event = decoder(fields) if decoder else decode(fields)
                    number, at, t, d = record_fields(fields)
                    if d > watermark:  # noqa: PLR1730  # faster than `max`
                        watermark = d
                    record = new_record(Record, (number, at, t, event, d, digits, segment, offset))
                except (ValueError, KeyError, TypeError, AttributeError) as exc:
                    raise InvalidRecord(self.path, seq + 1, f"not a record ({_reason(exc)})") from exc

                if number != seq + 1:
                    raise InvalidRecord(self.path, seq + 1, f"expected seq {seq + 1}, got {number}")
                if self.is_sealed or not records or event.__class__ is SegmentSealed or event.__class__ is SegmentOpened:
                    self.seq, self.h, self.offset, self.records = seq, h, offset, records
                    self._check_file(event)
                if check_all:
                    if d > seq:
                        raise InvalidRecord(self.path, seq + 1, f"d is {d}, expected at most {seq}")
                    self._digest.update(line)

                seq += 1
                h = next_h
                offset += len(line)
                records += 1
                yield record
        finally:
            self.seq, self.h, self.offset, self.records, self.watermark = seq, h, offset, records, watermark

    def read_one(self, header: Fields, previous_h: bytes, line: bytes, offset: int) -> Record:
        """Return the record in one line of the file, given the file's header and the hash before the line."""
        parts = chain.split(line[:-1])
        h = previous_h or header.get("previous_h", "").encode() or chain.GENESIS
        if parts is None or chain.link(self.run, h, parts[0]).encode() != parts[1]:
            raise _bad_line(line)
        try:
            fields = loads(line)
            if "blobs" in fields:
                self._add_blobs(fields)
            event, (seq, at, t, d) = decode(fields), record_fields(fields)
            return Record(seq, at, t, event, d, parts[1].decode(), self.segment, offset)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise BadLine(f"not a record ({exc})") from exc

    def _add_blobs(self, fields: Fields) -> None:
        """Resolve blob references; few lines have any."""
        fields.update(unloaded_blobs(fields["blobs"], fields["type"], self.path))
        self.seqs_with_blobs.append(fields["seq"])

    def read_header(self, line: bytes) -> Fields:
        try:
            header: Any = loads(line)
        except ValueError as exc:
            raise BadLine(f"the first line of the file is not JSON ({exc})") from exc
        if not isinstance(header, dict) or header.get("type") != "segment_opened":
            raise BadLine("the file does not start with segment_opened")
        try:
            check_version(header, f"{self.path}/{segments.name(self.segment)}")
        except UnknownFormat as exc:
            if _has_correct_hash(line, header):  # The first line is hashed in the same way in every version.
                raise
            raise BadLine("the first line of the file was changed after it was written") from exc

        run = str(header.get("run")).encode()
        if self.run and run != self.run:
            raise BadLine(f"the file belongs to another run, {header.get('run')!r}")
        self.run = run
        return dict(header)

    def _error(self, reason: str) -> InvalidRecord:
        return InvalidRecord(self.path, self.seq + 1, reason)

    def _check_file(self, event: Event) -> None:
        """Check the records at the start and at the end of a file."""
        match event:
            case SegmentOpened() if not self.records:
                length, digest = self._previous_file
                if (event.segment, event.previous_seq, event.previous_bytes) != (self.segment, self.seq, length):
                    raise self._error("it does not continue the previous file")
                if (event.previous_h.encode() or chain.GENESIS) != self.h:
                    raise self._error("its previous_h is not the hash of the previous record")
                if self._check_all and self.segment > 1 and event.previous_sha256 != digest:
                    raise self._error("its previous_sha256 is not the SHA-256 of the previous file")
            case SegmentSealed() if self.records and not self.is_sealed:
                if (event.run.encode(), event.segment) != (self.run, self.segment):
                    expected = f"segment {self.segment} of run {self.run.decode()!r}"
                    raise self._error(f"it seals segment {event.segment} of run {event.run!r}, expected {expected}")
                if (event.records, event.bytes) != (self.records, self.offset):
                    expected = f"{self.records} in {self.offset}"
                    raise self._error(f"it seals {event.records} records in {event.bytes} bytes, expected {expected}")
                if self._check_all and event.sha256 != self._digest.hexdigest():
                    raise self._error("its sha256 is not the SHA-256 of the bytes before it")
                self.is_sealed = True
            case _:
                raise self._error("it follows segment_sealed" if self.is_sealed else "it is not at the start of a file")


def check_version(header: Mapping[str, Any], file: str) -> None:
    """Raise if the first record of a file has another format or major version."""
    version = str(header.get("version"))
    if header.get("format") != segments.FORMAT or version.partition(".")[0] != str(segments.MAJOR):
        raise UnknownFormat(file, format=str(header.get("format")), version=version, readable=segments.MAJOR)


def _has_correct_hash(line: bytes, header: Fields) -> bool:
    parts = chain.split(line[:-1])
    previous_h = str(header.get("previous_h") or "").encode() or chain.GENESIS
    return parts is not None and chain.link(str(header.get("run")).encode(), previous_h, parts[0]).encode() == parts[1]


def record_fields(fields: Fields) -> tuple[int, str, float, int]:
    """Return `seq`, `at`, `t` and `d` of a record; raise `ValueError` if one has an invalid value."""
    seq, at, t, d = fields["seq"], fields["at"], fields["t"], fields["d"]
    if seq.__class__ is not int or d.__class__ is not int or d < 0:
        raise ValueError(f"invalid seq or d: {seq!r:.80}, {d!r:.80}")
    if at.__class__ is not str or at[-1:] != "Z" or len(at) > _MAX_WALL_TIME:
        raise ValueError(f"invalid at: {at!r:.80}")
    _parse_wall_time(at)
    if (t.__class__ is not float and t.__class__ is not int) or not -MAX_TIME < t < MAX_TIME:
        raise ValueError(f"invalid t: {t!r:.80}")
    return seq, at, t, d


def _reason(exc: Exception) -> str:
    return f"{exc.args[0]} is missing" if isinstance(exc, KeyError) else str(exc)


def lines_in(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a segment; one that is longer than a record may be is divided."""
    return iter(partial(stream.readline, MAX_LINE), b"")


def _bad_line(line: bytes) -> BadLine:
    """Return the error for a line without the expected hash."""
    if len(line) >= MAX_LINE:
        return BadLine(f"the line has more than {RECORD_LIMIT:,} bytes")
    if not line.endswith(b"\n"):
        error = BadLine("the line is incomplete")
        error.unfinished_line = line
        return error
    if line.endswith(chain.CLOSING + b"\r\n"):
        return BadLine("the line ends with CR LF; if git has converted it, add `*.jsonl -text` to .gitattributes")
    if chain.split(line[:-1]) is None:
        return BadLine("the line does not end with a hash")
    return BadLine("its hash does not follow from the previous record")


@attrs.frozen
class ScanStop:
    segment: int
    byte: int
    seq: int
    """The record expected there."""
    check: str
    is_in_header: bool
    """Whether it is the first line of a file, which is synced before the file gets its name."""
    unfinished_line: bytes | None = None
    """Everything after the last valid record, if that is an incomplete line."""
    is_unreadable: bool = False


@attrs.frozen
class LostRecord:
    """An unconfirmed record whose blob is lost; it counts as not written."""

    seq: int
    reason: str


class Scan:
    """One pass over a journal, up to the first byte that cannot be trusted."""

    def __init__(self, path: Path, files: Files = DISK, *, check_all: bool = False, loss: "LostRecord | None" = None) -> None:
        """The pass ends before the record `loss`."""
        self.path = path
        self.files = files
        self._loss = loss
        self.numbers = segments.numbers(path, files)
        self.cursor = Cursor(path, check_all=check_all)
        self.stop: ScanStop | None = None
        """Set if the pass stopped before the last byte."""
        self.unreadable_files: set[str] = set()
        """Segments that the system could not read, or only in part."""

    def __iter__(self) -> Iterator[Record]:
        """Yield every valid record, then set `stop`."""
        cursor = self.cursor
        for expected, number in enumerate(self.numbers, start=1):
            if number != expected:
                self._stop_at(expected, f"{segments.name(expected)} is missing")
                return
            if expected > 1 and not cursor.is_sealed:
                self._stop_at(cursor.segment, "the file is not sealed, but another one follows")
                return

            cursor.enter(number)
            try:
                with self.files.read(segments.file(self.path, number)) as stream:
                    lines = lines_in(stream)
                    yield from (cursor.read(lines) if self._loss is None else self._read_before(lines, self._loss.seq))
            except BadLine as exc:
                self._stop_at(number, str(exc), exc)
                return
            except OSError as exc:
                if not is_unreadable(exc):
                    raise
                self.unreadable_files.add(segments.name(number))
                self._stop_at(number, f"the file cannot be read ({exc.strerror})", exc)
                return

            if self._loss is not None and cursor.seq + 1 == self._loss.seq:
                self._stop_at(number, self._loss.reason)
                return
            if not cursor.records:
                self._stop_at(number, "the file is empty")
                return

    def _read_before(self, lines: Iterable[bytes], seq: int) -> Iterator[Record]:
        for record in self.cursor.read(lines):
            yield record
            if record.seq + 1 == seq:
                return

    def read_all(self) -> Self:
        collections.deque(self, maxlen=0)
        return self

    def remainder(self) -> bytes:
        """Return the bytes after the last valid record, in the file where the pass stopped."""
        if self.stop is None or self.stop.segment not in self.numbers:
            return b""
        if self.stop.unfinished_line is not None:
            return self.stop.unfinished_line
        return self.read_from(self.stop.segment, self.stop.byte)

    def read_from(self, segment: int, byte: int) -> bytes:
        """Return the bytes of a segment from an offset on; blocks that cannot be read become zeros."""
        file = segments.file(self.path, segment)
        try:
            with self.files.read(file) as stream:
                stream.seek(byte)
                return stream.read()
        except NotRegularFile:
            self.unreadable_files.add(segments.name(segment))
            return b""
        except OSError as exc:
            if not is_unreadable(exc):
                raise
        self.unreadable_files.add(segments.name(segment))
        blocks: list[bytes] = []
        size = self.files.size(file) or 0
        for block in range(byte - byte % _BLOCK, size, _BLOCK):
            start = max(block, byte)
            length = min(block + _BLOCK, size) - start
            try:
                with self.files.read(file) as stream:
                    stream.seek(start)
                    blocks.append(stream.read(length))
            except OSError:
                blocks.append(bytes(length))
        return b"".join(blocks)

    def _stop_at(self, segment: int, check: str, exc: BadLine | OSError | None = None) -> None:
        cursor = self.cursor
        is_current = segment == cursor.segment  # Otherwise it is missing.
        self.stop = ScanStop(
            segment=segment,
            byte=cursor.offset if is_current else 0,
            seq=cursor.seq + 1,
            check=check,
            is_in_header=not (is_current and cursor.records),
            unfinished_line=exc.unfinished_line if isinstance(exc, BadLine) else None,
            is_unreadable=isinstance(exc, OSError),
        )
