"""Sums over the trials of a run and of its variants."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from evaljournal.journal.format.lifecycle import STAGES
from evaljournal.replay.state.definition import variant_fingerprints
from evaljournal.replay.state.scores import Scores
from evaljournal.replay.state.trial import Location, TrialState
from evaljournal.replay.state.usage import NotedAnswer
from evaljournal.replay.state.versions import VersionLog


@attrs.define(eq=False)
class Totals:
    """Sums over the trials of a run, or of one variant."""

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
        """Current outputs that were truncated."""
        return self.answers["truncated"]

    @property
    def declined(self) -> int:
        """Current outputs that were declined by the model or its provider."""
        return self.answers["declined"]

    @property
    def total(self) -> int:
        """Trials that were enqueued and not withdrawn."""
        return sum(self.stages.values()) - self.stages["withdrawn"]

    @property
    def completed(self) -> int:
        """Trials with an output that all scorers have processed."""
        return self.stages["completed"]

    @property
    def done(self) -> int:
        """Trials that were completed or failed."""
        return self.stages["completed"] + self.stages["failed"]

    @property
    def failed(self) -> int:
        """Trials that failed."""
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
        """Apply a definition that was adopted at this location."""
        old_fingerprints = variant_fingerprints(old_definition)
        self._fingerprints = variant_fingerprints(new_definition)
        for name, fingerprint in self._fingerprints.items():
            if fingerprint != old_fingerprints.get(name):
                self._versions.setdefault(name, VersionLog()).change(location, old_fingerprints.get(name, ""))

    def is_outdated(self, trial: TrialState) -> bool:
        """Return whether a trial was enqueued before the parameters of its variant changed."""
        log, fingerprint = self._versions.get(trial.variant), self._fingerprints.get(trial.variant, "")
        return log is not None and log.is_older(trial.input_location, fingerprint)
