"""The source of an export: a run and its index, whose large values are read from disk one at a time.

The run may be live or damaged. Every pass reads the same records; the first problem is kept for the caller to report.
"""

import bisect
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from evaljournal.journal.errors import BlobDamaged, InvalidRecord, JournalError
from evaljournal.journal.events import Event, Record, SegmentOpened
from evaljournal.journal.fact import evolve_fact
from evaljournal.journal.format.blobs import Blob, blobs_of
from evaljournal.replay.index import Index
from evaljournal.replay.review.labels import Label, labels_by_trial, read_review
from evaljournal.replay.runs.loaded_run import LoadedRun, load
from evaljournal.replay.runs.trial import TrialDetails, read_trial
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.totals import Totals

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


class Source:
    def __init__(self, path: Path | str, at: int | None = None) -> None:
        """Read a run, in full or up to record `at`; it is loaded when it is first needed."""
        self._path = Path(path)
        self._at = at
        self.problem: JournalError | None = None
        """The first damage."""
        self.trial_name = ""
        """The trial that is being read, or was read last."""
        self.damaged_trial = ""
        """The trial with the first damaged blob."""

    @cached_property
    def run(self) -> LoadedRun:
        """The run as it was when it was loaded, without its index; `state` is the same if the index is needed."""
        return self._loaded(load(self._path, self._at))

    @cached_property
    def index(self) -> Index:
        """The index of the run, which is loaded in the same pass."""
        index = Index(self._path)

        def apply(run: LoadedRun, record: Record) -> None:
            index.apply(record)
            run.apply(record)

        self.run = run = self._loaded(load(self._path, self._at, apply=apply))
        if not isinstance(run.problem, InvalidRecord):
            return index
        index = Index(self._path)  # A part of the invalid record may be in the first one.
        for record in run.records():
            index.apply(record)
        return index

    def _loaded(self, run: LoadedRun) -> LoadedRun:
        self._at = run.seq
        self.problem = self.problem or run.problem
        return run

    @cached_property
    def state(self) -> RunState:
        """The state of the run, which is loaded with its index."""
        self.index  # noqa: B018  # loads the run
        return self.run.state

    @cached_property
    def labels(self) -> dict[str, list[Label]]:
        """The labels of each trial's output; a damaged review is reported as a problem."""
        try:
            return labels_by_trial(self.run, read_review(self._path))
        except JournalError as exc:
            self.problem = self.problem or exc
            return {}

    @cached_property
    def run_id(self) -> str:
        """Id of the run; empty if it was not recorded."""
        first_record = next(self.records(), None)
        return first_record.event.run if first_record is not None and isinstance(first_record.event, SegmentOpened) else ""

    def apply(self, record: Record) -> None:
        """Add the next record of a live run."""
        self.run.apply(record)
        self.index.apply(record)

    def records(self) -> Iterator[Record]:
        """Read the records; large values stay on disk."""
        return self.run.records()

    def load(self, value: Any) -> Any:
        """Load a value if it is a blob; a damaged one becomes None and is reported as a problem."""
        try:
            return value.load() if isinstance(value, Blob) else value
        except BlobDamaged as exc:
            if self.problem is None:
                self.problem, self.damaged_trial = exc, self.trial_name
            return None

    def with_blobs(self, event: Event) -> Event:
        """Load the large values of an event."""
        values = {field: self.load(blob) for field, blob in blobs_of(event).items()}
        return evolve_fact(event, **values) if values else event

    def trials(self, *stages: str, variant: str | None = None) -> Iterator[TrialDetails]:
        """Return the trials in the order of enqueueing, or only trials in some stages or of one variant."""
        for name, trial in self.state.trials.items():
            if (not stages or trial.stage in stages) and variant in (None, trial.variant):
                yield self.trial(name)

    def trial(self, name: str) -> TrialDetails:
        self.trial_name = name
        details = read_trial(self.index, self.state, name, self.load)
        if details.stage == "withdrawn":
            details.scores.clear()
        return details

    def ended_trials(self, variant: str | None = None) -> Iterator[str]:
        """Return the completed and failed trials of the run, or of one variant, in the order of their ends."""
        for name, own_variant in self.index.rows("SELECT name, variant FROM trials WHERE end_seq > 0 ORDER BY end_seq"):
            if variant in (None, own_variant):
                yield name

    @property
    def variants(self) -> list[str]:
        """The variants with trials that were not withdrawn; empty if the run has none."""
        return [name for name, totals in self.state.variants.items() if totals.total]

    def totals(self, variant: str | None) -> Totals:
        return self.state.totals if variant is None else self.state.variants[variant]

    @property
    def scorers(self) -> list[str]:
        """All scorers, in the order of the definition."""
        return list(self.state.scores)

    def enqueue_time(self, trial: TrialDetails) -> int:
        """Return when a trial was enqueued, in nanoseconds since 1970."""
        return self.wall_time(trial.row.enqueue_seq, trial.row.enqueue_t)

    def end_time(self, trial: TrialDetails) -> int:
        """Return when a trial ended, in nanoseconds since 1970; 0 if it has not."""
        return self.wall_time(trial.row.end_seq, trial.row.end_t) if trial.row.end_seq else 0

    def wall_time(self, seq: int, t: float) -> int:
        """Return the wall time of `t` in the session of a record, in nanoseconds since 1970, on the timeline's axis."""
        return self.session_time(bisect.bisect_right(self.index.sessions, seq, key=lambda session: session.seq), t)

    def session_time(self, session: int, t: float) -> int:
        """Return the wall time of `t` in a session (from 1), in nanoseconds since 1970."""
        sessions = self.index.sessions
        offset = sessions[session - 1].offset - sessions[0].offset
        return _nanoseconds(sessions[0].at) + round((offset + t - sessions[0].start) * 1_000_000) * 1_000


def iso_time(nanoseconds: int) -> str:
    """Return nanoseconds since 1970 as text, within the years that Python supports."""
    return (_EPOCH + timedelta(microseconds=min(max(0, nanoseconds // 1_000), _LATEST))).isoformat()


def _nanoseconds(time: str) -> int:
    """Return a record's wall time in nanoseconds since 1970."""
    return (datetime.fromisoformat(time) - _EPOCH) // timedelta(microseconds=1) * 1_000
