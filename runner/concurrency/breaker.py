"""The circuit breaker, for errors that do not depend on the load: 5xx, connection errors, timeouts.

During an outage every call would fail and cost its trial a retry. So only single probes start, with growing gaps, until one is
answered.

The breaker opens after several failures since the last answered call, if they outnumber the calls that have been in flight for
longer than failures take; sporadic errors do not open it. Failures of a trial that failed before, while calls that started
later were answered, do not count: the trial may be the reason.
"""

from typing import Final

from attrs import define, field

from evaljournal.replay.state.pauses import PROBE_PATIENCE
from evaljournal.runner.concurrency.constants import MANY, SEVERAL
from evaljournal.runner.concurrency.pace import PLATEAU_LONGEST
from evaljournal.runner.concurrency.start import Start

_OUTNUMBER_FACTOR: Final = 1.5
"""Failures per call still in flight that open it, so that up to half of all calls may fail without opening it. With 3: +0.0."""
PROBE_SOONEST: Final = 1.0
"""Minimum seconds between two probes; otherwise a tenth of the outage so far, or a quarter if every call is rate limited. With
3: +0.0."""


@define(kw_only=True)
class Breaker:
    """The failures since the last answered call, and the outage if there is one."""

    open: bool = False
    reason: str = ""
    """`unavailable`, `no_response`, or `all_rate_limited`: every call is rate limited at any pace."""
    outage_start: float = 0.0
    """When the outage began."""
    next_probe: float = 0.0
    """When the next probe may start."""
    barrier: int = 0
    """The newest start when the breaker last opened or closed; failures up to it are not counted."""
    failures: dict[int, float] = field(factory=dict[int, float])
    """Failed starts that no answered start has followed, each with the time of its failure."""
    suspects: dict[str, int] = field(factory=dict[str, int])
    """Trials that failed and were not answered since, each with its first failed start."""

    def count(self, start: Start, t: float, *, last_answered: int, in_flight: int) -> bool:
        """Count a failure; return whether there are enough. `last_answered` is the newest start that was answered."""
        first_failure = self.suspects.setdefault(start.trial, start.order)
        if start.order <= max(last_answered, self.barrier) or first_failure <= last_answered:
            return False
        self.failures[start.order] = t
        return len(self.failures) >= min(2 * MANY, max(SEVERAL, 2 * in_flight))

    def open_unless(self, survivors: int, t: float, newest_start: int) -> str | None:
        """Open the breaker unless too many calls are in flight, or one was answered; return the evidence if it opens."""
        if len(self.failures) <= max(SEVERAL - 1, _OUTNUMBER_FACTOR * survivors):
            return None
        first_failure_at = min(self.failures.values())
        evidence = f"{len(self.failures)} calls failed in {t - first_failure_at:.1f} s, and none was answered"
        self.begin("unavailable", first_failure_at, t, newest_start)
        return evidence

    def begin(self, reason: str, outage_start: float, t: float, newest_start: int, *, probe_at: float | None = None) -> None:
        """Open the breaker: only probes may start."""
        self.open, self.reason, self.outage_start, self.barrier = True, reason, outage_start, newest_start
        self.failures.clear()
        self.next_probe = t + self._gap(t) if probe_at is None else max(probe_at, t)

    def record_probe(self, t: float) -> None:
        """Wait for the probe, for a limited time: it may hang."""
        self.next_probe = t + max(PROBE_PATIENCE, self._gap(t))

    def record_failed_probe(self, t: float, *, not_before: float = 0.0) -> str:
        """Schedule the next probe; return the evidence."""
        self.next_probe = max(t + self._gap(t), not_before)
        return f"probe failed, {t - self.outage_start:.0f} s into the outage"

    def record_answer(self, start: Start, t: float, newest_start: int) -> str | None:
        """Record that a call was answered; return the evidence if that closes the breaker."""
        self.suspects.pop(start.trial, None)
        self.failures = {order: when for order, when in self.failures.items() if order > start.order}
        if not self.open or start.order <= self.barrier:  # Calls that started before the outage do not count.
            return None
        self.open, self.barrier = False, newest_start
        self.suspects.clear()  # The outage was the reason, unless they fail again while others are answered.
        return f"call answered {t - self.outage_start:.0f} s after the outage began"

    def _gap(self, t: float) -> float:
        # Rate-limited probes may use up quota, so they are sent less often.
        share = 4 if self.reason == "all_rate_limited" else 10
        return min(max((t - self.outage_start) / share, PROBE_SOONEST), PLATEAU_LONGEST)
