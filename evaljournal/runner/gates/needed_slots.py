"""How many slots the rate of a known limit needs: 1.5 times the rate times the latency (Little's law).

Known limits decide when calls start, so the policy need not find out how many may be in flight: at first all slots are used.
Then their number follows from the latency. That is the mean of as many calls as there are slots, because the first calls to end
are the quickest ones. After a change, the measurement begins once as many calls have ended: a server that cannot serve what its
limits allow only gets slower, and the policy lowers the limit before it is raised again.
"""

from typing import Final

from evaljournal.replay.state.known_limits import CallRate
from evaljournal.replay.text import as_words, duration, rate_limit_text

_SMALL_RAISE: Final = 1.1
"""Ratio from which a limit is raised: the mean latency varies all the time."""
_MAX_GROWTH: Final = 3
"""Growth at once: a server that only gets slower is noticed by its latency before the next raise."""


class NeededSlots:
    """The mean latency of the calls since the number of slots last changed."""

    def __init__(self) -> None:
        """Begin without a known rate."""
        self._is_known = False
        self._skipped = 0
        """Calls that are not measured, because they started before the last change."""
        self._successes = 0
        self._seconds = 0.0

    def measure(self, seconds: float) -> None:
        """Count a call that was answered after this many seconds."""
        if self._skipped:
            self._skipped -= 1
        elif self._is_known:
            self._successes += 1
            self._seconds += seconds

    def is_measured(self, limit: int) -> bool:
        """Return whether as many calls were measured as the limit allows, or none was needed yet."""
        return self._successes >= limit or not self._is_known

    def raised(self, rate: CallRate, limit: int, max_slots: int) -> tuple[int, str] | None:
        """Return the slots that a rate needs, at most `max_slots`, and the evidence; None if they are not more.

        With the first rate, that is 0: all slots are used, and no more yet. Call it when all that the limit allows are in use
        and the latency is measured.
        """
        text = rate_limit_text(rate.limit.unit, rate.limit.size, rate.limit.window)
        if not self._is_known:
            self._is_known = True
            return 0, f"{text}: the known limit decides when calls start"
        latency = self._seconds / self._successes
        self._successes, self._seconds = 0, 0.0
        needed_slots = rate.slots(latency)
        slots = min(needed_slots, max_slots, _MAX_GROWTH * limit)
        if slots <= _SMALL_RAISE * limit:
            return None
        self._skipped = slots
        need = "" if rate.limit.unit == "requests" else f" and {rate.need:,.0f} {as_words(rate.limit.unit)}"
        return slots, f"{text} at {duration(latency)}{need} per call need {needed_slots:,} slots"
