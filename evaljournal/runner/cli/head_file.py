"""The file of `--head-file`, which keeps the hash of a run's last record."""

import os
import re
import stat
from pathlib import Path
from typing import Final

from evaljournal.replay.text import printable
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.errors import UsageError
from evaljournal.runner.runs.atomic_write import write_atomically

_HEAD: Final = re.compile(rb"[0-9a-f]{32}\s*")
_MAX_BYTES: Final = 64


def check_head_file(file: Path | None) -> None:
    """Raise a UsageError unless the file, if one was given, is new or contains a head: nothing else is replaced."""
    if file is None:
        return
    if not file.parent.is_dir():
        raise UsageError(f"the directory {file.parent} of --head-file does not exist; create it, or pass another path")
    if os.path.lexists(file):
        status = file.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES or not _HEAD.fullmatch(file.read_bytes()):
            raise UsageError(f"--head-file {file} exists and does not contain a head; pass another name")


def write_head(file: Path | None, head: str) -> None:
    """Write a head to the file, if one was given; print it if that fails. A run without records has no head."""
    if file is None or not head:
        return
    try:
        check_head_file(file)
        write_atomically(file, [f"{head}\n".encode()])
    except (OSError, UsageError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        echo(f"--head-file {printable(str(file))} could not be written: {reason}; the head is {head}", err=True)
