"""What an attempt has changed in its workspace: the files with hashes, and a unified diff.

Changed files are found by inode and ctime, which no program can set back, so unchanged ones are not read. The diff is
Myers' with a bound: `difflib` can take cubic time, and an agent chooses the text. A file that
differs too much is shown as replaced.
"""

import contextlib
import difflib
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from evaljournal.replay.state.workspaces import Change, FileChange
from evaljournal.runner.calls.workspaces.original import Original
from evaljournal.runner.calls.workspaces.trees import MAX_FILES, Places, TreeEntry, open_entry, printable_path, walk
from evaljournal.runner.secrets.masking import mask

MAX_LISTED: Final = 1_000
MAX_HASHED: Final = 256 << 20
"""Maximum bytes of all changed files together that are hashed."""
MAX_TEXT: Final = 256 << 10
"""Maximum bytes of a file in the diff."""
MAX_DIFF: Final = 512 << 10
"""Maximum characters of the diff."""
_MAX_EDITS: Final = 400
_CONTEXT: Final = 3


def changes_of(path: Path, original: Original, places: Places) -> dict[str, Any]:
    """Return what has changed in a workspace since its files were at these places, as it is recorded."""
    inspection = _Inspection(original, places)
    inspection.read(path)
    inspection.add_deleted()
    return inspection.result()


class _Inspection:
    def __init__(self, original: Original, places: Places) -> None:
        self._original, self._places = original, places
        self._present: set[str] = set()
        self._files: list[FileChange] = []
        self._unlisted = 0
        self._problems: list[str] = []
        self._to_hash = MAX_HASHED
        self._diff: list[str] = []
        self._diff_size, self._omitted = 0, 0

    def read(self, path: Path) -> None:
        for number, entry in enumerate(walk(path)):
            if isinstance(entry, str):
                if len(self._problems) < MAX_LISTED:
                    self._problems.append(entry)
            elif number >= MAX_FILES:
                self._problems.append(f"only the first {MAX_FILES:,} files were read")
                return
            else:
                self._present.add(entry.path)
                self._compare(entry)

    def _compare(self, entry: TreeEntry) -> None:
        status, old = entry.status, self._original.index.get(entry.path)
        mode = status.st_mode
        if stat.S_ISDIR(mode) and (old is None or stat.S_ISDIR(old.mode)):
            return  # An empty directory is no change.
        if self._places.get(entry.path) == (status.st_ino, status.st_ctime_ns):
            return
        sha256, text, kind = "", None, "other"
        if stat.S_ISREG(mode):
            kind = "file"
            sha256, text = self._read_file(entry)
        elif stat.S_ISLNK(mode):
            kind = "link"
            with contextlib.suppress(OSError):
                target = os.fsencode(os.readlink(entry.name, dir_fd=entry.parent))
                sha256, text = hashlib.sha256(target).hexdigest(), target
        is_executable = bool(mode & stat.S_IXUSR)
        is_same_kind = old is not None and stat.S_IFMT(old.mode) == stat.S_IFMT(mode)
        if old is not None and is_same_kind and sha256 == old.sha256 and is_executable == bool(old.mode & stat.S_IXUSR):
            return
        self._add(entry.path, "added" if old is None else "modified", status.st_size, sha256, kind)
        old_text = self._old_text(entry.path) if old is not None else b""
        if sha256 and (old is None or sha256 != old.sha256):
            self._add_diff(entry.path, old_text, text, is_new=old is None)

    def _read_file(self, entry: TreeEntry) -> tuple[str, bytes | None]:
        """Return the hash of a file, and its content if it is short; an empty hash if it is too long or unreadable."""
        size = entry.status.st_size
        if size > self._to_hash:
            return "", None
        try:
            with open(open_entry(entry), "rb") as file:
                content = file.read(min(size, MAX_TEXT) + 1)
                value = hashlib.sha256(content)
                left = self._to_hash - len(content)
                while left > 0 and (chunk := file.read(min(left, 1 << 20))):  # It may still be growing.
                    value.update(chunk)
                    left -= len(chunk)
        except OSError as exc:
            self._problems.append(f"{printable_path(entry.path)} cannot be read: {exc.strerror}")
            return "", None
        self._to_hash = left
        return value.hexdigest(), content if len(content) <= MAX_TEXT else None

    def _old_text(self, path: str) -> bytes | None:
        fact = self._original.index[path]
        if fact.target:
            return os.fsencode(fact.target)
        if not fact.sha256 or fact.size > MAX_TEXT:
            return None
        return self._original.content(path)

    def add_deleted(self) -> None:
        """Add the files of the original that are no longer there."""
        for path, fact in self._original.index.items():
            if fact.sha256 and path not in self._present and not path.startswith(".git/"):
                self._add(path, "deleted", 0, "", "link" if fact.target else "file")
                self._add_diff(path, self._old_text(path), b"", is_deleted=True)

    def _add(self, path: str, change: Change, size: int, sha256: str, kind: str) -> None:
        if len(self._files) >= MAX_LISTED:
            self._unlisted += 1
            return
        file: FileChange = {"path": printable_path(path), "change": change, "bytes": size, "sha256": sha256}
        self._files.append(file if kind == "file" else {**file, "kind": kind})

    def _add_diff(
        self, path: str, old: bytes | None, new: bytes | None, *, is_new: bool = False, is_deleted: bool = False
    ) -> None:
        name = printable_path(path)
        name = name if name.isprintable() else json.dumps(name)  # A line break would begin another file.
        head = [f"--- {'/dev/null' if is_new else f'a/{name}'}", f"+++ {'/dev/null' if is_deleted else f'b/{name}'}"]
        old_lines, new_lines = _lines(old), _lines(new)
        if old_lines is None or new_lines is None:
            lines = [*head, "Binary files or files that are too large differ"]
        else:
            lines = [*head, *hunks(old_lines, new_lines)]
        size = sum(len(line) + 1 for line in lines)
        if self._diff_size + size > MAX_DIFF:
            self._omitted += 1
            return
        self._diff_size += size
        self._diff += lines

    def result(self) -> dict[str, Any]:
        """Return what is recorded; what was left out is counted."""
        value: dict[str, Any] = {"files": self._files, "diff": mask("\n".join([*self._diff, ""])) if self._diff else ""}
        left_out = {"unlisted_files": self._unlisted, "omitted_diffs": self._omitted, "problems": self._problems[:20]}
        value |= {name: item for name, item in left_out.items() if item}
        return orjson.loads(orjson.dumps(value))  # type: ignore[no-any-return]


def _lines(content: bytes | None) -> list[str] | None:
    """Return the lines of a text; None if it is none."""
    if content is None or b"\0" in content:
        return None
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError:
        return None
    if lines[-1] == "":
        return lines[:-1]
    lines[-1] += "\n\\ No newline at end of file"
    return lines


class _Blocks(difflib.SequenceMatcher[str]):
    """Groups the changes between equal blocks, which it does not search itself."""

    def __init__(self, old: list[str], new: list[str]) -> None:
        super().__init__(None, old, new, autojunk=False)
        self._blocks = [*_equal_blocks(old, new), (len(old), len(new), 0)]

    def get_matching_blocks(self) -> list[difflib.Match]:
        return [difflib.Match(*block) for block in self._blocks]


def hunks(old: list[str], new: list[str]) -> Iterator[str]:
    """Yield the hunks of a unified diff."""
    for group in _Blocks(old, new).get_grouped_opcodes(_CONTEXT):
        first, last = group[0], group[-1]
        yield f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@"
        for tag, start, end, new_start, new_end in group:
            if tag == "equal":
                yield from (f" {line}" for line in old[start:end])
                continue
            yield from (f"-{line}" for line in old[start:end])
            yield from (f"+{line}" for line in new[new_start:new_end])


def _range(start: int, end: int) -> str:
    length = end - start
    return f"{start + bool(length)},{length}"


def _equal_blocks(old: list[str], new: list[str]) -> list[tuple[int, int, int]]:
    """Return the runs of equal lines, as (old, new, length); none between the first and the last change if there are many."""
    shorter = min(len(old), len(new))
    prefix = next((index for index in range(shorter) if old[index] != new[index]), shorter)
    remainder = shorter - prefix
    suffix = next((index for index in range(remainder) if old[-1 - index] != new[-1 - index]), remainder)
    inner = _myers(old[prefix : len(old) - suffix], new[prefix : len(new) - suffix])
    blocks = [(0, 0, prefix), *((prefix + x, prefix + y, length) for x, y, length in inner)]
    blocks.append((len(old) - suffix, len(new) - suffix, suffix))
    return [block for block in blocks if block[2]]


def _myers(old: list[str], new: list[str]) -> list[tuple[int, int, int]]:
    """Return the equal runs of a shortest edit; none if it has more than `_MAX_EDITS` lines."""
    ends, trace = {1: 0}, list[Mapping[int, int]]()
    for edits in range(min(_MAX_EDITS, len(old) + len(new)) + 1):
        trace.append(dict(ends))
        for diagonal in range(-edits, edits + 1, 2):
            x = _start(ends, edits, diagonal)
            y = x - diagonal
            while x < len(old) and y < len(new) and old[x] == new[y]:
                x, y = x + 1, y + 1
            ends[diagonal] = x
            if x >= len(old) and y >= len(new):
                return _runs(trace, len(old), len(new))
    return []


def _start(ends: Mapping[int, int], edits: int, diagonal: int) -> int:
    goes_down = diagonal == -edits or (diagonal != edits and ends[diagonal - 1] < ends[diagonal + 1])
    return ends[diagonal + 1] if goes_down else ends[diagonal - 1] + 1


def _runs(trace: list[Mapping[int, int]], x: int, y: int) -> list[tuple[int, int, int]]:
    runs: list[tuple[int, int, int]] = []
    for edits in range(len(trace) - 1, -1, -1):
        diagonal = x - y
        start = _start(trace[edits], edits, diagonal)
        if x > start:
            runs.append((start, start - diagonal, x - start))
        goes_down = start == trace[edits].get(diagonal + 1) and (
            diagonal == -edits or (diagonal != edits and trace[edits][diagonal - 1] < trace[edits][diagonal + 1])
        )
        x, y = (start, start - diagonal - 1) if goes_down else (start - 1, start - diagonal)
    return runs[::-1]
