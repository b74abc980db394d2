"""The sessions of a run: the changes that each adopted, and the wall time that they cover."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

import attrs

from evaljournal.journal.events import RunStarted
from evaljournal.replay.definition import changed_files, variant_fingerprints

PINNED: Final = ("evaluation", "task_fingerprint", "dataset_fingerprint", "scorers")
"""The fields of `RunStarted` that may change only if the user adopts the change."""


def adopted_changes(old_start: RunStarted, new_start: RunStarted) -> Iterator[str]:
    """Yield what differs between two definitions: `task`, `cases`, `file a.json`, `scorer b (new)`, `variant c (removed)`."""
    names = {"evaluation": "name", "task_fingerprint": "task", "dataset_fingerprint": "cases"}
    yield from (name for field, name in names.items() if getattr(old_start, field) != getattr(new_start, field))
    yield from (f"file {path}" for path in changed_files(old_start.definition, new_start.definition))
    yield from _changed_members("scorer", dict(old_start.scorers), dict(new_start.scorers))
    fingerprints = variant_fingerprints(old_start.definition), variant_fingerprints(new_start.definition)
    yield from _changed_members("variant", *fingerprints)


def _changed_members(kind: str, old_members: Mapping[str, str], new_members: Mapping[str, str]) -> Iterator[str]:
    for name in {**old_members, **new_members}:
        if old_members.get(name) != new_members.get(name):
            change = " (new)" if name not in old_members else " (removed)" if name not in new_members else ""
            yield f"{kind} {name}{change}"


@attrs.define
class Session:
    """One session: one process lifetime of the run."""

    number: int
    seq: int
    at: str
    pid: int
    host: str
    outcome: str = ""
    """`finished`, or the reason it stopped; empty while it runs or if it crashed."""
    shard: str = ""
    """The shard that it belongs to, in a merged run."""
    adopted: tuple[str, ...] = ()
    """The changes since the previous session: `task`, `cases`, `file prompt.json`, `scorer exact`."""


class WallTime:
    """The wall time that the sessions of a merged run cover; sessions of different shards may overlap."""

    def __init__(self) -> None:
        self._first_at = ""
        """Wall time of the first session; the seconds below count from it."""
        self._start = 0.0
        """When `t` of the current session was 0."""
        self._periods: list[tuple[float, float]] = []
        """Start and end of each period covered by earlier sessions, without overlaps, in order."""

    def begin(self, at: str, t: float) -> None:
        """Start a session, given the times of its first record."""
        self._first_at = self._first_at or at
        self._start = seconds_between(self._first_at, at) - t

    def end(self, t: float) -> None:
        """End the session."""
        self._periods = self._with_session(t)

    def seconds(self, t: float) -> float:
        """Return the seconds covered up to time `t` of the current session."""
        return sum(end - start for start, end in self._with_session(t))

    def _with_session(self, t: float) -> list[tuple[float, float]]:
        periods: list[tuple[float, float]] = []
        for start, end in sorted([*self._periods, (self._start, self._start + max(0.0, t))]):
            if periods and start <= periods[-1][1]:
                periods[-1] = periods[-1][0], max(periods[-1][1], end)
            else:
                periods.append((start, end))
        return periods


def seconds_between(start: str, end: str) -> float:
    """Return the seconds between two wall times; 0 if one is invalid."""
    try:
        return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    except (ValueError, TypeError):
        return 0.0
