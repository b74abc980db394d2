"""Whether more in flight buys anything: the machine for servers that never refuse, and only get slower.

Attempts are grouped by the order in which they began, and a group is judged when nearly all of it has ended. In the order
of endings, the quick ones come first, and a growing load would look faster than it is; the last few of a group are left
out, because one that hangs would keep the rest waiting.

A group that ran with clearly more in flight than the one before is compared with it. If latency grew nearly as much as
the load, the growth bought nothing. Chance can make one group slow; two in a row are believed.
"""

from attrs import define, field

from runner.concurrency.start import Begun

GROUP = 32
NEARLY = 28
"""Endings at which a group is judged."""
GROWN = 1.2
"""A group with this much more in flight than the baseline is compared with it; any other refines it."""
WORTH = 0.6
"""Growth of latency per growth of load that is still worth it."""
FRESH = 0.1
"""Weight of the newest latency in the running average."""


@define
class Group:
    """Attempts that began one after another."""

    ended: int = 0
    seconds: float = 0.0
    """Sum over the successes."""
    load: int = 0
    """Sum over the successes of the limit that was in force when they began."""
    succeeded: int = 0


@define(kw_only=True)
class Latency:
    """The groups that are still open, and the load and latency that new groups are compared with."""

    mean: float | None = None
    """Average seconds of a success, recent ones weighing more."""
    groups: list[Group] = field(factory=list[Group])
    first: int = 0
    """Number of the first group in the list."""
    load: float | None = None
    """Baseline: the limit, on average. The limit, not what was in flight: where starts are paced, slowness makes load."""
    seconds: float = 0.0
    """Baseline: latency, on average."""
    weight: int = 0
    """Groups in the baseline."""
    slow: int = 0
    """Groups in a row that were slower than growth is worth."""

    def ended(self, begun: Begun, elapsed: float | None, lesson: int) -> tuple[bool, str] | None:
        """Put an ending into its group; `elapsed` is None unless it succeeded.

        When this settles whether growth was worth it: whether it was, and what was seen. Groups that began before the
        attempt `lesson` are not judged: they ran under another limit.
        """
        if elapsed is not None:
            self.mean = elapsed if self.mean is None else self.mean + FRESH * (elapsed - self.mean)
        place = begun.order // GROUP - self.first
        if place < 0:
            return None
        while place >= len(self.groups):
            self.groups.append(Group())
        group = self.groups[place]
        if group.ended >= NEARLY:
            return None
        group.ended += 1
        if elapsed is not None:
            group.seconds += elapsed
            group.load += begun.limit
            group.succeeded += 1
        if group.ended < NEARLY:
            return None
        number = self.first + place
        while self.groups and (self.groups[0].ended >= NEARLY or len(self.groups) > 2 + begun.in_flight // 8):
            del self.groups[0]
            self.first += 1
        if number * GROUP <= lesson or group.succeeded < NEARLY * 3 // 4:
            return None
        return self._judge(group.load / group.succeeded, group.seconds / group.succeeded)

    def _judge(self, load: float, seconds: float) -> tuple[bool, str] | None:
        """Compare a group with the baseline, or make it part of it."""
        old, old_seconds = self.load, self.seconds
        if old is None or load * GROWN < old:
            self.load, self.seconds, self.weight, self.slow = load, seconds, 1, 0
            return None
        if load < GROWN * old:
            self.weight = min(self.weight + 1, 8)
            self.load = old + (load - old) / self.weight
            self.seconds = old_seconds + (seconds - old_seconds) / self.weight
            return None
        seen = f"{old_seconds:.2f} s at {old:.0f} in flight, {seconds:.2f} s at {load:.0f}"
        if seconds > old_seconds * (1 + WORTH * (load / old - 1)):
            self.slow += 1
            return (False, seen) if self.slow > 1 else None
        self.load, self.seconds, self.weight, self.slow = load, seconds, 1, 0
        return True, seen
