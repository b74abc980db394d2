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
        self._time = math.inf
        self._reschedule_event = trio.Event()

    def schedule(self, when: float) -> None:
        """Fire at `when`, in the seconds of the session's clock, unless an earlier time is scheduled."""
        if when < self._time:
            self._time = when
            self._reschedule_event.set()

    def schedule_in(self, seconds: float) -> float:
        """Fire after some seconds; return the time."""
        when = self._clock.now() + seconds
        self.schedule(when)
        return when

    async def run(self) -> None:
        """Wait and fire, until cancelled."""
        while True:
            reschedule_event = self._reschedule_event = trio.Event()
            with trio.CancelScope(deadline=self._clock.start + self._time):
                await reschedule_event.wait()
            if not reschedule_event.is_set():
                time, self._time = self._time, math.inf
                self._function(time)
