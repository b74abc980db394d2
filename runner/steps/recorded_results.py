"""The results of completed steps, and the trajectories of outputs, read from the journal."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from journal.errors import BlobDamaged
from journal.events import StepCompleted, StepEvent
from journal.files import Files
from journal.reader import Finder
from replay.steps import RecordedStep
from replay.trajectory import StepDetails, Trajectory
from replay.trial_state import unpack_location
from runner.steps.attempt_steps import Key, RecordedResult


def read_results(path: Path, steps: list[RecordedStep], files: Files) -> Iterator[tuple[Key, RecordedResult | BlobDamaged]]:
    """Yield the results of completed steps, and the error in place of a result that cannot be read."""
    with Finder(path, files=files) as finder:
        for step in steps:
            try:
                event = finder.find(*unpack_location(step.location)).event
            except BlobDamaged as exc:
                yield (step.name, step.fingerprint), exc
                continue
            assert isinstance(event, StepCompleted)
            yield (
                (step.name, step.fingerprint),
                RecordedResult(step.seq, event.output, event.usage, number=(step.attempt, step.number), parent=step.parent),
            )


def read_trajectory(path: Path, locations: Iterable[int], attempt: int, files: Files) -> list[StepDetails]:
    """Return the steps of an attempt in the order in which they started.

    `locations` are those of the records of its steps, and of the attempts whose steps it may reuse; see `RunSteps.records`.
    """
    trajectory, steps = Trajectory(), list[StepDetails]()
    with Finder(path, files=files) as finder:
        for location in locations:
            record = finder.find(*unpack_location(location))
            step = trajectory.apply(record)
            if step is not None and isinstance(record.event, StepEvent) and record.event.attempt == attempt:
                steps.append(step)
    return sorted(steps, key=lambda step: step.number)
