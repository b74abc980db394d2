"""The segment files of a journal: `journal-000001.jsonl` and so on. Only the last one grows."""

import os
import re
from pathlib import Path
from typing import Final

from evaljournal.journal.disk.files import DISK, Files
from evaljournal.journal.errors import NotAJournal

FORMAT: Final = "evaljournal"
VERSION: Final = "2.2"
MAJOR: Final = 2

REVIEW: Final = "review"
"""Name of the directory in a run that has the journal of its review."""
ROLL_AT: Final = 64 << 20
"""Bytes after which a segment is sealed and the next one is started."""

_NAME: Final = re.compile(r"journal-((?!000000)[0-9]{6}|[1-9][0-9]{6,})\.jsonl")


def name(number: int) -> str:
    return f"journal-{number:06}.jsonl"


def file(path: Path, number: int) -> str:
    """Return the path of a segment of the run in this directory."""
    return os.path.join(str(path), name(number))


def numbers(path: Path, files: Files) -> list[int]:
    """List the segments of a run in order; raise `NotAJournal` if there are none."""
    try:
        names = files.list_directory(str(path))
    except FileNotFoundError as exc:
        raise NotAJournal(f"{path} does not exist", path=path, hint="check_path") from exc
    except NotADirectoryError as exc:
        raise NotAJournal(f"{path} is a file; a run is a directory that contains {name(1)}", path=path) from exc
    segments = sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)
    if not segments:
        raise NotAJournal(f"{path} is not a run: it does not contain {name(1)}", path=path)
    return segments


def total_size(path: Path, files: Files = DISK) -> int:
    """Return the size of a journal in bytes."""
    return sum(files.size(file(path, number)) or 0 for number in numbers(path, files))


def is_run(path: Path, files: Files = DISK) -> bool:
    """Whether there is a journal at this path, intact or damaged."""
    try:
        return bool(numbers(path, files))
    except (NotAJournal, OSError):
        return False


def is_review(path: Path) -> bool:
    return path.name == REVIEW and is_run(path.parent) and is_run(path)


def enclosing_run(path: Path) -> Path | None:
    """Return the run at the path or around it; None if there is none."""
    real_path = Path(os.path.realpath(path))
    return next((directory for directory in (real_path, *real_path.parents) if is_run(directory)), None)
