"""An attempt in flight, as the adaptive policy keeps it."""

from attrs import define


@define(kw_only=True)
class Group:
    """Consecutive attempts whose latencies are evaluated together."""

    first_start: int
    """The order of its first start."""
    size: int
    """Number of starts whose latency counts or may still count."""
    start_count: int = 0
    is_evaluated: bool = False
    seconds: float = 0.0
    """Sum over the samples."""
    load: int = 0
    """Sum over the samples of the attempts in flight when they started."""
    limit: int = 0
    """Sum over the samples of the limit in force then."""
    samples: int = 0


@define
class Wave:
    """Attempts that started at about the same time, because others had ended together."""

    t: float
    load: int = 0
    """Attempts in flight once all of them had started."""


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
    """The limit in force."""
    group: Group
    wave: Wave
    probe: bool = False
    """Whether it probes an unavailable endpoint."""
    is_accepted: bool = False
    """Whether it was answered, or has been in flight for longer than failures take."""
    is_repeated: bool = False
    """Whether it and the trial's previous attempt were rate limited, while calls between the two were accepted."""
