"""The sessions of a run, and the changes that each adopted."""

from collections.abc import Iterator
from typing import Final

import attrs

from journal.events import RunStarted

PINNED: Final = ("evaluation", "task_fingerprint", "dataset_fingerprint", "scorers")
"""The fields of `RunStarted` that may change only if the user adopts the change."""


def adopted_changes(before: RunStarted, now: RunStarted) -> Iterator[str]:
    """Yield what differs between two definitions: `task`, `cases`, `scorer exact (new)`."""
    names = {"evaluation": "name", "task_fingerprint": "task", "dataset_fingerprint": "cases"}
    yield from (name for field, name in names.items() if getattr(before, field) != getattr(now, field))
    old, new = dict(before.scorers), dict(now.scorers)
    for scorer in {**old, **new}:
        if old.get(scorer) != new.get(scorer):
            change = " (new)" if scorer not in old else " (removed)" if scorer not in new else ""
            yield f"scorer {scorer}{change}"


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
    adopted: tuple[str, ...] = ()
    """What had changed since the previous session: `task`, `cases`, `scorer exact`."""
