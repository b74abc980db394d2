"""Dispatch of events to methods by name: an event of type `trial_scored` is applied by the method `_trial_scored`."""

from collections.abc import Callable
from typing import Any

from journal import Event
from journal.codec import TYPE_NAMES


def handlers(cls: type) -> dict[type[Event], Callable[..., Any]]:
    """Return event type → the method of a class that applies it; other types are missing."""
    return {kind: getattr(cls, f"_{name}") for kind, name in TYPE_NAMES.items() if hasattr(cls, f"_{name}")}
