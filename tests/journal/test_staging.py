"""A copy of a run is there whole, or not at all: whatever the disk says, and whenever the power fails."""

import errno
import itertools
import random
from pathlib import Path

import pytest
import trio

from journal import Salvaged, salvage, segments, verify
from journal.errors import DiskFull, JournalError, JournalExists, JournalLocked
from journal.files import DISK
from journal.staging import staged_run
from tests.journal.disk import PowerCut, SimulatedDisk
from tests.journal.samples import inline, session, started, trial, write
from tests.journal.test_faults import CALLS, Fault

SOURCE, TARGET, PLACE = Path("/runs/old"), Path("/runs/new"), Path("/runs/.new.new")


def damaged() -> SimulatedDisk:
    """Give a disk with a run on it in which a record in the middle is damaged, and which leaves something out."""
    disk = SimulatedDisk()
    large = "v" * (300 << 10)

    async def main() -> None:
        events = [started(), session(), *trial("a"), *trial("b"), *trial("c", output=large)]
        await write(SOURCE, events, files=disk, in_thread=inline)

    trio.run(main)
    path = segments.file(SOURCE, 1)
    inode = dict(disk.files())[path]
    lines = bytes(inode.shown).splitlines(keepends=True)
    lines[8] = lines[8].replace(b"b", b"B")
    disk.put(path, b"".join(lines))
    return disk


def saved(disk: SimulatedDisk) -> Salvaged:
    """Salvage it."""

    async def main() -> Salvaged:
        return await salvage(SOURCE, TARGET, files=disk, in_thread=inline)

    return trio.run(main)


def content(disk: SimulatedDisk) -> dict[str, bytes]:
    """Tell what is on a disk, the locks left out."""
    return {path: bytes(inode.shown) for path, inode in disk.files() if not path.endswith("/LOCK")}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", CALLS)
def test_where_the_disk_refuses_nothing_is_left(call: str, error: int) -> None:
    """Whichever call fails, the copy is whole or there is nothing of it, it is said what to do, and to try again works."""
    for n in itertools.count(1):
        disk = damaged()
        before = content(disk)
        disk.before = fault = Fault(call, n, error)
        refused: JournalError | None = None
        try:
            saved(disk)
        except JournalError as exc:
            refused = exc
        if not fault.fired:
            break
        if refused is not None:
            assert before == content(disk), n
            assert (TARGET, "free_space" if isinstance(refused, DiskFull) else "choose_path") == (refused.path, refused.hint), n
            assert error == errno.ENOSPC or not isinstance(refused, DiskFull)
            saved(disk)
        assert verify(TARGET, files=disk).holds, n
    assert n > 1 or call == "ftruncate"


@pytest.mark.parametrize("seed", range(3))
def test_whenever_the_power_fails_it_is_whole_or_not_there(seed: int) -> None:
    """After a power cut at any call, or a kill, there is no run at the place, or a whole one; and the copy can be made."""
    chance = random.Random(seed)
    for n in itertools.count(1):
        disk = damaged()
        left = n

        def count(_: str) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                raise PowerCut

        disk.before = count
        is_done = False
        try:
            saved(disk)
            is_done = True
        except (PowerCut, BaseExceptionGroup):
            pass
        for after in (disk.unplugged(chance), disk.killed()):
            is_there = after.exists(str(TARGET))
            assert is_there or not is_done
            if not is_there:
                saved(after)
                assert not after.exists(str(PLACE)), n
            assert verify(TARGET, files=after).holds, n
        if is_done:
            break
    assert n > 20


async def test_what_another_process_makes_is_left_to_it(tmp_path: Path) -> None:
    """Two who make the same copy do not disturb each other: the second is told, and nothing of the first is taken away."""
    (tmp_path / ".new.new").mkdir()
    lock = DISK.open(str(tmp_path / ".new.new" / "LOCK"), 0o102)
    try:
        assert DISK.lock(lock)
        with pytest.raises(JournalLocked, match="/new is being created by another process"):
            async with staged_run(tmp_path / "new", files=DISK, in_thread=inline):
                pass
    finally:
        DISK.close(lock)

    assert (tmp_path / ".new.new" / "LOCK").exists()


def test_what_comes_into_being_meanwhile_is_kept(tmp_path: Path) -> None:
    """A directory that somebody makes at the place while the copy is made stays as it is, and the copy goes."""

    async def main() -> None:
        async with staged_run(tmp_path / "new", files=DISK, in_thread=inline) as place:
            place.mkdir()
            (tmp_path / "new").mkdir()

    with pytest.raises(JournalExists, match="was created by another process in the meantime"):
        trio.run(main)

    assert [tmp_path / "new"] == list(tmp_path.iterdir())
