"""The writer: appending, durability, and the end of the block."""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing

from evaljournal.journal import Journal, read, verify, writing
from evaljournal.journal.disk.files import Files
from evaljournal.journal.errors import IllegalEvent, JournalClosed, JournalFailed, RecordTooLarge, Unserializable
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptSucceeded,
    Event,
    Extension,
    Noted,
    SegmentOpened,
    SegmentSealed,
    TrialCompleted,
)
from evaljournal.journal.format.codec import RECORD_LIMIT, encode
from tests.journal.samples import RUN, complete_run, content, enqueued, fake_clock, inline, session, started, trial, write

T = TypeVar("T")


class CountingDisk(Files):
    """A disk that counts syncs."""

    def __init__(self) -> None:
        self.syncs = 0

    def fdatasync(self, fd: int) -> None:
        """Count a sync."""
        self.syncs += 1
        super().fdatasync(fd)


class BlockedDisk(Files):
    """A disk whose syncs end when the test allows it."""

    def __init__(self) -> None:
        self.has_started = threading.Event()
        self.may_end = threading.Event()

    def fdatasync(self, fd: int) -> None:
        """Sync, under control of the test."""
        self.has_started.set()
        self.may_end.wait(timeout=30)
        super().fdatasync(fd)


class PausingDisk(Files):
    """A disk that notes pauses. During each write, `on_write` is called."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self.on_write: Callable[[], None] = lambda: None

    def write(self, fd: int, data: memoryview) -> int:
        """Write, then call `on_write`."""
        size = super().write(fd, data)
        self.on_write()
        return size

    def pause(self, seconds: float = 0.0) -> None:
        """Note a pause."""
        self.pauses.append(seconds)


class Latch:
    """Runs calls only while it is open."""

    def __init__(self) -> None:
        self.open = trio.Event()
        self.open.set()

    async def __call__(self, call: Callable[[], T], /) -> T:
        """Make the call once the latch is open."""
        await self.open.wait()
        return await inline(call)


async def test_the_working_directory_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is that of the start: a task may change the working directory, for good or for a while."""
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    async with writing(Path("run"), new=True, clock=fake_clock(), roll_at=900) as journal:
        monkeypatch.chdir(tmp_path / "other")
        for event in complete_run(5):
            journal.append(event)
        await journal.wait_durable(journal.appended_seq)

    assert verify(tmp_path / "run").ok
    assert not (tmp_path / "other" / "run").exists()


async def test_durable_follows_written_follows_appended(tmp_path: Path) -> None:
    """Nothing is durable before it is written, and nothing is written before it was appended."""
    latch = Latch()
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=latch, roll_at=900) as journal:
        for event in complete_run(5):
            record = journal.append(event)

            assert record.seq == journal.appended_seq
            assert journal.appended_seq >= journal.written_seq >= journal.durable_seq
            await trio.lowlevel.checkpoint()
            assert journal.appended_seq >= journal.written_seq >= journal.durable_seq
        await journal.wait_durable(record.seq)

        assert record.seq == journal.appended_seq == journal.written_seq == journal.durable_seq


@pytest.mark.parametrize(("lines", "seconds"), [(1, 0.002), (10, 0.002), (25, 0.005), (1000, 0.01)])
async def test_pauses_are_longer_if_lines_come_fast(tmp_path: Path, lines: int, seconds: float) -> None:
    """The writer pauses if more lines have come during a write, and for longer if that write had many lines."""
    disk = PausingDisk()
    async with writing(tmp_path / "run", new=True, in_thread=inline, files=disk, durability="os") as journal:
        for event in (started(), session()):
            journal.append(event)
        await journal.wait_durable(journal.appended_seq)

        def append_another() -> None:
            disk.on_write = lambda: None
            journal.append(Noted(name="n", value=0))

        disk.on_write = append_another
        for number in range(lines):
            journal.append(Noted(name="n", value=number))
        await trio.testing.wait_all_tasks_blocked()

    assert disk.pauses == [seconds]


async def test_append_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    """Events are accepted while the disk is blocked."""
    latch = Latch()
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=latch) as journal:
        latch.open = trio.Event()
        for event in complete_run():
            journal.append(event)
        await trio.testing.wait_all_tasks_blocked()

        assert (len(complete_run()) + 1, 0, 0) == (journal.appended_seq, journal.written_seq, journal.durable_seq)
        latch.open.set()

    assert complete_run() == [record.event for record in read(tmp_path / "run")][1:-1]


async def test_waiting_for_durability_waits_for_the_sync(tmp_path: Path) -> None:
    """`wait_durable` returns only after the sync."""
    disk = BlockedDisk()
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), files=disk) as journal:
        record = journal.append(started())
        await trio.to_thread.run_sync(disk.has_started.wait)
        with trio.move_on_after(60) as scope:
            await journal.wait_durable(record.seq)

        assert scope.cancelled_caught
        assert (record.seq, record.seq - 1) == (journal.written_seq, journal.durable_seq)
        disk.may_end.set()
        await journal.wait_durable(record.seq)

        assert record.seq == journal.durable_seq


async def test_many_tasks_can_wait(tmp_path: Path) -> None:
    """All waiting tasks are woken, in any order."""
    woken: list[int] = []
    latch = Latch()

    async def wait(seq: int) -> None:
        await journal.wait_durable(seq)
        woken.append(seq)

    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=latch) as journal:
        latch.open = trio.Event()
        for event in complete_run():
            journal.append(event)
        async with trio.open_nursery() as nursery:
            for seq in (3, 1, 4, 1, 5, 9, 2, 6):
                nursery.start_soon(wait, seq)
            await trio.testing.wait_all_tasks_blocked()

            assert [] == woken
            latch.open.set()

    assert [1, 1, 2, 3, 4, 5, 6, 9] == sorted(woken)


async def test_cancelled_wait_does_not_affect_others(tmp_path: Path) -> None:
    """A cancelled wait does not change the others or the journal."""
    latch = Latch()
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=latch) as journal:
        latch.open = trio.Event()
        record = journal.append(started())
        with trio.move_on_after(1):
            await journal.wait_durable(record.seq)
        latch.open.set()
        await journal.wait_durable(record.seq)

        assert record.seq == journal.durable_seq


async def test_records_carry_the_watermark(tmp_path: Path) -> None:
    """A record contains the number of the last record that was confirmed when it was built."""
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=inline) as journal:
        first, second = journal.append(started()), journal.append(session())
        await journal.wait_durable(second.seq)
        third = journal.append(enqueued("a"))

    assert [0, 0, 3] == [first.d, second.d, third.d]
    assert [0, 0, 0, 3, 4] == [record.d for record in read(tmp_path / "run")]


async def test_os_durability_syncs_sealed_segments_only(tmp_path: Path) -> None:
    """With durability `os`, the lines of a segment are synced only when it is sealed."""
    disk = CountingDisk()
    async with writing(
        tmp_path / "run", new=True, clock=fake_clock(), in_thread=inline, files=disk, durability="os"
    ) as journal:
        for event in complete_run():
            await journal.wait_durable(journal.append(event).seq)

        assert (0, journal.appended_seq) == (disk.syncs, journal.written_seq)

    assert disk.syncs > 0
    assert journal.appended_seq == journal.durable_seq


async def test_closed_journal_rejects_records(tmp_path: Path) -> None:
    """A journal accepts no records after the block has ended."""
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=inline) as journal:
        journal.append(started())
    before = content(tmp_path / "run")

    with pytest.raises(JournalClosed, match="is closed"):
        journal.append(session())
    assert before == content(tmp_path / "run")


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (TrialCompleted(trial="a", attempts=1), IllegalEvent),
        (SegmentOpened(format="evaljournal", version="2.0", run=RUN, segment=2), IllegalEvent),
        (Noted(name="a", value=math.nan), Unserializable),
        (Noted(name="a", value=object()), Unserializable),
        (Noted(name="\ud800", value=1), Unserializable),
        (Noted(name="n" * (1 << 20), value=1), RecordTooLarge),
        (Extension(type="x-a", data={"b": "b" * (1 << 20)}), RecordTooLarge),
        (
            AttemptFailed(trial="a", attempt=1, error="E", message="m" * (1 << 20), category="fatal", elapsed=1),
            RecordTooLarge,
        ),
        (AttemptSucceeded(trial="b", attempt=1, output="o" * (300 << 10), elapsed=1), IllegalEvent),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, type) else value.__name__,
)
async def test_rejected_event_changes_nothing(tmp_path: Path, event: Event, error: type[Exception]) -> None:
    """A rejected event changes neither the files nor the lifecycle; the next one is accepted."""
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=inline) as journal:
        for legal in [started(), session(), *trial("a")[:2]]:
            await journal.wait_durable(journal.append(legal).seq)
        before, state = content(tmp_path / "run"), (journal.appended_seq, journal.head, journal.lifecycle.stage_of("a"))

        with pytest.raises(error):
            journal.append(event)
        await trio.testing.wait_all_tasks_blocked()
        assert before == content(tmp_path / "run")
        assert state == (journal.appended_seq, journal.head, journal.lifecycle.stage_of("a"))
        journal.append(AttemptSucceeded(trial="a", attempt=1, output="Lima", elapsed=1))

    assert verify(tmp_path / "run").ok
    assert 7 == len(list(read(tmp_path / "run")))


async def test_too_large_record_reports_size_and_limit(tmp_path: Path) -> None:
    """The error for a too large record has its size and the limit."""
    with pytest.raises(RecordTooLarge) as raised:
        await write(tmp_path / "run", [started(), session(), Noted(name="n" * (1 << 20), value=1)])

    assert ("Noted", 1 << 20) == (raised.value.event, raised.value.limit)
    assert (1 << 20) < raised.value.size < (1 << 20) + 200


@pytest.mark.parametrize("spare", [0, 20, 80])
async def test_what_is_accepted_can_be_read(tmp_path: Path, spare: int) -> None:
    """A record near the maximum length is rejected, or can be read, also if it starts a segment."""
    length = RECORD_LIMIT - spare - len(encode(Noted(name="", value=1), 8, *fake_clock()(), 0))
    with contextlib.suppress(RecordTooLarge):
        async with writing(tmp_path / "run", new=True, clock=fake_clock(), roll_at=1) as journal:
            journal.append(started())
            journal.append(session())
            journal.append(Noted(name="x" * length, value=1))

    assert verify(tmp_path / "run").ok


@pytest.mark.parametrize(("limit", "size"), [(1000, 1), (300 << 10, 301 << 10)], ids=["lines", "a blob"])
async def test_admission_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, size: int) -> None:
    """`wait_room` waits while too much data is pending, in lines or in blobs; then all waiting tasks continue."""
    monkeypatch.setattr("evaljournal.journal.writers.writer.PENDING_LIMIT", limit)
    latch = Latch()
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=latch) as journal:
        await journal.wait_room()
        latch.open = trio.Event()
        for event in [*complete_run()[:-1], Noted(name="long", value="v" * size)]:
            journal.append(event)
        with trio.move_on_after(60) as scope:
            await journal.wait_room()

        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(journal.wait_room)
            await trio.testing.wait_all_tasks_blocked()
            latch.open.set()

        assert journal.written_seq == journal.appended_seq


@pytest.mark.parametrize("error", [ZeroDivisionError(), ExceptionGroup("two", [ValueError(), KeyError()])], ids=repr)
async def test_block_that_raises_leaves_a_closed_journal(tmp_path: Path, error: Exception) -> None:
    """If the block raises, its exception or group is passed on unchanged, and all earlier records are present and sealed."""

    def events() -> Iterator[Event]:
        yield from complete_run()
        raise error

    with pytest.raises(type(error)) as raised:
        await write(tmp_path / "run", events())

    assert repr(error) == repr(raised.value)
    assert complete_run() == [record.event for record in read(tmp_path / "run")][1:-1]
    assert isinstance(list(read(tmp_path / "run"))[-1].event, SegmentSealed)


async def fail_if_never_closed(journal: Journal) -> None:
    """Fail the test if the journal is not closed within an hour of virtual time."""
    await trio.sleep(3600)
    journal.failure = JournalFailed("the journal was never closed", path=journal.path, hint="resume")
    journal._wake(math.inf)


async def test_block_that_is_cancelled_leaves_a_closed_journal(tmp_path: Path) -> None:
    """If the block is cancelled, all records are present and sealed, also those that it appends then and waits for."""
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(1) as limit:
            async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=inline) as journal:
                nursery.start_soon(fail_if_never_closed, journal)
                for event in complete_run()[:-1]:
                    journal.append(event)
                try:
                    await trio.sleep_forever()
                finally:
                    record = journal.append(complete_run()[-1])
                    with trio.CancelScope(shield=True):
                        await journal.wait_durable(record.seq)
        nursery.cancel_scope.cancel()

    assert limit.cancelled_caught
    assert complete_run() == [record.event for record in read(tmp_path / "run")][1:-1]
    assert isinstance(list(read(tmp_path / "run"))[-1].event, SegmentSealed)
