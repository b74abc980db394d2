"""What became of every input, as the records tell it: those of earlier sessions, and those that are being made.

Results are told from the same facts that a resumption goes by, so the two cannot differ. What a record cannot hold, the
very object that the function returned or raised, is laid down beside and taken up when the record says that it counts.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

from journal import Event, Record
from journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    RetryScheduled,
    TrialCompleted,
    TrialFailed,
    TrialWithdrawn,
)
from runner.executors.details import ExecutionDetails, ExecutionStatus, RecordedFailure


class ResultCollector:
    """Trial → its details and its output."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.details: defaultdict[str, ExecutionDetails] = defaultdict(ExecutionDetails)
        self.outputs: dict[str, Any] = {}
        self.returned: dict[str, Any] = {}
        """What an attempt has returned, until its record is made."""
        self.raised: dict[str, BaseException] = {}
        """What an attempt has raised, until its record is made."""
        self._given = given
        """The inputs; one that is done in this session is let go."""
        self._early: list[Record] | None = []
        """Records that are made before the earlier ones are read."""

    def hear(self, record: Record) -> None:
        """Take in a record that is being made."""
        if self._early is None:
            self._take(record.event)
        else:
            self._early.append(record)

    def recall(self, records: Iterable[Record]) -> None:
        """Take in the records of earlier sessions, and then what was heard meanwhile."""
        early = self._early or []
        first = early[0].seq if early else float("inf")
        for record in records:
            if record.seq >= first:
                break
            self._take(record.event)
        for record in early:
            self._take(record.event)
        self._early = None

    def _take(self, event: Event) -> None:
        meaning = _MEANINGS.get(event.__class__)
        if meaning is not None:
            meaning(self, event)

    def _started(self, event: AttemptStarted) -> None:
        details = self.details[event.trial]
        details.attempts = event.attempt
        details.interrupted = False

    def _succeeded(self, event: AttemptSucceeded) -> None:
        trial = event.trial
        self.details[trial].execution_seconds += event.elapsed
        self.outputs[trial] = self.returned.pop(trial) if trial in self.returned else event.output

    def _failed(self, event: AttemptFailed) -> None:
        details = self.details[event.trial]
        details.execution_seconds += event.elapsed
        self.returned.pop(event.trial, None)
        exc = self.raised.pop(event.trial, None)
        details.log_exception(RecordedFailure(f"{event.error}: {event.message}") if exc is None else exc)
        details.traceback = event.traceback

    def _timed_out(self, event: AttemptTimedOut) -> None:
        details = self.details[event.trial]
        details.execution_seconds += event.elapsed
        self.returned.pop(event.trial, None)
        self.raised.pop(event.trial, None)
        details.log_exception(TimeoutError(f"timed out after {event.timeout:g} s"))
        details.traceback = ""

    def _interrupted(self, event: AttemptInterrupted) -> None:
        details = self.details[event.trial]
        details.execution_seconds += event.elapsed or 0.0
        details.interrupted = True

    def _scheduled(self, event: RetryScheduled) -> None:
        self.details[event.trial].status = ExecutionStatus.DID_NOT_RUN  # It had failed for good, and is now called again.

    def _completed(self, event: TrialCompleted) -> None:
        self.details[event.trial].complete()
        self._let_go(event.trial)

    def _gave_up(self, event: TrialFailed) -> None:
        self.details[event.trial].fail()
        self._let_go(event.trial)

    def _let_go(self, trial: str) -> None:
        if self._early is None:  # What an earlier session was done with may be asked again.
            self._given.pop(trial, None)

    def _withdrawn(self, event: TrialWithdrawn) -> None:
        self.details.pop(event.trial, None)
        self.outputs.pop(event.trial, None)


_MEANINGS: Final[dict[type[Event], Callable[[ResultCollector, Any], None]]] = {
    AttemptStarted: ResultCollector._started,
    AttemptSucceeded: ResultCollector._succeeded,
    AttemptFailed: ResultCollector._failed,
    AttemptTimedOut: ResultCollector._timed_out,
    AttemptInterrupted: ResultCollector._interrupted,
    RetryScheduled: ResultCollector._scheduled,
    TrialCompleted: ResultCollector._completed,
    TrialFailed: ResultCollector._gave_up,
    TrialWithdrawn: ResultCollector._withdrawn,
}
