"""Constants of the adaptive policy that several of its parts use. Those of one part are in its module."""

from typing import Final

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
GROWTH_STEP: Final = 1.25
"""Growth of the limit per round trip, and of the first pace per answer."""
