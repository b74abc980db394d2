"""The limits of a simulated provider: what flows in, what was taken, and what is left.

A limit is a continuous bucket, a fixed window that is full again when the next one begins, or a sliding window, to which what
was taken returns after its length.
"""

import math
from collections import deque
from typing import Literal

from attrs import define, field, frozen

from benchmarks.simulated.endpoint import Curve

Kind = Literal["requests", "tokens", "project_tokens", "input_tokens", "output_tokens"]
DAY = 86_400.0


@frozen(kw_only=True)
class Limit:
    """One limit of a provider."""

    kind: Kind
    amount: float
    """What flows in during `window`; it is what the headers state."""
    window: float = 60.0
    """Seconds: 60, a day, or Azure's renewal period."""
    holds: float | None = None
    """What a full bucket holds; None: `amount`."""
    period: float | None = None
    """Seconds of a fixed window: its part of `amount` is allowed in each. None: a continuous bucket."""
    phase: float = 0.0
    """Seconds of its first fixed window that are over at the start."""
    is_sliding: bool = False
    """Whether `window` is a sliding one."""
    is_advertised: bool = True
    """Whether headers state it. Some enforce 60 per minute as 1 per second: two limits, of which headers state the first."""

    @property
    def rate(self) -> float:
        """What flows in per second."""
        return self.amount / self.window

    @property
    def size(self) -> float:
        """The largest need that can ever fit."""
        if self.period is not None:
            return self.rate * self.period
        return self.amount if self.holds is None else self.holds


@define(eq=False)
class Meter:
    """The level of a limit, and the record of what was admitted."""

    limit: Limit
    others: Curve | None = None
    """Share of what flows in that another tenant of the same limit uses, above 1 what was left, too; None: nothing."""
    initial: float = 1.0
    """Share of it that is left at the start."""
    level: float = field(init=False)
    admitted: list[tuple[float, float]] = field(factory=list[tuple[float, float]])
    """(Time, amount) of everything that was admitted, corrections included."""
    total: float = 0.0
    """All that was admitted."""
    now: float = 0.0
    """Time until which it was advanced."""
    _in_window: deque[tuple[float, float]] = field(factory=deque[tuple[float, float]])
    """(Time, amount) of what was taken in a sliding window."""

    def __attrs_post_init__(self) -> None:
        """Start with what is left."""
        self.level = self.initial * self.limit.size

    def advance(self, t: float) -> None:
        """Let time pass until `t`: refill, and let the other tenant take its part."""
        limit, seconds = self.limit, t - self.now
        assert seconds >= 0
        if limit.period is not None and (t + limit.phase) // limit.period > (self.now + limit.phase) // limit.period:
            self.level, seconds = limit.size, (t + limit.phase) % limit.period
        while self._in_window and self._in_window[0][0] <= t - limit.window:
            self.level += self._in_window.popleft()[1]
        flow = 0.0 if limit.is_sliding or limit.period is not None else limit.rate * seconds
        taken = limit.rate * seconds * self._others_at(t)
        self.level = min(self.level + max(flow - taken, -max(self.level, 0.0)), limit.size)
        self.now = t

    def fits(self, need: float) -> bool:
        """Return whether there is enough; a need of 0 fits if anything is left."""
        return self.level >= need if need else self.level > 0

    def take(self, need: float) -> None:
        """Take the need of an admitted call, or a correction of it."""
        self.level = min(self.level - need, self.limit.size)
        self.total += need
        self.admitted.append((self.now, need))
        if self.limit.is_sliding:
            self._in_window.append((self.now, need))

    def waste(self, need: float) -> None:
        """Take the need of a call that was rejected, as far as there is something left."""
        self.level = min(self.level, max(self.level - need, 0.0))

    def seconds_until(self, level: float) -> float:
        """Return the seconds until this level is reached if nothing is taken; `size` stands for "full"."""
        missing = min(level, self.limit.size) - self.level
        if missing <= 0:
            return 0.0
        if self.limit.period is not None:
            return self.limit.period - (self.now + self.limit.phase) % self.limit.period
        if self.limit.is_sliding:
            return self._seconds_until_returned(missing)
        return missing / self.limit.rate

    def _seconds_until_returned(self, missing: float) -> float:
        for t, amount in self._in_window:
            missing -= amount
            if missing <= 0:
                return t + self.limit.window - self.now
        return self.limit.window

    @property
    def remaining(self) -> int:
        """What is left, as a whole number."""
        return max(math.floor(self.level), 0)

    def used_share(self, start: float, end: float) -> float:
        """Return what was admitted between two times, divided by what flowed in and was left by the other tenant."""
        used = sum(amount for t, amount in self.admitted if start <= t < end)
        left = sum(max(1.0 - self._others_at(second + 0.5), 0.0) for second in range(math.floor(start), math.ceil(end)))
        return used / (self.limit.rate * left)

    def _others_at(self, t: float) -> float:
        return 0.0 if self.others is None else self.others.at(t)
