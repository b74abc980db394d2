"""A simulated endpoint: it answers, rate limits, fails, slows down and hangs.

Times are seconds since the start of the run.
"""

import heapq
import math
from bisect import bisect_right
from collections import deque
from typing import Literal

from attrs import define, field, frozen

from benchmarks.simulated.chance import log_normal, uniform

REPLY = 0.15
"""Mean seconds until a 429 or a 5xx is returned; less if a call takes less."""
REPLY_SIGMA = 0.5
"""Spread of the logarithm of reply times, so that replies arrive in a different order than their calls started."""
TIMEOUT = 60.0
"""The client's timeout in seconds, unless a scenario has another."""
HUNG = math.inf

Kind = Literal["ok", "rate_limited", "random_429", "unavailable", "hung", "error"]
_HANG, _ERROR, _LATENCY, _RANDOM, _COST, _REPLY = range(6)


@frozen
class Curve:
    """A factor that changes over time."""

    points: tuple[tuple[float, float], ...]
    """(Time, factor), in order; before the first point the factor is 1."""
    ramps: bool = False
    """Move linearly between the points instead of jumping at each."""

    def at(self, t: float) -> float:
        """Return the factor at a time."""
        k = bisect_right(self.points, (t, math.inf))
        t0, before = self.points[k - 1] if k else (0.0, 1.0)
        if not self.ramps or k == len(self.points):
            return before
        t1, after = self.points[k]
        return before + (after - before) * (t - t0) / (t1 - t0)


@frozen(kw_only=True)
class Poison:
    """Cases that never succeed, whatever the load."""

    per_thousand: int
    kind: Literal["rate_limited", "unavailable", "hung", "error"]
    retry_after: float | None = None
    quick: bool = False
    """Whether their error is returned immediately, not after the latency of a call."""

    def hits(self, trial: int) -> bool:
        """Return whether a trial's case is poisoned; they are spread evenly."""
        return trial * 7919 % 1000 < self.per_thousand

    @property
    def odds(self) -> float:
        """Poisoned cases per other case."""
        return self.per_thousand / (1000 - self.per_thousand)


@frozen(kw_only=True)
class Burst:
    """A period in which every new call gets the same answer."""

    start: float
    seconds: float
    kind: Literal["rate_limited", "unavailable", "hung"]
    """An outage (`unavailable`) also fails the calls in flight within a second; a black hole (`hung`) never answers them."""
    retry_after: float | None = None

    @property
    def end(self) -> float:
        """Its end."""
        return self.start + self.seconds


@frozen(kw_only=True)
class Ban:
    """What an endpoint does to a client that gets too many 429s: it rejects every call for a while."""

    after: int = 3
    """429s within `within` seconds that start it."""
    within: float = 10.0
    seconds: float = 60.0
    retry_after: bool = False
    """Whether a 429 during the ban states the seconds until its end; otherwise it has no Retry-After."""
    extends: bool = False
    """Whether a call during the ban starts it again."""


@frozen(kw_only=True)
class Endpoint:
    """The capacity of an endpoint, and its behavior above it."""

    rate: float | None = None
    """Calls per second that flow into its bucket; None: unlimited."""
    burst: float = 0.0
    """Calls that a full bucket holds."""
    window: float | None = None
    """Seconds of a fixed window: `rate` x `window` calls are accepted in each, and there is no bucket."""
    cost_sigma: float = 0.0
    """Spread of the log of a call's tokens. A call takes 1 from the bucket on average; its size is a property of the case."""
    retry_after: bool | float = True
    """Retry-After with a 429 by rate: the whole seconds until there is room again, always the same number, or none."""
    burns: bool = False
    """A rate-limited call is taken from the bucket as well, down to minus a minute's worth."""
    cap: int | None = None
    """Calls in flight that it accepts; a 429 beyond that has no Retry-After."""
    workers: int | None = None
    """Calls that it processes at the same time; the others wait in a queue, first come, first served."""
    knee: int | None = None
    """Calls in flight up to which latency is constant."""
    beyond: float = 2.0
    """Exponent of latency over load beyond the knee: 1 saturates (throughput stays), 2 collapses (throughput falls)."""
    overload_hangs: Literal["no", "call", "server"] = "no"
    """Calls beyond the knee get no answer; with `server` they also count as load until the client's timeout."""
    median: float = 2.0
    """Median latency in seconds, log-normal."""
    sigma: float = 0.5
    """Spread of its logarithm."""
    network: float = 0.03
    """Mean seconds from the end of a call at the endpoint until its output arrives."""
    brownout_every: float | None = None
    """Seconds from one outage to the next; the first comes after half of it."""
    brownout: float = 30.0
    """Seconds of such an outage."""
    brownout_kind: Literal["rate_limited", "unavailable"] = "unavailable"
    bursts: tuple[Burst, ...] = ()
    """Single outages, bursts of 429s and black holes, in order of time."""
    ban: Ban | None = None
    hangs: float = 0.0
    """Fraction of calls that are never answered."""
    random_429: float = 0.0
    """Fraction of calls that are randomly rate limited, at any load."""
    random_retry_after: float | None = None
    background_5xx: float = 0.0
    """Fraction of accepted calls that fail quickly with a 5xx."""
    poison: Poison | None = None
    rate_curve: Curve | None = None
    cap_curve: Curve | None = None
    latency_curve: Curve | None = None

    def mean(self) -> float:
        """Return the mean seconds of a call that succeeds at low load."""
        return self.median * math.exp(self.sigma * self.sigma / 2) + self.network

    def reply(self) -> float:
        """Return the mean seconds until a 429 or a 5xx is returned."""
        return min(REPLY, self.median)

    def burst_at(self, t: float) -> Burst | None:
        """Return the outage, burst of 429s or black hole at `t`, or the next one."""
        every = self.brownout_every
        first = next((b for b in self.bursts if b.end > t), None)
        if every is None:
            return first
        k = max(math.floor(t / every - 0.5), 0)
        start = (k + 0.5) * every
        start = start if t < start + self.brownout else start + every
        if first is not None and first.start < start:
            return first
        return Burst(start=start, seconds=self.brownout, kind=self.brownout_kind)


@define
class Answer:
    """The outcome of a call."""

    kind: Kind
    seconds: float
    """Seconds until the answer arrives; infinite if it never does."""
    retry_after: float | None = None
    cost: float = 1.0
    """Tokens taken from the bucket."""


@define
class Server:
    """The state of an endpoint: its bucket, and the calls in flight."""

    endpoint: Endpoint
    seed: int
    timeout: float = TIMEOUT
    """The client's timeout, which ends hung calls."""
    tokens: float = 0.0
    filled: float = 0.0
    """Time at which the bucket was last filled, or the window started."""
    busy: list[float] = field(factory=list[float])
    """End of each call in flight, a heap."""
    bans: int = 0
    _burst: Burst | None = None
    _workers: list[float] = field(factory=list[float])
    """When each worker has finished its calls, a heap."""
    _banned_until: float = 0.0
    _recent: deque[float] = field(factory=deque[float])
    """Times of the last 429s that count towards a ban."""

    def __attrs_post_init__(self) -> None:
        """Start with a full bucket."""
        e = self.endpoint
        self.tokens = e.burst if e.window is None else (e.rate or 0.0) * e.window
        self._burst = e.burst_at(0.0)
        self._workers = [0.0] * (e.workers or 0)

    def call(self, t: float, trial: int, attempt: int) -> Answer:
        """Return the outcome of a call that arrives at `t`."""
        e, busy = self.endpoint, self.busy
        while busy and busy[0] <= t:
            heapq.heappop(busy)
        burst = self._burst
        if burst is not None and t >= burst.end:
            burst = self._burst = e.burst_at(t)
        rejected = self._reject(t, trial, attempt, burst)
        if rejected is not None:
            return rejected
        seed = self.seed
        seconds = log_normal(uniform(seed, trial, 0, _LATENCY), e.median, e.sigma)  # The same in each attempt: see `chance`.
        if e.latency_curve is not None:
            seconds *= e.latency_curve.at(t)
        if e.knee is not None and len(busy) >= e.knee:
            if e.overload_hangs != "no":
                return self._hang(t, occupies=e.overload_hangs == "server")
            seconds *= ((len(busy) + 1) / e.knee) ** e.beyond
        if e.workers is not None:
            seconds += max(self._workers[0] - t, 0.0)
            heapq.heapreplace(self._workers, t + seconds)
        if burst is not None and burst.kind != "rate_limited" and t + seconds > burst.start:
            if burst.kind == "hung":
                return self._hang(t, occupies=False)
            seconds = burst.start - t + uniform(seed, trial, attempt, _ERROR)
            heapq.heappush(busy, t + seconds)
            return Answer("unavailable", seconds)
        heapq.heappush(busy, t + min(seconds, self.timeout))
        own_error = e.poison is not None and e.poison.kind == "error" and e.poison.hits(trial)
        cost = self._cost(trial) if e.cost_sigma else 1.0
        seconds += self._vary(e.network, trial, attempt)
        return Answer("error" if own_error else "ok", seconds, cost=cost)

    def _reject(self, t: float, trial: int, attempt: int, burst: Burst | None) -> Answer | None:
        """Return the outcome of a call that is not served, if there is a reason."""
        if burst is not None and burst.start <= t:
            if burst.kind == "hung":
                return self._hang(t, occupies=False)
            return Answer(burst.kind, self._reply(trial, attempt), retry_after=burst.retry_after)
        poison = self.endpoint.poison
        if poison is not None and poison.hits(trial) and (poison.kind != "error" or poison.quick):
            if poison.kind == "hung":
                return self._hang(t, occupies=True)
            kind: Kind = "random_429" if poison.kind == "rate_limited" else poison.kind
            return Answer(kind, self._reply(trial, attempt), poison.retry_after)
        limited = (
            self._limit(t, trial, attempt) if self.endpoint.ban is None else self._ban(self.endpoint.ban, t, trial, attempt)
        )
        return limited or self._fail(t, trial, attempt)

    def _ban(self, ban: Ban, t: float, trial: int, attempt: int) -> Answer | None:
        """Return a 429 during a ban or because of a limit, and start a ban after too many of them."""
        if t < self._banned_until:
            if ban.extends:
                self._banned_until = t + ban.seconds
            wait = math.ceil(self._banned_until - t) if ban.retry_after else None
            return Answer("rate_limited", self._reply(trial, attempt), wait)
        limited = self._limit(t, trial, attempt)
        if limited is not None:
            recent = self._recent
            recent.append(t)
            while recent[0] < t - ban.within:
                recent.popleft()
            if len(recent) >= ban.after:
                recent.clear()
                self.bans += 1
                self._banned_until = t + ban.seconds
        return limited

    def _limit(self, t: float, trial: int, attempt: int) -> Answer | None:
        """Return a 429 because of a limit or at random, or None."""
        e = self.endpoint
        if e.random_429 and uniform(self.seed, trial, attempt, _RANDOM) < e.random_429:
            return Answer("random_429", self._reply(trial, attempt), e.random_retry_after)
        if e.cap is not None and len(self.busy) >= e.cap * (1.0 if e.cap_curve is None else e.cap_curve.at(t)):
            return Answer("rate_limited", self._reply(trial, attempt))
        if e.rate is not None and not self._grant(t, trial):
            return Answer("rate_limited", self._reply(trial, attempt), self._wait(t, trial))
        return None

    def _fail(self, t: float, trial: int, attempt: int) -> Answer | None:
        """Return a random failure, or None."""
        e = self.endpoint
        if e.hangs and uniform(self.seed, trial, attempt, _HANG) < e.hangs:
            return self._hang(t, occupies=True)
        if e.background_5xx and uniform(self.seed, trial, attempt, _ERROR) < e.background_5xx:
            return Answer("unavailable", self._reply(trial, attempt))
        return None

    def _reply(self, trial: int, attempt: int) -> float:
        """Return the seconds until a 429 or a 5xx of this attempt is returned."""
        return self._vary(self.endpoint.reply(), trial, attempt)

    def _vary(self, mean: float, trial: int, attempt: int) -> float:
        median = mean * math.exp(-REPLY_SIGMA * REPLY_SIGMA / 2)
        return log_normal(uniform(self.seed, trial, attempt, _REPLY), median, REPLY_SIGMA)

    def _hang(self, t: float, *, occupies: bool) -> Answer:
        if occupies:
            heapq.heappush(self.busy, t + self.timeout)
        return Answer("hung", HUNG)

    def _rate(self, t: float) -> float:
        rate = self.endpoint.rate or 0.0
        return rate if self.endpoint.rate_curve is None else rate * self.endpoint.rate_curve.at(t)

    def _cost(self, trial: int) -> float:
        e = self.endpoint
        if not e.cost_sigma:
            return 1.0
        median = math.exp(-e.cost_sigma * e.cost_sigma / 2)
        return min(log_normal(uniform(self.seed, trial, 0, _COST), median, e.cost_sigma), 0.8 * e.burst)

    def _grant(self, t: float, trial: int) -> bool:
        """Take a call's tokens from the bucket or the window, if it has enough."""
        e, rate, cost = self.endpoint, self._rate(t), self._cost(trial)
        if e.window is None:
            self.tokens = min(self.tokens + (t - self.filled) * rate, e.burst)
            self.filled = t
        elif t >= self.filled + e.window:
            self.filled = e.window * (t // e.window)
            self.tokens = rate * e.window
        granted = self.tokens >= cost
        if granted or e.burns:
            self.tokens = max(self.tokens - cost, -60 * rate)
        return granted

    def _wait(self, t: float, trial: int) -> float | None:
        e = self.endpoint
        if e.retry_after is False:
            return None
        if e.retry_after is not True:
            return e.retry_after
        if e.window is not None:
            return max(1.0, math.ceil(self.filled + e.window - t))
        return max(1.0, math.ceil((self._cost(trial) - max(self.tokens, 0.0)) / max(self._rate(t), 0.001)))
