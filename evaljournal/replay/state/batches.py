"""The batches of a run: what was sent, what the provider reported, and what is still open.

`Batches` is attached with the first batch that is prepared. It comes after the trials and the scorer calls in the order of
projections: a line is in use until the event that ends its attempt or call has been counted, because its usage is that of the
batch.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import attrs

from evaljournal.journal import Event, Record, events
from evaljournal.journal.fact import evolve_fact
from evaljournal.journal.format.batches import BatchLines
from evaljournal.replay.state.trial import TrialState
from evaljournal.replay.state.usage import add, noted_usage

UNSENT_STATES: Final = frozenset({"not_sent", "forked"})
"""States in `batch_collected` of a batch that was not submitted."""
LOST_STATES: Final = frozenset({"deleted", "archived", "incomplete"})
"""States in `batch_changed` of a batch that the provider does not have, or not with all of its results."""


@attrs.define(eq=False, kw_only=True)
class BatchState:
    prepared: events.BatchPrepared
    """What was prepared; without `trials` when it has ended."""
    lines: int
    prepared_at: str
    prepared_seq: int
    submitted_at: str = ""
    """Wall time of its submission; empty: the provider may not have it."""
    ended_at: str = ""
    """Wall time of its end; empty: it is open."""
    id: str = ""
    """The provider's id of the batch."""
    file: str = ""
    """The provider's id of the input file."""
    expires: str = ""
    """When unfinished lines expire, as an ISO time; empty: unknown."""
    state: str = "prepared"
    """`prepared`, `submitted`, then the provider's own word, or the state in `batch_collected`."""
    completed: int = 0
    """Lines with a result, as the provider counts them."""
    failed: int = 0
    """Lines with an error, as the provider counts them."""
    message: str = ""
    """The provider's error."""
    results: int = 0
    """Lines whose result was used."""
    missing: int = 0
    """Lines without a result; set when it has ended."""
    unused: int = 0
    """Results that were not used; set when it has ended."""
    usage: Counter[str] = attrs.field(factory=Counter[str])
    """What its lines used, as far as their results were read; costs are at the batch price."""

    @property
    def is_open(self) -> bool:
        return not self.ended_at

    @property
    def is_lost(self) -> bool:
        """Whether it is open, and its results were not available when they were last asked for; `cancel` ends it."""
        return self.is_open and self.state in LOST_STATES


class Batches(dict[int, BatchState]):
    """Which batches are open or ended, and which trials wait for their lines? Number → batch."""

    def __init__(self, trials: Mapping[str, TrialState]) -> None:
        super().__init__()
        self._trials = trials
        self.lines = BatchLines()
        """The lines of the open batches, and the trials that wait for them."""
        self.uncalled_trials: set[str] = set()
        """Trials whose last attempt used a line of a batch and was interrupted: nothing was called, so nothing is repeated."""

    def is_rescored(self, batch: int) -> bool:
        """Return whether an open batch has calls of a judge for completed trials, so that only `rescore` uses its results."""
        trials = self.lines.open_lines(batch).values()
        return bool(self.lines.open[batch].scorer) and any(self._trials[trial].stage == "completed" for trial in trials)

    def _on_batch_prepared(self, event: events.BatchPrepared, record: Record) -> None:
        self[event.batch] = BatchState(prepared=event, lines=len(event.trials), prepared_at=record.at, prepared_seq=record.seq)
        self.lines.advance(event)

    def _on_batch_submitted(self, event: events.BatchSubmitted, record: Record) -> None:
        batch = self[event.batch]
        batch.id, batch.file, batch.expires = event.id, event.file, event.expires
        batch.state, batch.submitted_at = "submitted", record.at
        self.lines.advance(event)

    def _on_batch_changed(self, event: events.BatchChanged, _: Record) -> None:
        batch = self[event.batch]
        batch.state, batch.completed, batch.failed = event.state, event.completed, event.failed
        batch.expires, batch.message = event.expires or batch.expires, event.message
        self.lines.advance(event)

    def _on_batch_collected(self, event: events.BatchCollected, record: Record) -> None:
        batch = self[event.batch]
        batch.state, batch.ended_at, batch.message = event.state, record.at, event.message or batch.message
        batch.results, batch.missing, batch.unused = event.results, event.missing, event.unused
        batch.prepared = evolve_fact(batch.prepared, trials=[])
        self.lines.advance(event)

    def _on_attempt_started(self, event: events.AttemptStarted, _: Record) -> None:
        self.uncalled_trials.discard(event.trial)
        self.lines.advance(event)

    def _on_attempt_interrupted(self, event: events.AttemptInterrupted, _: Record) -> None:
        if self.lines.is_in_use(event.trial):
            self.uncalled_trials.add(event.trial)
        self.lines.advance(event)

    def _on_attempt_succeeded(
        self, event: events.AttemptSucceeded | events.AttemptFailed | events.AttemptTimedOut, _: Record
    ) -> None:
        self._add_usage(event.trial, event.usage)
        self.lines.advance(event)

    _on_attempt_failed = _on_attempt_timed_out = _on_attempt_succeeded

    def _on_step_completed(self, event: events.StepCompleted, _: Record) -> None:
        if event.phase == "task":
            self._add_usage(event.trial, event.usage)

    def _on_noted(self, event: events.Noted, _: Record) -> None:
        self._add_usage(event.trial, noted_usage(event.name, event.value))

    def _add_usage(self, trial: str, usage: Any) -> None:
        if batch := self.lines.batch_in_use(trial):
            add(self[batch].usage, usage)

    def _advance_lines(self, event: Event, _: Record) -> None:
        self.lines.advance(event)

    _on_session_started = _advance_lines
    _on_scorer_call_started = _on_scorer_call_failed = _advance_lines
    _on_trial_scored = _on_scoring_failed = _advance_lines
    _on_trial_failed = _on_trial_withdrawn = _advance_lines
