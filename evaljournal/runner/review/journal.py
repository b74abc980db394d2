"""The one way to write labels: the command `annotate`, imported files and the page in a browser use it.

A writer holds the lock of `RUN/review/` only while it appends, so that several reviewers can work at the same time.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from evaljournal.journal import Event, Journal, read, writing
from evaljournal.journal.disk.segments import is_run
from evaljournal.journal.errors import JournalExists, JournalLocked
from evaljournal.journal.events import Annotated, ReviewSampled, ReviewSaved, ReviewStarted, RunStarted
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay.review.labels import (
    Label,
    Method,
    OutputKey,
    Review,
    Sample,
    draw_sample,
    has_output,
    labels_by_trial,
    labels_of_outputs,
    output_keys,
    population,
    read_review,
    review_path,
    run_id,
)
from evaljournal.replay.runs.loaded_run import LoadedRun, load
from evaljournal.replay.state.trial import Value
from evaljournal.replay.text import stage_text
from evaljournal.runner.errors import UsageError, suggest

LOCK_TIMEOUT: Final = 60.0
"""Seconds to wait for another process that writes labels."""
MAX_LABEL: Final = 64 << 10
"""Maximum bytes of a label with its note."""
_POLL: Final = 0.02


@attrs.frozen(kw_only=True)
class Annotation:
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
        self.is_import = False
        """Whether the labels count only if all of them are recorded."""
        self._labels_before_import: int | None = None
        if review.is_importing:  # Its writer was killed: discard its labels.
            self.append(ReviewSaved(labels=len(review.history)))

    def save(self, *, is_complete: bool) -> None:
        """Append that everything is synced; an import that is not complete is discarded."""
        count = self._labels_before_import
        if count is None or is_complete:
            self.append(ReviewSaved(labels=len(self.review.history), imports="" if count is None else "completed"))
        else:
            self.append(ReviewSaved(labels=count))

    def append(self, event: Event) -> int:
        if self.is_import and self._labels_before_import is None and isinstance(event, Annotated):
            self._labels_before_import = len(self.review.history)
            self._journal.append(ReviewSaved(labels=self._labels_before_import, imports="begun"))
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
    if is_run(path):
        events = (record.event for record in read(path, load_blobs=False))
        start = next((event for event in events if isinstance(event, RunStarted | ReviewStarted)), None)
        if isinstance(start, RunStarted) or (start is not None and start.run != run_id(run.path)):
            read_review(run.path)  # Raises: it is not the review of this run. Nothing is written.

    async with AsyncExitStack() as exits:
        journal = await _open(exits, path)
        review = OpenReview(journal, await trio.to_thread.run_sync(read_review, run.path) if journal.initial_seq else Review())
        if journal.lifecycle.stage == "new":
            evaluation = run.state.started.evaluation if run.state.started else ""
            review.append(ReviewStarted(run=run_id(run.path), head=run.state.head, evaluation=evaluation))

        is_complete = False
        try:
            yield review
            is_complete = True
        finally:
            if journal.appended_seq > journal.initial_seq and journal.failure is None:
                with trio.CancelScope(shield=True):
                    await journal.wait_durable(journal.appended_seq)
                review.save(is_complete=is_complete)  # Its `d` confirms all records before it.


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


async def annotate(run: LoadedRun, annotations: Sequence[Annotation], *, is_import: bool = False) -> list[Label]:
    """Record labels; they are on disk when it returns. A reviewer's earlier label of the same name is replaced.

    A label that is already recorded is returned as it is, so that a file can be imported again after a crash. An import also
    leaves out labels that the reviewer has replaced since: otherwise, importing a file again would revert corrections.
    """
    for annotation in annotations:
        check_trial(run, annotation.trial)
        check_texts(annotation)

    keys = output_keys(run, {annotation.trial: None for annotation in annotations})
    if withdrawals := [annotation for annotation in annotations if annotation.value == ""]:
        await trio.to_thread.run_sync(_check_withdrawals, run, withdrawals, keys)
    async with writing_review(run) as review:
        replaced_labels = _replaced_labels(review.review) if is_import else {}
        labels: list[Label] = []
        review.is_import = is_import
        for annotation in annotations:
            key = keys[annotation.trial]
            replaced_label = replaced_labels.get((key, annotation.name, annotation.reviewer, annotation.value, annotation.note))
            labels.append(replaced_label or review.label(annotation, key))
        return labels


def _replaced_labels(review: Review) -> dict[tuple[Any, ...], Label]:
    """Return the labels of the reviewers themselves that no longer count, because they gave another one."""
    labels = {
        (label.key, label.name, label.reviewer, label.value, label.note): label
        for label in review.history
        if not label.carried_from
    }
    for newest_label in review.newest.values():
        key = (newest_label.key, newest_label.name, newest_label.reviewer, newest_label.value, newest_label.note)
        labels.pop(key, None)
    return labels


def _check_withdrawals(run: LoadedRun, withdrawals: Sequence[Annotation], keys: Mapping[str, OutputKey]) -> None:
    """Raise if a reviewer withdraws a label without having given it, here or in another run with this output."""
    review = read_review(run.path)
    for annotation in withdrawals:
        name, trial, reviewer = annotation.name, annotation.trial, annotation.reviewer
        label = review.newest.get((keys[trial], name, reviewer))
        if label is None:
            labels = labels_by_trial(run, review).get(trial, ())
            label = next((label for label in labels if (label.name, label.reviewer) == (name, reviewer)), None)
        if label is None or label.value == "":
            raise UsageError(f"{reviewer!r} has given {trial!r} no label {name!r} that could be withdrawn")


async def carry_labels(target: Path, sources: Sequence[Path]) -> int:
    """Record the labels of runs in the review of a new run that was copied from them; return their number.

    A sample is recorded, too, if the new run gives the same one, so that its labels count for it.
    """
    reviews = [review for review in map(read_review, sources) if review.history or review.samples]
    if not reviews:
        return 0

    run = load(target)
    labels = [
        evolve_fact(label, carried_from=label.carried_from or review.run) for review in reviews for label in review.labels
    ]

    count = 0
    async with writing_review(run) as open_review:
        for sample in (sample for review in reviews for sample in review.samples.values()):
            parameters: dict[str, Any] = {name: getattr(sample, name) for name in ("name", "method", "n", "seed")}
            population_size, probabilities = draw_sample(run, (), **parameters)
            if probabilities == sample.trials:
                fields = {"sample": len(open_review.review.samples) + 1, "head": run.state.head, **parameters}
                open_review.append(ReviewSampled(**fields, population=population_size, trials=probabilities))
        for trial, own_labels in labels_of_outputs(run, labels).items():
            for label in own_labels:
                open_review.carry(label, trial)
                count += 1
    return count


def check_texts(annotation: Annotation) -> None:
    """Raise if a label cannot be recorded: it is not valid Unicode, or too large."""
    texts = (annotation.name, annotation.reviewer, annotation.note, str(annotation.value))
    try:
        size = sum(len(text.encode()) for text in texts)
    except UnicodeEncodeError as exc:
        raise UsageError(f"the label is not valid Unicode: {exc.object[exc.start : exc.end]!a}") from exc
    if size > MAX_LABEL:
        raise UsageError(f"the label with its note is larger than {MAX_LABEL >> 10} KiB")


def check_trial(run: LoadedRun, trial: str) -> None:
    """Raise if a run has no such trial, or the trial has no output to label."""
    if trial not in run.state.trials:
        raise UsageError(f"{run.path} has no trial {trial!r}{suggest(trial, run.state.trials)}")
    if not has_output(run.state.trials[trial]):
        raise UsageError(f"trial {trial!r} has no output to label: it is {stage_text(run.state.trials[trial].stage)}")
