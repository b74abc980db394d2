"""One call of a task or a scorer: invoke it, enforce its timeout, and return how it ended as a value.

**How it ends.** A call returns, raises, exceeds its timeout or a limit of its trial, or is interrupted because the run is
stopped. All of these are values for the caller, which records exactly one of them; only a cancellation from outside the run is
raised.

**Time.** The timeout is that of the call alone: whatever makes it wait inside stops its time (`pause`, `resume`). A
cancelled call gets some time to end. If it does not respond, it is abandoned: its end is recorded without it, and what it
returns later is recorded as late, never as an output.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import trio

from evaljournal.journal.fact import fact
from evaljournal.journal.format.codec import Blobs
from evaljournal.runner.calls import LateOutcome, Task, WorkerEnded
from evaljournal.runner.calls.notes import Attachments, Sink, set_attachments, set_note_sink
from evaljournal.runner.engine.recorder import Timer
from evaljournal.runner.signals import is_from_signal


@fact
class Returned:
    """The call returned an output in time."""

    output: Any
    in_blobs: Blobs | None = None
    """The result of `Journal.write_blobs`, for a large output."""


@fact
class TimedOut:
    """The call exceeded its timeout."""

    late_outcome: LateOutcome | None = None
    """How it ended, if it did not respond to its cancellation and returned late."""


@fact
class LimitExceeded:
    """The call was cancelled because its trial has exceeded a limit of its own; see `Layer.over_limit`."""


@fact
class Interrupted:
    """The run was stopped, and the call was cancelled."""


CallOutcome = Returned | BaseException | TimedOut
"""How a call ended; an exception was raised by the task."""


class CallScope:
    """A cancel scope that is reused for consecutive calls of one consumer.

    Calls are made inside `scope`. When it is cancelled, the call in flight unwinds to it, `outcome` is the reason, and a new
    scope is needed. One scope serves many calls, and one timer watches all timeouts, because entering a scope and moving its
    deadline for each call is slow.
    """

    def __init__(self, timer: Timer) -> None:
        self.scope: Final = trio.CancelScope()
        self._timer = timer
        self.deadline = math.inf
        """When the call exceeds its timeout, in the seconds of `t`; once it has, when it is abandoned."""
        self._paused_seconds: float | None = None
        """Seconds that were left of the timeout when the call began to wait for a rate limit."""
        self.is_cancelled = False
        self.is_abandoned = False
        """Whether the call did not respond to its cancellation, and its outcome was recorded without it."""
        self._is_interrupted = False
        self._is_over_limit = False

    def time_out(self, deadline: float) -> None:
        """Cancel the call because it has exceeded its timeout; it is abandoned if it has not ended by `deadline`."""
        self.deadline, self.is_cancelled = deadline, True
        self.scope.cancel()

    def pause(self) -> None:
        """Stop the time of the call in flight, because it waits for a rate limit."""
        if not self.is_cancelled and self.deadline < math.inf:
            self._paused_seconds, self.deadline = self.deadline - self._timer.now(), math.inf

    def resume(self) -> None:
        """Let the time of the call in flight run again."""
        if self._paused_seconds is not None and not self.is_cancelled:
            self.deadline = self._timer.schedule_in(self._paused_seconds)
        self._paused_seconds = None

    def restart(self, timeout: float | None) -> None:
        """Start the time of the call in flight again, because another phase of it begins."""
        if not self.is_cancelled:
            self._paused_seconds = None
            self.deadline = math.inf if timeout is None else self._timer.schedule_in(timeout)

    def exceed_limit(self, deadline: float) -> None:
        """Cancel the call because its trial has exceeded a limit; it is abandoned if it has not ended by `deadline`."""
        if not self.is_cancelled:
            self._is_over_limit = True
            self.time_out(deadline)

    def interrupt(self) -> None:
        """Cancel the call because the run is stopped."""
        self._is_interrupted = self.is_cancelled = True
        self.scope.cancel()

    @property
    def outcome(self) -> TimedOut | LimitExceeded | Interrupted:
        """Why the call was cancelled."""
        return Interrupted() if self._is_interrupted else LimitExceeded() if self._is_over_limit else TimedOut()

    async def call(
        self,
        task: Task,
        value: Any,
        *,
        timeout: float | None,  # noqa: ASYNC109  # one timer enforces the timeouts of all calls
        sink: Sink,
        on_late: Callable[[LateOutcome], None],
        attachments: Attachments | None = None,
    ) -> CallOutcome:
        """Call a task; its notes go to `sink`, and the outcome of an abandoned call to `on_late`."""
        self._paused_seconds = None
        if timeout is not None:
            self.deadline = self._timer.schedule_in(timeout)
        set_note_sink(sink)
        set_attachments(attachments)
        outcome: CallOutcome
        try:
            outcome = Returned(output=await task.call(value, on_late))
        except trio.Cancelled:
            raise
        except BaseException as exc:
            if is_from_signal(exc) or (self.scope.cancel_called and _is_cancellation(exc)):
                raise
            # Our own frame in its traceback would form a reference cycle.
            outcome = exc.with_traceback(exc.__traceback__ and exc.__traceback__.tb_next)
        if self.is_abandoned:
            on_late("succeeded" if isinstance(outcome, Returned) else "failed")
        has_worker_ended = isinstance(outcome, WorkerEnded)  # Perhaps because of another call in its worker.
        if (
            self.is_abandoned
            or (self._is_interrupted and isinstance(outcome, BaseException))
            or (self._is_over_limit and has_worker_ended)
        ):
            await trio.lowlevel.checkpoint()  # Raises the cancellation, which the task shielded itself from or replaced.
        self.deadline = math.inf
        if self.is_cancelled and not self._is_interrupted and not self._is_over_limit and not has_worker_ended:
            return TimedOut(late_outcome="succeeded" if isinstance(outcome, Returned) else "failed")
        return outcome


def _is_cancellation(exc: BaseException) -> bool:
    """Return whether an exception is a group of cancellations only, as a nursery raises it."""
    return isinstance(exc, BaseExceptionGroup) and exc.split(trio.Cancelled)[1] is None
