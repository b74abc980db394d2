"""The journal writer: encode, write, sync.

Three numbers show the progress: `appended` ≥ `written` ≥ `durable`. `append` never waits; one task writes lines and one task
syncs them, each in a thread, so a slow disk delays only callers of `wait_durable`. There is no timer: the records that arrive
during one sync are the batch of the next.
"""

import errno
import functools
import heapq
import math
import re
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args

import attrs
import trio

from journal import blobs, chain, ownership, segments
from journal.clock import Clock, system_clock
from journal.codec import MAX_TIME, RECORD_LIMIT, Blobs, encode
from journal.errors import (
    DiskFull,
    JournalClosed,
    JournalError,
    JournalFailed,
    NotAJournal,
    RecordTooLarge,
    SegmentLost,
    WriteFailed,
)
from journal.events import Event, JournalRecovered, Record, SegmentOpened, SegmentSealed, new_record
from journal.files import DISK, Files, sync_name
from journal.lifecycle import Lifecycle
from journal.lock import Lock
from journal.open import JournalEnd, create_directory, find_end
from journal.segment_file import NO_SPACE, NoSpace, SegmentChanged, SegmentFile
from journal.threads import InThread, run_in_thread

if TYPE_CHECKING:
    from hashlib import _Hash

T = TypeVar("T")

PENDING_LIMIT: Final = 64 << 20
"""Bytes waiting to be written above which `wait_room` waits."""

Durability = Literal["sync", "os"]
"""`sync`: records survive a power failure; `os`: only the death of the process."""


@attrs.define
class _Segment:
    """The segment that records are being added to; the file itself may be behind."""

    number: int
    before: int
    """The last record before it."""
    bytes: int
    digest: "_Hash"
    """SHA-256 of the lines passed to the writer task; see `Journal._digest`."""


@attrs.define
class _Batch:
    """Lines of one segment that are written together, after their blobs."""

    segment: int
    first: int
    """Number of the first record."""
    lines: list[bytes] = attrs.field(factory=list)
    values: dict[str, bytes] = attrs.field(factory=dict)


class Journal:
    """A journal that is open for writing."""

    # Python 3.11 inlines only 30 attributes; without slots, the others cost 5 % of the time per trial.
    __slots__ = (
        "_batches",
        "_changing",
        "_clock",
        "_demanded",
        "_done",
        "_durability",
        "_durable",
        "_failure",
        "_file",
        "_files",
        "_h",
        "_idle",
        "_in_thread",
        "_is_open",
        "_is_sealed",
        "_lock",
        "_pending",
        "_roll_at",
        "_room",
        "_run",
        "_segment",
        "_seq",
        "_thread",
        "_to_sync",
        "_to_write",
        "_wait_order",
        "_waiting",
        "_written",
        "initial_seq",
        "lifecycle",
        "on_segment_lost",
        "path",
        "recovered",
        "run",
    )

    def __init__(
        self,
        path: Path,
        end: JournalEnd,
        lock: Lock,
        *,
        clock: Clock,
        files: Files,
        durability: Durability,
        roll_at: int,
        in_thread: InThread,
    ) -> None:
        self.path = path
        self.run = end.run
        self.initial_seq = end.seq
        """The last record when the journal was opened; 0 for a new one."""
        self.recovered: Record | None = None
        """The `JournalRecovered` record, if a torn tail was set aside when the journal was opened."""
        self.lifecycle: Lifecycle = end.lifecycle
        """Stages of the run and its trials."""
        self.on_segment_lost: Callable[[SegmentLost], None] | None = None
        """Called if another process deletes or truncates the segment. From then on, records are accepted and discarded, until
        the block of `writing` ends and raises; without it, the block is cancelled at once."""
        self._run = end.run.encode()
        self._clock = clock
        self._durability: Durability = durability
        self._roll_at = roll_at
        self._in_thread = in_thread
        self._lock = lock
        self._files = files
        self._file = SegmentFile(path, files)

        # The end of the chain, and the lines that are not written yet.
        self._seq = end.seq
        self._h = end.h
        self._segment = _Segment(end.segment, end.seq - end.records, end.bytes, end.digest)
        self._batches: deque[_Batch] = deque([_Batch(end.segment, end.seq + 1)])
        self._pending = 0

        # Progress of writing and syncing; recovery has made the existing records durable.
        self._written = end.seq
        self._durable = end.seq
        self._demanded = 0
        """Records up to here must be synced even with durability `os`."""
        self._changing = trio.Lock()
        """Held during a sync and while moving to the next segment, so that no file is closed during a sync."""

        self._failure: JournalFailed | None = None
        self._is_open = True
        self._done = False
        self._is_sealed = False
        self._idle = False
        self._to_write = trio.Event()
        self._to_sync = trio.Event()
        self._room = trio.Event()
        self._waiting: list[tuple[int, int, trio.Event]] = []
        """Heap of (record, order, event to set when the record's state changes)."""
        self._wait_order = 0
        self._thread = 0
        """The thread that may append."""

        if end.is_open:
            self._file.open_existing(end.segment, end.bytes, end.seq - end.records + 1)

    def _start(self, end: JournalEnd) -> None:
        """Start a segment if needed, and record a recovery."""
        self._thread = get_ident()
        if not end.is_open:
            self._open_segment(*self._time())
        if end.torn:
            self.recovered = self.append(JournalRecovered(last_seq=end.seq, bytes=end.torn.bytes, file=end.torn.file))

    @property
    def appended(self) -> int:
        """The last appended record."""
        return self._seq

    @property
    def written(self) -> int:
        """The last record that was handed to the operating system; it survives the death of this process."""
        return self._written

    @property
    def durable(self) -> int:
        """The last record that is confirmed on disk; it survives a power failure."""
        return self._durable

    @property
    def head(self) -> str:
        """Hash of the last appended record."""
        return self._h.decode()

    @property
    def failure(self) -> JournalFailed | None:
        """Why the journal accepts no more records, if writing failed."""
        return self._failure

    @trio.lowlevel.enable_ki_protection
    def append(
        self, event: Event, when: float | None = None, in_blobs: Blobs | None = None, *, key: bytes | None = None
    ) -> Record:
        """Append an event. Never waits; raises, and changes nothing, if the event is rejected.

        `when` replaces the clock's `t`, for a decision made slightly earlier; `in_blobs` is the result of `write_blobs`; with a
        `key`, the record is signed (see `journal.ownership`).
        """
        if not self._is_open or get_ident() != self._thread or not self._lock.is_held:
            raise self._closed()
        at, t = self._time()
        if when is not None:
            t = when
        body = encode(event, self._seq + 1, at, t, self._durable, in_blobs=in_blobs)
        large: dict[str, bytes] = {}
        if len(body) > blobs.LIMIT:
            if not in_blobs:
                large = blobs.large_fields(event)
                in_blobs = blobs.references(large)
                body = encode(event, self._seq + 1, at, t, self._durable, in_blobs=in_blobs)
            if len(body) > RECORD_LIMIT:
                raise RecordTooLarge(type(event).__name__, size=len(body), limit=RECORD_LIMIT)
        self.lifecycle.advance(event)  # The last call that may raise; nothing has changed so far.
        if self._segment.bytes >= self._roll_at:
            self._seal(at, t)
            self._open_segment(at, t)
            body = encode(event, self._seq + 1, at, t, self._durable, in_blobs=in_blobs)
        if in_blobs and large:
            self._add_blobs({in_blobs[field]["sha256"]: value for field, value in large.items()})
        if key is not None:
            body = ownership.sign(body, key, self._run, self._h)
        return self._add(event, body, at, t)

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
            large = blobs.large_fields(event)
            in_blobs = blobs.references(large)
            self._file.write_blobs({in_blobs[field]["sha256"]: value for field, value in large.items()})
            return in_blobs

        try:
            return await self._guarded(write)
        except JournalFailed as exc:
            self._fail(exc)
            raise

    def _closed(self) -> JournalError:
        if self._failure is not None:
            return self._failure
        if not self._is_open:
            return JournalClosed(f"{self.path} is closed; it accepts no more records", path=self.path)
        return JournalClosed(f"{self.path} accepts records only from the thread and process that opened it", path=self.path)

    async def wait_durable(self, seq: int) -> None:
        """Wait until the record is on disk, or with durability `os` until it was handed to the operating system."""
        if seq > self._seq:
            raise ValueError(f"record {seq} does not exist; the last one is {self._seq}")
        await trio.lowlevel.checkpoint()
        while seq > (self._durable if self._durability == "sync" else self._written):
            await self._wait(seq)

    async def wait_room(self) -> None:
        """Wait while too much data is pending, so that a slow disk slows the run down instead of filling the memory."""
        await trio.lowlevel.checkpoint()
        while self._pending > PENDING_LIMIT:
            if self._failure is not None:
                raise self._failure
            if self._room.is_set():
                self._room = trio.Event()
            await self._room.wait()

    async def _keep_writing(self) -> None:
        """Write lines until the journal is closed; raise if that fails."""
        while not self._is_ended:
            while self._batches[0].lines:
                batch = self._batches.popleft()
                if not self._batches:
                    self._batches.append(_Batch(batch.segment, self._seq + 1))
                if batch.segment == self._segment.number:  # Otherwise the segment is sealed and its digest was computed.
                    self._segment.digest.update(b"".join(batch.lines))
                await self._write(batch)
            self._idle = True
            self._to_write = trio.Event()
            if not self._is_ended:
                await self._to_write.wait()

    async def _keep_syncing(self) -> None:
        """Sync what was written until the journal is closed; raise if that fails."""
        while not self._is_ended:
            while self._durable < self._written and (self._durability == "sync" or self._demanded > self._durable):
                async with self._changing:
                    target = self._written
                    await self._guarded(lambda: self._sync(target))  # noqa: B023  # called at once
                self._confirm(target)
            self._to_sync = trio.Event()
            if not self._is_ended:
                await self._to_sync.wait()

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
        """Seal the journal when everything in it is durable, and end the two tasks."""
        self._is_open = False
        try:
            if self._failure is None:
                await self._wait_synced()
                await self._guarded(self._check_files)
                self._seal(*self._time())  # A seal confirms that everything before it is durable.
                await self._wait_synced()
                self._is_sealed = True
        finally:
            self._done = True
            self._to_write.set()
            self._to_sync.set()

    def _release(self) -> None:
        """Close the file and release the lock; blocking."""
        try:
            self._file.blobs.close()
            self._file.close(sealed=self._is_sealed)
        finally:
            self._lock.release()

    @property
    def _is_ended(self) -> bool:
        return self._done or self._failure is not None

    def _time(self) -> tuple[str, float]:
        """Read the clock; `t` is rounded to microseconds."""
        at, t = self._clock()
        if not -MAX_TIME < t < MAX_TIME:
            raise ValueError(f"the clock returned {(at, t)!r}")
        return at, int(t * 1e6 + 0.5) / 1e6  # Twice as fast as `round`.

    def _add(self, event: Event, body: bytes, at: str, t: float) -> Record:
        """Add a record with this body at the end."""
        seq = self._seq + 1
        digits = chain.link(self._run, self._h, body)
        h = digits.encode()
        line = chain.add_hash(body, h)
        segment, batch, length = self._segment, self._batches[-1], len(line)
        record = new_record(Record, (seq, at, t, event, self._durable, digits, segment.number, segment.bytes))
        segment.bytes += length
        batch.lines.append(line)
        self._pending += length
        self._seq = seq
        self._h = h
        if self._idle:
            self._idle = False
            self._to_write.set()
        return record

    def _add_blobs(self, values: Mapping[str, bytes]) -> None:
        """Add blobs that must be written before the next line."""
        new = {name: value for name, value in values.items() if name not in self._batches[-1].values}
        self._batches[-1].values.update(new)
        self._pending += sum(map(len, new.values()))
        if self._in_thread is run_in_thread:
            for name, value in new.items():
                self._file.blobs.start(name, value)  # At once, while the lines before it are written.

    def _open_segment(self, at: str, t: float) -> None:
        """Start the next segment with its first record."""
        before = self._segment
        opened = SegmentOpened(
            format=segments.FORMAT,
            version=segments.VERSION,
            run=self.run,
            segment=before.number + 1,
            previous_seq=self._seq,
            previous_h=self.head if self._seq else "",
            previous_bytes=before.bytes,
            previous_sha256=self._digest() if self._seq else "",
        )
        self._segment = _Segment(before.number + 1, self._seq, 0, sha256())
        self._batches.append(_Batch(self._segment.number, self._seq + 1))
        if not self._batches[0].lines:
            self._batches.popleft()
        self._add(opened, encode(opened, self._seq + 1, at, t, self._durable), at, t)

    def _digest(self) -> str:
        """Return the SHA-256 of the segment, including lines that are not written yet."""
        segment, batch = self._segment, self._batches[-1]
        if batch.segment != segment.number:
            return segment.digest.hexdigest()
        digest = segment.digest.copy()
        digest.update(b"".join(batch.lines))
        return digest.hexdigest()

    def _seal(self, at: str, t: float) -> None:
        segment = self._segment
        seal = SegmentSealed(
            run=self.run, segment=segment.number, records=self._seq - segment.before, bytes=segment.bytes, sha256=self._digest()
        )
        self._add(seal, encode(seal, self._seq + 1, at, t, self._durable), at, t)

    async def _wait(self, seq: int) -> None:
        """Wait until the state of this record may have changed; raise if writing failed."""
        if self._failure is not None:
            raise self._failure
        changed = trio.Event()
        self._wait_order += 1
        heapq.heappush(self._waiting, (seq, self._wait_order, changed))
        await changed.wait()

    async def _wait_synced(self) -> None:
        self._demanded = target = self._seq
        self._to_sync.set()
        while self._durable < target:
            await self._wait(target)

    def _confirm(self, seq: int) -> None:
        self._durable = max(self._durable, seq)
        self._wake(self._durable)

    def _wake(self, seq: float) -> None:
        """Wake the tasks that wait for records up to here."""
        while self._waiting and self._waiting[0][0] <= seq:
            heapq.heappop(self._waiting)[2].set()

    async def _write(self, batch: _Batch) -> None:
        if batch.segment != self._file.segment:
            async with self._changing:
                await self._guarded(self._check_files)
                await self._guarded(self._file.finish)
                self._confirm(self._written)
                await self._guarded(lambda: self._file.create(batch.segment, batch.lines[0], batch.first))
            self._written = batch.first
            self._confirm(batch.first)
            lines = batch.lines[1:]
        else:
            lines = batch.lines
        data = b"".join(lines)
        await self._guarded(lambda: self._write_lines(data, batch.values))
        self._written = batch.first + len(batch.lines) - 1
        self._pending -= sum(map(len, batch.lines)) + sum(map(len, batch.values.values()))
        self._room.set()
        self._to_sync.set()
        if self._durability == "os":
            self._wake(self._written)

    def _check_files(self) -> None:
        """Check that the open file is intact, and that a new one would be created in the locked directory."""
        self._file.check()
        if not self._lock.is_in_place():
            raise OSError(errno.ESTALE, "the run's directory was moved or its LOCK was removed")

    # These two run in a thread. Starting a thread costs as much as encoding a few lines, so while lines keep coming and no task
    # waits for them, they pause to collect a larger batch.

    def _write_lines(self, data: bytes, values: Mapping[str, bytes]) -> None:
        self._file.write_blobs(values)
        self._file.write(data)
        if self._batches[0].lines and not self._waiting:
            self._files.pause()

    def _sync(self, target: int) -> None:
        self._file.sync()
        if self._written > target and not self._waiting:
            self._files.pause()

    async def _guarded(self, call: Callable[[], T]) -> T:
        """Make a call in a thread and translate its errors; raise at once if writing has failed before."""
        if self._failure is not None:
            raise self._failure
        try:
            result = await self._in_thread(call)
        except NoSpace as exc:
            if exc.written is not None and self._failure is None:
                await self._truncate(exc.written)
            message = f"no space left for {self.path} ({exc}); it is complete up to record {self._written:,}"
            raise DiskFull(message, path=self.path, hint="free_space_resume", durable=self._durable) from exc
        except SegmentChanged as exc:
            raise await self._in_thread(self._segment_lost) from exc
        except OSError as exc:
            message = f"cannot write {self.path} ({exc}); records up to {self._durable:,} are on disk, later ones may be lost"
            raise WriteFailed(message, path=self.path, hint="check_disk", durable=self._durable) from exc
        if self._failure is not None:
            raise self._failure
        return result

    def _segment_lost(self) -> SegmentLost:
        """Return the error for a segment that another process has deleted or truncated."""
        file, lines = self._file, self._file.lines_left()
        intact = file.first - 1 + min(lines or 0, self._written - file.first + 1)
        is_readable = intact and (lines is None or lines > 0)
        return SegmentLost(
            path=self.path,
            file=segments.name(file.segment),
            intact=intact,
            is_deleted=lines is None,
            hint="resume" if is_readable else "salvage" if intact else None,
        )

    async def _truncate(self, written: bytes) -> None:
        """Remove an incomplete line from the end of the file, and sync."""
        lines: list[int] = []
        async with self._changing:
            await self._guarded(lambda: lines.append(self._file.truncate_to_lines(written)))
        self._written += lines[0]
        self._durable = self._written

    def _fail(self, exc: BaseException) -> bool:
        """Write and confirm nothing from now on, and wake all waiting tasks. The first failure is kept.

        Return whether the block goes on until its caller ends it; otherwise no more records are accepted.
        """
        is_first, on_segment_lost = self._failure is None, self.on_segment_lost
        self._is_open = self._is_open and on_segment_lost is not None and isinstance(self._failure or exc, SegmentLost)
        if self._failure is None:
            if isinstance(exc, JournalFailed):
                self._failure = exc
            else:  # Waiting tasks must not wait for a writer that has ended.
                message = f"the writer of {self.path} ended with {exc!r}"
                self._failure = WriteFailed(message, path=self.path, hint="resume", durable=self._durable)
        self._room.set()
        self._to_write.set()
        self._to_sync.set()
        self._wake(math.inf)
        if is_first and self._is_open and on_segment_lost is not None and isinstance(exc, SegmentLost):
            on_segment_lost(exc)
        return self._is_open


def _open(path: Path, *, new: bool, run: str | None, files: Files, **settings: Any) -> tuple[Journal, JournalEnd]:
    """Take the lock and open the journal; blocking."""
    if new:
        create_directory(path, files)
    else:
        try:
            segments.numbers(path, files)
        except NotAJournal:
            if files.size(str(path / "LOCK")) is None:
                raise  # Without creating a LOCK in a directory that is not a run.
        sync_name(files, str(path))
    lock = Lock(path, files)
    try:
        end = find_end(path, files, new=new, run=run or uuid.uuid4().hex)
        return Journal(path, end, lock, files=files, **settings), end
    except BaseException:
        lock.release()
        raise


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
) -> AsyncGenerator[Journal]:
    """Open a journal for writing, a `new` one or an existing one, until the block ends.

    `clock` returns the times of records (default: the system's clocks). On entry, a torn tail from a crash is set aside, and
    damage raises `JournalDamaged`. On exit, everything is synced and sealed, also after an exception. If writing fails, the
    block is cancelled and `JournalFailed` is raised.
    """
    path = Path(path)
    if durability not in get_args(Durability):
        raise ValueError(f"durability={durability!r}: expected 'sync' or 'os'")
    if run is not None and not re.fullmatch("[0-9a-f]{32}", run):
        raise ValueError(f"run={run!r}: expected 32 hexadecimal digits")
    times = clock or system_clock()
    open_ = functools.partial(
        _open, path, new=new, run=run, clock=times, files=files, durability=durability, roll_at=roll_at, in_thread=in_thread
    )
    try:
        journal, end = await in_thread(open_)
    except OSError as exc:
        if exc.errno in NO_SPACE:
            message = f"no space left to open {path} ({exc}); no records are lost"
            raise DiskFull(message, path=path, hint="free_space") from exc
        if new:
            raise JournalError(f"cannot create a run in {path} ({exc})", path=path, hint="choose_path") from exc
        raise JournalError(f"cannot open {path} for writing ({exc}); no records are lost", path=path) from exc
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
        failed, others = group.split(lambda exc: exc is journal.failure)
        if others is None and journal.failure is not None:
            raise journal.failure from journal.failure.__cause__
        if failed is None and len(group.exceptions) == 1:
            raise group.exceptions[0] from group.exceptions[0].__cause__  # Raised by the block; hide our nursery.
        raise
    finally:
        with trio.CancelScope(shield=True):
            await in_thread(journal._release)  # noqa: SLF001
