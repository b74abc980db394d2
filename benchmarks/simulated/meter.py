"""The limits of a simulated provider: what flows in, what was taken, and what is left.

A limit is a continuous bucket, or a fixed window that is full again when the next one begins.
"""

import math
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
    """Share of what flows in that another tenant of the same limit uses; None: nothing."""
    level: float = field(init=False)
    admitted: list[tuple[float, float]] = field(factory=list[tuple[float, float]])
    """(Time, amount) of everything that was admitted, corrections included."""
    total: float = 0.0
    """All that was admitted."""
    now: float = 0.0
    """Time until which it was advanced."""

    def __attrs_post_init__(self) -> None:
        """Start with a full bucket."""
        self.level = self.limit.size

    def advance(self, t: float) -> None:
        """Let time pass until `t`: refill, and let the other tenant take its part."""
        limit, seconds = self.limit, t - self.now
        assert seconds >= 0
        if limit.period is not None and t // limit.period > self.now // limit.period:
            self.level, seconds = limit.size, t % limit.period
        flow = limit.rate * seconds if limit.period is None else 0.0
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

    def waste(self, need: float) -> None:
        """Take the need of a call that was rejected, as far as there is something left."""
        self.level = min(self.level, max(self.level - need, 0.0))

    def seconds_until(self, level: float) -> float:
        """Return the seconds until this level is reached if nothing is taken; `size` stands for "full"."""
        missing = min(level, self.limit.size) - self.level
        if missing <= 0:
            return 0.0
        if self.limit.period is not None:
            return self.limit.period - self.now % self.limit.period
        return missing / self.limit.rate

    @property
    def remaining(self) -> int:
        """What is left, as a whole number."""
        return max(math.floor(self.level), 0)

    def used_share(self, start: float, end: float) -> float:
        """Return what was admitted between two times, divided by what flowed in and was left by the other tenant."""
        used = sum(amount for t, amount in self.admitted if start <= t < end)
        left = sum(1.0 - self._others_at(second + 0.5) for second in range(math.floor(start), math.ceil(end)))
        return used / (self.limit.rate * left)

    def _others_at(self, t: float) -> float:
        return 0.0 if self.others is None else self.others.at(t)
