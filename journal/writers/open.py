"""Open a run's directory for writing: create it, or read it, reject damage and recover from a crash. Blocking."""

import uuid
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from evaljournal.journal.disk import segments
from evaljournal.journal.disk.files import Files, make_directory, sync_name
from evaljournal.journal.disk.lock import Lock
from evaljournal.journal.errors import DiskFull, JournalError, JournalExists, NotAJournal
from evaljournal.journal.format import chain
from evaljournal.journal.format.lifecycle import Lifecycle
from evaljournal.journal.readers.recovery import TornTail, find_damage, find_lost_record, recover
from evaljournal.journal.readers.scan import Scan
from evaljournal.journal.writers.segment_file import NO_SPACE, SegmentFile

if TYPE_CHECKING:
    from hashlib import _Hash


@attrs.frozen(kw_only=True)
class JournalEnd:
    """The end of a journal, where its writer continues."""

    run: str
    lifecycle: Lifecycle
    seq: int = 0
    h: bytes = chain.GENESIS
    segment: int = 0
    """Number of the last segment; 0 if there is none."""
    records: int = 0
    """Number of records in it."""
    bytes: int = 0
    digest: "_Hash" = attrs.field(factory=sha256)
    """SHA-256 of its bytes."""
    is_open: bool = False
    """Whether records can be added to it; otherwise it is sealed or missing."""
    torn_tail: TornTail | None = None
    """The tail that a crash left and recovery removed."""


def open_run(path: Path, files: Files, *, new: bool, run: str | None) -> tuple[JournalEnd, Lock, SegmentFile]:
    """Take the lock, find the end of the journal, and open its last segment if records can be added to it."""
    try:
        if new:
            _create_directory(path, files)
        else:
            _check_directory(path, files)
        lock = Lock(path, files)
        try:
            end = _end_of_new_run(path, files, run or uuid.uuid4().hex) if new else find_end(path, files)
            file = SegmentFile(path, files, lock)
            if end.is_open:
                file.open_existing(end.segment, end.bytes)
        except BaseException:
            lock.release()
            raise
    except OSError as exc:
        if exc.errno in NO_SPACE:
            message = f"no space left to open {path} ({exc}); no records are lost"
            raise DiskFull(message, path=path, hint="free_space") from exc
        if new:
            raise JournalError(f"cannot create a run in {path} ({exc})", path=path, hint="choose_path") from exc
        raise JournalError(f"cannot open {path} for writing ({exc}); no records are lost", path=path) from exc
    return end, lock, file


def _create_directory(path: Path, files: Files) -> None:
    try:
        make_directory(files, str(path))
    except (FileExistsError, NotADirectoryError) as exc:
        raise JournalExists(f"cannot create the directory {path}: {exc.strerror}", path=path, hint="choose_path") from exc


def _check_directory(path: Path, files: Files) -> None:
    try:
        segments.numbers(path, files)
    except NotAJournal:
        if files.size(str(path / "LOCK")) is None:
            raise  # No LOCK is created in a directory that is not a run.
    sync_name(files, str(path))


def find_end(path: Path, files: Files) -> JournalEnd:
    """Read the journal and recover from a crash. The caller holds the lock."""
    scan, lifecycle = _replay(Scan(path, files))
    damage = find_damage(scan)
    if damage is not None:
        raise damage
    lost_record = find_lost_record(scan, make_durable=True)
    if lost_record is not None:
        scan, lifecycle = _replay(Scan(path, files, loss=lost_record))
    torn_tail = recover(scan)
    cursor = scan.cursor
    with files.read(segments.file(path, cursor.segment)) as stream:
        digest = sha256(stream.read())
    return JournalEnd(
        run=cursor.run.decode(),
        lifecycle=lifecycle,
        seq=cursor.seq,
        h=cursor.h,
        segment=cursor.segment,
        records=cursor.records,
        bytes=cursor.offset,
        digest=digest,
        is_open=not cursor.is_sealed,
        torn_tail=torn_tail,
    )


def _replay(scan: Scan) -> tuple[Scan, Lifecycle]:
    lifecycle = Lifecycle()
    for record in scan:
        lifecycle.replay_record(record, scan.path)
    return scan, lifecycle


def _end_of_new_run(path: Path, files: Files, run: str) -> JournalEnd:
    try:
        segments.numbers(path, files)
    except NotAJournal:
        return JournalEnd(run=run, lifecycle=Lifecycle())
    raise JournalExists(f"{path} already contains a run", path=path, hint="resume")
