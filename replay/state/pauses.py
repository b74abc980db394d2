"""Pauses of a rate-limit key and their reasons, as recorded, and numbers that policies and audits share."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import attrs

NO_RESPONSE: Final = "no_response"
"""No attempt has ended for a long time; attempts in flight no longer count against the limit."""

PROBE_PATIENCE: Final = 10.0
"""Seconds after which another probe may start although the previous one has not ended."""

LATE_TOLERANCE: Final = 0.05
"""Seconds by which a start may be late without slowing the pace, because timers are not exact."""

PACE_CHANGE: Final = 0.1
"""A pace that changes gradually is recorded when it has changed by this share."""

BREAKER_REASONS: Final = frozenset({"unavailable", NO_RESPONSE, "all_rate_limited"})
"""Reasons that open the circuit breaker: only probes start, whatever the limit, until a record ends the pause."""

PAUSE_TEXTS: Final = {
    "retry_after": "Retry-After",
    "rate_limited": "429, short pause",
    "unavailable": "endpoint unavailable",
    NO_RESPONSE: "endpoint does not respond",
    "all_rate_limited": "every call is rate limited",
}
"""Reason of a pause → its text; any other reason is shown as recorded."""


class Pause(NamedTuple):
    """The last recorded pause."""

    until: float
    """When the next attempt or probe may start, in seconds since the start of the session."""
    reason: str
    evidence: str = ""
    """The policy's observation."""

    def is_in_force(self, now: float) -> bool:
        """Return whether it applies at a time; an open circuit breaker applies until a record closes it."""
        return self.until > now or self.reason in BREAKER_REASONS


@attrs.define
class PausedTime:
    """Seconds in which pauses held starts, by reason; simultaneous pauses of several keys for the same reason count once."""

    _seconds: dict[str, float] = attrs.field(factory=dict[str, float])
    _counted_to: float = 0.0
    """The time in the session up to which they are counted; every pause since then has been in force from there on."""

    def count(self, pauses: Mapping[str, Pause], t: float) -> None:
        """Count up to `t`; call it before `pauses`, those of each key, change."""
        self._seconds, self._counted_to = self.until(pauses, t), t

    def begin_session(self) -> None:
        """Start at 0: the time of a session starts again."""
        self._counted_to = 0.0

    def until(self, pauses: Mapping[str, Pause], t: float) -> dict[str, float]:
        """Return the seconds by reason up to `t`."""
        seconds = dict(self._seconds)
        for reason in dict.fromkeys(pause.reason for pause in pauses.values()):
            ends = (pause.until for pause in pauses.values() if pause.reason == reason)
            end = t if reason in BREAKER_REASONS else min(t, max(ends))
            if end > self._counted_to:
                seconds[reason] = round(seconds.get(reason, 0.0) + end - self._counted_to, 6)
        return seconds
