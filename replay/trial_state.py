"""The state of one trial after some record: what `RunState` keeps about each."""

from typing import Any, Final

import attrs

from journal import Record

Location = tuple[int, int]
"""Location of a record: the number of its segment, and the byte offset of its line."""

Value = bool | int | float | str
"""A score."""

DONE: Final = ("completed", "failed")
"""The stages of a trial that has ended and was not withdrawn."""

_NO_LOCATION: Final = -1
_OFFSET_BITS: Final = 48


def packed(record: Record) -> int:
    """Return a record's location as one integer; a tuple takes three times the memory."""
    return record.segment << _OFFSET_BITS | record.offset


def unpacked(location: int) -> Location:
    """Return a location that was packed."""
    return location >> _OFFSET_BITS, location & (1 << _OFFSET_BITS) - 1


@attrs.define
class RetryHistory:
    """The failures of a trial so far, which determine the rest of its retry budgets."""

    errors: int = 0
    parse_errors: int = 0
    timeouts: int = 0
    rate_limit_failures: int = 0
    rate_limit_wait: float = 0.0
    """Seconds of backoff after rate limits."""
    category: str = ""
    """Category of the last failure: a `FailureCategory` or `timed_out`."""
    retry_after: float | None = None
    error: str = ""
    """Type and message of the last failure, shortened."""
    error_type: str = ""
    """Its type; empty after a timeout."""
    where: str = ""
    """The line of the user's code that raised it."""
    reason: str = ""
    """Why the trial last failed."""

    def count_failure(self, category: str, retry_after: float | None = None) -> None:
        """Count a failed attempt or scorer call."""
        self.category, self.retry_after = category, retry_after
        self._count(1)

    def count_retry(self, reason: str, delay: float) -> None:
        """Count the retry after the last failure; a probe, or a stop of the run, is not charged to the retry budget."""
        if reason == "rate_limited":
            self.rate_limit_wait += delay
        elif reason in {"probe", "stopped"}:
            self._count(-1)

    def _count(self, change: int) -> None:
        if self.category == "timed_out":
            self.timeouts += change
        elif self.category == "parse_error":
            self.parse_errors += change
        elif self.category == "rate_limited":
            self.rate_limit_failures += change
        else:
            self.errors += change


@attrs.define(weakref_slot=False)
class TrialState:
    """One trial, in a few hundred bytes. Inputs and outputs stay on disk."""

    stage: str
    """One of `journal.lifecycle.STAGES`."""
    fingerprint: str
    _input: int
    case: str = ""
    """The case's id; repeats of a case share it."""
    attempts: int = 0
    _output: int = _NO_LOCATION
    _scores: tuple[Any, ...] = ()
    """Scorer, version and latest value of each score, one after the other; a dict takes five times the memory."""
    unscored: tuple[str, ...] = ()
    """Scorers that failed."""
    slot: int = -1
    """Slot of the last attempt."""
    since: float = 0.0
    """Start of the last attempt, in seconds of `t`; reset when the trial is completed, to save memory."""
    due: float = 0.0
    """End of the backoff, in seconds of `t`."""
    retry_history: RetryHistory | None = None
    """None while no attempt has failed."""
    elapsed: float = 0.0
    """Seconds of the attempt that returned the output."""

    @property
    def scores(self) -> dict[str, tuple[str, Value]]:
        """Scorer → version and latest value."""
        flat = self._scores
        return {flat[at]: (flat[at + 1], flat[at + 2]) for at in range(0, len(flat), 3)}

    def set_score(self, scorer: str, version: str, value: Value) -> None:
        """Add a score, or replace the scorer's earlier one."""
        flat = self._scores
        if scorer in flat[::3]:
            at = 3 * flat[::3].index(scorer)
            flat = flat[:at] + flat[at + 3 :]
        self._scores = (*flat, scorer, version, value)

    def clear_scores(self) -> None:
        """Remove all scores and failures of scorers."""
        self._scores = self.unscored = ()

    @property
    def input_location(self) -> Location:
        """Location of the record that holds the input."""
        return unpacked(self._input)

    @property
    def output_location(self) -> Location | None:
        """Location of the record that holds the output; None if there is none."""
        return None if self._output == _NO_LOCATION else unpacked(self._output)

    @property
    def error(self) -> str:
        """Type and message of the last failure, shortened."""
        return "" if self.retry_history is None else self.retry_history.error

    @property
    def reason(self) -> str:
        """Why the trial last failed."""
        return "" if self.retry_history is None else self.retry_history.reason

    @property
    def recovered(self) -> bool:
        """Whether it was completed after a failed attempt."""
        return self.retry_history is not None and self.stage == "completed"
