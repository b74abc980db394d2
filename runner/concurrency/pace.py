"""The pace of starts, for endpoints with a limit on requests per second.

A rate limit is a token bucket that fills steadily. When it rejects a call, the bucket is empty; so between two rejected calls
it has granted exactly what flowed in. Calls granted, divided by the time, are its rate, or less if the bucket overflowed.

There are three phases:
    open       no limit is known; starts are not paced
    searching  the rate is roughly known; the pace grows until the next 429, by 20 % per round trip at first
    plateau    the rate was measured; the pace starts below it, stays near it, and rises above it along a cubic

If every call is rate limited for a while, also probes, as by a server that bans clients after a few 429s, the pace then grows
only slowly beyond the rate that was certainly accepted before, and one 429 is enough to lower it.

While measurements agree, plateaus get longer and flatter, so that there are fewer 429s. If a plateau ends without a 429, the
limit was raised, and the search starts again.
"""

import math
from typing import Final

from attrs import define, field

from evaljournal.replay.state.pauses import LATE_TOLERANCE
from evaljournal.runner.concurrency.constants import FEW, GROWTH_STEP, MEASURED_CALLS, WINDOW
from evaljournal.runner.concurrency.start import Start

FIRST_PACE, _FIRST_PACE_END = 20.0, 100.0
"""Starts per second at the beginning of a longer run and after its first 429, and the pace at which pacing ends: the first 429
arrives before all slots are filled, which halves the 429s of endpoints with a small bucket. With `FIRST_PACE` 40: +1.9. With
`_FIRST_PACE_END` 50: +0.0."""
_FIRST_RATE_SHARE: Final = 0.7
"""Share of the first observed rate that is used, because that rate includes the content of a full bucket. With 1: +1.6."""
_SEARCH_GROWTH: Final = 0.2
"""Growth of the pace per round trip while the rate is only roughly known. With 0.1 per second instead, agents with 8 calls per
attempt behind 10/s reached 46 to 70 % of it instead of 77 to 88 %: the pace grew far beyond it before they were in flight."""
_SEARCH_DOUBLING: Final = 1.5
"""Round trips of searching after which the growth has doubled; after twice as many it has tripled. With 3: -0.1."""
_SWING, _FLATTEST_SWING = 0.1, 0.04
"""How far a plateau goes below and above the measured rate, at first and after measurements that agree. The first is also the
maximum growth of the pace per start of a search. With `_SWING` 0.2: +0.0. With `_FLATTEST_SWING` 0.08: +0.1."""
_PLATEAU_SHORTEST, PLATEAU_LONGEST = 3.0, 30.0
"""Seconds to the middle of a plateau, and maximum seconds between two probes. With `_PLATEAU_SHORTEST` 6: -0.3. With
`PLATEAU_LONGEST` 15: +0.3."""
_PLATEAU_CALLS: Final = 200
"""Calls to the middle of the longest plateau on slow endpoints, so that one 429 per plateau stays below 0.5 %. With 100:
+0.0."""
_MIN_PACE: Final = 1 / 60
"""Minimum starts per second: what the smallest limits of providers, one request per minute, allow."""
SHORTEST_ROUND_TRIP: Final = 2.0
"""Minimum seconds of a round trip, which is the mean latency, for a search and for a measurement. With 1: +0.2."""


@define(kw_only=True)
class Pace:
    """The estimated rate, the position on the plateau, and the 429 from which granted calls are counted."""

    estimate: float | None = None
    """Starts per second that the endpoint accepts; None while no limit was observed."""
    is_searching: bool = False
    phase_start: float = 0.0
    """When the plateau or the search began, plus the time in which something else limited the starts."""
    period: float = 0.0
    """Seconds from the beginning of the plateau to its middle, where the pace equals the estimated rate."""
    swing: float = _SWING
    steady_since: float = 0.0
    """The time since which measurements agree."""
    next_start: float = 0.0
    """When the pace allows the next start."""
    anchor: Start | None = None
    """A rate-limited start from which granted calls are counted: the bucket was empty then."""
    starts_without_token: int = 0
    """Starts after the anchor that used no token."""
    granted_calls: int = 0
    """Calls granted from the anchor to the last 429."""
    lowest_estimate: float = 0.0
    """The lowest estimated rate since the anchor."""
    measured_rate: float = 0.0
    """The last rate that was measured."""
    suspects: list[int] = field(factory=list[int])
    """The latest rate-limited starts that may be random."""
    frozen_starts: int = 0
    """Starts during which the pace does not grow, to see whether there is another 429."""
    accepted_calls: int = 0
    """Calls that were accepted before the last 429 that ended a measurement."""
    accepted_seconds: float = 1.0
    """The time in which they were."""
    includes_burst: bool = False
    """Whether they may include the content of a full bucket, because no 429 preceded them."""
    safe_rate: float | None = None
    """Above this rate the pace hardly grows, because every call was rate limited for a while after a higher one."""
    fixed_pace: float | None = None
    """A pace that was not measured: at the beginning of a run, where each answer raises it, and in a test for random 429s."""

    @property
    def is_steady(self) -> bool:
        """Whether the last three measurements agree."""
        return not self.is_searching and self.swing <= _FLATTEST_SWING

    def pace_at(self, t: float) -> float | None:
        """Return the starts per second to aim at; None while starts are not paced."""
        if self.fixed_pace is not None:
            return self.fixed_pace
        estimate = self.estimate
        if estimate is None or self.is_searching:
            return estimate
        x = min(max((t - self.phase_start) / self.period - 1, -1.0), 2.0)
        return estimate * (1 + self.swing * x * x * x)

    def is_above(self, t: float) -> bool:
        """Return whether the pace at `t` can explain a 429: it is above the measured rate, or none was measured."""
        pace = self.pace_at(t)
        return self.fixed_pace is None and pace is not None and (self.is_searching or pace > self.measured_rate)

    def is_confirmed(self, start: Start) -> bool:
        """Return whether enough 429s came within a few starts, or after the last measurement.

        If not, they may be random, and the pace only stops growing.
        """
        self.suspects = [*self.suspects[-2:], start.order]
        needed_429s = self._needed_429s(start)
        if len(self.suspects) >= needed_429s and start.order - self.suspects[-needed_429s] <= WINDOW * (needed_429s - 1):
            return True
        self.frozen_starts = WINDOW
        return False

    def _needed_429s(self, start: Start) -> int:
        """Return how many 429s make a measurement: on a plateau, one if all the tokens that flowed in were granted."""
        anchor = self.anchor
        if self.safe_rate is not None:
            return 1
        if anchor is None or self.is_searching:
            return 2
        if start.order - anchor.order - self.starts_without_token + 1 < self.measured_rate * (start.t - anchor.t):
            return 3
        return 1

    def record_start(self, t: float, flow: float, round_trip: float) -> None:
        """Space the next start from this one; `flow` is the rate that the slots allow."""
        pace = self.pace_at(t)
        if pace is None:
            return
        gap = 1 / pace
        delay = t - self.next_start
        self.next_start = t + gap if delay > max(gap, LATE_TOLERANCE) else self.next_start + gap
        if delay > LATE_TOLERANCE:
            self.phase_start += delay  # There were too few slots or trials: the plateau waits.
        elif self.estimate is None or self.fixed_pace is not None:
            return
        elif self.frozen_starts:
            self.frozen_starts -= 1
            self.phase_start += gap
        elif not self.is_searching:
            if t - self.phase_start > 3 * self.period:
                self._search(pace, t)
        elif self.estimate < 2 * flow:  # Beyond that slots are the limit, and a higher pace would never be tried.
            if self.safe_rate is not None and self.estimate >= self.safe_rate:
                self.estimate *= 1 + _SWING * gap / (2 * PLATEAU_LONGEST)  # As on the longest plateau.
                return
            # The longer the search, the further away the limit must be.
            round_trips = (t - self.phase_start) / round_trip
            self.estimate *= 1 + min(_SEARCH_GROWTH * gap / round_trip * (1 + round_trips / _SEARCH_DOUBLING), _SWING)

    def speed_up(self) -> None:
        """Raise the first pace of a run after an answer; finally, stop pacing."""
        if self.fixed_pace is not None:
            self.fixed_pace = GROWTH_STEP * self.fixed_pace if self.fixed_pace < _FIRST_PACE_END else None

    def postpone(self, t: float) -> None:
        """Start nothing before `t`: the bucket fills meanwhile."""
        if self.estimate is not None:
            self.phase_start += max(t - max(self.next_start, self.phase_start), 0.0)
            self.next_start = max(self.next_start, t)

    def learn(self, start: Start, t: float, *, flow: float, pause: float, round_trip: float) -> str | None:
        """Update the rate after a 429; return the evidence, or None if no call was granted since the last one.

        `flow` is the current rate of starts, derived from the number in flight. `pause` is the Retry-After in seconds: the
        first estimate includes it, because nothing is granted meanwhile. Within a `round_trip`, calls that started before the
        last 429 may have used the tokens (an attempt of an agent makes many calls), so a shorter time is no measurement.
        """
        self.frozen_starts, self.suspects = 0, [start.order]
        anchor_order, anchor_t = (0, 0.0) if self.anchor is None else (self.anchor.order, self.anchor.t)
        granted_calls, seconds = max(start.order - anchor_order - self.starts_without_token, 0), start.t - anchor_t
        is_measured = self.anchor is not None
        # On some endpoints rejected calls use tokens too, so a short measurement is inexact.
        is_enough = granted_calls >= MEASURED_CALLS and seconds >= round_trip
        if is_enough or not is_measured:
            self.accepted_calls, self.accepted_seconds, self.includes_burst = granted_calls, max(seconds, 0.5), not is_measured
        if self.estimate is None:
            self._search(_FIRST_RATE_SHARE * max(max(granted_calls, 1) / max(seconds + pause, 0.5), flow), t)
        elif not is_measured and self.is_searching:
            # The bucket may have overflowed, so this is not a measurement; only an estimated pace is lowered.
            self._search(_FIRST_RATE_SHARE * self.estimate, t)
        elif not is_measured:
            self.phase_start = t
        elif granted_calls == self.granted_calls:
            self._search(self.estimate / 2, t)
            if self.starts_without_token > 1:  # A single 429 may be random.
                return None
        elif not is_enough:
            # Too few for a measurement, but the rate is not much above (granted_calls + 1) / seconds.
            highest_rate = (granted_calls + 1) / seconds if seconds >= round_trip else self.estimate
            self._search(min(max(granted_calls / max(seconds, 0.001), self.estimate / 2), highest_rate), t)
        else:
            self._settle(granted_calls / seconds, self.pace_at(start.t) or self.estimate, t)
        self.lowest_estimate, self.granted_calls = min(self.lowest_estimate, self.estimate or _MIN_PACE), granted_calls
        if is_enough or not is_measured:
            self.anchor, self.starts_without_token, self.granted_calls = start, 0, 0
            self.lowest_estimate = self.estimate or _MIN_PACE
        return f"429 at {start.in_flight} in flight, after {granted_calls} accepted in {seconds:.1f} s"

    def record_limited_probe(self) -> None:
        """Record that a single call was rate limited, too: be careful from now on."""
        rate = self.accepted_calls / self.accepted_seconds
        if self.includes_burst and self.accepted_seconds < PLATEAU_LONGEST:
            rate *= _FIRST_RATE_SHARE / 2
        self.safe_rate = max(rate, _MIN_PACE)

    def restart_at(self, start: Start, t: float) -> float:
        """Return when to start again after a 429 without Retry-After: the bucket refills a little first."""
        return t + min(t - start.t, 1.0) + min(1 / (self.estimate or 1.0), 5.0)

    def forget(self) -> None:
        """Stop pacing: there is no rate limit."""
        self.estimate, self.is_searching, self.anchor, self.fixed_pace, self.measured_rate = None, False, None, None, 0.0

    def adopt(self, rate: float, t: float) -> None:
        """Begin a plateau at a rate that a test has confirmed."""
        self.estimate, self.measured_rate, self.is_searching = max(rate, _MIN_PACE), rate, False
        self.phase_start, self.period, self.swing, self.anchor, self.fixed_pace = t, self._min_period(rate), _SWING, None, None

    def _search(self, rate: float, t: float) -> None:
        self.estimate, self.is_searching, self.phase_start = max(rate, _MIN_PACE), True, t

    def _min_period(self, rate: float) -> float:
        return max(_PLATEAU_SHORTEST if self.safe_rate is None else PLATEAU_LONGEST, MEASURED_CALLS / rate)

    def _settle(self, rate: float, pace: float, t: float) -> None:
        """Begin a plateau around a measured rate; `pace` is the pace at the 429."""
        estimate = self.estimate or rate
        if self.lowest_estimate < rate / 2 or pace > FEW * self.lowest_estimate:
            # The pace was much lower for a while, and the bucket overflowed: the rate is between the two.
            self._search(math.sqrt(rate * pace), t)
            return
        is_higher, is_same = rate > 1.02 * self.measured_rate, abs(rate - self.measured_rate) <= _SWING * self.measured_rate
        self.measured_rate = rate
        if is_higher and not self.is_searching and pace > estimate * (1 + self.swing):
            # A late 429 at a higher accepted rate: a small bucket overflowed while the pace was below the rate.
            rate += (pace - rate) / 3
        elif self.period and (is_same or abs(rate - estimate) <= _SWING * estimate):
            # Two measurements agree: exceed the rate half as often, and by half as much.
            longest_period = min(max(PLATEAU_LONGEST, _PLATEAU_CALLS / rate), (t - self.steady_since) / FEW)
            self.period = max(min(2 * self.period, longest_period), self.period)
            self.swing = max(self.swing / 2, _FLATTEST_SWING)
        else:
            self.period = self._min_period(rate)
            self.swing = _SWING
            self.steady_since = t
        self.estimate, self.is_searching, self.phase_start = max(rate, _MIN_PACE), False, t
