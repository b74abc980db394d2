"""Which rate limit a task and its scorers count for, and how many calls at one time each may make by default."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, runtime_checkable

from journal.events import SCORER
from runner.score import Scorer, is_async

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


def scorer_key(scorer: Scorer, task: object, limit_key: str | None) -> str:
    """Return the rate-limit key of a scorer: that of the task, if both call the same endpoint with the same API key."""
    own = _identity(scorer.function) if limit_key is None else None
    return "" if own is not None and own == _identity(task) else f"{SCORER}{scorer.name}"


def _identity(called: object) -> str | None:
    return called.rate_limit_identity if isinstance(called, Identified) else None


def scorer_slots(scorers: Mapping[str, Scorer], task: object, limit_key: str | None, slots: int | None) -> dict[str, int]:
    """Return the limits of those scorers that have a rate-limit key of their own, by their names."""
    return {
        name: slots or default_slots(scorer.function)
        for name, scorer in scorers.items()
        if not scorer.is_local and scorer_key(scorer, task, limit_key)
    }
