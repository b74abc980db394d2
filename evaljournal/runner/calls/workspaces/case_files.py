"""The files that a case adds to its workspace: the column `files`.

It has paths of files beside the dataset, or an object: path in the workspace → text.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from evaljournal.runner.calls.workspaces.trees import relative_path
from evaljournal.runner.data.attachments import column_values, read_file
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.templates import Fields
from evaljournal.runner.errors import UsageError

COLUMN: Final = "files"
MAX_CASE_FILES: Final = 1_000


def _value(case: Case) -> Any:
    fields = Fields(case)
    return fields.get(COLUMN) if COLUMN in fields else None


def check_case_files(case: Case) -> None:
    """Raise a `UsageError` if a case names a file outside its workspace, or one that cannot be read."""
    case_files(case)


def case_files(case: Case) -> dict[str, bytes]:
    """Return the files of a case: path in the workspace → content."""
    value, place = _value(case), f"the column {COLUMN!r} of the case {case.name!r}"
    if isinstance(value, Mapping):
        if not all(isinstance(text, str) for text in value.values()):
            raise UsageError(f"{place}: a file has no text; the object must have a text for each path")
        files = {relative_path(path, place): text.encode() for path, text in value.items()}
    else:
        paths = [] if value is None else column_values(case, COLUMN)
        files = {relative_path(path, place): read_file(Path(case.directory), path) for path in paths}
    if len(files) > MAX_CASE_FILES:
        raise UsageError(f"{place} has more than {MAX_CASE_FILES:,} files; put them into the workspace")
    return files
