"""One attempt: call the task, wait, and turn whatever comes into a value, even that it was cut off.

This is the one place where an attempt is started. Nobody else may assume that a task runs in this process.
"""

import contextlib
import math
import threading
from collections.abc import Callable
from typing import Any, Final

import trio

from journal.events import fact
from runner.notes import Sink, set_note_sink
from runner.signals import is_from_signal
from runner.tasks import Ending, Task


@fact
class Answered:
    """The task gave an output in time."""

    output: Any


@fact
class Raised:
    """The task raised."""

    exc: BaseException


@fact
class OutOfTime:
    """The attempt outlived its limit."""

    came: Ending | None = None
    """How it came to its end after all, where it did not let itself be cancelled."""


@fact
class Cut:
    """The run was stopped, and the attempt with it."""


Landing = Answered | Raised | OutOfTime
"""How what was asked came back."""


class Flight:
    """What a slot has in the air, one thing after another, until it has to be cut off.

    One scope serves many attempts, for to enter one costs more than to record an event. Whoever asks does so inside
    `scope`. When that is cancelled, what was asked unwinds to there, `ending` says why, and a new flight is needed.
    The scope has no deadline, for to move one costs as much again, twice for every attempt: one watch keeps the time of all.
    """

    def __init__(self) -> None:
        self.scope: Final = trio.CancelScope()
        self.due = math.inf
        """When the time is over of what is in the air, in the seconds of whoever keeps it."""
        self.is_over = False
        """Whether nothing more can be asked in it."""
        self._is_cut = False

    def time_out(self) -> None:
        """End it, because what is in the air has had its time; it ends with `OutOfTime`."""
        self.due, self.is_over = math.inf, True
        self.scope.cancel()

    def cut(self) -> None:
        """End it now; what is in the air ends with `Cut`."""
        self._is_cut = self.is_over = True
        self.scope.cancel()

    @property
    def ending(self) -> OutOfTime | Cut:
        """What became of the attempt that was cancelled."""
        return Cut() if self._is_cut else OutOfTime()

    async def call(self, task: Task, value: Any, *, due: float, sink: Sink, late: Callable[[Ending], None]) -> Landing:
        """Ask a task for its answer to a value."""
        self.due = due
        set_note_sink(sink)
        outcome: Landing
        try:
            outcome = Answered(output=await task.call(value, late))
        except trio.Cancelled:
            raise
        except BaseException as exc:
            if is_from_signal(exc) or (self.scope.cancel_called and _is_cancelled(exc)):
                raise  # Whatever else the user's code raises is a fact about this attempt.
            # Without our own frame in its traceback, or the two would keep each other alive until the next collection.
            outcome = Raised(exc=exc.with_traceback(exc.__traceback__ and exc.__traceback__.tb_next))
        if self._is_cut and isinstance(outcome, Raised):
            await trio.lowlevel.checkpoint()  # An error for an answer to its cancellation: it is cancelled all the same.
        self.due = math.inf
        if self.is_over and not self._is_cut:  # It came back too late, because it did not let itself be cancelled.
            return OutOfTime(came="succeeded" if isinstance(outcome, Answered) else "failed")
        return outcome


def _is_cancelled(exc: BaseException) -> bool:
    """Whether nothing but a cancellation came back; a nursery has one from each of its tasks, and raises them as a group."""
    return isinstance(exc, BaseExceptionGroup) and exc.split(trio.Cancelled)[1] is None


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
