"""The events of concurrency policies: changes of the limit and the pace, and pauses."""

from evaljournal.journal.fact import fact


@fact
class LimitChanged:
    """The concurrency limit changed: how many attempts and scorer calls may be in flight."""

    before: int
    after: int
    reason: str
    """`start`, `climbing` (no limit of the endpoint is known yet), `trying` (another limit is tested), `in_flight` (429s
    depend on the number in flight), `latency`, `timeouts`, `no_response`, `rate_limit`, `random_429s` (429s do not depend on
    the load), `window` (AIMD) or `policy_failed` (a fixed limit takes over)."""
    evidence: str = ""
    """Observations behind the decision, such as `3 × 429 in 2.1 s at 41 in flight`."""
    key: str = ""
    """The rate-limit key it applies to, if there are several."""


@fact
class PaceChanged:
    """The pace changed: how many attempts and scorer calls may start per second."""

    before: float | None = None
    """Starts per second; null: starts were not paced."""
    after: float | None = None
    """Starts per second; null: starts are not paced."""
    reason: str
    """`start` (the first starts of a run are spread), `rate_limit`, `test` (whether 429s are random), `no_limit` or
    `policy_failed`."""
    evidence: str = ""
    key: str = ""
    """The rate-limit key it applies to, if there are several."""


@fact
class IntakePaused:
    """Attempts and scorer calls may not start before `until`."""

    until: float
    """Time at which the next one may start, on the same clock as `t`; with an open circuit breaker, only as a probe."""
    reason: str
    """`retry_after` or `rate_limited`; with an open circuit breaker `unavailable`, `no_response` or `all_rate_limited`."""
    evidence: str = ""
    """Observations behind the decision."""
    key: str = ""


@fact
class IntakeResumed:
    """Attempts and scorer calls may start again."""

    reason: str
    """Reason of the pause that ended."""
    evidence: str = ""
    key: str = ""


PolicyEvent = LimitChanged | PaceChanged | IntakePaused | IntakeResumed
"""Decisions of a concurrency policy."""
