"""Growth of computing time with the size of an input; nothing here asserts anything."""

import math
import time
from collections.abc import Callable
from typing import Any, Final

FACTOR: Final = 8
LINEAR: Final = 24.0
"""Between the 8 of linear and the 64 of quadratic time."""
NEGLIGIBLE: Final = 0.0005
"""Seconds of CPU; a shorter time cannot be compared."""


def growth(call: Callable[[Any], object], small: Any, large: Any) -> float:
    """Return the factor by which CPU time grows from the small to the large input; 0 if the time is negligible.

    One above `LINEAR` is measured again, up to twice: of thousands of measurements, some coincide with work of other processes.
    """
    factor = math.inf
    for _ in range(3):
        factor = min(factor, _growth(call, small, large))
        if factor <= LINEAR:
            break
    return factor


def _growth(call: Callable[[Any], object], small: Any, large: Any) -> float:
    seconds = min(_seconds(call, large) for _ in range(2))
    return 0.0 if seconds < NEGLIGIBLE * FACTOR else seconds / max(min(_seconds(call, small) for _ in range(3)), 1e-6)


def _seconds(call: Callable[[Any], object], value: Any) -> float:
    start = time.thread_time()
    call(value)
    return time.thread_time() - start
