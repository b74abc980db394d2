"""Dispatch of events to methods by name: an event of type `trial_scored` is applied by the method `_on_trial_scored`.

A state consists of projections: objects that each answer one question, with one method per event that they need. The table
knows which of their methods an event calls. It promises two things:

- Methods of one event are called in a fixed order of the projections, whenever each of them was attached, because some read
  what others have just changed.
- A projection that is attached with its first event costs nothing before it, not even a check.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any

from evaljournal.journal.events import Event, Extension, Noted
from evaljournal.journal.format.codec import TYPE_NAMES

_PREFIX = "_on_"


def handlers(cls: type) -> dict[type[Event], Callable[..., Any]]:
    """Return event type → the method of a class that applies it; raise if a method names no event type."""
    methods = {name.removeprefix(_PREFIX): getattr(cls, name) for name in dir(cls) if name.startswith(_PREFIX)}
    if unknown_names := methods.keys() - TYPE_NAMES.values():
        raise TypeError(f"{cls.__name__} has handlers of unknown events: {', '.join(sorted(unknown_names))}")
    return {kind: methods[name] for kind, name in TYPE_NAMES.items() if name in methods}


class EventTable(dict[type[Event], tuple[MethodType, ...]]):
    """Event type → the bound methods that apply it, in order. Copies of a state have tables of their own."""

    def __init__(self, order: tuple[type, ...]) -> None:
        """`order` has the classes of the projections: of two methods, that of the earlier class is called first."""
        super().__init__(dict.fromkeys((*TYPE_NAMES, Extension), ()))
        self._order = order
        self.notes: dict[str, Callable[[Noted], None]] = {}
        """Name of a note → the method that applies it: notes are many kinds of events in one."""

    def attach(self, projection: object) -> None:
        """Call a projection for its events from now on; it may be attached already."""
        for kind, methods in self.items():
            self[kind] = tuple(method for method in methods if _projection_of(method) is not projection)
        for kind, method in handlers(type(projection)).items():
            self._add(kind, MethodType(method, projection))

    def attach_at(self, projection: object, *kinds: type[Event]) -> None:
        """Attach a projection with the first event of one of these types."""
        first_event = _FirstEvent(self, projection)
        for kind in kinds:
            self._add(kind, MethodType(_FirstEvent.attach, first_event))

    def detach(self, cls: type) -> None:
        for kind, methods in self.items():
            self[kind] = tuple(method for method in methods if type(method.__self__) is not cls)

    def _add(self, kind: type[Event], method: MethodType) -> None:
        methods = (*self[kind], method)
        self[kind] = tuple(sorted(methods, key=lambda method: self._order.index(type(_projection_of(method)))))


def _projection_of(method: MethodType) -> object:
    owner = method.__self__
    return owner.projection if isinstance(owner, _FirstEvent) else owner


class _FirstEvent:
    """Stands for a projection in the table until its first event."""

    def __init__(self, table: EventTable, projection: object) -> None:
        self.table = table
        self.projection = projection

    def attach(self, event: Event, record: Any) -> None:
        self.table.attach(self.projection)
        handlers(type(self.projection))[type(event)](self.projection, event, record)
