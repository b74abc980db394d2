"""The one way to write labels: the command `annotate`, imported files and the page in a browser use it.

A writer holds the lock of `RUN/review/` only while it appends, so that several reviewers can work at the same time.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

from evaljournal.journal import Event, Journal, writing
from evaljournal.journal.disk.segments import is_run
from evaljournal.journal.errors import JournalExists, JournalLocked
from evaljournal.journal.events import Annotated, ReviewStarted
from evaljournal.replay import LoadedRun
from evaljournal.replay.review.labels import (
    Label,
    OutputKey,
    Review,
    fold_review,
    output_keys,
    read_review,
    review_path,
    run_id,
)
from evaljournal.replay.state.trial import Value
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

    def append_label(self, annotation: Annotation, key: OutputKey, *, carried_from: str = "") -> Label:
        """Append a label."""
        earlier_label = self.review.newest.get((key, annotation.name, annotation.reviewer))
        fields = {
            **attrs.asdict(annotation),
            **key._asdict(),
            "sample": 0 if carried_from else self.review.sample_of(annotation.trial, annotation.name),
            "replaces": earlier_label.seq if earlier_label else 0,
            "carried_from": carried_from,
        }
        self.append(Annotated(**fields))
        return self.review.history[-1]


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
        yield review
        await journal.wait_durable(journal.appended_seq)


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


async def annotate(run: LoadedRun, annotations: Sequence[Annotation]) -> list[Label]:
    """Record labels; they are on disk when it returns. A reviewer's earlier label of the same name is replaced."""
    keys = checked_keys(run, [annotation.trial for annotation in annotations])
    async with writing_review(run) as review:
        return [review.append_label(annotation, keys[annotation.trial]) for annotation in annotations]


def checked_keys(run: LoadedRun, trials: Sequence[str]) -> Mapping[str, OutputKey]:
    """Return what labels of these trials belong to; raise if one is unknown or has no output."""
    for trial in trials:
        if trial not in run.state.trials:
            raise UsageError(f"{run.path} has no trial {trial!r}{suggest(trial, run.state.trials)}")
    keys = output_keys(run, trials)
    for trial in trials:
        if trial not in keys:
            raise UsageError(f"trial {trial!r} has no output to label: it is {run.state.trials[trial].stage}")
    return keys
