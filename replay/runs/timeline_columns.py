"""Storage of a timeline: attempts, times of trials and series, in columns, because a run can have millions of events."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, overload

import attrs

from evaljournal.journal.events import AttemptStarted
from evaljournal.replay.runs.scratch import Column, Scratch

Point = tuple[float, int, int]
"""A time, the value from then on, and the record that changed it; if a backoff or pause expired, the last record before."""

OUTCOMES: Final = ("", "succeeded", "failed", "rate_limited", "unavailable", "fatal", "timed_out", "interrupted")
"""How an attempt ended: empty while in flight, otherwise the category of its failure. The categories `error` and `parse_error`
are both `failed`."""

_OUTCOME_NUMBER: Final = {outcome: number for number, outcome in enumerate(OUTCOMES)}
_FAILED: Final = OUTCOMES.index("failed")

_RECENT: Final = 4_096
"""Maximum number of trials in a dict."""

IDLE, QUEUED, BACKING_OFF, RUNNING, SCORING = range(5)
"""The stages of a trial; it is idle before it is enqueued and after it is done."""


class Span(NamedTuple):
    """One attempt, from its start to its end."""

    trial: str
    attempt: int
    slot: int
    session: int
    """Number of its session, from 1."""
    start: float
    """In seconds of `t` of that session, like `end`."""
    end: float
    """While in flight: the time of the last record. After a crash: the end of the session."""
    outcome: str
    """One of `OUTCOMES`."""
    seq: int
    """The record of its start."""
    end_seq: int
    """The record of its end; 0 while in flight."""
    queue_time: float = 0.0
    """Seconds before it that the trial was ready to start."""
    backoff_time: float = 0.0
    """Seconds before it that the trial was in backoff."""


@attrs.frozen
class Times:
    """How a trial spent its time, in seconds; time between sessions does not count."""

    queue_time: float
    """Ready to start."""
    backoff_time: float
    """In backoff."""
    run_time: float
    """In a slot, over all attempts."""
    scoring_time: float
    """From the output to the last score."""
    attempts: int

    @property
    def total(self) -> float:
        """All of its time; once it is done, the time to completion."""
        return round(self.queue_time + self.backoff_time + self.run_time + self.scoring_time, 6)


@attrs.define
class SessionTime:
    """When a session took place."""

    number: int
    """From 1."""
    seq: int
    at: str
    """Wall time of its first record."""
    start: float
    """Time of its first record, in seconds of its own `t`."""
    end: float
    """Time of its last record."""
    offset: float
    """Wall-clock seconds between zero of the axis and zero of the session's `t`. Zero of the axis is that of the first session,
    or the start of a merged run; only sessions of different shards of it overlap."""
    shard: str = ""
    """The shard that it belongs to, in a merged run."""


class Spans(Sequence[Span]):
    """All attempts, in the order of their starts."""

    def __init__(self, names: Sequence[str], scratch: Scratch) -> None:
        self._names = names
        self.trial = Column[int]("l", scratch)
        """Number of the trial."""
        self.attempt = Column[int]("q", scratch)
        self.slot = Column[int]("q", scratch)
        self.session = Column[int]("l", scratch)
        self.start = Column[float]("d", scratch)
        self.end = Column[float]("d", scratch)
        self.outcome = Column[int]("B", scratch)
        self.seq = Column[int]("q", scratch)
        self.end_seq = Column[int]("q", scratch)
        self.queue_time = Column[float]("d", scratch)
        """Seconds that the trial was ready to start, before this attempt and all earlier ones."""
        self.backoff_time = Column[float]("d", scratch)
        """Seconds that the trial was in backoff, before this attempt and all earlier ones."""
        self.previous_index = Column[int]("l", scratch)
        """Index of the trial's previous attempt; -1 for the first."""
        self.now = 0.0
        """Time of the last record."""

    def __len__(self) -> int:
        return len(self.seq)

    @overload
    def __getitem__(self, index: int) -> Span: ...
    @overload
    def __getitem__(self, index: slice) -> list[Span]: ...
    def __getitem__(self, index: int | slice) -> Span | list[Span]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        index = range(len(self))[index]  # From the end, if it is negative.
        outcome = OUTCOMES[self.outcome[index]]
        return Span(
            trial=self._names[self.trial[index]],
            attempt=self.attempt[index],
            slot=self.slot[index],
            session=self.session[index],
            start=self.start[index],
            end=self.end[index] if outcome else self.now,
            outcome=outcome,
            seq=self.seq[index],
            end_seq=self.end_seq[index],
            queue_time=next(self.waits(self.queue_time, (index,))),
            backoff_time=next(self.waits(self.backoff_time, (index,))),
        )

    def waits(self, column: Column[float], indexes: Iterable[int]) -> Iterator[float]:
        """Yield the seconds in `queue_time` or `backoff_time` between the previous attempt and these."""
        for seconds, previous_index in zip(column.select(indexes), self.previous_index.select(indexes), strict=True):
            yield seconds - column[previous_index] if previous_index >= 0 else seconds

    def start_attempt(self, trial: int, event: AttemptStarted, session: int, t: float, seq: int) -> None:
        """Add an attempt in flight."""
        self.trial.append(trial)
        self.attempt.append(event.attempt)
        self.slot.append(event.slot)
        self.session.append(session)
        self.start.append(t)
        self.end.append(t)
        self.outcome.append(0)
        self.seq.append(seq)
        self.end_seq.append(0)

    def end_attempt(self, index: int, t: float, outcome: str, seq: int) -> None:
        """Record the end of an attempt."""
        self.outcome[index] = _OUTCOME_NUMBER.get(outcome, _FAILED)  # A later version may have other categories.
        self.end[index] = t
        self.end_seq[index] = seq


class Series:
    """A number that changes over time, in all sessions."""

    def __init__(self, scratch: Scratch) -> None:
        self.t = Column[float]("d", scratch)
        self.value = Column[int]("q", scratch)
        self.seq = Column[int]("q", scratch)
        self.starts: list[int] = []
        """Index of the first point of each session."""
        self.current_value = 0
        """The current value."""

    def put(self, value: int, t: float, seq: int) -> None:
        """Set the value from a time on."""
        self.current_value = value
        self.t.append(t)
        self.value.append(value)
        self.seq.append(seq)

    def points(self, session: int) -> Iterator[Point]:
        """Return the points of one session."""
        end = self.starts[session] if session < len(self.starts) else len(self.t)
        points = range(self.starts[session - 1], end)
        return zip(self.t.select(points), self.value.select(points), self.seq.select(points), strict=True)


class TrialNumbers:
    """Trials and their numbers, in the order of enqueueing: a hash table that takes a quarter of the memory of a dict."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._buckets = array("I", bytes(4 * 64))
        """Number of a trial + 1, in the first free bucket from its hash on; 0 if the bucket is free."""
        self._recent_numbers: dict[str, int] = {}
        """Numbers of trials that were looked up, for speed."""

    def _bucket(self, name: str) -> int:
        """Return the bucket of a trial, or the free bucket where it belongs."""
        names, buckets = self.names, self._buckets
        mask = len(buckets) - 1
        bucket = hash(name) & mask
        while (number := buckets[bucket]) and names[number - 1] != name:
            bucket = (bucket + 1) & mask
        return bucket

    def get(self, name: str) -> int | None:
        """Return the number of a trial; None if it is unknown."""
        number = self._recent_numbers.get(name)
        if number is None:
            number = self._buckets[self._bucket(name)] - 1
            if number < 0:
                return None
            if len(self._recent_numbers) >= _RECENT:
                self._recent_numbers.clear()
            self._recent_numbers[name] = number
        return number

    def __getitem__(self, name: str) -> int:
        number = self.get(name)
        if number is None:
            raise KeyError(name)
        return number

    def add(self, name: str) -> int:
        """Add a new trial; return its number."""
        self.names.append(name)
        self._buckets[self._bucket(name)] = len(self.names)
        if 2 * len(self.names) > len(self._buckets):
            self._buckets = array("I", bytes(8 * len(self._buckets)))
            for number, trial in enumerate(self.names, 1):
                self._buckets[self._bucket(trial)] = number
        return len(self.names) - 1


class TrialTimes(Mapping[str, Times]):
    """How each trial spent its time so far, in the order of enqueueing."""

    def __init__(self, scratch: Scratch) -> None:
        self.numbers = TrialNumbers()
        """Trial → its index in the columns."""
        self.names = self.numbers.names
        self.stage = Column[int]("B", scratch)
        self.stage_start = Column[float]("d", scratch)
        """When it entered its stage."""
        self.backoff_end = Column[float]("d", scratch)
        """End of its backoff."""
        self.span = Column[int]("l", scratch)
        """Index of its last attempt in `Spans`; -1 before the first."""
        self.attempts = Column[int]("l", scratch)
        self.stage_seconds = tuple(Column[float]("d", scratch) for _ in range(5))
        """Stage → seconds spent in it; idle time is not meaningful."""
        self.now = 0.0
        """Time of the last record."""

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, trial: str) -> Times:
        number = self.numbers[trial]
        stage_seconds = [column[number] for column in self.stage_seconds]
        stage_seconds[self.stage[number]] += self.now - self.stage_start[number]
        _, queue_time, backoff_time, run_time, scoring_time = stage_seconds
        return Times(queue_time, backoff_time, run_time, scoring_time, self.attempts[number])

    def seconds(self, stage: int, numbers: Iterable[int]) -> Iterator[float]:
        """Yield the seconds that trials have spent in a stage."""
        columns = (column.select(numbers) for column in (self.stage_seconds[stage], self.stage, self.stage_start))
        for total, current_stage, start in zip(*columns, strict=True):
            yield total + (self.now - start) if current_stage == stage else total

    def add(self, trial: str) -> int:
        """Add a new trial; return its index."""
        number = self.numbers.add(trial)
        self.stage.append(IDLE)
        self.span.append(-1)
        self.attempts.append(0)
        for column in (self.stage_start, self.backoff_end, *self.stage_seconds):
            column.append(0.0)
        return number
