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
from evaljournal.journal.events import JournalRecovered
from evaljournal.journal.format.lifecycle import Lifecycle
from evaljournal.journal.readers.recovery import find_damage, find_lost_record, recover
from evaljournal.journal.readers.scan import Cursor, Scan
from evaljournal.journal.writers.segment_file import NO_SPACE, SegmentFile

if TYPE_CHECKING:
    from hashlib import _Hash


@attrs.frozen
class JournalEnd:
    """The end of a journal, where its writer continues."""

    cursor: Cursor
    lifecycle: Lifecycle
    digest: "_Hash"
    """SHA-256 of the last segment."""
    recovery: JournalRecovered | None = None
    """To be recorded, if a crash has left a torn tail."""

    @property
    def is_open(self) -> bool:
        """Whether records can be added to the last segment; otherwise it is sealed or missing."""
        return bool(self.cursor.segment) and not self.cursor.is_sealed


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
                file.open_existing(end.cursor.segment, end.cursor.offset)
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
    valid_bytes, recovery = recover(scan)
    return JournalEnd(scan.cursor, lifecycle, sha256(valid_bytes), recovery)


def _replay(scan: Scan) -> tuple[Scan, Lifecycle]:
    lifecycle = Lifecycle()
    for record in scan:
        lifecycle.replay_record(record, scan.path)
    return scan, lifecycle


def _end_of_new_run(path: Path, files: Files, run: str) -> JournalEnd:
    try:
        segments.numbers(path, files)
    except NotAJournal:
        cursor = Cursor(path)
        cursor.run = run.encode()
        return JournalEnd(cursor, Lifecycle(), sha256())
    raise JournalExists(f"{path} already contains a run", path=path, hint="resume")
