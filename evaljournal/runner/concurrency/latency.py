"""Whether a higher load raises throughput, for servers that never reject a call and only get slower.

Attempts are grouped in the order of their starts, and a group is evaluated when nearly all of its attempts have ended. (In the
order of ends the quick ones come first, and a growing load would look faster than it is.)

A group that ran with clearly more or fewer attempts in flight is compared with the one before. If the latency differs nearly
as much as the load, the higher load adds no throughput. An attempt that timed out counts with the time it took.
"""

from collections import deque
from typing import Final

from attrs import define, field

from evaljournal.runner.concurrency.in_flight import BUSY_SHARE, UNPROVEN_LIMIT
from evaljournal.runner.concurrency.start import CLEARLY_MORE, MANY, SEVERAL, SMOOTHING, WINDOW, Group, Start

_SLOW_PART: Final = 8
"""One in this many attempts of a group is not waited for."""
_SAME: Final = 0.05
"""Two loads are the same up to this difference."""
_MAX_LATENCY_GROWTH: Final = 0.6
"""Growth of latency per growth of load up to which a higher load still raises throughput noticeably."""


@define
class LoadComparison:
    """Two loads and their latencies."""

    low: float
    low_seconds: float
    high: float
    high_seconds: float
    newest_is_high: bool

    @property
    def raises_throughput(self) -> bool:
        """Whether the higher load raises throughput: latency grew clearly less than the load."""
        return self.high_seconds <= self.low_seconds * (1 + _MAX_LATENCY_GROWTH * (self.high / self.low - 1))

    def __str__(self) -> str:
        return f"{self.low_seconds:.2f} s at {self.low:.0f} in flight, {self.high_seconds:.2f} s at {self.high:.0f}"


@define(kw_only=True)
class LatencyBaseline:
    """The average latency, and the load and latency that new groups are compared with."""

    mean: float | None = None
    """Running average of the seconds of a success."""
    latest: deque[float] = field(factory=lambda: deque[float](maxlen=SEVERAL * WINDOW))
    """Seconds of the latest successes. Many, because the last calls of a run are those that take longest."""
    group: Group | None = None
    """The group of the next start."""
    baseline: tuple[float, float] | None = None
    """Load and latency that new groups are compared with."""
    newest: tuple[float, float] = 0.0, 0.0
    """Load and latency of the newest group."""

    def group_for_start(self, order: int, limit: int, last_lowered: int) -> Group:
        """Return the group of a start; a group that began before the limit was last lowered is not continued."""
        group = self.group
        if group is None or group.start_count == group.size or group.first_start <= last_lowered:
            group = self.group = Group(first_start=order, size=min(max(limit, WINDOW), UNPROVEN_LIMIT))
        group.start_count += 1
        return group

    @property
    def median(self) -> float:
        """The median seconds of the latest successes; 0 before the first."""
        return sorted(self.latest)[len(self.latest) // 2] if self.latest else 0.0

    def record_success(self, elapsed: float) -> None:
        """Update the average."""
        self.latest.append(elapsed)
        self.mean = elapsed if self.mean is None else self.mean + SMOOTHING * (elapsed - self.mean)

    def record_end(self, start: Start, elapsed: float | None, last_lowered: int) -> LoadComparison | None:
        """Add an attempt that ended to its group; return the comparison if that completes the group and there is one.

        `elapsed` is None if it does not count for the latency. Groups that began before the start `last_lowered` are ignored:
        they ran under another limit.
        """
        group = start.group
        if elapsed is None:
            group.start_count -= 1  # Another start takes its place if the group is still open.
            group.size -= group is not self.group
        else:
            group.seconds += elapsed
            group.load += start.in_flight
            group.limit += start.limit
            group.samples += 1
        # If something other than the limit delayed starts, the load depended on the latency, not the other way round.
        if (
            group.is_evaluated
            or group.samples < max(group.size - group.size // _SLOW_PART, MANY)
            or group.first_start <= last_lowered
            or group.load < BUSY_SHARE * group.limit
        ):
            return None
        group.is_evaluated = True
        self.newest = group.load / group.samples, group.seconds / group.samples
        return self._compare()

    def _compare(self) -> LoadComparison | None:
        """Compare the newest group with the baseline; it is the new baseline if the load is the same."""
        if self.baseline is None or self._is_same_load():
            self.restart()
            return None
        low, high = sorted((self.baseline, self.newest))
        if CLEARLY_MORE * low[0] > high[0]:
            return None  # Neither the same load nor clearly another one.
        return LoadComparison(*low, *high, newest_is_high=high is self.newest)

    def _is_same_load(self) -> bool:
        low, high = sorted((self.newest[0], self.newest[0] if self.baseline is None else self.baseline[0]))
        return high < (1 + _SAME) * low

    def refresh(self) -> None:
        """Before another load is tried: make the newest group the baseline, unless there is none yet, and begin a group.

        A group with calls at both loads would become the baseline, too near to the other load for any comparison.
        """
        self.group = None
        if self.baseline is not None:
            self.restart()

    def restart(self) -> None:
        """Make the newest group the baseline."""
        self.baseline = self.newest
