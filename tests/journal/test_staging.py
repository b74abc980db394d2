"""A copy of a run is created completely or not at all, whenever the disk or the power fails."""

import errno
import itertools
import random
from functools import partial
from pathlib import Path

import pytest
import trio

from evaljournal.journal import SalvageResult, salvage, verify
from evaljournal.journal.copies.staging import staged_run
from evaljournal.journal.disk import segments
from evaljournal.journal.disk.files import DISK
from evaljournal.journal.errors import DiskFull, JournalError, JournalExists, JournalLocked
from tests.journal.disk import PowerFailure, SimulatedDisk, power_failure
from tests.journal.samples import inline, session, started, trial, write_sync
from tests.journal.test_faults import CALLS, Fault

SOURCE, TARGET, STAGING = Path("/runs/old"), Path("/runs/new"), Path("/runs/.new.new")


def damaged_disk() -> SimulatedDisk:
    """Return a disk with a run that has a damaged record in the middle."""
    disk = SimulatedDisk()
    large = "v" * (300 << 10)
    write_sync(SOURCE, [started(), session(), *trial("a"), *trial("b"), *trial("c", output=large)], files=disk)
    path = segments.file(SOURCE, 1)
    inode = dict(disk.files())[path]
    lines = bytes(inode.visible).splitlines(keepends=True)
    lines[8] = lines[8].replace(b"b", b"B")
    disk.add_file(path, b"".join(lines))
    return disk


def salvage_run(disk: SimulatedDisk) -> SalvageResult:
    """Salvage the run."""
    return trio.run(partial(salvage, SOURCE, TARGET, files=disk, in_thread=inline))


def content(disk: SimulatedDisk) -> dict[str, bytes]:
    """Return the content of all files but locks."""
    return {path: bytes(inode.visible) for path, inode in disk.files() if not path.endswith("/LOCK")}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", CALLS)
def test_a_failing_disk_leaves_no_partial_copy(call: str, error: int) -> None:
    """Whichever call fails, the copy is complete or absent, the error has a hint, and a second salvage succeeds."""
    for n in itertools.count(1):
        disk = damaged_disk()
        before = content(disk)
        disk.on_call = fault = Fault(call, n, error)
        raised: JournalError | None = None
        try:
            salvage_run(disk)
        except JournalError as exc:
            raised = exc
        if not fault.has_failed:
            break
        if raised is not None:
            assert before == content(disk), n
            assert (TARGET, "free_space" if isinstance(raised, DiskFull) else "choose_path") == (raised.path, raised.hint), n
            assert error == errno.ENOSPC or not isinstance(raised, DiskFull)
            salvage_run(disk)
        assert verify(TARGET, files=disk).ok, n
    assert n > 1 or call == "ftruncate"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 3))])
def test_a_power_failure_leaves_no_partial_copy(seed: int) -> None:
    """After a power failure or kill at any call, the copy is complete or absent, and can be created."""
    rng = random.Random(seed)
    for n in itertools.count(1):
        disk = damaged_disk()
        disk.on_call = power_failure(n)
        is_done = False
        try:
            salvage_run(disk)
            is_done = True
        except (PowerFailure, BaseExceptionGroup):
            pass
        for disk_after in (disk.after_power_failure(rng), disk.after_kill()):
            exists = disk_after.exists(str(TARGET))
            assert exists or not is_done
            if not exists:
                salvage_run(disk_after)
                assert not disk_after.exists(str(STAGING)), n
            assert verify(TARGET, files=disk_after).ok, n
        if is_done:
            break
    assert n > 20


async def test_two_copies_at_once_do_not_interfere(tmp_path: Path) -> None:
    """Of two processes that make the same copy, the second fails and removes nothing of the first."""
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


def test_a_directory_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    """A directory that is created at the target during the copy is kept, and the copy is removed."""

    async def main() -> None:
        async with staged_run(tmp_path / "new", files=DISK, in_thread=inline) as staging:
            staging.mkdir()
            (tmp_path / "new").mkdir()

    with pytest.raises(JournalExists, match="was created by another process in the meantime"):
        trio.run(main)

    assert [tmp_path / "new"] == list(tmp_path.iterdir())
