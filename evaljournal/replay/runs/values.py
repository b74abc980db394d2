"""The input, expected output and output of trials, read from the records whose locations the state of the run has."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from evaljournal.journal.events import AttemptSucceeded, TrialEnqueued
from evaljournal.journal.readers.reader import RecordReader
from evaljournal.replay.state.trial import TrialState


class TrialValues(NamedTuple):
    """The values of one trial; large ones stay on disk, as a `Blob`."""

    trial: str
    input: Any
    expected: Any
    output: Any
    """None without an output."""


def read_values(path: Path | str, trials: Mapping[str, TrialState], names: Iterable[str]) -> Iterator[TrialValues]:
    """Read the values of some trials of a run."""
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
