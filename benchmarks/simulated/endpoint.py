"""An endpoint that refuses, breaks down, hangs and slows like real ones.

Everything that the world outside does to a call lives here. It does not know who calls, or why.
"""

import heapq
import math
import random

from attrs import define, field, frozen

from runner.concurrency import Quota

ANSWER = 0.15
"""Seconds until a refusal or an error comes back: no model ran."""
TIMEOUT = 60.0
"""Seconds after which the caller gives up."""


@frozen(kw_only=True)
class Endpoint:
    """What an endpoint can do, and how it behaves when asked for more."""

    rate: float | None = None
    """Calls per second that flow into its bucket; None: as many as you like."""
    burst: float = 0.0
    """Calls that a full bucket holds."""
    retry_after: bool = True
    """It names whole seconds with a refusal by rate."""
    headers: bool = False
    """Every answer tells what remains in the bucket, and when it will be full."""
    burns: bool = False
    """A refused call is taken from the bucket as well, down to minus a minute's worth."""
    cap: int | None = None
    """Calls in flight that it accepts; the refusal names no time."""
    knee: int | None = None
    """Calls in flight up to which it is quick; beyond, latency grows with the square of the load."""
    median: float = 2.0
    """Seconds of a call, the median of a log-normal."""
    sigma: float = 0.5
    """Spread of its logarithm."""
    network: float = 0.03
    """Seconds that an output is on its way to us after the endpoint has counted the call as done."""
    brownout_every: float | None = None
    """Seconds from one brown-out to the next; the first comes after half of it."""
    brownout: float = 30.0
    """Seconds of a brown-out: all calls in flight fail in its first second, all new ones at once."""
    brownout_refuses: bool = False
    """A brown-out refuses new calls with a 429 that names no time, and lets those in flight end."""
    hangs: float = 0.0
    """Part of the calls that never answer."""
    strays: float = 0.0
    """Part of the calls that it refuses for no reason of ours: by chance, whatever the load, and it names no time."""

    def mean(self) -> float:
        """Give the mean seconds for which a call takes a place when there is no crowd, hung ones included."""
        return self.median * math.exp(self.sigma * self.sigma / 2) + self.network + self.hangs * TIMEOUT

    def per_second(self) -> float:
        """Give the calls per second that it can deliver at best, while it is well."""
        bounds = [self.rate, *(n / self.mean() for n in (self.cap, self.knee) if n is not None)]
        return min(b for b in bounds if b is not None)

    def well(self, seconds: float) -> float:
        """Give the seconds of a run in which it is not browned out."""
        if self.brownout_every is None:
            return seconds
        starts = (self.brownout_every * (k + 0.5) for k in range(int(seconds / self.brownout_every) + 1))
        return seconds - sum(min(self.brownout, seconds - s) for s in starts if s < seconds)


@frozen(kw_only=True)
class Answer:
    """What will become of a call."""

    kind: str
    """ok, refused, stray, ill or hung."""
    seconds: float
    retry_after: float | None = None
    quota: Quota | None = None


@define
class Server:
    """An endpoint at work: its bucket, and the calls that it is busy with."""

    endpoint: Endpoint
    chance: random.Random
    tokens: float = 0.0
    filled: float = 0.0
    busy: list[float] = field(factory=list[float])
    """When each call in flight will leave it, the next one first."""

    def __attrs_post_init__(self) -> None:
        """Begin with a full bucket, as an endpoint does that nobody has called."""
        self.tokens = self.endpoint.burst

    def call(self, t: float) -> Answer:
        """Decide now what will become of a call that arrives at `t`."""
        e = self.endpoint
        while self.busy and self.busy[0] <= t:
            heapq.heappop(self.busy)
        sick = self._next_brownout(t)
        turned_away = self._turn_away(t, sick)
        if turned_away is not None:
            return turned_away
        if e.hangs and self.chance.random() < e.hangs:
            heapq.heappush(self.busy, t + TIMEOUT)
            return Answer(kind="hung", seconds=math.inf)
        seconds = self.chance.lognormvariate(math.log(e.median), e.sigma)
        if e.knee is not None and len(self.busy) >= e.knee:
            seconds *= ((len(self.busy) + 1) / e.knee) ** 2
        if sick is not None and t + seconds > sick and not e.brownout_refuses:
            seconds = sick - t + self.chance.random()
            heapq.heappush(self.busy, t + seconds)
            return Answer(kind="ill", seconds=seconds)
        heapq.heappush(self.busy, t + seconds)
        return Answer(kind="ok", seconds=seconds + e.network, quota=self._quota())

    def _turn_away(self, t: float, sick: float | None) -> Answer | None:
        """Answer a call without working on it, if there is a reason to."""
        e = self.endpoint
        if sick is not None and sick <= t:
            return Answer(kind="refused" if e.brownout_refuses else "ill", seconds=ANSWER)
        if e.strays and self.chance.random() < e.strays:
            return Answer(kind="stray", seconds=min(ANSWER, e.median))
        if e.cap is not None and len(self.busy) >= e.cap:
            return Answer(kind="refused", seconds=ANSWER)
        if e.rate is not None and not self._grant(t, e.rate):
            wait = max(1.0, math.ceil((1 - max(self.tokens, 0.0)) / e.rate)) if e.retry_after else None
            return Answer(kind="refused", seconds=ANSWER, retry_after=wait, quota=self._quota())
        return None

    def _grant(self, t: float, rate: float) -> bool:
        """Take one out of the bucket, if it is there."""
        e = self.endpoint
        self.tokens = min(self.tokens + (t - self.filled) * rate, e.burst)
        self.filled = t
        granted = self.tokens >= 1
        if granted or e.burns:
            self.tokens = max(self.tokens - 1, -60 * rate)
        return granted

    def _quota(self) -> Quota | None:
        e = self.endpoint
        if not e.headers or e.rate is None:
            return None
        reset = (e.burst - self.tokens) / e.rate
        return Quota(remaining=int(max(self.tokens, 0)), reset=reset, limit=int(e.burst))

    def _next_brownout(self, t: float) -> float | None:
        """When the brown-out that holds at `t`, or the next one, began or will begin."""
        every = self.endpoint.brownout_every
        if every is None:
            return None
        k = math.floor(t / every - 0.5)
        start = (k + 0.5) * every
        return start if 0 <= start <= t < start + self.endpoint.brownout else start + every
