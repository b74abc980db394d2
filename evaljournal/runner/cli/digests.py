"""Digests of runs, with a cache: reading a large run takes seconds, its digest a fraction of a millisecond.

The cache is in the user's state directory, not beside the runs: nothing is written into a directory of runs, and a foreign run
cannot contain an entry. The cache may be deleted at any time. An entry is used only if the files of the run are those it was
computed from, by this version, and its hashes match. A run that is live, damaged or unreadable has none.
"""

import contextlib
import os
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

from evaljournal.journal.disk import segments
from evaljournal.journal.disk.files import DISK
from evaljournal.journal.errors import JournalError, StateUnavailable
from evaljournal.journal.ownership import private_directory, state_directory
from evaljournal.replay.history.digest import (
    VERSION,
    CaseColumns,
    RunDigest,
    columns_from_json,
    digest,
    run_from_json,
    to_json,
)
from evaljournal.replay.state.definition import identity, requested_models
from evaljournal.runner.cli.terminal.display import open_run
from evaljournal.runner.runs.atomic_write import write_atomically
from evaljournal.runner.runs.paths import run_finish, run_start
from evaljournal.version import installed_version

_MAX_ENTRIES: Final = 10_000
"""Maximum number of entries; the oldest ones are removed."""
_MAX_READ_BYTES: Final = 16 << 20
"""Size above which `ls` does not read a finished journal; reading as much takes about half a second."""
_TAIL_BYTES: Final = 64
"""Bytes at the end of a journal that contain the hash of its last record."""


class DigestCache:
    def __init__(self) -> None:
        self._directory = _directory()
        self._version = installed_version()
        self._has_new_entries = False
        self._real_directories: dict[str, str] = {}
        """Directory of runs → its path without symlinks, which takes longer to find than to read an entry."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._has_new_entries and self._directory is not None:
            with contextlib.suppress(OSError):
                _remove_oldest(self._directory)

    def run(self, path: Path) -> RunDigest:
        """Return the digest of a run; if it is large, finished and not in the cache, without the results of its variants."""
        return self.read(path, with_cases=False)[0]

    def read(self, path: Path, *, with_cases: bool = True) -> tuple[RunDigest, Sequence[CaseColumns]]:
        """Return the digest of a run, and `with_cases` the cases of each of its variants."""
        key = self._key(path) if self._directory is not None else b""
        with contextlib.suppress(OSError, ValueError):
            if key:
                return _read_entry(self._entry_file(path), key, with_cases=with_cases)

        try:
            if not with_cases and (counts := _counts_of_large_run(path)) is not None:
                return counts, []
            view = open_run(path)
            result = digest(view)
        except (JournalError, OSError) as exc:  # The other runs are still listed.
            return RunDigest(status="unreadable", outcome=str(exc)), []

        if key and key == self._key(path) and not view.is_live and view.problem is None:
            with contextlib.suppress(OSError):
                lines = to_json(*result)
                write_atomically(self._entry_file(path), [_header(key, lines), *lines], sync=False)
                self._has_new_entries = True
        return result

    def _entry_file(self, path: Path) -> Path:
        assert self._directory is not None
        directory, name = os.path.split(path)
        if directory not in self._real_directories:
            self._real_directories[directory] = os.path.realpath(directory)
        real_path = os.path.join(self._real_directories[directory], name)
        return self._directory / f"{sha256(os.fsencode(real_path)).hexdigest()}.jsonl"

    def _key(self, path: Path) -> bytes:
        """Return a hash of the sizes, times and last bytes of a journal's files; empty if it is unreadable."""
        try:
            files = [segments.file(path, number) for number in segments.numbers(path, DISK)]
            with DISK.read(files[-1]) as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL_BYTES))
                tail = stream.read()
            stats = [os.lstat(file) for file in files]
        except (JournalError, OSError):
            return b""
        identity = [self._version, VERSION, [(stat.st_size, stat.st_mtime_ns) for stat in stats], tail.hex()]
        return sha256(repr(identity).encode()).digest()


def _counts_of_large_run(path: Path) -> RunDigest | None:
    """Return the counts of a large finished run from its first and last records; None if it is not large or not finished."""
    size = segments.total_size(path)
    finish = run_finish(path) if size > _MAX_READ_BYTES else None
    if finish is None:
        return None

    run_started, started_at = run_start(path) or (None, None)
    return RunDigest(
        status="finished",
        outcome="finished",
        evaluation=run_started.evaluation if run_started is not None else None,
        started_at=started_at,
        identity={} if run_started is None else identity(run_started),
        completed=finish.completed,
        failed=finish.failed,
        trials=finish.completed + finish.failed,
        elapsed=finish.elapsed,
        models=[] if run_started is None else requested_models(run_started.definition),
    )


def _header(key: bytes, lines: Iterable[bytes]) -> bytes:
    """Return the first line of an entry: the key and the hash of each other line."""
    return b" ".join(part.hex().encode() for part in (key, *(sha256(line).digest() for line in lines))) + b"\n"


def _read_entry(file: Path, key: bytes, *, with_cases: bool) -> tuple[RunDigest, Sequence[CaseColumns]]:
    """Return an entry of the cache; raise a ValueError if it is damaged or belongs to other files."""
    with DISK.read(str(file)) as stream:
        header = stream.readline()
        lines = [stream.readline() for _ in range(1 + with_cases)]
    if not header.startswith(_header(key, lines)[:-1]):
        raise ValueError("the entry is damaged, or the run has changed")
    return run_from_json(lines[0]), columns_from_json(lines[1]) if with_cases else []


def _directory() -> Path | None:
    """Return the directory of the cache; None if it cannot be created, or another user may have prepared it."""
    try:
        return private_directory(private_directory(state_directory()) / "digests")
    except (StateUnavailable, OSError):
        return None


def _remove_oldest(directory: Path) -> None:
    with os.scandir(directory) as entries:
        files = sorted((entry.stat().st_mtime_ns, entry.path) for entry in entries)
    for _, file in files[: max(0, len(files) - _MAX_ENTRIES)]:
        os.unlink(file)
