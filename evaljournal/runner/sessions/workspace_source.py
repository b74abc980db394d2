"""The directory that the workspaces of a run are copied from, as its definition records it.

It is recorded like a file that the results depend on: `resume` rejects a run if the directory has changed. Of a git
repository, the recorded commit is used again, also if another one is checked out.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaljournal.replay.state.definition import recorded_files
from evaljournal.runner.data.dataset import Dataset
from evaljournal.runner.definition.settings import Settings

if TYPE_CHECKING:
    from evaljournal.runner.calls.workspaces.original import WorkspaceSource


def read_workspace(settings: Settings, definition: dict[str, Any], recorded_definition: Any, run: Path) -> "WorkspaceSource":
    """Read the directory of the setting `workspace`, and add it to the files of a definition."""
    from evaljournal.runner.calls.workspaces import runs_directory  # noqa: PLC0415  # few runs need it
    from evaljournal.runner.calls.workspaces.original import WorkspaceSource  # noqa: PLC0415  # the same

    assert settings.workspace is not None
    name = f"{settings.workspace.rstrip('/')}/"
    recorded_digest = recorded_files(recorded_definition)[1].get(name, "")
    source = WorkspaceSource.read(
        Path(settings.workspace),
        dirty=settings.workspace_dirty,
        recorded_digest=recorded_digest,
        outputs=(run, runs_directory()),
    )
    code = definition.get("code", {"includes_opened": False, "files": {}})
    definition["code"] = {**code, "files": {**code["files"], name: source.digest}}
    return source


def with_case_files(cases: Dataset) -> Dataset:
    """Return cases whose column `files` names files of their workspaces; each is checked when it is read."""
    from evaljournal.runner.calls.workspaces.case_files import COLUMN, check_case_files  # noqa: PLC0415  # few runs need it

    return cases.with_files([COLUMN]).with_check(check_case_files)
