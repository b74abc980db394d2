"""Sums over the trials of a run and of its variants.

`UsageParts` has the parts of a run's usage: what attempts without an output used, and which models have no price. Usage that an
attempt notes belongs to it until it ends: only then is it known whether an output came of it. Other projections report what
their events used; notes are read here.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from evaljournal.journal import Record, events
from evaljournal.journal.format.lifecycle import STAGES
from evaljournal.replay.state.answers import NotedAnswer
from evaljournal.replay.state.definition import variant_fingerprints
from evaljournal.replay.state.scores import Scores
from evaljournal.replay.state.session_errors import ERROR_CHARS
from evaljournal.replay.state.trial import Location, RunningAttempt, TrialState
from evaljournal.replay.state.usage import add, noted_usage, unpriced_models
from evaljournal.replay.state.versions import VersionLog

REPLAYED: Final = f"{events.NOTE_PREFIX}replayed"
"""The note that an answer or a verdict was replayed: `run`, `seq`, `head`, and the `unpaid` usage."""
_MAX_UNPRICED_MODELS: Final = 20


@attrs.define(eq=False)
class Totals:
    stages: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(STAGES, 0))
    """Stage → number of trials."""
    attempts: int = 0
    recovered: int = 0
    """Trials that were completed after a failed attempt."""
    usage: Counter[str] = attrs.field(factory=Counter[str])
    """Sums of all numbers in notes and in the usage of attempts; those of judges are named `judge.…`."""
    scores: Scores = attrs.field(factory=Scores)
    answers: Counter[str] = attrs.field(factory=Counter[str])
    """Current outputs that are `truncated` or `declined` answers, as far as attempts have noted it."""
    truncation_causes: Counter[str] = attrs.field(factory=Counter[str])
    """What truncated answers, a key of `ADVICE` → number of current outputs."""
    empty_outputs: Counter[str] = attrs.field(factory=Counter[str])
    """What truncated answers of which there is no text, a key of `ADVICE`, or empty → number of current outputs."""
    models: Counter[str] = attrs.field(factory=Counter[str])
    """Model that answered → number of current outputs, as far as attempts have noted it."""
    excluded: Counter[str] = attrs.field(factory=Counter[str])
    """Those of `answers` that are not scored, because the settings exclude them."""

    def count_answer(self, answer: NotedAnswer | None, change: int) -> None:
        """Count the answer that is a trial's output, or, with a `change` of -1, remove it."""
        if answer is not None:
            outcome, model, is_excluded, cause, is_empty = answer
            if outcome:
                self.answers[outcome] += change
            if cause:
                self.truncation_causes[cause] += change
            if is_empty:
                self.empty_outputs[cause] += change
            if is_excluded:
                self.excluded[outcome] += change
            if model:
                self.models[model] += change

    @property
    def truncated(self) -> int:
        return self.answers["truncated"]

    @property
    def declined(self) -> int:
        return self.answers["declined"]

    @property
    def total(self) -> int:
        return sum(self.stages.values()) - self.stages["withdrawn"]

    @property
    def completed(self) -> int:
        """Trials with an output that all scorers have processed."""
        return self.stages["completed"]

    @property
    def done(self) -> int:
        return self.stages["completed"] + self.stages["failed"]

    @property
    def outputs(self) -> int:
        """Trials with an output, scored or not."""
        return self.stages["completed"] + self.stages["scoring"]

    @property
    def failed(self) -> int:
        return self.stages["failed"]


class Variants(dict[str, Totals]):
    """Variant → sums over its trials, in the order of their first trials; empty if the run has no variants.

    Trials without a variant are under an empty name if the run has others.
    """

    def __init__(self) -> None:
        super().__init__()
        self._versions: dict[str, VersionLog] = {}
        """Variant → the versions of its parameters; only variants whose parameters have changed."""
        self._fingerprints: Mapping[str, str] = {}
        """Variant → the fingerprint of the parameters that were adopted last."""

    @property
    def names(self) -> list[str]:
        """The names of the variants that were not removed, without the empty one."""
        return [name for name, totals in self.items() if name and totals.total]

    def enqueue(
        self,
        variant: str,
        repeat: int,
        trials: Mapping[str, TrialState],
        scores: Scores,
        sums: Callable[[], Totals],
    ) -> None:
        """Count a trial that is enqueued; `trials` are those before it, and `sums` returns the sums over them."""
        if not self and trials:
            self._add("", sums(), scores)
        if variant not in self:
            self._add(variant, Totals(), scores)
        totals = self[variant]
        totals.stages["queued"] += 1
        if repeat > 1 and not totals.scores.is_grouped_by_case:
            totals.scores.group_by_case([trial for trial in trials.values() if trial.variant == variant])

    def _add(self, variant: str, totals: Totals, scores: Scores) -> None:
        self[variant] = totals
        scores.add_variant(variant, totals.scores)

    def adopt(self, old_definition: Any, new_definition: Any, location: Location) -> None:
        old_fingerprints = variant_fingerprints(old_definition)
        self._fingerprints = variant_fingerprints(new_definition)
        for name, fingerprint in self._fingerprints.items():
            if fingerprint != old_fingerprints.get(name):
                self._versions.setdefault(name, VersionLog()).change(location, old_fingerprints.get(name, ""))

    def is_outdated(self, trial: TrialState) -> bool:
        """Return whether a trial was enqueued before the parameters of its variant changed."""
        log, fingerprint = self._versions.get(trial.variant), self._fingerprints.get(trial.variant, "")
        return log is not None and log.is_older(trial.input_location, fingerprint)


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
        """Recorded replies that were used."""

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
