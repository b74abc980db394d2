"""Until when everyone on this key waits, because the endpoint named a time.

A Retry-After is meant for the key, not for the one attempt that met it: whoever starts meanwhile is refused too.
"""

from attrs import define

from runner.concurrency.policy import Change, Paused, Resumed

LONGEST = 120.0
"""Seconds; some endpoints ask for an hour and answer after a minute, so we look again by then."""


@define
class Hold:
    """The pause in force, if there is one."""

    pause: Paused | None = None

    def earliest(self, t: float) -> float:
        """Tell when the next start may come, seen from `t`."""
        return t if self.pause is None else max(t, self.pause.until)

    def retry_after(self, t: float, seconds: float, seen: str) -> list[Change]:
        """Wait as long as the endpoint asked, within reason; `seen` is what it answered to."""
        wait = min(max(seconds, 0.0), LONGEST)
        asked = f"Retry-After {seconds:.6g} s" if wait == seconds else f"Retry-After {seconds:.6g} s, taken as {wait:.6g} s"
        return self.begin(t, t + wait, "retry_after", f"{seen}; {asked}")

    def begin(self, t: float, until: float, cause: str, evidence: str) -> list[Change]:
        """Hold everyone until then, unless a longer pause is in force already."""
        if until <= t or (self.pause is not None and until <= self.pause.until):
            return []
        self.pause = Paused(until=until, cause=cause, evidence=evidence)
        return [self.pause]

    def passed(self, t: float) -> list[Change]:
        """End the pause once its time has come."""
        pause = self.pause
        if pause is None or t < pause.until:
            return []
        self.pause = None
        return [Resumed(cause=pause.cause, evidence=f"the pause ended {t - pause.until:.3f} s ago")]
