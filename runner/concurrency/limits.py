"""Known limits of one rate-limit key: what the user declares, and what the provider advertises on every reply.

A call starts when every limit has room for it. Nothing here waits or reads a clock: times are passed in.

A declared limit is spread evenly, because some providers enforce 60 per minute as 1 per second. So is an advertised limit
without a reset, which has fixed windows (Azure): what remains of one does not say when the next begins.

Any other advertised limit is a bucket whose level each reply reports. Its level is what remained when the request of the newest
reply was sent, plus what flowed in since, minus the needs of the calls that started since. Calls are paced as if the level had
to last for a few round trips: a full bucket is used quickly, an empty one at the rate at which it fills, and several runs,
machines or other users of the key get similar shares, because all of them see the same level. After a 429 for which there was
room, it is spread evenly, too.
"""

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import attrs
from attrs import define, field

from evaljournal.journal.events import LimitUnit, RateLimitSeen
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay.state.known_limits import DAY, MINUTE
from evaljournal.replay.state.usage import real_tokens
from evaljournal.runner.concurrency.constants import SMOOTHING
from evaljournal.runner.concurrency.headers import AdvertisedLimit
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
_RESERVED_BYTES_PER_TOKEN: Final = 4
"""Bytes per token by which providers estimate a request when they admit it; its real tokens do not change that."""
_BURST: Final = 0.25
"""Seconds of the pace that may be used at once, so that a late wake-up costs nothing. A provider that enforces 60 per minute as
1 per second counts calls as they arrive: with a whole second, some would arrive too early."""
_EVEN_SHARE: Final = 0.98
"""Share of a limit that is used if it is spread evenly: calls arrive less evenly than they start."""
_ROUND_TRIPS: Final = 4
"""Round trips in which the level of an advertised limit is used: what is known of it is one round trip old, so that four runs
on one key do not exceed it."""
_SMALLEST_SHARE: Final = 0.1
"""Share of the rate at which a limit fills that is used even if nothing is left: the next reply may say more."""
_RESOLUTION: Final = 1e-6
"""Seconds: a shorter wait is none, because sums of times are not exact, and waiting would not end."""
_RECORDED_CHANGE: Final = 0.05
"""Change of a limit, as a share, from which it is recorded again."""
_MAX_LIMITS: Final = 32
"""Limits of a key; headers are untrusted, and each of their names is a limit."""


_UNITS: Final[tuple[LimitUnit, ...]] = ("requests", "tokens", "input_tokens", "output_tokens")
_Amounts = tuple[float, float, float, float]
"""An amount of each of `_UNITS`: dictionaries would take most of the time of an admission."""


class AdmittedCall(NamedTuple):
    """A call that has started."""

    t: float
    size: CallSize
    needs: _Amounts
    """What it takes from limits."""
    all_needs: _Amounts
    """Needs of all calls up to this one."""


@define(eq=False)
class _Limit:
    """A limit and its state."""

    seen: RateLimitSeen
    rate: float
    """Units per second that flow in."""
    t: float
    """The time of `debt` and `level`."""
    pace: float = field(init=False, default=attrs.Factory(lambda self: self.even_pace, takes_self=True))
    """Units per second at which calls may start."""
    debt: float = 0.0
    """Needs of started calls that the pace has not used up."""
    level: float = 0.0
    """What remains, if it is advertised."""
    horizon: float = 1.0
    """Seconds in which the level is used."""
    surplus_horizon: float = 1.0
    """Seconds in which what exceeds a quarter of the limit is used."""
    newest_sent: float = float("-inf")
    """When the request of the newest reply was sent."""
    is_even: bool = False
    """Whether it is spread evenly, whatever its level."""
    is_capped: bool = False
    """Whether its pace is at most that of an even spread: a call was rate limited although there was room for it."""
    recorded: RateLimitSeen | None = None
    """As it was recorded last."""
    recorded_t: float = 0.0
    index: int = field(init=False, default=attrs.Factory(lambda self: _UNITS.index(self.seen.unit), takes_self=True))
    """Position of its unit in `_UNITS`."""
    is_declared: bool = field(init=False, default=attrs.Factory(lambda self: self.seen.source == "declared", takes_self=True))
    grows_slowly: bool = field(
        init=False, default=attrs.Factory(lambda self: self.seen.header.startswith("anthropic-"), takes_self=True)
    )
    """Whether the provider rejects sudden growth."""

    @property
    def even_pace(self) -> float:
        """Units per second if it is spread evenly; a limit per day is not spread over more than a minute."""
        return _EVEN_SHARE * self.seen.size / min(self.seen.window, MINUTE)

    def record_change(self, t: float) -> list[RateLimitSeen]:
        """Return the limit if it is new or has changed; a size at most once a minute: behind a gateway, sizes may alternate."""
        seen, recorded = self.seen, self.recorded
        if recorded is not None and recorded.is_believed == seen.is_believed:
            is_changed = abs(seen.size - recorded.size) >= _RECORDED_CHANGE * recorded.size
            if not is_changed or t < self.recorded_t + MINUTE:
                return []
        self.recorded, self.recorded_t = seen, t
        return [seen]

    def advance(self, t: float) -> None:
        """Use up debt, and let the level rise, until now."""
        if t > self.t:
            if self.debt:
                self.debt = max(self.debt - self.pace * (t - self.t), 0.0)
            self.level = min(self.level + self.rate * (t - self.t), self.seen.size)
            self.t = t

    def wait(self, amount: float, first_start: float) -> float:
        """Return the seconds until there is room for an amount, after `advance`."""
        if self.is_even:
            return self.debt / self.pace - _BURST
        seen, level = self.seen, self.level
        # What exceeds a quarter is not needed by others soon, and short runs need not wait for it.
        pace = level / self.horizon + max(level - seen.size / 4, 0.0) / self.surplus_horizon
        if self.is_capped:
            pace = min(pace, self.even_pace)
        if self.grows_slowly:
            pace = min(pace, self.rate * (0.5 + (self.t - first_start) / MINUTE))  # Begin at half the rate.
        self.pace = pace = max(pace, _SMALLEST_SHARE * self.rate)
        wait = self.debt / pace - _BURST
        if amount > level and (missing := min(amount, seen.size) - level) > 0:
            wait = max(wait, missing / self.rate)
        return wait


class Limits:
    """The known limits of one rate-limit key. Runs of one process share it, also from several threads."""

    def __init__(self, host: str = "") -> None:
        self._counts_larger = host == "api.openai.com"
        """Whether a call takes the larger of its input and `max_tokens`, not their sum."""
        self._lock = threading.RLock()
        self._limits: dict[str, _Limit] = {}
        """Header, or name of a declared limit → the limit."""
        self._needs: _Amounts = (0.0, 0.0, 0.0, 0.0)
        """Needs of all calls so far."""
        self._input_ratio: float | None = None
        """Mean real tokens per byte of input; None before the first reply with usage."""
        self._output_tokens: float | None = None
        """Mean tokens of an output."""
        self._has_answer = False
        self._round_trip: float | None = None
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
                    self._limits[name] = _Limit(seen, rate=size / window, t=t, is_even=True)
            return [self._limits[name].seen for name in limits]

    def restore(self, starts: Iterable[tuple[float, Mapping[str, float]]]) -> None:
        """Count calls of earlier sessions against declared limits: time and need of each, in order."""
        with self._lock:
            if self._last_start > float("-inf"):
                return  # They are counted: another run of this process uses the limits.
            for limit in self._limits.values():
                limit.t = float("-inf")
            for t, need in starts:
                requests, tokens, input_tokens, output_tokens = (need.get(unit, 0.0) for unit in _UNITS)
                self._count(t, (requests, tokens, input_tokens, output_tokens))

    @property
    def is_silent(self) -> bool:
        """Whether no limit is known, although a call was answered."""
        return self._has_answer and not self._limits

    def recorded_need(self, call: AdmittedCall) -> dict[LimitUnit, float] | None:
        """Return what a call takes from the known limits: unit → amount; None if no limit is known."""
        with self._lock:
            return {limit.seen.unit: call.needs[limit.index] for limit in self._limits.values()} or None

    def _need(self, size: CallSize) -> _Amounts:
        input_bytes, max_output = size
        input_tokens = input_bytes // _BYTES_PER_TOKEN if self._input_ratio is None else int(input_bytes * self._input_ratio)
        output_tokens = int(self._output_tokens or 0)
        reserved_output = output_tokens if max_output is None else max_output
        reserved_input = max(input_tokens, input_bytes // _RESERVED_BYTES_PER_TOKEN)
        reserved = max(reserved_input, reserved_output) if self._counts_larger else reserved_input + reserved_output
        # A limit of output tokens counts them as they are generated.
        return 1, reserved, input_tokens, min(output_tokens, reserved_output)

    def admit(self, size: CallSize, t: float) -> AdmittedCall | float:
        """Start a call if all limits have room for it; otherwise return the seconds until they have."""
        with self._lock:
            need = self._need(size)
            return self._wait(need, t) or self._start(size, need, t)

    def start(self, size: CallSize, t: float) -> AdmittedCall:
        """Start a call now, whether there is room for it or not."""
        with self._lock:
            return self._start(size, self._need(size), t)

    def wait(self, size: CallSize, t: float) -> float:
        """Return the seconds until a call may start; 0: now."""
        with self._lock:
            return self._wait(self._need(size), t)

    def _wait(self, need: _Amounts, t: float) -> float:
        longest = 0.0
        for limit in self._limits.values():
            limit.advance(t)
            if limit.is_declared and limit.seen.window == DAY:
                longest = max(longest, self.day_limit_wait(t))
            elif limit.seen.is_believed and (wait := limit.wait(need[limit.index], self._first_start)) > longest:
                # Headers may be wrong, and a 429 costs little: another call may start after a minute, whatever they say.
                longest = wait if limit.is_declared else max(longest, min(wait, self._last_start + MINUTE - t))
        return longest if longest > _RESOLUTION else 0.0

    def _start(self, size: CallSize, need: _Amounts, t: float) -> AdmittedCall:
        self._count(t, need)
        return AdmittedCall(t, size, need, self._needs)

    def day_limit_wait(self, t: float) -> float:
        """Return the seconds until the declared limit per day allows another call; 0: now."""
        with self._lock:
            while self._day_starts and self._day_starts[0] <= t - DAY:
                self._day_starts.popleft()
            excess = len(self._day_starts) - int(self._limits["rpd"].seen.size) if "rpd" in self._limits else -1
            return 0.0 if excess < 0 else self._day_starts[excess] + DAY - t

    def impossible(self, size: CallSize) -> tuple[RateLimitSeen, float] | None:
        """Return a limit that is lower than the need of a call, and that need; None if there is none.

        The tokens of the input count only once replies have reported real ones: the estimate may be too high.
        """
        if not self._limits:
            return None
        need = self._need(size if self._input_ratio is not None else size._replace(input_bytes=0))
        for limit in self._limits.values():
            if limit.seen.is_believed and need[limit.index] > limit.seen.size:
                return limit.seen, self._need(size)[limit.index]
        return None

    def _count(self, t: float, need: _Amounts) -> None:
        self._last_start = max(self._last_start, t)
        self._first_start = min(self._first_start, t)
        requests, tokens, input_tokens, output_tokens = self._needs
        self._needs = (requests + need[0], tokens + need[1], input_tokens + need[2], output_tokens + need[3])
        for limit in self._limits.values():
            limit.advance(t)
            amount = need[limit.index]
            limit.debt += amount
            limit.level -= amount
        if "rpd" in self._limits:
            self._day_starts.append(t)

    def read(self, call: AdmittedCall, advertised: Iterable[AdvertisedLimit], t: float, *, is_429: bool) -> list[RateLimitSeen]:
        """Update advertised limits from the reply to a call; return those that are new or have changed, to be recorded."""
        changes: list[RateLimitSeen] = []
        with self._lock:
            self._round_trip = _mean(self._round_trip, t - call.t)
            horizon = _ROUND_TRIPS * self._round_trip
            for header, unit, size, window, remaining, reset, is_advice in advertised:
                # A reset within the window may be rounded to seconds; a longer one shows that the window is longer.
                rate = (size - remaining) / reset if reset and reset > window and remaining < size else size / window
                limit = self._limits.get(header)
                if limit is None:
                    if len(self._limits) >= _MAX_LIMITS:
                        continue
                    seen = RateLimitSeen(
                        unit=unit, size=size, window=window, source="advertised", header=header, is_believed=not is_advice
                    )
                    limit = self._limits[header] = _Limit(seen, rate, t, is_even=reset is None)
                    limit.debt = self._first_debt(limit, t - self._first_start)
                elif size != limit.seen.size:
                    limit.seen = evolve_fact(limit.seen, size=size, window=window)
                changes += limit.record_change(t)
                limit.advance(t)
                limit.rate = rate
                limit.is_even = reset is None
                longest = min(window, MINUTE) / 2
                limit.horizon, limit.surplus_horizon = min(max(horizon, longest / 2), longest), max(horizon, _BURST)
                if limit.is_even:
                    limit.pace = limit.even_pace
                if is_429:
                    limit.is_capped |= remaining >= call.needs[limit.index]
                    if not limit.seen.is_believed:
                        limit.seen = evolve_fact(limit.seen, is_believed=True)
                        changes += limit.record_change(t)
                if call.t > limit.newest_sent:
                    limit.newest_sent = call.t
                    later_needs = self._needs[limit.index] - call.all_needs[limit.index]
                    limit.level = min(remaining + rate * (limit.t - call.t) - later_needs, size)
        return changes

    def _first_debt(self, limit: _Limit, elapsed: float) -> float:
        """Return the debt of the calls that started before a limit was seen; a bucket's level includes them."""
        if not limit.is_even and not limit.grows_slowly:
            return 0.0
        pace = limit.even_pace if limit.is_even else limit.even_pace / 2
        debt = max(self._needs[limit.index] - pace * elapsed, 0.0)
        # There is room for them if it grows slowly, so that they delay growth only for a while.
        return debt if limit.is_even else min(debt, pace * MINUTE / 4)

    def end(self, call: AdmittedCall, usage: Mapping[str, object] | None) -> None:
        """Count the real tokens of a call that was answered."""
        self._has_answer = True
        if not self._limits:
            return
        real, size = real_tokens(usage), call.size
        with self._lock:
            if size.input_bytes and "input_tokens" in real:
                self._input_ratio = _mean(self._input_ratio, real["input_tokens"] / size.input_bytes)
            if "output_tokens" in real:
                self._output_tokens = _mean(self._output_tokens, real["output_tokens"])
            for limit in self._limits.values():
                if not limit.is_even:
                    continue  # The headers say what was counted.
                need, unit = call.needs[limit.index], limit.seen.unit
                # What is reserved is not returned, but its estimate improves.
                is_reserved = unit == "tokens" and size.max_output is not None
                amount = self._need(size)[limit.index] if is_reserved else real.get(unit, need)
                limit.debt = max(limit.debt + amount - need, 0.0)


def _mean(mean: float | None, value: float) -> float:
    """Return a running mean after the next value."""
    return value if mean is None else mean + SMOOTHING * (value - mean)
