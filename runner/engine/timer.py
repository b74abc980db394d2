"""A timer that can be rescheduled."""

import math
from collections.abc import Callable

import trio

from runner.engine.recorder import Clock


class Timer:
    """Calls a function at the earliest of the scheduled times."""

    def __init__(self, clock: Clock, function: Callable[[float], None]) -> None:
        """Call `function` with the scheduled time, even if a rounded clock is slightly behind it."""
        self._clock = clock
        self._function = function
        self._at = math.inf
        self._rescheduled = trio.Event()

    def schedule(self, when: float) -> None:
        """Fire at `when`, in the seconds of the session's clock, or earlier if it is scheduled earlier; once."""
        if when < self._at:
            self._at = when
            self._rescheduled.set()

    def schedule_in(self, seconds: float) -> float:
        """Fire after some seconds; return when that is."""
        when = self._clock.now() + seconds
        self.schedule(when)
        return when

    async def run(self) -> None:
        """Wait and fire, until cancelled."""
        while True:
            rescheduled = self._rescheduled = trio.Event()
            with trio.CancelScope(deadline=self._clock.start + self._at):
                await rescheduled.wait()
            if not rescheduled.is_set():
                at, self._at = self._at, math.inf
                self._function(at)
