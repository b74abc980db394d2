"""Errors and power failures at every call to the disk, while writing and during recovery."""

import errno
import itertools
import random
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio

from evaljournal.journal import Event, read, verify, writing
from evaljournal.journal.disk.files import Files
from evaljournal.journal.errors import DiskFull, JournalError, JournalFailed, NotAJournal, WriteFailed
from evaljournal.journal.events import RunStarted, RunStopped, SessionStarted
from evaljournal.journal.format import blobs
from evaljournal.runner.testing import events_of
from tests.journal.disk import PowerFailure, SimulatedDisk, power_failure
from tests.journal.samples import RUN, complete_run, enqueued, fake_clock, inline, session, started, trial, write_sync

PATH = Path("/runs/capitals")
CALLS = ("open", "write", "fdatasync", "fsync", "replace", "ftruncate", "mkdir", "sync_directory")
ERRORS = (errno.EIO, errno.ENOSPC, errno.EINTR)


@attrs.define
class Fault:
    """Fails the n-th call of one kind, once."""

    call: str
    n: int
    error: int | None
    """None: a partial write instead of an error."""
    has_failed: bool = False

    def __call__(self, call: str) -> int | None:
        if call != self.call:
            return None
        self.n -= 1
        if self.n != 0:
            return None
        self.has_failed = True
        if self.error is None:
            return 3
        raise OSError(self.error, "simulated error")


@attrs.define
class Progress:
    """The records of a writer, up to its end."""

    confirmed: dict[int, str] = attrs.field(factory=dict)
    """seq → hash of every record that was confirmed."""
    appended: dict[int, str] = attrs.field(factory=dict)
    """seq → hash of every record that was appended."""
    error: BaseException | None = None

    def write(self, disk: SimulatedDisk, events: list[Event], *, new: bool, confirm_every: int = 3) -> "Progress":
        """Write events, waiting for some of them to be durable, until the end or an error."""

        async def main() -> None:
            async with writing(
                PATH, new=new, run=RUN, clock=fake_clock(), files=disk, in_thread=inline, roll_at=1200
            ) as journal:
                for number, event in enumerate(events):
                    record = journal.append(event)
                    self.appended[record.seq] = record.h
                    if number % confirm_every == 0:
                        await journal.wait_durable(record.seq)
                        self.confirmed.update(self.appended)

        try:
            trio.run(main)
            self.confirmed.update(self.appended)
        except (Exception, PowerFailure, BaseExceptionGroup) as exc:  # noqa: BLE001  # the tests check it
            self.error = exc
        return self


def assert_kept(disk: SimulatedDisk, progress: Progress) -> None:
    """Assert that all confirmed and only appended records are present, and that the run can be resumed."""
    confirmed = progress.confirmed
    try:
        present = {record.seq: record.h for record in read(PATH, files=disk)}
    except NotAJournal:
        assert not confirmed
        return
    assert confirmed.items() <= present.items()
    appended = {seq: h for seq, h in present.items() if seq in progress.appended}
    assert appended.items() <= progress.appended.items()
    if events := next_session(disk):
        assert Progress().write(disk, events, new=False).error is None
    assert verify(PATH, files=disk).ok


def next_session(disk: SimulatedDisk) -> list[Event]:
    """Return the start of the next session; without a start of the run, nothing."""
    sessions = sum(isinstance(event, SessionStarted) for event in events_of(PATH, files=disk))
    return [session(sessions + 1)] if any(isinstance(event, RunStarted) for event in events_of(PATH, files=disk)) else []


def several_segments() -> list[Event]:
    """Return events that fill several segments and some blobs."""
    return [started(), session(), *trial("lima", "x" * 400), *trial("quito", "y" * 700, retries=1), *trial("bogota")]


def torn_journal() -> SimulatedDisk:
    """Return a disk with a journal whose last line is incomplete."""
    disk = SimulatedDisk()
    write_sync(PATH, complete_run(3), files=disk, roll_at=1200)
    last = max(name for name in disk.list_directory(str(PATH)) if name.startswith("journal-"))
    data = disk.read(f"{PATH}/{last}").read()
    disk.add_file(f"{PATH}/{last}", data[: data.rindex(b"\n", 0, -1) - 9])
    return disk


@pytest.fixture(autouse=True)
def _small_blobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "LIMIT", 300)


faults = pytest.mark.parametrize(
    ("call", "error"),
    [*itertools.product(CALLS, ERRORS), ("write", None)],
    ids=lambda value: errno.errorcode.get(value, str(value)) if isinstance(value, int) else str(value),
)


@faults
def test_a_failing_write_loses_no_confirmed_record(call: str, error: int | None) -> None:
    """Whichever call fails, confirmed records survive a kill and a power failure, and the run can be resumed."""
    for n in itertools.count(1):
        disk = SimulatedDisk()
        disk.on_call = fault = Fault(call, n, error)
        progress = Progress().write(disk, several_segments(), new=True)
        if not fault.has_failed:
            break
        if error in (errno.EINTR, None):
            assert progress.error is None
        else:
            assert isinstance(progress.error, JournalError), repr(progress.error)
            if isinstance(progress.error, JournalFailed):
                assert progress.error.durable_seq >= max(progress.confirmed, default=0)
        assert_kept(disk.after_power_failure(random.Random(n)), progress)
        assert_kept(disk.after_kill(), progress)

    assert n > 1 or call == "ftruncate"  # Which is called only to remove a torn tail.


@faults
def test_a_failing_recovery_loses_nothing(call: str, error: int | None) -> None:
    """Whichever call fails during recovery, the next recovery succeeds."""
    before = {record.seq: record.h for record in read(PATH, files=torn_journal())}
    for n in itertools.count(1):
        disk = torn_journal()
        disk.on_call = fault = Fault(call, n, error)
        progress = Progress(confirmed=dict(before), appended=dict(before)).write(disk, [session(2), *trial("sucre")], new=False)
        if not fault.has_failed:
            break
        assert progress.error is None if error in (errno.EINTR, None) else isinstance(progress.error, JournalError)
        assert_kept(disk.after_power_failure(random.Random(n)), progress)
        assert_kept(disk.after_kill(), progress)

    assert n > 1


@pytest.mark.parametrize("seeds", [2, pytest.param(8, marks=pytest.mark.exhaustive)])
def test_a_power_failure_at_any_call_loses_no_confirmed_record(seeds: int) -> None:
    """A power failure before any call loses no confirmed record."""
    points = 0
    for n in itertools.count(1):
        disk = SimulatedDisk()
        disk.on_call = power_failure(n)
        progress = Progress().write(disk, several_segments(), new=True)
        if progress.error is None:
            break
        for seed in range(seeds):
            assert_kept(disk.after_power_failure(random.Random(seed * 1000 + n)), progress)
            points += 1

    assert points >= 50 * seeds


def test_a_power_failure_while_recovering_loses_nothing() -> None:
    """After power failures at any call of two recoveries, the third finds everything."""
    before = {record.seq: record.h for record in read(PATH, files=torn_journal())}
    for n in itertools.count(1):
        disk = torn_journal()
        progress = Progress(confirmed=dict(before), appended=dict(before))
        for recovery in range(2):
            disk.on_call = power_failure(n)
            progress.write(disk, [session(2 + recovery)], new=False)
            disk = disk.after_power_failure(random.Random(n))
        if progress.error is None:
            break
        assert_kept(disk, progress)


def failing_from(call: str, n: int, error: int) -> Callable[[str], None]:
    """Return a hook that fails every call of one kind from the n-th on."""
    calls = itertools.count(1)

    def fail_call(name: str) -> None:
        if name == call and next(calls) >= n:
            raise OSError(error, "simulated error")

    return fail_call


def test_a_full_disk_keeps_complete_lines(disk: SimulatedDisk) -> None:
    """When the disk is full, the incomplete line is removed, the others are synced, and the error names `resume`."""
    space = 2000

    def limited(call: str) -> int | None:
        nonlocal space
        if call == "write":
            if space <= 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            size, space = min(space, 150), space - min(space, 150)
            return size
        return None

    disk.on_call = limited
    progress = Progress().write(
        disk, [started(), session(), *(enqueued(f"t{number}") for number in range(40))], new=True, confirm_every=99
    )
    disk.on_call = lambda _: None

    assert isinstance(progress.error, DiskFull)
    assert (PATH, "free_space_resume") == (progress.error.path, progress.error.hint)
    result = verify(PATH, files=disk.after_power_failure(random.Random(0)))
    assert result.ok
    assert 0 == result.unfinished_bytes
    assert progress.error.durable_seq == result.records > 3


def test_nothing_is_confirmed_after_a_failed_sync(disk: SimulatedDisk) -> None:
    """After a failed fdatasync there is no second sync, no further write and no further record."""
    calls: list[str] = []
    failing = failing_from("fdatasync", 3, errno.EIO)

    def record_call(call: str) -> None:
        calls.append(call)
        failing(call)

    disk.on_call = record_call
    progress = Progress().write(disk, several_segments(), new=True)

    assert isinstance(progress.error, WriteFailed)
    assert 3 == calls.count("fdatasync")
    assert "write" not in calls[len(calls) - calls[::-1].index("fdatasync") :]
    assert max(progress.confirmed) == progress.error.durable_seq


async def test_a_failed_journal_wakes_all_waiting_tasks(disk: SimulatedDisk) -> None:
    """After a failure, waiting tasks and appends get an error that names the last confirmed record."""
    errors: list[BaseException] = []
    with pytest.raises(WriteFailed):
        async with writing(PATH, new=True, run=RUN, clock=fake_clock(), files=disk, in_thread=inline) as journal:
            disk.on_call = failing_from("fdatasync", 1, errno.EIO)
            journal.append(started())
            record = journal.append(session())
            try:
                await journal.wait_durable(record.seq)
            except WriteFailed as exc:
                errors.append(exc)
            try:
                journal.append(RunStopped(reason="interrupted"))
            except WriteFailed as exc:
                errors.append(exc)

    assert [journal.failure, journal.failure] == errors
    assert "records up to 1 are on disk" in str(journal.failure)


def test_a_write_of_zero_bytes_is_an_error(disk: SimulatedDisk) -> None:
    """A write of zero bytes is an error, not an endless loop."""
    disk.on_call = lambda call: 0 if call == "write" else None
    progress = Progress().write(disk, several_segments(), new=True)

    assert isinstance(progress.error, JournalError)


@pytest.mark.parametrize("seeds", [1, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_kill_resume_and_power_failure_lose_no_confirmed_record(seeds: int) -> None:
    """A writer is killed at any call, the next one confirms its records, the power fails: all of them are present."""
    points = 0
    for n in itertools.count(1):
        disk = SimulatedDisk()
        disk.on_call = power_failure(n)
        first = Progress().write(disk, several_segments(), new=True)
        if first.error is None:
            break
        disk = disk.after_kill()
        try:
            present = {record.seq: record.h for record in read(PATH, files=disk)}
        except NotAJournal:
            second = Progress().write(disk, several_segments()[:6], new=True, confirm_every=1)
        else:
            progress = Progress(confirmed=dict(present), appended=dict(present))
            second = progress.write(disk, next_session(disk) or several_segments()[:6], new=False, confirm_every=1)
        assert second.error is None
        for seed in range(seeds):
            assert_kept(disk.after_power_failure(random.Random(seed * 1000 + n)), second)
            points += 1

    assert points >= 50 * seeds


@pytest.mark.parametrize("new", [True, False])
def test_an_unwritable_directory_is_an_error(*, new: bool) -> None:
    """If a new run cannot be created, the error does not claim that records are kept; for an existing run it does."""
    disk = SimulatedDisk()
    if not new:
        Progress().write(disk, several_segments(), new=True)
    disk.on_call = failing_from("open", 1, errno.EROFS)
    progress = Progress().write(disk, several_segments(), new=new)

    reason = f"([Errno {errno.EROFS}] simulated error)"
    assert str(progress.error) == (
        f"cannot create a run in {PATH} {reason}; choose another path"
        if new
        else f"cannot open {PATH} for writing {reason}; no records are lost"
    )


def test_the_simulated_disk_implements_every_call() -> None:
    """No call of the journal reaches the real disk."""
    calls = {name for name in vars(Files) if not name.startswith("_")}

    assert calls <= vars(SimulatedDisk).keys()
