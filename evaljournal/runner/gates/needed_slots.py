"""How many slots the rate of a known limit needs: 1.5 times the rate times the latency (Little's law).

The latency is the mean of as many calls as the limit allows, because the first calls to end are the quickest ones. After a
change, the measurement begins once as many calls have ended: a server that cannot serve what its limits allow only gets slower,
and the policy lowers the limit before it is raised again.
"""

from typing import Final

from evaljournal.replay.state.known_limits import CallRate
from evaljournal.replay.text import as_words, duration, rate_limit_text
from evaljournal.runner.concurrency.policy import Result

_SMALL_RAISE: Final = 1.1
"""Ratio from which a limit is raised: the mean latency varies all the time."""
_MAX_GROWTH: Final = 3
"""Growth at once: a server that only gets slower is noticed by its latency before the next raise."""


class NeededSlots:
    """The mean latency of the calls since the number of slots last changed."""

    def __init__(self) -> None:
        """Begin to measure."""
        self._skipped = 0
        """Calls that are not measured, because they started before the last change."""
        self._successes = 0
        self._seconds = 0.0

    def measure(self, result: Result) -> None:
        """Count a call that ended."""
        if result.outcome != "succeeded":
            return
        if self._skipped:
            self._skipped -= 1
        else:
            self._successes += 1
            self._seconds += result.elapsed

    def is_measured(self, limit: int) -> bool:
        """Return whether as many calls as the limit were measured."""
        return self._successes >= limit

    def raised(self, rate: CallRate, limit: int, max_slots: int) -> tuple[int, str]:
        """Return the slots that a rate needs, at most `max_slots`, and the evidence; begin the next measurement."""
        latency = self._seconds / self._successes
        self._successes, self._seconds = 0, 0.0
        needed_slots = rate.slots(latency)
        slots = min(needed_slots, max_slots, _MAX_GROWTH * limit)
        if slots <= _SMALL_RAISE * limit:
            return limit, ""
        self._skipped = slots
        need = "" if rate.limit.unit == "requests" else f" and {rate.need:,.0f} {as_words(rate.limit.unit)}"
        return slots, f"{limit_text(rate)} at {duration(latency)}{need} per call need {needed_slots:,} slots"


def limit_text(rate: CallRate) -> str:
    """Return the limit of a rate in words: `5k requests per minute`."""
    return rate_limit_text(rate.limit.unit, rate.limit.size, rate.limit.window)
