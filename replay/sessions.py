"""The sessions of a run: the changes that each adopted, and the time that they take."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

import attrs

from journal.events import RunStarted
from replay.definition import variant_fingerprints

PINNED: Final = ("evaluation", "task_fingerprint", "dataset_fingerprint", "scorers")
"""The fields of `RunStarted` that may change only if the user adopts the change."""


def adopted_changes(before: RunStarted, now: RunStarted) -> Iterator[str]:
    """Yield what differs between two definitions: `task`, `cases`, `scorer exact (new)`, `variant mini (removed)`."""
    names = {"evaluation": "name", "task_fingerprint": "task", "dataset_fingerprint": "cases"}
    yield from (name for field, name in names.items() if getattr(before, field) != getattr(now, field))
    yield from _changed_members("scorer", dict(before.scorers), dict(now.scorers))
    yield from _changed_members("variant", variant_fingerprints(before.definition), variant_fingerprints(now.definition))


def _changed_members(kind: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            change = " (new)" if name not in old else " (removed)" if name not in new else ""
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
    """What had changed since the previous session: `task`, `cases`, `scorer exact`."""


class WallTime:
    """The wall time that the sessions of a merged run cover: those of different shards may overlap."""

    def __init__(self) -> None:
        self._first = ""
        """Wall time of the first session; the seconds below count from it."""
        self._start = 0.0
        """When `t` of the current session was 0."""
        self._covered: list[tuple[float, float]] = []
        """Start and end of the times covered by earlier sessions, disjoint and in order."""

    def begin(self, at: str, t: float) -> None:
        """Start a session, given the times of its first record."""
        self._first = self._first or at
        self._start = seconds_between(self._first, at) - t

    def end(self, t: float) -> None:
        """End the session."""
        self._covered = self._with_session(t)

    def seconds(self, t: float) -> float:
        """Return the seconds that are covered up to time `t` of the current session."""
        return sum(end - start for start, end in self._with_session(t))

    def _with_session(self, t: float) -> list[tuple[float, float]]:
        joined: list[tuple[float, float]] = []
        for start, end in sorted([*self._covered, (self._start, self._start + max(0.0, t))]):
            if joined and start <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(joined[-1][1], end)
            else:
                joined.append((start, end))
        return joined


def seconds_between(before: str, after: str) -> float:
    """Return the seconds between two wall times; 0 if one is invalid."""
    try:
        return (datetime.fromisoformat(after) - datetime.fromisoformat(before)).total_seconds()
    except (ValueError, TypeError):
        return 0.0
