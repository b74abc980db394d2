"""Errors of the journal, rendered for the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from evaljournal.journal import JournalError, errors
from evaljournal.journal.errors import Hint
from evaljournal.runner.cli import DAMAGED, UNFINISHED, USAGE
from evaljournal.runner.errors import command

_HINTS: Final[dict[Hint, Callable[[Path], str]]] = {
    "check_disk": lambda path: f"check the disk, then continue with {command('resume', path)}",
    "check_path": lambda _: "`evaljournal ls` lists the runs",
    "free_space_resume": lambda path: f"free some disk space, then continue with {command('resume', path)}",
    "move_back": lambda path: f"move it back and continue with {command('resume', path)}, or resume it at its new path",
    "read_log": lambda path: f"{command('log', path, ' --json')} prints the records before the damage",
    "resume": lambda path: f"{command('resume', path)} continues it",
    "salvage": lambda path: f"{command('salvage', path, ' -o NEW')} copies the intact records",
    "watch": lambda path: f"{command('watch', path)} shows it live",
}


def exit_code(exc: JournalError) -> int:
    match exc:
        case (
            errors.JournalDamaged()
            | errors.NotSalvageable()
            | errors.InvalidRecord()
            | errors.BlobDamaged()
            | errors.SegmentLost()
        ):
            return DAMAGED
        case errors.JournalFailed():
            return UNFINISHED
        case _:
            return USAGE


def render(exc: JournalError) -> str:
    """Return the message of an error, with a command in place of its hint."""
    if exc.hint not in _HINTS or exc.path is None:
        return str(exc)
    return f"{exc.message}; {_HINTS[exc.hint](exc.path)}"
