"""The limit on attempts in flight.

If a call is rate limited at n in flight and n - 1 were accepted, the limit is set to n - 1. Servers that only get slower are
recognized by their latency at two loads, measured shortly after each other.

There are three phases:
    climbing  no limit is known; each success adds slots while the slots are in use
    holding   a limit is known; it is kept for a period
    trying    a slightly higher or lower limit is tried, in case the endpoint's limit has changed
"""

from typing import Final, Literal

from attrs import define

from evaljournal.runner.concurrency.constants import FEW, GROWTH_STEP, LONG_TIME, MEASURED_CALLS, SEVERAL, SHORT_TIME, WINDOW
from evaljournal.runner.concurrency.start import Start

FIRST_LIMIT: Final = 32
"""The first limit; the limit may grow to twice as many before a lower load was measured. With 16: +1.5, but three times the
429s, and short runs took 1.6 times as long; with 100, the mean of ordinary rows fell by 5 points."""
SHORTEST_RUN, SHORT_RUN = 200, 1000
"""A run of up to the first number of trials may start all of them immediately; one of up to the second may grow to the first
before a lower load was measured: finding a limit takes longer than the run. With 100 instead of 200, runs of 200 trials took up
to 1.6 times as long as with a fixed limit; with 200 instead of 1000, runs of 500 trials 1.6 times instead of 1.2 times."""
BUSY_SHARE: Final = 0.85
"""Share of the limit that must be in use before a higher one is tried. 429s at more than this share of a known limit belong to
it, and a limit that was an overload twice is not exceeded by more than this share again. With 0.7: +0.2."""
OTHER_LOAD: Final = 1.2
"""Ratio from which two loads are compared. With 1.1: +1.0."""
_FAST_GROWTH: Final = 2
"""Slots per success up to twice the first limit; beyond it one, within `GROWTH_STEP` per round trip. With 1: +1.1."""
_DOUBTFUL_SHARE: Final = 0.5
"""Share of rate-limited starts up to which a limit on attempts in flight is doubtful. Without it, 5 % of random 429s lowered a
limit of 32 to 23."""
_PACED_LIMIT: Final = 2
"""Limit per attempt in flight at a 429, once measurements of the rate agree. Without it, a paced server that slows down by
chance gets ever more calls, until they time out. With 3: +0.0."""
_OVERLOAD_SHARE, _OVERLOAD_CUT, _TIMEOUT_CUT = 0.2, 0.5, 0.33
"""Share of timeouts among ended attempts that is an overload, and the share of the load to which the limit falls when nothing
responds, and when calls time out. With 0.33 for both, a server with 48 places that did not respond for 2 minutes reached 33 %
instead of 89 %; with 0.5 for both, servers that collapse beyond 4 calls 30 % instead of 79 %. With `_OVERLOAD_SHARE` 0.4:
+0.0."""


def lower_load(load: int) -> int:
    """Return the load to compare with this one: a third less, because chance would hide a smaller difference."""
    return max(load - max(load // 3, 1), 1)


@define(kw_only=True)
class InFlight:
    """The limit, and the evidence against a higher one."""

    slots: int
    """The limit never exceeds this."""
    limit: int = FIRST_LIMIT
    is_short: bool = False
    """Whether the run is too short for measuring a lower load first."""
    phase: Literal["climbing", "holding", "trying"] = "climbing"
    known_limit: int = 0
    """The limit that is known to be good, while holding or trying."""
    by_latency: bool = False
    """Whether latency, not a 429, is the evidence against a higher limit."""
    is_upward: bool = True
    """Whether the next or current test is of a higher limit; lower ones are tried only because of latency."""
    was_climbing: bool = False
    """Whether the phase was `climbing` before a lower load was measured; it continues if the higher load is better."""
    phase_start: float = 0.0
    """When the current phase began."""
    period: float = SHORT_TIME
    """Seconds to hold before the next test."""
    highest_accepted_load: int = 0
    """Most attempts in flight at the start of a call that was accepted."""
    accepted_above: int = 0
    """Accepted starts above `known_limit` since the test began."""
    limited_above: int = 0
    """Rate-limited starts above `highest_accepted_load`, since it last rose."""
    first_limited_above: int = 0
    """The earliest of these starts."""
    last_limited_above: int = 0
    """The latest of these starts."""
    limited_share: float = 1.0
    """Share of the starts that were rate limited when the limit was found."""
    doubt_until: float = 0.0
    """The time until which no 429 is attributed to the number in flight: the last such 429 was due to the rate."""
    last_lowered: int = 0
    """The newest start when the limit was last lowered; earlier starts cannot lower it again."""
    earlier_lowered: int = 0
    """The same for the time before the limit was last lowered because of 429s."""
    first_check: int = 0
    """The first start at which a lower load may be measured, if none has been."""
    threshold: int | None = None
    """The limit above which it grows only by one per round trip, because there was an overload."""
    ceiling: int | None = None
    """The load of the last overload; the limit stays clearly below it until `ceiling_until`."""
    ceiling_until: float = 0.0
    timeouts: int = 0
    """Starts after `last_lowered` that timed out."""
    successes: int = 0
    """Starts after `last_lowered` that succeeded."""
    growth: int = 0
    """Successes since the limit last grew, above `threshold`."""

    @property
    def is_comparing(self) -> bool:
        """Whether another load is being measured for its latency."""
        return self.phase == "trying" and self.by_latency

    @property
    def is_unchecked(self) -> bool:
        """Whether the limit is at its maximum and was never compared with a lower one."""
        uses_all_slots = self.limit == self.slots and self.limit >= MEASURED_CALLS
        return self.phase == "climbing" and (uses_all_slots or self.threshold is not None)

    @property
    def is_doubtful(self) -> bool:
        """Whether fewer than half of the starts were rate limited when the limit was found: the 429s may have been random."""
        return self.known_limit > 0 and self.limited_share < _DOUBTFUL_SHARE

    def accept(self, in_flight: int) -> None:
        """Record that a call was accepted with this many in flight."""
        self.accepted_above += in_flight > self.known_limit
        if in_flight > self.highest_accepted_load:
            self.highest_accepted_load, self.limited_above = in_flight, 0
            if self.known_limit and not self.by_latency and self._safe_load() > self.known_limit + 1:
                # The number in flight was not the reason.
                self.known_limit, self.phase, self.limit = 0, "climbing", max(self.limit, min(self._safe_load(), self.slots))

    def record_success(self, start: Start, t: float, proven_limit: int, *, patience: float) -> None:
        """Raise the limit if it is used, up to `proven_limit`; abandon a test without a result after `patience` seconds."""
        self.successes += start.order > self.last_lowered
        if self.is_comparing and t - self.phase_start >= max(patience, SEVERAL * SHORT_TIME):
            # Nothing could be compared, because something else limits the starts.
            self.phase, self.phase_start, self.limit, self.is_upward = "holding", t, self.known_limit, True
            self.period = min(2 * self.period, LONG_TIME)
        is_far = self.limit >= self._unproven_limit and self.limit > GROWTH_STEP * start.limit
        if is_far or start.wave.load < BUSY_SHARE * start.limit or start.in_flight < start.limit // 2:
            return
        if self.phase == "climbing":
            allowed_limit = min(max(proven_limit, self._unproven_limit), self._highest_limit(t))
            self.limit = max(self.limit, min(self.limit + self._step(), allowed_limit))
        elif self.phase == "trying" and not self.by_latency:
            if self.accepted_above >= max(MEASURED_CALLS, 2 * self.known_limit):
                self.phase, self.period = "climbing", SHORT_TIME
        elif self.phase == "holding" and t - self.phase_start >= self.period:
            self._try(t)

    def _highest_limit(self, t: float) -> int:
        if self.ceiling is None or t >= self.ceiling_until:
            return self.slots
        return min(self.slots, max(int(BUSY_SHARE * self.ceiling), 1))

    @property
    def _unproven_limit(self) -> int:
        """The limit up to which no lower load has to be measured first."""
        return SHORTEST_RUN if self.is_short else 2 * FIRST_LIMIT

    def _step(self) -> int:
        """Return by how much a success raises the limit."""
        if self.threshold is None or self.limit < self.threshold:
            return _FAST_GROWTH if self.limit < self._unproven_limit else 1
        self.growth += 1
        if self.growth < self.limit:
            return 0
        self.growth = 0
        return 1

    def record_timeout(self, start: Start, t: float, last_start: int) -> str | None:
        """Count a timeout; lower the limit after several, and return the evidence."""
        if start.order <= self.last_lowered:
            return None
        self.timeouts += 1
        if self.timeouts < FEW or self.timeouts < _OVERLOAD_SHARE * (self.timeouts + self.successes):
            return None
        evidence = f"{self.timeouts} calls timed out and {self.successes} succeeded"
        self.record_overload(start.in_flight, t, last_start, load_share=_TIMEOUT_CUT)
        return evidence

    def record_overload(self, load: int, t: float, last_start: int, *, load_share: float = _OVERLOAD_CUT) -> None:
        """Lower the limit: the endpoint is overloaded or does not respond at `load`."""
        is_repeated = self.ceiling is not None and load <= OTHER_LOAD * self.ceiling
        self.ceiling, self.ceiling_until = load, t + 10 * LONG_TIME if is_repeated else t
        self.threshold = self.limit = max(min(int(load_share * load), self.limit), 1)
        self.period = SHORT_TIME
        self.first_check = last_start + 2 * self.limit
        self.phase, self.known_limit, self.by_latency, self.phase_start, self.last_lowered = "climbing", 0, False, t, last_start
        self.timeouts = self.successes = self.growth = 0

    def _try(self, t: float) -> None:
        """Try a higher limit, or, because of latency, a higher or a lower one."""
        highest_limit = self._highest_limit(t)
        if not self.by_latency:
            if self.known_limit < highest_limit:
                self.phase, self.phase_start, self.accepted_above, self.limit = "trying", t, 0, self.known_limit + 1
        else:
            self.phase, self.phase_start = "trying", t
            self.is_upward = (self.is_upward or self.known_limit == 1) and self.known_limit < highest_limit
            # A quarter more, rounded up, because a smaller difference is not compared.
            higher_load = min(self.known_limit + (self.known_limit + 3) // 4, highest_limit)
            self.limit = higher_load if self.is_upward else lower_load(self.known_limit)

    def _safe_load(self) -> int:
        """Return the highest accepted load, without calls that were accepted only because others had just ended."""
        return self.highest_accepted_load - max(self.highest_accepted_load // 16, 1)

    def ends_test(self, start: Start) -> bool:
        """Return whether a 429 ends the test of a higher limit; after several accepted calls, a single one may be random."""
        is_test = self.phase == "trying" and not self.by_latency and self.accepted_above < MEASURED_CALLS
        return is_test and start.in_flight > self.known_limit

    def is_above(self, start: Start, t: float) -> bool:
        """Return whether a start had at least as many in flight as were ever accepted."""
        return t >= self.doubt_until and start.in_flight > max(self.highest_accepted_load - 1, FEW)

    def explains(self, start: Start, t: float) -> bool:
        """Return whether too many in flight may explain a 429.

        It may if so many were never accepted, or if the known limit is close.
        """
        if t < self.doubt_until or start.in_flight <= FEW:
            return False
        is_near = self.known_limit > 0 and not self.by_latency and start.in_flight > BUSY_SHARE * self.known_limit
        if start.in_flight <= max(self._safe_load(), self.known_limit) and not is_near:
            return False
        if not self.limited_above or start.order - self.last_limited_above > max(WINDOW, self.limit // 2):
            self.limited_above, self.first_limited_above, self.last_limited_above = 0, start.order, start.order
        self.limited_above += 1
        self.first_limited_above = min(self.first_limited_above, start.order)  # A reply may overtake that of an earlier start.
        self.last_limited_above = max(self.last_limited_above, start.order)
        return True

    def has_enough_evidence(self) -> bool:
        """Return whether there were enough rate-limited starts above the accepted load.

        A short run has no time to test whether they are random, so its first limit must reject most of the latest starts.
        """
        return self.limited_above >= min(FEW, self.limit) and not (self.is_short and not self.known_limit)

    def follow_pace(self, in_flight: int) -> bool:
        """Lower an unmeasured limit to twice what a pace needs, and return whether it was higher.

        More slots would only be used if the endpoint became slower.
        """
        old_limit = self.limit
        if self.phase == "climbing":
            self.limit = min(self.limit, max(_PACED_LIMIT * in_flight, MEASURED_CALLS))
        return self.limit < old_limit

    def doubt(self, t: float) -> None:
        """Discard a limit that a rate limit explains better, and attribute no 429 to the number in flight for a while."""
        if self.known_limit and not self.by_latency:
            self.known_limit, self.phase = 0, "climbing"
        self.doubt_until = t + LONG_TIME

    def record_rate_limit(self, start: Start, t: float, last_start: int) -> str:
        """Hold the limit just below the load that was rate limited; return the evidence."""
        limit = max(min(start.in_flight - 1, self.limit), 1)
        starts = self.last_limited_above - self.first_limited_above + 1
        self.limited_share = self.limited_above / starts if self.limited_above >= FEW else 1.0
        self.earlier_lowered = self.last_lowered
        is_same = self.phase != "climbing" and abs(limit - self.known_limit) <= max(1, self.known_limit // 10)
        self.period = min(2 * self.period, LONG_TIME) if is_same else SHORT_TIME
        self.phase, self.phase_start, self.known_limit, self.last_lowered = "holding", t, limit, last_start
        self.limit, self.by_latency, self.highest_accepted_load = limit, False, min(self.highest_accepted_load, limit)
        self.limited_above = self.timeouts = self.successes = 0
        return f"429 at {start.in_flight} in flight, {self.highest_accepted_load} accepted before"

    def lower(self, start: Start) -> bool:
        """Lower the limit that was just found if a call that started before that is rate limited below it.

        Of calls that start together, those in excess may be rate limited in any order.
        """
        is_new = self.phase == "holding" and not self.by_latency and start.order > self.earlier_lowered
        is_lower = is_new and max(self.highest_accepted_load, FEW) < start.in_flight <= self.limit
        if is_lower:
            self.known_limit = self.limit = start.in_flight - 1
        return is_lower

    def measure_lower(self, t: float, last_start: int, limit: int) -> None:
        """Measure a lower load now, to compare it with the current one."""
        if not self.is_comparing:
            self.known_limit, self.was_climbing = self.limit, self.phase == "climbing"
        self.phase, self.by_latency, self.is_upward, self.phase_start, self.last_lowered = "trying", True, False, t, last_start
        self.limit = max(min(limit, self.known_limit - 1), 1)

    def end_comparison(self, t: float, last_start: int, *, raises_throughput: bool) -> None:
        """Keep the better of the two loads of a test."""
        is_checked = raises_throughput and not self.is_upward and self.was_climbing
        if raises_throughput == self.is_upward:
            self.known_limit, self.period = self.limit, SHORT_TIME
        else:
            self.is_upward, self.period = not self.is_upward, min(2 * self.period, LONG_TIME)
        self.limit, self.phase, self.phase_start, self.last_lowered = self.known_limit, "holding", t, last_start
        self.was_climbing = False
        if is_checked:
            self.phase, self.known_limit, self.by_latency = "climbing", 0, False
        self.first_check = last_start + int(self.period) * 8 * self.limit
