"""Dispatch of events to methods by name: an event of type `trial_scored` is applied by the method `_on_trial_scored`."""

from collections.abc import Callable
from typing import Any

from evaljournal.journal import Event
from evaljournal.journal.format.codec import TYPE_NAMES

_PREFIX = "_on_"


def handlers(cls: type) -> dict[type[Event], Callable[..., Any]]:
    """Return event type → the method of a class that applies it; raise if a method names no event type."""
    methods = {name.removeprefix(_PREFIX): getattr(cls, name) for name in dir(cls) if name.startswith(_PREFIX)}
    if unknown_names := methods.keys() - TYPE_NAMES.values():
        raise TypeError(f"{cls.__name__} has handlers of unknown events: {', '.join(sorted(unknown_names))}")
    return {kind: methods[name] for kind, name in TYPE_NAMES.items() if name in methods}
