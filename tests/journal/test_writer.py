"""The writer: appending, durability, locking and the files it writes."""

import hashlib
import math
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import orjson
import pytest
import trio
import trio.testing

from journal import Clock, Journal, Record, read, verify, writing
from journal.errors import (
    IllegalEvent,
    JournalClosed,
    JournalExists,
    JournalFailed,
    JournalLocked,
    NotAJournal,
    RecordTooLarge,
    Unserializable,
)
from journal.events import (
    AttemptFailed,
    AttemptSucceeded,
    Event,
    Extension,
    Noted,
    SegmentOpened,
    SegmentSealed,
    TrialCompleted,
)
from journal.files import Files
from tests.journal.samples import (
    RUN,
    complete_run,
    content,
    enqueued,
    fake_clock,
    inline,
    lines_of,
    segment,
    session,
    started,
    trial,
    write,
    write_sync,
)

T = TypeVar("T")


class Counted(Files):
    """A disk that counts syncs and records opened files."""

    def __init__(self) -> None:
        self.syncs = 0
        self.opened: dict[str, int] = {}

    def open(self, path: str, flags: int, parents: int = 0) -> int:
        """Open a file and record it."""
        fd = self.opened[os.path.basename(path)] = super().open(path, flags, parents)
        return fd

    def fdatasync(self, fd: int) -> None:
        """Sync, under control of the test."""
        self.syncs += 1
        super().fdatasync(fd)


class Slow(Files):
    """A disk whose syncs end when the test allows it."""

    def __init__(self) -> None:
        self.has_started = threading.Event()
        self.may_end = threading.Event()

    def fdatasync(self, fd: int) -> None:
        """Sync, under control of the test."""
        self.has_started.set()
        self.may_end.wait(timeout=30)
        super().fdatasync(fd)


class Gate:
    """Runs calls only while it is open."""

    def __init__(self) -> None:
        self.open = trio.Event()
        self.open.set()

    async def __call__(self, call: Callable[[], T], /) -> T:
        """Make the call once the gate is open."""
        await self.open.wait()
        return await inline(call)


async def test_appended_records_are_read_back(tmp_path: Path) -> None:
    """The record that `append` returns equals the record that is read."""
    records = await write(tmp_path / "run", complete_run())

    assert records == [record for record in read(tmp_path / "run") if record.seq in range(2, len(records) + 2)]


async def test_numbers_have_no_gap(tmp_path: Path) -> None:
    """Records are numbered from 1 without a gap, across files and sessions."""
    await write(tmp_path / "run", complete_run(), roll_at=700)
    await write(tmp_path / "run", [session(2), *trial("b")], new=False, roll_at=700)
    seqs = [record.seq for record in read(tmp_path / "run")]

    assert list(range(1, len(seqs) + 1)) == seqs
    assert len(list((tmp_path / "run").glob("journal-*.jsonl"))) > 4


async def test_durable_follows_written_follows_appended(tmp_path: Path) -> None:
    """Nothing is durable before it is written, and nothing is written before it was appended."""
    gate = Gate()
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=gate, roll_at=900) as journal:
        for event in complete_run(5):
            record = journal.append(event)

            assert record.seq == journal.appended
            assert journal.appended >= journal.written >= journal.durable
            await trio.lowlevel.checkpoint()
            assert journal.appended >= journal.written >= journal.durable
        await journal.wait_durable(record.seq)

        assert record.seq == journal.appended == journal.written == journal.durable


async def test_append_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    """Events are accepted while the disk is blocked."""
    gate = Gate()
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=gate) as journal:
        gate.open = trio.Event()
        for event in complete_run():
            journal.append(event)
        await trio.testing.wait_all_tasks_blocked()

        assert (len(complete_run()) + 1, 0, 0) == (journal.appended, journal.written, journal.durable)
        gate.open.set()

    assert complete_run() == [record.event for record in read(tmp_path / "run")][1:-1]


async def test_waiting_for_durability_waits_for_the_sync(tmp_path: Path) -> None:
    """`wait_durable` returns only after the sync."""
    disk = Slow()
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), files=disk) as journal:
        record = journal.append(started())
        await trio.to_thread.run_sync(disk.has_started.wait)
        with trio.move_on_after(60) as scope:
            await journal.wait_durable(record.seq)

        assert scope.cancelled_caught
        assert (record.seq, record.seq - 1) == (journal.written, journal.durable)
        disk.may_end.set()
        await journal.wait_durable(record.seq)

        assert record.seq == journal.durable


async def test_many_tasks_can_wait(tmp_path: Path) -> None:
    """All waiting tasks are woken, in any order."""
    woken: list[int] = []
    gate = Gate()

    async def wait(seq: int) -> None:
        await journal.wait_durable(seq)
        woken.append(seq)

    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=gate) as journal:
        gate.open = trio.Event()
        for event in complete_run():
            journal.append(event)
        async with trio.open_nursery() as nursery:
            for seq in (3, 1, 4, 1, 5, 9, 2, 6):
                nursery.start_soon(wait, seq)
            await trio.testing.wait_all_tasks_blocked()

            assert [] == woken
            gate.open.set()

    assert [1, 1, 2, 3, 4, 5, 6, 9] == sorted(woken)


async def test_cancelled_wait_does_not_affect_others(tmp_path: Path) -> None:
    """A cancelled wait does not change the others or the journal."""
    gate = Gate()
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=gate) as journal:
        gate.open = trio.Event()
        record = journal.append(started())
        with trio.move_on_after(1):
            await journal.wait_durable(record.seq)
        gate.open.set()
        await journal.wait_durable(record.seq)

        assert record.seq == journal.durable


async def test_records_carry_the_watermark(tmp_path: Path) -> None:
    """A record contains the number of the last record that was confirmed when it was built."""
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=inline) as journal:
        first, second = journal.append(started()), journal.append(session())
        await journal.wait_durable(second.seq)
        third = journal.append(enqueued("a"))

    assert [0, 0, 3] == [first.d, second.d, third.d]
    assert [0, 0, 0, 3, 4] == [record.d for record in read(tmp_path / "run")]


async def test_os_durability_syncs_at_the_end_only(tmp_path: Path) -> None:
    """With durability `os`, nothing is synced before the journal is closed, and then everything is."""
    disk = Counted()
    async with writing(
        tmp_path / "run", new=True, clock=fake_clock(), in_thread=inline, files=disk, durability="os"
    ) as journal:
        for event in complete_run():
            await journal.wait_durable(journal.append(event).seq)

        assert (0, journal.appended) == (disk.syncs, journal.written)

    assert disk.syncs > 0
    assert journal.appended == journal.durable


async def test_sync_durability_syncs_while_it_writes(tmp_path: Path) -> None:
    """With durability `sync`, records are synced before `wait_durable` returns."""
    disk = Counted()
    await write(tmp_path / "run", complete_run(), files=disk)

    assert disk.syncs >= len(complete_run())


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
        (SegmentOpened(format="evaljournal", version="1.0", run=RUN, segment=2), IllegalEvent),
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
        before, state = content(tmp_path / "run"), (journal.appended, journal.head, journal.lifecycle.stage_of("a"))

        with pytest.raises(error):
            journal.append(event)
        await trio.testing.wait_all_tasks_blocked()
        assert before == content(tmp_path / "run")
        assert state == (journal.appended, journal.head, journal.lifecycle.stage_of("a"))
        journal.append(AttemptSucceeded(trial="a", attempt=1, output="Lima", elapsed=1))

    assert verify(tmp_path / "run").ok
    assert 7 == len(list(read(tmp_path / "run")))


async def test_too_large_record_reports_size_and_limit(tmp_path: Path) -> None:
    """The error for a too large record has its size and the limit."""
    with pytest.raises(RecordTooLarge) as raised:
        await write(tmp_path / "run", [started(), session(), Noted(name="n" * (1 << 20), value=1)])

    assert ("Noted", 1 << 20) == (raised.value.event, raised.value.limit)
    assert (1 << 20) < raised.value.size < (1 << 20) + 200


async def test_failing_clock_changes_nothing(tmp_path: Path) -> None:
    """If the clock raises, the event is not appended and can be appended again."""
    count = fake_clock()
    fails = False

    def clock() -> tuple[str, float]:
        if fails:
            raise RuntimeError("no time")
        return count()

    async with writing(tmp_path / "run", new=True, clock=clock, in_thread=inline) as journal:
        journal.append(started())
        fails = True
        with pytest.raises(RuntimeError, match="no time"):
            journal.append(session())
        fails = False
        journal.append(session())

    assert [started(), session()] == [record.event for record in read(tmp_path / "run")][1:-1]


async def test_intake_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`wait_room` waits while too much data is pending."""
    monkeypatch.setattr("journal.writer.PENDING_LIMIT", 1000)
    gate = Gate()
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=gate) as journal:
        await journal.wait_room()
        gate.open = trio.Event()
        for event in complete_run():
            journal.append(event)
        with trio.move_on_after(60) as scope:
            await journal.wait_room()

        assert scope.cancelled_caught
        gate.open.set()
        await journal.wait_room()

        assert journal.written == journal.appended


async def test_all_tasks_that_wait_for_room_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tasks in `wait_room` continue when there is room."""
    monkeypatch.setattr("journal.writer.PENDING_LIMIT", 1000)
    gate = Gate()
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=gate) as journal:
        gate.open = trio.Event()
        for event in complete_run():
            journal.append(event)
        with trio.move_on_after(60) as scope:
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(journal.wait_room)
                await trio.testing.wait_all_tasks_blocked()
                gate.open.set()

        assert not scope.cancelled_caught


async def test_large_values_count_as_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is stored in a blob counts as pending until it is written, like any line."""
    monkeypatch.setattr("journal.writer.PENDING_LIMIT", 300 << 10)
    gate = Gate()
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=gate) as journal:
        gate.open = trio.Event()
        for event in complete_run()[:-1]:
            journal.append(event)
        journal.append(Noted(name="long", value="v" * (301 << 10)))
        with trio.move_on_after(60) as scope:
            await journal.wait_room()

        assert scope.cancelled_caught
        gate.open.set()
        await journal.wait_room()


async def test_block_that_raises_leaves_a_closed_journal(tmp_path: Path) -> None:
    """If the block raises, its exception is passed on, and all earlier records are present and sealed."""

    def events() -> Iterator[Event]:
        yield from complete_run()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await write(tmp_path / "run", events())

    assert complete_run() == [record.event for record in read(tmp_path / "run")][1:-1]
    assert isinstance(list(read(tmp_path / "run"))[-1].event, SegmentSealed)


async def test_block_may_raise_a_group(tmp_path: Path) -> None:
    """If the block raises a group, the group is passed on unchanged."""

    def events() -> Iterator[Event]:
        yield started()
        raise ExceptionGroup("two", [ValueError(), KeyError()])

    with pytest.raises(ExceptionGroup) as raised:
        await write(tmp_path / "run", events())

    assert "two" == raised.value.message
    assert verify(tmp_path / "run").ok


async def fail_if_never_closed(journal: Journal) -> None:
    """Fail the test if the journal is not closed within an hour of virtual time."""
    await trio.sleep(3600)
    journal._failure = JournalFailed("the journal was never closed", path=journal.path, hint="resume")
    journal._wake(math.inf)


async def test_block_that_is_cancelled_leaves_a_closed_journal(tmp_path: Path) -> None:
    """If the block is cancelled, all earlier records are present and sealed."""
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(1) as limit:
            async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=inline) as journal:
                nursery.start_soon(fail_if_never_closed, journal)
                for event in complete_run():
                    journal.append(event)
                await trio.sleep_forever()
        nursery.cancel_scope.cancel()

    assert limit.cancelled_caught
    assert complete_run() == [record.event for record in read(tmp_path / "run")][1:-1]
    assert isinstance(list(read(tmp_path / "run"))[-1].event, SegmentSealed)


async def test_block_can_record_while_it_is_cancelled(tmp_path: Path) -> None:
    """Records that the block appends while it is cancelled are kept, and can be waited for under a shield."""
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(1):
            async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=inline) as journal:
                nursery.start_soon(fail_if_never_closed, journal)
                journal.append(started())
                try:
                    await trio.sleep_forever()
                finally:
                    record = journal.append(session())
                    with trio.CancelScope(shield=True):
                        await journal.wait_durable(record.seq)
        nursery.cancel_scope.cancel()

    assert [started(), session()] == [record.event for record in read(tmp_path / "run")][1:-1]


async def test_new_run_is_rejected_where_one_exists(tmp_path: Path) -> None:
    """A new run in the directory of another is rejected with the hint to resume."""
    await write(tmp_path / "run", complete_run())
    before = content(tmp_path / "run")

    with pytest.raises(JournalExists, match="already contains a run; resume the run") as raised:
        await write(tmp_path / "run", complete_run())
    assert (tmp_path / "run", "resume") == (raised.value.path, raised.value.hint)
    assert before == content(tmp_path / "run")


async def test_new_run_does_not_replace_a_file(tmp_path: Path) -> None:
    """A file at the path, or above it, is kept."""
    (tmp_path / "file").write_text("mine")

    with pytest.raises(JournalExists, match="cannot create the directory"):
        await write(tmp_path / "file", complete_run())
    with pytest.raises(JournalExists, match="cannot create the directory"):
        await write(tmp_path / "file" / "run", complete_run())
    assert "mine" == (tmp_path / "file").read_text()


async def test_only_an_existing_journal_can_be_opened(tmp_path: Path) -> None:
    """Opening a path without a journal fails and creates nothing."""
    (tmp_path / "empty").mkdir()

    with pytest.raises(NotAJournal, match="does not exist"):
        await write(tmp_path / "nothing", [session()], new=False)
    with pytest.raises(NotAJournal, match="is not a run"):
        await write(tmp_path / "empty", [session()], new=False)
    assert [] == list((tmp_path / "empty").iterdir())


async def test_reopened_journal_has_its_state(tmp_path: Path) -> None:
    """A reopened journal has the run id, the trials and the attempts of earlier sessions."""
    await write(tmp_path / "run", [started(), session(), *trial("a", retries=2)[:-4]])
    async with writing(tmp_path / "run", new=False, clock=fake_clock(), in_thread=inline) as journal:
        assert RUN == journal.run
        assert ("in_session", 1, 1) == (journal.lifecycle.stage, journal.lifecycle.sessions, journal.lifecycle.open)
        assert ("backing_off", 2) == (journal.lifecycle.stage_of("a"), journal.lifecycle.attempts_of("a"))
        with pytest.raises(IllegalEvent, match="expected session 2, got session 1"):
            journal.append(session(1))
        journal.append(session(2))

    assert verify(tmp_path / "run").ok


async def test_second_writer_is_rejected(tmp_path: Path) -> None:
    """While a journal is being written, a second writer gets an error that names the process."""
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=inline) as journal:
        journal.append(started())
        for new in (True, False):
            with pytest.raises(JournalLocked, match=rf"/run is being written by process {os.getpid()} on \S+; ") as raised:
                await write(tmp_path / "run", [session()], new=new)
            assert (tmp_path / "run", "watch") == (raised.value.path, raised.value.hint)
        journal.append(session())
    await write(tmp_path / "run", [session(2)], new=False)

    assert verify(tmp_path / "run").ok


SECOND = """
import sys, trio
from journal import errors
from tests.journal.samples import session, write
try:
    trio.run(lambda: write(__import__("pathlib").Path(sys.argv[1]), [session(int(sys.argv[2]))], new=False))
except errors.JournalLocked as exc:
    sys.exit(str(exc))
"""


def second_process(path: Path, n: int) -> subprocess.CompletedProcess[str]:
    """Let another process write to the journal."""
    root = Path(__file__).parents[2]
    return subprocess.run(
        [sys.executable, "-c", SECOND, str(path), str(n)], cwd=root, capture_output=True, text=True, check=False, timeout=60
    )


async def test_second_process_is_rejected(tmp_path: Path) -> None:
    """Another process is rejected as long as the first one writes."""
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=inline) as journal:
        for event in complete_run()[:2]:
            await journal.wait_durable(journal.append(event).seq)
        during = second_process(tmp_path / "run", 2)
    after = second_process(tmp_path / "run", 2)

    assert (1, True) == (during.returncode, f"is being written by process {os.getpid()} on" in during.stderr)
    assert (0, "") == (after.returncode, after.stderr)


FORKING = """
import os, sys, trio
from pathlib import Path
from journal import writing
from tests.journal.samples import inline, session, fake_clock, started, write
read_end, write_end = os.pipe()
async def main(path):
    async with writing(path, new=True, clock=fake_clock(), in_thread=inline) as journal:
        journal.append(started())
        if os.fork() == 0:
            os.close(write_end)
            os.read(read_end, 1)  # Until the parent has exited.
            os._exit(0)
    await write(path, [session()], new=False)
trio.run(main, Path(sys.argv[1]))
"""


def test_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A forked child that outlives its parent does not hold the lock."""
    root = Path(__file__).parents[2]
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING, str(tmp_path / "run")],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (0, "") == (process.returncode, process.stderr)
    assert verify(tmp_path / "run").ok


async def test_failed_opening_releases_the_lock(tmp_path: Path) -> None:
    """After a failed start, the next writer can open the journal."""

    def clock() -> tuple[str, float]:
        raise RuntimeError("no time")

    with pytest.raises(RuntimeError, match="no time"):
        await write(tmp_path / "run", [], clock=clock)
    await write(tmp_path / "run", complete_run())

    assert verify(tmp_path / "run").ok


def mode(path: Path) -> int:
    """Return the permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


async def test_files_are_private(tmp_path: Path) -> None:
    """Only the owner can read a run, and sealed segments are read-only."""
    run = tmp_path / "runs" / "run"
    async with writing(run, new=True, clock=fake_clock(), in_thread=inline, roll_at=1500) as journal:
        for event in [*complete_run()[:-1], Noted(name="long", value="v" * (300 << 10))]:
            await journal.wait_durable(journal.append(event).seq)
        numbers = range(1, len(list(run.glob("journal-*.jsonl"))) + 1)

        assert len(numbers) > 1
        assert [0o400] * (len(numbers) - 1) + [0o600] == [mode(segment(run, number)) for number in numbers]

    assert {0o400} == {mode(segment(run, number)) for number in numbers}
    assert {0o600} == {mode(file) for file in [run / "LOCK", *run.glob("blobs/*/*")]}
    assert {0o700} == {mode(directory) for directory in [run, run.parent, run / "blobs", *run.glob("blobs/*")]}


async def test_children_inherit_nothing(tmp_path: Path) -> None:
    """A program that is started while the journal is open does not inherit its file descriptors."""
    disk = Counted()
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=inline, files=disk) as journal:
        await journal.wait_durable(journal.append(started()).seq)

        assert {"LOCK", "journal-000001.jsonl"} <= disk.opened.keys()
        assert [] == [name for name in ("LOCK", "journal-000001.jsonl") if os.get_inheritable(disk.opened[name])]


async def test_closed_journal_has_no_extra_files(tmp_path: Path) -> None:
    """A journal that was closed consists of its files and its lock."""
    await write(tmp_path / "run", complete_run())

    assert {"LOCK", "journal-000001.jsonl"} == content(tmp_path / "run").keys()


async def test_files_roll(tmp_path: Path) -> None:
    """A segment that is long enough is sealed and followed by another; seal and header describe what precedes them."""
    await write(tmp_path / "run", complete_run(4), roll_at=1000)
    files = sorted((tmp_path / "run").glob("journal-*.jsonl"))
    records = list(read(tmp_path / "run"))

    assert len(files) > 2
    assert [f"journal-{number:06}.jsonl" for number in range(1, len(files) + 1)] == [file.name for file in files]
    for number, file in enumerate(files, start=1):
        data, segment_records = file.read_bytes(), [record for record in records if record.segment == number]
        content_before_seal = data[: segment_records[-1].offset]
        previous = files[number - 2].read_bytes() if number > 1 else b""

        assert segment_records[0].event == SegmentOpened(
            format="evaljournal",
            version="1.0",
            run=RUN,
            segment=number,
            previous_seq=segment_records[0].seq - 1,
            previous_h=records[segment_records[0].seq - 2].h if previous else "",
            previous_bytes=len(previous),
            previous_sha256=hashlib.sha256(previous).hexdigest() if previous else "",
        )
        assert segment_records[-1].event == SegmentSealed(
            run=RUN,
            segment=number,
            records=len(segment_records) - 1,
            bytes=len(content_before_seal),
            sha256=hashlib.sha256(content_before_seal).hexdigest(),
        )
        assert number == len(files) or len(content_before_seal) >= 1000

    assert complete_run(4) == [
        record.event for record in records if not isinstance(record.event, SegmentOpened | SegmentSealed)
    ]


@pytest.mark.parametrize("confirm", [True, False])
@pytest.mark.parametrize("roll_at", [1, 500, 1 << 20])
async def test_files_roll_at_any_length(tmp_path: Path, roll_at: int, *, confirm: bool) -> None:
    """However short the files are, and however fast the events come, the journal verifies."""
    await write(tmp_path / "run", complete_run(), roll_at=roll_at, confirm=confirm)
    result = verify(tmp_path / "run")

    assert (True, len(lines_of(tmp_path / "run"))) == (result.ok, result.records)
    assert result.segments == len(list((tmp_path / "run").glob("journal-*.jsonl")))


async def test_same_events_give_the_same_bytes(tmp_path: Path) -> None:
    """The same events, times and run id give the same bytes."""
    for name in ("one", "two"):
        await write(tmp_path / name, complete_run(3), roll_at=1000)
    first, second = (content(tmp_path / name) for name in ("one", "two"))

    assert first == second


async def test_threads_write_the_same_records(tmp_path: Path) -> None:
    """With real threads the events on disk are the same; only the watermarks may differ."""
    events = complete_run(20)
    async with writing(tmp_path / "run", new=True, run=RUN, clock=fake_clock(), roll_at=2000) as journal:
        for number, event in enumerate(events):
            record = journal.append(event)
            if number % 7 == 0:
                await journal.wait_durable(record.seq)

    assert events == [r.event for r in read(tmp_path / "run") if not isinstance(r.event, SegmentOpened | SegmentSealed)]
    assert verify(tmp_path / "run").ok


async def test_every_run_has_an_id(tmp_path: Path) -> None:
    """Two runs get different ids by default."""
    runs: list[str] = []
    for name in ("one", "two"):
        async with writing(tmp_path / name, new=True, clock=fake_clock(), in_thread=inline) as journal:
            runs.append(journal.run)

    assert 2 == len(set(runs))
    assert {32} == {len(run) for run in runs}


def test_line_is_what_the_format_says(tmp_path: Path) -> None:
    """A line is compact JSON: number, times and type first, watermark and hash last."""
    write_sync(tmp_path / "run", [started(), session()])
    line = lines_of(tmp_path / "run")[2]

    assert line.startswith(b'{"seq":3,"at":"2026-11-15T00:00:00.003000Z","t":0.003,"type":"session_started","session":1,')
    assert ["d", "h"] == list(orjson.loads(line))[-2:]
    assert b" " not in line


async def test_times_are_kept_to_the_microsecond(tmp_path: Path) -> None:
    """A record's `t` has at most six decimals, in the file and in the returned record."""

    def clock() -> tuple[str, float]:
        return "2026-11-15T00:00:00.000000Z", 1 / 3

    records: list[Record] = await write(tmp_path / "run", [started()], clock=clock)

    assert [0.333333] == [record.t for record in records]
    assert {0.333333} == {record.t for record in read(tmp_path / "run")}


def test_fake_clock_counts() -> None:
    """The clock of these tests counts milliseconds."""
    clock: Clock = fake_clock()

    assert [("2026-11-15T00:00:00.001000Z", 0.001), ("2026-11-15T00:00:00.002000Z", 0.002)] == [clock(), clock()]
