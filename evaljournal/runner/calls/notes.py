"""Notes: values that a task reports about its attempt besides its output, such as tokens or cost.

A context variable holds the function that records them, so that they reach their attempt from threads and other event loops.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

from evaljournal.journal.events import NOTE_PREFIX, StepPhase
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.limit_headers import limit_headers

Sink = Callable[[dict[str, Any]], None]
"""Takes the values of one `note`; may be called from another thread, and after the attempt has ended."""

REPLY_NOTE: Final = f"{NOTE_PREFIX}reply"
"""What `note_reply` sends; it is not recorded."""
PHASE_NOTE: Final = f"{NOTE_PREFIX}phase"
"""What `start_phase` sends; it is not recorded."""

_sink: ContextVar[Sink | None] = ContextVar("evaljournal_notes", default=None)


def note(**values: Any) -> None:
    """Record values with the current attempt: `note(tokens=112, cost=0.0004, model="small")`.

    Every call is recorded. Numbers, including those in a `usage` mapping, are summed in the run's usage; a negative cost is
    rejected. Outside an attempt, as in a unit test that calls the task, nothing is recorded.
    """
    for name in values:
        if name.startswith(NOTE_PREFIX):
            raise UsageError(f"note({name}=…): names that start with {NOTE_PREFIX!r} are reserved")
    usage = values.get("usage")
    for amounts in (values, usage if isinstance(usage, Mapping) else {}):
        cost = amounts.get("cost")
        if isinstance(cost, int | float) and cost < 0:
            raise UsageError(f"note(cost={cost!r}): a cost cannot be negative")
    _send(values)


def engine_note(**values: Any) -> None:
    """Record values under reserved names, which the engine and the views interpret."""
    sink = _sink.get()
    if sink is not None:
        sink({f"{NOTE_PREFIX}{name}": value for name, value in values.items()})


def note_reply(status: int, headers: Mapping[str, str]) -> None:
    """Pass the head of a reply to the known limits, if it says something about them; names of headers are in lower case."""
    sink = _sink.get()
    if sink is not None and (relevant_headers := limit_headers(status, headers)) is not None:
        sink({REPLY_NOTE: {"status": status, "headers": relevant_headers}})


def start_phase(phase: StepPhase) -> None:
    """Report in the loop of the run, or of the worker, that a phase of the attempt starts, which has its own timeout."""
    _send({PHASE_NOTE: phase})


def _send(values: dict[str, Any]) -> None:
    sink = _sink.get()
    if sink is not None:
        sink(values)


def note_sink() -> Sink | None:
    """Return the sink of this context; None outside an attempt."""
    return _sink.get()


set_note_sink: Final[Callable[[Sink], object]] = _sink.set
"""Sends the notes of this context to a sink from now on."""
