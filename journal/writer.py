"""The one who writes: events become lines, lines reach the system, the system confirms that they are on disk.

Three numbers say how far each step has come: `appended` ≥ `written` ≥ `durable`. `append` is a plain function and never waits;
two tasks carry the lines on, one writing, one syncing, each in a thread, so that a slow disk delays nobody but those who asked
to wait for it. There is no timer: what arrives during one sync is the batch of the next.
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
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import attrs
import trio

from journal import blobs, segments
from journal.codec import Blobs, encode
from journal.errors import (
    DiskFull,
    JournalClosed,
    JournalError,
    JournalFailed,
    NotAJournal,
    RecordTooLarge,
    WriteFailed,
    command,
)
from journal.events import Event, JournalRecovered, Record, SegmentOpened, SegmentSealed, Stamp, new_record
from journal.files import DISK, Files, sync_name
from journal.lifecycle import Lifecycle
from journal.lock import Lock
from journal.open import Found, find, make_room
from journal.segment_file import NO_SPACE, NoSpace, SegmentFile
from journal.threads import InThread, run_in_thread

if TYPE_CHECKING:
    from hashlib import _Hash

RECORD_LIMIT: Final = 1 << 20
"""A line is no longer than this many bytes, its hash not counted."""

_AGES: Final = 1e12
"""Seconds: more than any clock shows that is not broken."""

PENDING_LIMIT: Final = 64 << 20
"""While more than this many bytes wait to be written, intake waits too."""

Durability = Literal["sync", "os"]
"""Whether a record is promised to survive a power cut, or only the death of the process."""


@attrs.define
class _Segment:
    """The file that lines are being built for: how long it will be, and what its bytes will add up to."""

    number: int
    before: int
    """The last record before its first."""
    bytes: int
    digest: "_Hash"
    """Of the lines that were handed over to be written; see `Journal._digest`."""


@attrs.define
class _Batch:
    """Lines that are written together, into one file, after the values that they point to."""

    segment: int
    first: int
    """The first record among the lines."""
    lines: list[bytes] = attrs.field(factory=list)
    values: dict[str, bytes] = attrs.field(factory=dict)


class Journal:
    """An open journal: takes events, and says how safe they are."""

    # Python 3.11 keeps thirty attributes at hand and looks more up in a dict, which made a twentieth of what a trial costs.
    __slots__ = (
        "_asked",
        "_batches",
        "_changing",
        "_demanded",
        "_done",
        "_durability",
        "_durable",
        "_failure",
        "_files",
        "_h",
        "_home",
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
        "_stamp",
        "_tape",
        "_to_sync",
        "_to_write",
        "_waiting",
        "_written",
        "initial_seq",
        "lifecycle",
        "path",
        "recovered",
        "run",
    )

    def __init__(
        self,
        path: Path,
        found: Found,
        lock: Lock,
        *,
        stamp: Stamp,
        files: Files,
        durability: Durability,
        roll_at: int,
        in_thread: InThread,
    ) -> None:
        self.path = path
        self.run = found.run
        """Identity of the run."""
        self.initial_seq = found.seq
        """The last record that was there when it was opened; 0 for a new one."""
        self.recovered: Record | None = None
        """The record of what a crash had left, if it was set aside when the journal was opened."""
        self.lifecycle: Lifecycle = found.lifecycle
        """Where the run and its trials stand."""
        self._run = found.run.encode()
        self._stamp = stamp
        self._durability: Durability = durability
        self._roll_at = roll_at
        self._in_thread = in_thread
        self._lock = lock
        self._files = files
        self._tape = SegmentFile(path, files)

        # The end of the chain, and the lines that wait to be written.
        self._seq = found.seq
        self._h = found.h
        self._segment = _Segment(found.segment, found.seq - found.records, found.bytes, found.digest)
        self._batches: deque[_Batch] = deque([_Batch(found.segment, found.seq + 1)])
        self._pending = 0

        # How far writing and syncing have come; what was found is durable.
        self._written = found.seq
        self._durable = found.seq
        self._demanded = 0
        """Sync up to here, whatever the durability."""
        self._changing = trio.Lock()
        """Held while the file is synced or left for the next one: a file must not be closed under a sync."""

        self._failure: JournalFailed | None = None
        self._is_open = True
        """Whether it takes records."""
        self._done = False
        self._is_sealed = False
        self._idle = False
        self._to_write = trio.Event()
        self._to_sync = trio.Event()
        self._room = trio.Event()
        self._waiting: list[tuple[int, int, trio.Event]] = []
        """Who waits for news of which record, the earliest first; the middle number keeps equals in order."""
        self._asked = 0
        self._home = 0
        """The thread that records come from."""

        if found.is_open:
            self._tape.go_on(found.segment, found.bytes)

    def _begin_with(self, found: Found) -> None:
        """Begin the file that is needed, and say what a crash had left."""
        self._home = get_ident()
        if not found.is_open:
            self._begin(*self._time())
        if found.aside:
            self.recovered = self.append(
                JournalRecovered(after=found.seq, bytes=found.aside.bytes, file=found.aside.file),
            )

    @property
    def appended(self) -> int:
        """The last record that was taken."""
        return self._seq

    @property
    def written(self) -> int:
        """The last record that reached the operating system: it survives the death of this process."""
        return self._written

    @property
    def durable(self) -> int:
        """The last record that is confirmed on disk: it survives a power cut."""
        return self._durable

    @property
    def head(self) -> str:
        """The hash of the last record that was taken."""
        return self._h.decode()

    @property
    def failure(self) -> JournalFailed | None:
        """Why the journal takes nothing more, if the disk has refused."""
        return self._failure

    @trio.lowlevel.enable_ki_protection
    def append(self, event: Event, when: float | None = None) -> Record:
        """Take an event into the journal. Never waits; raises, and changes nothing, if it cannot be taken.

        `when` is used as its `t` instead of the stamp's, for what was decided at a time that has just passed.
        """
        if not self._is_open or get_ident() != self._home or not self._lock.is_held:
            raise self._refusal()
        at, t = self._time()
        if when is not None:
            t = when
        body = encode(event, self._seq + 1, at, t, self._durable)
        large: dict[str, bytes] = {}
        elsewhere: Blobs | None = None
        if len(body) > blobs.LIMIT:
            large = blobs.too_large(event)
            elsewhere = blobs.references(large)
            body = encode(event, self._seq + 1, at, t, self._durable, elsewhere=elsewhere)
            if len(body) > RECORD_LIMIT:
                raise RecordTooLarge(
                    f"{type(event).__name__} would be {len(body):,} bytes long, and a record may have {RECORD_LIMIT:,}; "
                    "nothing was written. Only inputs, outputs and notes may be longer",
                )
        self.lifecycle.advance(event)  # What is above may raise, and nothing has changed yet.
        if self._segment.bytes >= self._roll_at:
            self._seal(at, t)
            self._begin(at, t)
            body = encode(event, self._seq + 1, at, t, self._durable, elsewhere=elsewhere)
        for value in large.values():
            values, name = self._batches[-1].values, sha256(value).hexdigest()
            self._pending += 0 if name in values else len(value)  # The same value is written once.
            values[name] = value
        return self._add(event, body, at, t)

    def _refusal(self) -> JournalError:
        if self._failure is not None:
            return self._failure
        if not self._is_open:
            return JournalClosed(f"{self.path} was closed; it takes no more records")
        return JournalClosed(f"{self.path} takes records only from the thread and the process that opened it")

    async def wait_durable(self, seq: int) -> None:
        """Wait until the record is as safe as this journal's durability promises: on disk, or (`os`) with the system."""
        if seq > self._seq:
            raise ValueError(f"record {seq} was not taken yet, the last is {self._seq}")
        await trio.lowlevel.checkpoint()
        while seq > (self._durable if self._durability == "sync" else self._written):
            await self._wait(seq)

    async def wait_room(self) -> None:
        """Wait while too much is pending; intake calls it, so that a slow disk slows the run and does not fill the memory."""
        await trio.lowlevel.checkpoint()
        while self._pending > PENDING_LIMIT:
            if self._failure is not None:
                raise self._failure
            if self._room.is_set():
                self._room = trio.Event()
            await self._room.wait()

    async def _keep_writing(self) -> None:
        """Carry lines to the system until the journal is closed; raise if the disk refuses."""
        while not self._is_over:
            while self._batches[0].lines:
                batch = self._batches.popleft()
                if not self._batches:
                    self._batches.append(_Batch(batch.segment, self._seq + 1))
                if batch.segment == self._segment.number:  # Otherwise its file is sealed, and its sum was taken.
                    self._segment.digest.update(b"".join(batch.lines))
                await self._write(batch)
            self._idle = True
            self._to_write = trio.Event()
            if not self._is_over:
                await self._to_write.wait()

    async def _keep_syncing(self) -> None:
        """Force what was written to the disk until the journal is closed; raise if the disk refuses."""
        while not self._is_over:
            while self._durable < self._written and (self._durability == "sync" or self._demanded > self._durable):
                async with self._changing:
                    target = self._written
                    await self._guarded(lambda: self._sync(target))  # noqa: B023  # called at once
                self._confirm(target)
            self._to_sync = trio.Event()
            if not self._is_over:
                await self._to_sync.wait()

    @trio.lowlevel.enable_ki_protection
    async def _carry(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do one of the two things that must not end before the journal is closed; if it does, nobody may wait for it."""
        try:
            with trio.CancelScope(shield=True):  # Who is cancelled still closes the journal, and needs this to the end.
                await work()
        except BaseException as exc:
            self._fail(exc)
            raise

    @trio.lowlevel.enable_ki_protection
    async def _close(self) -> None:
        """Seal the journal once everything in it is durable, and let the two tasks end."""
        self._is_open = False
        try:
            if self._failure is None:
                await self._wait_synced()
                await self._guarded(self._check_place)
                self._seal(*self._time())  # Not before: a seal says that everything in front of it is durable.
                await self._wait_synced()
                self._is_sealed = True
        finally:
            self._done = True
            self._to_write.set()
            self._to_sync.set()

    def _let_go(self) -> None:
        """Close the file and let the next writer in; when nobody writes any more, and in a thread."""
        try:
            self._tape.close(sealed=self._is_sealed)
        finally:
            self._lock.release()

    @property
    def _is_over(self) -> bool:
        return self._done or self._failure is not None

    def _time(self) -> tuple[str, float]:
        """Ask for the time, which is the caller's to tell: it may raise, and it may be none."""
        at, t = self._stamp()
        if not -_AGES < t < _AGES:
            raise ValueError(f"the stamp {(at, t)!r} is not a time")
        return at, int(t * 1e6 + 0.5) / 1e6  # As `round` does from 0 on, for half the price.

    def _add(self, event: Event, body: bytes, at: str, t: float) -> Record:
        """Put a record at the end; its body was made for this place."""
        seq = self._seq + 1
        digits = sha256(self._run + self._h + body).hexdigest()[:32]  # As `chain.link` does, without the calls.
        h = digits.encode()
        line = b'%b,"h":"%b"}\n' % (body, h)  # As `chain.close` does.
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

    def _begin(self, at: str, t: float) -> None:
        """Begin the next file: its first record says which run it belongs to and what stands before it."""
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
        """Give the sum of the file as far as lines were built for it; those that wait to be written are added up here."""
        segment, batch = self._segment, self._batches[-1]
        if batch.segment != segment.number:
            return segment.digest.hexdigest()
        digest = segment.digest.copy()
        digest.update(b"".join(batch.lines))
        return digest.hexdigest()

    def _seal(self, at: str, t: float) -> None:
        segment = self._segment
        seal = SegmentSealed(
            run=self.run,
            segment=segment.number,
            records=self._seq - segment.before,
            bytes=segment.bytes,
            sha256=self._digest(),
        )
        self._add(seal, encode(seal, self._seq + 1, at, t, self._durable), at, t)

    async def _wait(self, seq: int) -> None:
        """Wait until there is news of this record, good or bad."""
        if self._failure is not None:
            raise self._failure
        news = trio.Event()
        self._asked += 1
        heapq.heappush(self._waiting, (seq, self._asked, news))
        await news.wait()

    async def _wait_synced(self) -> None:
        self._demanded = target = self._seq
        self._to_sync.set()
        while self._durable < target:
            await self._wait(target)

    def _confirm(self, seq: int) -> None:
        self._durable = max(self._durable, seq)
        self._tell(self._durable)

    def _tell(self, seq: float) -> None:
        """Wake those who wait for records up to here."""
        while self._waiting and self._waiting[0][0] <= seq:
            heapq.heappop(self._waiting)[2].set()

    async def _write(self, batch: _Batch) -> None:
        if batch.segment != self._tape.segment:
            async with self._changing:
                await self._guarded(self._check_place)
                await self._guarded(self._tape.finish)
                self._confirm(self._written)
                await self._guarded(lambda: self._tape.begin(batch.segment, batch.lines[0]))
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
            self._tell(self._written)

    def _check_place(self) -> None:
        """Make sure that a new file would stand where the others are, and that nobody else writes there."""
        if not self._lock.is_in_place():
            raise OSError(errno.ESTALE, "the run's directory was moved or its LOCK was removed while it was written")

    # These two run in a thread. Handing work to a thread costs as much as building a few lines; so, while lines keep coming
    # and nobody waits for them, it rests a moment before it asks for more.

    def _write_lines(self, data: bytes, values: Mapping[str, bytes]) -> None:
        self._tape.write(data, values)
        if self._batches[0].lines and not self._waiting:
            self._files.pause()

    def _sync(self, target: int) -> None:
        self._tape.sync()
        if self._written > target and not self._waiting:
            self._files.pause()

    async def _guarded(self, call: Callable[[], None]) -> None:
        """Make a call in a thread; once the disk has refused, nothing more is taken, written or confirmed."""
        if self._failure is not None:
            raise self._failure
        try:
            await self._in_thread(call)
        except NoSpace as exc:
            if exc.partly is not None and self._failure is None:
                await self._cut_back(exc.partly)
            raise DiskFull(
                f"there is no space left for {self.path} ({exc}); it is whole up to record {self._written:,}. "
                f"Make space, then {command('resume', self.path)} goes on",
                durable=self._durable,
            ) from exc
        except OSError as exc:
            raise WriteFailed(
                f"the disk failed under {self.path} ({exc}); up to record {self._durable:,} it is confirmed on disk, "
                f"what came after is not. See to the disk, then {command('resume', self.path)} goes on",
                durable=self._durable,
            ) from exc
        if self._failure is not None:
            raise self._failure

    async def _cut_back(self, partly: bytes) -> None:
        """Leave the file as it was behind its last whole line, on disk."""
        kept: list[int] = []
        async with self._changing:
            await self._guarded(lambda: kept.append(self._tape.cut_back(partly)))
        self._written += kept[0]
        self._durable = self._written

    def _fail(self, exc: BaseException) -> None:
        """Take, write and confirm nothing from now on, and tell everyone who waits. The first reason is the one that counts."""
        self._is_open = False
        if self._failure is None:
            if isinstance(exc, JournalFailed):
                self._failure = exc
            else:  # Not the disk's doing, but whoever waits must not wait for a writer that is gone.
                self._failure = WriteFailed(f"the writer of {self.path} was ended by {exc!r}", durable=self._durable)
        self._room.set()
        self._to_write.set()
        self._to_sync.set()
        self._tell(math.inf)


def _enter(path: Path, *, new: bool, run: str | None, files: Files, **settings: Any) -> tuple[Journal, Found]:
    """Take the lock and find out where to go on; blocking, so it is called in a thread."""
    if new:
        make_room(path, files)
    else:
        try:
            segments.numbers(path, files)
        except NotAJournal:
            if files.size(str(path / "LOCK")) is None:
                raise  # Leave no lock behind where nobody ever wrote.
        sync_name(files, str(path))
    lock = Lock(path, files)
    try:
        found = find(path, files, new=new, run=run or uuid.uuid4().hex)
        return Journal(path, found, lock, files=files, **settings), found
    except BaseException:
        lock.release()
        raise


@asynccontextmanager
async def writing(
    path: Path | str,
    *,
    stamp: Stamp,
    new: bool,
    run: str | None = None,
    durability: Durability = "sync",
    files: Files = DISK,
    roll_at: int = segments.ROLL_AT,
    in_thread: InThread = run_in_thread,
) -> AsyncGenerator[Journal]:
    """Write a journal, a `new` one or one that is there already, until the block ends.

    `stamp` gives records their times. A crash before is mended on the way in; damage is refused. On the way out everything
    is synced and sealed, whatever ended the block. If the disk refuses, the block is cancelled and `JournalFailed` raised.
    """
    path = Path(path)
    if durability not in get_args(Durability):
        raise ValueError(f"durability is 'sync' or 'os', not {durability!r}")
    if run is not None and not re.fullmatch("[0-9a-f]{32}", run):
        raise ValueError(f"a run's identity has 32 hexadecimal digits, {run!r} has not")
    enter = functools.partial(
        _enter, path, new=new, run=run, stamp=stamp, files=files, durability=durability, roll_at=roll_at, in_thread=in_thread
    )
    try:
        journal, found = await in_thread(enter)
    except OSError as exc:
        if exc.errno in NO_SPACE:
            raise DiskFull(f"there is no space left to open {path} ({exc}); nothing is lost, make space and try again") from exc
        if new:
            raise JournalError(f"no run can be made in {path} ({exc}); nothing was begun, choose a place to write to") from exc
        raise JournalError(f"{path} cannot be opened for writing ({exc}); nothing that was confirmed is lost") from exc
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal._carry, journal._keep_writing)  # noqa: SLF001  # one thing, in two places
            nursery.start_soon(journal._carry, journal._keep_syncing)  # noqa: SLF001
            try:
                journal._begin_with(found)  # noqa: SLF001
                yield journal
            finally:
                with trio.CancelScope(shield=True):
                    await journal._close()  # noqa: SLF001
    except BaseExceptionGroup as group:
        failed, rest = group.split(lambda exc: exc is journal.failure)
        if rest is None and journal.failure is not None:
            raise journal.failure from journal.failure.__cause__
        if failed is None and len(group.exceptions) == 1:
            raise group.exceptions[0] from group.exceptions[0].__cause__  # The block's own; the nursery is our affair.
        raise
    finally:
        with trio.CancelScope(shield=True):
            await in_thread(journal._let_go)  # noqa: SLF001
