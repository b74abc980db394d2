"""What attempts have changed in their workspaces, as they note it, and which run has made the workspaces.

A note has the changed files with their hashes, and a unified diff; it is stored as a blob if it is large. The changes of a
trial are those of its last attempt. Its workspace stays where it was made: a fork, a merged or a salvaged run uses it there.
"""

import sys
from pathlib import PurePath
from typing import Any, Final, Literal, NotRequired, TypedDict, cast

import attrs

from evaljournal.journal.events import NOTE_PREFIX, Noted, Record, StepCompleted
from evaljournal.replay.state.trial import pack_location

CHANGES: Final = f"{NOTE_PREFIX}workspace"
"""Name of the note with the changes of an attempt: `files` and `diff`, and `unlisted_files`, `omitted_diffs` and `problems`."""
MAKE_WORKSPACE: Final = "make workspace"
"""Name of the step of a set-up that records the path of a workspace."""
Change = Literal["added", "modified", "deleted"]


class FileChange(TypedDict):
    path: str
    change: Change
    bytes: int
    sha256: str
    """Empty: deleted, special, unreadable or too large."""
    kind: NotRequired[str]
    """`link` or `other`, such as a socket, if it is no file."""


@attrs.define(eq=False)
class WorkspaceChanges:
    """Which record has the changes of the last attempt at each trial, and whose is its workspace?

    It is attached by the setting `workspace`.
    """

    locations: dict[str, int] = attrs.field(factory=dict[str, int])
    """Trial → packed location of the note."""
    runs: dict[str, str] = attrs.field(factory=dict[str, str])
    """Trial → id of the run that made its workspace, as its path says; a foreign journal may have any text there."""

    def _on_step_completed(self, event: StepCompleted, _: Record) -> None:
        if event.name == MAKE_WORKSPACE and event.phase == "setup" and isinstance(event.output, dict):
            path = event.output.get("workspace")  # RUN/attempts/NAME/workspace
            self.runs[event.trial] = sys.intern("".join(PurePath(path).parts[-4:-3])) if isinstance(path, str) else ""

    def _on_noted(self, event: Noted, record: Record) -> None:
        if event.name == CHANGES:
            self.locations[event.trial] = pack_location(record)


def recorded_changes(value: Any) -> tuple[list[FileChange], str]:
    """Return the files and the diff of a note; it may be from a foreign journal."""
    fields: dict[str, Any] = value if isinstance(value, dict) else {}
    files, diff = fields.get("files"), fields.get("diff")
    listed = [
        cast("FileChange", file)
        for file in (files if isinstance(files, list) else ())
        if isinstance(file, dict) and isinstance(file.get("path"), str) and isinstance(file.get("change"), str)
    ]
    return listed, diff if isinstance(diff, str) else ""
