"""Known limits of one rate-limit key: what the user declares, and what the provider advertises on every reply.

A call starts when every limit has room for it. Nothing here waits or reads a clock: times are passed in.

A declared limit is spread evenly: at most one second of it may be used at once, because some providers enforce 60 per minute as
1 per second. An advertised limit is a bucket whose level each reply reports. Its level is what remained when the request of the
newest reply was sent, plus what flowed in since, minus the needs of the calls that started since. Calls are paced as if the
level had to last for a few round trips: a full bucket is used quickly, an empty one at the rate at which it fills, and several
runs, machines or other users of the key get similar shares, because all of them see the same level.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final
from weakref import WeakValueDictionary

import trio
from attrs import define, evolve, frozen

from evaljournal.journal.events import LimitUnit, RateLimitSeen
from evaljournal.journal.fact import evolve_fact
from evaljournal.runner.concurrency.headers import DAY, MINUTE, AdvertisedLimit
from evaljournal.runner.tasks.call_size import CallSize

DECLARED: Final[dict[str, tuple[LimitUnit, float]]] = {
    "rpm": ("requests", MINUTE),
    "tpm": ("tokens", MINUTE),
    "itpm": ("input_tokens", MINUTE),
    "otpm": ("output_tokens", MINUTE),
    "rpd": ("requests", DAY),
}
"""Name of a declared limit → what it counts, and its window in seconds."""

_BYTES_PER_TOKEN: Final = 3
"""Bytes of a request per token until replies report real ones. English has 4 to 5, Chinese about 3: the estimate is high."""
_BURST: Final = 1.0
"""Seconds of a limit that may be used at once."""
_ROUND_TRIPS: Final = 4
"""Round trips in which the level of an advertised limit is used: what is known of it is one round trip old, so that four runs
on one key do not exceed it."""
_LONGEST_WAIT: Final = 60.0
"""Seconds after a start when another may start, whatever the headers say: they may be wrong, and a 429 costs little."""
_SMOOTHING: Final = 0.1
"""Weight of the newest reply in means of tokens."""
_MAX_EXCESS: Final = 0.1
"""Share of an advertised limit by which accepted calls may exceed it before its headers count as wrong."""
_RECORDED_CHANGE: Final = 0.05
"""Change of a limit, as a share, from which it is recorded again."""


@frozen
class AdmittedCall:
    """A call that has started."""

    t: float
    size: CallSize
    need: dict[LimitUnit, float]
    """What it takes from limits: unit → amount."""
    earlier_needs: dict[LimitUnit, float]
    """Needs of all calls up to this one."""


@define(eq=False)
class _Limit:
    """A limit and its state."""

    seen: RateLimitSeen
    """As it was recorded last."""
    rate: float
    """Units per second that flow in."""
    updated: float
    """The time of `debt` and `level`."""
    debt: float = 0.0
    """Needs of started calls that the pace has not used up."""
    level: float = 0.0
    """What remains, if it is advertised."""
    horizon: float = 1.0
    """Seconds in which the level is used."""
    newest_sent: float = float("-inf")
    """When the request of the newest reply was sent."""
    is_believed: bool = True
    checked_since: float = 0.0
    checked_level: float = 0.0
    accepted: float = 0.0
    """Needs that were accepted since `checked_since`, when the level was `checked_level`."""

    @property
    def is_declared(self) -> bool:
        return self.seen.source == "declared"

    def pace(self, first_start: float) -> float:
        """Return the units per second at which calls may start."""
        if self.is_declared:
            return self.rate
        pace = max(self.level, 0.0) / self.horizon
        if self.seen.header.startswith("anthropic-"):  # It rejects sudden growth: begin at half the rate.
            pace = min(pace, self.rate * max(0.5, (self.updated - first_start) / MINUTE))
        return max(pace, self.seen.size / self.seen.window / 1000)

    def advance(self, t: float, first_start: float) -> None:
        seconds = max(t - self.updated, 0.0)
        self.debt = max(self.debt - self.pace(first_start) * seconds, 0.0)
        self.level = min(self.level + self.rate * seconds, self.seen.size)
        self.updated = max(t, self.updated)

    def wait(self, amount: float, first_start: float) -> float:
        """Return the seconds until there is room for an amount."""
        pace = self.pace(first_start)
        wait = self.debt / pace - _BURST
        if not self.is_declared and (missing := min(amount, self.seen.size) - self.level) > 0:
            wait = max(wait, missing / self.rate)
        return wait


class Limits:
    """The known limits of one rate-limit key. Runs of one process share it, also from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limits: dict[str, _Limit] = {}
        """Header, or name of a declared limit → the limit."""
        self._needs: dict[LimitUnit, float] = dict.fromkeys(("requests", "tokens", "input_tokens", "output_tokens"), 0.0)
        """Needs of all calls so far."""
        self._input_ratio: float | None = None
        """Mean real tokens per estimated token of input; None before the first reply with usage."""
        self._output_tokens = 0.0
        """Mean tokens of an output."""
        self._has_answer = False
        self._round_trip = 0.0
        """Mean seconds from the start of a call to the head of its reply."""
        self._first_start = float("inf")
        self._last_start = float("-inf")
        self._day_starts: deque[float] = deque()
        """Starts of the last 24 hours, if a limit per day is declared."""

    def declare(self, limits: Mapping[str, float], t: float) -> list[RateLimitSeen]:
        """Add declared limits by name; return the events to record. Of two values for one limit, the lower applies."""
        with self._lock:
            for name, size in limits.items():
                unit, window = DECLARED[name]
                if name not in self._limits or size < self._limits[name].seen.size:
                    seen = RateLimitSeen(unit=unit, size=size, window=window, source="declared", header=name)
                    # In any window, no more than the limit and one need: the burst is part of it.
                    self._limits[name] = _Limit(seen, rate=size / (window + _BURST), updated=t)
            return [self._limits[name].seen for name in limits]

    def restore(self, starts: Iterable[tuple[float, Mapping[LimitUnit, float]]]) -> None:
        """Count calls of earlier sessions against declared limits: time and need of each, in order."""
        with self._lock:
            for t, need in starts:
                self._count(t, need)

    @property
    def is_silent(self) -> bool:
        """Whether no limit is known, although a call was answered."""
        return self._has_answer and not self._limits

    @property
    def units(self) -> list[LimitUnit]:
        """What the known limits count."""
        return sorted({limit.seen.unit for limit in self._limits.values()})

    def need(self, size: CallSize) -> dict[LimitUnit, float]:
        """Return what a call needs of each kind of limit."""
        input_tokens = round(size.input_bytes / _BYTES_PER_TOKEN * (1.0 if self._input_ratio is None else self._input_ratio))
        output_tokens = round(self._output_tokens) if size.max_output is None else size.max_output
        return {
            "requests": 1,
            "tokens": input_tokens + output_tokens,
            "input_tokens": input_tokens,
            "output_tokens": min(round(self._output_tokens), output_tokens),  # Counted as it is generated.
        }

    def wait(self, size: CallSize, t: float) -> float:
        """Return the seconds until a call may start; 0 or less: now."""
        if not self._limits:
            return 0.0
        with self._lock:
            need = self.need(size)
            longest = 0.0
            for limit in self._limits.values():
                limit.advance(t, self._first_start)
                if limit.seen.window == DAY and limit.is_declared:
                    wait = self._day_wait(limit.seen.size, t)
                elif limit.is_declared:
                    wait = limit.wait(need[limit.seen.unit], self._first_start)
                elif limit.is_believed:
                    wait = min(limit.wait(need[limit.seen.unit], self._first_start), self._last_start + _LONGEST_WAIT - t)
                else:
                    continue
                longest = max(longest, wait)
            return longest

    def day_limit_wait(self, t: float) -> float:
        """Return the seconds until the declared limit per day allows another call; 0: now."""
        with self._lock:
            limit = self._limits.get("rpd")
            return 0.0 if limit is None else max(self._day_wait(limit.seen.size, t), 0.0)

    def _day_wait(self, size: float, t: float) -> float:
        while self._day_starts and self._day_starts[0] <= t - DAY:
            self._day_starts.popleft()
        excess = len(self._day_starts) - int(size)
        return 0.0 if excess < 0 else self._day_starts[excess] + DAY - t

    def impossible(self, size: CallSize) -> RateLimitSeen | None:
        """Return a limit that is lower than the need of a call; None if there is none.

        The tokens of the input count only once replies have reported real ones: the estimate may be too high.
        """
        if not self._limits:
            return None
        need = self.need(size if self._input_ratio is not None else evolve(size, input_bytes=0))
        limits = (limit for limit in self._limits.values() if limit.is_believed)
        return next((limit.seen for limit in limits if need[limit.seen.unit] > limit.seen.size), None)

    def start(self, size: CallSize, t: float) -> AdmittedCall:
        """Take the need of a call that starts now from all limits."""
        with self._lock:
            need = self.need(size)
            self._count(t, need)
            return AdmittedCall(t, size, need, dict(self._needs))

    def _count(self, t: float, need: Mapping[LimitUnit, float]) -> None:
        self._first_start, self._last_start = min(self._first_start, t), max(self._last_start, t)
        for unit, amount in need.items():
            self._needs[unit] += amount
        for limit in self._limits.values():
            limit.advance(t, self._first_start)
            limit.debt += need.get(limit.seen.unit, 0.0)
            limit.level -= need.get(limit.seen.unit, 0.0)
        if "rpd" in self._limits:
            self._day_starts.append(t)

    def read(self, call: AdmittedCall, advertised: Iterable[AdvertisedLimit], t: float, *, is_429: bool) -> list[RateLimitSeen]:
        """Update advertised limits from the reply to a call; return those that are new or have changed, to be recorded."""
        changes: list[RateLimitSeen] = []
        with self._lock:
            round_trip = self._round_trip
            self._round_trip = round_trip + _SMOOTHING * (t - call.t - round_trip) if round_trip else t - call.t
            for advert in advertised:
                rate = advert.size / advert.window
                if advert.reset and advert.remaining < advert.size:
                    measured_rate = (advert.size - advert.remaining) / advert.reset
                    # A short reset is rounded to seconds by some; it cannot show that the window is longer.
                    rate = measured_rate if advert.reset > advert.window else max(rate, measured_rate)
                limit = self._limits.get(advert.header)
                if limit is None or abs(advert.size - limit.seen.size) >= _RECORDED_CHANGE * limit.seen.size:
                    seen = RateLimitSeen(
                        unit=advert.unit, size=advert.size, window=advert.window, source="advertised", header=advert.header
                    )
                    changes.append(seen)
                    if limit is None:
                        limit = self._limits[advert.header] = _Limit(seen, rate, t, is_believed=not advert.is_advice)
                    limit.seen = seen
                limit.rate = rate
                limit.horizon = min(max(_ROUND_TRIPS * self._round_trip, _BURST), max(advert.window, _BURST) / 2)
                if is_429:
                    limit.is_believed, limit.checked_since = True, float("-inf")
                if call.t > limit.newest_sent:
                    unit, limit.newest_sent = advert.unit, call.t
                    later_needs = self._needs[unit] - call.earlier_needs[unit]
                    limit.advance(t, self._first_start)
                    limit.level = min(advert.remaining + rate * (t - call.t) - later_needs, advert.size)
                    if call.t >= limit.checked_since + min(advert.window, MINUTE):
                        limit.checked_since, limit.checked_level, limit.accepted = call.t, advert.remaining, 0.0
        return changes

    def end(self, call: AdmittedCall, t: float, usage: Mapping[str, object] | None) -> list[RateLimitSeen]:
        """Count the real tokens of a call that was answered; return the limits that count as wrong from now on."""
        self._has_answer = True
        tokens = _real_tokens(usage) if self._limits else {}
        changes: list[RateLimitSeen] = []
        with self._lock:
            if tokens:
                self._calibrate(call.size, tokens)
            for limit in self._limits.values():
                unit = limit.seen.unit
                real = tokens.get(unit) if unit != "requests" else 1.0
                if real is None:
                    continue
                if limit.is_declared and (unit != "tokens" or call.size.max_output is None):
                    limit.debt = max(limit.debt + real - call.need[unit], 0.0)
                elif not limit.is_declared and limit.is_believed and call.t > limit.checked_since:
                    limit.accepted += real
                    possible = limit.checked_level + limit.rate * (t - limit.checked_since) + _MAX_EXCESS * limit.seen.size
                    if limit.accepted > possible + real:
                        limit.is_believed = False
                        changes.append(evolve_fact(limit.seen, is_believed=False))
        return changes

    def _calibrate(self, size: CallSize, tokens: Mapping[LimitUnit, float]) -> None:
        if size.input_bytes and "input_tokens" in tokens:
            ratio = _BYTES_PER_TOKEN * tokens["input_tokens"] / size.input_bytes
            self._input_ratio = (
                ratio if self._input_ratio is None else self._input_ratio + _SMOOTHING * (ratio - self._input_ratio)
            )
        if "output_tokens" in tokens:
            mean = self._output_tokens
            self._output_tokens = mean + _SMOOTHING * (tokens["output_tokens"] - mean) if mean else tokens["output_tokens"]


def _real_tokens(usage: Mapping[str, object] | None) -> dict[LimitUnit, float]:
    """Return the tokens of a reply; those read from a cache do not count against limits."""
    if not usage:
        return {}
    counts = {
        name: value
        for name in ("input_tokens", "output_tokens", "cached_tokens")
        if isinstance(value := usage.get(name), int | float)
    }
    tokens: dict[LimitUnit, float] = {}
    if "input_tokens" in counts:
        tokens["input_tokens"] = max(counts["input_tokens"] - counts.get("cached_tokens", 0), 0)
    if "output_tokens" in counts:
        tokens["output_tokens"] = counts["output_tokens"]
    if len(tokens) == 2:  # noqa: PLR2004  # input and output
        tokens["tokens"] = tokens["input_tokens"] + tokens["output_tokens"]
    return tokens


_shared: Final[WeakValueDictionary[tuple[object, ...], Limits]] = WeakValueDictionary()
_shared_lock: Final = threading.Lock()


def shared_limits(identity: object) -> Limits:
    """Return the limits that all runs of this process share for an endpoint, an API key and a model.

    Runs with virtual clocks share only with runs of the same clock.
    """
    key = (identity, type(clock := trio.lowlevel.current_clock()).__name__ == "SystemClock" or id(clock))
    with _shared_lock:
        limits = _shared.get(key)
        if limits is None:
            limits = _shared[key] = Limits()
        return limits


def shared_time() -> float:
    """Return the time of the clock that runs with shared limits have in common."""
    clock = trio.lowlevel.current_clock()
    return time.monotonic() if type(clock).__name__ == "SystemClock" else clock.current_time()
