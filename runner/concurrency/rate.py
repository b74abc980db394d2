"""How fast attempts may start: the machine for endpoints that grant so many requests per second.

An endpoint's allowance is like a bucket that fills steadily. When it refuses us, the bucket is empty; so between two
refusals it has granted exactly what flowed in, and *granted over time* is its rate, or less than its rate if the bucket
ran over meanwhile. After the second refusal there is little left to guess.

Three phases follow one another:
    opening    no refusal yet; the pace is the caller's
    searching  the rate is only roughly known; the pace grows by 10 % a second until the next refusal
    plateau    the rate was measured; the pace dips below it, lingers, and rises above it along a cubic, to ask gently

While the measurements agree, the plateau gets longer and flatter, so that asking costs less and less. A plateau that
ends without a refusal means that the limit has moved: search again.
"""

from attrs import define

from runner.concurrency.start import Begun

FIRST = 0.7
"""How much of the first rate seen is believed: the bucket was full at first, and its content is in what we saw."""
SEARCH = 0.1
"""Growth of the pace per second of searching."""
SWING, FLATTEST = 0.1, 0.02
"""How far the first plateau dips below the rate, and the last, as a part of the rate."""
SHORTEST = 5.0
"""Seconds to the middle of the first plateau."""
SLOWEST = 1 / 60
"""Starts per second below which we never go: a minute without a question teaches nothing."""
ENOUGH = 8
"""Grants between two refusals that make a measurement; fewer only bound the rate."""
LATE = 0.05
"""Seconds that a start may come late and still be caught up, because timers are not exact."""


@define(kw_only=True)
class Rate:
    """The rate believed in, the place on the plateau, and the refusal from which grants are counted."""

    known: float | None = None
    """Starts per second that the endpoint accepts; None before its first refusal."""
    searching: bool = False
    since: float = 0.0
    """When the plateau began, moved on by the time in which something else held us back."""
    period: float = 0.0
    """Seconds from the beginning of the plateau to its middle, where the pace is the known rate."""
    swing: float = SWING
    next_start: float = 0.0
    """When the pace allows the next start."""
    first: float | None = None
    """When the first attempt of all began."""
    anchor: Begun | None = None
    """A refused attempt, from which grants are counted: the bucket was empty when it began."""
    missed: int = 0
    """Attempts after the anchor that took nothing out of the bucket."""
    idle: float = 0.0
    """Seconds since the anchor in which something else held us back, so that the bucket may have run over."""
    lowest: float = 0.0
    """The lowest rate believed since the anchor."""
    measured: float = 0.0
    """The last rate that was measured."""
    lesson: int = 0
    """The last attempt begun before the last lesson; those up to it cannot teach again."""
    echoes: int = 0
    """Refusals of such attempts since that lesson."""

    def pace(self, t: float, opening: float) -> float:
        """Tell how many starts per second to aim at: `opening` while nothing is known."""
        known = self.known
        if known is None:
            return opening
        if self.searching:
            return known
        x = min(max((t - self.since) / self.period - 1, -1.0), 2.0)
        return known * (1 + self.swing * x * x * x)

    def free(self, opening: float) -> bool:
        """Tell whether the pace holds nothing back."""
        return self.known is None or self.known >= opening

    def below(self, t: float) -> float:
        """Tell which part of the starts up to `t` was paced so that a rate limit refuses none; 1: that at `t`, too."""
        if self.pace(t, self.measured) <= self.measured:
            return 1.0
        return 0.0 if self.searching else self.period / max(t - self.since, self.period)

    def test(self, t: float, rate: float, starts: float) -> None:
        """Stay below `rate` for so many starts, to see whether as many are refused there."""
        self.known = self.measured = max(rate, SLOWEST)
        self.searching, self.since, self.period, self.swing = False, t, starts / self.known, SWING

    def search(self) -> None:
        """Look for the rate once more, if one was known: what taught it was no limit."""
        self.searching = self.known is not None

    def started(self, t: float, opening: float, told: float | None, hurry: float) -> None:
        """Space the next start from this one.

        `told` is the pace that the endpoint's own headers ask for, if any. `hurry` is the least growth per start while
        searching.
        """
        if self.first is None:
            self.first = self.next_start = t
        gap = 1 / (self.pace(t, opening) if told is None else min(told, opening))
        late = t - self.next_start
        self.next_start = t + gap if late > max(gap, LATE) else self.next_start + gap
        if late > LATE:
            # Slots or trials were short, not the rate: the curve waits, and the bucket may run over.
            self.since += late
            self.idle += late
        elif self.known is None:
            pass
        elif not self.searching:
            self.searching = t - self.since > 3 * self.period
        elif self.known < 2 * opening:  # Beyond that, slots are the limit, and a higher pace would never be tried.
            self.known *= 1 + max(SEARCH * min(gap, 1), hurry)

    def answered(self, t: float) -> None:
        """End a gap that was guessed: an answer came before it was over."""
        if self.known is None:
            self.next_start = min(self.next_start, t)

    def wait(self, until: float) -> None:
        """Start nothing before `until`: a pause that is itself about the rate, so the bucket's time goes on."""
        self.next_start = max(self.next_start, until)

    def refuse(self, begun: Begun, t: float, newest: int, *, flow: float, named: bool, hasty: bool) -> str | None:
        """Learn from a refusal; tell what was seen, or None if it belongs to the last lesson.

        `newest` is the place of the youngest attempt: all up to it began before this lesson. `flow` is the rate of
        late, as far as what is in flight tells it. `named` says that the endpoint told how long to wait; `hasty`, that the
        refusal may be a stray one after all, so that what it teaches is soon put to the test.
        """
        self.missed += 1
        if begun.order <= self.lesson:
            self.echoes += 1
            return None
        self.lesson = newest
        order, since = (0, self.first or 0.0) if self.anchor is None else (self.anchor.order, self.anchor.t)
        granted, seconds = max(begun.order - order - self.missed, 0), begun.t - since
        whole = self.anchor is not None and self.idle < seconds / 10
        # Some endpoints take refused calls from the bucket too, and then the echoes blur a short measurement.
        enough = max(ENOUGH, 2 * self.echoes)
        rest = 0.0
        # There are five things that a refusal can teach:
        if self.known is None:
            self._search(FIRST * max(max(granted, 1) / max(seconds, 0.5), flow))
        elif not whole:
            # The bucket may have run over, so the grants are no measure; only a pace that we guessed comes down.
            self._guessed(t)
        elif granted == 0:
            # Nothing passes at all, which says nothing about a rate: ask more and more rarely until something does.
            self.searching = True
            rest = min(seconds / 4, 30.0)
        elif granted < enough:
            # Too few to measure, but the truth is not much above (granted + 1) / seconds, and halving gets there soon.
            least = max(granted / seconds, self.known / 2)
            self._search(min(least, (granted + 1) / seconds) if granted > self.echoes else least)
        else:
            self._settle(granted / seconds, self.pace(begun.t, self.known), t, shortest=0.0 if hasty else SHORTEST)
        known = self.known or SLOWEST
        self.lowest = min(self.lowest, known)
        self.echoes = 0
        if granted >= enough or not whole:
            self.anchor, self.missed, self.idle, self.lowest = begun, 0, 0.0, known
        if not named:
            # Let the bucket gather a little, so that neither jitter nor what the echoes took is the next refusal.
            self.wait(t + max(t - begun.t + min(2 / known, 5.0), rest))
        seen = f"429 at {begun.in_flight} in flight, after {granted} accepted in {seconds:.1f} s"
        return f"{seen}; pacing at {known:.3g}/s"

    def _search(self, rate: float) -> None:
        self.known, self.searching = max(rate, SLOWEST), True

    def _guessed(self, t: float) -> None:
        """Guess less, if the pace was a guess; else begin the same plateau once more."""
        if self.searching and self.known is not None:
            self._search(FIRST * self.known)
        else:
            self.since = t

    def _settle(self, rate: float, pace: float, t: float, *, shortest: float) -> None:
        """Begin a plateau around a rate that was measured; `pace` is the one that was refused."""
        known = self.known or rate
        if self.lowest < rate / 2:
            # We asked for much less meanwhile, and the bucket ran over: the pace tells more.
            self._search(FIRST * pace)
            return
        more, same = rate > 1.02 * self.measured, abs(rate - self.measured) <= SWING * self.measured
        self.measured = rate
        if more and not self.searching and pace > known * (1 + self.swing):
            # Refused late, and asking for more did bring more: a shallow bucket has run over while we were below.
            rate += (pace - rate) / 2
        elif self.period and (same or abs(rate - known) <= SWING * known):
            # Two measurements agree: ask half as often, and half as loudly.
            self.period = min(2 * self.period, max(60.0, 200 / rate))
            self.swing = max(self.swing / 2, FLATTEST)
        else:
            self.period = max(shortest, 20 / rate)
            self.swing = SWING
        self.known, self.searching, self.since = max(rate, SLOWEST), False, t
