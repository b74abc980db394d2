"""Admits trials slightly ahead of need: cases are read in a thread and recorded in the loop."""

from collections import deque
from collections.abc import Iterator
from typing import Any, Final, Protocol

import trio

from journal.errors import JournalError
from journal.threads import InThread
from runner.engine.scheduler import Scheduler
from runner.engine.trial_work import TrialWork, limit_key_of
from runner.retries.classify import describe
from runner.signals import is_from_signal

READ_TIME: Final = 0.02
"""Seconds after which the trials read so far are admitted, for datasets that are slow to read."""


class TrialSource(Protocol):
    """Where trials come from."""

    @property
    def pending(self) -> Iterator[Any]:
        """The trials. They are read in a thread: that may block and must record nothing."""
        ...

    def admit(self, item: Any) -> TrialWork | None:
        """Record that a trial is admitted; return None if nothing is left to do for it. Must not block."""
        ...

    def close(self) -> None:
        """Called after the last trial; record what follows from that."""
        ...


class Intake:
    """Feeds a scheduler from a source of trials."""

    def __init__(self, scheduler: Scheduler, in_thread: InThread) -> None:
        self._scheduler = scheduler
        self._in_thread = in_thread
        self._limit_key = scheduler.settings.limit_key
        self._ready: deque[Any] = deque()
        """Trials that were read in a thread and are not admitted yet."""
        self._failure: BaseException | None = None
        """What reading raised after other trials, which are admitted first."""

    async def run(self, source: TrialSource) -> None:
        """Admit trials as they are needed."""
        scheduler, shutdown = self._scheduler, self._scheduler.shutdown
        try:
            while shutdown.reason is None:
                room = scheduler.intake_room
                if not room:
                    await scheduler.wait_intake_needed()
                    continue
                await scheduler.recorder.journal.wait_room()
                if not await self._read(source, room):
                    source.close()
                    break
        except BaseException as exc:
            if isinstance(exc, JournalError | trio.Cancelled) or is_from_signal(exc):
                raise
            error = describe(exc)
            shutdown.stop("dataset_failed", f"reading the cases failed: {error.type}: {error.message}")
        scheduler.is_intake_done = True
        scheduler.end_if_done()

    async def _read(self, source: TrialSource, limit: int) -> bool:
        """Read and admit trials, without waiting for all of them; return whether there were any."""
        results: list[bool | BaseException] = []
        is_read = trio.Event()

        def read() -> None:
            try:
                results.append(self._fill(source.pending, limit))
            except BaseException as exc:  # noqa: BLE001  # raised below
                results.append(exc)
            self._scheduler.loop.call(is_read.set)

        with trio.move_on_after(READ_TIME):
            await self._in_thread(read)
        self._admit(source)
        if not is_read.is_set():
            await is_read.wait()
            self._admit(source)
        if isinstance(results[0], BaseException):
            raise results[0]
        return results[0]

    def _fill(self, pending: Iterator[Any], limit: int) -> bool:
        """Read up to `limit` trials, or until `READ_TIME` is over; return whether there were any."""
        if self._failure is not None:
            raise self._failure
        now, number = self._scheduler.recorder.clock.now, 0
        until = now() + READ_TIME
        try:
            for number, item in enumerate(pending, 1):
                self._ready.append(item)
                if number == limit or now() > until:
                    break
        except BaseException as exc:
            if not number:
                raise
            self._failure = exc
        return number > 0

    def _admit(self, source: TrialSource) -> None:
        while self._ready:
            work = source.admit(self._ready.popleft())
            if work is not None:
                if self._limit_key is not None:
                    work.key = limit_key_of(work.case, self._limit_key)
                self._scheduler.admit(work)
        self._scheduler.stop_on_same_error()
        self._scheduler.wake()
