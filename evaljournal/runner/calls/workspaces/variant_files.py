"""The files that a variant adds to each workspace, such as a skill that one variant has and another has not.

A directory with a `SKILL.md` is a skill: it is added where agents look for skills. The content of any other directory is added
to the top of the workspace.
"""

from pathlib import Path
from typing import Any, Final

from evaljournal.runner.calls.workspaces.trees import digest_of, index_tree, relative_path
from evaljournal.runner.errors import UsageError

SKILL_DIRECTORIES: Final = (".claude/skills", ".agents/skills")
"""Where Claude Code looks for the skills of a project, and where Codex, Gemini CLI and others do."""
MAX_FILES: Final = 1_000
MAX_SIZE: Final = 16 * 1024 * 1024
_FLAG: Final = "--variant-files"


def variant_files(directory: str | None) -> dict[str, bytes]:
    """Return the files of a variant: path in the workspace → content; none without a directory."""
    if not directory:
        return {}
    root = _root(directory)
    paths = [path for path, fact in index_tree(root).items() if fact.sha256]
    if len(paths) > MAX_FILES or sum((root / path).stat().st_size for path in paths) > MAX_SIZE:
        raise UsageError(f"{_FLAG} {directory}: has more than {MAX_FILES:,} files or {MAX_SIZE >> 20} MiB")
    name = root.resolve().name
    places = [f"{place}/{name}/" for place in SKILL_DIRECTORIES] if (root / "SKILL.md").is_file() else [""]
    contents = {path: (root / path).read_bytes() for path in paths}
    return {relative_path(f"{place}{path}", _FLAG): content for place in places for path, content in contents.items()}


def files_definition(directory: str | None) -> dict[str, Any]:
    """Return what a run records of the files of a variant: nothing without any."""
    if not directory:
        return {}
    return {"variant_files": {"directory": directory, "digest": digest_of(index_tree(_root(directory)))}}


def _root(directory: str) -> Path:
    root = Path(directory)
    if not root.is_dir():
        raise UsageError(f"{_FLAG} {directory}: is not a directory; pass NAME=DIR, or NAME= for no files")
    return root
