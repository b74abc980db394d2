"""What a writer finds when it opens a run's directory, and what it must do before it may go on.

Under the lock: read everything, refuse damage, mend the end that a crash left. For a new run: make the directory, and refuse to
begin where a run is already.
"""

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from journal import chain, segments
from journal.errors import JournalExists, NotAJournal, command
from journal.files import Files, make_directory
from journal.lifecycle import Lifecycle
from journal.recovery import SetAside, damage, recover
from journal.scan import Scan

if TYPE_CHECKING:
    from hashlib import _Hash


@attrs.frozen
class Found:
    """Where a journal stands when its writer comes to it."""

    run: str
    lifecycle: Lifecycle
    seq: int
    h: bytes
    segment: int
    """The last file; 0 if there is none yet."""
    records: int
    """How many records the file holds."""
    bytes: int
    digest: "_Hash"
    """Of the file's bytes."""
    is_open: bool
    """Whether the file goes on; otherwise it is sealed, and the next must be begun."""
    aside: SetAside | None
    """What a crash had left behind the last good record."""


def make_room(path: Path, files: Files) -> None:
    """Make the directory of a new run."""
    try:
        make_directory(files, str(path))
    except (FileExistsError, NotADirectoryError) as exc:
        raise JournalExists(f"{path} cannot become a run's directory: {exc.strerror}; choose another") from exc


def find(path: Path, files: Files, *, new: bool, run: str) -> Found:
    """Read what is there, and mend what a crash left. The caller holds the lock."""
    if new:
        return _nothing(path, files, run)
    scan = Scan(path, files)
    lifecycle = Lifecycle()
    for record in scan:
        lifecycle.replay_record(record, path)
    damaged = damage(scan)
    if damaged is not None:
        raise damaged
    aside = recover(scan)
    cursor = scan.cursor
    with files.read(segments.file(path, cursor.segment)) as stream:
        digest = sha256(stream.read())
    return Found(
        run=cursor.run.decode(),
        lifecycle=lifecycle,
        seq=cursor.seq,
        h=cursor.h,
        segment=cursor.segment,
        records=cursor.records,
        bytes=cursor.offset,
        digest=digest,
        is_open=not cursor.sealed,
        aside=aside,
    )


def _nothing(path: Path, files: Files, run: str) -> Found:
    try:
        segments.numbers(path, files)
    except NotAJournal:
        return Found(
            run=run,
            lifecycle=Lifecycle(),
            seq=0,
            h=chain.GENESIS,
            segment=0,
            records=0,
            bytes=0,
            digest=sha256(),
            is_open=False,
            aside=None,
        )
    raise JournalExists(f"{path} already holds a run; {command('resume', path)} goes on with it")
