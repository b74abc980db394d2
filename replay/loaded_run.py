"""A run as its journal tells it: now, or as it stood after any earlier record.

A `LoadedRun` goes as far as the records can be trusted, and says where that is not the end. What is large stays on disk and is
found again by its place; what is derived is derived anew each time somebody asks. Nothing here changes anything.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from journal import JournalError, Record, read
from journal.blobs import loaded
from journal.errors import BlobDamaged, InvalidRecord, JournalDamaged
from journal.events import AttemptSucceeded, SessionStarted
from journal.files import DISK
from journal.reader import Finder
from journal.scan import ScanStop
from replay.state import RunState, TrialState
from replay.summary import Grouping, Summary, summarise
from replay.timeline import Timeline
from replay.trial import TrialStory
from replay.waits import WaitLog


@attrs.define
class LoadedRun:
    """A run, as far as its journal can be trusted, or up to the record that was asked for."""

    path: Path
    state: RunState = attrs.field(factory=RunState)
    """Where it stood then."""
    seq: int = 0
    """The last record that was taken in."""
    durable: int = 0
    """The last record that was known to be on disk by then."""
    before: int = 0
    """Trials that were done when the session of then began."""
    is_last: bool = True
    """Whether nothing follows, as far as the journal was read."""
    problem: JournalDamaged | InvalidRecord | None = None
    """What is wrong with the journal behind the last record; not looked for where an earlier one was asked for."""
    unfinished: ScanStop | None = None
    """Where the last record ends, if something that nobody was promised stands behind it: a writer is at work, or died."""

    @property
    def total(self) -> int | None:
        """How many trials there will be, if that is known."""
        return self.state.total if self.state.ending == "finished" else self.state.planned or None

    @property
    def trials(self) -> Mapping[str, TrialState]:
        """Every trial by its name, in the order in which they were taken in; those that were withdrawn are among them."""
        return self.state.trials

    def records(self, *, load_blobs: bool = False) -> Iterator[Record]:
        """Read the records again, up to the last that counts here; large values stay on disk unless they are asked for."""
        if self.seq:
            for record in read(self.path, load_blobs=load_blobs):
                yield record
                if record.seq >= self.seq:
                    return

    def outputs(self) -> Iterator[tuple[str, Any]]:
        """Give every trial that has an output, and the output, in the order in which they were taken in, from disk."""
        with Finder(self.path) as finder:
            for name, trial in self.state.trials.items():
                if trial.answer is not None and trial.stage != "withdrawn":
                    event = finder.find(*trial.answer).event
                    assert isinstance(event, AttemptSucceeded)
                    yield name, event.output

    def timeline(self) -> Timeline:
        """Tell what happened when."""
        told = Timeline()
        with reject_invalid_record(self.path, lambda: told.seq + 1):
            for record in self.records():
                told.apply(record)
        return told

    def summary(self, by: str | None = None) -> Summary:
        """Say what came of it by then, in numbers; with a key of the metadata, for each group of trials too."""
        if by is None:
            return summarise(self.state)
        found = Grouping(by)
        for record in self.records():
            found.take(record)
        return summarise(self.state, groups=found.groups)

    def trial(self, name: str) -> TrialStory:
        """Tell all there is to know of a trial; `KeyError` if there is none of this name."""
        story = TrialStory(name, stage=self.state.trials[name].stage)
        told, log = Timeline(), WaitLog(name)
        with reject_invalid_record(self.path, lambda: told.seq + 1):
            for record in self.records():
                waits = log.take(record)
                told.apply(record)
                if getattr(record.event, "trial", None) == name:
                    try:
                        story.take(record._replace(event=loaded(record.event, DISK)), told, waits)
                    except BlobDamaged as exc:
                        story.problem = exc
                        story.take(record, told, waits)
        story.look(told)
        return story

    def take(self, record: Record) -> None:
        """Take in the next record, as somebody does who goes along with a run; `understanding` it is the caller's affair."""
        self.state.apply(record)
        self.seq = record.seq
        self.durable = max(self.durable, record.d)
        if record.event.__class__ is SessionStarted:
            self.before = self.state.done


@contextmanager
def reject_invalid_record(path: Path, seq: Callable[[], int]) -> Generator[None]:
    """Refuse a record (its number is asked for) that is whole and yet makes no sense: something else has written it."""
    try:
        yield
    except KeyError as exc:
        raise InvalidRecord(path, seq(), f"it speaks of {exc}, which is not there") from exc
    except (TypeError, ValueError, AttributeError, OverflowError) as exc:
        raise InvalidRecord(path, seq(), f"it makes no sense ({exc})") from exc


Take = Callable[[LoadedRun, Record], None]
"""Lets a history take in a record; somebody who wants to know what it changes can look before and after."""


def load(path: Path | str, at: int | None = None, *, take: Take = LoadedRun.take) -> LoadedRun:
    """Take in a run, whether it is live, stopped, finished or damaged: all of it, or what had happened by record `at`.

    Damage does not raise, it is told by `problem`; unless the record that is asked for lies behind it. Where `take` cannot
    make sense of a record, that is told in the same way.
    """
    history = LoadedRun(Path(path))
    if at is not None and at < 1:
        raise JournalError(f"{path} has no record {at:,}; the first is 1")
    reading = read(path, load_blobs=False)
    seq = 1
    try:
        with reject_invalid_record(history.path, lambda: seq):
            for record in reading:
                if at is not None and record.seq > at:
                    history.is_last = False
                    return history
                seq = record.seq
                take(history, record)
                seq += 1
    except (JournalDamaged, InvalidRecord) as exc:
        if at is None:
            history.problem = exc
        elif history.seq < at:
            raise
        else:
            history.is_last = False
        return history
    history.unfinished = reading.unfinished
    if at is not None and history.seq < at:
        raise JournalError(f"{path} has no record {at:,}; the last is {history.seq:,}")
    return history
