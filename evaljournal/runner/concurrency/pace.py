"""The pace of starts, for endpoints with a limit on requests per second.

A rate limit is a token bucket that fills steadily. When it rejects a call, the bucket is empty; so between two rejected calls
it has granted exactly what flowed in. Calls granted, divided by the time, are its rate, or less if the bucket overflowed.

There are three phases:
    open       no limit is known; starts are not paced
    searching  the rate is roughly known; the pace grows until the next 429, by 20 % per round trip at first
    plateau    the rate was measured; the pace starts below it, stays near it, and rises above it along a cubic

While measurements agree, plateaus get longer, so that there are fewer 429s. If a plateau ends without a 429, the limit was
raised, and the search starts again.

**After a time in which every call was rate limited**, the search continues just below the rate that was accepted before, and
slowly beyond it: some servers ban clients after a few 429s, and other users of a key use it up for a while. The next
measurement ends that.
"""

from typing import Final

from attrs import define

from evaljournal.replay.state.pauses import LATE_TOLERANCE
from evaljournal.runner.concurrency.start import FEW, GROWTH, MEASURED_CALLS, SHORT_TIME, Start

FIRST_PACE, _FIRST_PACE_END = 20.0, 100.0
"""Starts per second at the beginning of a longer run and after its first 429, and the pace at which pacing ends: the first 429
arrives before all slots are filled, which halves the 429s of endpoints with a small bucket."""
_FIRST_RATE_SHARE: Final = 0.7
"""Share of the first observed rate that is used, because that rate includes the content of a full bucket."""
_SEARCH_GROWTH, _SEARCH_DOUBLING = 0.2, 1.5
"""Growth of the pace per round trip of a search, and the round trips after which that has doubled. (An attempt of an agent
makes many calls: growth per second would go far beyond the rate before they are in flight.)"""
_SWING: Final = 0.1
"""How far a plateau goes below the measured rate, and above it; also the maximum growth per start of a search, and the growth
in two times the shortest plateau of a search after every call was rate limited."""
_PLATEAU_SHORTEST, PLATEAU_LONGEST = 3.0, 30.0
"""Seconds to the middle of a plateau. The longest is also the maximum time between two probes, and the shortest ban."""
_PLATEAU_CALLS: Final = 200
"""Calls to the middle of the longest plateau on slow endpoints, so that one 429 per plateau stays below 0.5 %."""
_PLATEAU_END: Final = 2
"""End of a plateau: this many times as long after its middle as its beginning is before it."""
_MIN_PACE: Final = 1 / 60
"""Minimum starts per second: what the smallest limits of providers, one request per minute, allow."""
SHORTEST_ROUND_TRIP: Final = 2.0
"""Minimum seconds of a round trip, which is the mean latency, for a search and for a measurement."""
_SHORTEST_TIME: Final = 0.5
"""Seconds in which calls were accepted, at least: a rate over less time is no rate."""


@define(kw_only=True)
class Pace:
    """The estimated rate, the position on the plateau, and the 429 from which granted calls are counted.

    Every field that a 429 sets is set again by the next measurement, or by the end of the plateau or the search.
    """

    estimate: float | None = None
    """Starts per second that the endpoint accepts; None while no limit was observed."""
    measured_rate: float = 0.0
    is_searching: bool = False
    phase_start: float = 0.0
    """When the plateau or the search began, plus the time in which something else limited the starts."""
    period: float = 0.0
    """Seconds from the beginning of the plateau to its middle, where the pace equals the estimated rate."""
    steady_since: float = 0.0
    """The time since which measurements agree."""
    next_start: float = 0.0
    anchor: Start | None = None
    """A rate-limited start from which granted calls are counted: the bucket was empty then."""
    starts_without_token: int = 0
    """Rate-limited starts after the anchor."""
    granted_calls: int = 0
    """Calls granted from the anchor to the last 429."""
    accepted_rate: float = 0.0
    """Calls per second that were accepted before the last 429 that ended a measurement."""
    careful_rate: float | None = None
    """Above this rate a search is slow, because every call was rate limited before; until the next measurement."""
    fixed_pace: float | None = None
    """A pace that was not measured: at the beginning of a run, where each answer raises it, and in a test for random 429s."""

    def pace_at(self, t: float) -> float | None:
        """Return the starts per second to aim at; None while starts are not paced."""
        if self.fixed_pace is not None:
            return self.fixed_pace
        estimate = self.estimate
        if estimate is None or self.is_searching:
            return estimate
        x = min(max((t - self.phase_start) / self.period - 1, -1.0), _PLATEAU_END)
        return estimate * (1 + _SWING * x * x * x)

    def is_above(self, t: float) -> bool:
        """Return whether the pace at `t` can explain a 429: it is above the measured rate, or none was measured."""
        pace = self.pace_at(t)
        return self.fixed_pace is None and pace is not None and (self.is_searching or pace > self.measured_rate)

    def is_used_up(self, start: Start) -> bool:
        """Return whether a single 429 is no chance: all that flowed in since the anchor was granted, or care is needed."""
        if self.anchor is None or self.is_searching:
            return self.careful_rate is not None
        granted = start.order - self.anchor.order - self.starts_without_token
        return granted + 1 >= self.measured_rate * (start.t - self.anchor.t)

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
        elif not self.is_searching:
            if t - self.phase_start > (1 + _PLATEAU_END) * self.period:
                self._search(pace, t)
        elif self.estimate < 2 * flow:  # Beyond that slots are the limit, and a higher pace would never be tried.
            self.estimate *= 1 + self._growth(t, gap, round_trip)

    def _growth(self, t: float, gap: float, round_trip: float) -> float:
        if self.careful_rate is not None and (self.estimate or 0.0) >= self.careful_rate:
            return _SWING * gap / (2 * _PLATEAU_SHORTEST)
        # The longer the search, the further away the limit must be.
        round_trips = (t - self.phase_start) / round_trip
        return min(_SEARCH_GROWTH * gap / round_trip * (1 + round_trips / _SEARCH_DOUBLING), _SWING)

    def speed_up(self) -> None:
        """Raise the first pace of a run after an answer; finally, stop pacing."""
        if self.fixed_pace is not None:
            self.fixed_pace = GROWTH * self.fixed_pace if self.fixed_pace < _FIRST_PACE_END else None

    def postpone(self, t: float) -> None:
        """Start nothing before `t`: the bucket fills meanwhile."""
        if self.estimate is not None:
            self.phase_start += max(t - max(self.next_start, self.phase_start), 0.0)
            self.next_start = max(self.next_start, t)

    def learn(self, start: Start, t: float, *, flow: float, pause: float, round_trip: float) -> str | None:
        """Update the rate after a 429; return the evidence, or None if no call was granted since the last one.

        `flow` is the current rate of starts, derived from the number in flight. `pause` is the Retry-After in seconds: the
        first estimate includes it, because nothing is granted meanwhile. Within a `round_trip`, calls that started before the
        last 429 may have used the tokens, so a shorter time is no measurement.
        """
        anchor, estimate = self.anchor, self.estimate
        half = (estimate or 0.0) / 2
        granted = max(start.order - (anchor.order if anchor else 0) - self.starts_without_token, 0)
        seconds = max(start.t - (anchor.t if anchor else 0.0), _SHORTEST_TIME)
        # On some endpoints rejected calls use tokens too, so a short measurement is inexact.
        is_enough = granted >= MEASURED_CALLS and seconds >= round_trip
        if estimate is None:
            # Of calls that started together, any may be rejected first: those still in flight count as granted.
            self._search(_FIRST_RATE_SHARE * max(max(granted, start.in_flight) / (seconds + pause), flow), t)
        elif anchor is None and self.is_searching:
            # The bucket may have overflowed, so this is no measurement; only an estimated pace is lowered.
            self._search(_FIRST_RATE_SHARE * estimate, t)
        elif anchor is None:
            self.phase_start = t
        elif granted == self.granted_calls:
            self._search(half, t)
            if self.starts_without_token > 1:  # A single 429 may be random.
                return None
        elif is_enough:
            self._settle(granted / seconds, t)
        else:
            # Too few for a measurement, but the rate is not much above (granted + 1) / seconds.
            highest_rate = (granted + 1) / seconds if seconds >= round_trip else estimate
            self._search(min(max(granted / seconds, half), highest_rate), t)
        self.granted_calls = granted
        if is_enough or anchor is None:
            self.accepted_rate = granted / seconds or self.accepted_rate
            self.anchor, self.starts_without_token, self.granted_calls = start, 0, 0
        return f"429 at {start.in_flight} in flight, after {granted} accepted in {seconds:.1f} s"

    def resume(self, t: float) -> None:
        """Search on after every call was rate limited."""
        self.careful_rate = max(self.accepted_rate or self.estimate or 0.0, _MIN_PACE)
        self._search((1 - _SWING) * self.careful_rate, t)
        self.next_start = t + 1 / self.careful_rate

    def restart_at(self, t: float) -> float:
        """Return when to start again after a 429 without Retry-After: the bucket refills a little first."""
        return t + min(1 / (self.estimate or 1.0), SHORT_TIME)

    def forget(self) -> None:
        """Stop pacing: there is no rate limit."""
        self.estimate = self.anchor = self.fixed_pace = self.careful_rate = None
        self.is_searching, self.measured_rate = False, 0.0

    def adopt(self, rate: float, t: float) -> None:
        """Begin a plateau at a rate that a test has confirmed, with the next start."""
        self.anchor = self.fixed_pace = None
        self.measured_rate, self.next_start = rate, t
        self._begin_plateau(rate, self._first_period(rate), t)

    def _search(self, rate: float, t: float) -> None:
        self.estimate, self.is_searching, self.phase_start = max(rate, _MIN_PACE), True, t

    def _first_period(self, rate: float) -> float:
        return max(_PLATEAU_SHORTEST, MEASURED_CALLS / rate)

    def _begin_plateau(self, rate: float, period: float, t: float) -> None:
        self.estimate, self.is_searching, self.phase_start, self.period = max(rate, _MIN_PACE), False, t, period

    def _settle(self, rate: float, t: float) -> None:
        """Begin a plateau around a measured rate."""
        measured_rate, self.measured_rate, self.careful_rate = self.measured_rate, rate, None
        estimate = self.estimate or rate
        period = self._first_period(rate)
        if self.period and (abs(rate - measured_rate) <= _SWING * measured_rate or abs(rate - estimate) <= _SWING * estimate):
            # Two measurements agree: exceed the rate half as often, unless they were chance.
            longest = min(max(PLATEAU_LONGEST, _PLATEAU_CALLS / rate), (t - self.steady_since) / FEW)
            period = max(min(2 * self.period, longest), self.period)
        else:
            self.steady_since = t
        self._begin_plateau(rate, period, t)
