"""One attempt: call the task, wait, cut it off when its time is over, and turn whatever comes into a value.

This is the one place where an attempt is started. Nobody else may assume that a task runs in this process.
"""

import contextlib
import math
import threading
from collections.abc import Callable
from typing import Any

import attrs
import trio

from runner.notes import Sink, notes_to
from runner.tasks import Ending, Task


@attrs.frozen
class Answered:
    """The task gave an output in time."""

    output: Any


@attrs.frozen
class Raised:
    """The task raised."""

    exc: BaseException


@attrs.frozen
class OutOfTime:
    """The attempt outlived its limit."""

    came: Ending | None
    """How it came to its end after all, where it did not let itself be cancelled."""


@attrs.frozen
class Cut:
    """The run was stopped, and the attempt with it."""


Outcome = Answered | Raised | OutOfTime | Cut


class Flight:
    """An attempt in the air, which can be cut off from outside."""

    def __init__(self) -> None:
        self._scope: trio.CancelScope | None = None
        self._is_cut = False

    def cut(self) -> None:
        """End it now; its outcome is `Cut`."""
        self._is_cut = True
        if self._scope is not None:
            self._scope.cancel()

    def _new_scope(self, seconds: float | None) -> trio.CancelScope:
        deadline = math.inf if seconds is None else trio.current_time() + seconds
        scope = self._scope = trio.CancelScope(deadline=-math.inf if self._is_cut else deadline)
        return scope

    async def rest(self, seconds: float) -> bool:
        """Wait between two tries; say whether it was for so long, or whether it was cut off."""
        with self._new_scope(None):
            await trio.sleep(seconds)
            return True
        return False

    async def ask(self, task: Task, value: Any, *, limit: float | None, sink: Sink, late: Callable[[Ending], None]) -> Outcome:
        """Ask a task for its answer to a value."""
        outcome: Outcome | None = None
        with self._new_scope(limit) as scope, notes_to(sink):
            try:
                outcome = Answered(await task.ask(value, late))
            except (trio.Cancelled, KeyboardInterrupt):
                raise
            except BaseException as exc:  # noqa: BLE001  # whatever the user's code raises is a fact about this attempt
                outcome = Raised(exc)
        if self._is_cut and not isinstance(outcome, Answered):
            return Cut()
        if outcome is None or (scope.cancel_called and not self._is_cut):
            # There are two ways to be out of time: to be cancelled, and to come back too late because one was not.
            return OutOfTime(None if outcome is None else "succeeded" if isinstance(outcome, Answered) else "failed")
        return outcome


class Home:
    """The thread and the loop that a run lives in, so that what comes from elsewhere can be brought there."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._token = trio.lowlevel.current_trio_token()

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function at home, now or (from another thread or loop) soon."""
        if threading.get_ident() == self._thread:
            function(*arguments)
            return
        with contextlib.suppress(trio.RunFinishedError):  # A thread that was abandoned, long after its run.
            self._token.run_sync_soon(function, *arguments)
