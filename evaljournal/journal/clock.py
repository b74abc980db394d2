"""The times of a record: wall time for people, monotonic seconds for measuring, and the clock of a trio loop."""

import time
from collections.abc import Callable
from typing import Final

import trio

Clock = Callable[[], tuple[str, float]]
"""Returns `at` and `t` of the next record."""

_THREE_DIGITS: Final = tuple(f"{number:03}" for number in range(1000))
"""Faster than formatting a number with leading zeros."""


def loop_clock() -> Callable[[], float]:
    """Return the function that reads the clock of this trio loop, which may be virtual.

    trio's own adds a constant to the same clock, in three Python calls; a trial reads the time several times.
    """
    clock = trio.lowlevel.current_clock()
    return time.perf_counter if type(clock).__name__ == "SystemClock" else clock.current_time


def system_clock(
    monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time, *, start: float | None = None
) -> Clock:
    """Return a clock whose `t` counts from `start`, a reading of `monotonic` (default: now)."""
    start = monotonic() if start is None else start
    second_start, second_end, text = 0.0, 0.0, ""

    def read() -> tuple[str, float]:
        nonlocal second_start, second_end, text
        now = wall()
        if not second_start <= now < second_end:  # Formatted once per second.
            second_start = now // 1
            second_end, text = second_start + 1, time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second_start))
        milliseconds, microseconds = divmod(int((now - second_start) * 1_000_000), 1000)
        return f"{text}{_THREE_DIGITS[milliseconds]}{_THREE_DIGITS[microseconds]}Z", monotonic() - start

    return read
