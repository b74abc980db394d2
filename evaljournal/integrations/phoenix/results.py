"""Results of the inputs, collected from the records of earlier sessions and of this one.

The objects that the function returned or raised, which a record cannot contain, are kept until their attempt is recorded.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final

import attrs

from evaljournal.journal import Event, Record, events
from evaljournal.replay.state.handlers import handlers


class ExecutionStatus(Enum):
    DID_NOT_RUN = "DID NOT RUN"
    COMPLETED = "COMPLETED"
    COMPLETED_WITH_RETRIES = "COMPLETED WITH RETRIES"
    FAILED = "FAILED"


class RecordedFailure(Exception):
    """A failure known only from its record: of an earlier session, or because the output could not be recorded."""


@attrs.define
class ExecutionDetails:
    """The result of one input."""

    exceptions: list[BaseException] = attrs.field(factory=list)
    """The exceptions of failed attempts, in order, without tracebacks, which would keep every prompt in memory."""
    status: ExecutionStatus = ExecutionStatus.DID_NOT_RUN
    execution_seconds: float = 0.0
    """Total duration of all attempts, without the waits between them."""
    attempts: int = 0
    interrupted: bool = False
    """Whether the last attempt was interrupted; its call may have taken effect."""
    traceback: str = ""

    def complete(self) -> None:
        self.status = ExecutionStatus.COMPLETED_WITH_RETRIES if self.exceptions else ExecutionStatus.COMPLETED

    def fail(self) -> None:
        self.status = ExecutionStatus.FAILED

    def log_exception(self, exc: BaseException) -> None:
        """Add an exception, without its traceback."""
        _drop_tracebacks(exc)
        self.exceptions.append(exc)

    def log_runtime(self, start_time: float) -> None:
        """Add the time since `start_time`, a value of `time.monotonic()` or, as Phoenix's own calls pass it, `time.time()`."""
        clock = time.monotonic if start_time <= time.monotonic() else time.time  # The wall clock is decades ahead of it.
        self.execution_seconds += max(0.0, clock() - start_time)


def _drop_tracebacks(exc: BaseException) -> None:
    visited_ids: set[int] = set()
    errors: list[Any] = [exc]
    while errors:
        error = errors.pop()
        if error is not None and id(error) not in visited_ids:
            visited_ids.add(id(error))
            error.__traceback__ = None
            errors += [error.__cause__, error.__context__, *getattr(error, "exceptions", ())]


class ResultCollector:
    def __init__(self, inputs: dict[str, Any], restore: Callable[[Any], Any]) -> None:
        self.details: defaultdict[str, ExecutionDetails] = defaultdict(ExecutionDetails)
        self.outputs: dict[str, Any] = {}
        self.return_values: dict[str, Any] = {}
        """Return values of attempts that are not yet recorded."""
        self.exceptions: dict[str, BaseException] = {}
        """Exceptions of attempts that are not yet recorded."""
        self._inputs = inputs
        """Trial → its input; removed when the trial is done in this session."""
        self._restore = restore
        """Converts a recorded output to the type that the function returns."""
        self._buffer: list[Record] | None = []
        """Records of this session that arrive before the earlier ones are read."""

    def apply(self, record: Record) -> None:
        """Apply a record of this session."""
        if self._buffer is None:
            self._apply(record.event)
        else:
            self._buffer.append(record)

    def load(self, records: Iterable[Record]) -> None:
        """Apply the records of earlier sessions, then those of this session that arrived meanwhile."""
        buffer = self._buffer or []
        first_seq = buffer[0].seq if buffer else float("inf")
        for record in records:
            if record.seq >= first_seq:
                break
            self._apply(record.event)
        for record in buffer:
            self._apply(record.event)
        self._buffer = None

    def _apply(self, event: Event) -> None:
        handler = _HANDLERS.get(event.__class__)
        if handler is not None:
            handler(self, event)

    def _on_attempt_started(self, event: events.AttemptStarted) -> None:
        details = self.details[event.trial]
        details.attempts = event.attempt
        details.interrupted = False

    def _on_attempt_succeeded(self, event: events.AttemptSucceeded) -> None:
        trial = event.trial
        self.details[trial].execution_seconds += event.elapsed
        self.outputs[trial] = self.return_values.pop(trial) if trial in self.return_values else self._restore(event.output)

    def _on_attempt_failed(self, event: events.AttemptFailed) -> None:
        details = self.details[event.trial]
        details.execution_seconds += event.elapsed
        self.return_values.pop(event.trial, None)
        exc = self.exceptions.pop(event.trial, None)
        details.log_exception(RecordedFailure(f"{event.error}: {event.message}") if exc is None else exc)
        details.traceback = event.traceback

    def _on_attempt_timed_out(self, event: events.AttemptTimedOut) -> None:
        details = self.details[event.trial]
        details.execution_seconds += event.elapsed
        self.return_values.pop(event.trial, None)
        self.exceptions.pop(event.trial, None)
        details.log_exception(TimeoutError(f"timed out after {event.timeout:g} s"))
        details.traceback = ""

    def _on_attempt_interrupted(self, event: events.AttemptInterrupted) -> None:
        details = self.details[event.trial]
        details.execution_seconds += event.elapsed or 0.0
        details.interrupted = True

    def _on_retry_scheduled(self, event: events.RetryScheduled) -> None:
        self.details[event.trial].status = ExecutionStatus.DID_NOT_RUN  # A failed trial is retried.

    def _on_trial_completed(self, event: events.TrialCompleted) -> None:
        self.details[event.trial].complete()
        self._release(event.trial)

    def _on_trial_failed(self, event: events.TrialFailed) -> None:
        self.details[event.trial].fail()
        self._release(event.trial)

    def _release(self, trial: str) -> None:
        if self._buffer is None:  # A trial of an earlier session may be called again.
            self._inputs.pop(trial, None)

    def _on_trial_withdrawn(self, event: events.TrialWithdrawn) -> None:
        self.details.pop(event.trial, None)
        self.outputs.pop(event.trial, None)


_HANDLERS: Final = handlers(ResultCollector)
