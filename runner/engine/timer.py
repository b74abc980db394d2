"""Something to be done at a time that may yet move: of all times that were asked for, the earliest counts.

One task waits for each alarm, so to ask for a time costs a comparison, however many ask.
"""

import math
from collections.abc import Callable

import trio

from runner.engine.recorder import Clock


class Timer:
    """A time, in the seconds of a session's clock, and what is done when it has come."""

    def __init__(self, clock: Clock, act: Callable[[float], None]) -> None:
        """Call `act` with the time that was waited for, even if a rounded clock is a hair behind it."""
        self._clock = clock
        self._act = act
        self._at = math.inf
        self._moved = trio.Event()

    def schedule(self, when: float) -> None:
        """Ring then, unless it rings earlier; whoever needs more asks again."""
        if when < self._at:
            self._at = when
            self._moved.set()

    async def keep(self) -> None:
        """Wait and ring, until cancelled."""
        while True:
            moved = self._moved = trio.Event()
            with trio.CancelScope(deadline=self._clock.began + self._at):
                await moved.wait()
            if not moved.is_set():
                at, self._at = self._at, math.inf
                self._act(at)
