"""The result of a run: its gates and its exit code."""

import os
import re
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NoReturn

from replay import RunState
from replay.summary import summarize
from replay.text import printable
from replay.view_json import view_json
from runner.atomic_write import write_atomically
from runner.cli import UNFINISHED
from runner.cli._display import print_json
from runner.cli._output import echo
from runner.definition.gates import problems
from runner.errors import UsageError

FAILED: Final = 1
_HEAD: Final = re.compile(rb"[0-9a-f]{32}\s*")
_HEAD_BYTES: Final = 64


def write_head(file: Path | None, head: str) -> None:
    """Write the hash of a run's last record to the file of `--head-file`, if it was given; print it if that fails."""
    if file is None:
        return
    try:
        check_head_file(file)
        write_atomically(file, [f"{head}\n".encode()])
    except (OSError, UsageError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        echo(f"--head-file {printable(str(file))} could not be written: {reason}; the head is {head}", err=True)


def check_head_file(file: Path | None) -> None:
    """Raise a UsageError unless the file of `--head-file` is new or has the head of a run: nothing else is replaced."""
    if file is None:
        return
    if not file.parent.is_dir():
        raise UsageError(f"the directory {file.parent} of --head-file does not exist")
    if os.path.lexists(file):
        is_file = stat.S_ISREG(file.lstat().st_mode) and file.lstat().st_size <= _HEAD_BYTES
        if not is_file or not _HEAD.fullmatch(file.read_bytes()):
            raise UsageError(f"--head-file {file} exists and has no head of a run; pass another name")


def finish(
    state: RunState, path: Path, *, as_json: bool, stopped: str = "", scorers: Iterable[str] = (), **facts: Any
) -> NoReturn:
    """Exit with the code of a run; with `as_json`, print a summary with `facts` first."""
    code = exit_code(state, stopped=bool(stopped), scorers=scorers)
    if as_json:
        summary = {"stopped": stopped or None, **facts, "exit_code": code, **view_json(summarize(state))}
        print_json({"path": str(path), **summary})
    sys.exit(code)


def exit_code(state: RunState, *, stopped: bool, scorers: Iterable[str] = ()) -> int:
    """Return the exit code of a run: 1 if trials failed, outputs are unscored or a gate did not pass."""
    if stopped:
        return UNFINISHED
    return FAILED if problems(state, scorers) else 0
