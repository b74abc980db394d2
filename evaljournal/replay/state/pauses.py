"""Pauses of a rate-limit key and their reasons, as recorded, and numbers that policies and audits share."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import attrs

from evaljournal.replay.text import printable

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
    until: float
    """When the next attempt or probe may start, in seconds since the start of the session."""
    reason: str
    evidence: str = ""
    """The policy's observation."""

    @property
    def text(self) -> str:
        """The reason as text; safe for a terminal."""
        return PAUSE_TEXTS.get(self.reason) or printable(self.reason)

    def is_in_force(self, now: float) -> bool:
        """Return whether it applies at a time; an open circuit breaker applies until a record closes it."""
        return self.until > now or self.reason in BREAKER_REASONS


@attrs.define
class PausedTime:
    """Seconds in which starts were held, by reason; what holds several rate-limit keys at the same time counts once."""

    _seconds: dict[str, float] = attrs.field(factory=dict[str, float])
    _counted_to: float = 0.0
    """The time in the session up to which pauses are counted; every pause since then has been in force from there on."""
    _held_to: float = 0.0
    """The end of what was counted last."""

    def count(self, pauses: Mapping[str, Pause], t: float) -> None:
        """Count up to `t`; call it before `pauses`, those of each key, change."""
        self._seconds, self._held_to = self._until(pauses, t)
        self._counted_to = t

    def add(self, reason: str, start: float, end: float) -> None:
        """Count a time in which nothing was paused, but another reason held starts."""
        start = max(start, self._held_to)
        if end > start:
            self._seconds[reason] = round(self._seconds.get(reason, 0.0) + end - start, 6)
            self._held_to = end

    def begin_session(self) -> None:
        """Start at 0: the time of a session starts again."""
        self._counted_to = self._held_to = 0.0

    def until(self, pauses: Mapping[str, Pause], t: float) -> dict[str, float]:
        """Return the seconds by reason up to `t`."""
        return self._until(pauses, t)[0]

    def _until(self, pauses: Mapping[str, Pause], t: float) -> tuple[dict[str, float], float]:
        """Return the seconds by reason up to `t`, and the end of what is counted: of two pauses, the first counts."""
        seconds, held_to = dict(self._seconds), self._held_to
        for pause in pauses.values():
            start = max(held_to, self._counted_to)
            end = t if pause.reason in BREAKER_REASONS else min(t, pause.until)
            if end > start:
                seconds[pause.reason] = round(seconds.get(pause.reason, 0.0) + end - start, 6)
                held_to = end
        return seconds, held_to
