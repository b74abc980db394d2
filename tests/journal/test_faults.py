"""The disk says no: at the first call, the second, the third, until none is left to fail; in writing and in recovery."""

import errno
import itertools
import random
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio

from journal import Event, blobs, read, segments, verify, writing
from journal.errors import DiskFull, JournalError, JournalFailed, NotAJournal, WriteFailed
from journal.events import RunStopped
from tests.journal.disk import PowerCut, SimulatedDisk
from tests.journal.samples import RUN, enqueued, fake_clock, inline, session, started, trial, whole_run, written

PATH = Path("/runs/capitals")
CALLS = ("open", "write", "fdatasync", "fsync", "replace", "ftruncate", "mkdir", "sync_directory")
ERRORS = (errno.EIO, errno.ENOSPC, errno.EINTR)


@attrs.define
class Fault:
    """Fails the n-th call of one kind, once."""

    call: str
    n: int
    error: int | None
    """None cuts a write short instead."""
    fired: bool = False

    def __call__(self, call: str) -> int | None:
        if call != self.call:
            return None
        self.n -= 1
        if self.n != 0:
            return None
        self.fired = True
        if self.error is None:
            return 3
        raise OSError(self.error, "as the test wants it")


@attrs.define
class Told:
    """What a writer was told before it ended."""

    confirmed: dict[int, str] = attrs.field(factory=dict)
    """seq → hash of every record that was confirmed."""
    taken: dict[int, str] = attrs.field(factory=dict)
    """seq → hash of every record that was taken."""
    error: BaseException | None = None

    def write(self, disk: SimulatedDisk, events: list[Event], *, new: bool, every: int = 3) -> "Told":
        """Write events, asking for confirmation now and then, until the end or an error."""

        async def main() -> None:
            async with writing(
                PATH, new=new, run=RUN, clock=fake_clock(), files=disk, in_thread=inline, roll_at=1200
            ) as journal:
                for number, event in enumerate(events):
                    record = journal.append(event)
                    self.taken[record.seq] = record.h
                    if number % every == 0:
                        await journal.wait_durable(record.seq)
                        self.confirmed.update(self.taken)

        try:
            trio.run(main)
            self.confirmed.update(self.taken)
        except (Exception, PowerCut, BaseExceptionGroup) as exc:  # noqa: BLE001  # the tests look at what came
            self.error = exc
        return self


def assert_kept(disk: SimulatedDisk, told: Told) -> None:
    """Everything confirmed is there, nothing is there that was not taken, and the journal can be gone on with."""
    confirmed = told.confirmed
    try:
        present = {record.seq: record.h for record in read(PATH, files=disk)}
    except NotAJournal:
        assert not confirmed
        return
    assert confirmed.items() <= present.items()
    genuine = {seq: h for seq, h in present.items() if seq in told.taken}
    assert genuine.items() <= told.taken.items()
    after = Told().write(disk, [session(_sessions(disk) + 1)], new=False) if _started(disk) else None
    assert after is None or after.error is None
    assert verify(PATH, files=disk).holds


def _sessions(disk: SimulatedDisk) -> int:
    return sum(1 for record in read(PATH, files=disk) if type(record.event).__name__ == "SessionStarted")


def _started(disk: SimulatedDisk) -> bool:
    return any(type(record.event).__name__ == "RunStarted" for record in read(PATH, files=disk))


def life() -> list[Event]:
    """Enough to roll into several files and to put values into blobs."""
    return [started(), session(), *trial("lima", "x" * 400), *trial("quito", "y" * 700, retries=1), *trial("bogota")]


def torn() -> SimulatedDisk:
    """Leave a journal as a crash does: the last line is half there."""
    disk = SimulatedDisk()
    written(PATH, whole_run(3), files=disk, roll_at=1200)
    last = max(name for name in disk.list_directory(str(PATH)) if name.startswith("journal-"))
    data = disk.read(f"{PATH}/{last}").read()
    disk.put(f"{PATH}/{last}", data[: data.rindex(b"\n", 0, -1) - 9])
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
def test_a_fault_while_writing_loses_nothing_that_was_confirmed(call: str, error: int | None) -> None:
    """Whichever call fails, what was confirmed stays, after a kill and after a power cut; a retry goes through."""
    for n in itertools.count(1):
        disk = SimulatedDisk()
        disk.before = fault = Fault(call, n, error)
        told = Told().write(disk, life(), new=True)
        if not fault.fired:
            break
        if error in (errno.EINTR, None):
            assert told.error is None
        else:
            assert isinstance(told.error, JournalError), repr(told.error)
            if isinstance(told.error, JournalFailed):
                assert told.error.durable >= max(told.confirmed, default=0)
        assert_kept(disk.unplugged(random.Random(n)), told)
        assert_kept(disk.killed(), told)

    assert n > 1 or (call, error) == ("ftruncate", errno.EINTR) or call == "ftruncate"


@faults
def test_a_fault_while_recovering_loses_nothing(call: str, error: int | None) -> None:
    """Whichever call fails while the end that a crash left is mended, the next one to try mends it."""
    before = {record.seq: record.h for record in read(PATH, files=torn())}
    for n in itertools.count(1):
        disk = torn()
        disk.before = fault = Fault(call, n, error)
        told = Told(confirmed=dict(before), taken=dict(before)).write(disk, [session(2), *trial("sucre")], new=False)
        if not fault.fired:
            break
        assert told.error is None if error in (errno.EINTR, None) else isinstance(told.error, JournalError)
        assert_kept(disk.unplugged(random.Random(n)), told)
        assert_kept(disk.killed(), told)

    assert n > 1


def test_a_power_cut_at_any_call_loses_nothing_that_was_confirmed() -> None:
    """The plug is pulled before every single call to the system, several times with different luck."""
    points = 0
    for n in itertools.count(1):
        calls = itertools.count(1)

        def cut(_: str, n: int = n, calls: "itertools.count[int]" = calls) -> None:
            if next(calls) >= n:
                raise PowerCut

        disk = SimulatedDisk()
        disk.before = cut
        told = Told().write(disk, life(), new=True)
        if told.error is None:
            break
        for luck in range(8):
            assert_kept(disk.unplugged(random.Random(luck * 1000 + n)), told)
            points += 1

    assert points >= 400


def test_a_power_cut_while_recovering_loses_nothing() -> None:
    """Recovery may itself be cut off at any call, and again, and the third try still finds everything."""
    before = {record.seq: record.h for record in read(PATH, files=torn())}
    for n in itertools.count(1):
        disk = torn()
        told = Told(confirmed=dict(before), taken=dict(before))
        for again in range(2):
            calls = itertools.count(1)

            def cut(_: str, n: int = n, calls: "itertools.count[int]" = calls) -> None:
                if next(calls) >= n:
                    raise PowerCut

            disk.before = cut
            told.write(disk, [session(2 + again)], new=False)
            disk = disk.unplugged(random.Random(n))
        if told.error is None:
            break
        assert_kept(disk, told)


def fails_from(call: str, n: int, error: int) -> Callable[[str], None]:
    """Fail every call of a kind from the n-th on."""
    calls = itertools.count(1)

    def before(name: str) -> None:
        if name == call and next(calls) >= n:
            raise OSError(error, "as the test wants it")

    return before


def test_a_full_disk_keeps_every_whole_line_and_says_what_to_do() -> None:
    """When the space runs out in the middle of a line, the line is taken back, the rest is confirmed, resume is named."""
    disk = SimulatedDisk()
    space = 2000

    def limited(call: str) -> int | None:
        nonlocal space
        if call == "write":
            if space <= 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            taken, space = min(space, 150), space - min(space, 150)
            return taken
        return None

    disk.before = limited
    told = Told().write(disk, [started(), session(), *(enqueued(f"t{number}") for number in range(40))], new=True, every=99)
    disk.before = lambda _: None

    assert isinstance(told.error, DiskFull)
    assert (PATH, "free_space_resume") == (told.error.path, told.error.hint)
    left = verify(PATH, files=disk.unplugged(random.Random(0)))
    assert left.holds
    assert 0 == left.unfinished
    assert told.error.durable == left.records > 3


def test_after_a_failed_sync_nothing_is_confirmed_any_more() -> None:
    """A failed fdatasync poisons the journal: no second sync, no further write, no further record."""
    disk = SimulatedDisk()
    calls: list[str] = []
    failing = fails_from("fdatasync", 3, errno.EIO)

    def before(call: str) -> None:
        calls.append(call)
        failing(call)

    disk.before = before
    told = Told().write(disk, life(), new=True)

    assert isinstance(told.error, WriteFailed)
    assert 3 == calls.count("fdatasync")
    assert "write" not in calls[len(calls) - calls[::-1].index("fdatasync") :]
    assert max(told.confirmed) == told.error.durable


async def test_a_poisoned_journal_takes_nothing_and_wakes_everyone() -> None:
    """Who waits for a record is told of the failure, and who appends is refused, with the last confirmed record named."""
    disk = SimulatedDisk()
    seen: list[BaseException] = []
    with pytest.raises(WriteFailed):
        async with writing(PATH, new=True, run=RUN, clock=fake_clock(), files=disk, in_thread=inline) as journal:
            disk.before = fails_from("fdatasync", 1, errno.EIO)
            journal.append(started())
            record = journal.append(session())
            try:
                await journal.wait_durable(record.seq)
            except WriteFailed as exc:
                seen.append(exc)
            try:
                journal.append(RunStopped(reason="interrupted"))
            except WriteFailed as exc:
                seen.append(exc)

    assert [journal.failure, journal.failure] == seen
    assert "records up to 1 are on disk" in str(journal.failure)


def test_a_file_that_takes_nothing_is_a_fault() -> None:
    """A write that takes no byte and gives no reason is an error, not an endless loop."""
    disk = SimulatedDisk()
    disk.before = lambda call: 0 if call == "write" else None
    told = Told().write(disk, life(), new=True)

    assert isinstance(told.error, JournalError)


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    """A run cannot begin under a file; the error says so and the file stays."""
    (tmp_path / "file").write_text("mine")

    with pytest.raises(JournalError, match="cannot create the directory"):
        written(tmp_path / "file" / "run", [started()])
    assert "mine" == (tmp_path / "file").read_text()
    assert segments.name(1) not in {file.name for file in tmp_path.iterdir()}


def test_kill_resume_and_power_cut_lose_nothing_that_was_confirmed() -> None:
    """A writer is killed at any call, the next has its records confirmed, then the plug is pulled: all of it is there."""
    points = 0
    for n in itertools.count(1):
        calls = itertools.count(1)

        def kill(_: str, n: int = n, calls: "itertools.count[int]" = calls) -> None:
            if next(calls) >= n:
                raise PowerCut

        disk = SimulatedDisk()
        disk.before = kill
        first = Told().write(disk, life(), new=True)
        if first.error is None:
            break
        disk = disk.killed()
        try:
            there = {record.seq: record.h for record in read(PATH, files=disk)}
        except NotAJournal:
            second = Told().write(disk, life()[:6], new=True, every=1)
        else:
            told = Told(confirmed=dict(there), taken=dict(there))
            events: list[Event] = [session(_sessions(disk) + 1)] if _started(disk) else life()[:6]
            second = told.write(disk, events, new=False, every=1)
        assert second.error is None
        for luck in range(4):
            assert_kept(disk.unplugged(random.Random(luck * 1000 + n)), second)
            points += 1

    assert points >= 200


@pytest.mark.parametrize("new", [True, False])
def test_a_place_that_cannot_be_written_is_told_as_what_it_is(*, new: bool) -> None:
    """Where a new run cannot be made nothing is said to be kept, for nothing was; of one that is there, that it is."""
    disk = SimulatedDisk()
    if not new:
        Told().write(disk, life(), new=True)
    disk.before = fails_from("open", 1, errno.EROFS)
    told = Told().write(disk, life(), new=new)

    reason = f"([Errno {errno.EROFS}] as the test wants it)"
    assert str(told.error) == (
        f"cannot create a run in {PATH} {reason}; choose another path"
        if new
        else f"cannot open {PATH} for writing {reason}; no records are lost"
    )
