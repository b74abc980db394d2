"""The pause in force on one rate-limit key.

A Retry-After applies to the key, not only to the attempt that received it: others that start too early are also rate limited.
"""

from attrs import define

from evaljournal.journal.events import IntakePaused, IntakeResumed, PolicyEvent
from evaljournal.runner.concurrency.start import LONG_TIME


@define
class CurrentPause:
    """The current pause, if there is one."""

    event: IntakePaused | None = None

    def earliest_start(self, t: float) -> float:
        """Return the earliest time at or after `t` at which an attempt may start."""
        return t if self.event is None else max(t, self.event.until)

    def begin_retry_after(self, t: float, seconds: float, evidence: str) -> list[PolicyEvent]:
        """Pause for the time in Retry-After, at most `LONG_TIME`; `t` is when the response arrived."""
        wait = min(max(seconds, 0.0), LONG_TIME)
        limit_text = "" if wait == seconds else f", limited to {wait:.6g} s"
        return self.begin(t, t + wait, "retry_after", f"{evidence}; Retry-After: {seconds:.6g} s{limit_text}")

    def begin(self, t: float, end: float, reason: str, evidence: str) -> list[PolicyEvent]:
        """Pause until `end`, unless a longer pause is in force."""
        if end <= t or (self.event is not None and end <= self.event.until):
            return []
        self.event = IntakePaused(until=end, reason=reason, evidence=evidence)
        return [self.event]

    def end(self, t: float) -> list[PolicyEvent]:
        """End the pause if its time is over."""
        pause = self.event
        if pause is None or t < pause.until:
            return []
        self.event = None
        return [IntakeResumed(reason=pause.reason, evidence="pause over")]
