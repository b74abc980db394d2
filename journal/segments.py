"""The files of a journal: their names, their order, and how one begins.

`journal-000001.jsonl`, `journal-000002.jsonl` and so on. Only the last may still grow.
"""

import os
import re
from pathlib import Path
from typing import Final

from journal.errors import NotAJournal
from journal.files import DISK, Files

FORMAT: Final = "evaljournal"
VERSION: Final = "1.0"
MAJOR: Final = 1

ROLL_AT: Final = 64 << 20
"""A file is sealed, and the next begun, once it is this many bytes long."""

_NAME: Final = re.compile(r"journal-((?!000000)[0-9]{6}|[1-9][0-9]{6,})\.jsonl")


def name(number: int) -> str:
    """Name a segment."""
    return f"journal-{number:06}.jsonl"


def file(path: Path, number: int) -> str:
    """Tell where a segment of a run is."""
    return os.path.join(str(path), name(number))


def numbers(path: Path, files: Files) -> list[int]:
    """List the segments of a run, in order; an error if there is no journal at this path."""
    try:
        names = files.list_directory(str(path))
    except FileNotFoundError as exc:
        raise NotAJournal(f"{path} does not exist; `evaljournal ls` lists the runs here") from exc
    except NotADirectoryError as exc:
        raise NotAJournal(f"{path} is a file; a run is a directory with journal-000001.jsonl in it") from exc
    found = sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)
    if not found:
        raise NotAJournal(f"{path} holds no journal: there is no {name(1)} in it")
    return found


def is_run(path: Path) -> bool:
    """Say whether there is a journal at this path, damaged as it may be."""
    try:
        return bool(numbers(path, DISK))
    except (NotAJournal, OSError):
        return False


def enclosing_run(path: Path) -> Path | None:
    """Find the run that a path is, or lies in, however it is written; nothing else may be put there."""
    real = Path(os.path.realpath(path))
    return next((each for each in (real, *real.parents) if is_run(each)), None)
