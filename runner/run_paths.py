"""Where runs are kept, which number the next one gets, and which one is meant by somebody who names none.

Nothing here reads more of a run than its end.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import orjson

from journal import JournalError, Record, segments
from journal.events import RunFinished
from journal.files import DISK
from journal.reader import fetch
from runner.errors import UsageError

RUNS: Final = Path("runs")
"""Where runs are kept unless somebody says otherwise."""
_STARTS: Final = 100
"""How many times another number is tried because somebody else began a run under the one before."""
_TAIL: Final = 1 << 16
"""Bytes at the end of a file in which its last records are looked for."""
_FILES_OWN: Final = ("segment_opened", "segment_sealed")


def runs_under(directory: Path) -> dict[Path, int]:
    """Find the runs in a directory, in the order of their paths, and when each was last written, in nanoseconds.

    The directory itself may be a run. What begins with a dot below it is none: it is a copy that is being made, or was cut off.
    """
    found: dict[Path, int] = {}
    for file in (file for depth in ("", "*/", "*/*/", "*/*/*/") for file in directory.glob(f"{depth}journal-*.jsonl")):
        path = file.parent
        if not any(part.startswith(".") for part in path.relative_to(directory).parts):
            found[path] = max(found.get(path, 0), file.lstat().st_mtime_ns)
    return dict(sorted(found.items()))


def newest_first(directory: Path) -> list[Path]:
    """List the runs in a directory, the one that was written last before the others."""
    runs = runs_under(directory)
    return sorted(runs, key=lambda path: (runs[path], path), reverse=True)


def next_path(name: str) -> Path:
    """Find the next free number for a run of this evaluation."""
    folder = RUNS / name
    taken = [int(each.name) for each in folder.glob("[0-9]*") if each.name.isdecimal()]
    return folder / f"{max(taken, default=0) + 1:04}"


def next_paths(name: str) -> Iterator[Path]:
    """Find the next free number; and, if somebody else takes it meanwhile, the one after."""
    for _ in range(_STARTS):
        yield next_path(name)
    raise UsageError(f"there is no free number under {RUNS / name}; say where the run is to be: a path, or -o RUN")


def newest_of(name: str) -> Path:
    """Find the run of this evaluation that was written last."""
    runs = newest_first(RUNS / name)
    if not runs:
        raise UsageError(f"no run was named, and there is none under {RUNS / name}/ here; `run(…)` makes one")
    return runs[0]


def newest_unfinished(name: str) -> Path:
    """Find the run of this evaluation, of those that are not finished, that was written last."""
    runs = newest_first(RUNS / name)
    for path in runs:
        last = last_record(path)
        if last is None or not isinstance(last.event, RunFinished):
            return path
    there = f"each of {len(runs):,} is finished; name the one that is meant" if runs else "there is none"
    raise UsageError(f"no run of {name!r} under {RUNS / name}/ can be resumed: {there}, or begin one without resume=True")


def last_record(path: Path) -> Record | None:
    """Find the last record that is not about a file, from the end; None where the end is not whole."""
    try:
        for number in reversed(segments.numbers(path, DISK)):
            for offset, line in _last_lines(path / segments.name(number)):
                if orjson.loads(line)["type"] not in _FILES_OWN:
                    return fetch(path, number, offset, load_blobs=False)
    except (JournalError, OSError, ValueError, KeyError, TypeError):
        return None  # Whoever reads the whole of it will say what is wrong.
    return None


def _last_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Read the last lines of a file backwards, each with the byte at which it begins."""
    with DISK.read(str(file)) as stream:
        size = stream.seek(0, os.SEEK_END)
        begin = stream.seek(max(0, size - _TAIL))
        lines = stream.read().splitlines(keepends=True)
    end = size
    for at, line in reversed(list(enumerate(lines))):
        end -= len(line)
        if at or not begin:  # The first may be the end of a longer one.
            yield end, line
