"""Which probes of an open circuit breaker count against the retries of their trials.

A probe tests the endpoint, not the trial. So in an outage, where nothing is answered, no trial loses retries, for as long as
its waits for a rate limit may take. If a call was answered since a trial first failed, the trial may be the cause: its probes
count, because otherwise an input that always fails would never end.
"""


class Probes:
    """The failures of trials and calls, and the probes that do not count."""

    def __init__(self, patience: float) -> None:
        """Count all probes once an outage has lasted `patience` seconds."""
        self._patience = patience
        self.outage_since: float | None = None
        """When the first probe since the last answer started."""
        self._last_answer = float("-inf")
        self.first_failures: dict[str, float] = {}
        """Trial or call → when it first failed since it was last answered."""
        self.free: set[str] = set()
        """Trials and calls whose last start was a probe that does not count."""

    def record_start(self, call: str, t: float, *, probe: bool) -> None:
        """Decide whether a failure of this start will count."""
        if probe and self.outage_since is None:
            self.outage_since = t
        is_cause = self.first_failures.get(call, t) < self._last_answer
        if probe and not is_cause and t - (self.outage_since or t) < self._patience:
            self.free.add(call)
        else:
            self.free.discard(call)

    def record_end(self, call: str, outcome: str, t: float) -> None:
        """Record how a call ended; a rate limit is neither a failure nor an answer."""
        if outcome in ("unavailable", "timed_out"):
            self.first_failures.setdefault(call, t)
        elif outcome not in ("rate_limited", "interrupted"):
            self._last_answer, self.outage_since = t, None
            self.first_failures.pop(call, None)
