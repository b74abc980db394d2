"""What an attempt has changed in its workspace: the files with hashes, and a unified diff.

Changed files are found by inode and ctime, which no program can set back, so unchanged ones are not read. The diff is that of
`difflib` with a bound: equal lines can take it cubic time, and an agent chooses the text. What differs too much is shown as
replaced.
"""

import difflib
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs

from evaljournal.replay.state.workspaces import Change, FileChange
from evaljournal.runner.calls.workspaces.original import Original
from evaljournal.runner.calls.workspaces.trees import MAX_FILES, Fact, Places, TreeEntry, open_file, printable_path, walk
from evaljournal.runner.secrets.masking import mask

MAX_LISTED: Final = 1_000
MAX_HASHED: Final = 256 << 20
"""Maximum bytes of all changed files together that are hashed."""
MAX_TEXT: Final = 256 << 10
"""Maximum bytes of a file in the diff."""
MAX_DIFF: Final = 512 << 10
"""Maximum characters of the diff."""
_MAX_PROBLEMS: Final = 20
_MAX_COMPARISONS: Final = 2_000_000
"""Maximum number of pairs of equal lines that are considered for the diff of a file; they take 0.2 s."""
_CONTEXT: Final = 3
_NOTHING: Final = Fact(0, 0, 0)


def changes_of(path: Path, original: Original, places: Places) -> dict[str, Any]:
    """Return what has changed in a workspace since its files were at these places, as it is recorded."""
    changes = _Changes()
    missing = {name: fact for name, fact in original.index.items() if fact.sha256 and not name.startswith(".git/")}

    for number, entry in enumerate(walk(path, skipped=".git")):
        if isinstance(entry, str):
            changes.add_problem(entry)
        elif number >= MAX_FILES:
            changes.add_problem(f"only the first {MAX_FILES:,} files were read")
            break
        elif not stat.S_ISDIR(entry.status.st_mode):  # An empty directory is no change.
            old = missing.pop(entry.path, _NOTHING)
            if places.get(entry.path) != (entry.status.st_ino, entry.status.st_ctime_ns):
                new, text = changes.read(entry)
                if _kind_and_content(old) != _kind_and_content(new):
                    change: Change = "added" if old is _NOTHING else "modified"
                    changes.add(change, entry.path, old, new, (_old_text(original, entry.path, old), text))
    else:
        for name, fact in missing.items():
            nothing = fact._replace(size=0, sha256="")
            changes.add("deleted", name, fact, nothing, (_old_text(original, name, fact), b""))
    return changes.result()


@attrs.define
class _Changes:
    files: list[FileChange] = attrs.field(factory=list[FileChange])
    diff: list[str] = attrs.field(factory=list[str])
    unlisted_files: int = 0
    omitted_diffs: int = 0
    problems: list[str] = attrs.field(factory=list[str])
    _to_hash: int = MAX_HASHED
    _diff_size: int = 0

    def add_problem(self, problem: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem)

    def read(self, entry: TreeEntry) -> tuple[Fact, bytes | None]:
        """Return what is known about a file, and its content if it is short; an empty hash if it is too long or unreadable."""
        status, sha256, text = entry.status, "", None
        try:
            if stat.S_ISLNK(status.st_mode):
                text = os.fsencode(os.readlink(entry.name, dir_fd=entry.parent))
                sha256 = hashlib.sha256(text).hexdigest()
            elif stat.S_ISREG(status.st_mode) and status.st_size <= self._to_hash:
                with open(open_file(entry.name, parent=entry.parent), "rb") as file:
                    text = file.read(min(status.st_size, MAX_TEXT) + 1)
                    value = hashlib.sha256(text)
                    self._to_hash -= len(text)
                    while self._to_hash > 0 and (chunk := file.read(min(self._to_hash, 1 << 20))):  # It may still be growing.
                        value.update(chunk)
                        self._to_hash -= len(chunk)
                sha256, text = value.hexdigest(), text if len(text) <= MAX_TEXT else None
        except OSError as exc:
            self.add_problem(f"{printable_path(entry.path)} cannot be read: {exc.strerror}")
        return Fact(status.st_mode, status.st_size, status.st_ctime_ns, sha256), text

    def add(self, change: Change, path: str, old: Fact, new: Fact, texts: tuple[bytes | None, bytes | None]) -> None:
        """Add a file that is no longer as in the original; `texts` are its old and new content, None if that is not shown."""
        file: FileChange = {"path": printable_path(path), "change": change, "bytes": new.size, "sha256": new.sha256}
        if not stat.S_ISREG(new.mode):
            file["kind"] = "link" if stat.S_ISLNK(new.mode) else "other"
        if len(self.files) < MAX_LISTED:
            self.files.append(file)
        else:
            self.unlisted_files += 1
        # No diff if only the mode differs, or the content is unknown.
        if change == "deleted" or new.sha256 not in {"", old.sha256}:
            self._add_diff(path, change, *texts)

    def _add_diff(self, path: str, change: Change, old: bytes | None, new: bytes | None) -> None:
        name = printable_path(path)
        name = name if name.isprintable() else json.dumps(name)  # A line break would begin another file.
        lines = [f"--- {'/dev/null' if change == 'added' else f'a/{name}'}"]
        lines += [f"+++ {'/dev/null' if change == 'deleted' else f'b/{name}'}"]

        old_lines, new_lines = _lines(old), _lines(new)
        if old_lines is None or new_lines is None:
            lines += ["Binary files or files that are too large differ"]
        else:
            lines += hunks(old_lines, new_lines)

        size = sum(len(line) + 1 for line in lines)
        if self._diff_size + size > MAX_DIFF:
            self.omitted_diffs += 1
        else:
            self._diff_size += size
            self.diff += lines

    def result(self) -> dict[str, Any]:
        diff = mask("\n".join([*self.diff, ""])) if self.diff else ""
        left_out = {name: value for name in ("unlisted_files", "omitted_diffs", "problems") if (value := getattr(self, name))}
        return {"files": self.files, "diff": diff, **left_out}


def _kind_and_content(fact: Fact) -> tuple[int, str, int]:
    return stat.S_IFMT(fact.mode), fact.sha256, fact.mode & stat.S_IXUSR


def _old_text(original: Original, path: str, fact: Fact) -> bytes | None:
    if fact is _NOTHING or fact.target:
        return os.fsencode(fact.target)
    return original.content(path) if fact.size <= MAX_TEXT else None


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


class _BoundedMatcher(difflib.SequenceMatcher[str]):
    """Finds equal lines until it has made too many comparisons; then the remaining ones differ."""

    a: list[str]
    b2j: dict[str, list[int]]
    """Line of the new text → where it is; see the documentation of `difflib`."""
    _comparisons = 0

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> difflib.Match:
        self._comparisons += sum(1 + len(self.b2j.get(line, ())) for line in self.a[alo:ahi])
        if self._comparisons > _MAX_COMPARISONS:
            return difflib.Match(alo, blo, 0)
        return super().find_longest_match(alo, ahi, blo, bhi)


def hunks(old: list[str], new: list[str]) -> Iterator[str]:
    """Yield the hunks of a unified diff."""
    for group in _BoundedMatcher(None, old, new).get_grouped_opcodes(_CONTEXT):
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
