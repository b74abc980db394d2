"""Which rate limit a task and its scorers count for, and how many calls at one time each may make by default."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, runtime_checkable

from journal.events import SCORER_PREFIX
from runner.concurrency import Identity
from runner.scorers.scorer import Scorer, is_async

ASYNC_SLOTS: Final = 100
"""Slots of endpoints, chat models and async functions."""
THREAD_SLOTS: Final = 32
"""Slots of plain functions, each of which takes a thread."""


@runtime_checkable
class Identified(Protocol):
    """A task or a scorer that knows the endpoint and the API key of its calls."""

    @property
    def rate_limit_identity(self) -> str:
        """The same for all calls that count for the same rate limit; to be kept in memory only."""
        ...


def default_slots(called: Callable[..., Any]) -> int:
    """Return how many calls of a task or a scorer are made at one time unless the user sets `slots`."""
    slots = getattr(called, "default_slots", None)
    if isinstance(slots, int):
        return slots
    return ASYNC_SLOTS if is_async(called) else THREAD_SLOTS


def scorer_keys(scorers: Iterable[Scorer], task: object, limit_key: str | None) -> dict[str, str]:
    """Return the rate-limit keys of scorers by their names.

    Those that call the same endpoint with the same API key share one: that of the task, or that of the first of them.
    """
    known: dict[str | None, str] = {} if limit_key is not None else {_identity(task): ""}
    known.pop(None, None)
    keys: dict[str, str] = {}
    for scorer in scorers:
        identity, own = _identity(scorer.function), f"{SCORER_PREFIX}{scorer.name}"
        keys[scorer.name] = own if identity is None else known.setdefault(identity, own)
    return keys


def _identity(called: object) -> str | None:
    return called.rate_limit_identity if isinstance(called, Identified) else None


def scorer_slots(scorers: Mapping[str, Scorer], task: object, limit_key: str | None, slots: int | None) -> dict[str, int]:
    """Return the limits of those scorers that have a rate-limit key of their own, by their names."""
    keys = scorer_keys(scorers.values(), task, limit_key)
    return {
        name: slots or default_slots(scorer.function)
        for name, scorer in scorers.items()
        if not scorer.is_local and keys[name] == f"{SCORER_PREFIX}{name}"
    }


def shared_identity(key: str, task: object, scorers: Mapping[str, Scorer], limit_key: str | None) -> Identity | None:
    """Return what tells whose rate limit a lane is about, across the runs of a process; None if no run may share it."""
    if key.startswith(SCORER_PREFIX) and key.removeprefix(SCORER_PREFIX) in scorers:
        identity = _identity(scorers[key.removeprefix(SCORER_PREFIX)].function)
        return None if identity is None else ("endpoint", identity)
    identity = _identity(task)
    if limit_key is not None:
        return "limit_key", limit_key, key, identity
    return None if identity is None else ("endpoint", identity)
