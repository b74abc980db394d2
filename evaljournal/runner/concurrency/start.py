"""An attempt in flight, as the adaptive policy keeps it, and the constants that several parts of the policy use."""

from typing import Final

from attrs import define

FEW, SEVERAL, MANY = 3, 4, 6
"""Events that show a pattern, where chance would need that many in a row: with 20 % of random 429s, 0.8 %, 0.2 % and 0.006 %.
The first are enough for what is undone soon; the last begin something that costs more, such as a test or a pause."""
WINDOW: Final = 16
"""Latest starts that are considered together."""
MEASURED_CALLS: Final = WINDOW // 2
"""Accepted calls between two 429s that make a measurement; fewer only bound the rate."""
SMOOTHING: Final = 0.1
"""Weight of the newest sample in running averages."""
SHORT_TIME, LONG_TIME = 5.0, 120.0
"""Seconds until what was found is tested again: at first, and at most. They are doubled while the result is the same. Also the
shortest time without a response that is an outage, and the longest pause for a Retry-After."""
CLEARLY_MORE: Final = 1.2
"""Ratio from which two loads or times are not the same: loads are compared, and a call that takes as many times as long as
failures take was accepted."""
GROWTH: Final = 1.25
"""Factor by which the limit grows per round trip, and the first pace per answer."""


@define(kw_only=True)
class Group:
    """Consecutive attempts whose latencies are evaluated together."""

    first_start: int
    size: int
    """Starts whose latency counts or may still count."""
    start_count: int = 0
    is_evaluated: bool = False
    samples: int = 0
    seconds: float = 0.0
    """Sum over the samples, as the next two."""
    load: int = 0
    limit: int = 0


@define(kw_only=True)
class Start:
    """An attempt at the moment it started."""

    trial: str
    order: int
    """Its number in the order of starts, from 1; attempts may end in any order."""
    t: float
    in_flight: int
    """Attempts in flight, itself included, without those that were rate limited later."""
    limit: int
    group: Group
    probe: bool = False
    is_accepted: bool = False
    """Whether it was answered, or has been in flight for longer than failures take."""
