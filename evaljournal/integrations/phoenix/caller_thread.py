"""Calls of an executor's function: with the input of a trial, and, for `SyncExecutor`, in the caller's thread."""

import contextvars
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import attrs
import outcome
import trio

from evaljournal.integrations.phoenix.results import ResultCollector
from evaljournal.runner.calls import OnLateResult, Task, TrialInput
from evaljournal.runner.calls.function import Loop, detect_loops
from evaljournal.runner.signals import POLL_INTERVAL, is_from_signal


async def await_value(value: Awaitable[Any]) -> Any:
    """Await the coroutine that a plain function returned, as `lambda prompt: generate(prompt)` does."""
    return await value


@attrs.frozen
class InputTask:
    """Calls the function with the input of a trial, and keeps the object that the function returns or raises."""

    takes_trial = True

    _function: Task
    _awaiters: Mapping[Loop, Task]
    """Event loop → task that awaits a coroutine in it."""
    _inputs: Mapping[str, Any]
    _results: ResultCollector
    _is_journaled: bool

    async def call(self, trial_input: TrialInput, on_late: OnLateResult, /) -> Any:
        """Call the function; without a journal, nothing is returned to be recorded."""
        trial = trial_input.trial
        try:
            output = await self._function.call(self._inputs[trial], on_late)
            if hasattr(type(output), "__await__"):
                output = await self._awaiters[detect_loops(output)[0]].call(output, on_late)
        except trio.Cancelled:
            raise
        except BaseException as exc:
            self._results.exceptions[trial] = exc
            raise
        self._results.return_values[trial] = output
        return output if self._is_journaled else None


class CallAborted(BaseException):
    """Raised inside a function that runs in the main thread when the run no longer waits for it."""


class CallerThreadTask:
    """Queues the calls of a run, which has its own thread, and makes them in the thread that waits for the results.

    A plain function may depend on its thread, such as one with a database connection or an event loop.
    """

    takes_trial: bool = False

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._is_calling = False
        self.is_abandoned = False
        """Whether the run no longer waits for the current call."""
        self.on_abandon: Callable[[], None] = lambda: None
        """Called in the run's thread when it no longer waits for the current call."""

    async def call(self, value: Any, on_late: OnLateResult) -> Any:
        task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()
        context = contextvars.copy_context()
        is_abandoned = False

        def call() -> None:
            result = self._capture(lambda: context.run(self._function, value))
            if isinstance(result, outcome.Error) and is_from_signal(result.error):
                raise result.error
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(deliver, result)

        def deliver(result: outcome.Outcome[Any]) -> None:
            if is_abandoned:
                on_late("succeeded" if isinstance(result, outcome.Value) else "failed")
            elif not (isinstance(result, outcome.Error) and isinstance(result.error, CallAborted)):
                trio.lowlevel.reschedule(task, result)
            # An aborted call has no result; the run is about to abandon it.

        def abort(_: object) -> trio.lowlevel.Abort:
            nonlocal is_abandoned
            is_abandoned = self.is_abandoned = True
            self.on_abandon()
            return trio.lowlevel.Abort.SUCCEEDED

        self._calls.put(call)
        return await trio.lowlevel.wait_task_rescheduled(abort)

    def _capture(self, call: Callable[[], Any]) -> outcome.Outcome[Any]:
        try:
            self._is_calling = True
            result: outcome.Outcome[Any] = outcome.capture(call)
            self._is_calling = False
        except CallAborted as exc:  # Raised just after the function had returned.
            result = outcome.Error(exc)
        return result

    def serve(self) -> None:
        """Make the queued calls until the queue is closed."""
        while True:
            try:
                call = self._calls.get(timeout=POLL_INTERVAL)
            except Empty:
                continue
            if call is None:
                return
            call()

    def close(self) -> None:
        """End `serve`."""
        self._calls.put(None)

    def abort_call(self) -> None:
        """Abort the current call; for a signal handler, which runs in the same thread."""
        if self._is_calling:
            self._is_calling = False
            raise CallAborted
