"""What attempts have changed in their workspaces, as they note it.

A note has the changed files with their hashes, and a unified diff; it is stored as a blob if it is large. The changes of a
trial are those of its last attempt.
"""

from typing import Any, Final, Literal, NotRequired, TypedDict, cast

import attrs

from evaljournal.journal import Record
from evaljournal.journal.events import NOTE_PREFIX, Noted
from evaljournal.replay.state.trial import pack_location

CHANGES: Final = f"{NOTE_PREFIX}workspace"
"""Name of the note with the changes of an attempt: `files` and `diff`, and `unlisted_files`, `omitted_diffs` and `problems`."""
Change = Literal["added", "modified", "deleted"]


class FileChange(TypedDict):
    """A changed file."""

    path: str
    change: Change
    bytes: int
    sha256: str
    """Empty: deleted, special, unreadable or too large."""
    kind: NotRequired[str]
    """`link` or `other`, such as a socket, if it is no file."""


@attrs.define(eq=False)
class WorkspaceChanges:
    """Which record has the changes of the last attempt at each trial? It is attached by the setting `workspace`."""

    locations: dict[str, int] = attrs.field(factory=dict[str, int])
    """Trial → packed location of the note."""

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
