"""The sessions of a run, and the changes that each adopted."""

from collections.abc import Iterator, Mapping
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
    adopted: tuple[str, ...] = ()
    """What had changed since the previous session: `task`, `cases`, `scorer exact`."""
