"""Results of the inputs, collected from the records of earlier sessions and of this one.

They come from the same records as a resumed run, so the two cannot differ. Objects that a record cannot contain, those that the
function returned or raised, are kept until the record of their attempt is written.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

from journal import Event, Record, events
from replay.handlers import handlers
from runner.executors.details import ExecutionDetails, ExecutionStatus, RecordedFailure


class ResultCollector:
    """Collects details and output of each trial."""

    def __init__(self, inputs: dict[str, Any], restore: Callable[[Any], Any]) -> None:
        self.details: defaultdict[str, ExecutionDetails] = defaultdict(ExecutionDetails)
        self.outputs: dict[str, Any] = {}
        self.returned: dict[str, Any] = {}
        """Return values of attempts that are not yet recorded."""
        self.raised: dict[str, BaseException] = {}
        """Exceptions of attempts that are not yet recorded."""
        self._inputs = inputs
        """By trial; removed when the trial is completed in this session."""
        self._restore = restore
        """Converts an output as recorded to what the function returned."""
        self._buffer: list[Record] | None = []
        """Records of this session that arrive before the earlier ones are read."""

    def listen(self, record: Record) -> None:
        """Apply a record of this session."""
        if self._buffer is None:
            self._apply(record.event)
        else:
            self._buffer.append(record)

    def load(self, records: Iterable[Record]) -> None:
        """Apply the records of earlier sessions, then those of this session that arrived meanwhile."""
        buffer = self._buffer or []
        first = buffer[0].seq if buffer else float("inf")
        for record in records:
            if record.seq >= first:
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
        self.outputs[trial] = self.returned.pop(trial) if trial in self.returned else self._restore(event.output)

    def _on_attempt_failed(self, event: events.AttemptFailed) -> None:
        details = self.details[event.trial]
        details.execution_seconds += event.elapsed
        self.returned.pop(event.trial, None)
        exc = self.raised.pop(event.trial, None)
        details.log_exception(RecordedFailure(f"{event.error}: {event.message}") if exc is None else exc)
        details.traceback = event.traceback

    def _on_attempt_timed_out(self, event: events.AttemptTimedOut) -> None:
        details = self.details[event.trial]
        details.execution_seconds += event.elapsed
        self.returned.pop(event.trial, None)
        self.raised.pop(event.trial, None)
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
