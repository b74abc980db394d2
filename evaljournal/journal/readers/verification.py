"""Verification: whether a journal is unchanged and could have been written by the writer.

Checks every hash, checksum, type and blob, and the lifecycle. `replay.auditing.auditor` checks what the records add up to.
"""

from collections import deque
from collections.abc import Iterator
from pathlib import Path

import attrs

from evaljournal.journal.disk import segments
from evaljournal.journal.disk.files import DISK, Files
from evaljournal.journal.errors import BlobDamaged, HeadMissing, InvalidRecord, JournalError
from evaljournal.journal.events import Record
from evaljournal.journal.format.blobs import blobs_of
from evaljournal.journal.format.chain import HASH
from evaljournal.journal.format.lifecycle import Lifecycle
from evaljournal.journal.readers.recovery import confirmed_seq, find_damage, scan_before_loss
from evaljournal.journal.readers.scan import Scan


@attrs.frozen
class Verification:
    path: Path
    run: str
    records: int
    """Number of verified records, from the first one."""
    segments: int
    blobs: int
    head: str
    """Hash of the last verified record. If it is published, records cannot be removed from the end undetected."""
    unfinished_bytes: int
    """Number of unconfirmed bytes after the last record: a writer is active, a crash interrupted it, or the end was changed."""
    zero_bytes: int
    """How many of them, at the end, are zero."""
    unconfirmed_records: int
    """Number of verified records at the end that no other record confirms as durable; 0 if the last one is a seal."""
    expected_at: int | None
    """The record with the expected hash, if one was passed and is in the journal."""
    problem: JournalError | None
    """The first problem; None if there is none."""

    @property
    def ok(self) -> bool:
        return self.problem is None


def verify(path: Path | str, *, expect_head: str | None = None, files: Files = DISK) -> Verification:
    """Check everything in a journal, up to the first problem."""
    verifier = Verifier(Path(path), expect_head=expect_head, files=files)
    deque(verifier, maxlen=0)
    return verifier.result()


class Verifier:
    """A verification in progress: yields each verified record, after applying it to `lifecycle`, then has a result."""

    def __init__(
        self, path: Path, *, expect_head: str | None = None, files: Files = DISK, lifecycle: Lifecycle | None = None
    ) -> None:
        self._expect_head = expect_head and expect_head.lower()
        if self._expect_head is not None and not HASH.fullmatch(self._expect_head):
            raise JournalError(f"{expect_head!r} is not the hash of a record: expected 32 hexadecimal digits")
        self._path = path
        self._files = files
        self._lifecycle = Lifecycle() if lifecycle is None else lifecycle
        self._scan = Scan(path, files, check_all=True)
        self.has_blobs = False
        """Whether the last record that was yielded has values in blobs."""
        self._checked_blobs: set[str] = set()
        self._expected_at: int | None = None
        self._problem: JournalError | None = None

    def __iter__(self) -> Iterator[Record]:
        path, files, expect_head, lifecycle = self._path, self._files, self._expect_head, self._lifecycle
        record: Record | None = None
        try:
            for record in self._scan:
                self.has_blobs = _check_blobs(record, self._checked_blobs, files)
                lifecycle.replay_record(record, path)
                if expect_head is not None and record.h == expect_head:
                    self._expected_at = record.seq
                yield record
        except InvalidRecord as exc:
            self._problem = exc
        except BlobDamaged as exc:
            earlier_scan = None if record is None else scan_before_loss(path, files, record.seq)
            if earlier_scan is None:
                self._problem = exc
            else:
                self._scan = earlier_scan

    @property
    def segment(self) -> tuple[str, str]:
        """Name of the segment of the last record, and the SHA-256 of its bytes up to that record.

        It also stands for the segments before: each has the SHA-256 of the previous one in its first record.
        """
        return segments.name(self._scan.cursor.segment), self._scan.cursor.sha256

    def result(self) -> Verification:
        """Return the result, after the last record."""
        scan, expect_head = self._scan, self._expect_head
        problem, cursor = self._problem or find_damage(scan), scan.cursor
        if problem is None and expect_head is not None and self._expected_at is None:
            problem = HeadMissing(self._path, expected=expect_head, seq=cursor.seq, head=cursor.h.decode())

        remainder = scan.remainder()
        return Verification(
            path=self._path,
            run=cursor.run.decode(),
            records=cursor.seq,
            segments=cursor.segment,
            blobs=len(self._checked_blobs),
            head=cursor.h.decode(),
            unfinished_bytes=len(remainder),
            zero_bytes=len(remainder) - len(remainder.rstrip(b"\0")),
            unconfirmed_records=0 if cursor.is_sealed else max(0, cursor.seq - confirmed_seq(scan)),
            expected_at=self._expected_at,
            problem=problem,
        )


def _check_blobs(record: Record, checked_blobs: set[str], files: Files) -> bool:
    """Load every blob of a record that was not loaded before; a damaged one raises. Return whether it has any."""
    blobs = blobs_of(record.event)
    for blob in blobs.values():
        if blob.sha256 not in checked_blobs:
            blob.load(files)
            checked_blobs.add(blob.sha256)
    return bool(blobs)
