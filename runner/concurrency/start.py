"""What is remembered of an attempt in flight: its place in the order of starts, and how full it was then."""

from attrs import define


@define(kw_only=True)
class Begun:
    """An attempt at the moment it began."""

    trial: str
    order: int
    """Its place in the order of starts, from 1. Lessons are told apart by it, because endings come in any order."""
    t: float
    in_flight: int
    """How many were in flight with it, itself included; less those of them that turned out to be refused."""
    limit: int
    """The limit that was in force."""
    probe: bool = False
    """It was sent to see whether an ill endpoint is well again."""
