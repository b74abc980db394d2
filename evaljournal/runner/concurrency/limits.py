"""Known limits of one rate-limit key: what the user declares, and what the provider advertises on every reply.

A call starts when every limit has room for it. Nothing here waits or reads a clock: times are passed in.

Each limit has a level, which calls lower, and a pace, at which they may start. A declared limit is spread evenly, because some
providers enforce 60 per minute as 1 per second; its level does not matter. So is an advertised limit without a reset, which has
fixed windows (Azure): what remains of one does not say when the next begins.

The level of any other limit is what remained when the request of the newest reply was sent, plus what flowed in since, minus
the needs of the calls that started since. Into a fixed window whose end is known (Mistral) nothing flows until then, and its
level is spread over the rest of it. The level of a bucket is used as if it had to last for 15 s: a full bucket is used quickly,
an empty one at the rate at which it fills, and several runs, machines or other users of the key get similar shares, because all
of them see the same level.

Headers may be wrong. A limit is not believed while calls succeed that it rules out: larger ones than it allows, or three in a
row for which it had no room. One call per 5 s is tried although there is none.
"""
# ruff: noqa: FURB136, PLR1730 - calls of `min` and `max` would take a fifth of the time of an admission

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from evaljournal.journal.events import LimitUnit, RateLimitSeen
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay.state.known_limits import DAY, MINUTE, CallRate, call_rate
from evaljournal.replay.state.usage import real_tokens
from evaljournal.runner.calls.call_size import CallSize
from evaljournal.runner.concurrency.start import FEW, SMOOTHING
from evaljournal.runner.retries.limit_headers import AdvertisedLimit

DECLARED: Final[dict[str, tuple[LimitUnit, float]]] = {
    "rpm": ("requests", MINUTE),
    "tpm": ("tokens", MINUTE),
    "itpm": ("input_tokens", MINUTE),
    "otpm": ("output_tokens", MINUTE),
    "rpd": ("requests", DAY),
}
"""Name of a declared limit → what it counts, and its window in seconds."""

BYTES_PER_TOKEN: Final = 3
"""Bytes of a request per token until replies report real ones. English has 4 to 5, Chinese about 3: the estimate is high."""
_RESERVED_BYTES_PER_TOKEN: Final = 4
"""Bytes per token by which providers estimate a request when they admit it; its real tokens do not change that."""
_BURST: Final = 0.25
"""Seconds of the pace that may be used at once, so that a late wake-up costs nothing. A provider that enforces 60 per minute as
1 per second counts calls as they arrive: with a whole second, some would arrive too early."""
_EVEN_SHARE: Final = 0.98
"""Share of a limit that is used if it is spread evenly: calls arrive less evenly than they start."""
_FEW_REQUESTS, _FEW_SHARE = 120.0, 0.93
"""Requests per minute below which one that arrives early is rejected: they start without a burst, and at this share, because
the network delays one call more than the next by up to 70 ms, which is 7 % of the second between two calls."""
_HORIZON: Final = 0.25
"""Share of the window in which the level of a bucket is used. What is known of it is one round trip old, so that 15 s are
enough for several runs; a bucket that holds less is used in the time in which it fills."""
_MIN_SECONDS: Final = 1.0
"""Seconds of its rate that a bucket holds at least."""
_CAP: Final = 300.0
"""Seconds for which limits are spread evenly after a 429 for which they had room. Then they are used gradually faster."""
_SMALLEST_SHARE: Final = 0.1
"""Share of the even pace that is kept even if nothing is left: the next reply may say more."""
_PROBE: Final = 5.0
"""Seconds without a start after which a call is tried although nothing is left; a minute if one had a 429 in the last one."""
_FIRST_CALLS, _FIRST_PACE = 3, 10.0
"""Calls that start at once, and per second after that, until a provider that advertises its limits has sent a reply: others may
have used them. A rejection arrives in a tenth of a second, so that few calls are rejected."""
_ADVERTISING_HOSTS: Final = ("api.openai.com", "api.anthropic.com", "api.groq.com", "api.mistral.ai", ".openai.azure.com")
_RESOLUTION: Final = 1e-6
"""Seconds: a shorter wait is none, because sums of times are not exact, and waiting would not end."""
_MAX_LIMITS: Final = 32
"""Limits of a key; headers are untrusted, and each of their names is a limit."""
_INFINITY: Final = float("inf")

_UNITS: Final[tuple[LimitUnit, ...]] = ("requests", "tokens", "input_tokens", "output_tokens")
_Amounts = tuple[float, float, float, float]
"""An amount of each of `_UNITS`: dictionaries would take most of the time of an admission."""
_NOTHING: Final[_Amounts] = (0.0, 0.0, 0.0, 0.0)


class AdmittedCall(NamedTuple):
    """A call that has started."""

    t: float
    size: CallSize
    needs: _Amounts
    """What it takes from limits."""
    all_needs: _Amounts
    """Needs of all calls up to this one."""
    has_room: bool
    """Whether every limit had room for it."""


class _Limit:
    """A limit and its state.

    Nothing that a reply sets stays for good: the level is that of the newest reply, a reply with room for a call restores a
    limit that was refuted, and another size of it begins again.
    """

    def __init__(self, seen: RateLimitSeen, t: float, *, is_even: bool) -> None:
        self.t = t
        """The time of `debt` and `level`."""
        self.is_even = is_even
        """Whether it is spread evenly; it always has room then."""
        self.is_day = seen.header == "rpd"
        """Whether it is the declared limit per day, whose calls may start at any pace."""
        self.grows_slowly = seen.header.startswith("anthropic-")
        """Whether the provider rejects sudden growth."""
        self.index = _UNITS.index(seen.unit)
        """Position of its unit in `_UNITS`."""
        self.debt = 0.0
        """Needs of started calls that the pace has not used up."""
        self.level = _INFINITY if is_even else 0.0
        """What remains."""
        self.window_end = _INFINITY
        """When the fixed window ends; infinite: none is known."""
        self.newest_sent = -_INFINITY
        """When the request of the newest reply was sent."""
        self._set_size(seen)

    def _set_size(self, seen: RateLimitSeen) -> None:
        self.seen, self.size = seen, seen.size
        self.contradictions = 0.0
        """Successful calls in a row for which it had no room, infinite after one above its size; `FEW` refute it."""
        self.rate = seen.size / seen.window
        """Units per second that flow in."""
        per_second = seen.size / min(seen.window, MINUTE)
        is_few = seen.unit == "requests" and per_second * MINUTE < _FEW_REQUESTS
        self.horizon = _HORIZON * min(seen.window, MINUTE)
        """Seconds in which the level of a bucket is used, if it holds that much."""
        self.burst = 0.0 if is_few else _BURST
        """Seconds of the pace that may be used at once."""
        self.even_pace = per_second * (_FEW_SHARE if is_few else _EVEN_SHARE)
        """Units per second if it is spread evenly; a limit per day is not spread over more than a minute."""
        self.pace = self.even_pace
        """Units per second at which calls may start."""
        self.capacity = _INFINITY if self.is_even else min(_MIN_SECONDS * per_second, seen.size)
        """What it holds, as far as it is known: the largest level that a reply reported, at least one call's need."""

    def resize(self, size: float, window: float) -> None:
        """Change the size: what refuted the old one does not refute it."""
        is_believed = self.seen.is_believed or self.contradictions >= FEW
        self._set_size(evolve_fact(self.seen, size=size, window=window, is_believed=is_believed))

    def contradict(self, contradictions: float) -> None:
        """Set the number of contradictions, and believe it or not."""
        self.contradictions = contradictions
        if self.seen.is_believed != (contradictions < FEW):
            self.seen = evolve_fact(self.seen, is_believed=contradictions < FEW)

    def advance(self, t: float) -> None:
        """Use up debt, and let the level rise, until a later time."""
        seconds, self.t = t - self.t, t
        if self.debt:
            debt = self.debt - self.pace * seconds
            self.debt = debt if debt > 0 else 0.0
        level = self.level + self.rate * seconds
        self.level = level if level < self.capacity else self.capacity
        if t >= self.window_end:
            self.level, self.window_end = self.size, t + self.seen.window

    def wait_for_level(self, amount: float) -> float:
        """Return the seconds until the level covers an amount, or all that it can hold."""
        amount = min(amount, self.size)
        self.capacity = max(self.capacity, amount)
        if amount <= self.level:
            return 0.0
        return (amount - self.level) / self.rate if self.rate else self.window_end - self.t

    def read(self, item: AdvertisedLimit, sent_at: float, later_needs: float, t: float) -> float:
        """Take the level from a reply, if it is the newest; return what it says remains.

        `later_needs` are those of the calls that have started since its request was sent.
        """
        _, _, size, window, remaining, reset, _, is_window = item
        if size != self.size:
            self.resize(size, window)
        if sent_at <= self.newest_sent:
            return remaining
        self.newest_sent = sent_at
        if self.is_even or reset is None:
            return remaining
        if is_window:
            self.window_end, self.rate, self.capacity = t + reset, 0.0, size
        else:  # A reset within the window may be rounded to seconds; a longer one shows that the window is longer.
            self.rate = (size - remaining) / reset if reset > window and remaining < size else size / window
        if remaining > self.capacity:
            self.capacity = remaining
        level = remaining - later_needs + self.rate * (self.t - sent_at)
        self.level = level if level < self.capacity else self.capacity
        return remaining


class Limits:
    """The known limits of one rate-limit key. Runs of one process share it, also from several threads."""

    def __init__(self, host: str = "") -> None:
        self._counts_larger = host == "api.openai.com"
        """Whether a call takes the larger of its input and `max_tokens`, not their sum."""
        self._advertises = host.endswith(_ADVERTISING_HOSTS)
        """Whether a reply will show the limits."""
        self._lock = threading.RLock()
        self._limits: dict[str, _Limit] = {}
        """Header, or name of a declared limit → the limit."""
        self._needs = _NOTHING
        """Needs of all calls so far."""
        self._input_ratio: float | None = None
        """Mean real tokens per byte of input; None before the first reply with usage."""
        self._output_tokens: float | None = None
        """Mean tokens of an output."""
        self._last_need: tuple[CallSize | None, _Amounts] = None, _NOTHING
        """The size whose need was computed last, and that need: a call is checked, then admitted."""
        self._has_answer = False
        """Whether a reply has shown limits, or that there are none."""
        self._first_start, self._last_start, self._last_429 = _INFINITY, -_INFINITY, -_INFINITY
        self._capped_at = -_INFINITY
        """When a call was last rate limited although every limit had room for it; it counts for `_CAP` seconds."""
        self._day_starts: deque[float] = deque()
        """Starts of the last 24 hours, if a limit per day is declared."""

    def declare(self, limits: Mapping[str, float], t: float) -> None:
        """Add declared limits by name. Of two values for one limit, the lower applies."""
        with self._lock:
            for name, size in limits.items():
                unit, window = DECLARED[name]
                if name not in self._limits or size < self._limits[name].size:
                    seen = RateLimitSeen(unit=unit, size=size, window=window, source="declared", header=name)
                    self._limits[name] = _Limit(seen, t, is_even=True)

    def restore(self, starts: Iterable[tuple[float, Mapping[str, float]]]) -> None:
        """Count calls of earlier sessions against declared limits: time and need of each, in order."""
        with self._lock:
            if self._last_start > -_INFINITY:
                return  # They are counted: another run of this process uses the limits.
            for limit in self._limits.values():
                limit.t = -_INFINITY
            for t, need in starts:
                requests, tokens, input_tokens, output_tokens = (need.get(unit, 0.0) for unit in _UNITS)
                self._start(CallSize(), (requests, tokens, input_tokens, output_tokens), t)
            self._needs, self._first_start = _NOTHING, _INFINITY

    def seen(self) -> list[RateLimitSeen]:
        """Return the limits as they are now, to be recorded."""
        with self._lock:
            return [limit.seen for limit in self._limits.values()]

    @property
    def is_silent(self) -> bool:
        """Whether no limit is known, although a call was answered."""
        return self._has_answer and not self._limits

    @property
    def call_rate(self) -> CallRate | None:
        """The lowest rate of calls that the limits allow, by the mean need so far; None if none is known."""
        if not self._limits:
            return None
        needs: dict[str, float] = dict(zip(_UNITS, self._needs, strict=True))
        return call_rate(self.seen(), needs, needs["requests"])

    def recorded_need(self, call: AdmittedCall) -> dict[LimitUnit, float] | None:
        """Return what a call takes from the known limits: unit → amount; None if no limit is known."""
        with self._lock:
            return {limit.seen.unit: call.needs[limit.index] for limit in self._limits.values()} or None

    def _need(self, size: CallSize) -> _Amounts:
        last_size, need = self._last_need
        if size is last_size:
            return need
        input_bytes, max_output = size
        input_tokens = input_bytes // BYTES_PER_TOKEN if self._input_ratio is None else int(input_bytes * self._input_ratio)
        output_tokens = 0 if self._output_tokens is None else int(self._output_tokens)
        reserved_output = output_tokens if max_output is None else max_output
        reserved = input_bytes // _RESERVED_BYTES_PER_TOKEN
        if input_tokens > reserved:
            reserved = input_tokens
        reserved = max(reserved, reserved_output) if self._counts_larger else reserved + reserved_output
        # A limit of output tokens counts them as they are generated.
        need = 1, reserved, input_tokens, output_tokens if output_tokens < reserved_output else reserved_output
        self._last_need = size, need
        return need

    def _certain_need(self, size: CallSize) -> _Amounts:
        """Return the need without the tokens of the input until replies have reported real ones: the estimate may be high."""
        return self._need(size if self._input_ratio is not None else size._replace(input_bytes=0))

    def impossible(self, size: CallSize) -> tuple[RateLimitSeen, float] | None:
        """Return a limit that is lower than the certain need of a call, and its need; None if there is none."""
        if not self._limits:
            return None
        need = self._need(size) if self._input_ratio is not None else self._certain_need(size)
        for limit in self._limits.values():
            if need[limit.index] > limit.size and limit.seen.is_believed:
                return limit.seen, self._need(size)[limit.index]
        return None

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
        if not self._has_answer and self._advertises and self._needs[0] >= _FIRST_CALLS:
            longest = self._first_start + (self._needs[0] + 1 - _FIRST_CALLS) / _FIRST_PACE - t
        for limit in self._limits.values():
            if limit.t < t:
                limit.advance(t)
            amount = need[limit.index]
            if limit.is_day:
                longest = max(longest, self.day_limit_wait(t))
            elif limit.level >= amount and not limit.debt:
                limit.pace = limit.even_pace  # It may start at any pace; the next one needs the right one.
            elif limit.seen.is_believed:
                longest = max(longest, self._limit_wait(limit, amount, t))
        return longest if longest > _RESOLUTION else 0.0

    def _limit_wait(self, limit: _Limit, amount: float, t: float) -> float:
        """Return the seconds until a limit allows an amount: by its pace, and by its level."""
        limit.pace = self._pace(limit, amount, t)
        wait = limit.debt / limit.pace - limit.burst
        if amount > limit.level:
            wait = max(wait, limit.wait_for_level(amount))
        if wait > _PROBE and limit.seen.source == "advertised":
            # Whatever a limit says, a call is tried, but not before a bucket would have room for it.
            interval = max(_PROBE, amount * limit.seen.window / limit.size) if t >= self._last_429 + MINUTE else MINUTE
            wait = min(wait, self._last_start + min(interval, MINUTE) - t)
        return wait

    def _pace(self, limit: _Limit, amount: float, t: float) -> float:
        """Return how fast a limit may be used now, in units per second."""
        even_pace = limit.even_pace
        if limit.window_end < _INFINITY:
            pace = limit.level / max(limit.window_end - t, _MIN_SECONDS)
        else:
            horizon = limit.capacity / limit.rate
            horizon = horizon if horizon < limit.horizon else limit.horizon
            pace = (limit.level if limit.level > amount else amount) / horizon
        # A bucket that holds a single call rejects the next one if it arrives early.
        if (limit.is_even or limit.capacity < 2 * amount) and pace > even_pace:
            pace = even_pace
        if limit.grows_slowly and (highest := limit.rate * (0.5 + (t - self._first_start) / MINUTE)) < pace:
            pace = highest  # Begin at half the rate.
        since_cap = (t - self._capped_at) / _CAP
        cap = even_pace * (since_cap if since_cap > 1.0 else 1.0)
        pace = pace if pace < cap else cap
        lowest = _SMALLEST_SHARE * even_pace
        return pace if pace > lowest else lowest

    def _start(self, size: CallSize, need: _Amounts, t: float) -> AdmittedCall:
        if t > self._last_start:
            self._last_start = t
        if t < self._first_start:
            self._first_start = t
        has_room = True
        for limit in self._limits.values():
            if limit.t < t:
                limit.advance(t)
            amount = need[limit.index]
            limit.debt += amount
            limit.level -= amount
            if limit.level < 0 and limit.level < -_RESOLUTION * limit.size and limit.seen.is_believed:
                has_room = False
            if limit.is_day:
                self._day_starts.append(t)
        requests, tokens, input_tokens, output_tokens = need
        all_requests, all_tokens, all_input, all_output = self._needs
        self._needs = (all_requests + requests, all_tokens + tokens, all_input + input_tokens, all_output + output_tokens)
        return tuple.__new__(AdmittedCall, (t, size, need, self._needs, has_room))  # Three times as fast as its own.

    def day_limit_wait(self, t: float) -> float:
        """Return the seconds until the declared limit per day allows another call; 0: now."""
        with self._lock:
            while self._day_starts and self._day_starts[0] <= t - DAY:
                self._day_starts.popleft()
            excess = len(self._day_starts) - int(self._limits["rpd"].size) if "rpd" in self._limits else -1
            return 0.0 if excess < 0 else self._day_starts[excess] + DAY - t

    def read(self, call: AdmittedCall, advertised: Sequence[AdvertisedLimit], t: float, *, is_429: bool) -> None:
        """Update advertised limits from the reply to a call."""
        sent_at, _, needs, needs_before, _ = call
        with self._lock:
            if is_429:
                self._last_429 = t
                if advertised and all(remaining >= needs[_UNITS.index(unit)] for _, unit, _, _, remaining, *_ in advertised):
                    self._capped_at = t
            self._has_answer |= bool(advertised)
            all_needs = self._needs
            for item in advertised:
                limit = self._limits.get(item[0])
                if limit is None:
                    limit = self._add(item, t)
                index = limit.index
                remaining = limit.read(item, sent_at, all_needs[index] - needs_before[index], t)
                if is_429:
                    if limit.contradictions < FEW:
                        limit.contradict(0)
                elif remaining < needs[index] or limit.contradictions:
                    self._check_success(limit, call, remaining)

    def _check_success(self, limit: _Limit, call: AdmittedCall, remaining: float) -> None:
        """Compare a success with what its reply says."""
        need = call.needs[limit.index]
        if need > limit.size and self._certain_need(call.size)[limit.index] > limit.size:
            limit.contradict(_INFINITY)
        elif remaining >= need:
            limit.contradict(0 if limit.contradictions < _INFINITY else _INFINITY)
        elif not call.has_room and limit.seen.is_believed:
            limit.contradict(limit.contradictions + 1)

    def _add(self, item: AdvertisedLimit, t: float) -> _Limit:
        """Add a limit that was not seen before; one too many is forgotten again."""
        header, unit, size, window, _, reset, is_advice, _ = item
        seen = RateLimitSeen(unit=unit, size=size, window=window, source="advertised", header=header, is_believed=not is_advice)
        limit = _Limit(seen, t, is_even=reset is None)
        if limit.is_even or limit.grows_slowly:  # The level of a bucket includes the calls before.
            limit.debt = max(self._needs[limit.index] - limit.even_pace * (t - self._first_start), 0.0)
        if len(self._limits) < _MAX_LIMITS:
            self._limits[header] = limit
        return limit

    def end(self, call: AdmittedCall, usage: Mapping[str, object] | None) -> None:
        """Count the real tokens of a call that was answered."""
        self._has_answer = True
        if not self._limits or not (real := real_tokens(usage)):
            return
        size = call.size
        with self._lock:
            self._last_need = None, _NOTHING
            if size.input_bytes and (input_tokens := real.get("input_tokens")) is not None:
                self._input_ratio = _mean(self._input_ratio, input_tokens / size.input_bytes)
            if (output_tokens := real.get("output_tokens")) is not None:
                self._output_tokens = _mean(self._output_tokens, output_tokens)
            for limit in self._limits.values():
                amount = real.get(_UNITS[limit.index])
                if amount is None:
                    continue
                if amount > limit.size and limit.seen.source == "advertised":
                    limit.contradict(_INFINITY)
                if limit.is_even:  # Otherwise the headers say what was counted.
                    if limit.seen.unit == "tokens" and size.max_output is not None:
                        amount = self._need(size)[limit.index]  # What is reserved is not returned, but its estimate improves.
                    limit.debt = max(limit.debt + amount - call.needs[limit.index], 0.0)


def _mean(mean: float | None, value: float) -> float:
    """Return a running mean after the next value."""
    return value if mean is None else mean + SMOOTHING * (value - mean)
