"""The parts of a run's usage: what attempts without an output used, and which models have no price.

The sums over all trials and over each variant are in `Totals`. Usage that an attempt notes belongs to it until it ends: only
then is it known whether an output came of it. The trials and the steps report what their events used; notes are read here.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from evaljournal.journal import Record, events
from evaljournal.replay.state.session_errors import ERROR_CHARS
from evaljournal.replay.state.totals import Totals, Variants
from evaljournal.replay.state.trial import RunningAttempt, TrialState
from evaljournal.replay.state.usage import add, noted_usage, unpriced_models

REPLAYED: Final = f"{events.NOTE_PREFIX}replayed"
"""The note that an answer or a verdict was replayed: `run`, `seq`, `head`, and the `unpaid` usage."""
_MAX_UNPRICED_MODELS: Final = 20


class UsageParts:
    """Which part of the usage brought no output, and which part has no price?"""

    def __init__(
        self,
        trials: Mapping[str, TrialState],
        running: Mapping[str, RunningAttempt],
        totals: Totals,
        variants: Variants,
    ) -> None:
        self._trials = trials
        self._running = running
        self._totals = totals
        self._variants = variants
        self.unpriced_models: dict[str, list[str]] = {}
        """Name of the sum in the usage that counts calls without a price → their models, the first few."""
        self.without_output = Counter[str]()
        """What attempts without an output used: failed, timed out, interrupted or late."""
        self.unpaid = Counter[str]()
        """What the calls that were answered from recorded replies used in the runs that made them."""
        self.replayed = 0
        """Steps, answers and verdicts that were answered from recorded replies."""

    def add(self, usage: Any, name: str) -> None:
        """Add some usage of a trial to the sums."""
        add(self._totals.usage, usage)
        if self._variants and (trial := self._trials.get(name)) is not None:
            add(self._variants[trial.variant].usage, usage)
        for sum_name, model in unpriced_models(usage):
            models = self.unpriced_models.setdefault(sum_name, [])
            if model not in models and len(models) < _MAX_UNPRICED_MODELS:
                models.append(model[:ERROR_CHARS])

    def add_replayed(self, usage: Any) -> None:
        """Count a recorded reply, and what it used in the run that has paid for it."""
        self.replayed += 1
        add(self.unpaid, usage)

    def note_replayed(self, event: events.Noted) -> None:
        """Count an answer that was replayed; the latency of its attempt, if it is not that of a judge, is not the model's."""
        value = event.value if isinstance(event.value, dict) else {}
        self.add_replayed(value.get("unpaid"))
        trial = self._trials.get(event.trial)
        if trial is not None and trial.stage == "running" and trial.attempts == event.attempt:
            self._running[event.trial].latency = math.nan

    def end_without_output(self, attempt: RunningAttempt, usage: Any, name: str) -> None:
        """Add the usage of an attempt that ended without an output: what it noted, and what its end reports."""
        self.add(usage, name)
        add(self.without_output, usage)
        for part in attempt.usages or ():
            add(self.without_output, part)

    def _on_noted(self, event: events.Noted, _: Record) -> None:
        usage = noted_usage(event.name, event.value)
        self.add(usage, event.trial)
        if not event.attempt or (trial := self._trials.get(event.trial)) is None:
            return
        is_latest = trial.attempts == event.attempt
        if is_latest and trial.stage == "running":
            self._running[event.trial].add_usage(usage)
        elif not is_latest or trial.output_location is None:
            add(self.without_output, usage)  # Noted after the attempt had ended without an output.
