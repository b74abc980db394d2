"""The files that an agent may read and write through us: regular files below its workspace.

A path is resolved before it is compared, so that neither `..` nor a link leads outside. The agent has its own tools, which
this does not restrict; it only keeps us from doing for an agent what a user would not expect.
"""

import os
from pathlib import Path
from typing import Final

from evaljournal.runner.calls.workspaces.trees import open_file

MAX_FILE: Final = 16 * 1024 * 1024
"""Maximum bytes of a file that is read."""


class FileRejected(Exception):
    """The agent may not read or write the file."""


def _open(workspace: Path, path: str, flags: int) -> int:
    if "\0" in path or not os.path.isabs(path):
        raise FileRejected("the path must be absolute")
    resolved_path, root = Path(os.path.realpath(path)), Path(os.path.realpath(workspace))
    if root not in resolved_path.parents:
        raise FileRejected("the path is outside the workspace")
    try:
        if flags & os.O_CREAT:
            resolved_path.parent.mkdir(parents=True, exist_ok=True)
        return open_file(resolved_path, flags)
    except OSError as exc:
        raise FileRejected(exc.strerror or str(exc)) from exc


def read_text(workspace: Path, path: str, line: int | None, limit: int | None) -> str:
    """Return the text of a file; with `line` and `limit`, that number of lines from that one, counted from 1."""
    with open(_open(workspace, path, os.O_RDONLY), "rb") as file:
        content = file.read(MAX_FILE + 1)
    if len(content) > MAX_FILE:
        raise FileRejected(f"the file is larger than {MAX_FILE // 1024 // 1024} MiB")
    text = content.decode("utf-8", "replace")
    if line is None and limit is None:
        return text
    first = max(0, (line or 1) - 1)
    return "".join(text.splitlines(keepends=True)[first : None if limit is None else first + max(0, limit)])


def write_text(workspace: Path, path: str, text: str) -> None:
    """Write a file, and create the directories above it."""
    with open(_open(workspace, path, os.O_WRONLY | os.O_CREAT), "wb") as file:
        file.truncate()
        file.write(text.encode("utf-8", "replace"))
