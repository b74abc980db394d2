"""Records that are appended and not written yet: lines with their hashes, in groups of one segment each.

`Journal.append` adds lines at the end; its writer task takes groups from the front. No file access here.
"""

from collections import deque
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

import attrs
import trio

from evaljournal.journal.disk import segments
from evaljournal.journal.events import Event, Record, SegmentOpened, SegmentSealed, new_record
from evaljournal.journal.format import chain
from evaljournal.journal.format.chain import HASH_LENGTH, LINE_CLOSING, OPENING, PIECE
from evaljournal.journal.format.codec import encode
from evaljournal.journal.writers.open import JournalEnd

if TYPE_CHECKING:
    from hashlib import _Hash


@attrs.define
class _Segment:
    """The segment that records are being added to; they may not be in its file yet."""

    number: int
    previous_seq: int
    """The last record before it."""
    bytes: int
    digest: "_Hash"
    """SHA-256 of the lines that were taken; see `LineQueue._digest`."""


@attrs.define
class LineGroup:
    """Lines of one segment that are written together, after their blobs."""

    segment: int
    first_seq: int
    """Number of the first record."""
    lines: list[bytes] = attrs.field(factory=list)
    data: bytes = b""
    """All lines, joined when the group was taken."""
    blobs: dict[str, bytes] = attrs.field(factory=dict)
    """SHA-256 → content."""


class LineQueue:
    """The lines at the end of a journal that are not written yet."""

    def __init__(self, end: JournalEnd) -> None:
        cursor = end.cursor
        self.run = cursor.run
        self.seq = cursor.seq
        """The last record."""
        self.h = cursor.h
        """Its hash."""
        self.segment = _Segment(cursor.segment, cursor.seq - cursor.records, cursor.offset, end.digest)
        self.groups: deque[LineGroup] = deque([LineGroup(cursor.segment, cursor.seq + 1)])
        self.pending_bytes = 0
        """Bytes of lines and blobs that were added and not passed to `mark_written`."""
        self._is_idle = False
        self._wakeup = trio.Event()

    def add(self, event: Event, body: bytes, at: str, t: float, d: int) -> Record:
        """Add a record with this body at the end."""
        seq = self.seq + 1
        # Every record passes here, so the hash of a short line is computed without `chain.link` and `chain.add_hash`.
        content = self.run + self.h + body
        digits = sha256(content).hexdigest()[:HASH_LENGTH] if len(content) <= PIECE else chain.link(self.run, self.h, body)
        h = digits.encode()
        line = b"%b%b%b%b" % (body, OPENING, h, LINE_CLOSING)
        segment, length = self.segment, len(line)
        record = new_record(Record, (seq, at, t, event, d, digits, segment.number, segment.bytes))
        segment.bytes += length
        self.groups[-1].lines.append(line)
        self.pending_bytes += length
        self.seq = seq
        self.h = h
        if self._is_idle:
            self.wake()
        return record

    def add_blobs(self, contents: Mapping[str, bytes]) -> dict[str, bytes]:
        """Add blobs, by their SHA-256, that must be written before the next line; return the new ones."""
        group = self.groups[-1]
        new_contents = {name: content for name, content in contents.items() if name not in group.blobs}
        group.blobs.update(new_contents)
        self.pending_bytes += sum(map(len, new_contents.values()))
        return new_contents

    def open_segment(self, at: str, t: float, d: int) -> None:
        """Start the next segment with its first record."""
        previous_segment = self.segment
        header = SegmentOpened(
            format=segments.FORMAT,
            version=segments.VERSION,
            run=self.run.decode(),
            segment=previous_segment.number + 1,
            previous_seq=self.seq,
            previous_h=self.h.decode() if self.seq else "",
            previous_bytes=previous_segment.bytes,
            previous_sha256=self._digest() if self.seq else "",
        )
        self.segment = _Segment(previous_segment.number + 1, self.seq, 0, sha256())
        self.groups.append(LineGroup(self.segment.number, self.seq + 1))
        if not self.groups[0].lines:
            self.groups.popleft()
        self.add(header, encode(header, self.seq + 1, at, t, d), at, t, d)

    def seal_segment(self, at: str, t: float, d: int) -> None:
        """Add the last record of the segment."""
        number, records, size = self.segment.number, self.seq - self.segment.previous_seq, self.segment.bytes
        seal = SegmentSealed(run=self.run.decode(), segment=number, records=records, bytes=size, sha256=self._digest())
        self.add(seal, encode(seal, self.seq + 1, at, t, d), at, t, d)

    def _digest(self) -> str:
        """Return the SHA-256 of the segment, including lines that were not taken yet."""
        digest, group = self.segment.digest.copy(), self.groups[-1]
        if group.segment == self.segment.number:
            digest.update(b"".join(group.lines))
        return digest.hexdigest()

    @property
    def is_empty(self) -> bool:
        """Whether there is no line."""
        return not self.groups[0].lines

    def pop(self) -> LineGroup:
        """Remove and return the first lines."""
        group = self.groups.popleft()
        if not self.groups:
            self.groups.append(LineGroup(group.segment, self.seq + 1))
        group.data = b"".join(group.lines)
        if group.segment == self.segment.number:  # Otherwise the segment is sealed and its digest was computed.
            self.segment.digest.update(group.data)
        return group

    def mark_written(self, group: LineGroup) -> None:
        """Stop counting a group as pending."""
        self.pending_bytes -= len(group.data) + sum(map(len, group.blobs.values()))

    async def wait_line(self) -> None:
        """Wait until a line is added or `wake` is called."""
        self._is_idle = True
        self._wakeup = trio.Event()
        await self._wakeup.wait()

    def wake(self) -> None:
        """Wake the task in `wait_line`."""
        self._is_idle = False
        self._wakeup.set()
