"""The source of an export: a run whose large values are read from disk one at a time.

The run may be live or damaged. Every pass reads the same records; the first problem is kept for the caller to report.
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import attrs

from evaljournal.journal import Blob, Event, JournalError, Record
from evaljournal.journal.blobs import blobs_of
from evaljournal.journal.errors import BlobDamaged
from evaljournal.journal.events import SegmentOpened
from evaljournal.journal.reader import Finder
from evaljournal.replay.loaded_run import Apply, LoadedRun, load
from evaljournal.replay.trial_state import Location


class Source:
    """The records of a run, in order and by location."""

    def __init__(self, path: Path | str, at: int | None = None) -> None:
        """Read a run, in full or up to record `at`; it is loaded when it is first needed."""
        self._path = path
        self._at = at
        self.problem: JournalError | None = None
        """The first damage."""
        self.trial = ""
        """The trial that is being read, or was read last."""
        self.damaged_trial = ""
        """The trial with the first damaged blob."""
        self._finder = Finder(path, load_blobs=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._finder.__exit__()

    @cached_property
    def run(self) -> LoadedRun:
        """The run as it was when it was loaded."""
        return self.load_run()

    def load_run(self, apply: Apply = LoadedRun.apply) -> LoadedRun:
        """Load the run and apply each record with `apply`."""
        run = self.run = load(self._path, self._at, apply=apply)
        self._at = run.seq
        self.problem = self.problem or run.problem
        return run

    @cached_property
    def run_id(self) -> str:
        """Id of the run; empty if it was not recorded."""
        first_record = next(self.records(), None)
        return first_record.event.run if first_record is not None and isinstance(first_record.event, SegmentOpened) else ""

    def records(self) -> Iterator[Record]:
        """Read the records; large values stay on disk."""
        return self.run.records()

    def find(self, location: Location) -> Record:
        """Read one record with its large values."""
        record = self._finder.find(*location)
        return record._replace(event=self.with_blobs(record.event))

    def load(self, value: Any) -> Any:
        """Load a value if it is a blob; a damaged one becomes None and is reported as a problem."""
        try:
            return value.load() if isinstance(value, Blob) else value
        except BlobDamaged as exc:
            if self.problem is None:
                self.problem, self.damaged_trial = exc, self.trial
            return None

    def with_blobs(self, event: Event) -> Event:
        """Load the large values of an event."""
        values = {field: self.load(blob) for field, blob in blobs_of(event).items()}
        evolvable: Any = event
        return attrs.evolve(evolvable, **values) if values else event
