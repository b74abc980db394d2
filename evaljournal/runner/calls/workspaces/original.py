"""The original: the copy of the user's directory that all workspaces of a session are copied from, and the files of cases.

A session copies it once, so that an edit during the run changes no attempt. A git repository is cloned at the revision that
the run records: a clone without hooks, hard links, alternates and remotes, from which nothing can be pushed to the user's.
"""

import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs

from evaljournal.journal.disk import segments
from evaljournal.runner.calls.workspaces.trees import (
    Fact,
    Index,
    WorkspaceProblem,
    copy_agent_tree,
    digest_of,
    index_tree,
    relative_path,
    remove_tree,
)
from evaljournal.runner.data.attachments import column_values, read_file
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.templates import Fields
from evaljournal.runner.errors import UsageError

_GIT: Final = ("git", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "-c", "protocol.file.allow=always")
_TIMEOUT: Final = 600.0
COLUMN: Final = "files"
MAX_CASE_FILES: Final = 1_000


@attrs.frozen
class WorkspaceSource:
    """A user's directory, and which content of it a run uses."""

    path: Path
    revision: str = ""
    """The commit of a git repository; empty for another directory."""
    dirty: tuple[str, ...] = ()
    """Paths with uncommitted changes that are copied, too."""
    digest: str = ""
    """What a resumed run compares: the commit, and the digest of what else is copied."""

    @classmethod
    def read(cls, path: Path, *, dirty: bool, recorded_digest: str = "", outputs: tuple[Path, ...] = ()) -> "WorkspaceSource":
        """Read a directory; raise a `UsageError` if it cannot be a workspace. A resumed run uses the recorded commit.

        `outputs` are the directories that the run writes to.
        """
        if not path.is_dir():
            problem = "is not a directory" if path.exists() else "does not exist"
            raise UsageError(problem, setting="workspace", value=str(path))

        is_repository = (path / ".git").exists()
        for output in map(Path.resolve, outputs):
            if path.resolve().is_relative_to(output):
                raise UsageError(f"is in {output}, where the run writes; pass another", setting="workspace", value=str(path))
            if output.is_relative_to(path.resolve()) and not is_repository:
                problem = f"contains {output}, where the run writes; pass -o, a directory below it, or a git repository"
                raise UsageError(problem, setting="workspace", value=str(path))

        if is_repository:
            return cls._read_repository(path, recorded_digest, dirty=dirty)
        return cls(path, digest=digest_of(index_tree(path)))

    @classmethod
    def _read_repository(cls, path: Path, recorded_digest: str, *, dirty: bool) -> "WorkspaceSource":
        if (path / ".gitmodules").exists():
            hint = "pass the directory of one repository, or a copy without .git"
            raise UsageError("has submodules, which are not cloned", setting="workspace", value=str(path), hint=hint)

        commit, _, changes_digest = recorded_digest.removeprefix("git:").partition("+")
        with suppress(UsageError):  # The commit is not in the repository any more.
            if commit.isalnum() and not changes_digest:
                _git(path, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
                return cls(path, commit, digest=recorded_digest)

        revision = _git(path, "rev-parse", "--verify", "HEAD^{commit}").strip()
        listing = _git(path, "status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all")
        paths = (entry[3:] for entry in listing.split("\0") if entry)
        changed = tuple(sorted(name for name in paths if segments.enclosing_run(path / name) is None))

        if not changed:
            return cls(path, revision, digest=f"git:{revision}")
        if not dirty:
            names = ", ".join(changed[:3]) + (", …" if len(changed) > 3 else "")  # noqa: PLR2004  # examples
            hint = "commit them, or pass --workspace-dirty to copy them, too"
            raise UsageError(f"has uncommitted changes: {names}", setting="workspace", value=str(path), hint=hint)

        contents = hashlib.sha256()
        for name in changed:
            file = path / name
            content = b"" if not os.path.lexists(file) else os.fsencode(os.readlink(file)) if file.is_symlink() else _read(file)
            contents.update(f"{name}\0{len(content)}\0".encode(errors="surrogateescape") + content)
        return cls(path, revision, changed, f"git:{revision}+{contents.hexdigest()}")


def _read(file: Path) -> bytes:
    if not file.is_file():
        raise UsageError(f"{file} is a repository of its own, or a special file; commit, ignore or remove it")
    return file.read_bytes()


def _git(path: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    line = [*_GIT, "-C", str(path), *arguments]
    try:
        result = subprocess.run(line, capture_output=True, timeout=_TIMEOUT, check=False, env=environment)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise UsageError(f"{path} is a git repository, and git cannot be run: {exc}") from exc
    if result.returncode != 0:
        reason = result.stderr.decode(errors="replace").strip()
        raise UsageError(f"git {arguments[0]} failed in {path}: {reason}; remove its .git to copy it as it is")
    return os.fsdecode(result.stdout)


@attrs.frozen
class Original:
    path: Path
    index: Index
    files: Mapping[str, bytes] = attrs.field(factory=dict[str, bytes])
    """Files of the case, which are not in the copy."""

    @classmethod
    def make(cls, source: WorkspaceSource, path: Path) -> "Original":
        """Copy a directory, or clone its revision, in place of an earlier copy."""
        remove_tree(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if source.revision:
            _clone(source, path)
        else:
            copy_agent_tree(source.path, path)
        original = _originals[path] = cls(path, index_tree(path))
        if not source.revision and digest_of(original.index) != source.digest:
            raise UsageError(f"{source.path} was changed while it was copied; try again")
        return original

    @classmethod
    def at(cls, path: Path) -> "Original":
        """Return the copy that this session has made, or an earlier one."""
        if path not in _originals:
            if not path.is_dir():
                raise WorkspaceProblem("the original of the workspaces was removed; run the trial again, with --keep all")
            _originals[path] = cls(path, index_tree(path))
        return _originals[path]

    def with_files(self, files: Mapping[str, bytes]) -> "Original":
        facts = {
            path: Fact(stat.S_IFREG | 0o644, len(content), 0, hashlib.sha256(content).hexdigest())
            for path, content in files.items()
        }
        return Original(self.path, self.index | facts, files)

    def content(self, path: str) -> bytes:
        return self.files[path] if path in self.files else (self.path / path).read_bytes()


_originals: Final[dict[Path, Original]] = {}


def _clone(source: WorkspaceSource, path: Path) -> None:
    origin = source.path.resolve()
    _git(path.parent, "clone", "--quiet", "--no-local", "--no-checkout", "--template=", "--", str(origin), str(path))
    branch = _git(path, "branch", "--show-current").strip() or "main"
    _git(path, "checkout", "--quiet", "-B", branch, source.revision)
    _git(path, "remote", "remove", "origin")
    for name in source.dirty:
        old, new = source.path / name, path / name
        new.unlink(missing_ok=True)
        if os.path.lexists(old):
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(old, new, follow_symlinks=False)


def case_files(case: Case) -> dict[str, bytes]:
    """Return the files that the column `files` of a case adds to its workspace: path in the workspace → content.

    It has paths of files beside the dataset, or an object: path in the workspace → text. Raises a `UsageError` for a file
    outside, or one that cannot be read.
    """
    fields, place = Fields(case), f"the column {COLUMN!r} of the case {case.name!r}"
    value = fields.get(COLUMN) if COLUMN in fields else None
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
