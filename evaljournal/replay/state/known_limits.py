"""The known rate limits of a session, and what the recorded calls took from them, by rate-limit key.

Times are wall times in seconds since 1970, so that calls of the session before count. They follow the order of records: if the
clock of a session was behind, the session is counted as if it had followed the last call. If it was ahead, earlier calls seem
to be older than they are, so that their own wall times are kept, too.
"""

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import attrs

from evaljournal.journal.events import RateLimitSeen
from evaljournal.replay.state.usage import is_amount

MINUTE, DAY = 60.0, 86_400.0
_MAX_MINUTES: Final = 3_000
"""Minutes with calls that are kept: those of a day, and those before a session whose clock was ahead."""
_MAX_CALLS: Final = 100_000
"""Calls of a minute that are counted separately; a foreign journal may have any number."""

KNOWN_LIMIT: Final = "known_limit"
"""Reason of a concurrency limit that follows from a known rate limit; it may be higher than the slots of the settings."""
MAX_SLOTS: Final = 1_000
"""Slots that may follow from a known rate limit; the user may choose more."""
SLOTS_PER_CALL: Final = 1.5
"""Slots for each call in flight at the rate of a limit: latencies vary, and half of them are above their median."""

Need = dict[str, float]
"""Unit → amount."""


_Calls = tuple[float, float, Need]
"""Time, wall time and need of a call, or of the first of several and of all of them."""


def parse_need(value: Any) -> Need:
    """Return the recorded need of a call; amounts that are no numbers, from 0 on, are ignored."""
    if not isinstance(value, Mapping):
        return {}
    return {str(unit): float(amount) for unit, amount in value.items() if is_amount(amount) and 0 <= amount < math.inf}


def is_valid(limit: RateLimitSeen) -> bool:
    """Return whether a limit can be used; in a foreign journal its numbers may be any."""
    return 0 < limit.size < math.inf and 0 < limit.window < math.inf


@attrs.frozen
class CallRate:
    """The rate of calls that a known limit allows."""

    limit: RateLimitSeen
    need: float
    """Mean need of a call, in the unit of the limit."""

    @property
    def per_second(self) -> float:
        return self.limit.size / self.limit.window / self.need

    def slots(self, latency: float) -> int:
        """Return how many slots use the limit if a call takes `latency` seconds (Little's law)."""
        return math.ceil(SLOTS_PER_CALL * self.per_second * latency)


def call_rate(limits: Iterable[RateLimitSeen], needs: Mapping[str, float], calls: float) -> CallRate | None:
    """Return the lowest rate that the believed limits allow, given the needs of some calls together; None without a limit.

    A limit per day is no rate: it may be used up at any speed.
    """
    rates: list[CallRate] = []
    for limit in limits:
        need = needs.get(limit.unit, 0.0) / calls if calls else 1.0
        if limit.is_believed and limit.window < DAY and need > 0:
            rates.append(CallRate(limit, need))
    return min(rates, key=lambda rate: rate.per_second, default=None)


@attrs.frozen(kw_only=True)
class LimitUse:
    limit: RateLimitSeen
    used: float
    """What the calls of the last window needed, at most the limit: the real tokens may have been fewer."""
    next_start: float
    """Seconds until another call fits, as far as the recorded calls show; 0: now."""
    quiet_seconds: float = 0.0
    """Seconds since the last call."""


@attrs.define(eq=False)
class RecordedLimits:
    _limits: dict[tuple[str, str], RateLimitSeen] = attrs.field(factory=dict[tuple[str, str], RateLimitSeen])
    """Rate-limit key and header → the limit as it was seen last in this session."""
    _needs: dict[str, deque[_Calls]] = attrs.field(factory=dict[str, deque[_Calls]])
    """Rate-limit key → the calls of the last minute."""
    _minutes: dict[str, deque[_Calls]] = attrs.field(factory=dict[str, deque[_Calls]])
    """Rate-limit key → sums of earlier calls, of a minute each."""
    _origin: float = 0.0
    """Time when `t` was 0."""
    _wall_origin: float = 0.0
    """The same by the clock of the session."""
    _last_time: float = 0.0
    """Time of the last call."""
    inner_waits: dict[str, float] = attrs.field(factory=dict[str, float])
    """Rate-limit key of calls inside attempts → seconds that the last of them has waited in its slot."""

    def begin_session(self, at: str, t: float, *, is_independent: bool = False) -> None:
        """Start a session, given the times of its first record. Its limits are recorded again."""
        self._limits.clear()
        self.inner_waits.clear()
        self._origin = self.session_origin(at, t, is_independent=is_independent)
        self._wall_origin = datetime.fromisoformat(at).timestamp() - t
        if is_independent:
            self._last_time = 0.0

    def session_origin(self, at: str, t: float, *, is_independent: bool) -> float:
        """Return the time when `t` was 0 in the next session; an independent one follows no earlier call."""
        wall = datetime.fromisoformat(at).timestamp()
        return (wall if is_independent else max(wall, self._last_time)) - t

    def see(self, limit: RateLimitSeen) -> None:
        if is_valid(limit):
            self._limits[limit.key, limit.header] = limit

    def add(self, key: str, need: Any, t: float) -> None:
        """Count a call that started at `t`."""
        time = self._origin + t
        self._last_time = max(self._last_time, time)
        needs = self._needs.setdefault(key, deque())
        needs.append((time, self._wall_origin + t, parse_need(need)))
        while needs[0][0] <= time - MINUTE:
            self._add_to_minute(key, *needs.popleft())

    def _add_to_minute(self, key: str, time: float, wall: float, need: Need) -> None:
        minutes = self._minutes.setdefault(key, deque(maxlen=_MAX_MINUTES))
        if not minutes or minutes[-1][0] < time - MINUTE or abs(wall - minutes[-1][1]) > MINUTE:
            minutes.append((time, wall, {}))
        total = minutes[-1][2]
        for unit, amount in need.items():
            total[unit] = total.get(unit, 0.0) + amount

    def recent_needs(self, key: str, t: float) -> list[tuple[float, Need]]:
        """Return seconds ago and need of the calls of a key, oldest first, at `t`: those of the last 24 hours.

        Of calls before the last minute only the requests are returned, and their times are known to the minute.
        """
        return self._needs_at(key, self._origin + t, self._wall_origin + t)

    def _needs_at(self, key: str, now: float, wall_now: float) -> list[tuple[float, Need]]:
        needs: list[tuple[float, Need]] = []
        for time, wall, total in self._minutes.get(key, ()):
            seconds_ago = min(now - time, wall_now - wall) - MINUTE
            if seconds_ago < DAY:
                needs += [(max(seconds_ago, 0.0), {"requests": 1.0})] * min(round(total.get("requests", 0.0)), _MAX_CALLS)
        needs += [(max(min(now - time, wall_now - wall), 0.0), need) for time, wall, need in self._needs.get(key, ())]
        return sorted(needs, key=lambda item: -item[0])

    def day_limit_end(self) -> float:
        """Return the wall time from which the declared limits per day allow another call; 0: none is used up."""
        ends = [0.0]
        for limit in self._limits.values():
            if limit.source == "declared" and limit.window == DAY and (calls := self._needs.get(limit.key)):
                last, wall, _ = calls[-1]
                needs = self._needs_at(limit.key, last, wall)
                excess = len(needs) - max(1, int(limit.size))  # That of a foreign journal may be below 1.
                ends += [last - needs[excess][0] + DAY] if excess >= 0 else []
        return max(ends)

    def has_limits(self, key: str) -> bool:
        return any(limit.key == key and limit.is_believed for limit in self._limits.values())

    def call_rate(self, key: str) -> CallRate | None:
        """Return the lowest rate of calls that the limits of a key allow, by the needs of its last calls; None without one."""
        needs = [need for _, _, need in self._needs.get(key, ())]
        total = {unit: sum(need.get(unit, 0.0) for need in needs) for unit in dict.fromkeys(itertools.chain(*needs))}
        return call_rate((limit for limit in self._limits.values() if limit.key == key), total, len(needs))

    def seconds_needed(self, key: str, need: Any) -> float:
        """Return in how many seconds the most restrictive limit of a key allows a call; 0 without one."""
        need = parse_need(need)
        rates = (limit for limit in self._limits.values() if limit.key == key and limit.is_believed and limit.window < DAY)
        return max((need.get(limit.unit, 0.0) * limit.window / limit.size for limit in rates), default=0.0)

    def uses(self, now: float) -> Iterator[LimitUse]:
        """Yield the known limits that are believed, and how much of each is used at a time, in seconds of `t`."""
        for limit in self._limits.values():
            if limit.is_believed:
                yield self._use(limit, self._origin + now)

    def _use(self, limit: RateLimitSeen, wall: float) -> LimitUse:
        calls = [(time, need.get(limit.unit, 0.0)) for time, _, need in self._needs.get(limit.key, ())]
        used = sum(amount for time, amount in calls if time > wall - limit.window)
        if limit.window > MINUTE:
            minutes = self._minutes.get(limit.key, ())
            used += sum(total.get(limit.unit, 0.0) for time, _, total in minutes if time > wall - limit.window)
        next_start = self._next_start(limit, calls, wall) if calls and limit.window <= MINUTE else 0.0
        quiet_seconds = wall - calls[-1][0] if calls else 0.0
        return LimitUse(limit=limit, used=min(used, limit.size), next_start=next_start, quiet_seconds=quiet_seconds)

    def _next_start(self, limit: RateLimitSeen, calls: list[tuple[float, float]], wall: float) -> float:
        """Return the seconds until another call like the last one fits."""
        last_time, last_amount = max(calls)
        rate = limit.size / limit.window
        if limit.source == "declared":  # It is spread evenly.
            return max(last_time + last_amount / rate - wall, 0.0)
        level, previous = limit.size, wall - MINUTE
        for time, amount in [*calls, (wall, 0.0)]:
            level = min(level + rate * max(time - previous, 0.0), limit.size) - amount
            previous = max(time, previous)
        return max((last_amount - level) / rate, 0.0)
