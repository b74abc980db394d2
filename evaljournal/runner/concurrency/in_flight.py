"""The limit on attempts in flight.

If a call is rate limited at n in flight and n - 1 were accepted, the limit is set to n - 1. Servers that only get slower are
recognized by their latency at two loads, measured shortly after each other.

There are four phases:
    climbing   no limit is known; each success adds slots while the slots are in use
    holding    a limit is known; it is kept for a period
    trying     one more than 429s showed is tried, in case the endpoint's limit has changed
    comparing  a higher or a lower load is measured for its latency
"""

from typing import Final, Literal

from attrs import define, field

from evaljournal.runner.concurrency.start import FEW, GROWTH, LONG_TIME, MEASURED_CALLS, SEVERAL, SHORT_TIME, WINDOW, Start

FIRST_LIMIT: Final = 2 * WINDOW
"""The first limit of a longer run."""
UNPROVEN_LIMIT: Final = 2 * FIRST_LIMIT
"""The limit may grow to this before a lower load was measured, and grows faster below it."""
SHORT_RUN: Final = 1000
"""A run of up to this number of trials may start in all slots immediately: finding a limit takes longer than the run."""
BUSY_SHARE: Final = 0.85
"""Share of the limit that must be in use before a higher one is tried. 429s at more than this share of a good limit belong to
it."""


def lower_load(load: int) -> int:
    """Return the load to compare with this one: a third less, because chance would hide a smaller difference."""
    return max(load - max(load // FEW, 1), 1)


@define(kw_only=True)
class InFlight:
    """The limit, and the evidence against a higher one.

    Every limit that an event sets is tried again after a period, or when the calls in flight show that it is too low.
    """

    slots: int
    """The limit never exceeds this."""
    limit: int
    is_short: bool = False
    """Whether the run is too short for finding out whether single 429s are random."""
    phase: Literal["climbing", "holding", "trying", "comparing"] = "climbing"
    phase_start: float = 0.0
    period: float = SHORT_TIME
    """Seconds to hold before the next test."""
    good_limit: int = 0
    """The limit that is known to be good, unless climbing."""
    by_latency: bool = False
    """Whether latency, not a 429, is the evidence against a higher limit."""
    is_upward: bool = True
    """Whether the next or current comparison is with a higher load."""
    highest_accepted_load: int = 0
    accepted_above: int = 0
    """Accepted starts above `good_limit` since the test began."""
    limited_above: list[int] = field(factory=list[int])
    """The order of rate-limited starts above the accepted load, since that last rose."""
    last_lowered: int = 0
    """The newest start when the limit was last lowered; earlier starts cannot lower it again."""
    threshold: int | None = None
    """The limit above which it grows only by one per round trip, because there was an overload; until all slots are used."""
    timeouts: int = 0
    """Timeouts of starts after `last_lowered`, since one that a later answer explains: then its input is the cause."""
    growth: float = 0.0
    """Slots that the limit will grow by, once they are an eighth of it: each change is recorded."""

    def raise_slots(self, slots: int) -> bool:
        """Use `slots`, because something else decides when calls start; return False if there is evidence against so many."""
        may_rise = self.phase == "climbing" and self.threshold is None
        if may_rise:
            self.slots = self.limit = slots
        return may_rise

    def accept(self, in_flight: int) -> None:
        """Record that a call was accepted with this many in flight."""
        self.accepted_above += in_flight > self.good_limit
        if in_flight > self.highest_accepted_load:
            self.highest_accepted_load, self.limited_above = in_flight, []

    def record_success(self, start: Start, t: float, proven_limit: int) -> None:
        """Raise the limit if it is used, up to `proven_limit`."""
        is_far = self.limit >= UNPROVEN_LIMIT and self.limit > GROWTH * start.limit
        if is_far or start.in_flight < BUSY_SHARE * start.limit:
            return
        if self.phase == "climbing":
            self._grow(min(max(proven_limit, UNPROVEN_LIMIT), self.slots))
        elif self.phase == "trying" and self.accepted_above >= max(MEASURED_CALLS, 2 * self.good_limit):
            self._climb(self.limit)
        elif self.phase == "holding" and t - self.phase_start >= self.period:
            self._try(t)

    def _grow(self, highest: int) -> None:
        if self.threshold is not None and self.limit >= self.threshold:
            self.growth += 1 / self.limit
        else:
            self.growth += 1 if self.limit >= UNPROVEN_LIMIT else 2
        if self.growth >= max(self.limit // MEASURED_CALLS, 1) or self.limit + self.growth >= highest:
            self.limit = max(self.limit, min(self.limit + int(self.growth), highest))
            self.growth -= int(self.growth)
            if self.limit == self.slots:
                self.threshold = None

    def _climb(self, limit: int) -> None:
        self.phase, self.good_limit, self.limit, self.by_latency, self.period = "climbing", 0, limit, False, SHORT_TIME

    def _hold(self, limit: int, t: float, period: float) -> None:
        self.phase, self.phase_start, self.limit, self.good_limit, self.period = "holding", t, limit, limit, period

    def _longer_period(self, shortest: float = 0.0) -> float:
        return min(max(2 * self.period, shortest), LONG_TIME)

    def record_overload(self, limit: int, t: float, last_start: int) -> None:
        """Lower the limit: at the current load calls time out, or nothing responds."""
        self._climb(max(min(limit, self.limit), 1))
        self.threshold, self.phase_start, self.last_lowered = self.limit, t, last_start
        self.growth, self.timeouts = 0.0, 0

    def _try(self, t: float) -> None:
        """Try a higher limit, or, because of latency, a higher or a lower one."""
        if self.by_latency:
            self.phase, self.phase_start = "comparing", t
            self.is_upward = (self.is_upward or self.good_limit == 1) and self.good_limit < self.slots
            # More than `CLEARLY_MORE`, rounded up, because a smaller difference is not compared.
            higher_load = min(self.good_limit - -self.good_limit // SEVERAL, self.slots)
            self.limit = higher_load if self.is_upward else lower_load(self.good_limit)
        elif self.good_limit < self.slots:
            self.phase, self.phase_start, self.accepted_above, self.limit = "trying", t, 0, self.good_limit + 1

    def _safe_load(self) -> int:
        """Return the highest accepted load, without the one in a window that was accepted because others had just ended."""
        return self.highest_accepted_load - max(self.highest_accepted_load // WINDOW, 1)

    def ends_test(self, start: Start) -> bool:
        """Return whether a 429 ends the test of a higher limit; after several accepted calls, a single one may be random."""
        return self.phase == "trying" and self.accepted_above < MEASURED_CALLS and start.in_flight > self.good_limit

    def is_above(self, start: Start) -> bool:
        """Return whether a start had at least as many in flight as were ever accepted."""
        return start.in_flight > max(self.highest_accepted_load - 1, FEW)

    def explains(self, start: Start) -> bool:
        """Return whether too many in flight explain a 429: it is one of a few where so many were never accepted, or near."""
        is_near = self.good_limit > 0 and not self.by_latency and start.in_flight > BUSY_SHARE * self.good_limit
        is_above = start.in_flight > max(self._safe_load(), self.good_limit)
        if start.in_flight <= FEW or not (is_near or is_above):
            return False
        if self.limited_above and start.order - max(self.limited_above) > max(WINDOW, self.limit // 2):
            self.limited_above.clear()
        self.limited_above.append(start.order)
        return len(self.limited_above) >= min(FEW, self.limit) and (self.good_limit > 0 or not self.is_short)

    def discard(self) -> None:
        """Forget a limit that 429s were the evidence for: they have another reason."""
        if self.good_limit and not self.by_latency:
            self._climb(self.limit)

    def record_rate_limit(self, start: Start, t: float, last_start: int) -> str:
        """Hold the limit just below the load that was rate limited; return the evidence."""
        limit = max(min(start.in_flight - 1, self.limit), 1)
        is_same = self.phase != "climbing" and abs(limit - self.good_limit) <= max(1, self.good_limit // MEASURED_CALLS)
        self._hold(limit, t, self._longer_period() if is_same else SHORT_TIME)
        self.by_latency, self.last_lowered = False, last_start
        self.highest_accepted_load = min(self.highest_accepted_load, limit)
        self.limited_above, self.timeouts = [], 0
        return f"429 at {start.in_flight} in flight, {self.highest_accepted_load} accepted before"

    def measure_lower(self, t: float, last_start: int, limit: int) -> None:
        """Measure a lower load now, to compare it with the current one."""
        if self.phase != "comparing":
            self.good_limit = self.limit
        self.phase, self.by_latency, self.is_upward, self.phase_start, self.last_lowered = (
            "comparing",
            True,
            False,
            t,
            last_start,
        )
        self.limit = max(min(limit, self.good_limit - 1), 1)

    def end_comparison(self, t: float, last_start: int, *, raises_throughput: bool) -> None:
        """Keep the better of the two loads of a comparison: if that is the old one, for longer than the comparison took."""
        if raises_throughput == self.is_upward:
            self._hold(self.limit, t, SHORT_TIME)
        else:
            self._hold(self.good_limit, t, self._longer_period(FEW * (t - self.phase_start)))
            self.is_upward = not self.is_upward
        self.last_lowered = last_start
