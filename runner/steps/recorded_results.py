"""The results of completed steps, read from the journal."""

from collections.abc import Iterator
from pathlib import Path

from journal.errors import BlobDamaged
from journal.events import StepCompleted
from journal.files import Files
from journal.reader import Finder
from replay.steps import RecordedStep
from replay.trial_state import unpacked
from runner.steps.attempt_steps import Key, RecordedResult


def read_results(path: Path, steps: list[RecordedStep], files: Files) -> Iterator[tuple[Key, RecordedResult | BlobDamaged]]:
    """Yield the results of completed steps; in place of one that cannot be read, the problem."""
    with Finder(path, files=files) as finder:
        for step in steps:
            try:
                event = finder.find(*unpacked(step.location)).event
            except BlobDamaged as exc:
                yield (step.name, step.fingerprint), exc
                continue
            assert isinstance(event, StepCompleted)
            yield (step.name, step.fingerprint), RecordedResult(step.seq, event.output)
