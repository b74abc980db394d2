"""Notes: values that a task reports about its attempt besides its output, such as tokens or cost.

A context variable holds the function that records them, so that they reach their attempt from threads and other event loops.

**Attachments** are what belongs to the call in flight in a context, and is made when its code asks for it for the first time. A
task may record steps, but most record none. So the executor attaches only who makes what is asked for, and a call that asks for
nothing pays nothing. It is the same in all contexts that are copied from that of the call: in its threads and on other event
loops, also after the call has ended.
"""

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar

from evaljournal.journal.events import NOTE_PREFIX, StepPhase
from evaljournal.runner.calls import ReportedStep
from evaljournal.runner.calls.call_size import CallSize
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.limit_headers import limit_headers

Sink = Callable[[dict[str, Any]], None]
"""Takes the values of one `note`; may be called from another thread, and after the attempt has ended."""

REPLY_NOTE: Final = f"{NOTE_PREFIX}reply"
"""What `note_reply` sends; it is not recorded."""
PHASE_NOTE: Final = f"{NOTE_PREFIX}phase"
"""What `start_phase` sends; it is not recorded."""

_sink: ContextVar[Sink | None] = ContextVar("evaljournal_notes", default=None)

T = TypeVar("T")

Attachments = tuple[Callable[[type], Any], dict[type, Any]]
"""Who makes what a call asks for (None: there is none), and what was made."""

_attachments: Final[ContextVar[Attachments | None]] = ContextVar("evaljournal_attachments", default=None)
_making: Final = threading.Lock()


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
    """Report the head of a reply, if it says something about rate limits; names of headers are in lower case."""
    sink = _sink.get()
    if sink is not None and (relevant_headers := limit_headers(status, headers)) is not None:
        sink({REPLY_NOTE: {"status": status, "headers": relevant_headers}})


def start_phase(phase: StepPhase) -> None:
    """Report, in the loop that runs the attempt, that a phase of it starts, which has its own timeout."""
    _send({PHASE_NOTE: phase})


def _send(values: dict[str, Any]) -> None:
    sink = _sink.get()
    if sink is not None:
        sink(values)


note_sink: Final[Callable[[], Sink | None]] = _sink.get
"""Return the sink of this context; None outside an attempt."""
set_note_sink: Final[Callable[[Sink], object]] = _sink.set
"""Sends the notes of this context to a sink from now on."""


def attached(kind: type[T]) -> T | None:
    """Return what belongs to the call in this context; None outside a call, or if no layer has it. Call it from any thread."""
    attachments = _attachments.get()
    if attachments is None:
        return None

    make, objects = attachments
    if kind not in objects:
        with _making:
            if kind not in objects:
                objects[kind] = make(kind)
    value: T | None = objects[kind]
    return value


def attachments_of(objects: dict[type, Any]) -> Attachments:
    """Return attachments that are made already."""
    return (lambda _: None), objects


attachments: Final[Callable[[], Attachments | None]] = _attachments.get
set_attachments: Final[Callable[[Attachments | None], object]] = _attachments.set
"""Set what belongs to the calls in this context from now on; None: nothing."""


class StepRecorder(Protocol):
    """Records what a task does inside its call, as steps of the attempt in flight."""

    async def model_step(
        self, name: str, request: Any, call: Callable[[], Awaitable[Any]], usage: Callable[[], Any], size: CallSize
    ) -> Any: ...

    def record_steps(self, steps: Sequence[ReportedStep], duration: float) -> None: ...


async def model_step(
    name: str, request: Any, call: Callable[[], Awaitable[Any]], usage: Callable[[], Any], size: CallSize
) -> Any:
    """Make a model call as a step of the attempt; an earlier result for the same request may be returned instead.

    It waits for the known rate limits. `usage` returns the usage of the call after it. Outside an attempt, it is only made.
    """
    recorder = attached(StepRecorder)  # type: ignore[type-abstract]  # the key of what a layer makes
    return await (call() if recorder is None else recorder.model_step(name, request, call, usage, size))


def record_steps(steps: Sequence[ReportedStep], duration: float) -> None:
    """Record steps that were executed elsewhere, in the order of their ends, during a call that took `duration` seconds."""
    recorder = attached(StepRecorder)  # type: ignore[type-abstract]  # the key of what a layer makes
    if recorder is not None:
        recorder.record_steps(steps, duration)
