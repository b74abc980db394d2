"""What a caller is told about each input: how it ended, how long it took, and what went wrong on the way."""

import time
from enum import Enum
from typing import Any

import attrs


class ExecutionStatus(Enum):
    """How an input ended."""

    DID_NOT_RUN = "DID NOT RUN"
    COMPLETED = "COMPLETED"
    COMPLETED_WITH_RETRIES = "COMPLETED WITH RETRIES"
    FAILED = "FAILED"


class RecordedFailure(Exception):
    """A failure of which only the record is left: it came in an earlier session, or the output could not be recorded."""


@attrs.define
class ExecutionDetails:
    """What became of one input."""

    exceptions: list[BaseException] = attrs.field(factory=list)
    """What every attempt that failed raised, in order; without their frames, which would keep every prompt alive."""
    status: ExecutionStatus = ExecutionStatus.DID_NOT_RUN
    execution_seconds: float = 0.0
    """The time of all attempts together, by the monotonic clock; waits between them are not in it."""
    attempts: int = 0
    """How many attempts were begun."""
    interrupted: bool = False
    """Whether the last attempt was cut off: it was begun, did not end, and its call may have taken effect."""
    traceback: str = ""
    """Where the last exception was raised, as text."""

    def complete(self) -> None:
        """Say that there is an output."""
        status = ExecutionStatus
        self.status = status.COMPLETED_WITH_RETRIES if self.exceptions else status.COMPLETED

    def fail(self) -> None:
        """Say that there will be none."""
        self.status = ExecutionStatus.FAILED

    def log_exception(self, exc: BaseException) -> None:
        """Keep what an attempt raised, and let its frames go."""
        _let_frames_go(exc)
        self.exceptions.append(exc)

    def log_runtime(self, start_time: float) -> None:
        """Add the time since `start_time`, which `time.monotonic()` has told."""
        elapsed = time.monotonic() - start_time
        if elapsed < 0:
            raise ValueError(f"start_time={start_time!r} lies ahead; give what time.monotonic() told, not time.time()")
        self.execution_seconds += elapsed


def _let_frames_go(exc: BaseException) -> None:
    """Take the traceback from an exception, from all that led to it, and from all that it groups."""
    seen: set[int] = set()
    left: list[Any] = [exc]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            left += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
