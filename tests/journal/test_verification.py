"""Verification: an unchanged journal passes, and every change is detected."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from evaljournal.journal import Event, Verification, read, verify
from evaljournal.journal.errors import HeadMissing, InvalidRecord, JournalDamaged, JournalError, UnknownFormat
from evaljournal.journal.events import AttemptStarted, Noted, SegmentOpened, SegmentSealed, TrialCompleted
from tests.journal.samples import (
    RUN,
    complete_run,
    cut_tail,
    enqueued,
    finished,
    flip,
    forge,
    lines_of,
    opened,
    overwrite,
    segment,
    session,
    started,
    trial,
    write_sync,
)

LONG = "v" * (300 << 10)


def rewrite(path: Path, lines: list[bytes]) -> None:
    """Replace the lines of a journal with one segment."""
    overwrite(segment(path), b"".join(lines))


def is_detected(path: Path, *, as_damage: bool = False) -> bool:
    """Return whether a change to a closed journal is detected, as damage or also as an incomplete last line."""
    try:
        result = verify(path)
    except UnknownFormat:
        return True  # The first line names another format.
    return not result.ok or (result.unfinished_bytes > 0 and not as_damage)


def test_unchanged_journal_passes(tmp_path: Path) -> None:
    """An unchanged journal passes, and the result has its figures."""
    records = write_sync(tmp_path / "run", [*complete_run()[:-1], Noted(name="a", value=LONG), finished(2)], roll_at=1000)
    last = list(read(tmp_path / "run"))[-1]

    assert verify(tmp_path / "run") == Verification(
        path=tmp_path / "run",
        run=RUN,
        records=last.seq,
        segments=last.segment,
        blobs=1,
        head=last.h,
        unfinished_bytes=0,
        zero_bytes=0,
        unconfirmed_records=0,
        expected_at=None,
        problem=None,
    )
    assert last.seq > len(records) + 2


def test_zeroed_end_is_reported(tmp_path: Path) -> None:
    """Zeroing the end of a sealed journal, seal included, is not damage; its length is reported, and a kept head reveals it."""
    write_sync(tmp_path / "run", complete_run(20))
    head, file = verify(tmp_path / "run").head, segment(tmp_path / "run")
    data = file.read_bytes()
    overwrite(file, data[:-4096] + bytes(4096))
    file.chmod(0o400)
    result = verify(tmp_path / "run")
    start = data.rfind(b"\n", 0, -4096) + 1

    assert (True, len(data) - start, 4096) == (result.ok, result.unfinished_bytes, result.zero_bytes)
    assert result.unconfirmed_records >= 1
    assert isinstance(verify(tmp_path / "run", expect_head=head).problem, HeadMissing)


def test_open_journal_passes(tmp_path: Path) -> None:
    """A journal without a seal, or with an incomplete last line, passes; records that no other one confirms are counted."""
    write_sync(tmp_path / "run", complete_run())
    cut_tail(segment(tmp_path / "run"), 1)
    lines = lines_of(tmp_path / "run")

    assert (True, 1) == ((result := verify(tmp_path / "run")).ok, result.unconfirmed_records)
    rewrite(tmp_path / "run", [*lines[:-1], lines[-1][:40]])
    result = verify(str(tmp_path / "run"))

    assert (True, len(lines) - 1, 40) == (result.ok, result.records, result.unfinished_bytes)


@pytest.mark.parametrize("mask", [0x01, 0x20, 0x80])
def test_every_flipped_bit_is_detected(tmp_path: Path, mask: int) -> None:
    """A flipped bit anywhere in a closed journal is detected; before the last line, as damage."""
    write_sync(tmp_path / "run", [started(), session(), *trial("a")], roll_at=900)
    last = list(read(tmp_path / "run"))[-1]
    undetected: list[tuple[int, int]] = []
    for number in range(1, last.segment + 1):
        file = segment(tmp_path / "run", number)
        data = file.read_bytes()
        for byte in range(number + mask % 7, len(data), 7):
            flip(file, byte, mask)
            if not is_detected(tmp_path / "run", as_damage=(number, byte) < (last.segment, last.offset)):
                undetected.append((number, byte))
            overwrite(file, data)

    assert [] == undetected
    assert verify(tmp_path / "run").ok


EDITS: dict[str, Callable[[list[bytes], int], list[bytes]]] = {
    "removed": lambda lines, index: lines[:index] + lines[index + 1 :],
    "doubled": lambda lines, index: lines[: index + 1] + lines[index:],
    "swapped": lambda lines, index: [*lines[:index], lines[index + 1], lines[index], *lines[index + 2 :]],
    "moved to the end": lambda lines, index: [*lines[:index], *lines[index + 1 :], lines[index]],
    "emptied": lambda lines, index: [*lines[:index], b"\n", *lines[index + 1 :]],
    "joined to the next": lambda lines, index: [*lines[:index], lines[index][:-1], *lines[index + 1 :]],
    "replaced by zeros": lambda lines, index: [*lines[:index], b"\0" * len(lines[index]), *lines[index + 1 :]],
}


@pytest.mark.parametrize("edit", EDITS)
def test_every_edited_line_is_detected(tmp_path: Path, edit: str) -> None:
    """A removed, repeated, swapped or edited line is damage, and the error has its position."""
    write_sync(tmp_path / "run", complete_run())
    lines = lines_of(tmp_path / "run")
    for index in range(len(lines) - 2):
        rewrite(tmp_path / "run", EDITS[edit](lines, index))
        problem = verify(tmp_path / "run").problem

        assert isinstance(problem, JournalDamaged)
        assert problem.seq == (index + 2 if edit == "doubled" else index + 1)


@pytest.mark.parametrize("edit", EDITS)
def test_edited_end_is_detected(tmp_path: Path, edit: str) -> None:
    """A change of the last two lines of a closed journal is detected, even if no confirmed record is lost."""
    write_sync(tmp_path / "run", complete_run())
    lines = lines_of(tmp_path / "run")
    rewrite(tmp_path / "run", EDITS[edit](lines, len(lines) - 2))

    assert is_detected(tmp_path / "run")


def exchange(first: Path, second: Path) -> None:
    """Exchange the content of two files."""
    data = first.read_bytes()
    overwrite(first, second.read_bytes())
    overwrite(second, data)


@pytest.mark.parametrize(
    ("number", "change", "check"),
    [
        *((number, Path.unlink, f"journal-{number:06}.jsonl is missing") for number in (1, 2, 3)),
        *((2, partial(os.truncate, length=length), "") for length in (0, 1, 400)),
        (2, lambda file: os.truncate(file, file.stat().st_size - 1), ""),
        (2, partial(cut_tail, lines=1), "the file is not sealed, but another one follows"),
        (2, lambda file: exchange(file, segment(file.parent, 3)), ""),
        (2, lambda file: exchange(file, segment(file.parent.with_name("other"), 2)), "the file belongs to another run"),
    ],
)
def test_changed_files_are_detected(tmp_path: Path, number: int, change: Callable[[Path], None], check: str) -> None:
    """A segment before the last must be there, complete, sealed, in its place and of this run."""
    for name in ("run", "other"):
        write_sync(tmp_path / name, complete_run(4), roll_at=1000, run=RUN if name == "run" else RUN[::-1])
    file = segment(tmp_path / "run", number)
    file.chmod(0o600)
    change(file)
    problem = verify(tmp_path / "run").problem

    assert isinstance(problem, JournalDamaged)
    assert check in str(problem)


def test_removed_end_needs_a_kept_hash(tmp_path: Path) -> None:
    """Complete lines removed from the end are detected only with a head that the user has kept."""
    write_sync(tmp_path / "run", complete_run())
    head = verify(tmp_path / "run").head
    cut_tail(segment(tmp_path / "run"), 3)

    assert verify(tmp_path / "run").ok
    result = verify(tmp_path / "run", expect_head=head)

    assert isinstance(result.problem, HeadMissing)
    assert (head, result.records, result.head) == (result.problem.expected, result.problem.seq, result.problem.head)
    assert result.expected_at is None


def test_kept_hash_is_found_where_it_was(tmp_path: Path) -> None:
    """A kept head, in upper or lower case, is found in a longer journal, with its record number."""
    write_sync(tmp_path / "run", complete_run())
    first = verify(tmp_path / "run")
    write_sync(tmp_path / "run", [session(2)], new=False)
    result = verify(tmp_path / "run", expect_head=first.head.upper())

    assert (True, first.records, first.records + 3) == (result.ok, result.expected_at, result.records)


@pytest.mark.parametrize("head", ["", "nonsense"])
def test_invalid_hash_is_rejected(tmp_path: Path, head: str) -> None:
    """An invalid hash is rejected, also an empty one, as from an unset variable."""
    write_sync(tmp_path / "run", complete_run())

    with pytest.raises(JournalError, match="is not the hash of a record"):
        verify(tmp_path / "run", expect_head=head)


def test_damage_comes_before_a_missing_head(tmp_path: Path) -> None:
    """In a damaged journal, a missing head is not reported."""
    write_sync(tmp_path / "run", complete_run())
    head = verify(tmp_path / "run").head
    flip(segment(tmp_path / "run"), 700)

    assert isinstance(verify(tmp_path / "run", expect_head=head).problem, JournalDamaged)


@pytest.mark.parametrize(
    "event",
    [
        started(),
        session(1),
        session(3),
        finished(),
        enqueued("a"),
        AttemptStarted(trial="b", attempt=1, slot=0),
        AttemptStarted(trial="a", attempt=2, slot=0),
        TrialCompleted(trial="a", attempts=0),
    ],
    ids=lambda event: type(event).__name__,
)
@pytest.mark.parametrize("last", [True, False])
def test_broken_rules_are_not_damage(tmp_path: Path, event: Event, *, last: bool) -> None:
    """A correctly hashed record that breaks a rule is not reported as damage."""
    forge(tmp_path, [opened(), started(), session(), enqueued("a"), event])
    if not last:
        forge(tmp_path, [Noted(name="a", value=1)], d=5)
    result = verify(tmp_path)

    assert isinstance(result.problem, InvalidRecord)
    assert 5 == result.problem.seq


@pytest.mark.parametrize(
    "fields",
    [
        {"name": 5},
        {"name": None},
        {"trial": 5},
        {"attempt": "1"},
        {"attempt": 1.5},
        {"at": 5},
        {"at": None},
        {"at": "case-1"},
        {"t": "0.5"},
        {"t": None},
        {"d": "3"},
        {"d": None},
        {"d": 1.5},
        {"d": -1},
        {"d": 4},
        {"d": 99},
        {"seq": 4.0},
        {"seq": "4"},
        {"seq": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("last", [True, False])
def test_wrong_types_fail(tmp_path: Path, fields: dict[str, Any], *, last: bool) -> None:
    """A correctly hashed record with a wrong type, or a wrong `d` or `seq`, does not pass."""
    forge(tmp_path, [opened(), started(), session(), {"type": "noted", "name": "a", "value": 1, **fields}])
    if not last:
        forge(tmp_path, [Noted(name="a", value=1)], d=4)
    result = verify(tmp_path)

    assert not result.ok
    assert 3 == result.records


@pytest.mark.parametrize(
    "event",
    [
        SegmentOpened(format="evaljournal", version="2.0", run=RUN, segment=1),
        SegmentSealed(run=RUN, segment=1, records=3, bytes=1, sha256=""),
        SegmentSealed(run=RUN, segment=2, records=3, bytes=1, sha256=""),
    ],
)
def test_misplaced_file_events_fail(tmp_path: Path, event: Event) -> None:
    """A segment start in the middle of a segment, or a seal with a wrong count, does not pass."""
    forge(tmp_path, [opened(), started(), session(), event, Noted(name="a", value=1)], d=3)
    forge(tmp_path, [Noted(name="b", value=1)], d=5)

    assert not verify(tmp_path).ok


def test_digests_of_segments_are_checked(tmp_path: Path) -> None:
    """A correctly hashed seal with another digest does not pass."""
    forge(tmp_path, [opened(), started()])
    size = sum(map(len, lines_of(tmp_path)))
    forge(tmp_path, [SegmentSealed(run=RUN, segment=1, records=2, bytes=size, sha256="0" * 64)], d=2)

    assert not verify(tmp_path).ok


def test_any_content_gives_a_result_or_a_journal_error(tmp_path: Path) -> None:
    """Whatever a file contains, verification returns a result or raises a journal error."""
    write_sync(tmp_path / "run", complete_run())
    lines = lines_of(tmp_path / "run")
    for junk in (b"\n", b"{}\n", b"[]\n", b"null\n", b'{"type":[]}\n', b"\xff\n", b"[" * 5000 + b"\n", lines[0], lines[-1]):
        for index in (0, 1, 5, len(lines)):
            rewrite(tmp_path / "run", [*lines[:index], junk, *lines[index:]])
            try:
                result = verify(tmp_path / "run")
            except JournalError:
                continue

            assert not result.ok or result.unfinished_bytes
