"""Paths of runs, such as the next free number under `runs/NAME/`, and the first and last records of a run."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import orjson

from evaljournal.journal import JournalError, Record
from evaljournal.journal.disk import segments
from evaljournal.journal.disk.files import DISK, Files
from evaljournal.journal.events import RunFinished, RunStarted
from evaljournal.journal.format import chain
from evaljournal.journal.readers.reader import fetch, read
from evaljournal.replay.state.definition import substitution
from evaljournal.replay.state.shards import Shard
from evaljournal.runner.errors import UsageError

RUNS: Final = Path("runs")
_MAX_DEPTH: Final = 3
_JOURNAL: Final = re.compile(r"journal-.*\.jsonl", re.DOTALL)
_MAX_TRIES: Final = 100
"""How many numbers are tried if other processes take them meanwhile."""
_RUN_NAME: Final = re.compile(r"([0-9]{1,9})(|-[0-9]+of[0-9]+)", re.ASCII)
_TAIL: Final = 1 << 16
"""Bytes that are first read from the end of a file to find its last lines; more if they contain no whole line."""
_FILE_EVENTS: Final = ("segment_opened", "segment_sealed", "journal_recovered", "journal_salvaged")


def runs_under(directory: Path) -> dict[Path, int]:
    """Return the runs up to three levels below a directory, or the directory if it is a run, with times of last writes in ns.

    Directories whose name starts with a dot are skipped: they are unfinished copies; so is the review of a run.
    """
    return dict(sorted((Path(path), time) for path, time in _journals(str(directory), _MAX_DEPTH)))


def _journals(directory: str, depth: int) -> Iterator[tuple[str, int]]:
    """Yield the directories with a journal, and the times of their last writes; one that is unreadable or gone has none."""
    try:
        with os.scandir(directory) as entries:
            names = [(entry.name, entry) for entry in entries if not entry.name.startswith(".")]
            times = [entry.stat(follow_symlinks=False).st_mtime_ns for name, entry in names if _JOURNAL.fullmatch(name)]
            subdirectories = [name for name, entry in names if depth and entry.is_dir()]
    except OSError:
        return
    if times:
        yield directory, max(times)
    for name in subdirectories:
        if not (times and name == segments.REVIEW):
            yield from _journals(os.path.join(directory, name), depth - 1)


def runs_newest_first(directory: Path) -> list[Path]:
    runs = runs_under(directory)
    return sorted(runs, key=lambda path: (runs[path], path), reverse=True)


def next_path(name: str, shard: Shard | None = None) -> Path:
    """Return the next free path for a run of an evaluation; for shard 3 of 8, such as `runs/NAME/0001-3of8`.

    Shards that start at the same time get the same number: only runs without a shard and earlier ones of the same shard count.
    """
    directory, suffix = RUNS / name, f"-{shard.number}of{shard.count}" if shard else ""
    names = (_RUN_NAME.fullmatch(run.name) for run in directory.glob("[0-9]*"))
    numbers = [int(match[1]) for match in names if match and (shard is None or match[2] in ("", suffix))]
    return directory / f"{max(numbers, default=0) + 1:04}{suffix}"


def next_paths(name: str, shard: Shard | None = None) -> Iterator[Path]:
    """Yield the next free path, and further ones if other processes take it meanwhile."""
    for _ in range(_MAX_TRIES):
        yield next_path(name, shard)
    raise UsageError(f"no free number under {RUNS / name}", hint="pass a path, or -o RUN")


def newest_run(name: str) -> Path:
    """Return the run of an evaluation that was written last, other than those of `what-if`."""
    for path in runs_newest_first(RUNS / name):
        if not _is_what_if(path):
            return path
    raise UsageError(f"there is no run under {RUNS / name}/", hint="pass its path, or start one with `run(…)`")


def newest_unfinished_run(name: str) -> Path:
    """Return the unfinished run of an evaluation that was written last, other than those of `what-if`."""
    runs = [path for path in runs_newest_first(RUNS / name) if not _is_what_if(path)]
    for path in runs:
        if run_finish(path) is None:
            return path
    problem = f"all {len(runs):,} runs are finished" if runs else "there is no run"
    raise UsageError(f"nothing to resume under {RUNS / name}/: {problem}", hint="pass a path, or start one without resume=True")


def run_start(path: Path) -> tuple[RunStarted, str] | None:
    """Return the event that starts a run and its time; None if the journal ends before it."""
    for record in read(path, load_blobs=False):
        if isinstance(record.event, RunStarted):
            return record.event, record.at
    return None


def _is_what_if(path: Path) -> bool:
    """Return whether `what-if` has replaced calls of a run; not if that cannot be read."""
    try:
        start = run_start(path)
    except (JournalError, OSError):
        return False
    return start is not None and bool(substitution(start[0].settings))


def has_started(path: Path) -> bool:
    """Return whether the start of a run is recorded, or may be in a journal that cannot be read."""
    try:
        return run_start(path) is not None
    except (JournalError, OSError):
        return segments.is_run(path)


def run_finish(path: Path) -> RunFinished | None:
    """Return the event that finished a run; None if the last record is another one or the journal's end is damaged."""
    record = last_record(path)
    return record.event if record is not None and isinstance(record.event, RunFinished) else None


def last_record(path: Path) -> Record | None:
    """Return the last record that is not about the journal's files; None if there is none, or the journal's end is damaged."""
    try:
        for number in reversed(segments.numbers(path, DISK)):
            for offset, line in _last_lines(path / segments.name(number)):
                if orjson.loads(line)["type"] not in _FILE_EVENTS:
                    return fetch(path, number, offset, load_blobs=False)
    except (JournalError, OSError, ValueError, KeyError, TypeError):
        return None  # Reading the whole journal reports what is wrong.
    return None


def sealed_head(path: Path, files: Files = DISK) -> str | None:
    """Return the hash of the last record of a run that has ended; None if the journal is not sealed. Nothing is verified."""
    number = segments.numbers(path, files)[-1]
    for _, line in _last_lines(path / segments.name(number), files):
        body_and_hash = chain.split(line.removesuffix(b"\n")) if b'"type":"segment_sealed"' in line else None
        return None if body_and_hash is None else body_and_hash[1].decode(errors="replace")
    return None


def _last_lines(file: Path, files: Files = DISK) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file from the last to the first, each with its byte offset."""
    with files.read(str(file)) as stream:
        end, length = stream.seek(0, os.SEEK_END), _TAIL
        while end:
            start = stream.seek(max(0, end - length))
            lines = stream.read(end - start).splitlines(keepends=True)
            complete_lines = lines[1:] if start else lines  # The first may be the end of a longer line.
            for line in reversed(complete_lines):
                end -= len(line)
                yield end, line
            if not complete_lines:
                length *= 2
