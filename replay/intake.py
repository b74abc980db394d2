"""Pauses of a rate-limit key: their causes, and what each means in words.

The causes are recorded in `intake_paused`. Who starts what during a pause is decided in `runner.concurrency`.
"""

from typing import Final, NamedTuple

NO_RESPONSE: Final = "no_response"
"""Nothing in flight has ended for long; what is in flight then does not count against the limit any more."""

PROBING: Final = frozenset({"unavailable", NO_RESPONSE, "all_rate_limited"})
"""Causes with which the circuit breaker is open: only probes start, whatever the limit, until a record ends the pause."""

CAUSES: Final = {
    "retry_after": "Retry-After",
    "rate_limited": "429, short pause",
    "unavailable": "endpoint unavailable",
    NO_RESPONSE: "endpoint does not respond",
    "all_rate_limited": "every call is rate limited",
}
"""Cause of a pause → what it means; any other cause is shown as recorded."""


class Pause(NamedTuple):
    """A pause as it was last recorded."""

    until: float
    """When the next attempt, or the next probe, may start, in the seconds of `t`."""
    cause: str
    evidence: str = ""
    """What the policy observed, in words."""

    def is_in_force(self, now: float) -> bool:
        """Return whether it holds; an open circuit breaker does until it is closed by a record, whenever the next probe is."""
        return self.until > now or self.cause in PROBING
