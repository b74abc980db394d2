"""An index of the trials of a run, from which their details are read one trial at a time.

One pass over the records collects the locations of each trial's records, in a temporary file. Inputs, outputs, reasons and
tracebacks are read from the journal when a trial is requested, so that a run of any size can be exported in little memory.
"""

import bisect
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from evaljournal.journal import Record
from evaljournal.journal.errors import InvalidRecord
from evaljournal.journal.events import (
    AttemptStarted,
    Noted,
    RetryScheduled,
    TrialCompleted,
    TrialEnqueued,
    TrialFailed,
    TrialWithdrawn,
)
from evaljournal.replay.export.source import Source
from evaljournal.replay.loaded_run import LoadedRun
from evaljournal.replay.scratch import Column, Scratch, Values
from evaljournal.replay.state import RunState
from evaljournal.replay.timeline import Timeline
from evaljournal.replay.trial import TrialDetails
from evaljournal.replay.trial_state import pack_location, unpack_location
from evaljournal.replay.usage import is_amount, noted_usage
from evaljournal.replay.variant_totals import Totals

_MAX_INTEGER: Final = 1 << 40
"""Maximum integer in usage; sums of such integers fit into 64 bits."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


class TrialIndex:
    """The trials of a run, by name."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.state = RunState()
        scratch = Scratch()
        self.timeline = Timeline(scratch)
        self.usage_names: dict[str, bool] = {}
        """Names of all numbers in usage and notes, and whether all are integers whose sums fit 64 bits."""

        # One entry for each record of a trial that adds details; completions, and most starts without a request, add none.
        self._locations = Column[int]("q", scratch)
        self._previous_index = Column[int]("q", scratch)
        """Index of the trial's previous record; -1 for the first."""

        # One entry for each trial.
        self._last_index = Column[int]("q", scratch)
        """Index of its last record in `_locations`."""
        self._enqueue_record = Column[int]("q", scratch), Column[float]("d", scratch)
        """seq and t of the record that enqueued it."""
        self._end = Column[int]("q", scratch), Column[float]("d", scratch)
        """seq and t of the record that ended it."""
        self._ended_at = Values(scratch)
        """Wall time of the record that ended it."""
        self._end_index = Column[int]("q", scratch)
        """Index in `_ended_trials`; -1 until it is completed or has failed."""

        self._ended_trials = Column[int]("q", scratch)
        """Trials in the order of their ends; a trial that ended several times occurs several times."""

    @classmethod
    def load(cls, source: Source) -> "TrialIndex":
        """Load a run and index it, up to the first invalid record."""
        index = cls(source)

        def apply(run: LoadedRun, record: Record) -> None:
            index.apply(record)
            run.apply(record)

        run = source.load_run(apply)
        index.state = run.state
        return cls.load(source) if isinstance(run.problem, InvalidRecord) else index  # A part of that record may be indexed.

    def apply(self, record: Record) -> None:
        """Add the next record."""
        self.timeline.apply(record)
        event = record.event
        number = self.timeline.times.numbers.get(getattr(event, "trial", ""))
        if number is None:
            return
        if number == len(self._last_index):
            self._add_trial()
        has_details = event.request is not None or event.reuses if isinstance(event, AttemptStarted) else True
        if has_details and not isinstance(event, TrialCompleted):
            self._previous_index.append(self._last_index[number])
            self._last_index[number] = len(self._locations)
            self._locations.append(pack_location(record))
        match event:
            case TrialEnqueued():
                self._enqueue_record[0][number], self._enqueue_record[1][number] = record.seq, record.t
                self._end_index[number] = -1
            case TrialCompleted() | TrialFailed():
                self._end[0][number], self._end[1][number], self._ended_at[number] = (
                    record.seq,
                    record.t,
                    record.at,
                )
                if self._end_index[number] < 0:
                    self._end_index[number] = len(self._ended_trials)
                    self._ended_trials.append(number)
            case RetryScheduled() | TrialWithdrawn():
                self._end_index[number] = -1
            case Noted():
                self._add_usage_names(noted_usage(event.name, event.value))
            case _:
                self._add_usage_names(getattr(event, "usage", None))

    def _add_trial(self) -> None:
        for column in (self._last_index, self._end_index, self._enqueue_record[0], self._end[0]):
            column.append(-1)
        self._enqueue_record[1].append(0.0)
        self._end[1].append(0.0)

    def _add_usage_names(self, usage: Any) -> None:
        if isinstance(usage, dict):
            for name, value in usage.items():
                if is_amount(value):
                    is_integer = isinstance(value, int) and abs(value) <= _MAX_INTEGER
                    self.usage_names[name] = is_integer and self.usage_names.get(name, True)

    def trials(self, *stages: str, variant: str | None = None) -> Iterator[TrialDetails]:
        """Return the trials in the order of enqueueing, or only trials in some stages or of one variant."""
        for name, trial in self.state.trials.items():
            if (not stages or trial.stage in stages) and variant in (None, trial.variant):
                yield self.trial(name)

    def trial(self, name: str) -> TrialDetails:
        """Read one trial from disk."""
        number = self.timeline.times.numbers[name]
        locations: list[int] = []
        index = self._last_index[number]
        while index >= 0:
            locations.append(self._locations[index])
            index = self._previous_index[index]
        details, self.source.trial = TrialDetails(name), name
        for location in reversed(locations):
            details.apply(self.source.find(unpack_location(location)), self.timeline)
        details.finish(self.timeline, self.state)
        details.ended_at = self._ended_at[number] if self._end_index[number] >= 0 else ""
        if details.stage == "withdrawn":
            details.scores.clear()
        return details

    def ended_trials(self, variant: str | None = None) -> Iterator[str]:
        """Return the completed and failed trials of the run, or of one variant, in the order of their ends."""
        for index, number in enumerate(self._ended_trials.values()):
            name = self.timeline.times.names[number]
            if self._end_index[number] == index and variant in (None, self.state.trials[name].variant):
                yield name

    @property
    def variants(self) -> list[str]:
        """The variants with trials that were not withdrawn; empty if the run has none."""
        return [name for name, totals in self.state.variants.items() if totals.total]

    def totals(self, variant: str | None) -> Totals:
        """Return the sums over the trials of one variant, or of the run."""
        return self.state if variant is None else self.state.variants[variant]

    def enqueue_time(self, trial: str) -> int:
        """Return when a trial was enqueued, in nanoseconds since 1970."""
        number = self.timeline.times.numbers[trial]
        return self.wall_time(self._enqueue_record[0][number], self._enqueue_record[1][number])

    def end_time(self, trial: str) -> int:
        """Return when a trial ended, in nanoseconds since 1970; 0 if it has not."""
        number = self.timeline.times.numbers[trial]
        return self.wall_time(self._end[0][number], self._end[1][number]) if self._end_index[number] >= 0 else 0

    @property
    def scorers(self) -> list[str]:
        """All scorers, in the order of the definition."""
        return list(self.state.scores)

    def wall_time(self, seq: int, t: float) -> int:
        """Return the wall time of `t` in the session of a record, in nanoseconds since 1970, on the timeline's axis."""
        return self.session_time(bisect.bisect_right(self.timeline.sessions, seq, key=lambda session: session.seq), t)

    def session_time(self, session: int, t: float) -> int:
        """Return the wall time of `t` in a session (from 1), in nanoseconds since 1970."""
        first_session = self.timeline.sessions[0]
        offset = self.timeline.sessions[session - 1].offset - first_session.offset
        return _nanoseconds(first_session.at) + round((offset + t - first_session.start) * 1_000_000) * 1_000

    @staticmethod
    def iso_time(nanoseconds: int) -> str:
        """Return nanoseconds since 1970 as text, within the years that Python supports."""
        return (_EPOCH + timedelta(microseconds=min(max(0, nanoseconds // 1_000), _LATEST))).isoformat()


def _nanoseconds(time: str) -> int:
    """Return a record's wall time in nanoseconds since 1970; 0 if it is invalid."""
    try:
        return (datetime.fromisoformat(time) - _EPOCH) // timedelta(microseconds=1) * 1_000
    except (ValueError, TypeError):
        return 0
