"""Known limits of one rate-limit key: what the user declares, and what the provider advertises on every reply.

A call starts when every limit has room for it. Nothing here waits or reads a clock: times are passed in.

A declared limit is spread evenly, because some providers enforce 60 per minute as 1 per second. So is an advertised limit
without a reset, which has fixed windows (Azure): what remains of one does not show when the next begins. Where that is known
(Mistral), what remains is spread over the rest of the window.

Any other advertised limit is a bucket whose level each reply reports. Its level is what remained when the request of the newest
reply was sent, plus what flowed in since, minus the needs of the calls that started since. Calls are paced as if the level had
to last for a few round trips: a full bucket is used quickly, an empty one at the rate at which it fills, and several runs,
machines or other users of the key get similar shares, because all of them see the same level.

Headers may be wrong. A limit is not believed while calls succeed that it rules out: larger ones than it allows, or three in a
row after a reply that reported nothing remaining. One call per 5 s is tried in spite of such a reply.
"""
# ruff: noqa: FURB136, PLR1730 - calls of `min` and `max` would take a fifth of the time of an admission

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import attrs
from attrs import define, field

from evaljournal.journal.events import LimitUnit, RateLimitSeen
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay.state.known_limits import DAY, MINUTE, CallRate, call_rate
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
_FEW_REQUESTS: Final = 120.0
"""Requests per minute below which one that arrives early is rejected: they start without a burst, and at `_FEW_SHARE`."""
_FEW_SHARE: Final = 0.93
"""The network delays one call more than the next by up to 70 ms, which is 7 % of the second between two calls. With 0.95, more
than 1 % are rejected."""
_ROUND_TRIPS: Final = 4
"""Round trips in which the level of an advertised limit is used: what is known of it is one round trip old, so that four runs
on one key do not exceed it."""
_SHORTEST_HORIZON, _LONGEST_HORIZON = 0.2, 0.5
"""Shares of the window in which the level is used, whatever the round trips; a bucket that holds less is used in that time."""
_MIN_CAPACITY: Final = 1.0
"""Seconds of its rate that a bucket holds at least."""
_CAP: Final = 300.0
"""Seconds for which a limit is spread evenly after a 429 for which it had room. Then it may be used faster, step by step."""
_SMALLEST_SHARE: Final = 0.1
"""Share of the rate at which a limit fills that is used even if nothing is left: the next reply may say more."""
_WINDOW_MARGIN: Final = 1.0
"""Seconds after the end of a fixed window until the next one counts: resets are rounded. It costs nothing, because the rest of
the window is used faster."""
_PROBE: Final = 5.0
"""Seconds without a start after which a call is tried although nothing is left; a minute if a call was rate limited in the last
one."""
_REFUTING_SUCCESSES: Final = 3
"""Successes of such calls in a row after which a limit is not believed."""
_FIRST_CALLS: Final = 3
_FIRST_PACE: Final = 10.0
"""Calls that start at once, and per second after that, until a provider that advertises its limits has sent a reply: others may
have used them. A rejection arrives in a tenth of a second, so that few calls are rejected; the wait for the first reply is the
most that a run can lose."""
_ADVERTISING_HOSTS: Final = ("api.openai.com", "api.anthropic.com", "api.groq.com", "api.mistral.ai", ".openai.azure.com")
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


_make_call = partial(tuple.__new__, AdmittedCall)
"""`AdmittedCall._make`, three times as fast."""


@define(eq=False)
class _Limit:
    """A limit and its state.

    Each state that an event sets has an end, because what is true of a provider now need not be true in an hour:

    - `capped_at`, after a 429 for which there was room: for 5 minutes; after that, the cap rises with the time since then.
    - `capacity`, the largest level seen: until the size changes.
    - `empty_at`, a reply that said that nothing is left: until its reset, a 429, or a reply with room.
    - `largest`, the largest call that succeeded: until the size changes.
    - Not being believed: until a reply has room for its call again; after the first time, also until a 429.
    """

    seen: RateLimitSeen
    t: float
    """The time of `debt` and `level`."""
    is_even: bool = False
    """Whether it is spread evenly, whatever its level."""
    size: float = field(init=False, default=0.0)
    """That of `seen`."""
    even_rate: float = field(init=False, default=0.0)
    """Units per second, by size and window."""
    rate: float = field(init=False, default=0.0)
    """Units per second that flow in; fewer than `even_rate` if a reset shows that the window is longer."""
    pace: float = field(init=False, default=0.0)
    """Units per second at which calls may start."""
    even_pace: float = field(init=False, default=0.0)
    """Units per second if it is spread evenly; a limit per day is not spread over more than a minute."""
    burst: float = field(init=False, default=_BURST)
    """Seconds of the pace that may be used at once."""
    debt: float = 0.0
    """Needs of started calls that the pace has not used up."""
    level: float = 0.0
    """What remains, if it is advertised."""
    capacity: float = field(init=False, default=0.0)
    """What the bucket holds, as far as it is known: the largest level that a reply reported, at least one call's need."""
    window_end: float | None = None
    """When the fixed window ends; None: a bucket."""
    newest_sent: float = float("-inf")
    """When the request of the newest reply was sent."""
    capped_at: float = float("-inf")
    """When a call was last rate limited although every limit had room for it."""
    empty_at: float = 0.0
    """When a reply said that there is no room."""
    empty_until: float = float("-inf")
    """The reset that it stated."""
    empty_needs: float = 0.0
    """Needs of all calls that may start until then, without what flows in."""
    is_doubted: bool = False
    """Whether a reply said that there is no room, or it was refuted, since a reply had room."""
    contradictions: int = 0
    """Successes in a row that this reply ruled out."""
    refutations: int = 0
    """How often it was refuted since a reply had room."""
    largest: float = 0.0
    """The largest need of a successful call, if it exceeds the size."""
    recorded: RateLimitSeen | None = None
    """As it was recorded last."""
    recorded_t: float = 0.0
    unit: LimitUnit = field(init=False, default=attrs.Factory(lambda self: self.seen.unit, takes_self=True))
    index: int = field(init=False, default=attrs.Factory(lambda self: _UNITS.index(self.seen.unit), takes_self=True))
    """Position of its unit in `_UNITS`."""
    is_declared: bool = field(init=False, default=attrs.Factory(lambda self: self.seen.source == "declared", takes_self=True))
    is_day: bool = field(init=False, default=attrs.Factory(lambda self: self.seen.header == "rpd", takes_self=True))
    grows_slowly: bool = field(
        init=False, default=attrs.Factory(lambda self: self.seen.header.startswith("anthropic-"), takes_self=True)
    )
    """Whether the provider rejects sudden growth."""

    def __attrs_post_init__(self) -> None:
        self._set_size(self.seen)

    def _set_size(self, seen: RateLimitSeen) -> None:
        self.seen, self.size = seen, seen.size
        self.even_rate = self.rate = seen.size / seen.window
        per_second = seen.size / min(seen.window, MINUTE)
        is_few = seen.unit == "requests" and per_second * MINUTE < _FEW_REQUESTS
        self.even_pace = self.pace = per_second * (_FEW_SHARE if is_few else _EVEN_SHARE)
        self.burst = 0.0 if is_few else _BURST
        self.capacity = min(_MIN_CAPACITY * per_second, seen.size)
        self.largest = 0.0

    def resize(self, size: float, window: float) -> None:
        """Change the size: what was learned about the old one does not count."""
        self._set_size(evolve_fact(self.seen, size=size, window=window))

    def believe(self, *, is_believed: bool) -> None:
        """Believe it or not."""
        if self.seen.is_believed != is_believed:
            self.seen = evolve_fact(self.seen, is_believed=is_believed)
            self.refutations += not is_believed
            self.is_doubted |= not is_believed

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
        """Use up debt, and let the level rise, until a later time."""
        seconds, self.t = t - self.t, t
        if self.debt:
            debt = self.debt - self.pace * seconds
            self.debt = debt if debt > 0 else 0.0
        if self.window_end is None:
            level = self.level + self.rate * seconds
            self.level = level if level < self.capacity else self.capacity
        elif t >= self.window_end + _WINDOW_MARGIN:
            self.level, self.window_end = self.seen.size, t + self.seen.window

    def wait(self, amount: float, first_start: float, round_trips: float) -> float:
        """Return the seconds until there is room for an amount, after `advance`; `round_trips` is the time of a few of them."""
        if self.is_even:
            return self.debt / self.pace - self.burst
        level, window_end = self.level, self.window_end
        if window_end is not None:
            pace = level / max(window_end - self.t, _MIN_CAPACITY)
        else:
            length = min(self.seen.window, MINUTE)
            horizon = min(max(round_trips, _SHORTEST_HORIZON * length), _LONGEST_HORIZON * length, self.capacity / self.rate)
            pace = max(level, amount) / horizon
            if level > (quarter := self.size / 4):  # It is not needed by others soon, and short runs need not wait for it.
                pace += (level - quarter) / max(round_trips, _BURST)
        if pace > self.even_pace:
            pace = min(pace, self._highest_pace(amount, first_start))
        self.pace = pace = max(pace, _SMALLEST_SHARE * self.rate)
        wait = self.debt / pace - self.burst
        return wait if amount <= level else max(wait, self._wait_for_level(amount))

    def _highest_pace(self, amount: float, first_start: float) -> float:
        if self.capacity < 2 * amount:  # A bucket that holds a single call rejects the next one if it arrives early.
            return self.even_pace
        pace = self.even_pace * max((self.t - self.capped_at) / _CAP, 1.0)
        if self.grows_slowly:
            pace = min(pace, self.rate * (0.5 + (self.t - first_start) / MINUTE))  # Begin at half the rate.
        return pace

    def _wait_for_level(self, amount: float) -> float:
        amount = min(amount, self.size)
        self.capacity = max(self.capacity, amount)
        if amount <= self.level:
            return 0.0
        return (amount - self.level) / self.rate if self.window_end is None else self.window_end + _WINDOW_MARGIN - self.t

    def read_level(self, call: AdmittedCall, needs: float, item: AdvertisedLimit, t: float) -> None:
        """Take the level from the newest reply; `needs` are those of all calls that have started."""
        _, _, size, window, remaining, reset, _, is_window = item
        if reset is None:
            self.is_even, self.pace = True, self.even_pace
            return
        self.is_even = False
        # A reset within the window may be rounded to seconds; a longer one shows that the window is longer.
        self.rate = rate = (size - remaining) / reset if reset > window and remaining < size else self.even_rate
        level = remaining - needs + call.all_needs[self.index]
        if is_window:
            self.level, self.capacity = level, size
            self._read_window(t + reset)
            return
        capacity = self.capacity
        if remaining > capacity:
            self.capacity = capacity = remaining
        level += rate * (self.t - call.t)
        self.level = level if level < capacity else capacity

    def _read_window(self, end: float) -> None:
        """Read the end of a fixed window. Resets are rounded, so the earliest one of the same window is the best estimate."""
        current_end = self.window_end
        self.window_end = end if current_end is None or end > current_end + self.seen.window / 2 else min(end, current_end)

    def check_success(self, call: AdmittedCall, needs: float, item: AdvertisedLimit, t: float) -> None:
        """Compare a success with what an earlier reply allowed, if its own says that nothing is left; `needs` as above."""
        self.is_doubted = True
        if call.t >= self.empty_until:
            self.empty_at, self.empty_until, self.empty_needs = t, t + (item.reset or 0.0), needs + item.remaining
            self.contradictions = 0
        elif call.t > self.empty_at:
            flow = self.rate * (call.t - self.empty_at) if self.window_end is None else 0.0
            self.contradictions += call.all_needs[self.index] > self.empty_needs + flow
            if self.contradictions >= _REFUTING_SUCCESSES:
                self.believe(is_believed=False)

    def check_room(self) -> None:
        """Forget that nothing was left: a reply has room for its call."""
        self.empty_until = float("-inf")
        if self.size < self.largest:
            return
        if self.refutations:
            self.believe(is_believed=True)
        self.refutations, self.is_doubted = 0, False

    def check_429(self, t: float, *, has_room: bool) -> None:
        """Believe what it says, unless it was refuted twice or by a larger call; with `has_room`, cap it."""
        self.empty_until = float("-inf")
        if has_room:
            self.capped_at = t
        if self.refutations <= 1 and self.size >= self.largest:
            self.believe(is_believed=True)

    def check_size(self, need: float) -> None:
        """Refute it if a call that succeeded needed more than it allows."""
        if need > self.size and not self.is_declared:
            self.largest = max(self.largest, need)
            self.believe(is_believed=False)


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
        self._needs: _Amounts = (0.0, 0.0, 0.0, 0.0)
        """Needs of all calls so far."""
        self._input_ratio: float | None = None
        """Mean real tokens per byte of input; None before the first reply with usage."""
        self._output_tokens: float | None = None
        """Mean tokens of an output."""
        self._last_need: tuple[CallSize | None, _Amounts] = None, self._needs
        """The size whose need was computed last, and that need: a call is checked, then admitted."""
        self._has_answer = False
        """Whether a reply has shown limits, or that there are none."""
        self._round_trip = 0.0
        """Mean seconds from the start of a call to the head of its reply."""
        self._first_start = float("inf")
        self._last_start = float("-inf")
        self._last_429 = float("-inf")
        self._early_until = float("-inf")
        """When the pace of calls before the first reply allows another one, apart from `_FIRST_CALLS`."""
        self._day_starts: deque[float] = deque()
        """Starts of the last 24 hours, if a limit per day is declared."""

    def declare(self, limits: Mapping[str, float], t: float) -> list[RateLimitSeen]:
        """Add declared limits by name; return the events to record. Of two values for one limit, the lower applies."""
        with self._lock:
            for name, size in limits.items():
                unit, window = DECLARED[name]
                if name not in self._limits or size < self._limits[name].seen.size:
                    seen = RateLimitSeen(unit=unit, size=size, window=window, source="declared", header=name)
                    self._limits[name] = _Limit(seen, t, is_even=True)
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
                self._start(CallSize(), (requests, tokens, input_tokens, output_tokens), t)
            self._early_until = float("-inf")

    @property
    def is_silent(self) -> bool:
        """Whether no limit is known, although a call was answered."""
        return self._has_answer and not self._limits

    @property
    def call_rate(self) -> CallRate | None:
        """The lowest rate of calls that the limits allow, by the mean need so far; None if none is known."""
        if not self._limits:
            return None
        with self._lock:
            needs: dict[str, float] = dict(zip(_UNITS, self._needs, strict=True))
            return call_rate((limit.seen for limit in self._limits.values()), needs, self._needs[0])

    def recorded_need(self, call: AdmittedCall) -> dict[LimitUnit, float] | None:
        """Return what a call takes from the known limits: unit → amount; None if no limit is known."""
        with self._lock:
            return {limit.seen.unit: call.needs[limit.index] for limit in self._limits.values()} or None

    def _need(self, size: CallSize) -> _Amounts:
        last_size, need = self._last_need
        if size is last_size:
            return need
        input_bytes, max_output = size
        input_tokens = input_bytes // _BYTES_PER_TOKEN if self._input_ratio is None else int(input_bytes * self._input_ratio)
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
        if self._advertises and not self._has_answer:
            longest = self._early_until - _FIRST_CALLS / _FIRST_PACE - t
        for limit in self._limits.values():
            if limit.t < t:
                limit.advance(t)
            amount = need[limit.index]
            if limit.is_day:
                longest = max(longest, self.day_limit_wait(t))
            elif limit.level >= amount and not limit.debt:
                limit.pace = limit.even_pace  # It may start at any pace; the next one needs the right one.
            elif limit.seen.is_believed:
                wait = limit.wait(amount, self._first_start, _ROUND_TRIPS * self._round_trip)
                if wait > _PROBE and not limit.is_declared:
                    wait = min(wait, self._last_start + self._probe_interval(limit.seen, amount, t) - t)
                longest = max(longest, wait)
        return longest if longest > _RESOLUTION else 0.0

    def _probe_interval(self, seen: RateLimitSeen, amount: float, t: float) -> float:
        """Return the seconds after which a call is tried, whatever a limit says: not before a bucket would have room for it."""
        return MINUTE if t < self._last_429 + MINUTE else min(max(_PROBE, amount * seen.window / seen.size), MINUTE)

    def _start(self, size: CallSize, need: _Amounts, t: float) -> AdmittedCall:
        if t > self._last_start:
            self._last_start = t
        if t < self._first_start:
            self._first_start = t
        if not self._has_answer:
            self._early_until = max(self._early_until, t) + 1 / _FIRST_PACE
        for limit in self._limits.values():
            if limit.t < t:
                limit.advance(t)
            amount = need[limit.index]
            limit.debt += amount
            limit.level -= amount
            if limit.is_day:
                self._day_starts.append(t)
        requests, tokens, input_tokens, output_tokens = need
        all_requests, all_tokens, all_input, all_output = self._needs
        self._needs = (all_requests + requests, all_tokens + tokens, all_input + input_tokens, all_output + output_tokens)
        return _make_call((t, size, need, self._needs))

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
        need = self._certain_need(size)
        for limit in self._limits.values():
            amount = need[limit.index]
            if amount > limit.size and amount > limit.largest and limit.seen.is_believed:
                return limit.seen, self._need(size)[limit.index]
        return None

    def _certain_need(self, size: CallSize) -> _Amounts:
        return self._need(size if self._input_ratio is not None else size._replace(input_bytes=0))

    def read(self, call: AdmittedCall, advertised: Sequence[AdvertisedLimit], t: float, *, is_429: bool) -> list[RateLimitSeen]:
        """Update advertised limits from the reply to a call; return those that are new or have changed, to be recorded."""
        changes: list[RateLimitSeen] = []
        with self._lock:
            has_room = is_429 and self._read_429(call, advertised, t)
            self._has_answer |= bool(advertised)
            self._round_trip += SMOOTHING * (t - call.t - self._round_trip) if self._round_trip else t - call.t
            for item in advertised:
                limit = self._limits.get(item[0]) or self._add(item, t)
                size, remaining, index = item[2], item[4], limit.index
                if size != limit.size:
                    limit.resize(size, item.window)
                if call.t > limit.newest_sent:
                    limit.newest_sent = call.t
                    limit.read_level(call, self._needs[index], item, t)
                if is_429:
                    limit.check_429(t, has_room=has_room)
                elif remaining < call.needs[index]:
                    limit.check_success(call, self._needs[index], item, t)
                    if call.needs[index] > size:
                        limit.check_size(self._certain_need(call.size)[index])
                elif limit.is_doubted:
                    limit.check_room()
                if limit.recorded is not limit.seen:
                    changes += limit.record_change(t)
        return changes

    def _read_429(self, call: AdmittedCall, advertised: Sequence[AdvertisedLimit], t: float) -> bool:
        """Read a rejection; return whether all limits that it states had room for its call."""
        self._last_429 = t
        return all(item.remaining >= call.needs[_UNITS.index(item.unit)] for item in advertised)

    def _add(self, item: AdvertisedLimit, t: float) -> _Limit:
        """Add a limit that was not seen before; one too many is forgotten again."""
        seen = RateLimitSeen(
            unit=item.unit,
            size=item.size,
            window=item.window,
            source="advertised",
            header=item.header,
            is_believed=not item.is_advice,
        )
        limit = _Limit(seen, t, is_even=item.reset is None)
        limit.debt = self._first_debt(limit, t - self._first_start)
        if len(self._limits) < _MAX_LIMITS:
            self._limits[item.header] = limit
        else:
            limit.recorded = seen
        return limit

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
        if not real:
            return
        with self._lock:
            self._last_need = None, self._needs
            if size.input_bytes and (input_tokens := real.get("input_tokens")) is not None:
                self._input_ratio = _mean(self._input_ratio, input_tokens / size.input_bytes)
            if (output_tokens := real.get("output_tokens")) is not None:
                self._output_tokens = _mean(self._output_tokens, output_tokens)
            for limit in self._limits.values():
                amount = real.get(limit.unit)
                if amount is None:
                    continue
                if amount > limit.size:
                    limit.check_size(amount)
                if limit.is_even:  # Otherwise the headers say what was counted.
                    is_reserved = limit.unit == "tokens" and size.max_output is not None
                    # What is reserved is not returned, but its estimate improves.
                    counted = self._need(size)[limit.index] if is_reserved else amount
                    limit.debt = max(limit.debt + counted - call.needs[limit.index], 0.0)


def _mean(mean: float | None, value: float) -> float:
    """Return a running mean after the next value."""
    return value if mean is None else mean + SMOOTHING * (value - mean)
