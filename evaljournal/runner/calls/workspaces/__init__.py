"""Workspaces: a fresh copy of a directory for each attempt, and what an attempt has changed in it.

A run has one directory for its workspaces, outside the project: an agent that looks for instructions, a configuration or a
repository in the directories above its own must not find those of the user. `directory` says where; nothing else is ever
written or removed.

    original   the copy that all attempts of a session start from: a directory, or a revision of a git repository
    trees      copies and removes trees of files without following a link
    changes    compares a workspace with the original: files with hashes, and a unified diff
    programs   ends the programs that outlive their attempt, also after the run was killed

What an agent has written is hostile: nothing in a workspace is executed or followed by us, and everything is bounded.
"""

import hashlib
import os
import re
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Final, Literal

import attrs

from evaljournal.runner.errors import UsageError

FIELD: Final = "workspace"
"""The field of a command that is replaced by the path of its workspace."""
HOMES: Final[Mapping[str, str]] = {
    "CLAUDE_CONFIG_DIR": "claude",
    "CODEX_HOME": "codex",
    "GEMINI_CLI_HOME": "gemini",
    "XDG_CONFIG_HOME": "config",
    "XDG_DATA_HOME": "data",
    "XDG_STATE_HOME": "state",
}
"""Variable that names where an agent keeps its configuration and its memory → the directory in a fresh home."""
_OF_GIT: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
"""Variables with which git would change the repository of the user instead of that in the workspace."""
_RUN_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")


@attrs.frozen
class Workspace:
    directory: Path
    """What is removed after it: the workspace, and the agent's home."""
    has_home: bool = True
    """Whether the agent has a fresh home."""

    @property
    def path(self) -> Path:
        """The working directory of the attempt."""
        return self.directory / "workspace"

    @property
    def home(self) -> Path:
        """The directory of the agent's configuration and memory."""
        return self.directory / "home"

    def environment(self) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if name not in _OF_GIT}
        homes = {name: str(self.home / directory) for name, directory in HOMES.items()} if self.has_home else {}
        own = {"PWD": str(self.path), "EVALJOURNAL_WORKSPACE": str(self.path), "GIT_CEILING_DIRECTORIES": str(self.directory)}
        return environment | homes | own

    @property
    def constants(self) -> dict[str, str]:
        """The paths that differ between attempts → what replaces them where attempts are compared."""
        return {str(self.path): "{workspace}", str(self.home): "{agent-home}"}


_workspace: Final[ContextVar[Workspace | None]] = ContextVar("evaljournal_workspace", default=None)
set_workspace = _workspace.set
open_workspace = _workspace.get
"""Return the workspace of the attempt in this context; None if it has none."""


def current_workspace() -> Path:
    """Return the directory that a task may change: a fresh copy of that of the setting `workspace`, for each attempt."""
    workspace = _workspace.get()
    if workspace is None:
        raise UsageError("there is no workspace: set workspace=DIR (--workspace DIR), and call this inside an attempt")
    return workspace.path


def runs_directory() -> Path:
    """Return where the workspaces of all runs are: in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        cache = str(Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache"))
    return Path(os.path.realpath(cache)) / "evaljournal" / "workspaces"


def directory_of(run: str) -> Path:
    """Return the directory of a run's workspaces; its id may be from a foreign journal."""
    if not _RUN_ID.fullmatch(run):
        raise UsageError(f"the id of the run, {run[:80]!r}, cannot be the name of a directory")
    return runs_directory() / run


def name_of(trial: str, attempt: int | Literal["*"]) -> str:
    """Return the name of an attempt's directory, or a pattern of those of all attempts."""
    return f"{hashlib.sha256(trial.encode(errors='surrogatepass')).hexdigest()[:16]}-{attempt}"


def attempts_of(directory: Path, trial: str) -> list[Path]:
    return sorted(directory.glob(f"attempts/{name_of(trial, '*')}"))
