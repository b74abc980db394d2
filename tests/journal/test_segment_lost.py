"""A segment that another process deletes, replaces or truncates while it is being written."""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from evaljournal.journal import Durability, read, salvage, verify, writing
from evaljournal.journal.disk.files import Files
from evaljournal.journal.errors import JournalDamaged, SegmentLost
from evaljournal.journal.events import Noted
from evaljournal.journal.writers import segment_file
from tests.journal.samples import UNSYNCED_DISK, fake_clock, inline, segment, session, started

pytestmark = pytest.mark.usefixtures("frequent_checks")


def truncate_last_line(file: Path) -> None:
    os.truncate(file, file.read_bytes()[:-1].rfind(b"\n") + 1)


def truncate_in_a_line(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 5)


def replace_by_a_copy(file: Path) -> None:
    shutil.copy(file, file.with_name("copy"))
    file.with_name("copy").replace(file)


def rename(file: Path) -> None:
    file.rename(file.with_name("renamed"))


def move_the_directory(file: Path) -> None:
    file.parent.rename(file.parent.with_name("moved"))


def remove_the_lock(file: Path) -> None:
    (file.parent / "LOCK").unlink()


CHANGES: dict[Callable[[Path], None], tuple[int, str | None]] = {
    Path.unlink: (0, None),
    truncate_last_line: (3, "resume"),
    truncate_in_a_line: (3, "resume"),
    lambda file: os.truncate(file, 0): (0, None),
    replace_by_a_copy: (4, "resume"),
    move_the_directory: (4, "move_back"),
    rename: (4, "move_back"),
    remove_the_lock: (4, "resume"),
}
"""Change → last record that is left, and the hint."""


async def write_around(
    path: Path, change: Callable[[Path], None], durability: Durability, files: Files = UNSYNCED_DISK
) -> None:
    """Write four records, let another process change their segment, and write two others."""
    async with writing(path, new=True, clock=fake_clock(), files=files, in_thread=inline, durability=durability) as journal:
        for event in (started(), session(), Noted(name="a", value=1)):
            await journal.wait_durable(journal.append(event).seq)
        change(segment(path))
        for name in ("b", "c"):
            await journal.wait_durable(journal.append(Noted(name=name, value=1)).seq)


@pytest.mark.parametrize("durability", ["sync", "os"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_segment_is_detected(path: Path, change: Callable[[Path], None], durability: Durability) -> None:
    """The writer stops, writes nothing more, and the error has the file, the last intact record and a hint."""
    intact, hint = CHANGES[change]

    with pytest.raises(SegmentLost, match=r"(journal-000001\.jsonl|LOCK) was ") as caught:
        trio.run(write_around, path, change, durability)
    assert (segment(path).name, intact, hint) == (caught.value.file, caught.value.durable_seq, caught.value.hint)
    if hint == "resume":
        assert intact == len(list(read(path)))
        assert verify(path).ok
        trio.run(lambda: _resume(path))
        assert verify(path).ok


async def _resume(path: Path) -> None:
    async with writing(path, new=False, clock=fake_clock(), files=UNSYNCED_DISK, in_thread=inline) as journal:
        journal.append(session(2))


def test_a_truncated_segment_that_was_written_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If lines were written before the truncation was detected, a resume would fail: the hint is to salvage."""
    monkeypatch.setattr(segment_file, "CHECK_INTERVAL", 60.0)

    with pytest.raises(SegmentLost) as caught:
        trio.run(write_around, path, truncate_in_a_line, "sync")
    assert (3, "salvage") == (caught.value.durable_seq, caught.value.hint)
    with pytest.raises(JournalDamaged):
        trio.run(_resume, path)
    saved = trio.run(partial(salvage, path, path.with_name("new"), files=UNSYNCED_DISK))
    assert (3, 2) == (saved.kept, saved.lost)  # Without the record of the file itself.


@pytest.mark.parametrize("change", [remove_the_lock, move_the_directory, Path.unlink])
def test_a_change_is_detected_while_nothing_is_written(path: Path, change: Callable[[Path], None]) -> None:
    """Without records, the files are checked every few seconds, and the block is cancelled."""

    async def main() -> None:
        async with writing(path, new=True, clock=fake_clock(), files=UNSYNCED_DISK, in_thread=inline) as journal:
            await journal.wait_durable(journal.append(started()).seq)
            await trio.sleep(600)
            change(segment(path))
            with trio.fail_after(5):
                await trio.sleep_forever()

    with pytest.raises(SegmentLost):
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_directory_that_is_moved_before_a_file_is_created(path: Path) -> None:
    """A run whose directory is moved before its first segment exists is lost, too."""

    async def main() -> None:
        async with writing(path, new=True, clock=fake_clock(), files=UNSYNCED_DISK, in_thread=inline) as journal:
            move_the_directory(segment(path))
            journal.append(started())

    with pytest.raises(SegmentLost) as caught:
        trio.run(main)
    assert ("moved", "move_back") == (caught.value.change, caught.value.hint)


def test_a_segment_that_is_lost_before_the_end(path: Path) -> None:
    """A segment that is deleted after the last record is detected when the journal is closed."""

    async def main() -> None:
        async with writing(path, new=True, clock=fake_clock(), files=UNSYNCED_DISK, in_thread=inline) as journal:
            await journal.wait_durable(journal.append(started()).seq)
            segment(path).unlink()

    with pytest.raises(SegmentLost):
        trio.run(main)


@pytest.mark.parametrize(("change", "hint"), [(Path.unlink, "resume"), (lambda file: os.truncate(file, 0), "salvage")])
def test_earlier_segments_are_kept(path: Path, change: Callable[[Path], None], hint: str) -> None:
    """If the second segment is deleted, the first can be resumed; if it is truncated to nothing, it can be salvaged."""

    async def main() -> None:
        async with writing(path, new=True, clock=fake_clock(), files=UNSYNCED_DISK, in_thread=inline, roll_at=1_000) as journal:
            journal.append(started())
            journal.append(session())
            while not segment(path, 2).exists():
                await journal.wait_durable(journal.append(Noted(name="a", value=1)).seq)
            change(segment(path, 2))
            await journal.wait_durable(journal.append(Noted(name="b", value=1)).seq)

    with pytest.raises(SegmentLost) as caught:
        trio.run(main)
    assert (segment(path, 2).name, hint) == (caught.value.file, caught.value.hint)
    assert ("resume" == hint, caught.value.durable_seq) == ((result := verify(path)).ok, result.records)
