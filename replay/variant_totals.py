"""Sums over the trials of one variant, for views that compare variants while a run is in progress."""

from collections import Counter

import attrs

from journal.lifecycle import STAGES
from replay.scores import Scores


@attrs.define(eq=False)
class VariantTotals:
    """Sums over the trials of one variant."""

    stages: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(STAGES, 0))
    """Stage → number of trials."""
    attempts: int = 0
    recovered: int = 0
    """Trials that were completed after a failed attempt."""
    usage: Counter[str] = attrs.field(factory=Counter[str])
    """Sums of all numbers in notes and in the usage of attempts; those of judges are named `judge.…`."""
    scores: Scores = attrs.field(factory=Scores)

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
        """Trials that failed for good."""
        return self.stages["failed"]
