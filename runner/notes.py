"""Notes: what a task reports about its attempt besides its output, such as tokens or cost.

A context variable holds where notes go, so that they reach the right attempt from threads and other event loops too.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from journal.events import OWN_NOTE
from runner.errors import UsageError

Sink = Callable[[dict[str, Any]], None]
"""Takes the values of one `note`; may be called from another thread, and after the attempt has ended."""

_sink: ContextVar[Sink | None] = ContextVar("evaljournal_notes", default=None)


def note(**values: Any) -> None:
    """Record values with the current attempt: `note(tokens=112, cost=0.0004, model="small")`.

    Every call is recorded. Numbers, also those in a mapping `usage`, are summed in the run's usage. Outside an attempt, as in a
    unit test that calls the task, nothing is recorded.
    """
    for name in values:
        if name.startswith(OWN_NOTE):
            raise UsageError(f"note({name}=…): names that start with {OWN_NOTE!r} are reserved")
    _send(values)


def engine_note(**values: Any) -> None:
    """Record values under reserved names: only these have a meaning for the engine and its views."""
    _send({f"{OWN_NOTE}{name}": value for name, value in values.items()})


def _send(values: dict[str, Any]) -> None:
    sink = _sink.get()
    if sink is not None:
        sink(values)


def set_note_sink(sink: Sink) -> None:
    """Send the notes of this context to a sink from now on."""
    _sink.set(sink)
