"""A run read from its journal: its current state, or its state after an earlier record.

Only the state is kept in memory; records, outputs, timelines and details of trials are read from disk on each call.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import attrs

from evaljournal.journal import Blob, JournalError, Record, read
from evaljournal.journal.errors import BlobDamaged, IllegalEvent, InvalidRecord, JournalDamaged
from evaljournal.journal.events import AttemptSucceeded, TrialEnqueued
from evaljournal.journal.readers.reader import RecordReader
from evaljournal.journal.readers.scan import ScanStop
from evaljournal.replay.results.summary import NO_GROUP, Summary, summarize
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.trial import TrialState
from evaljournal.replay.text import as_text, printable

if TYPE_CHECKING:
    from evaljournal.replay.runs.timeline import Timeline
    from evaljournal.replay.runs.trial import TrialDetails
    from evaljournal.replay.runs.waits import Wait

VARIANT: Final = "variant"
"""The key that groups trials by variant, unless their metadata has it."""


class Grouping:
    """The group of each trial by a key of its metadata, which `RunState` does not keep."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.groups: dict[str, str] = {}
        """Trial → group."""
        self.keys: set[str] = set()
        """All keys of the metadata, to suggest one if `key` is mistyped."""
        self._labels: dict[str, str] = {}

    def add(self, event: TrialEnqueued) -> None:
        metadata = event.metadata.load() if isinstance(event.metadata, Blob) else event.metadata
        value = None
        if isinstance(metadata, dict):
            self.keys.update(metadata)
            value = metadata.get(self.key)
        if event.variant:
            self.keys.add(VARIANT)
            value = event.variant if value is None and self.key == VARIANT else value
        label = NO_GROUP if value is None else as_text(value)
        self.groups[event.trial] = self._labels.setdefault(label, label)  # One string per label.


@attrs.define
class LoadedRun:
    """A run up to its last valid record, or up to the requested record."""

    path: Path
    state: RunState = attrs.field(factory=RunState)
    seq: int = 0
    """The last record that was applied."""
    durable: int = 0
    """The last record known to be on disk."""
    is_last: bool = True
    """Whether `seq` is the last record that was found."""
    problem: JournalDamaged | InvalidRecord | None = None
    """Damage after the last record; not searched for if an earlier record was requested."""
    unfinished: ScanStop | None = None
    """The end of the last record, if unconfirmed bytes follow it: a writer is running, or has crashed."""
    is_live: bool = False
    """Whether a process is writing the run, or was as of an earlier record. Set by the caller, which checks the lock."""

    @property
    def status(self) -> str:
        """`running`, `finished`, `stopped`, `interrupted` or `damaged`."""
        if self.problem is not None:
            return "damaged"
        if self.is_live:
            return "running"
        return {"": "interrupted", "finished": "finished"}.get(self.state.outcome, "stopped")

    @property
    def total(self) -> int | None:
        return self.state.totals.total if self.state.outcome == "finished" else self.state.sessions.planned or None

    @property
    def trials(self) -> Mapping[str, TrialState]:
        """All trials by name, including withdrawn trials, in the order of enqueueing."""
        return self.state.trials

    def records(self, *, load_blobs: bool = False) -> Iterator[Record]:
        """Read the records up to `seq`; large values stay on disk unless `load_blobs` is set."""
        if self.seq:
            for record in read(self.path, load_blobs=load_blobs):
                yield record
                if record.seq >= self.seq:
                    return

    def outputs(self, *, load_blobs: bool = True) -> Iterator[tuple[str, Any]]:
        """Read the name and output of each trial that has one and was not withdrawn, in the order of enqueueing."""
        with RecordReader(self.path, load_blobs=load_blobs) as reader:
            for name, trial in self.state.trials.items():
                if trial.output_location is not None and trial.stage != "withdrawn":
                    event = reader.find(*trial.output_location).event
                    assert isinstance(event, AttemptSucceeded)
                    yield name, event.output

    def timeline(self) -> "Timeline":
        from evaljournal.replay.index import TIMELINE_EVENTS, Index  # noqa: PLC0415  # `status` does not need it
        from evaljournal.replay.runs.timeline import Timeline  # noqa: PLC0415

        index = Index(self.path, has_values=False)
        with reject_invalid_record(self.path, lambda: index.seq + 1):
            for record in self.records():
                (index.apply if record.event.__class__ in TIMELINE_EVENTS else index.skip)(record)
        return Timeline(index)

    def summary(self, by: str | None = None) -> Summary:
        """Return the results; with `by`, a key of the metadata, also those of each group."""
        return summarize(self.state, groups=None if by is None else self.grouping(by).groups)

    def grouping(self, by: str) -> Grouping:
        grouping = Grouping(by)
        with RecordReader(self.path, load_blobs=False) as reader:
            for trial in self.state.trials.values():
                event = reader.find(*trial.input_location).event
                assert isinstance(event, TrialEnqueued)
                grouping.add(event)
        return grouping

    def trial(self, name: str) -> "TrialDetails":
        """Read everything about one trial.

        Raises:
            KeyError: There is no such trial.
        """
        from evaljournal.replay.index import Index  # noqa: PLC0415  # `status` does not need it
        from evaljournal.replay.runs.trial import read_trial  # noqa: PLC0415
        from evaljournal.replay.runs.waits import WaitLog  # noqa: PLC0415

        if name not in self.state.trials:
            raise KeyError(name)
        index, run, waits = Index(self.path), LoadedRun(self.path), dict[int, list["Wait"]]()
        log = WaitLog(name, run.state)

        def apply(run: LoadedRun, record: Record) -> None:
            log.before(record)
            run.apply(record)
            if trial_waits := log.after(record):
                waits[record.seq] = trial_waits
            is_own = getattr(record.event, "trial", None) == name
            (index.apply if is_own else index.skip)(record)

        load(self.path, self.seq, apply=apply, run=run)
        problems: list[BlobDamaged] = []

        def load_blob(value: Any) -> Any:
            try:
                return value.load() if isinstance(value, Blob) else value
            except BlobDamaged as exc:
                problems.append(exc)
                return value

        details = read_trial(index, self.state, name, load_blob, waits)
        details.problem = problems[0] if problems else None
        return details

    def apply(self, record: Record) -> None:
        """Apply the next record; wrap the call in `reject_invalid_record`."""
        self.state.apply(record)
        self.seq = record.seq
        self.durable = max(self.durable, record.d)


@contextmanager
def reject_invalid_record(path: Path, seq: Callable[[], int]) -> Generator[None]:
    """Turn errors from applying a record into `InvalidRecord`; `seq` returns the record's number."""
    try:
        yield
    except KeyError as exc:
        raise InvalidRecord(path, seq(), f"unknown reference {exc}") from exc
    except IllegalEvent as exc:
        raise InvalidRecord(path, seq(), exc) from exc
    except (TypeError, ValueError, AttributeError, OverflowError) as exc:
        raise InvalidRecord(path, seq(), f"invalid value ({exc})") from exc


Apply = Callable[[LoadedRun, Record], None]
"""Applies a record to a run; a caller can observe the state before and after."""


def load(path: Path | str, at: int | None = None, *, apply: Apply = LoadedRun.apply, run: LoadedRun | None = None) -> LoadedRun:
    """Load a run (live, stopped, finished or damaged) in full, or up to record `at`.

    Damage and invalid records do not raise an error unless record `at` comes after them; they are described in `problem`.
    """
    run = run or LoadedRun(Path(path))
    if at is not None and at < 1:
        raise JournalError(f"{path} has no record {at:,}; the first is 1")

    records = read(path, load_blobs=False)
    seq = 1
    try:
        with reject_invalid_record(run.path, lambda: seq):
            for record in records:
                if at is not None and record.seq > at:
                    run.is_last = False
                    return run
                seq = record.seq
                apply(run, record)
                seq += 1
    except (JournalDamaged, InvalidRecord) as exc:
        if at is None:
            run.problem = exc
        elif run.seq < at:
            raise
        else:
            run.is_last = False
        return run

    run.unfinished = records.stop
    if at is not None and run.seq < at:
        raise JournalError(f"{path} has no record {at:,}; the last is {run.seq:,}")
    return run


class TrialValues(NamedTuple):
    """The values of one trial; large ones stay on disk, as a `Blob`."""

    trial: str
    input: Any
    expected: Any
    output: Any
    """None without an output."""


def read_values(path: Path | str, trials: Mapping[str, TrialState], names: Iterable[str]) -> Iterator[TrialValues]:
    with RecordReader(path, load_blobs=False) as reader:
        for name in names:
            trial, output = trials[name], None
            enqueued = reader.find(*trial.input_location).event
            assert isinstance(enqueued, TrialEnqueued)
            if trial.output_location is not None:
                succeeded = reader.find(*trial.output_location).event
                assert isinstance(succeeded, AttemptSucceeded)
                output = succeeded.output
            yield TrialValues(name, enqueued.input, enqueued.expected, output)


def split_variant(reference: str, *directories: Path) -> tuple[str, str | None]:
    """Return the run and the variant of RUN@VARIANT; None for a whole run.

    An existing path that contains an @ is a run, in the working directory or in one of `directories`.
    """
    run, separator, variant = reference.rpartition("@")
    is_run = not separator or any((directory / reference).exists() for directory in (Path(), *directories))
    return (reference, None) if is_run else (run, variant)


def variant_problem(run: LoadedRun, variant: str | None) -> str:
    """Return what is wrong if a run has no such variant; None is the whole run."""
    names = run.state.variants.names
    if variant is None or variant in names:
        return ""
    variants = ", ".join(printable(name, 40) for name in names)
    return f"{run.path} has {f'no variant {variant!r}; its variants: {variants}' if names else 'no variants'}"
