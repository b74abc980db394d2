"""What the policy remembers of an attempt in flight."""

from attrs import define


@define(kw_only=True)
class Group:
    """Attempts that started one after another, whose latencies are judged together."""

    first: int
    """Its first start."""
    size: int
    """Starts that say something about latency, or may do so yet."""
    started: int = 0
    is_judged: bool = False
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
    """Its place in the order of starts, from 1. Endings come in any order, so causes are told apart by this."""
    t: float
    in_flight: int
    """Attempts in flight with it, itself included, less those that turned out to be rate limited."""
    limit: int
    """The limit in force."""
    group: Group
    wave: Wave
    probe: bool = False
    """It probes an unavailable endpoint."""
    is_accepted: bool = False
    """It was answered, or outlived the time in which failures come back."""
    is_repeated: bool = False
    """It was rate limited like the trial's attempt before, and calls between the two were accepted."""
