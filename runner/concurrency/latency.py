"""Whether more in flight buys anything: the machine for servers that never refuse, and only get slower.

Attempts are grouped by the order in which they began, and a group is judged when nearly all of it has ended. In the
order of endings, the quick ones come first, and a growing load would look faster than it is; the last few of a group
are left out, because one that hangs would keep the rest waiting.

A group that ran with clearly more or less in flight than those before is compared with them. If latency differs nearly
as much as the load, the higher load buys nothing. Chance can make one group slow; two in a row are believed.
"""

from attrs import define, field

from runner.concurrency.start import Begun

GROUP = 32
NEARLY = 28
"""Endings at which a group is judged."""
MOST = 21
"""Successes among them without which there is nothing to judge."""
BUSY = 0.85
"""Part of the limit that must have been in use."""
SAME, GROWN = 1.05, 1.2
"""Up to the one, a load is the same as the baseline's and refines it; from the other on, it is compared with it."""
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
    """Sum over the successes of how many were in flight when they began."""
    limit: int = 0
    """Sum over the successes of the limit that was in force then."""
    succeeded: int = 0


@define(kw_only=True)
class Comparison:
    """What two loads did to latency."""

    worth: bool
    """The higher load is worth it: latency grew clearly less than the load."""
    better: float
    """The load to prefer."""
    seen: str


@define(kw_only=True)
class Latency:
    """The groups that are still open, and the load and latency that new groups are compared with."""

    mean: float | None = None
    """Average seconds of a success, recent ones weighing more."""
    groups: list[Group] = field(factory=list[Group])
    first: int = 0
    """Number of the first group in the list."""
    load: float | None = None
    """Baseline: in flight, on average."""
    seconds: float = 0.0
    """Baseline: latency, on average."""
    weight: int = 0
    """Groups in the baseline."""
    slow: int = 0
    """Groups in a row that were slower than growth is worth."""

    def ended(self, begun: Begun, elapsed: float | None, lesson: int) -> Comparison | None:
        """Put an ending into its group; `elapsed` is None unless it succeeded. Compare the group if it is complete.

        Groups that began before the attempt `lesson` are not judged: they ran under another limit.
        """
        if elapsed is not None:
            self.mean = elapsed if self.mean is None else self.mean + FRESH * (elapsed - self.mean)
        place = begun.order // GROUP - self.first
        if place < 0:
            return None
        while place >= len(self.groups):
            self.groups.append(Group())
        group = self.groups[place]
        group.ended += 1
        if group.ended > NEARLY:
            return None
        if elapsed is not None:
            group.seconds += elapsed
            group.load += begun.in_flight
            group.limit += begun.limit
            group.succeeded += 1
        if group.ended < NEARLY:
            return None
        number = self.first + place
        while self.groups and (self.groups[0].ended >= NEARLY or len(self.groups) > 2 + begun.in_flight // 8):
            del self.groups[0]
            self.first += 1
        # Where something else than the limit held us back, the load followed the latency, and not the other way round.
        if number * GROUP <= lesson or group.succeeded < MOST or group.load < BUSY * group.limit:
            return None
        return self._judge(group.load / group.succeeded, group.seconds / group.succeeded)

    def _judge(self, load: float, seconds: float) -> Comparison | None:
        """Compare a group with the baseline, or make it part of it. The better of two loads becomes the baseline."""
        old, old_seconds = self.load, self.seconds
        if old is None:
            self.load, self.seconds, self.weight = load, seconds, 1
            return None
        if SAME * old > load > old / SAME:
            self.weight = min(self.weight + 1, 8)
            self.load = old + (load - old) / self.weight
            self.seconds = old_seconds + (seconds - old_seconds) / self.weight
            return None
        if GROWN * old > load > old / GROWN:
            return None  # Neither the same load nor clearly another one.
        higher = load > old
        low, low_seconds, high, high_seconds = (
            (old, old_seconds, load, seconds) if higher else (load, seconds, old, old_seconds)
        )
        worth = high_seconds <= low_seconds * (1 + WORTH * (high / low - 1))
        self.slow = 0 if worth else self.slow + 1
        if self.slow == 1:
            return None  # Chance can make one group slow.
        self.slow = 0
        if worth == higher:
            self.load, self.seconds, self.weight = load, seconds, 1
        seen = f"{low_seconds:.2f} s at {low:.0f} in flight, {high_seconds:.2f} s at {high:.0f}"
        return Comparison(worth=worth, better=high if worth else low, seen=seen)
