"""Trees of files: indexed, copied and removed. No link is ever followed.

**Copies.** `os.copy_file_range` shares the blocks of files where the file system can (Btrfs, XFS, ZFS), and otherwise copies in
the kernel. Hard links are never made: an agent that appends to a file would change the original.

**Walking.** The tree of an agent is hostile, and those of users are walked in the same way: from directory to directory, each
opened in the one above, so that none can be replaced by a link meanwhile. A tree may be endlessly deep, wide or large, so the
walk is bounded.
"""

import errno
import hashlib
import itertools
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.classify import Fatal

MAX_FILES: Final = 200_000
MAX_BYTES: Final = 4 << 30
"""Maximum number of files, and of their bytes, in a workspace."""
MAX_DEPTH: Final = 100
_CHUNK: Final = 1 << 20


class WorkspaceProblem(UsageError, Fatal):
    """A workspace cannot be made, or not be read: a usage error before the run, and during it the end of the trial."""


class Fact(NamedTuple):
    """What is known about a file, a link or a directory of a tree."""

    mode: int
    size: int
    ctime_ns: int
    """It cannot be set by a program: a file whose time has not changed is unchanged."""
    sha256: str = ""
    """Empty for a directory."""
    target: str = ""
    """Of a link."""


Index = dict[str, Fact]
"""Relative path → fact; a directory comes before what it contains."""
Places = dict[str, tuple[int, int]]
"""Relative path of a file → its inode and ctime, after it was copied."""


class TreeEntry(NamedTuple):
    """An entry of a tree, while the directory that contains it is open."""

    path: str
    status: os.stat_result
    name: str
    parent: int
    """The opened directory that contains it."""


def walk(root: Path | str, skipped: str = "", *, prefix: str = "", parent: int | None = None) -> Iterator[TreeEntry | str]:
    """Yield what is in a tree, without the path `skipped`; a text is why something in it was not read.

    `prefix` and `parent` are the path of a directory in the tree, and the opened directory that contains it.
    """
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in itertools.islice(entries, MAX_FILES))

        for name in names:
            path = prefix + name
            if path == skipped:
                continue
            try:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                yield TreeEntry(path, status, name, directory)
                if stat.S_ISDIR(status.st_mode) and path.count("/") >= MAX_DEPTH:
                    yield f"{printable_path(path)} is nested too deeply"
                elif stat.S_ISDIR(status.st_mode):
                    yield from walk(name, skipped, prefix=f"{path}/", parent=directory)
            except OSError as exc:
                yield f"{printable_path(path)} cannot be read: {exc.strerror}"
    finally:
        os.close(directory)


def printable_path(path: str) -> str:
    """Return a path whose name may be no valid UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def open_file(path: str | Path, flags: int = os.O_RDONLY, *, parent: int | None = None) -> int:
    """Open a regular file, in an opened directory; raise an OSError if it is anything else, such as a link."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a regular file")
    return file


def _walk_bounded(root: Path) -> Iterator[TreeEntry | str]:
    """Walk through a tree that will be copied; raise a `WorkspaceProblem` if it is too large."""
    size = 0
    for number, entry in enumerate(walk(root)):
        if not isinstance(entry, str) and stat.S_ISREG(entry.status.st_mode):
            size += entry.status.st_size
        if number >= MAX_FILES or size > MAX_BYTES:
            limit = f"has more than {MAX_FILES:,} files" if number >= MAX_FILES else f"is larger than {MAX_BYTES >> 30} GiB"
            raise WorkspaceProblem(f"{root} {limit}; a workspace is copied for each attempt")
        yield entry


def index_tree(root: Path) -> Index:
    """Return the contents of a user's directory; raise a `WorkspaceProblem` for a bad one."""
    index = Index()
    for entry in _walk_bounded(root):
        if isinstance(entry, str):
            raise WorkspaceProblem(f"{root}: {entry}")

        status, sha256, target = entry.status, "", ""
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(entry.name, dir_fd=entry.parent)
            if problem := _leads_outside(root, entry.path, target):
                link = f"the link {root / entry.path} points to {target}, {problem}"
                raise WorkspaceProblem(f"{link}, which all attempts would share; remove it")
            sha256 = hashlib.sha256(os.fsencode(target)).hexdigest()
        elif stat.S_ISREG(status.st_mode):
            with open(open_file(entry.name, parent=entry.parent), "rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        elif not stat.S_ISDIR(status.st_mode):
            raise WorkspaceProblem(f"{root / entry.path} is not a file, a directory or a link; a workspace cannot contain it")
        index[entry.path] = Fact(status.st_mode, status.st_size, status.st_ctime_ns, sha256, target)
    return index


def _leads_outside(root: Path, path: str, target: str) -> str:
    """Return how a link leaves the tree; empty if it does not."""
    if os.path.isabs(target):
        return "an absolute path"
    is_inside = Path(os.path.realpath(root / path)).is_relative_to(os.path.realpath(root))
    return "" if is_inside else "outside the directory"


def digest_of(index: Index) -> str:
    """Return the digest of a tree: of names, contents, and which files are executable."""
    facts = sorted(index.items())
    lines = (f"{path}\0{fact.sha256}\0{fact.mode & stat.S_IXUSR}\n" for path, fact in facts if fact.sha256)
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def copy_tree(source: Path, target: Path, index: Index) -> Places:
    """Copy what an index lists to a new directory; raise a `WorkspaceProblem` if a file was changed since."""
    os.makedirs(target)
    places, root, new_root = Places(), os.path.join(source, ""), os.path.join(target, "")
    for path, fact in index.items():
        if fact.target:
            os.symlink(fact.target, new_root + path)
        elif stat.S_ISDIR(fact.mode):
            os.mkdir(new_root + path, fact.mode & 0o777 | stat.S_IRWXU)
        else:
            places[path] = _copy_file(root + path, new_root + path, ctime_ns=fact.ctime_ns)
    return places


def copy_agent_tree(source: Path, target: Path) -> None:
    """Copy what belongs into a workspace: files that can be read, directories, and links that stay inside."""
    os.makedirs(target)
    for entry in _walk_bounded(source):
        if isinstance(entry, str):
            continue

        new_path, mode = os.path.join(target, entry.path), entry.status.st_mode
        if stat.S_ISDIR(mode):
            os.mkdir(new_path, mode & 0o777 | stat.S_IRWXU)
        elif stat.S_ISREG(mode):
            with suppress(PermissionError):
                _copy_file(entry.name, new_path, parent=entry.parent)
        elif stat.S_ISLNK(mode):
            link = os.readlink(entry.name, dir_fd=entry.parent)
            if not _leads_outside(source, entry.path, link):
                os.symlink(link, new_path)


def _copy_file(source: str, target: str, *, parent: int | None = None, ctime_ns: int | None = None) -> tuple[int, int]:
    """Copy a file, and return the place of the copy; raise if it was changed since its ctime was this."""
    old = open_file(source, parent=parent)
    try:
        status = os.fstat(old)
        if ctime_ns not in {None, status.st_ctime_ns}:
            raise WorkspaceProblem(f"{source} was changed while the run was using it; resume the run")
        mode = status.st_mode & 0o777 | stat.S_IRUSR
        new = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            _copy_content(old, new, status.st_size)
            os.utime(new, ns=(status.st_mtime_ns, status.st_mtime_ns))  # Build tools compare it.
            status = os.fstat(new)
            return status.st_ino, status.st_ctime_ns
        finally:
            os.close(new)
    finally:
        os.close(old)


def _copy_content(old: int, new: int, size: int) -> None:
    try:
        while size > 0 and (count := os.copy_file_range(old, new, size)):
            size -= count
    except (AttributeError, OSError):  # It is not supported here; any other problem is raised again.
        with open(new, "wb", closefd=False) as file:
            while size > 0 and (content := os.read(old, min(size, _CHUNK))):
                size -= file.write(content)


def write_file(root: Path, path: str, content: bytes, mode: int = 0o644) -> None:
    """Write a file into a tree, in place of whatever is there; a link on the way to it is replaced by a directory."""
    for parent in reversed(Path(path).parents[:-1]):
        directory = root / parent
        if directory.is_symlink() or (os.path.lexists(directory) and not directory.is_dir()):
            directory.unlink()
        directory.mkdir(exist_ok=True)
    target = root / path
    if target.is_dir() and not target.is_symlink():
        remove_tree(target)
    target.unlink(missing_ok=True)
    with open(target, "xb", opener=partial(os.open, mode=mode)) as file:
        file.write(content)


def remove_tree(path: Path) -> bool:
    """Remove a tree, also one with directories that are read-only or nested too deeply; return whether nothing is left.

    A program can make files that we cannot remove, such as those of another user in a container.
    """
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return True
    except (OSError, RecursionError):
        if not path.is_symlink():  # Otherwise the directory that it points to would be changed.
            subprocess.run(["chmod", "-R", "u+rwX", "--", str(path)], capture_output=True, check=False)  # noqa: S603, S607
        subprocess.run(["rm", "-rf", "--", str(path)], capture_output=True, check=False)  # noqa: S603, S607
    return not os.path.lexists(path)


def relative_path(path: object, place: str) -> str:
    """Return the path of a file in a workspace; raise a `UsageError` if it is outside, or could be executed by git."""
    parts = Path(path).parts if isinstance(path, str) else ()
    if not parts or os.path.isabs(str(path)) or ".." in parts or "\0" in str(path):
        raise UsageError(f"{place}: {str(path)[:200]!r} is not a path inside the workspace; remove '..' and a leading '/'")
    if any(part.casefold() == ".git" for part in parts):
        raise UsageError(f"{place}: {str(path)[:200]!r} is in a .git directory, whose files git could execute")
    return str(Path(*parts))
