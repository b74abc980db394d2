"""An attempt in flight, as the adaptive policy keeps it."""

from attrs import define


@define(kw_only=True)
class Group:
    """Consecutive attempts whose latencies are evaluated together."""

    first_start: int
    size: int
    """Starts whose latency counts or may still count."""
    start_count: int = 0
    is_evaluated: bool = False
    samples: int = 0
    seconds: float = 0.0
    """Sum over the samples, as the next two."""
    load: int = 0
    limit: int = 0


@define(kw_only=True)
class Start:
    """An attempt at the moment it started."""

    trial: str
    order: int
    """Its number in the order of starts, from 1; attempts may end in any order."""
    t: float
    in_flight: int
    """Attempts in flight, itself included, without those that were rate limited later."""
    limit: int
    group: Group
    probe: bool = False
    is_accepted: bool = False
    """Whether it was answered, or has been in flight for longer than failures take."""
