"""The scores of a run: sums for each scorer, and the latest values of each trial."""

import sys
from collections.abc import Collection, Mapping
from typing import Final

from evaljournal.journal.events import ScoringFailed, TrialScored
from evaljournal.replay.state.session_errors import ERROR_CHARS
from evaljournal.replay.state.tally import Tally
from evaljournal.replay.state.trial import SharedScores, TrialState

_MAX_REASONS: Final = 1_000
_REASON_CHARS: Final = 500


class Scores(dict[str, Tally]):
    """Scorer → sums of its values, in the order in which the definition has the scorers."""

    def __init__(self) -> None:
        super().__init__()
        self.is_grouped_by_case = False
        """Whether values are also summed by case, which is needed if a case has several trials."""
        self._versions: Mapping[str, str] = {}
        self._positions: dict[str, int] = {}
        """Scorer → its position in the definition."""
        self._shared_scores = SharedScores()
        self.reasons: dict[tuple[str, str], str] = {}
        """Trial and scorer → the reason of a failing score, shortened; of the first ones only."""
        self.by_variant: dict[str, Scores] = {}
        """Variant → its scores; empty if the run has no variants."""

    def set_versions(self, scorers: Mapping[str, str]) -> None:
        """Set the scorers of the definition with their versions, or apply an adopted change to them."""
        old_versions, self._versions = self._versions, scorers
        self._positions = {scorer: position for position, scorer in enumerate(scorers)}
        for scorer, tally in self.items():
            version = scorers.get(scorer.partition(".")[0])
            if version is not None and version != old_versions.get(scorer.partition(".")[0]):
                tally.set_version(version)
        self._sort()
        for scores in self.by_variant.values():
            scores.set_versions(scorers)

    def add_variant(self, variant: str, scores: "Scores") -> None:
        """Also sum the scores of a variant separately; `scores` are its scores so far."""
        scores.set_versions(self._versions)
        self.by_variant[variant] = scores

    def _position(self, scorer: str) -> int:
        return self._positions.get(scorer.partition(".")[0], len(self._positions))

    def _sort(self) -> None:
        tallies = sorted(self.items(), key=lambda item: self._position(item[0]))
        self.clear()
        self.update(tallies)

    def tally(self, scorer: str) -> Tally:
        """Return the sums of a scorer; create them if they are missing."""
        tally = self.get(scorer)
        if tally is None:
            is_in_order = not self or self._position(scorer) >= self._position(next(reversed(self)))
            tally = self[scorer] = Tally(by_case={} if self.is_grouped_by_case else None)
            if not is_in_order:
                self._sort()
        return tally

    def group_by_case(self, trials: Collection[TrialState]) -> None:
        """Group the scores of `trials` and all later ones by case, which is needed if a case has several trials."""
        self.is_grouped_by_case = True
        for scorer, tally in self.items():
            case_scores = ((trial.case, trial.scores) for trial in trials)
            tally.group_by_case((case, scores[scorer][1]) for case, scores in case_scores if scorer in scores)

    def add(self, event: TrialScored, trial: TrialState) -> None:
        """Add a score of a trial, or replace the earlier one."""
        old_score = trial.set_score(sys.intern(event.scorer), sys.intern(event.version), event.value, self._shared_scores)
        key = event.trial, event.scorer
        if event.value is False and event.reason and (len(self.reasons) < _MAX_REASONS or key in self.reasons):
            self.reasons[key] = event.reason[:_REASON_CHARS]
        elif old_score is not None:
            self.reasons.pop(key, None)

        for scores in self._scores_of(trial):
            tally = scores.tally(event.scorer)
            if old_score is not None:
                tally.remove(old_score[1], old_score[0], trial.case)
            if event.version != tally.version:
                tally.set_version(event.version)
            tally.add(event.value, 1, trial.case)

        if trial.unscored and (scorer := event.scorer.partition(".")[0]) in trial.unscored:  # It had failed before.
            trial.unscored = tuple(name for name in trial.unscored if name != scorer)
            for scores in self._scores_of(trial):
                scores[scorer].failed -= 1

    def add_failure(self, event: ScoringFailed, trial: TrialState) -> None:
        """Add a failure of a scorer, unless it has failed for the trial before."""
        if event.scorer not in trial.unscored:
            trial.unscored = (*trial.unscored, event.scorer)
            for scores in self._scores_of(trial):
                tally = scores.tally(event.scorer)
                tally.failed += 1
                tally.error = f"{event.error}: {event.message}"[:ERROR_CHARS]

    def _scores_of(self, trial: TrialState) -> "tuple[Scores, ...]":
        return (self, self.by_variant[trial.variant]) if self.by_variant else (self,)

    def remove(self, name: str, trial: TrialState) -> None:
        """Remove the scores, their reasons and the failures of a trial that was withdrawn."""
        for scorer in trial.scores:
            self.reasons.pop((name, scorer), None)
        for scores in self._scores_of(trial):
            for scorer, (version, value) in trial.scores.items():
                scores[scorer].remove(value, version, trial.case)
            for scorer in trial.unscored:
                scores[scorer].failed -= 1
        trial.clear_scores()
