"""Shards: runs that contain a part of the cases each, and the run that they were merged into."""

import re
from collections.abc import Iterator
from typing import Any, Final, Self

import attrs

from journal.events import RunStarted

MAX_SHARDS: Final = 100_000
_SHARD: Final = re.compile(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", re.ASCII)


@attrs.frozen(order=True)
class Shard:
    """One of several parts of the cases, such as `3/8`."""

    number: int
    """From 1."""
    count: int

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse `3/8`; raise `ValueError` if it is not a shard."""
        match = _SHARD.fullmatch(text) if isinstance(text, str) else None
        if match is None or not int(match[1]) <= int(match[2]) <= MAX_SHARDS:
            raise ValueError(f"expected K/N, such as 3/8: shard K of N, from 1 to N (at most {MAX_SHARDS:,})")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@attrs.frozen
class MergedShard:
    """A shard in a merged run."""

    shard: Shard
    sessions: int
    """Number of its sessions; those of all shards follow one another."""


def merged_shards(started: RunStarted | None) -> list[MergedShard]:
    """Return the shards of a merged run, in the order of their sessions; an entry of a foreign journal may be invalid."""
    entries = started.merged_from if started is not None else None
    return list(_valid(entries)) if isinstance(entries, list) else []


def _valid(entries: list[Any]) -> Iterator[MergedShard]:
    for entry in entries:
        members: dict[str, Any] = entry if isinstance(entry, dict) else {}
        sessions = members.get("sessions")
        try:
            yield MergedShard(Shard.parse(members.get("shard")), sessions if isinstance(sessions, int) else 0)
        except ValueError:
            continue


def missing_shards(shards: list[Shard]) -> list[Shard]:
    """Return the shards that are not among these, which are parts of the same cases."""
    count = shards[0].count if shards else 0
    return sorted({Shard(number, count) for number in range(1, count + 1)} - set(shards))
