"""Taking in trials: a few times the limit ahead, read in a thread, recorded in the loop."""

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from journal.errors import JournalError
from runner.engine.trial_work import Work, key_of
from runner.retries.classify import describe

if TYPE_CHECKING:
    from runner.engine.executor import Executor

AHEAD: Final = 64
"""Trials that are taken in beyond twice the limit: to read them costs a turn in a thread, which few should not need each."""

MOST_AHEAD: Final = 10_000
"""Trials that are taken in where there are rate-limit keys: those of a key that is paused must not hide the others'."""

SOON: Final = 0.02
"""Seconds after which what was read so far is taken in: where cases come slowly, the first must not wait for the others."""


class Intake(Protocol):
    """Where trials come from."""

    @property
    def found(self) -> deque[Any]:
        """What was read and is not taken in yet."""
        ...

    def read(self, most: int) -> bool:
        """Read at most so many trials; return whether there were any.

        It may block, because it is called in a thread; what it has read until then is taken in meanwhile.
        """
        ...

    def admit(self, item: Any) -> Work | None:
        """Record that a trial is taken in; None if nothing is left to do for it. It does not block."""
        ...

    def close(self) -> None:
        """Record what follows from there being no more."""
        ...


class Admission:
    """Feeds an executor from an intake."""

    def __init__(self, executor: "Executor") -> None:
        self._executor = executor
        self._key = executor.settings.limit_key
        self._plenty = 0 if self._key is None else MOST_AHEAD // 2
        """Trials that may wait before no more are read, whatever the limit."""
        self._needed = trio.Event()
        self.is_waiting = False
        """Whether it waits until more trials are needed."""
        self.is_open = True
        """Whether there may be more."""

    def look(self) -> None:
        """Read on if few trials wait, or if the run is being stopped."""
        queues = self._executor.queues
        is_low = queues.waiting <= queues.limit or queues.waiting <= self._plenty
        if (is_low and not queues.is_behind) or self._executor.stopped is not None:
            self.is_waiting = False
            self._needed.set()

    async def take_in(self, intake: Intake) -> None:
        """Take in trials as they are needed."""
        executor = self._executor
        try:
            while executor.stopped is None:
                room = self._room()
                if room <= 0:
                    self._needed, self.is_waiting = trio.Event(), True
                    await self._needed.wait()
                    continue
                await executor.recorder.journal.wait_room()
                if not await self._read(intake, room):
                    intake.close()
                    break
        except Exception as exc:
            if isinstance(exc, JournalError):
                raise
            error = describe(exc)
            executor.stop("dataset_failed", f"the cases could not be read to their end ({error.type}: {error.message})")
        self.is_open = False
        executor.end_if_done()

    def _room(self) -> int:
        """Return how many trials to read; 0 if enough are in hand."""
        queues = self._executor.queues
        room = (2 * queues.limit + AHEAD if self._key is None else MOST_AHEAD) - queues.waiting
        return 0 if room <= queues.limit or queues.is_behind else room

    async def _read(self, intake: Intake, most: int) -> bool:
        """Read on, and take in what comes, without waiting for the rest; return whether there was anything."""
        results: list[bool | BaseException] = []
        is_read = trio.Event()

        def read() -> None:
            try:
                results.append(intake.read(most))
            except BaseException as exc:  # noqa: BLE001  # it is raised again where it is waited for
                results.append(exc)
            self._executor.home.call(is_read.set)

        with trio.move_on_after(SOON):
            await self._executor.in_thread(read)
        self._admit(intake)
        if not is_read.is_set():
            await is_read.wait()
            self._admit(intake)
        if isinstance(results[0], BaseException):
            raise results[0]
        return results[0]

    def _admit(self, intake: Intake) -> None:
        while intake.found:
            work = intake.admit(intake.found.popleft())
            if work is not None:
                if self._key is not None:
                    work.key = key_of(work.case, self._key)
                self._executor.admit(work)
        self._executor.wake()
