"""The file `suite.json`: the evaluations of a suite, where their runs are, and the settings that all of them share.

It is written once, before anything starts, and never changed: what has happened is in the journals of the runs.
"""

import os
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import attrs
import orjson

from evaljournal.journal.disk import segments
from evaljournal.journal.disk.files import DISK, make_directory
from evaljournal.journal.errors import BlobDamaged
from evaljournal.journal.ownership import own_hashes
from evaljournal.runner.errors import UsageError
from evaljournal.runner.runs.atomic_write import write_atomically
from evaljournal.runner.runs.paths import RUNS, run_finish, runs_under
from evaljournal.runner.sessions.environment import list_own

FILE: Final = "suite.json"
_FORMAT: Final = "evaljournal-suite"
_VERSION: Final = 1
_NAME: Final = re.compile(r"[^./\\\x00-\x1f][^/\\\x00-\x1f]*")
"""A name of a directory in the suite, never a path out of it."""


@attrs.frozen(kw_only=True)
class SuiteEntry:
    name: str
    reference: str
    """Where it is defined: `evals/capitals.py:capitals`, or the definition of an evaluation without code."""
    run: str
    """The directory of its run, in that of the suite."""


@attrs.frozen(kw_only=True)
class Suite:
    path: Path
    name: str
    settings: Mapping[str, Any]
    """Settings of all runs that were passed when the suite was started, with the keys of a configuration file."""
    entries: tuple[SuiteEntry, ...]
    digest: str = ""
    """Digest of the file that this was read from; empty if it was not read."""

    @property
    def runs(self) -> dict[str, Path]:
        """The directories of the runs, by the names of the evaluations; a run that has not started has none yet."""
        return {entry.name: self.path / entry.run for entry in self.entries}

    def encode(self) -> bytes:
        entries = [attrs.asdict(entry) for entry in self.entries]
        value = {"format": _FORMAT, "version": _VERSION, "name": self.name, "settings": self.settings, "evaluations": entries}
        return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    def create(self) -> None:
        """Create the directory of the suite with its file; raise a FileExistsError if it exists."""
        make_directory(DISK, str(self.path.parent))
        self.path.mkdir()
        digest = _digest(self.encode())
        list_own(digest, [digest])
        write_atomically(self.path / FILE, [self.encode()])

    @property
    def is_own(self) -> bool:
        """Whether this user has started the suite on this machine; otherwise its references need `--trust`."""
        return self.digest in own_hashes(self.digest)

    @property
    def is_finished(self) -> bool:
        return all(segments.is_run(path) and run_finish(path) is not None for path in self.runs.values())


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:32]


def is_suite(path: Path) -> bool:
    return os.path.lexists(path / FILE) and not segments.is_run(path)


def read_suite(path: Path) -> Suite:
    """Read the file of a suite, which may be foreign."""
    try:
        with DISK.read(str(path / FILE)) as stream:
            content = stream.read()
        value = orjson.loads(content)
    except OSError as exc:
        raise UsageError(f"{path / FILE} cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise BlobDamaged(path, FILE, f"is not JSON ({exc})") from exc

    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        raise BlobDamaged(path, FILE, "is not the file of a suite")
    if value.get("version") != _VERSION:
        raise UsageError(
            f"{path / FILE} has version {value.get('version')!r:.20} of the format; this version of evaljournal reads "
            f"{_VERSION}; use a newer one"
        )

    name, settings, entries = (cast("dict[str, Any]", value).get(key) for key in ("name", "settings", "evaluations"))
    if not isinstance(name, str) or not isinstance(settings, dict) or not isinstance(entries, list) or not entries:
        raise BlobDamaged(path, FILE, "has no name, no settings or no evaluations")

    suite_entries = tuple(_entry(path, entry) for entry in entries)
    for names in ([entry.name for entry in suite_entries], [entry.run for entry in suite_entries]):
        if len(set(names)) < len(names):
            raise BlobDamaged(path, FILE, "has two evaluations with the same name or the same run")
    settings = cast("dict[str, Any]", settings)
    return Suite(path=path, name=name, settings=settings, entries=suite_entries, digest=_digest(content))


def _entry(path: Path, value: Any) -> SuiteEntry:
    recorded: dict[str, Any] = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    fields: dict[str, Any] = {field.name: recorded.get(field.name) for field in attrs.fields(SuiteEntry)}
    if not all(isinstance(text, str) for text in fields.values()) or not _NAME.fullmatch(str(fields["run"])):
        raise BlobDamaged(path, FILE, "has an invalid evaluation")
    return SuiteEntry(**fields)


def newest_suite(directory: Path = RUNS) -> Path | None:
    """Return the suite in a directory that was written last; None if another run was written after it, or there is none."""
    times = {file.parent: file.lstat().st_mtime_ns for depth in ("", "*/", "*/*/") for file in directory.glob(depth + FILE)}
    for run, time in runs_under(directory).items():
        path = run.parent if is_suite(run.parent) else run
        times[path] = max(times.get(path, 0), time)
    newest = max(times, key=lambda path: (times[path], path), default=None)
    return newest if newest is not None and is_suite(newest) else None


def find_suite(argument: str | Path | None) -> Path | None:
    """Return the suite that an argument names: its directory, one above it, or the name of a suite under runs/; or None.

    Without an argument, it is the newest one.
    """
    if argument is None:
        return newest_suite()
    path = Path(argument)
    if segments.is_run(path):
        return None
    suites = (newest_suite(directory) for directory in (path, RUNS / path) if directory.is_dir())
    return next((suite for suite in suites if suite is not None), None)


def earlier_suites(suite: Suite) -> Sequence[Path]:
    """Return the finished suites next to a suite, those before it only, the newest first."""
    path = suite.path if suite.path.name else suite.path.resolve()
    numbers = {other: (len(other.name), other.name) for other in (path, *path.parent.iterdir())}
    earlier_paths = [other for other in numbers if numbers[other] < numbers[path] and is_suite(other)]
    return [other for other in sorted(earlier_paths, key=numbers.__getitem__, reverse=True) if read_suite(other).is_finished]
