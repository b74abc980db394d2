"""How many attempts may be in flight: the machine for endpoints that accept so many at once.

A refusal at n in flight says that n - 1 is the most, exactly; so the limit is put there, and not lower. From then on
one more is tried now and then, ever more rarely while the answer stays the same.

Three phases follow one another:
    climbing  nothing is known against more; every success adds a slot while the slots are used
    holding   a limit is known; it is kept for a period
    trying    a little more is allowed, to see whether the limit has moved; if all is well for a period, climb again

What "a little" is depends on why we hold. A refusal shows itself at one more. A server that only gets slower shows it
at a quarter more, or shows at a quarter less that it is slow already; there, each quarter has to prove itself, and we
never climb freely again.
"""

from typing import Literal

from attrs import define

from runner.concurrency.start import Begun

FIRST = 16
"""Slots to begin with."""
BUSY = 0.85
"""Part of the limit that must be in use before more is allowed; otherwise more proves nothing."""
DOUBT = 300.0
"""Seconds for which the number in flight is not blamed after it was blamed wrongly."""
WORTH = 8
"""Successes at more than is held that outweigh a refusal there."""
SHORTEST, LONGEST = 5.0, 120.0
"""Seconds between two trials of a higher limit."""


@define(kw_only=True)
class InFlight:
    """The limit, and what speaks against a higher one."""

    limit: int = FIRST
    """What this machine would allow; an illness may allow less for a while."""
    phase: Literal["climbing", "holding", "trying"] = "climbing"
    held: int = 0
    """The limit that is known to be good, while holding or trying."""
    slower: bool = False
    """What speaks against more is that it was slower, not that it was refused."""
    upward: bool = True
    """Whether the next trial, or the present one, is of more; only slowness makes us try less."""
    since: float = 0.0
    """When the present phase began."""
    period: float = SHORTEST
    """Seconds to hold before the next trial."""
    accepted: int = 0
    """The most that were in flight at the start of an attempt that then succeeded."""
    surplus: int = 0
    """Successes at more than is held since the trial began, less `WORTH` for every refusal there."""
    doubt_until: float = 0.0
    """Until then no refusal is blamed on the number in flight: the last that was turned out to be about the rate."""
    lesson: int = 0
    """The last attempt begun before the last lesson; those up to it cannot teach again."""

    def succeeded(self, begun: Begun, t: float, in_flight: int, most: int) -> None:
        """Allow more where it would be used, but no more than `most`."""
        if begun.in_flight > self.accepted:
            self.accepted = begun.in_flight
            if self.held and not self.slower and self._good() > self.held + 1:
                self.release()
        if self.phase == "trying" and begun.in_flight > self.held:
            self.surplus += 1
        if in_flight < BUSY * self.limit:
            return
        if self.phase == "climbing":
            self.limit = max(self.limit, min(self.limit + 1, most))
        elif t - self.since >= self.period:
            self._next(t, most)

    def _next(self, t: float, most: int) -> None:
        """Go from holding to trying, and from trying to climbing."""
        if self.phase == "holding":
            step = max(1, self.held // 4) if self.slower else 1
            self.phase, self.since, self.surplus = "trying", t, 0
            self.upward = self.upward or not self.slower or self.held == 1
            self.limit = max(self.held, min(self.held + step, most)) if self.upward else self.held - step
        elif not self.slower:
            self.phase, self.period = "climbing", SHORTEST
        elif t - self.since >= LONGEST:
            # Nothing could be compared, because something else held us back.
            self.phase, self.since, self.limit, self.upward = "holding", t, self.held, True

    def _good(self) -> int:
        return self.accepted - self.accepted // 16  # Some were accepted because others had just left.

    def failed(self, begun: Begun) -> bool:
        """Tell whether a refusal ends the trial of a higher limit: such a thing was to be expected."""
        if self.phase != "trying" or begun.in_flight <= self.held:
            return False
        self.surplus -= WORTH
        return self.surplus < 0

    def below(self, begun: Begun) -> bool:
        """Tell whether so many in flight are known to be good, or nothing is known."""
        return self.slower or begun.in_flight <= self.held or self.phase == "climbing"

    def release(self) -> None:
        """Take the lesson back: the number in flight was not the reason."""
        if self.held and not self.slower:
            self.held, self.phase, self.limit = 0, "climbing", max(self.limit, self._good())

    def blame(self, begun: Begun, t: float) -> bool:
        """Decide whether too many in flight are why an attempt was refused: as many are not known to be good."""
        if begun.in_flight > max(self._good(), 1) or 0 < self.held < begun.in_flight:
            return t >= self.doubt_until
        if self.held and not self.slower and begun.order > self.lesson:
            # Refused with fewer than were thought good: the number was not the reason, neither now nor before.
            self.held, self.phase, self.doubt_until = 0, "climbing", t + DOUBT
        return False

    def refuse(self, begun: Begun, t: float, newest: int) -> str | None:
        """Hold just below what was refused; tell what was seen, or None if it belongs to the last lesson."""
        if begun.order <= self.lesson:
            return None
        self._hold(max(begun.in_flight - 1, 1), t, newest, slower=False)
        return f"429 at {begun.in_flight} in flight, {self.accepted} accepted before"

    def weigh(self, t: float, newest: int, *, worth: bool, better: int) -> None:
        """Heed a comparison of two loads: whether the higher is worth it, and which limit is the better."""
        if self.phase != "trying" or not self.slower:
            if not worth:
                self._hold(max(better, 1), t, newest, slower=True)
                self.upward = False
            return
        if worth == self.upward:
            self.held, self.period = self.limit, SHORTEST
        else:
            self.upward, self.period = not self.upward, min(2 * self.period, LONGEST)
        self.limit, self.phase, self.since, self.lesson = self.held, "holding", t, newest

    def _hold(self, limit: int, t: float, newest: int, *, slower: bool) -> None:
        same = self.phase != "climbing" and abs(limit - self.held) <= max(1, self.held // 10)
        self.period = min(2 * self.period, LONGEST) if same else SHORTEST
        self.phase, self.since, self.held, self.lesson = "holding", t, limit, newest
        self.limit, self.slower = limit, slower
