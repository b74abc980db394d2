"""Trees of files: indexed, copied and removed. No link is ever followed.

**Copies.** `os.copy_file_range` shares the blocks of files where the file system can (Btrfs, XFS, ZFS), and otherwise copies in
the kernel. Hard links are never made: an agent that appends to a file would change the original.

**The tree of an agent** is walked from directory to directory, each opened in the one above: none can be replaced by a link
meanwhile. It may be endlessly deep, wide or large, so the walk is bounded.
"""

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.classify import Fatal

MAX_FILES: Final = 200_000
MAX_BYTES: Final = 4 << 30
"""Maximum number of files, and of their bytes, in a workspace."""
MAX_DEPTH: Final = 100
_CHUNK: Final = 1 << 20
_NOT_SUPPORTED: Final = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})


class WorkspaceProblem(Fatal):
    """A workspace cannot be made, or not be read."""


class Fact(NamedTuple):
    """What is known about a file, a link or a directory of a tree."""

    mode: int
    size: int
    mtime_ns: int
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


def index_tree(root: Path, skip: frozenset[str] = frozenset()) -> Index:
    """Return the contents of a user's directory, without those of the paths `skip`; raise a `UsageError` for a bad one."""
    index, size, top = Index(), 0, os.path.realpath(root)
    directories = [""]
    while directories:
        directory = directories.pop()
        with os.scandir(os.path.join(root, directory)) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                path, status = os.path.join(directory, entry.name), entry.stat(follow_symlinks=False)
                if path in skip:
                    continue
                sha256, target = "", ""
                if stat.S_ISLNK(status.st_mode):
                    target = _inner_target(root, top, path)
                    sha256 = hashlib.sha256(os.fsencode(target)).hexdigest()
                elif stat.S_ISDIR(status.st_mode):
                    directories.append(path)
                elif stat.S_ISREG(status.st_mode):
                    size += status.st_size
                    if size > MAX_BYTES:
                        raise UsageError(f"{root} is larger than {MAX_BYTES >> 30} GiB; a workspace is copied for each attempt")
                    sha256 = _file_hash(entry.path)
                else:
                    raise UsageError(f"{entry.path} is not a file, a directory or a link; a workspace cannot contain it")
                if len(index) >= MAX_FILES:
                    raise UsageError(f"{root} has more than {MAX_FILES:,} files; a workspace is copied for each attempt")
                index[path] = Fact(status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, sha256, target)
    return dict(sorted(index.items()))


def _inner_target(root: Path, top: str, path: str) -> str:
    """Return the target of a link; raise a `UsageError` if it is outside the tree, which a copy would share."""
    target = os.readlink(root / path)
    real_path = os.path.realpath(root / path)
    if os.path.isabs(target) or (real_path != top and not real_path.startswith(os.path.join(top, ""))):
        problem = "an absolute path" if os.path.isabs(target) else "outside the directory"
        raise UsageError(f"the link {root / path} points to {target}, {problem}, which all attempts would share; remove it")
    return target


def _file_hash(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(index: Index) -> str:
    """Return the digest of a tree: of names, contents, and which files are executable."""
    lines = (f"{path}\0{fact.sha256}\0{fact.mode & stat.S_IXUSR}\n" for path, fact in index.items() if fact.sha256)
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def copy_tree(source: Path, target: Path, index: Index, *, is_own: bool = True) -> Places:
    """Copy what an index lists to a new directory; with `is_own`, raise if it was changed since it was indexed."""
    places, root, new_root = Places(), os.path.join(source, ""), os.path.join(target, "")
    os.makedirs(target)
    modes: list[tuple[str, int]] = []
    for path, fact in index.items():
        new_path = new_root + path
        if fact.target:
            os.symlink(fact.target, new_path)
        elif stat.S_ISDIR(fact.mode):
            os.mkdir(new_path, 0o700)
            modes.append((new_path, stat.S_IMODE(fact.mode) & 0o777))
        else:
            places[path] = _copy_file(root + path, new_path, fact, is_own=is_own)
    for new_path, mode in reversed(modes):
        if mode != 0o700:  # noqa: PLR2004  # as it was made
            os.chmod(new_path, mode)
    return places


def _copy_file(source: str, target: str, fact: Fact, *, is_own: bool) -> tuple[int, int]:
    old = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if is_own and os.fstat(old).st_ctime_ns != fact.ctime_ns:
            raise WorkspaceProblem(f"{source} was changed while the run was using it; resume the run")
        new = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, stat.S_IMODE(fact.mode) & 0o777)
        try:
            _copy_content(old, new, fact.size)
            os.utime(new, ns=(fact.mtime_ns, fact.mtime_ns))  # Build tools compare it.
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
    except (AttributeError, OSError) as exc:
        if isinstance(exc, OSError) and exc.errno not in _NOT_SUPPORTED:
            raise
        while size > 0 and (content := os.read(old, min(size, _CHUNK))):
            size -= len(content)
            with open(new, "wb", closefd=False) as file:
                file.write(content)


class TreeEntry(NamedTuple):
    """An entry of an agent's tree."""

    path: str
    status: os.stat_result
    name: str
    parent: int
    """The opened directory that contains it."""


def walk(root: Path, *, with_git: bool = False) -> Iterator[TreeEntry | str]:
    """Yield what is in the tree of an agent; a text is why something in it was not read. `.git` at its top only `with_git`."""
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield from _walk(top, "", 0, "" if with_git else ".git")
    finally:
        os.close(top)


def _walk(directory: int, prefix: str, depth: int, skipped: str) -> Iterator[TreeEntry | str]:
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in itertools.islice(entries, MAX_FILES))
    for name in names:
        path = prefix + name
        if path == skipped:
            continue
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            yield TreeEntry(path, status, name, directory)
            if not stat.S_ISDIR(status.st_mode):
                continue
            if depth >= MAX_DEPTH:
                yield f"{printable_path(path)} is nested too deeply"
                continue
            child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        except OSError as exc:
            yield f"{printable_path(path)} cannot be read: {exc.strerror}"
            continue
        try:
            yield from _walk(child, f"{path}/", depth + 1, skipped)
        finally:
            os.close(child)


def printable_path(path: str) -> str:
    """Return a path whose name may be no valid UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def open_entry(entry: TreeEntry) -> int:
    """Open a file of an agent's tree; raise an OSError if it was replaced meanwhile."""
    file = os.open(entry.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=entry.parent)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a file")
    return file


def copy_agent_tree(source: Path, target: Path, *, with_git: bool = False) -> None:
    """Copy the files and the directories of an agent's tree, and links that stay inside it; raise if it is too large."""
    os.makedirs(target)
    size, top = 0, os.path.realpath(source)
    for number, entry in enumerate(walk(source, with_git=with_git)):
        if isinstance(entry, str):
            continue
        new_path, mode = target / entry.path, entry.status.st_mode
        if number >= MAX_FILES:
            raise WorkspaceProblem(f"the workspace has more than {MAX_FILES:,} files")
        if stat.S_ISDIR(mode):
            os.mkdir(new_path, 0o700)
        elif stat.S_ISLNK(mode):
            link = os.readlink(entry.name, dir_fd=entry.parent)
            real_path = os.path.realpath(source / entry.path)
            if not os.path.isabs(link) and real_path.startswith(os.path.join(top, "")):
                os.symlink(link, new_path)
        elif stat.S_ISREG(mode):
            size += entry.status.st_size
            if size > MAX_BYTES:
                raise WorkspaceProblem(f"the workspace is larger than {MAX_BYTES >> 30} GiB")
            with contextlib.suppress(PermissionError):
                _copy_entry(entry, new_path)


def _copy_entry(entry: TreeEntry, target: Path) -> None:
    old = open_entry(entry)
    try:
        new = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, entry.status.st_mode & 0o777 | stat.S_IRUSR)
        try:
            _copy_content(old, new, entry.status.st_size)
        finally:
            os.close(new)
    finally:
        os.close(old)


def write_file(root: Path, path: str, content: bytes, mode: int = 0o644) -> None:
    """Write a file into a tree, in place of whatever is there; a link on the way to it is replaced by a directory."""
    directory = root
    for part in Path(path).parts[:-1]:
        directory /= part
        if directory.is_symlink() or (os.path.lexists(directory) and not directory.is_dir()):
            directory.unlink()
        directory.mkdir(exist_ok=True)
    target = root / path
    if target.is_dir() and not target.is_symlink():
        remove_tree(target)
    target.unlink(missing_ok=True)
    file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with open(file, "wb") as stream:
        stream.write(content)


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
