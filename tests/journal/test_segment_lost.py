"""A segment that another process deletes, replaces or truncates while it is being written."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from journal import Durability, JournalError, read, segment_file, verify, writing
from journal.errors import SegmentLost
from journal.events import Noted
from journal.files import Files
from tests.journal.samples import FLEETING, fake_clock, inline, segment, session, started


@pytest.fixture(autouse=True)
def _check_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_file, "CHECK_INTERVAL", 0.0)


def truncate_last_line(file: Path) -> None:
    os.truncate(file, file.read_bytes()[:-1].rfind(b"\n") + 1)


def truncate_in_a_line(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 5)


def replace_by_a_copy(file: Path) -> None:
    shutil.copy(file, file.with_name("copy"))
    file.with_name("copy").replace(file)


CHANGES: dict[Callable[[Path], None], tuple[int, str | None]] = {
    Path.unlink: (0, None),
    truncate_last_line: (3, "resume"),
    truncate_in_a_line: (3, "resume"),
    lambda file: os.truncate(file, 0): (0, None),
    replace_by_a_copy: (4, "resume"),
}
"""Change → last record that is left, and the hint."""


async def written_around(path: Path, change: Callable[[Path], None], durability: Durability, files: Files = FLEETING) -> None:
    """Write four records, let another process change their segment, and write another one."""
    async with writing(path, new=True, clock=fake_clock(), files=files, in_thread=inline, durability=durability) as journal:
        for event in (started(), session(), Noted(name="a", value=1)):
            await journal.wait_durable(journal.append(event).seq)
        change(segment(path))
        await journal.wait_durable(journal.append(Noted(name="b", value=1)).seq)


@pytest.mark.parametrize("durability", ["sync", "os"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_segment_is_noticed(path: Path, change: Callable[[Path], None], durability: Durability) -> None:
    """The writer stops, writes nothing more, and names the file, the last intact record and what helps."""
    intact, hint = CHANGES[change]

    with pytest.raises(SegmentLost, match=rf"{segment(path).name} was ") as caught:
        trio.run(written_around, path, change, durability)
    assert (segment(path).name, intact, hint) == (caught.value.file, caught.value.intact, caught.value.hint)
    if hint == "resume":
        assert intact == len(list(read(path)))
        assert verify(path).ok
        trio.run(lambda: _resumed(path))
        assert verify(path).ok


async def _resumed(path: Path) -> None:
    async with writing(path, new=False, clock=fake_clock(), files=FLEETING, in_thread=inline) as journal:
        journal.append(session(2))


def test_a_segment_that_is_lost_before_the_end(path: Path) -> None:
    """A segment that is deleted after the last record is noticed when the journal is closed."""

    async def main() -> None:
        async with writing(path, new=True, clock=fake_clock(), files=FLEETING, in_thread=inline) as journal:
            await journal.wait_durable(journal.append(started()).seq)
            segment(path).unlink()

    with pytest.raises(SegmentLost):
        trio.run(main)


async def with_two_segments(path: Path, change: Callable[[Path], None]) -> None:
    """Write until there is a second segment, let another process change it, and write another record."""
    async with writing(path, new=True, clock=fake_clock(), files=FLEETING, in_thread=inline, roll_at=1_000) as journal:
        journal.append(started())
        journal.append(session())
        while not segment(path, 2).exists():
            await journal.wait_durable(journal.append(Noted(name="a", value=1)).seq)
        change(segment(path, 2))
        await journal.wait_durable(journal.append(Noted(name="b", value=1)).seq)


def test_earlier_segments_are_kept(path: Path) -> None:
    """If the second segment is deleted, the records of the first are left, and can be resumed."""
    with pytest.raises(SegmentLost) as caught:
        trio.run(with_two_segments, path, Path.unlink)
    assert (segment(path, 2).name, "resume") == (caught.value.file, caught.value.hint)
    assert caught.value.intact == len(list(read(path)))


def test_an_empty_later_segment_needs_a_salvage(path: Path) -> None:
    """If the second segment is truncated to nothing, the journal is damaged, and the first can be salvaged."""
    with pytest.raises(SegmentLost) as caught:
        trio.run(with_two_segments, path, lambda file: os.truncate(file, 0))
    assert "salvage" == caught.value.hint
    assert isinstance(verify(path).problem, JournalError)
