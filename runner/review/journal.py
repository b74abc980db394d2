"""The one way to write labels: the command `annotate`, imported files and the page in a browser use it.

A writer holds the lock of `RUN/review/` only while it appends, so that several reviewers can work at the same time.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from evaljournal.journal import Event, Journal, writing
from evaljournal.journal.disk.segments import is_run
from evaljournal.journal.errors import JournalExists, JournalLocked
from evaljournal.journal.events import Annotated, ReviewSampled, ReviewSaved, ReviewStarted
from evaljournal.replay import LoadedRun
from evaljournal.replay.review.labels import (
    Label,
    OutputKey,
    Review,
    Sample,
    fold_review,
    has_output,
    labels_by_trial,
    labels_of_outputs,
    output_keys,
    read_review,
    review_path,
    run_id,
)
from evaljournal.replay.review.sampling import Method, draw_sample, population
from evaljournal.replay.runs.loaded_run import load
from evaljournal.replay.state.trial import Value
from evaljournal.replay.text import stage_text
from evaljournal.runner.errors import UsageError
from evaljournal.runner.suggest import suggest

LOCK_TIMEOUT: Final = 60.0
"""Seconds to wait for another process that writes labels."""
_POLL: Final = 0.02


@attrs.frozen(kw_only=True)
class Annotation:
    """A label to be recorded."""

    trial: str
    name: str
    value: Value
    """Empty text withdraws the reviewer's earlier label."""
    note: str = ""
    reviewer: str
    is_blind: bool = False
    """Whether the scores were hidden from the reviewer."""


_ANNOTATION_FIELDS: Final = tuple(field.name for field in attrs.fields(Annotation))


class OpenReview:
    """The journal of a review, open for writing."""

    def __init__(self, journal: Journal, review: Review) -> None:
        self._journal = journal
        self.review = review
        """Its state, including what was appended."""

    def append(self, event: Event) -> int:
        """Append a record; return its number."""
        record = self._journal.append(event)
        self.review.apply(record)
        return record.seq

    def label(self, annotation: Annotation, key: OutputKey, *, carried_from: str = "") -> Label:
        """Append a label, unless the reviewer's newest label for this output and sample is equal; return it."""
        earlier_label = self.review.newest.get((key, annotation.name, annotation.reviewer))
        sample = 0 if carried_from else self.review.sample_of(annotation.trial, annotation.name)
        fields = {**attrs.asdict(annotation), **key._asdict(), "sample": sample, "carried_from": carried_from}
        if earlier_label is None or fields != {name: getattr(earlier_label, name) for name in fields}:
            self.append(Annotated(**fields, replaces=earlier_label.seq if earlier_label else 0))
            return self.review.history[-1]
        return earlier_label

    def carry(self, label: Label, trial: str) -> None:
        """Append a label of another run."""
        fields: dict[str, Any] = {name: getattr(label, name) for name in _ANNOTATION_FIELDS}
        self.label(Annotation(**fields | {"trial": trial}), label.key, carried_from=label.carried_from)


@asynccontextmanager
async def writing_review(run: LoadedRun) -> AsyncGenerator[OpenReview]:
    """Open the review of a run for writing; when the block ends, everything is synced. Waits while another process writes."""
    path = review_path(run.path)
    read_review(run.path)  # Raises if it is not the review of this run, before anything is written.
    async with AsyncExitStack() as exits:
        journal = await _open(exits, path)
        review = OpenReview(journal, fold_review(path) if journal.initial_seq else Review())
        if journal.lifecycle.stage == "new":
            evaluation = run.state.started.evaluation if run.state.started else ""
            review.append(ReviewStarted(run=run_id(run.path), head=run.state.head, evaluation=evaluation))
        try:
            yield review
        finally:
            if journal.appended_seq > journal.initial_seq and journal.failure is None:
                with trio.CancelScope(shield=True):
                    await journal.wait_durable(journal.appended_seq)
                review.append(ReviewSaved(labels=len(review.review.history)))  # Its `d` confirms all records before it.


async def _open(exits: AsyncExitStack, path: Path) -> Journal:
    deadline = trio.current_time() + LOCK_TIMEOUT
    while True:
        try:
            return await exits.enter_async_context(writing(path, new=not is_run(path), seal=False))
        except (JournalLocked, JournalExists) as exc:
            # Another process writes labels, or has created the review in the meantime.
            if trio.current_time() > deadline or (isinstance(exc, JournalExists) and not is_run(path)):
                raise
        await trio.sleep(_POLL)


async def take_sample(run: LoadedRun, *, name: str, method: Method, n: int, seed: int) -> Sample:
    """Draw and record a sample, or return the recorded one with this name, method, size and seed.

    Before it is drawn, labels of the same outputs in other runs are recorded as carried over.
    """
    if not population(run.state.trials, name):
        raise UsageError(f"{run.path} has no output to review", hint="try again when a trial has one")
    async with writing_review(run) as open_review:
        review = open_review.review
        for sample in review.samples.values():
            if (sample.name, sample.method, sample.n, sample.seed) == (name, method, n, seed):
                return sample
        for trial, labels in labels_by_trial(run, review).items():
            for label in labels:
                if label.carried_from and (label.key, label.name, label.reviewer) not in review.newest:
                    open_review.carry(label, trial)
        size, probabilities = draw_sample(run, review.newest.values(), name=name, method=method, n=n, seed=seed)
        number = len(review.samples) + 1
        parameters: dict[str, Any] = {"name": name, "method": method, "n": n, "seed": seed, "head": run.state.head}
        open_review.append(ReviewSampled(sample=number, **parameters, population=size, trials=probabilities))
        return review.samples[number]


async def annotate(run: LoadedRun, annotations: Sequence[Annotation]) -> list[Label]:
    """Record labels; they are on disk when it returns. A reviewer's earlier label of the same name is replaced.

    A label that is already recorded is returned as it is, so that a file can be imported again after a crash.
    """
    for annotation in annotations:
        check_trial(run, annotation.trial)
    keys = output_keys(run, {annotation.trial: None for annotation in annotations})
    async with writing_review(run) as review:
        return [review.label(annotation, keys[annotation.trial]) for annotation in annotations]


async def carry_labels(target: Path, sources: Sequence[Path]) -> int:
    """Record the labels of runs in the review of a new run that was copied from them; return their number.

    A sample is recorded, too, if the new run gives the same one, so that its labels count for it.
    """
    reviews = [review for review in map(read_review, sources) if review.history or review.samples]
    if not reviews:
        return 0
    run = load(target)
    labels = [
        attrs.evolve(label, carried_from=label.carried_from or review.run) for review in reviews for label in review.labels
    ]
    count = 0
    async with writing_review(run) as open_review:
        for sample in (sample for review in reviews for sample in review.samples.values()):
            parameters: dict[str, Any] = {name: getattr(sample, name) for name in ("name", "method", "n", "seed")}
            population_size, probabilities = draw_sample(run, (), **parameters)
            if probabilities == sample.probabilities:
                fields = {"sample": len(open_review.review.samples) + 1, "head": run.state.head, **parameters}
                open_review.append(ReviewSampled(**fields, population=population_size, trials=probabilities))
        for trial, own_labels in labels_of_outputs(run, labels).items():
            for label in own_labels:
                open_review.carry(label, trial)
                count += 1
    return count


def check_trial(run: LoadedRun, trial: str) -> None:
    """Raise if a run has no such trial, or the trial has no output to label."""
    if trial not in run.state.trials:
        raise UsageError(f"{run.path} has no trial {trial!r}{suggest(trial, run.state.trials)}")
    if not has_output(run.state.trials[trial]):
        raise UsageError(f"trial {trial!r} has no output to label: it is {stage_text(run.state.trials[trial].stage)}")
