"""Is this journal what was written, and could it have been written so?

The writer's own checks, applied by a reader: every hash, every file's sums, every type, every blob, and the lifecycle. What the
records add up to is not judged here.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from journal.blobs import Blob
from journal.codec import PAYLOAD_FIELDS
from journal.errors import BlobDamaged, HeadMissing, InvalidRecord, JournalError, UnknownEvent
from journal.events import Record
from journal.files import DISK, Files
from journal.lifecycle import Lifecycle
from journal.recovery import damage
from journal.scan import Scan

_HASH: Final = re.compile("[0-9a-f]{32}")


@attrs.frozen
class Verification:
    """What was found when a journal was verified."""

    path: Path
    run: str
    records: int
    """How many records could be verified, from the first on."""
    segments: int
    blobs: int
    head: str
    """The hash of the last verified record. Publish it, and nobody can take records off the end unnoticed."""
    unfinished: int
    """Bytes behind the last record that were never confirmed: a writer is at work, or a crash cut it off."""
    expected_at: int | None
    """The record whose hash was expected, if one was given and found."""
    problem: JournalError | None
    """The first thing that is wrong; None if nothing is."""

    @property
    def holds(self) -> bool:
        """Say whether the journal is what was written."""
        return self.problem is None


def verify(
    path: Path | str,
    *,
    expect_head: str | None = None,
    files: Files = DISK,
    on_record: Callable[[Record], None] | None = None,
) -> Verification:
    """Check everything that can be checked in a journal, up to the first thing that is wrong.

    The `on_record` is shown each record that was found good, so that who asks more of the records need not read them again.
    """
    path, expect_head = Path(path), expect_head and expect_head.lower()
    if expect_head is not None and not _HASH.fullmatch(expect_head):
        raise JournalError(f"{expect_head!r} cannot be the hash of a record, which has 32 hexadecimal digits")
    scan = Scan(path, files, checking=True)
    lifecycle = Lifecycle()
    seen: set[str] = set()
    expected_at: int | None = None
    problem: JournalError | None = None
    try:
        for record in scan:
            lifecycle.replay_record(record, path)
            _check_blobs(record, seen, files)
            if expect_head is not None and record.h == expect_head:
                expected_at = record.seq
            if on_record is not None:
                on_record(record)
    except (InvalidRecord, BlobDamaged, UnknownEvent) as exc:
        problem = exc
    problem = problem or damage(scan)
    cursor = scan.cursor
    if problem is None and expect_head is not None and expected_at is None:
        problem = HeadMissing(
            f"{path} has no record with the hash {expect_head}; its last, record {cursor.seq:,}, has {cursor.h.decode()}. "
            "Records were removed from its end or written anew, or this is another run",
        )
    return Verification(
        path=path,
        run=cursor.run.decode(),
        records=cursor.seq,
        segments=cursor.segment,
        blobs=len(seen),
        head=cursor.h.decode(),
        unfinished=len(scan.remainder()),
        expected_at=expected_at,
        problem=problem,
    )


def _check_blobs(record: Record, seen: set[str], files: Files) -> None:
    """Load every large value of a record that was not seen before: a value that is not what was written does not load."""
    for field in PAYLOAD_FIELDS.get(type(record.event), ()):
        value = getattr(record.event, field)
        if isinstance(value, Blob) and value.sha256 not in seen:
            value.load(files)
            seen.add(value.sha256)
