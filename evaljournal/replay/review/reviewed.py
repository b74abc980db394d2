"""A run joined with its review: the labels of its outputs, and its scores, corrected by those of a random sample.

Also how well a scorer agrees with the labels, and what the journal alone shows about it.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Final, TypeVar

import attrs

from evaljournal.journal import Blob
from evaljournal.journal.disk.segments import is_run
from evaljournal.journal.events import Noted
from evaljournal.replay.results.comparison import Side, add_digest
from evaljournal.replay.results.pairing import Pairing, score
from evaljournal.replay.results.pairwise import pairwise_summaries
from evaljournal.replay.review.agreement import (
    Coefficient,
    Measure,
    Unit,
    Value,
    ac1,
    alpha,
    alpha_of_numbers,
    coefficients,
    kappa,
    slope,
)
from evaljournal.replay.review.correction import (
    Case,
    CorrectedScore,
    Kind,
    Observation,
    SampleUse,
    correct,
    correct_difference,
    labels_alone,
)
from evaljournal.replay.review.labels import Label, Review, labels_of_outputs, population, read_review, review_path
from evaljournal.replay.runs.loaded_run import LoadedRun, TrialValues, read_values
from evaljournal.replay.state.tally import is_summable
from evaljournal.replay.state.trial import TrialState
from evaljournal.replay.state.usage import JUDGE_NOTE
from evaljournal.replay.statistics import Estimate
from evaljournal.replay.text import as_text

T = TypeVar("T")

_FAMILY: Final = re.compile(r"[a-z]+")
"""The family of a model: the first letters of its name, such as `gpt` of `openai/gpt-5-mini`."""


@attrs.frozen
class Reviewed:
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

        for sample in self.review.samples.values():
            if sample.name != name:
                continue

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


@attrs.frozen
class Rate:
    """A share with its 95 % confidence interval."""

    mean: float
    low: float | None
    high: float | None
    n: int


@attrs.frozen
class Cell:
    """One cell of the confusion table."""

    judge: Value
    label: Value
    count: int


@attrs.frozen(kw_only=True)
class Disagreement:
    """An output on which the scorer and a human label disagree."""

    trial: str
    judge: Value
    label: Value
    """The label of most reviewers, or the mean of numbers."""
    notes: Sequence[str]


@attrs.frozen(kw_only=True)
class Consistency:
    """Verdicts on equal outputs of one case: of its repeats, or of its variants."""

    pairs: int
    same: int
    """Pairs of equal outputs with the same verdict."""


@attrs.frozen(kw_only=True)
class PositionFlips:
    """Pairs of outputs that the judge was shown in both orders."""

    pairs: int
    flips: int
    """Pairs whose winner was that of the same position in both orders."""
    to_first: int
    """Those in which it was the first position."""


@attrs.frozen(kw_only=True)
class Bias:
    """How the error of a scorer (score minus label) depends on something that it should not depend on."""

    n: int
    """Outputs with a label."""
    error_without: float
    error_with: float
    """Mean error of the outputs without a property, and of those with it: shorter and longer ones, for example."""
    difference: float
    low: float | None
    high: float | None
    """Their difference, with its 95 % confidence interval, clustered by case."""


@attrs.frozen(kw_only=True)
class Agreement:
    question: str
    """Name of the scorer and of the labels."""
    kind: str
    """Of the labels: `pass`, `number` or `label`."""
    labels: int
    """Outputs with a label that are used here: with a score, unless the labels are of no scorer."""
    is_sampled: bool
    """Whether these are of a random sample, weighted; otherwise all labels are used, and nothing holds for other outputs."""
    unsampled: int
    """Labels that count for no sample; not used if `is_sampled`."""
    unscored: int
    """Outputs with a number as label and another kind of score; not used."""
    unblinded: int
    """Outputs with a label whose reviewer saw the scores."""
    tied: int
    """Outputs without a majority among the reviewers: only α uses them."""
    reviewers: Mapping[str, int]
    """Reviewer → labels."""
    confusion: Sequence[Cell]
    """Empty for numbers."""
    ac1: Coefficient | None
    kappa: Coefficient | None
    alpha: Coefficient | None
    """Krippendorff's α of the scorer and all reviewers: nominal, or interval for numbers."""
    alpha_reviewers: Coefficient | None
    """The same of the reviewers alone; None without outputs that two have labeled."""
    true_pass_rate: Rate | None
    """Share of the outputs that pass by their label which the scorer lets pass."""
    true_fail_rate: Rate | None
    """Share of the outputs that fail by their label which the scorer fails."""
    corrected: CorrectedScore | None
    disagreements: Sequence[Disagreement]
    consistency: Consistency | None
    """None without equal outputs of one case."""
    position_flips: PositionFlips | None
    """Of pairwise judging with the same model; None without it."""
    length: Bias | None
    """The error on outputs up to the median length, and on longer ones; None if all are equally long."""
    own_family: Bias | None
    """The error on outputs of other models and of the judge's own family; None without both kinds of models."""

    @property
    def coefficient(self) -> Coefficient | None:
        """The coefficient that gates use: AC1, or α for numbers."""
        return self.alpha if self.kind == "number" else self.ac1


def agreement(reviewed: Reviewed, side: Side, name: str) -> Agreement:
    """Compare the scores of a scorer with the labels of its name."""
    scores = {trial: value for trial in side.ids.values() if (value := score(side.state.trials[trial], name)) is not None}
    labels = reviewed.labels_of(name, side.ids.values())
    if scores:
        labels = {trial: own for trial, own in labels.items() if trial in scores}
    weights = {trial: weight for trial, weight in reviewed.weights(name).items() if trial in labels}
    if is_sampled := bool(weights):
        labels = {trial: own for trial, own in labels.items() if trial in weights}
    kind = _kind(label.value for own in labels.values() for label in own)
    unscored = {trial for trial in labels if kind == "number" and scores and not is_summable(scores[trial])}
    labels = {trial: own for trial, own in labels.items() if trial not in unscored}

    consensus = {trial: value for trial, own in labels.items() if (value := _consensus(own, kind)) is not None}
    trials, rated = side.state.trials, consensus if scores else {}
    units = {trial: Unit((scores[trial], value), weights.get(trial, 1.0)) for trial, value in rated.items()}
    people = {trial: Unit(tuple(label.value for label in own), weights.get(trial, 1.0)) for trial, own in labels.items()}
    ratings = {trial: Unit((scores[trial], *unit.values), unit.weight) for trial, unit in people.items() if scores}

    measures: dict[str, Measure] = {} if kind == "number" else {"ac1": ac1, "kappa": kappa}
    alpha_measure = alpha_of_numbers if kind == "number" else alpha
    pairs = coefficients(by_case(units, trials), measures) if units else {}
    errors = _errors(units, kind)
    digests, judges = _read_digests_and_judges(reviewed.run, name)
    lengths = {values.trial: _output_length(values) for values in read_values(reviewed.run.path, trials, errors)}

    return Agreement(
        question=name,
        kind=kind,
        labels=len(labels),
        is_sampled=is_sampled,
        unsampled=reviewed.unused(name, side),
        unscored=len(unscored),
        unblinded=sum(any(not label.is_blind for label in own) for own in labels.values()),
        tied=len(labels) - len(consensus),
        reviewers=dict(Counter(label.reviewer for own in labels.values() for label in own).most_common()),
        confusion=[] if kind == "number" else _confusion(units.values()),
        ac1=pairs.get("ac1"),
        kappa=pairs.get("kappa"),
        alpha=_alpha(ratings, trials, alpha_measure),
        alpha_reviewers=_alpha(people, trials, alpha_measure),
        true_pass_rate=_rate(units, trials, is_pass=True) if kind == "pass" else None,
        true_fail_rate=_rate(units, trials, is_pass=False) if kind == "pass" else None,
        corrected=reviewed.corrected(side).get(name),
        disagreements=[
            Disagreement(
                trial=trial, judge=scores[trial], label=value, notes=[label.note for label in labels[trial] if label.note]
            )
            for trial, value in rated.items()
            if scores[trial] != value
        ],
        consistency=_consistency(scores, trials, digests),
        position_flips=_position_flips(side, name, judges),
        length=_length_bias(errors, trials, lengths),
        own_family=_own_family(errors, trials, judges),
    )


def _kind(values: Iterable[Value]) -> str:
    types = {type(value) for value in values}
    return "pass" if types == {bool} else "label" if str in types else "number"


def _consensus(labels: Sequence[Label], kind: str) -> Value | None:
    """Return the label of most reviewers, or the mean of numbers; None if several labels are equally frequent."""
    if kind == "number":
        return math.fsum(float(label.value) for label in labels) / len(labels)
    counts = Counter(label.value for label in labels).most_common(2)
    return None if len(counts) > 1 and counts[0][1] == counts[1][1] else counts[0][0]


def _alpha(units: Mapping[str, Unit], trials: Mapping[str, TrialState], measure: Measure) -> Coefficient | None:
    pairable_units = {trial: unit for trial, unit in units.items() if len(unit.values) > 1}
    return coefficients(by_case(pairable_units, trials), {"alpha": measure})["alpha"] if pairable_units else None


def _confusion(units: Iterable[Unit]) -> list[Cell]:
    counts = Counter(unit.values for unit in units)
    return [Cell(values[0], values[1], count) for values, count in sorted(counts.items(), key=lambda item: repr(item[0]))]


def _rate(units: Mapping[str, Unit], trials: Mapping[str, TrialState], *, is_pass: bool) -> Rate | None:
    """Return the share of outputs with this label on which the scorer agrees."""
    observations = {
        trial: Observation(0.0, float(judge == label), weight)
        for trial, ((judge, label), weight) in units.items()
        if label is is_pass
    }
    estimate = labels_alone(by_case(observations, trials), "pass")
    return None if estimate is None else Rate(estimate.mean, estimate.low, estimate.high, len(observations))


def _errors(units: Mapping[str, Unit], kind: str) -> dict[str, tuple[float, float]]:
    """Return score minus label, and the weight, of each output; empty if they are texts."""
    if kind == "label":
        return {}
    rows = ((trial, judge, label, weight) for trial, ((judge, label), weight) in units.items())
    return {trial: (float(judge) - float(label), weight) for trial, judge, label, weight in rows if is_summable(judge)}


def _read_digests_and_judges(run: LoadedRun, name: str) -> tuple[dict[str, bytes], set[str]]:
    """Return trial → digest of its output, and the models that the scorer called, in one pass over the records."""
    digests: dict[str, bytes] = {}
    judges: set[str] = set()
    scorers = {name, name.partition(".")[0]}

    for record in run.records():
        add_digest(digests, record)
        event = record.event
        if isinstance(event, Noted) and event.name == JUDGE_NOTE:
            note = event.value.load() if isinstance(event.value, Blob) else event.value
            if isinstance(note, dict) and note.get("scorer") in scorers and isinstance(model := note.get("model"), str):
                judges.add(model)
    return digests, judges


def _output_length(values: TrialValues) -> int:
    return len(as_text(values.output.load() if isinstance(values.output, Blob) else values.output))


def _consistency(
    scores: Mapping[str, Value], trials: Mapping[str, TrialState], digests: Mapping[str, bytes]
) -> Consistency | None:
    verdicts: defaultdict[tuple[str, bytes], Counter[Value]] = defaultdict(Counter)
    for trial, value in scores.items():
        if trial in digests:
            verdicts[trials[trial].case, digests[trial]][value] += 1
    pairs = sum(math.comb(counts.total(), 2) for counts in verdicts.values())
    same = sum(math.comb(count, 2) for counts in verdicts.values() for count in counts.values())
    return Consistency(pairs=pairs, same=same) if pairs else None


def _position_flips(side: Side, name: str, judges: Collection[str]) -> PositionFlips | None:
    summaries = pairwise_summaries(side.state, side.variant).items()
    own = [summary for scorer, summary in summaries if scorer == name or summary.model in judges]
    pairs, flips, to_first = (sum(getattr(summary, field) for summary in own) for field in ("pairs", "flips", "flips_to_first"))
    return PositionFlips(pairs=pairs, flips=flips, to_first=to_first) if pairs else None


def _bias(rows: Iterable[tuple[str, bool, float, float]]) -> Bias | None:
    """Compare the errors of outputs with and without a property; a row has the case, the property, the error and its weight."""
    units = list(rows)
    estimate: Estimate | None = slope(units)
    if estimate is None:
        return None
    sums = {False: (0.0, 0.0), True: (0.0, 0.0)}
    for _, has_property, error, weight in units:
        total, weights = sums[has_property]
        sums[has_property] = total + error * weight, weights + weight

    error_without, error_with = (total / weights for total, weights in sums.values())
    return Bias(
        n=len(units),
        error_without=error_without,
        error_with=error_with,
        difference=estimate.mean,
        low=estimate.low,
        high=estimate.high,
    )


def _length_bias(
    errors: Mapping[str, tuple[float, float]], trials: Mapping[str, TrialState], lengths: Mapping[str, int]
) -> Bias | None:
    """Compare outputs up to the median length with longer ones; a slope over lengths may predict errors that are impossible."""
    ordered = sorted(lengths[trial] for trial in errors)
    limit = min(ordered[(len(ordered) - 1) // 2], ordered[-1] - 1) if ordered else 0  # The longest ones are always longer.
    return _bias((trials[trial].case, lengths[trial] > limit, *error) for trial, error in errors.items())


def _own_family(
    errors: Mapping[str, tuple[float, float]], trials: Mapping[str, TrialState], judges: Iterable[str]
) -> Bias | None:
    families = {_family(model) for model in judges}
    rows = (
        (trials[trial].case, _family(answer.model) in families, *error)
        for trial, error in errors.items()
        if (answer := trials[trial].answer) is not None and answer.model
    )
    return _bias(rows) if families else None


def _family(model: str) -> str:
    match = _FAMILY.search(model.rpartition("/")[2].lower())
    return match[0] if match else model
