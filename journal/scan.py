"""Bytes into records, as far as they can be trusted.

A cursor knows what the next line must be: which number, which hash before it, which file. Whoever reads a journal (a reader, a
follower, recovery, `verify`) moves one along. What follows from a bad line is decided elsewhere; here it is only noticed.
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import attrs
from cattrs import BaseValidationError
from orjson import loads

from journal import chain, segments
from journal.blobs import referred
from journal.codec import CHECKING, TRUSTING, decode
from journal.errors import InvalidRecord, UnknownFormat
from journal.events import Event, Record, SegmentOpened, SegmentSealed, new_record
from journal.files import DISK, Files
from journal.versions import UPCASTERS, Upcasters, major_of, upcast


class BadLine(Exception):  # it never leaves this package, and it is a finding rather than a fault
    """A line is not the one that belongs here; the message says which check failed."""

    rest: bytes | None = None
    """The line itself, where it is unfinished: it was all that there was, whatever a writer has added since."""


class Cursor:
    """What the next line must be, given all the lines before it."""

    def __init__(self, path: Path, *, checking: bool = False, upcasters: Upcasters = UPCASTERS) -> None:
        self.path = path
        self.run = b""
        """The run's identity; empty until the first line has told it."""
        self.seq = 0
        """The last good record."""
        self.h = chain.GENESIS
        self.watermark = 0
        """The highest seq that a good record calls durable."""
        self.segment = 0
        self.offset = 0
        """Where the next line begins."""
        self.records = 0
        """How many records of this segment were taken."""
        self.sealed = False
        self.major = segments.MAJOR
        self._checking = checking
        """Whether to check types and the files' own sums too, which the hash of each line vouches for otherwise."""
        self._upcasters = upcasters
        self._digest = sha256()
        self._before = (0, "")
        """Length and sum of the file before."""

    def enter(self, segment: int) -> None:
        """Go on to the next file."""
        self._before = (self.offset, self._digest.hexdigest())
        self._digest = sha256()
        self.segment = segment
        self.offset = 0
        self.records = 0
        self.sealed = False

    def take(self, lines: Iterable[bytes]) -> Iterator[Record]:  # noqa: C901  # one loop, for the sake of speed
        """Make records of the next lines; raise `BadLine`, and stay before it, at one that does not belong here."""
        # The inner loop of everything that reads. It works on local names and calls as little as it can; a line's number,
        # place and hash come back to the cursor when the loop is left, whichever way.
        run, seq, h, offset, segment, records = self.run, self.seq, self.h, self.offset, self.segment, self.records
        watermark, hooks, checking = self.watermark, CHECKING if self._checking else TRUSTING, self._checking
        old = self.major != segments.MAJOR
        try:
            for line in lines:
                if not records:
                    self.greet(line)
                    run, old = self.run, self.major != segments.MAJOR
                digits = sha256(run + h + line[:-41]).hexdigest()[:32]
                following = digits.encode()
                if not line.endswith(b',"h":"' + following + b'"}\n'):
                    raise _bad(line)
                try:
                    members = loads(line)
                    if "blobs" in members or old:
                        members = self._prepared(members)
                    hook = hooks.get(members["type"])
                    event = hook(members) if hook else decode(members)
                    said, d = members["seq"], members["d"]
                    record = new_record(Record, (said, members["at"], members["t"], event, d, digits, segment, offset))
                    if d > watermark:  # noqa: PLR1730  # a call of `max` for every line that is read
                        watermark = d
                    if checking:
                        _check_own(record)
                except (ValueError, KeyError, TypeError, AttributeError, BaseValidationError) as exc:
                    raise InvalidRecord(self.path, seq + 1, f"it is not a record ({_in_words(exc)})") from exc
                if said != seq + 1:
                    raise InvalidRecord(self.path, seq + 1, f"it says that it is record {said}")
                if self.sealed or not records or event.__class__ is SegmentSealed or event.__class__ is SegmentOpened:
                    self.seq, self.h, self.offset, self.records = seq, h, offset, records
                    self._check_file(event)
                if checking:
                    self._digest.update(line)
                seq += 1
                h = following
                offset += len(line)
                records += 1
                yield record
        finally:
            self.seq, self.h, self.offset, self.records, self.watermark = seq, h, offset, records, watermark

    def revisit(self, first: dict[str, Any], before: bytes, line: bytes, offset: int) -> Record:
        """Make a record of one line in the middle of the file, given what the file's first line says and the hash before."""
        parts = chain.split(line[:-1])
        h = before or first.get("previous_h", "").encode() or chain.GENESIS
        if parts is None or chain.link(self.run, h, parts[0]) != parts[1]:
            raise _bad(line)
        try:
            members = self._prepared(loads(line))
            event, own = decode(members), (members["seq"], members["at"], members["t"])
            return Record(*own, event, members["d"], parts[1].decode(), self.segment, offset)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise BadLine(f"it is not a record ({exc})") from exc

    def _prepared(self, members: dict[str, Any]) -> dict[str, Any]:
        """Do what few lines need: find the values in blobs, bring an older format up to date."""
        if "blobs" in members:
            members.update(referred(members["blobs"], members["type"], self.path))
        return upcast(members, self.major, self._upcasters)

    def greet(self, line: bytes) -> dict[str, Any]:
        """Learn from a file's first line which format and which run it is of."""
        try:
            header: Any = loads(line)
        except ValueError as exc:
            raise BadLine(f"the file's first line is not JSON ({exc})") from exc
        if not isinstance(header, dict) or header.get("type") != "segment_opened":
            raise BadLine("the file does not begin with segment_opened")
        try:
            major = major_of(header, f"{self.path}/{segments.name(self.segment)}")
        except UnknownFormat as exc:
            if _is_as_written(line, header):  # In every version, a file's first line is hashed as it is in this one.
                raise
            raise BadLine("the file's first line was changed after it was written") from exc
        run = str(header.get("run")).encode()
        if self.run and run != self.run:
            raise BadLine(f"the file belongs to another run, {header.get('run')!r}")
        self.run, self.major = run, major
        return dict(header)

    def _broken(self, why: str) -> InvalidRecord:
        return InvalidRecord(self.path, self.seq + 1, why)

    def _check_file(self, event: Event) -> None:
        """Check that a file begins and ends as it must, and what it says of itself and of the file before it."""
        match event:
            case SegmentOpened() if not self.records:
                length, total = self._before
                if (event.segment, event.previous_seq, event.previous_bytes) != (self.segment, self.seq, length):
                    raise self._broken("it does not follow from the end of the file before")
                if (event.previous_h.encode() or chain.GENESIS) != self.h:
                    raise self._broken("it names another hash for the record before")
                if self._checking and self.segment > 1 and event.previous_sha256 != total:
                    raise self._broken("the SHA-256 of the file before is not the one that was recorded")
            case SegmentSealed() if self.records and not self.sealed:
                if (event.run.encode(), event.segment) != (self.run, self.segment):
                    raise self._broken(f"the seal is that of segment {event.segment} of run {event.run!r}")
                if (event.records, event.bytes) != (self.records, self.offset):
                    raise self._broken(f"the seal counts {event.records} records in {event.bytes} bytes")
                if self._checking and event.sha256 != self._digest.hexdigest():
                    raise self._broken("the SHA-256 in the seal is not that of the bytes before it")
                self.sealed = True
            case _:
                raise self._broken("it stands behind the seal" if self.sealed else "it is not the beginning of a file")


def _is_as_written(line: bytes, header: dict[str, Any]) -> bool:
    """Say whether a file's first line has the hash that it must have; it names all that goes into it."""
    parts = chain.split(line[:-1])
    before = str(header.get("previous_h") or "").encode() or chain.GENESIS
    return parts is not None and chain.link(str(header.get("run")).encode(), before, parts[0]) == parts[1]


def _check_own(record: Record) -> None:
    """Refuse members of the record itself that cannot be."""
    for name, value, kinds in (
        ("seq", record.seq, (int,)),
        ("at", record.at, (str,)),
        ("t", record.t, (float, int)),
        ("d", record.d, (int,)),
    ):
        if type(value) not in kinds:
            raise ValueError(f"{name} is {value!r}")
    if not 0 <= record.d < record.seq:
        raise ValueError(f"it calls record {record.d} durable")


def _in_words(exc: Exception) -> str:
    if isinstance(exc, BaseValidationError):
        return "; ".join(str(each) for each in exc.exceptions)
    return f"{exc.args[0]} is missing" if isinstance(exc, KeyError) else str(exc)


def _bad(line: bytes) -> BadLine:
    """Say what is wrong with a line that does not end in the hash that it should have."""
    if not line.endswith(b"\n"):
        unfinished = BadLine("the line is unfinished")
        unfinished.rest = line
        return unfinished
    if chain.split(line[:-1]) is None:
        return BadLine("the line does not end in a hash")
    return BadLine("its hash does not follow from the record before")


@attrs.frozen
class ScanStop:
    """Where a scan could go no further, and why."""

    segment: int
    byte: int
    seq: int
    """The record that should have stood there."""
    check: str
    in_header: bool
    """Whether it is the first line of its file, which was on disk before the file had its name."""
    rest: bytes | None = None
    """All that followed the last good record, where that was half a line."""


class Scan:
    """One pass over a journal, from its first byte to the first that cannot be trusted."""

    def __init__(self, path: Path, files: Files = DISK, *, checking: bool = False, upcasters: Upcasters = UPCASTERS) -> None:
        self.path = path
        self.files = files
        self.numbers = segments.numbers(path, files)
        self.cursor = Cursor(path, checking=checking, upcasters=upcasters)
        self.stop: ScanStop | None = None
        """Set when the pass has ended before the last byte."""

    def __iter__(self) -> Iterator[Record]:
        """Yield every good record; afterwards, `stop` says what ended the pass, if anything did."""
        cursor = self.cursor
        for place, number in enumerate(self.numbers, start=1):
            if number != place:
                self._stop_at(place, f"{segments.name(place)} is missing", in_header=True)
                return
            if place > 1 and not cursor.sealed:
                self._stop_at(cursor.segment, "the file ends without a seal, though another follows it")
                return
            cursor.enter(number)
            with self.files.read(segments.file(self.path, number)) as stream:
                try:
                    yield from cursor.take(stream)
                except BadLine as exc:
                    self._stop_at(number, str(exc), rest=exc.rest)
                    return
            if not cursor.records:
                self._stop_at(number, "the file is empty")
                return

    @property
    def is_in_last(self) -> bool:
        """Say whether the pass ended in the last file, the only one that a crash may have cut."""
        return self.stop is None or self.stop.segment == self.numbers[-1]

    def remainder(self) -> bytes:
        """Read what follows the last good record in the file where the pass ended."""
        if self.stop is None or self.stop.segment not in self.numbers:
            return b""
        if self.stop.rest is not None:
            return self.stop.rest
        with self.files.read(segments.file(self.path, self.stop.segment)) as stream:
            stream.seek(self.stop.byte)
            return stream.read()

    def _stop_at(self, segment: int, check: str, *, in_header: bool = False, rest: bytes | None = None) -> None:
        cursor = self.cursor
        here = segment == cursor.segment
        self.stop = ScanStop(
            segment=segment,
            byte=cursor.offset if here else 0,
            seq=cursor.seq + 1,
            check=check,
            in_header=in_header or (here and not cursor.records),
            rest=rest,
        )
