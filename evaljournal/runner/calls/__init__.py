"""Calls: how one output is obtained from a function, an endpoint, a chat model, a command, or a record.

All have one interface, `Task`: called with an input, a task returns an output or raises. The engine measures, retries and
records, and assumes nothing else about where a task runs. Start with `function`, the simplest task, then `chat`.

    dialects   how requests and replies of an API are written and read; pure
    http       the HTTP client and server, with bounds for whatever a reply may contain
    batches    the batch APIs of providers: another transport for the requests of a chat model
    usage, prices   what a call has used, and what it cost
    notes      what a task reports about itself, and what a call asks for while it runs, such as its steps

It may import data, retries and secrets.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

import attrs

from evaljournal.journal.events import StepKind
from evaljournal.runner.calls.call_size import CallSize
from evaljournal.runner.data.case import Case

LateOutcome = Literal["succeeded", "failed"]
"""How an abandoned call ended."""

OnLateResult = Callable[[LateOutcome], None]
WorkerEnd = Literal["worker_died", "worker_lost"]


class WorkerEnded(Exception):
    """The worker that ran a call ended before the call was complete; raised by tasks and scorers that run elsewhere."""

    def __init__(self, reason: WorkerEnd, detail: str) -> None:
        super().__init__(f"{reason.replace('_', ' ')}: {detail}")
        self.reason: WorkerEnd = reason
        """`worker_died`: it was the only call in the worker, and is probably the cause. `worker_lost`: it may not be."""
        self.detail = detail


@attrs.frozen
class ReportedStep:
    """A step that the reply of an endpoint describes; it is never reused."""

    id: str
    parent: str
    """Id of the step that called it; empty or unknown: the task itself."""
    name: str
    kind: StepKind
    start: float
    """In seconds; only the order of the starts is used."""
    elapsed: float
    """In seconds."""
    input: Any
    output: Any
    usage: Mapping[str, int] | None


class TrialInput(Protocol):
    """The trial that a task is called for."""

    @property
    def trial(self) -> str:
        """Its id: the same for all attempts, in all sessions."""
        ...

    @property
    def case(self) -> Case: ...


class Task(Protocol):
    @property
    def takes_trial(self) -> bool:
        """Whether it is called with a `TrialInput` instead of the case's input."""
        ...

    def call(self, value: Any, on_late: OnLateResult, /) -> Awaitable[Any]:
        """Return an output, or raise; `on_late` is called if the call is abandoned and ends later."""
        ...


class WrappedTask:
    def __init__(
        self, task: Task, call: Callable[[Task, Any, OnLateResult], Awaitable[Any]], *, takes_trial: bool = True
    ) -> None:
        """`call` is called with the inner task, and with the trial or, without `takes_trial`, what that task takes."""
        self.takes_trial = takes_trial
        self._task = task
        self.call = partial(call, task)
        self.request = getattr(task, "request", None)
        self.loop = getattr(task, "loop", "trio")
        """The event loop of the task; None for a plain function."""

    @property
    def blocking_calls(self) -> int:
        """Number of consecutive calls, up to the last one, that blocked the event loop; see `FunctionTask`."""
        return getattr(self._task, "blocking_calls", 0)


@runtime_checkable
class OpenableTask(Protocol):
    """A task or a scorer that keeps resources, such as connections, open for a session."""

    def open_session(self, run: str, /) -> AbstractAsyncContextManager[Task]:
        """Open the task for a session of the run with this id; a scorer is called with a `ScorerInput`."""
        ...


@runtime_checkable
class Billed(Protocol):
    def check_price(self, case: Case, /) -> None:
        """Raise a `UsageError` if the model for a case has no price."""
        ...

    def estimate(self, case: Case, output_tokens: float | None, tier: str = "", /) -> Mapping[str, float]:
        """Return an upper estimate of the usage of one call: unit → amount, without the units that are unknown.

        `output_tokens` is the estimated length of the output that a scorer is called with; None if that is unknown. `tier` is
        the service tier, such as `batch`.
        """
        ...


@runtime_checkable
class Sized(Protocol):
    """A task or a scorer whose attempts begin with a model call of a known size."""

    def call_size(self, value: Any, /) -> CallSize:
        """Return the size of the first call for a case, or for the input of a scorer."""
        ...


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a function, or an object with `__call__`, is a coroutine function."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
