"""The result of each input: its status, its duration and its exceptions."""

import time
from enum import Enum
from typing import Any

import attrs


class ExecutionStatus(Enum):
    """Status of an input."""

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
    """Number of attempts started."""
    interrupted: bool = False
    """Whether the last attempt was interrupted; its call may have taken effect."""
    traceback: str = ""

    def complete(self) -> None:
        """Set the status of an input with an output."""
        status = ExecutionStatus
        self.status = status.COMPLETED_WITH_RETRIES if self.exceptions else status.COMPLETED

    def fail(self) -> None:
        """Set the status of an input that failed."""
        self.status = ExecutionStatus.FAILED

    def log_exception(self, exc: BaseException) -> None:
        """Add an exception, without its traceback."""
        _drop_tracebacks(exc)
        self.exceptions.append(exc)

    def log_runtime(self, start_time: float) -> None:
        """Add the time since `start_time`, a value of `time.monotonic()`."""
        elapsed = time.monotonic() - start_time
        if elapsed < 0:
            raise ValueError(f"start_time={start_time!r} is in the future; pass time.monotonic(), not time.time()")
        self.execution_seconds += elapsed


def _drop_tracebacks(exc: BaseException) -> None:
    """Remove the tracebacks of an exception, its causes and the exceptions it groups."""
    seen: set[int] = set()
    pending: list[Any] = [exc]
    while pending:
        error = pending.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            error.__traceback__ = None
            pending += [error.__cause__, error.__context__, *getattr(error, "exceptions", ())]
