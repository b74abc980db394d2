"""Other concurrency policies, written from their descriptions, for comparison with ours.

None of them pauses a run for a Retry-After: the executor delays only the trial that got it.
"""

import math

from evaljournal.runner.concurrency.policy import STARTS, CallEnd, CallEvent, Change, Outcome, StartPermit, call_of, result_of

_OPEN = StartPermit(open=True)
_FULL = StartPermit(open=False)


class Fixed:
    """A fixed number of calls in flight."""

    def __init__(self, slots: int) -> None:
        """Allow `slots` calls in flight."""
        self.slots = slots
        self.state = None
        self.in_flight = 0

    @property
    def limit(self) -> int:
        """Calls that may be in flight."""
        return self.slots

    def observe(self, event: CallEvent, t: float) -> list[Change]:
        """Count the calls in flight, and learn from how they end."""
        if isinstance(event, STARTS):
            self.in_flight += 1
            self.begin(t)
        else:
            self.in_flight -= 1
            self.learn(event, t)
        return []

    def begin(self, t: float) -> None:
        """Ignore the start of a call."""

    def learn(self, end: CallEnd, t: float) -> None:
        """Ignore the end of a call."""

    def elapse(self, t: float) -> list[Change]:  # noqa: ARG002  # part of the protocol
        """Ignore time that passes without an end of a call."""
        return []

    def may_start(self, t: float) -> StartPermit:  # noqa: ARG002  # others pace their starts
        """Open while fewer than the limit are in flight."""
        return _OPEN if self.in_flight < self.limit else _FULL


class Phoenix(Fixed):
    """The rule of the Phoenix evals library with its defaults: windows of 5 s, +0.5, halved after an error, collapse to 1."""

    WINDOW, STEP, RATIO = 5.0, 0.5, 0.5
    COLLAPSE_WINDOW, COLLAPSE_ERRORS = 15.0, 2
    INITIAL = 3.0

    def __init__(self, slots: int) -> None:
        """Move between 1 and `slots`."""
        super().__init__(slots)
        self.target = min(self.INITIAL, float(slots))
        self._window: float | None = None
        self._successes = self._errors = 0
        self._recent: list[float] = []

    @property
    def limit(self) -> int:
        """Calls that may be in flight."""
        return int(self.target)

    def learn(self, end: CallEnd, t: float) -> None:
        """Count the end in its window, and move the target when the window is over."""
        outcome = result_of(end).outcome
        self._window = t if self._window is None else self._window
        if t - self._window >= self.WINDOW:
            if self._errors:
                self._move(self.target * self.RATIO)
            elif self._successes:
                self._move(self.target + self.STEP)
            self._window, self._successes, self._errors = t, 0, 0
        if outcome == "succeeded":
            self._successes += 1
        elif is_load(outcome):
            self._errors += 1
            self._recent = [recent for recent in self._recent if t - recent < self.COLLAPSE_WINDOW]
            self._recent.append(t)
            if len(self._recent) >= self.COLLAPSE_ERRORS:
                self._recent, self._window, self._successes, self._errors = [], t, 0, 0
                self._move(1.0)

    def _move(self, target: float) -> None:
        self.target = min(max(target, 1.0), float(self.slots))


class Aws(Fixed):
    """The client-side rate limiter of the AWS SDKs' adaptive retry mode: a token bucket whose rate follows a cubic curve."""

    SMOOTH, BETA, SCALE, SLOWEST = 0.8, 0.7, 0.4, 0.5

    def __init__(self, slots: int) -> None:
        """Pace starts once something was rate limited, with at most `slots` in flight."""
        super().__init__(slots)
        self._enabled = False
        self._fill = self._capacity = self._tokens = 0.0
        self._filled = 0.0
        self._measured = 0.0
        self._count, self._bucket = 0, 0.0
        self._max_rate = 0.0
        self._throttled = 0.0

    def may_start(self, t: float) -> StartPermit:
        """Open while a slot is free and the bucket holds a token."""
        if self.in_flight >= self.slots:
            return _FULL
        if not self._enabled:
            return _OPEN
        tokens = min(self._tokens + (t - self._filled) * self._fill, self._capacity)
        # Slightly less than a token is enough; otherwise rounding could make the wait endless.
        return _OPEN if tokens > 1 - 1e-9 else StartPermit(open=False, check_at=t + max((1 - tokens) / self._fill, 1e-6))

    def begin(self, t: float) -> None:
        """Take a token."""
        if self._enabled:
            self._refill(t)
            self._tokens -= 1

    def learn(self, end: CallEnd, t: float) -> None:
        """Set the rate after each answer."""
        self._measure(t)
        if result_of(end).outcome == "rate_limited":
            rate = min(self._measured, self._fill) if self._enabled else self._measured
            self._max_rate, self._throttled, self._enabled = rate, t, True
            self._set(t, self.BETA * rate)
        elif self._enabled:
            window = (self._max_rate * (1 - self.BETA) / self.SCALE) ** (1 / 3)
            self._set(t, self.SCALE * (t - self._throttled - window) ** 3 + self._max_rate)

    def _measure(self, t: float) -> None:
        """Smooth the rate of answers over buckets of half a second."""
        self._count += 1
        bucket = math.floor(2 * t) / 2
        if bucket > self._bucket:
            rate = self._count / (bucket - self._bucket)
            self._measured = self.SMOOTH * rate + (1 - self.SMOOTH) * self._measured
            self._count, self._bucket = 0, bucket

    def _refill(self, t: float) -> None:
        self._tokens = min(self._tokens + (t - self._filled) * self._fill, self._capacity)
        self._filled = t

    def _set(self, t: float, rate: float) -> None:
        self._refill(t)
        rate = min(rate, 2 * self._measured)
        self._fill, self._capacity = max(rate, self.SLOWEST), max(rate, 1.0)
        self._tokens = min(self._tokens, self._capacity)


class Inspect(Fixed):
    """Inspect AI's adaptive connections with their defaults, as its documentation describes them.

    Start at 20; double after each clean round until the first rate limit, then grow by 5 % a round; cut to 0.8 after a rate
    limit, at most once in 15 s or in the time of its Retry-After. A call that succeeds after a retry does not count.
    """

    START, MINIMUM, CUT, GROW, COOLDOWN = 20, 4, 0.8, 0.05, 15.0

    def __init__(self, slots: int) -> None:
        """Move between 4 and `slots`."""
        super().__init__(slots)
        self._limit = min(self.START, slots)
        self._slow_start = True
        self._clean = 0
        self._until = 0.0
        self._retried: set[str] = set()

    @property
    def limit(self) -> int:
        """Calls that may be in flight."""
        return self._limit

    def learn(self, end: CallEnd, t: float) -> None:
        """Count clean successes; a round has as many as the limit."""
        outcome, _, retry_after = result_of(end)
        if outcome == "succeeded":
            if call_of(end) in self._retried:
                self._retried.discard(call_of(end))
                return
            self._clean += 1
            if self._clean >= self._limit:
                grown = 2 * self._limit if self._slow_start else self._limit + max(1, round(self.GROW * self._limit))
                self._limit, self._clean = min(grown, self.slots), 0
        else:
            self._retried.add(call_of(end))
            if outcome == "rate_limited":
                self._rate_limited(t, retry_after)

    def _rate_limited(self, t: float, retry_after: float | None) -> None:
        self._slow_start, self._clean = False, 0
        if t >= self._until:
            self._limit = max(int(self.CUT * self._limit), min(self.MINIMUM, self.slots))
            self._until = t + max(self.COOLDOWN, retry_after or 0.0)


def is_load(outcome: Outcome) -> bool:
    """Return whether the end of a call may be due to load: a rate limit, an unavailable endpoint, a timeout."""
    return outcome in ("timed_out", "rate_limited", "unavailable")
