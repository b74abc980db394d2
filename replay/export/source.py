"""Where an export comes from: a run as it was loaded, whose long parts are found again on disk one at a time.

A run may be live while it is exported, and may be damaged. Every pass over it sees the same records; what is wrong with it is
remembered, for whoever asked for the export to say.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Self

import attrs

from journal import Blob, Event, JournalError, Record
from journal.codec import PAYLOAD_FIELDS
from journal.errors import BlobDamaged, InvalidRecord
from journal.events import SegmentOpened
from journal.reader import Finder
from replay.loaded_run import LoadedRun, load
from replay.state import Place


class Source:
    """The records of a run in order, and each of them again by its place."""

    def __init__(self, history: LoadedRun) -> None:
        self.history = history
        self.problem: JournalError | None = history.problem
        """The first thing that was found to be wrong."""
        self._finder = Finder(history.path, load_blobs=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._finder.__exit__()

    @cached_property
    def run(self) -> str:
        """Identity of the run; empty where it did not come to saying it."""
        first = next(self.records(), None)
        return first.event.run if first is not None and isinstance(first.event, SegmentOpened) else ""

    def records(self) -> Iterator[Record]:
        """Go through the records; large values stay on disk."""
        return self.history.records()

    def stop_before(self, seq: int, why: str) -> None:
        """Trust nothing from this record on: it is whole, but makes no sense."""
        self.history = load(self.history.path, at=seq - 1)
        self._complain(InvalidRecord(self.history.path, seq, why))

    def find(self, place: Place) -> Record:
        """Read a record again, with its large values."""
        record = self._finder.find(*place)
        return record._replace(event=self.whole(record.event))

    def whole(self, event: Event) -> Event:
        """Load the large values of an event; one that is gone, or was changed, is None and is remembered as a problem."""
        values: dict[str, Any] = {}
        for field in PAYLOAD_FIELDS.get(type(event), ()):
            value = getattr(event, field)
            if isinstance(value, Blob):
                try:
                    values[field] = value.load()
                except BlobDamaged as exc:
                    self._complain(exc)
                    values[field] = None
        known: Any = event  # Which kind of event it is, the fields have said.
        return attrs.evolve(known, **values) if values else event

    def _complain(self, problem: JournalError) -> None:
        self.problem = self.problem or problem
