"""The reader that returns new records as they are written. It never changes files."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import trio

from evaljournal.journal.disk import segments
from evaljournal.journal.disk.files import DISK, Files, is_unreadable
from evaljournal.journal.errors import JournalError, NotAJournal
from evaljournal.journal.events import Record
from evaljournal.journal.format.blobs import with_loaded_blobs
from evaljournal.journal.readers.recovery import find_damage
from evaljournal.journal.readers.scan import MAX_LINE, BadLine, Cursor, Scan, lines_in

POLL_INTERVAL: Final = 0.1
"""Seconds between polls of another process's files."""


async def follow(
    path: Path | str, *, load_blobs: bool = True, poll_interval: float = POLL_INTERVAL, files: Files = DISK
) -> AsyncGenerator[Record, None]:
    """Yield the records of a run and then new ones as they are written, across segments and sessions, until cancelled.

    It does not stop at `RunFinished` or `RunStopped`, because the run may be resumed.
    """
    follower = await trio.to_thread.run_sync(lambda: _Follower(Path(path), files, load_blobs=load_blobs))
    while True:
        for record in await trio.to_thread.run_sync(follower.new_records):
            yield record
        if not follower.has_more:
            await trio.sleep(poll_interval)


class _Follower:
    CHUNK: Final = 1 << 20

    def __init__(self, path: Path, files: Files, *, load_blobs: bool) -> None:
        self._files = files
        self._load_blobs = load_blobs
        self._path = path
        self._cursor = Cursor(path)
        self._cursor.enter(segments.numbers(path, files)[0])
        self.has_more = True
        self._torn_size: int | None = None
        """Length of the file when it was last found to have a torn tail."""

    def new_records(self) -> list[Record]:
        """Return the records that were written since the last call, at most about a megabyte."""
        cursor = self._cursor
        records: list[Record] = []
        try:
            lines = self._new_lines()
            if not lines and not cursor.records:  # A segment gets its name after its first line.
                self._raise_if_damaged()
            records.extend(cursor.read(lines))
        except BadLine:
            if not records:  # Otherwise the valid records come first; the next call raises.
                self._raise_if_damaged()
        except JournalError:
            if not records:
                raise

        if cursor.is_sealed and self._files.size(segments.file(self._path, cursor.segment + 1)) is not None:
            cursor.enter(cursor.segment + 1)
            self.has_more = True
        else:
            self.has_more = bool(records)
        return [with_loaded_blobs(record, self._files) for record in records] if self._load_blobs else records

    def _new_lines(self) -> list[bytes]:
        cursor = self._cursor
        # The file is opened every time, because recovery may have replaced it by one with the same beginning.
        try:
            stream = self._files.read(segments.file(self._path, cursor.segment))
        except FileNotFoundError as exc:
            raise NotAJournal(f"{self._path}: {segments.name(cursor.segment)} was removed", path=self._path) from exc
        except OSError as exc:
            if not is_unreadable(exc):
                raise
            self._raise_if_damaged()
            return []

        with stream:
            stream.seek(cursor.offset)
            lines, size = [], 0
            for line in lines_in(stream):
                lines.append(line)
                size += len(line)
                if size >= self.CHUNK:
                    break

        if lines and not lines[-1].endswith(b"\n") and len(lines[-1]) < MAX_LINE:
            lines.pop()  # The rest of this line is not written yet.
        return lines

    def _raise_if_damaged(self) -> None:
        """Raise if confirmed records are damaged; a torn tail is left for recovery."""
        size = self._files.size(segments.file(self._path, self._cursor.segment))
        if size == self._torn_size:
            return
        damage = find_damage(Scan(self._path, self._files).read_all())
        if damage is not None:
            raise damage
        self._torn_size = size
