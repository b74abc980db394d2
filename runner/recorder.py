"""The one place that reads the clock.

Wall time is for people; durations are measured by the monotonic clock, so that a step of the wall clock cannot bend them.
"""

import time
from collections.abc import Callable

from journal import Stamp


def stamps(monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> Stamp:
    """Give the records of a session their times; `t` counts from this call."""
    began = monotonic()
    second, text = -1, ""

    def stamp() -> tuple[str, float]:
        nonlocal second, text
        now = wall()
        whole = int(now)
        if whole != second:  # The text of a second serves all records of that second.
            second, text = whole, time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(whole))
        # Six digits, by way of a seventh: filling up with zeros costs more than all the rest.
        return text + str(1_000_000 + int((now - whole) * 1_000_000))[1:] + "Z", monotonic() - began

    return stamp
