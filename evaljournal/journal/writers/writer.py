"""The journal writer: encode, write, sync.

Three numbers show the progress: `appended_seq` ≥ `written_seq` ≥ `durable_seq`. `append` never waits; one task writes lines
and one task syncs them, each in a thread. The records that arrive during one sync are written and synced together by the next.
"""

import heapq
import math
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Final, Literal, TypeVar, get_args

import trio

from evaljournal.journal.clock import Clock, system_clock
from evaljournal.journal.disk import segments
from evaljournal.journal.disk.files import DISK, Files
from evaljournal.journal.disk.lock import Lock
from evaljournal.journal.errors import (
    Change,
    DiskFull,
    JournalClosed,
    JournalError,
    JournalFailed,
    RecordTooLarge,
    SegmentLost,
    WriteFailed,
)
from evaljournal.journal.events import Event, Record
from evaljournal.journal.format import blobs
from evaljournal.journal.format.codec import ENCODERS, MAX_TIME, RECORD_LIMIT, Blobs
from evaljournal.journal.format.lifecycle import Lifecycle
from evaljournal.journal.readers.recovery import last_intact_record
from evaljournal.journal.threads import InThread, run_in_thread
from evaljournal.journal.writers.line_queue import LineGroup, LineQueue
from evaljournal.journal.writers.open import JournalEnd, open_run
from evaljournal.journal.writers.segment_file import NoSpace, SegmentChanged, SegmentFile

T = TypeVar("T")

PENDING_LIMIT: Final = 64 << 20
"""Bytes waiting to be written above which `wait_room` waits."""
_MAX_GROWTH: Final = 64
"""Bytes by which a body may grow after its length was checked: a number may get another digit if it starts a segment."""

Durability = Literal["sync", "os"]
"""`sync`: records are synced as soon as they are written; `os`: only when their segment is sealed."""


class Journal:
    """A journal that is open for writing."""

    def __init__(
        self,
        path: Path,
        end: JournalEnd,
        lock: Lock,
        file: SegmentFile,
        *,
        clock: Clock,
        durability: Durability,
        roll_at: int,
        in_thread: InThread,
        seal: bool,
    ) -> None:
        self.path = path
        self.run = end.cursor.run.decode()
        self.initial_seq = end.cursor.seq
        """The last record when the journal was opened; 0 for a new one."""
        self.initial_head = end.cursor.h.decode() if self.initial_seq else ""
        """Its hash; empty for a new one."""
        self.recovery_record: Record | None = None
        """The `JournalRecovered` record, if a torn tail was set aside when the journal was opened."""
        self.lifecycle: Lifecycle = end.lifecycle
        """Stages of the run and its trials."""
        self.on_segment_lost: Callable[[SegmentLost], None] | None = None
        """Called if writing fails with `SegmentLost`. From then on, records are accepted and discarded, until the block of
        `writing` ends and raises; without it, the block is cancelled immediately."""
        self.on_append: Callable[[Record], None] | None = None
        """Called with every record of `append`, before it returns: nothing, not even Ctrl-C, comes in between."""
        self._clock = clock
        self._durability: Durability = durability
        self._roll_at = roll_at
        self._in_thread = in_thread
        self._seal = seal
        self._lock = lock
        self._file = file
        self.files = file.files
        self._lines = LineQueue(end)

        # Progress of writing and syncing; recovery has made the existing records durable.
        self.written_seq = self.initial_seq
        """The last record that was handed to the operating system; it survives the death of this process."""
        self.durable_seq = self.initial_seq
        """The last record that is confirmed on disk; it survives a power failure."""
        self._sync_target = 0
        """Records up to here must be synced even with durability `os`."""
        self._segment_lock = trio.Lock()
        """Held during a sync and while moving to the next segment, so that no file is closed during a sync."""

        self.failure: JournalFailed | None = None
        """Why nothing more is written, if writing failed."""
        self._is_open = True
        self._is_closed = False
        self._is_sealed = False
        self._sync_needed = trio.Event()
        self._room_freed = trio.Event()
        self._waiters: list[tuple[int, int, trio.Event]] = []
        """Heap of (record, order, event to set when the record's state changes)."""
        self._wait_order = 0
        self._thread = 0
        """The thread that may append."""

    def _start(self, end: JournalEnd) -> None:
        """Start a segment if needed, and record a recovery."""
        self._thread = get_ident()
        if not end.is_open:
            self._lines.open_segment(*self._time(), self.durable_seq)
        if end.recovery is not None:
            self.recovery_record = self.append(end.recovery)

    @property
    def appended_seq(self) -> int:
        """The last appended record."""
        return self._lines.seq

    @property
    def head(self) -> str:
        """Hash of the last appended record."""
        return self._lines.h.decode()

    @trio.lowlevel.enable_ki_protection
    def append(self, event: Event, in_blobs: Blobs | None = None) -> Record:
        """Append an event. Never waits; raises, and changes nothing, if the event is rejected.

        `in_blobs` is the result of `write_blobs`.
        """
        if not self._is_open or get_ident() != self._thread or not self._lock.is_held:
            raise self._closed_error()
        at, t = self._clock()
        if not -MAX_TIME < t < MAX_TIME:
            raise _clock_error(at, t)
        t = int(t * 1e6 + 0.5) / 1e6  # Microseconds; twice as fast as `round`.
        lines, durable_seq = self._lines, self.durable_seq
        encode = ENCODERS[event.__class__]
        body = encode(event, lines.seq + 1, at, t, durable_seq, in_blobs)
        contents: Mapping[str, bytes] = {}
        if len(body) > blobs.LIMIT:
            if not in_blobs:
                in_blobs, contents = blobs.large_values(event)
                body = encode(event, lines.seq + 1, at, t, durable_seq, in_blobs)
            if (size := len(body) + _MAX_GROWTH) > RECORD_LIMIT:
                raise RecordTooLarge(type(event).__name__, size=size, limit=RECORD_LIMIT)
        self.lifecycle.advance(event)  # The last call that may raise; nothing has changed so far.
        if lines.segment.bytes >= self._roll_at:
            lines.seal_segment(at, t, durable_seq)
            lines.open_segment(at, t, durable_seq)
            body = encode(event, lines.seq + 1, at, t, durable_seq, in_blobs)
        if contents:
            new_contents = lines.add_blobs(contents)
            if self._in_thread is run_in_thread:
                self._file.blobs.start(new_contents)  # Immediately, while the lines before them are written.
        record = lines.add(event, body, at, t, durable_seq)
        if self.on_append is not None:
            self.on_append(record)
        return record

    @property
    def has_slow_blobs(self) -> bool:
        """Whether writing a blob takes so long that `write_blobs` should come before `append`."""
        return self._file.blobs.is_slow

    async def write_blobs(self, event: Event) -> Blobs:
        """Write the large values of an event in a thread, before it is appended, so that no other line waits for them.

        On a fast disk, writing them together with the line takes less time than switching threads. Returns the argument
        `in_blobs` of `append`; raises `Unserializable` as `append` does.
        """

        def write() -> Blobs:
            in_blobs, contents = blobs.large_values(event)
            self._file.write_blobs(contents)
            return in_blobs

        try:
            return await self._call_in_thread(write)
        except JournalFailed as exc:
            self._fail(exc)
            raise

    def _closed_error(self) -> JournalError:
        if self.failure is not None:
            return self.failure
        if not self._is_open:
            return JournalClosed(f"{self.path} is closed; it accepts no more records", path=self.path)
        return JournalClosed(f"{self.path} accepts records only from the thread and process that opened it", path=self.path)

    async def wait_durable(self, seq: int) -> None:
        """Wait until the record is on disk, or with durability `os` until it was handed to the operating system."""
        if seq > self.appended_seq:
            raise ValueError(f"record {seq} does not exist; the last one is {self.appended_seq}")
        await trio.lowlevel.checkpoint()
        while seq > (self.durable_seq if self._durability == "sync" else self.written_seq):
            await self._wait(seq)

    async def wait_room(self) -> None:
        """Wait while too much data is pending, so that a slow disk slows the run down instead of filling the memory."""
        await trio.lowlevel.checkpoint()
        while self._lines.pending_bytes > PENDING_LIMIT:
            if self.failure is not None:
                raise self.failure
            if self._room_freed.is_set():
                self._room_freed = trio.Event()
            await self._room_freed.wait()

    async def _keep_writing(self) -> None:
        """Write lines until the journal is closed; raise if that fails."""
        while not self._has_ended:
            while not self._lines.is_empty:
                await self._write(self._lines.pop())
            if not self._has_ended:
                with trio.move_on_after(self.files.idle_check_interval) as idle_scope:
                    await self._lines.wait_line()
                if idle_scope.cancelled_caught and self._lines.is_empty:
                    await self._call_in_thread(self._file.check)

    async def _keep_syncing(self) -> None:
        """Sync written lines until the journal is closed; raise if that fails."""
        syncs_all = self._durability == "sync"
        while not self._has_ended:
            while self.durable_seq < self.written_seq and (syncs_all or self._sync_target > self.durable_seq):
                async with self._segment_lock:
                    target = self.written_seq
                    await self._call_in_thread(lambda: self._sync(target))  # noqa: B023  # called immediately
                self._confirm(target)
            self._sync_needed = trio.Event()
            if not self._has_ended:
                await self._sync_needed.wait()

    @trio.lowlevel.enable_ki_protection
    async def _run_task(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run one of the two tasks; if it ends with an error, wake all tasks that wait for it."""
        try:
            with trio.CancelScope(shield=True):  # Closing the journal needs it, also after a cancellation.
                await task()
        except BaseException as exc:
            if not self._fail(exc):
                raise

    @trio.lowlevel.enable_ki_protection
    async def _close(self) -> None:
        """Wait until everything is durable, seal the journal, and end the two tasks."""
        self._is_open = False
        try:
            if self.failure is None:
                await self._wait_synced()
                await self._call_in_thread(self._file.check)
                if self._seal:
                    self._lines.seal_segment(*self._time(), self.durable_seq)  # A seal confirms all records before it.
                    await self._wait_synced()
                    self._is_sealed = True
        finally:
            self._is_closed = True
            self._lines.wake()
            self._sync_needed.set()

    def _release(self) -> None:
        """Close the file and release the lock; blocking."""
        try:
            self._file.blobs.close()
            self._file.close(sealed=self._is_sealed)
        finally:
            self._lock.release()

    @property
    def _has_ended(self) -> bool:
        return self._is_closed or self.failure is not None

    def _time(self) -> tuple[str, float]:
        """Read the clock; `t` is rounded to microseconds."""
        at, t = self._clock()
        if not -MAX_TIME < t < MAX_TIME:
            raise _clock_error(at, t)
        return at, int(t * 1e6 + 0.5) / 1e6

    async def _wait(self, seq: int) -> None:
        """Wait until the state of this record may have changed; raise if writing failed."""
        if self.failure is not None:
            raise self.failure
        event = trio.Event()
        self._wait_order += 1
        heapq.heappush(self._waiters, (seq, self._wait_order, event))
        await event.wait()

    async def _wait_synced(self) -> None:
        self._sync_target = target = self.appended_seq
        self._sync_needed.set()
        while self.durable_seq < target:
            await self._wait(target)

    def _confirm(self, seq: int) -> None:
        self.durable_seq = max(self.durable_seq, seq)
        self._wake(self.durable_seq)

    def _wake(self, seq: float) -> None:
        """Wake the tasks that wait for records up to here."""
        while self._waiters and self._waiters[0][0] <= seq:
            heapq.heappop(self._waiters)[2].set()

    async def _write(self, group: LineGroup) -> None:
        data = group.data
        if group.segment != self._file.segment:
            async with self._segment_lock:
                await self._call_in_thread(self._file.check)
                await self._call_in_thread(self._file.finish)
                self._confirm(self.written_seq)
                await self._call_in_thread(lambda: self._file.create(group.segment, group.lines[0]))
            self.written_seq = group.first_seq
            self._confirm(group.first_seq)
            data = data[len(group.lines[0]) :]
        await self._call_in_thread(lambda: self._write_lines(data, len(group.lines), group.blobs))
        self.written_seq = group.first_seq + len(group.lines) - 1
        self._lines.mark_written(group)
        self._room_freed.set()
        self._sync_needed.set()
        if self._durability == "os":
            self._wake(self.written_seq)

    # These two run in a thread. Starting a thread costs as much as encoding a few lines, so while lines keep coming and no task
    # waits for them, they pause to collect more of them.

    def _write_lines(self, data: bytes, lines: int, contents: Mapping[str, bytes]) -> None:
        self._file.check_if_due()
        self._file.write_blobs(contents)
        self._file.write(data)
        if not (self._lines.is_empty or self._waiters):
            self._file.pause(lines)

    def _sync(self, target: int) -> None:
        self._file.sync()
        if self.written_seq > target and not self._waiters:
            self._file.pause(self.written_seq - target)

    async def _call_in_thread(self, call: Callable[[], T]) -> T:
        """Make a call in a thread and translate its errors; raise immediately if writing has failed before."""
        if self.failure is not None:
            raise self.failure
        try:
            result = await self._in_thread(call)
        except NoSpace as exc:
            if exc.written_data is not None and self.failure is None:
                await self._truncate(exc.written_data)
            message = f"no space left for {self.path} ({exc}); it is complete up to record {self.written_seq:,}"
            raise DiskFull(message, path=self.path, hint="free_space_resume", durable_seq=self.durable_seq) from exc
        except SegmentChanged as exc:
            raise await self._in_thread(partial(self._segment_lost, exc.change)) from exc
        except OSError as exc:
            if isinstance(exc, FileNotFoundError) and not self._lock.is_in_place():  # Moved before a file was created.
                raise self._segment_lost("moved") from exc
            durable_seq = self.durable_seq
            message = f"cannot write {self.path} ({exc}); records up to {durable_seq:,} are on disk, later ones may be lost"
            raise WriteFailed(message, path=self.path, hint="check_disk", durable_seq=durable_seq) from exc
        if self.failure is not None:
            raise self.failure
        return result

    def _segment_lost(self, change: Change) -> SegmentLost:
        """Return the error for a segment that another process has changed or moved."""
        last_seq, hint = (self.written_seq, "move_back") if change == "moved" else last_intact_record(self.path, self.files)
        file = segments.name(self._file.segment or 1)
        return SegmentLost(path=self.path, file=file, change=change, durable_seq=last_seq, hint=hint)

    async def _truncate(self, written_data: bytes) -> None:
        """Remove an incomplete line from the end of the file, and sync."""
        lines: list[int] = []
        async with self._segment_lock:
            await self._call_in_thread(lambda: lines.append(self._file.truncate_to_lines(written_data)))
        self.written_seq += lines[0]
        self.durable_seq = self.written_seq

    def _fail(self, exc: BaseException) -> bool:
        """Write and confirm nothing from now on, and wake all waiting tasks. The first failure is kept.

        Return whether the block continues until its caller ends it; otherwise no more records are accepted.
        """
        is_first, on_segment_lost = self.failure is None, self.on_segment_lost
        self._is_open = self._is_open and on_segment_lost is not None and isinstance(self.failure or exc, SegmentLost)
        if self.failure is None:
            if isinstance(exc, JournalFailed):
                self.failure = exc
            else:  # Waiting tasks must not wait for a writer that has ended.
                message = f"the writer of {self.path} ended with {exc!r}"
                self.failure = WriteFailed(message, path=self.path, hint="resume", durable_seq=self.durable_seq)
        self._room_freed.set()
        self._lines.wake()
        self._sync_needed.set()
        self._wake(math.inf)
        if is_first and self._is_open and on_segment_lost is not None and isinstance(exc, SegmentLost):
            on_segment_lost(exc)
        return self._is_open


@asynccontextmanager
async def writing(
    path: Path | str,
    *,
    new: bool,
    clock: Clock | None = None,
    run: str | None = None,
    durability: Durability = "sync",
    files: Files = DISK,
    roll_at: int = segments.ROLL_AT,
    in_thread: InThread = run_in_thread,
    seal: bool = True,
) -> AsyncGenerator[Journal]:
    """Open a journal for writing, a `new` one or an existing one, until the block ends.

    `clock` returns the times of records (default: the system's clocks). On entry, a torn tail from a crash is set aside, and
    damage raises `JournalDamaged`. On exit, everything is synced and sealed, also after an exception. If writing fails, the
    block is cancelled (see `Journal.on_segment_lost` for an exception) and `JournalFailed` is raised. Without `seal`, the next
    writer continues in the same segment, which suits many short blocks.
    """
    path = Path(path)
    if durability not in get_args(Durability):
        raise ValueError(f"durability={durability!r}: expected 'sync' or 'os'")
    if run is not None and not re.fullmatch("[0-9a-f]{32}", run):
        raise ValueError(f"run={run!r}: expected 32 hexadecimal digits")
    end, lock, file = await in_thread(lambda: open_run(path, files, new=new, run=run))
    clock = clock or system_clock()
    journal = Journal(
        path, end, lock, file, clock=clock, durability=durability, roll_at=roll_at, in_thread=in_thread, seal=seal
    )
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal._run_task, journal._keep_writing)  # noqa: SLF001  # part of the class
            nursery.start_soon(journal._run_task, journal._keep_syncing)  # noqa: SLF001
            try:
                journal._start(end)  # noqa: SLF001
                yield journal
            finally:
                with trio.CancelScope(shield=True):
                    await journal._close()  # noqa: SLF001
            if journal.failure is not None:
                raise journal.failure
    except BaseExceptionGroup as group:
        failures, other_errors = group.split(lambda exc: exc is journal.failure)
        if other_errors is None and journal.failure is not None:
            raise journal.failure from journal.failure.__cause__
        if failures is None and len(group.exceptions) == 1:
            raise group.exceptions[0] from group.exceptions[0].__cause__  # Raised by the block; hide our nursery.
        raise
    finally:
        with trio.CancelScope(shield=True):
            await in_thread(journal._release)  # noqa: SLF001


def _clock_error(at: str, t: float) -> ValueError:
    return ValueError(f"the clock returned {(at, t)!r}")
