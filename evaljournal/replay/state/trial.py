"""The state of one trial after some record, as `RunState` keeps it."""

import math
from collections.abc import Mapping
from struct import Struct
from typing import Any, Final, Literal

import attrs

from evaljournal.journal import Record
from evaljournal.replay.state.answers import NotedAnswer

Location = tuple[int, int]
"""Location of a record: the number of its segment, and the byte offset of its line."""

Value = bool | int | float | str
"""A score."""

DONE_STAGES: Final = ("completed", "failed")
"""The stages of a trial that has ended and was not withdrawn."""

WORKER_ENDS: Final = ("worker_died", "worker_lost")
"""Reasons of interruptions after which the run decides whether the trial is retried."""
INTERRUPTED: Final = frozenset({"interrupted", *WORKER_ENDS})
"""Categories of a `RetryHistory` whose last attempt was interrupted."""

NO_SLOT: Final = -1
"""The slot of an attempt that occupies none."""
_NO_LOCATION: Final = -1
_OFFSET_BITS: Final = 40
_OUTPUT_LAYOUT: Final = Struct("=qdd")
"""Packed location of the output, its latency in seconds and its cost in dollars; NaN if they are unknown."""
_LAYOUT: Final = Struct("=qddqI")
"""The fields of `_OUTPUT_LAYOUT`, the packed location of the input, and the repeat."""
_OUTPUT_SIZE: Final = _OUTPUT_LAYOUT.size
_MAX_REPEAT: Final = (1 << 32) - 1
"""Replaces any number that the field cannot hold; a foreign journal may contain one."""
_MAX_FLAT_SCORES: Final = 50
"""Scores of a trial above which they are a dict; each change copies a tuple."""
_MAX_SHARED_TUPLES: Final = 4_096


def pack_location(record: Record) -> int:
    """Return a record's location as one integer; a tuple takes three times the memory."""
    return record.segment << _OFFSET_BITS | record.offset


def unpack_location(location: int) -> Location:
    return location >> _OFFSET_BITS, location & (1 << _OFFSET_BITS) - 1


@attrs.define
class RetryHistory:
    """The failures of a trial so far, which determine how many retries are left."""

    errors: int = 0
    parse_errors: int = 0
    timeouts: int = 0
    rate_limit_failures: int = 0
    deaths: int = 0
    """Attempts whose worker ended while it ran nothing else."""
    losses: int = 0
    """Attempts whose worker ended, perhaps because of another attempt."""
    rate_limit_wait: float = 0.0
    """Seconds of backoff after rate limits."""
    category: str = ""
    """Category of the last failure: a `FailureCategory`, `timed_out` or one of `WORKER_ENDS`; `interrupted` if the last attempt
    was interrupted for another reason."""
    retry_after: float | None = None
    error: str = ""
    """Type and message of the last failure, shortened."""
    error_type: str = ""
    """Its type; empty after a timeout or the end of a worker."""
    location: str = ""
    """The line of the user's code that raised it."""
    reason: str = ""
    """Why the trial last failed."""

    @property
    def failures(self) -> int:
        """Attempts that ended in an error or a timeout, and the last one if it ended with its worker."""
        return self.errors + self.parse_errors + self.timeouts + (self.category in WORKER_ENDS)

    def count_failure(self, category: str, retry_after: float | None = None) -> None:
        """Count a failed attempt or scorer call."""
        self.category, self.retry_after = category, retry_after
        self._count(1)

    def count_retry(self, reason: str, delay: float) -> None:
        """Count the retry after the last failure; a probe, or a stop of the run, does not count against its retries."""
        if reason == "rate_limited":
            self.rate_limit_wait += delay
        elif reason in {"probe", "stopped"}:
            self._count(-1)

    def reset(self) -> None:
        """Forget the failures, except ends of workers, after an attempt that has completed a step."""
        self.errors = self.parse_errors = self.timeouts = self.rate_limit_failures = 0
        self.rate_limit_wait = 0.0

    def _count(self, change: int) -> None:
        if self.category == "timed_out":
            self.timeouts += change
        elif self.category == "parse_error":
            self.parse_errors += change
        elif self.category == "rate_limited":
            self.rate_limit_failures += change
        elif self.category == "worker_died":
            self.deaths += change
        elif self.category == "worker_lost":
            self.losses += change
        else:
            self.errors += change


@attrs.define(eq=False)
class RunningAttempt:
    attempt: int
    slot: int
    """`NO_SLOT` if it occupies none."""
    start: float
    """When it started, in seconds since the start of the session."""
    key: str | None
    """Its rate-limit key; None if it occupies no slot."""
    usages: list[Any] | None = None
    """The usage that it and its steps have noted; None if there is none."""
    waits: list[tuple[float, float]] | None = None
    """Start and end of set-up, teardown and the waits for rate limits inside it; None if there are none."""
    latency: float | None = None
    """Its latency, if its steps change it: without `waits`, and with the seconds of the steps that it reused. NaN if one of its
    calls was replayed: it is not that of the model."""
    ended_steps: int = 0
    """Steps that have ended; those in flight are not recorded."""
    last_step: str = ""
    last_step_end: float = 0.0
    """When it ended, in seconds since the start of the session."""

    def add_usage(self, usage: Any) -> None:
        if self.usages is None:
            self.usages = []
        self.usages.append(usage)

    def add_wait(self, start: float, end: float) -> None:
        """Add a time that is not part of the attempt's."""
        if self.waits is None:
            self.waits = []
        self.waits.append((start, end))

    def end_step(self, name: str, t: float) -> None:
        self.ended_steps += 1
        self.last_step, self.last_step_end = name, t


@attrs.frozen
class OpenCall:
    key: str | None
    start: float


class SharedScores(dict[tuple[Any, ...], tuple[Any, ...]]):
    """The scores of trials as flat tuples: scorer, version and value of each, one after the other.

    A tuple of booleans and labels is kept once for all trials that have it. Numbers are not shared: most are different, and 1
    is equal to True.
    """

    def add(self, scores: tuple[Any, ...], scorer: str, version: str, value: Value) -> tuple[Any, ...]:
        """Return the scores with another one."""
        new_scores = (*scores, scorer, version, value)
        if (value.__class__ is not bool and value.__class__ is not str) or (scores and self.get(scores) is not scores):
            return new_scores
        return self.setdefault(new_scores, new_scores) if len(self) < _MAX_SHARED_TUPLES else self.get(new_scores, new_scores)


def pack_input(record: Record, fingerprint: str, repeat: int) -> bytes:
    """Return the location of an input, its repeat and its fingerprint as one object, for a new `TrialState`."""
    location = record.segment << _OFFSET_BITS | record.offset  # As in `pack_location`, without a call.
    repeat = repeat if 0 < repeat < _MAX_REPEAT else _MAX_REPEAT
    return _LAYOUT.pack(_NO_LOCATION, math.nan, math.nan, location, repeat) + fingerprint.encode()


@attrs.define(weakref_slot=False)
class TrialState:
    """One trial, in about 200 bytes. Inputs and outputs stay on disk."""

    stage: str
    """One of `journal.format.lifecycle.STAGES`."""
    _packed_fields: bytes
    """`_LAYOUT` and the fingerprint; four objects take twice the memory."""
    case: str = ""
    """The case's id; repeats and variants of a case share it."""
    variant: str = ""
    """Name of the variant; empty if the run has none."""
    attempts: int = 0
    _scores: tuple[Any, ...] | dict[str, tuple[str, Value]] = ()
    """Scorer, version and latest value of each score, one after the other; a dict takes five times the memory.

    Many scores are a dict, as `scores` returns it.
    """
    unscored: tuple[str, ...] = ()
    """Scorers that failed."""
    retry_history: RetryHistory | None = None
    """None while no attempt has failed."""
    answer: NotedAnswer | None = None
    """What the attempt in flight, or the one that returned the output, noted about its answer."""

    @property
    def scores(self) -> dict[str, tuple[str, Value]]:
        """Scorer → version and latest value; it must not be changed."""
        items = self._scores
        if isinstance(items, dict):
            return items
        return {items[index]: (items[index + 1], items[index + 2]) for index in range(0, len(items), 3)}

    def score(self, scorer: str) -> tuple[str, Value] | None:
        """Return the version and latest value of a scorer; None if the trial has no score of it."""
        items = self._scores
        if isinstance(items, dict):
            return items.get(scorer)
        for index in range(0, len(items), 3):
            if items[index] == scorer:
                return items[index + 1], items[index + 2]
        return None

    @property
    def failing_scorers(self) -> list[str]:
        """Scorers whose latest value is false."""
        items = self._scores
        if isinstance(items, dict):
            return [scorer for scorer, (_, value) in items.items() if value is False]
        if False not in items:  # Fast; it also finds a 0.
            return []
        return [items[index - 2] for index in range(2, len(items), 3) if items[index] is False]

    def set_score(self, scorer: str, version: str, value: Value, shared_scores: SharedScores) -> tuple[str, Value] | None:
        """Add a score, or replace the scorer's earlier one, which is returned."""
        items, earlier_score = self._scores, None
        if isinstance(items, dict):
            earlier_score = items.pop(scorer, None)
            items[scorer] = version, value
            return earlier_score
        if items and scorer in items[::3]:
            scores, items = self.scores, ()
            earlier_score = scores.pop(scorer)
            for other_scorer, (other_version, other_value) in scores.items():
                items = shared_scores.add(items, other_scorer, other_version, other_value)
        self._scores = shared_scores.add(items, scorer, version, value)
        if len(self._scores) > 3 * _MAX_FLAT_SCORES:
            self._scores = self.scores
        return earlier_score

    def clear_scores(self) -> None:
        self._scores = self.unscored = ()

    def set_output(self, record: Record, latency: float, cost: float) -> None:
        """Set the location of the output, its latency and its cost; NaN if they are unknown."""
        location = record.segment << _OFFSET_BITS | record.offset  # As in `pack_location`, without a call.
        self._packed_fields = _OUTPUT_LAYOUT.pack(location, latency, cost) + self._packed_fields[_OUTPUT_SIZE:]

    @property
    def answer_outcome(self) -> str:
        """Whether its output is a `truncated` or `declined` answer; empty if it is complete or unknown."""
        return "" if self.answer is None or self.stage not in {"scoring", "completed"} else self.answer.outcome

    @property
    def is_excluded(self) -> bool:
        """Whether its output is not scored, because its answer is truncated or declined and the settings exclude it."""
        return self.answer is not None and self.answer.is_excluded and self.stage in {"scoring", "completed"}

    @property
    def is_scorable(self) -> bool:
        return self.output_location is not None and self.stage in {"scoring", "completed"} and not self.is_excluded

    @property
    def fingerprint(self) -> str:
        """The case's fingerprint."""
        return self._packed_fields[_LAYOUT.size :].decode()

    @property
    def repeat(self) -> int:
        """Number of the repeat of its case and variant, from 1."""
        repeat: int = _LAYOUT.unpack_from(self._packed_fields)[4]
        return repeat

    @property
    def latency(self) -> float | None:
        """Seconds of the attempt that returned the output, and of the steps that it reused.

        None without an output, or if it was not measured.
        """
        latency: float = _LAYOUT.unpack_from(self._packed_fields)[1]
        return None if math.isnan(latency) else latency

    @property
    def cost(self) -> float | None:
        """Dollars that the attempt that returned the output, and the steps that it reused, cost; None if that is unknown."""
        cost: float = _LAYOUT.unpack_from(self._packed_fields)[2]
        return None if math.isnan(cost) else cost

    @property
    def input_location(self) -> Location:
        return unpack_location(_LAYOUT.unpack_from(self._packed_fields)[3])

    @property
    def output_location(self) -> Location | None:
        """Location of the record that holds the output; None without an output."""
        location = _LAYOUT.unpack_from(self._packed_fields)[0]
        return None if location == _NO_LOCATION else unpack_location(location)

    @property
    def ended_with_worker(self) -> bool:
        """Whether its last attempt ended with its worker; the next one has a worker of its own."""
        return self.retry_history is not None and self.retry_history.category in WORKER_ENDS

    @property
    def error(self) -> str:
        return "" if self.retry_history is None else self.retry_history.error

    @property
    def reason(self) -> str:
        return "" if self.retry_history is None else self.retry_history.reason

    @property
    def recovered(self) -> bool:
        """Whether it was completed after a failed attempt."""
        return self.retry_history is not None and self.stage == "completed"


Outcome = Literal["passed", "failure", "error", "skipped"]
"""The result of a trial as a test result: an error if it or a scorer failed, a failure if a score is false."""


def outcome_of(trial: TrialState) -> Outcome:
    """Return the result of a trial as a test result; a trial that is not done, or that is excluded, is skipped."""
    if trial.stage not in DONE_STAGES or trial.is_excluded:
        return "skipped"
    if trial.stage == "failed" or trial.unscored:
        return "error"
    return "failure" if trial.failing_scorers else "passed"


def failing_trials(trials: Mapping[str, TrialState]) -> list[str]:
    """Return the trials with an error or a failing score."""
    return [name for name, trial in trials.items() if outcome_of(trial) in {"error", "failure"}]
