"""A simulated disk that can fail and lose power.

Every file and directory has two versions: the one that the system shows, and the one on disk.
"""

import errno
import io
import itertools
import math
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import attrs

from evaljournal.journal.disk.files import Files

SECTOR = 512

SectorOutcome = Literal["new", "zero", "garbage", "stale"]
SECTOR_OUTCOMES: tuple[SectorOutcome, ...] = ("new", "zero", "garbage", "stale")
"""Possible content of an unsynced sector after a power failure."""


class PowerFailure(BaseException):
    """The power failed; no code may clean up."""


def power_failure(first_call: int = 1) -> Callable[[str], None]:
    """Return an `on_call` with which the power fails at this call of the disk, and at every later one."""
    calls = itertools.count(1)

    def fail(_: str) -> None:
        if next(calls) >= first_call:
            raise PowerFailure

    return fail


@attrs.define(eq=False)
class Inode:
    """The content of a file."""

    visible: bytearray = attrs.field(factory=bytearray)
    synced: bytes = b""
    holder: int | None = None
    """The descriptor that holds the lock."""


@attrs.define(eq=False)
class Directory:
    """A directory: the names that the system shows, and those on disk."""

    visible: "dict[str, Inode | Directory]" = attrs.field(factory=dict)
    synced: "dict[str, Inode | Directory]" = attrs.field(factory=dict)


class SimulatedDisk(Files):
    """A file system in memory. `on_call` is called before each change and each open; it may raise, or limit a write."""

    idle_check_interval = math.inf

    def __init__(self, root: Directory | None = None) -> None:
        self.root = root or Directory()
        self.on_call: Callable[[str], int | None] = lambda _: None
        self._open: dict[int, tuple[Inode, int]] = {}
        self._next = 3

    def absolute(self, path: Path) -> Path:
        return path

    def _walk(self, path: str) -> "Inode | Directory":
        node: Inode | Directory = self.root
        for part in filter(None, path.split("/")):
            if not isinstance(node, Directory):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
            if part not in node.visible:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            node = node.visible[part]
        return node

    def _directory(self, path: str) -> Directory:
        node = self._walk(path)
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return node

    def open(self, path: str, flags: int, parents: int = 0) -> int:  # noqa: ARG002  # there are no symlinks
        self.on_call("open")
        directory, name = self._directory(os.path.dirname(path)), os.path.basename(path)
        if flags & os.O_EXCL and name in directory.visible:
            raise FileExistsError(errno.EEXIST, "it exists", path)
        if flags & os.O_CREAT and name not in directory.visible:
            directory.visible[name] = Inode()
        inode = self._walk(path)
        assert isinstance(inode, Inode)
        if flags & os.O_TRUNC:
            inode.visible.clear()
        self._next += 1
        self._open[self._next] = (inode, flags)
        return self._next

    def write(self, fd: int, data: memoryview) -> int:
        limit = self.on_call("write")
        part = data if limit is None else data[:limit]
        self._open[fd][0].visible += part
        return len(part)

    def fdatasync(self, fd: int) -> None:
        self.on_call("fdatasync")
        self._sync(fd)

    def fsync(self, fd: int) -> None:
        self.on_call("fsync")
        self._sync(fd)

    def _sync(self, fd: int) -> None:
        inode = self._open[fd][0]
        inode.synced = bytes(inode.visible)

    def ftruncate(self, fd: int, size: int) -> None:
        self.on_call("ftruncate")
        del self._open[fd][0].visible[size:]

    def close(self, fd: int) -> None:
        inode, _ = self._open.pop(fd)
        if inode.holder == fd:
            inode.holder = None

    def replace(self, source: str, target: str) -> None:
        self.on_call("replace")
        node = self._directory(os.path.dirname(source)).visible.pop(os.path.basename(source))
        self._directory(os.path.dirname(target)).visible[os.path.basename(target)] = node

    def remove(self, path: str) -> None:
        self.on_call("remove")
        del self._directory(os.path.dirname(path)).visible[os.path.basename(path)]

    def remove_tree(self, path: str) -> None:
        self.on_call("remove_tree")
        del self._directory(os.path.dirname(path)).visible[os.path.basename(path)]

    def mkdir(self, path: str) -> None:
        self.on_call("mkdir")
        directory = self._directory(os.path.dirname(path))
        if os.path.basename(path) in directory.visible:
            raise FileExistsError(errno.EEXIST, "it exists", path)
        directory.visible[os.path.basename(path)] = Directory()

    def sync_directory(self, path: str) -> None:
        self.on_call("sync_directory")
        directory = self._directory(path)
        directory.synced = dict(directory.visible)

    def pause(self, seconds: float = 0.0) -> None:
        pass

    def make_read_only(self, path: str) -> None:
        pass

    def read(self, path: str, parents: int = 0) -> BinaryIO:  # noqa: ARG002  # there are no symlinks
        node = self._walk(path)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, "a directory", path)
        return io.BytesIO(bytes(node.visible))

    def list_directory(self, path: str) -> list[str]:
        return list(self._directory(path).visible)

    def exists(self, path: str) -> bool:
        return self.size(path) is not None

    def is_directory(self, path: str) -> bool:
        try:
            return isinstance(self._walk(path), Directory)
        except OSError:
            return False

    def size(self, path: str) -> int | None:
        try:
            node = self._walk(path)
        except FileNotFoundError:
            return None
        return len(node.visible) if isinstance(node, Inode) else 0

    def is_same_file(self, fd: int, path: str) -> bool:
        try:
            return self._walk(path) is self._open[fd][0]
        except FileNotFoundError:
            return False

    def link_count(self, fd: int) -> int:  # noqa: ARG002  # no test deletes an open file
        return 1

    def is_intact(self, fd: int, path: str, size: int) -> bool:
        return len(self._open[fd][0].visible) == size and self.is_same_file(fd, path)

    def lock(self, fd: int) -> bool:
        inode = self._open[fd][0]
        if inode.holder is not None:
            return False
        inode.holder = fd
        return True

    def add_file(self, path: str, data: bytes) -> None:
        """Create a synced file."""
        directory = self.root
        for part in filter(None, os.path.dirname(path).split("/")):
            node = directory.visible.setdefault(part, Directory())
            assert isinstance(node, Directory)
            directory.synced[part] = node
            directory = node
        directory.visible[os.path.basename(path)] = directory.synced[os.path.basename(path)] = Inode(bytearray(data), data)

    def files(self, directory: Directory | None = None, path: str = "") -> Iterator[tuple[str, Inode]]:
        """Yield all files that the system shows."""
        for name, node in (directory or self.root).visible.items():
            if isinstance(node, Directory):
                yield from self.files(node, f"{path}/{name}")
            else:
                yield f"{path}/{name}", node

    def after_kill(self) -> "SimulatedDisk":
        """Return the disk after the process was killed: written data is kept, locks are released."""
        for _, inode in self.files():
            inode.holder = None
        return SimulatedDisk(self.root)

    def after_power_failure(self, rng: random.Random) -> "SimulatedDisk":
        """Return the disk after a power failure: synced data, and a random part of the rest."""
        return SimulatedDisk(_directory_after(self.root, rng, {}))


def _directory_after(directory: Directory, rng: random.Random, copied_files: dict[int, Inode]) -> Directory:
    result = Directory()
    for name in sorted(directory.visible.keys() | directory.synced.keys()):
        node = rng.choice([directory.visible.get(name), directory.synced.get(name)])
        if isinstance(node, Directory):
            result.visible[name] = result.synced[name] = _directory_after(node, rng, copied_files)
        elif node is not None:
            if id(node) not in copied_files:
                data = data_after_power_failure(node.synced, bytes(node.visible), rng=rng)
                copied_files[id(node)] = Inode(bytearray(data), data)
            result.visible[name] = result.synced[name] = copied_files[id(node)]
    return result


def data_after_power_failure(
    synced: bytes,
    written: bytes,
    *,
    rng: random.Random,
    outcomes: tuple[SectorOutcome, ...] | None = None,
    stale: bytes = b"",
) -> bytes:
    """Return the content of a file after a power failure: each unsynced sector has one of the outcomes.

    Synced bytes of a partly synced sector are kept, because disks write complete sectors.
    """
    if not written.startswith(synced):
        return rng.choice([synced, written])  # It was truncated or rewritten.
    first = len(synced) // SECTOR
    count = -(-len(written) // SECTOR) - first
    outcomes = outcomes or tuple(rng.choice(SECTOR_OUTCOMES) for _ in range(count))
    result = bytearray(written[: first * SECTOR])
    for number, outcome in zip(range(first, first + count), outcomes, strict=True):
        begin, end = number * SECTOR, min((number + 1) * SECTOR, len(written))
        match outcome:
            case "new":
                sector = written[begin:end]
            case "zero":
                sector = bytes(end - begin)
            case "garbage":
                sector = rng.randbytes(end - begin)
            case "stale":
                sector = (stale[begin:end] or written[:SECTOR]).ljust(end - begin, b"\0")[: end - begin]
        result += synced[begin:end] + sector[max(0, len(synced) - begin) :] if begin < len(synced) else sector
    return bytes(result)
