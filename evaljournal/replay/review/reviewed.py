"""A run joined with its review: the labels of its outputs, and its scores, corrected by those of a random sample."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import TypeVar

import attrs

from evaljournal.journal.disk.segments import is_run
from evaljournal.replay.results.comparison import Side
from evaljournal.replay.results.pairing import Pairing, score
from evaljournal.replay.review.correction import (
    Case,
    CorrectedScore,
    Kind,
    Observation,
    SampleUse,
    correct,
    correct_difference,
)
from evaljournal.replay.review.labels import Label, Review, Sample, labels_of_outputs, read_review, review_path
from evaljournal.replay.review.sampling import population
from evaljournal.replay.runs.loaded_run import LoadedRun
from evaljournal.replay.state.tally import is_summable
from evaljournal.replay.state.trial import TrialState
from evaljournal.replay.statistics import Estimate

T = TypeVar("T")


@attrs.frozen
class Reviewed:
    """A run with the labels of its outputs."""

    run: LoadedRun
    review: Review
    labels: Mapping[str, Sequence[Label]]
    """Trial → the labels of its current output."""

    @property
    def names(self) -> list[str]:
        """The names of the labels, in the order of the run's scorers."""
        names = {label.name for labels in self.labels.values() for label in labels}
        scorers = [scorer for scorer in self.run.state.scores if scorer in names]
        return [*scorers, *sorted(names.difference(scorers))]

    def samples(self, name: str) -> list[Sample]:
        """Return the samples that were drawn for a question."""
        return [sample for sample in self.review.samples.values() if sample.name == name]

    def labels_of(self, name: str, trials: Iterable[str] | None = None) -> dict[str, list[Label]]:
        """Return the labels of a name by trial, of all trials or of some."""
        names = self.labels if trials is None else trials
        labels = {trial: [label for label in self.labels.get(trial, ()) if label.name == name] for trial in names}
        return {trial: own for trial, own in labels.items() if own}

    def uses(self, name: str) -> list[tuple[SampleUse, list[str]]]:
        """Return each sample of a question, with its trials whose labels count.

        A label is an answer if it was given after the sample was drawn, or carried over. Reviewers may have chosen which
        outputs to label, so only those before the first gap in the random order count, up to the last one that has a label of
        its own instead of one of an equal output. A sample with strata is not random before it is complete.
        """
        labels, outputs, results = self.labels_of(name), population(self.run.state.trials, name), []
        current_trials, own_trials = set(outputs), {label.seq: label.trial for label in self.review.newest.values()}
        for sample in self.samples(name):
            trials = [trial for trial in sample.trials if trial in current_trials]
            answers = {
                trial: own
                for trial in trials
                if (own := labels.get(trial)) and any(label.seq > sample.seq or label.carried_from for label in own)
            }
            counted_trials = list(takewhile(answers.__contains__, trials))
            missing = trials[len(counted_trials)] if len(counted_trials) < len(trials) else ""
            while (
                missing and counted_trials and all(own_trials[a.seq] != counted_trials[-1] for a in answers[counted_trials[-1]])
            ):
                counted_trials.pop()
            if len(outputs) > sample.population or (missing and sample.method != "uniform"):
                counted_trials = []
            use = SampleUse(
                id=sample.sample,
                method=sample.method,
                drawn=len(trials),
                labeled=len(answers),
                counted=len(counted_trials),
                missing=missing,
                population=sample.population,
                outputs=len(outputs),
            )
            results.append((use, counted_trials))
        return results

    def weights(self, name: str) -> dict[str, float]:
        """Return the weight of each trial whose label counts: the inverse of the probability with which it was drawn.

        Of several samples, each counts in proportion to its labels.
        """
        uses, weights = self.uses(name), defaultdict[str, float](float)
        total = sum(use.counted for use, _ in uses)
        for use, trials in uses:
            for trial in trials:
                probability = self.review.samples[use.id].trials[trial] * use.counted / use.drawn
                weights[trial] += use.counted / total / probability
        return weights

    def unused(self, name: str, side: Side) -> int:
        """Return the number of labels that count for no sample; one that also holds for equal outputs is one label."""
        labels, weights = self.labels_of(name, side.ids.values()), self.weights(name)
        used = {label.seq for trial, own in labels.items() if trial in weights for label in own}
        return len({label.seq for own in labels.values() for label in own} - used)

    def corrected(self, side: Side) -> dict[str, CorrectedScore]:
        """Return the corrected scores of the run or of a variant: those of scorers with labels that are no texts."""
        results = {name: self._corrected(name, side) for name in self.names}
        return {name: result for name, result in results.items() if result is not None}

    def _corrected(self, name: str, side: Side) -> CorrectedScore | None:
        observations, kind = self.observations(name, side)
        tally = side.totals.scores.get(name)
        if kind is None or tally is None or not observations:
            return None
        correction = correct(by_case(observations, side.state.trials), kind)
        if correction is None:
            correction = CorrectedScore(method="none", kind=kind, judge=tally.mean, trials=len(observations))
        samples = [use for use, _ in self.uses(name) if use.labeled]
        return attrs.evolve(correction, samples=samples, unsampled=self.unused(name, side))

    def observations(self, name: str, side: Side) -> tuple[dict[str, Observation], Kind | None]:
        """Return the score and the label of each trial with a score, and the kind of the labels; None: they are texts."""
        labels, weights = self.labels_of(name), self.weights(name)
        values = [label.value for own in labels.values() for label in own]
        if not all(map(is_summable, values)):
            return {}, None
        observations: dict[str, Observation] = {}
        for trial in side.ids.values():
            value = score(side.state.trials[trial], name)
            if not is_summable(value):
                continue
            numbers = [float(label.value) for label in labels.get(trial, ())] if trial in weights else []
            label = math.fsum(numbers) / len(numbers) if numbers else None
            observations[trial] = Observation(float(value), label, weights[trial] if numbers else 0.0)
        return observations, "pass" if all(isinstance(value, bool) for value in values) else "number"


def by_case(items: Mapping[str, T], trials: Mapping[str, TrialState]) -> Counter[tuple[T, ...]]:
    """Return what trials have, grouped by their case → number of cases that are equal."""
    cases: defaultdict[str, list[T]] = defaultdict(list)
    for trial, item in items.items():
        cases[trials[trial].case].append(item)
    return Counter(map(tuple, cases.values()))


def open_review(run: LoadedRun) -> Reviewed | None:
    """Return a run with the labels of its review, which do not depend on other runs; None if it has none.

    Raises:
        JournalError: The journal of the review is damaged.
    """
    if not is_run(review_path(run.path)):
        return None
    review = read_review(run.path)
    return Reviewed(run, review, labels_of_outputs(run, review.newest.values()))


def corrected_differences(a: tuple[Reviewed | None, Side], b: tuple[Reviewed | None, Side]) -> dict[str, Estimate]:
    """Return the corrected difference B - A of each score that can be corrected in both, over the trials that both have."""
    (review_a, side_a), (review_b, side_b) = a, b
    if review_a is None or review_b is None:
        return {}
    keys = Pairing(side_a.trials, side_b.trials).common_keys
    results: dict[str, Estimate] = {}
    for name in review_a.names:
        sides = [review.observations(name, side) for review, side in ((review_a, side_a), (review_b, side_b))]
        (observations_a, kind), (observations_b, kind_b) = sides
        cases: defaultdict[str, tuple[list[Observation], list[Observation]]] = defaultdict(lambda: ([], []))
        for key in keys:
            pair = observations_a.get(side_a.ids[key]), observations_b.get(side_b.ids[key])
            if pair[0] is not None and pair[1] is not None:
                cases[key[0]][0].append(pair[0])
                cases[key[0]][1].append(pair[1])
        pairs: Counter[tuple[Case, Case]] = Counter((tuple(own_a), tuple(own_b)) for own_a, own_b in cases.values())
        if kind is not None and kind == kind_b and (estimate := correct_difference(pairs, kind)) is not None:
            results[name] = estimate
    return results
