"""What the endpoint says about its own limit, where it does: believed at once, before anything is refused."""

from attrs import define

from runner.concurrency.hold import LONGEST
from runner.concurrency.policy import Quota

SOONEST = 0.001
"""Seconds; a renewal nearer than this leaves nothing to spread."""


@define(kw_only=True)
class Headers:
    """The pace that the last headers leave us."""

    pace: float | None = None
    """Starts per second; None where nothing was said, or nothing limits us."""
    until: float = 0.0
    """When that is out of date."""

    def believe(self, t: float, quota: Quota) -> float | None:
        """Spread what remains over the time until it is renewed; tell until when to wait, if nothing remains.

        That is right for a window, and for a bucket too: there it settles where the bucket is half full, and the pace
        is what flows in.
        """
        reset = min(max(quota.reset, 0.0), LONGEST)
        self.pace = quota.remaining / reset if quota.remaining > 0 and reset > SOONEST else None
        self.until = t + reset
        return None if quota.remaining > 0 else self.until

    def told(self, t: float) -> float | None:
        """Give the pace, if it is not out of date."""
        return self.pace if t < self.until else None
