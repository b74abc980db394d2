"""The calls of scorers, and the scores that they give.

A call ends with its scores, with a failure that is repeated after a delay, or with one that is recorded as the failure of the
scorer. The first call of a plain function has no start record, nor have those of built-in scorers. Only calls of the current
session are in flight: an interrupted call has no end, so a session begins with none.
"""

from collections import Counter
from typing import Any, Final

import attrs

from evaljournal.journal import Record, events
from evaljournal.replay.state.session_errors import SessionErrors
from evaljournal.replay.state.trial import OpenCall
from evaljournal.replay.state.trials import RunTrials

PAIRWISE: Final = f"{events.NOTE_PREFIX}pairwise"
"""The note of a pairwise judge: its `scorer`, the scorers of its two `orders`, and the run that it compares with."""


@attrs.define(eq=False)
class ScorerCalls:
    """Which calls of scorers are in flight or wait for a retry, and how many were there?"""

    _trials: RunTrials
    _errors: SessionErrors
    open: dict[tuple[str, str], OpenCall] = attrs.field(factory=dict[tuple[str, str], OpenCall])
    """Trial and scorer → the call in flight."""
    delayed: dict[tuple[str, str], float] = attrs.field(factory=dict[tuple[str, str], float])
    """Trial and scorer → end of the backoff after a failed call."""
    started: Counter[str] = attrs.field(factory=Counter[str])
    """By scorer."""
    failed: Counter[str] = attrs.field(factory=Counter[str])
    """By category."""
    _last_failure: tuple[str, str] | None = None
    """Trial and scorer of the last call that failed for good; its `scoring_failed` follows, and counts once."""
    pairwise: dict[str, Any] = attrs.field(factory=dict[str, Any])
    """Scorer → the last note of a pairwise judge; see `PAIRWISE`."""

    def note_pairwise(self, event: events.Noted) -> None:
        if isinstance(event.value, dict):
            self.pairwise[str(event.value.get("scorer"))] = event.value

    def _on_session_started(self, _: events.SessionStarted, __: Record) -> None:
        self.open.clear()
        self.delayed.clear()

    def _on_scorer_call_started(self, event: events.ScorerCallStarted, record: Record) -> None:
        call_id = event.trial, event.scorer
        self.delayed.pop(call_id, None)
        self.open[call_id] = OpenCall(None if event.batch else event.key, record.t)
        self.started[event.scorer] += 1

    def _on_scorer_call_failed(self, event: events.ScorerCallFailed, record: Record) -> None:
        call_id = event.trial, event.scorer
        self.open.pop(call_id, None)
        if event.delay is None:
            self._last_failure = call_id
        else:
            self.delayed[call_id] = record.t + event.delay
        self.failed[event.category] += 1
        self._errors.count_call(event, record.t, self._trials.attempts.outputs)

    def _on_trial_scored(self, event: events.TrialScored, _: Record) -> None:
        scorer = event.scorer.partition(".")[0]
        if self._errors.scorer_errors:
            self._errors.scorer_errors.pop(scorer, None)
        if self.open:
            self.open.pop((event.trial, scorer), None)
        repeated_error = self._errors.repeated_errors[scorer]
        if not repeated_error.is_over:
            repeated_error.end()
        self._trials.totals.scores.add(event, self._trials[event.trial])

    def _on_scoring_failed(self, event: events.ScoringFailed, _: Record) -> None:
        call_id = event.trial, event.scorer
        self.open.pop(call_id, None)
        if self._last_failure != call_id:  # What its call returned is not a score.
            self._errors.repeated_errors[event.scorer].count(event.error, "")
        self._last_failure = None
        self._trials.totals.scores.add_failure(event, self._trials[event.trial])
