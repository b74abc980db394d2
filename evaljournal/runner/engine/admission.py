"""Admits trials slightly ahead of need: all of a new run, and the remaining ones of a resumed run.

Cases are read in a thread and recorded in the loop.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import trio

from evaljournal.journal.errors import JournalError, SegmentLost
from evaljournal.journal.threads import InThread
from evaljournal.runner.engine.jobs import TrialWork
from evaljournal.runner.engine.scheduler import Scheduler
from evaljournal.runner.retries.classify import describe
from evaljournal.runner.signals import is_from_signal

READ_TIME: Final = 0.02
"""Seconds after which the trials read so far are admitted, for datasets that are slow to read."""


class TrialSource(Protocol):
    """Where trials come from."""

    is_closed: bool
    """Whether all of them were read and admitted."""

    @property
    def items(self) -> Iterator[Any]:
        """The trials, read in a thread: reading may block and must record nothing."""
        ...

    def admit(self, item: Any) -> TrialWork | None:
        """Record that a trial is admitted; return None if nothing is left to do for it. Must not block."""
        ...

    def close(self) -> None:
        """Record the consequences of reaching the end; called after the last trial."""
        ...


class Admission:
    """Feeds a scheduler from a source of trials."""

    def __init__(self, scheduler: Scheduler, in_thread: InThread, key_of: Callable[[TrialWork], str] | None) -> None:
        """Call `key_of` for the rate-limit key of a trial; None if there is only one key."""
        self._scheduler = scheduler
        self._in_thread = in_thread
        self._key_of = key_of
        self._read_items: deque[Any] = deque()
        """Trials that were read in a thread and are not admitted yet."""
        self._failure: BaseException | None = None
        """The exception that ended reading, until the trials before it are admitted."""

    async def run(self, source: TrialSource) -> None:
        """Admit trials as they are needed."""
        scheduler, shutdown = self._scheduler, self._scheduler.shutdown
        try:
            while shutdown.reason is None:
                room = scheduler.read_ahead.room
                if not room:
                    await scheduler.read_ahead.wait_needed()
                    continue
                await scheduler.recorder.journal.wait_room()
                if not await self._read(source, room):
                    source.close()
                    break
        except SegmentLost:
            if shutdown.reason is None:  # If it waited for room, the calls in flight have their grace period.
                raise
        except BaseException as exc:
            if isinstance(exc, JournalError | trio.Cancelled) or is_from_signal(exc):
                raise
            error = describe(exc)
            shutdown.stop("dataset_failed", f"reading the cases failed: {error.type}: {error.message}")
        scheduler.read_ahead.is_done = True
        scheduler.end_if_done()

    async def _read(self, source: TrialSource, limit: int) -> bool:
        """Read trials and admit them, the first ones before the last one is read; return whether there were any."""
        results: list[bool | BaseException] = []
        read_end = trio.Event()

        def read() -> None:
            try:
                results.append(self._fill(source.items, limit))
            except BaseException as exc:  # noqa: BLE001  # raised below
                results.append(exc)
            self._scheduler.loop.call(read_end.set)

        with trio.move_on_after(READ_TIME):
            await self._in_thread(read)
        self._admit(source)
        if not read_end.is_set():
            await read_end.wait()
            self._admit(source)
        if isinstance(results[0], BaseException):
            raise results[0]
        return results[0]

    def _fill(self, items: Iterator[Any], limit: int) -> bool:
        """Read up to `limit` trials, or until `READ_TIME` is over; return whether there were any."""
        if self._failure is not None:
            raise self._failure
        now, number = self._scheduler.recorder.clock.now, 0
        end_time = now() + READ_TIME
        try:
            for number, item in enumerate(items, 1):
                self._read_items.append(item)
                if number == limit or now() > end_time:
                    break
        except BaseException as exc:
            if not number:
                raise
            self._failure = exc
        return number > 0

    def _admit(self, source: TrialSource) -> None:
        while self._read_items:
            work = source.admit(self._read_items.popleft())
            if work is not None:
                if self._key_of is not None:
                    work.key = self._key_of(work)
                self._scheduler.admit(work)
        self._scheduler.stop_on_same_error()
        self._scheduler.wake()
