"""What a task says about its attempt besides its answer: tokens, cost, whatever is worth keeping.

A task does not know which attempt it is. A context variable does, and it follows the task into threads and other loops.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

Sink = Callable[[dict[str, Any]], None]
"""Takes the values of one `note`; it may be called from another thread, and after the attempt has ended."""

_sink: ContextVar[Sink | None] = ContextVar("evaljournal_notes", default=None)


def note(**values: Any) -> None:
    """Record values with the current attempt: `note(tokens=112, cost=0.0004, model="small")`.

    Each call is kept by itself; nothing is overwritten or added up. Outside an attempt, as when a task is called by
    hand or by a unit test, nothing is recorded and nothing goes wrong.
    """
    sink = _sink.get()
    if sink is not None:
        sink(values)


def set_note_sink(sink: Sink) -> None:
    """From here on, send what is noted in this context to a sink; for the one who starts an attempt."""
    _sink.set(sink)
