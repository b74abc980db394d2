"""How the function is called: where, with which input, and what is kept of what comes back."""

import contextvars
from collections.abc import Awaitable, Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import outcome
import trio

from runner.executors.results import ResultCollector
from runner.signals import POLL_INTERVAL, is_from_signal
from runner.tasks import OnLateResult, Task, TrialInput


async def awaited(value: Awaitable[Any]) -> Any:
    """Wait for what a plain function has returned instead of its result: `lambda prompt: generate(prompt)` does that."""
    return await value


class InputTask:
    """Asks the function with the input that a trial stands for, and lays down the very object that comes back."""

    takes_trial: bool = True

    def __init__(
        self, function: Task, awaiting: Task, given: dict[str, Any], ledger: ResultCollector, *, journaled: bool
    ) -> None:
        self._function = function
        self._awaiting = awaiting
        self._given = given
        self._ledger = ledger
        self._journaled = journaled

    async def call(self, asked: TrialInput, late: OnLateResult) -> Any:
        """Call the function; what the journal is not to keep, it is not shown."""
        trial = asked.trial
        try:
            output = await self._function.call(self._given[trial], late)
            if hasattr(type(output), "__await__"):
                output = await self._awaiting.call(output, late)
        except trio.Cancelled:
            raise
        except BaseException as exc:
            self._ledger.raised[trial] = exc
            raise
        self._ledger.returned[trial] = output
        return output if self._journaled else None


class CallAborted(BaseException):
    """Raised inside a function that is called in the main thread, and that the run waits for no longer."""


class MainThreadCaller:
    """Where calls are laid by a run in another thread, and made by the one that waits for its results.

    A plain function may depend on the thread that it is called in: a connection to a database, a tool's own loop.
    """

    takes_trial: bool = False

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._is_calling = False
        self.is_left = False
        """Whether the run waits no longer for the call that is being made."""
        self.leave: Callable[[], None] = lambda: None
        """Called then, in the run's thread."""

    async def call(self, value: Any, late: OnLateResult) -> Any:
        """Lay down a call, and wait until it is made."""
        task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()
        context = contextvars.copy_context()
        is_left = False

        def call() -> None:
            result = self._made(lambda: context.run(self._function, value))
            if isinstance(result, outcome.Error) and is_from_signal(result.error):
                raise result.error
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(deliver, result)

        def deliver(result: outcome.Outcome[Any]) -> None:
            if is_left:
                late("succeeded" if isinstance(result, outcome.Value) else "failed")
            elif not (isinstance(result, outcome.Error) and isinstance(result.error, CallAborted)):
                trio.lowlevel.reschedule(task, result)
            # Who was cut off before the run came to leave it says nothing: the run is about to.

        def abort(_: object) -> trio.lowlevel.Abort:
            nonlocal is_left
            is_left = self.is_left = True
            self.leave()
            return trio.lowlevel.Abort.SUCCEEDED

        self._calls.put(call)
        return await trio.lowlevel.wait_task_rescheduled(abort)

    def _made(self, call: Callable[[], Any]) -> outcome.Outcome[Any]:
        try:
            self._is_calling = True
            result: outcome.Outcome[Any] = outcome.capture(call)
            self._is_calling = False
        except CallAborted as exc:  # It came a moment too late for the function itself.
            result = outcome.Error(exc)
        return result

    def serve(self) -> None:
        """Make all calls, until there will be no more."""
        while True:
            try:
                call = self._calls.get(timeout=POLL_INTERVAL)
            except Empty:
                continue
            if call is None:
                return
            call()

    def close(self) -> None:
        """Say that there will be no more."""
        self._calls.put(None)

    def cut_off(self) -> None:
        """End the call that is being made; for a signal's handler, which runs in the midst of it."""
        if self._is_calling:
            self._is_calling = False
            raise CallAborted
