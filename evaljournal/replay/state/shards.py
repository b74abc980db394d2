"""Shards: runs that each contain a part of the cases, and the run that they were merged into."""

import bisect
import itertools
import re
from collections.abc import Iterator
from typing import Any, Final, Self

import attrs

from evaljournal.journal.events import RunStarted

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


class MergedShards:
    """The shards of a merged run; empty for any other run."""

    def __init__(self, run_started: RunStarted | None = None) -> None:
        entries = list(_valid_entries(run_started.merged_from if run_started is not None else None))
        self.shards = [shard for shard, _, _ in entries]
        """In the order of their sessions."""
        self._ends = list(itertools.accumulate(sessions for _, sessions, _ in entries))
        """The last session of each shard."""
        self._boundaries = frozenset({0, *self._ends})
        self._origins = [origin for _, _, origin in entries]
        """The field `forked_from` of each shard."""

    def __bool__(self) -> bool:
        return bool(self.shards)

    def of_session(self, number: int) -> Shard | None:
        """Return the shard that a session belongs to; None if it belongs to the merged run itself."""
        index = bisect.bisect_left(self._ends, number)
        return self.shards[index] if index < len(self.shards) else None

    @property
    def sessions(self) -> int:
        return self._ends[-1] if self._ends else 0

    def is_first(self, number: int) -> bool:
        """Whether a session is the first of the run, of its shard, or after all shards."""
        return number - 1 in self._boundaries

    def origins(self) -> Iterator[tuple[int, Any]]:
        """Yield the origins of shards that were forked, with the number of sessions before each shard."""
        for session_count, origin in zip([0, *self._ends], self._origins, strict=False):
            if origin is not None:
                yield session_count, origin


def _valid_entries(entries: object) -> Iterator[tuple[Shard, int, Any]]:
    """Yield shard, sessions and origin of each entry of `merged_from`; a foreign journal may have anything there."""
    for entry in entries if isinstance(entries, list) else ():
        fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
        sessions = fields.get("sessions", 0)
        try:
            shard = Shard.parse(fields.get("shard"))
        except ValueError:
            continue
        yield shard, max(0, sessions) if sessions.__class__ is int else 0, fields.get("forked_from")


def first_shards(merged_from: Any, sessions: int) -> Any:
    """Return `merged_from` of a run that contains only the first sessions of a merged run."""
    if not isinstance(merged_from, list):
        return merged_from
    entries, session_count = [], 0
    for entry in merged_from:
        count = next((count for _, count, _ in _valid_entries([entry])), 0)
        if session_count < sessions:
            entries.append(entry if session_count + count <= sessions else {**entry, "sessions": sessions - session_count})
        session_count += count
    return entries or None


def missing_shards(shards: list[Shard]) -> list[Shard]:
    """Return the other shards of the same cases."""
    count = shards[0].count if shards else 0
    numbers = {shard.number for shard in shards if shard.count == count}
    return [Shard(number, count) for number in range(1, count + 1) if number not in numbers]
