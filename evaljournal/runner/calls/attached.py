"""What belongs to the call in flight in a context, and is made when its code asks for it for the first time.

A task may record steps, but most record none. So the executor attaches only who makes what is asked for, and a call that asks
for nothing pays nothing. It is the same in all contexts that are copied from that of the call: in its threads and on other
event loops, also after the call has ended.
"""

import threading
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar

from evaljournal.runner.calls import ReportedStep
from evaljournal.runner.calls.call_size import CallSize

T = TypeVar("T")

Attachments = tuple[Callable[[type], Any], dict[type, Any]]
"""Who makes what a call asks for (None: there is none), and what was made."""

_attachments: Final[ContextVar[Attachments | None]] = ContextVar("evaljournal_attachments", default=None)
_making: Final = threading.Lock()


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
    return _none, objects


def _none(_: type) -> None:
    return None


attachments: Final[Callable[[], Attachments | None]] = _attachments.get
"""Return the attachments of this context."""
set_attachments: Final[Callable[[Attachments | None], object]] = _attachments.set
"""Set what belongs to the calls in this context from now on; None: nothing."""


class StepRecorder(Protocol):
    """Records what a task does inside its call, as steps of the attempt in flight."""

    async def model_step(
        self, name: str, request: Any, call: Callable[[], Awaitable[Any]], usage: Callable[[], Any], size: CallSize
    ) -> Any:
        """Make a model call as a step; see the function of this name."""
        ...

    def record_steps(self, steps: Sequence[ReportedStep], duration: float) -> None:
        """Record steps that were executed elsewhere; see the function of this name."""
        ...


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
