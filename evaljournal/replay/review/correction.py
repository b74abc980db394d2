"""Corrected scores: the mean of a judge over all trials, corrected by human labels of a random sample of them.

Prediction-powered inference (PPI++, Angelopoulos, Duchi and Zrnic 2023, arXiv 2311.01453), in the form of survey sampling's
regression estimator, which gives the same numbers: the mean of the labels, plus a slope times the judge's mean over all trials
minus its mean over those with a label. A label is weighted by the inverse of the probability with which its trial was sampled
(Hájek). The variance is the sum over cases of the squared influence of all trials of the case, so repeats, trials with and
without a label, and both sides of a difference may depend on each other within a case.

docs/review-statistics.md has the formulas, and the coverage of the intervals as measured by simulation.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import attrs

from evaljournal.replay.statistics import Estimate, Z, t_quantile, wilson

MIN_LABELS: Final = 30
"""Labels below which there is no correction."""
MIN_OF_CLASS: Final = 10
"""Labels of each class below which there is no correction; for numbers, labels that differ from the judge."""
_PSEUDO_LABELS: Final = 0.5
"""False passes, and false fails, of the judge that the variance counts in addition to those found (the half of Jeffreys and of
Haldane and Anscombe): without them, the interval of a judge that agrees with nearly all labels covers the true mean in only
75 % of samples."""
Kind = Literal["pass", "number"]


class Observation(NamedTuple):
    """A trial: the judge's score, the human label, and the weight of the label."""

    judge: float
    label: float | None = None
    """None: not sampled, or not labeled yet."""
    weight: float = 0.0
    """Inverse of the probability with which the trial was sampled; 0 without a label."""


Case = tuple[Observation, ...]
"""The trials of a case that are taken together."""


@attrs.frozen(kw_only=True)
class SampleUse:
    """A random sample, and how much of it has labels."""

    id: int
    method: str
    """How it was drawn: `uniform`, `stratified` or `disagreements`."""
    drawn: int
    labeled: int
    counted: int
    """Outputs whose labels count: in the order of a uniform sample, those before the first one without a label; of other
    samples, all or none."""
    missing: str = ""
    """The first output without a label; empty if there is none."""
    population: int
    """Outputs that it was drawn from."""
    outputs: int
    """Outputs that could be drawn now; if there are more, the others had no chance, and no label counts."""


@attrs.frozen(kw_only=True)
class CorrectedScore:
    """The score that human labels would give, estimated from the labels of a random sample; never part of a mean."""

    method: Literal["ppi", "labels", "none"]
    """`ppi`: the scorer's mean, corrected; `labels`: that of the labels alone, because they are too few; `none`: no label
    counts for a random sample."""
    kind: Kind
    judge: float | None
    """Mean of the scorer over all trials."""
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    """95 % confidence interval of the mean."""
    weight: float = 0.0
    """λ of PPI++: how much the scorer contributes, from 0 to 1."""
    labels: int = 0
    """Outputs with a label that is used."""
    trials: int
    """Trials with a score."""
    cases: int = 0
    """Cases with a label that is used."""
    samples: Sequence[SampleUse] = ()
    unsampled: int = 0
    """Labels that are not used, because they count for no sample."""


def correct(cases: Mapping[Case, int], kind: Kind) -> CorrectedScore | None:
    """Return the corrected mean over cases, each with the number of cases equal to it; None without a label.

    With the kind `pass`, labels are shares between 0 and 1: of the reviewers of an output who let it pass.
    """
    fit = _fit(cases, kind)
    if fit is None:
        return None
    estimate = _corrected(fit, cases, kind) if fit.method == "ppi" else _labels_alone(fit, cases, kind)
    return CorrectedScore(
        method=fit.method,
        kind=kind,
        judge=fit.judge_mean,
        mean=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        weight=fit.slope * (fit.trials - fit.labels) / fit.trials,
        labels=fit.labels,
        trials=fit.trials,
        cases=fit.cases,
    )


def labels_alone(cases: Mapping[Case, int], kind: Kind) -> Estimate | None:
    """Return the weighted mean of the labels: a share with Wilson's interval, or a mean of numbers with that of Student's t.

    For Wilson's interval, the number of labels is divided by the design effect of their weights and of repeats.
    """
    fit = _fit(cases, kind)
    return None if fit is None else _labels_alone(attrs.evolve(fit, slope=0.0), cases, kind)


def _labels_alone(fit: "_Fit", cases: Mapping[Case, int], kind: Kind) -> Estimate:
    mean, squares = fit.label_mean, fit.squares(cases)
    if kind == "pass":
        spread = mean * (1 - mean)
        effective_n = min(fit.labels, spread / squares) if squares > 0 else fit.cases
        return Estimate(mean, math.sqrt(squares), *wilson(mean, effective_n))
    error = math.sqrt(squares * fit.cases / (fit.cases - 1)) if fit.cases > 1 else 0.0
    half = t_quantile(fit.cases - 1) * error if error else math.nan
    return Estimate(mean, error, mean - half, mean + half) if error else Estimate(mean, None, None, None)


def _corrected(fit: "_Fit", cases: Mapping[Case, int], kind: Kind) -> Estimate:
    t, mean = t_quantile(fit.cases - 1), fit.mean
    variance = fit.squares(cases) * fit.cases / (fit.cases - 1) + fit.pseudo_variance
    if kind == "number":
        half = t * math.sqrt(variance)
        return Estimate(mean, math.sqrt(variance), mean - half, mean + half)
    mean = min(1.0, max(0.0, mean))
    spread = max(share * (1 - share) for share in (mean, fit.label_mean))  # So that a mean near 0 or 1 has no wide interval.
    return Estimate(mean, math.sqrt(variance), *wilson(mean, spread / variance * (Z / t) ** 2))  # Student's instead of Z.


def correct_difference(pairs: Mapping[tuple[Case, Case], int], kind: Kind) -> Estimate | None:
    """Return the corrected difference B - A over cases, each with its trials in A and in B; None without two corrections."""
    sides: tuple[Counter[Case], Counter[Case]] = (Counter(), Counter())
    for pair, count in pairs.items():
        for cases, case in zip(sides, pair, strict=True):
            cases[case] += count
    a, b = (_fit(cases, kind) for cases in sides)
    if a is None or b is None or "labels" in {a.method, b.method}:
        return None

    squares = math.fsum(count * (b.influence(case_b) - a.influence(case_a)) ** 2 for (case_a, case_b), count in pairs.items())
    labeled_cases = min(a.cases, b.cases)
    error = math.sqrt(squares * labeled_cases / (labeled_cases - 1) + a.pseudo_variance + b.pseudo_variance)
    difference, half = b.mean - a.mean, t_quantile(labeled_cases - 1) * error
    limit = 1.0 if kind == "pass" else math.inf
    return Estimate(difference, error, max(-limit, difference - half), min(limit, difference + half))


@attrs.frozen(kw_only=True)
class _Fit:
    """The regression estimator of one set of cases."""

    method: Literal["ppi", "labels"]
    trials: int
    labels: int
    cases: int
    weights: float
    """Sum of the weights of the labels."""
    judge_mean: float
    labeled_judge_mean: float
    label_mean: float
    slope: float
    """How much a label rises with the judge's score; 0 without a correction."""
    pseudo_variance: float

    @property
    def mean(self) -> float:
        return self.label_mean + self.slope * (self.judge_mean - self.labeled_judge_mean)

    def influence(self, case: Case) -> float:
        """Return how much a case moves the mean, to first order."""
        total = 0.0
        for judge, label, weight in case:
            total += self.slope * (judge - self.judge_mean) / self.trials
            if label is not None:
                residual = label - self.label_mean - self.slope * (judge - self.labeled_judge_mean)
                total += residual * weight / self.weights
        return total

    def squares(self, cases: Mapping[Case, int]) -> float:
        return math.fsum(count * self.influence(case) ** 2 for case, count in cases.items())


def _fit(cases: Mapping[Case, int], kind: Kind) -> _Fit | None:
    trials: Counter[Observation] = Counter()
    for case, count in cases.items():
        for observation in case:
            trials[observation] += count
    rows = [(judge, label, weight, count) for (judge, label, weight), count in trials.items() if label is not None]
    if not rows:
        return None

    total, labels = trials.total(), sum(count for *_, count in rows)
    labeled_cases = sum(count for case, count in cases.items() if any(label is not None for _, label, _ in case))
    judge_mean = math.fsum(count * observation.judge for observation, count in trials.items()) / total
    squares = math.fsum(count * (observation.judge - judge_mean) ** 2 for observation, count in trials.items())
    variance = squares / max(1, total - 1)
    weights = math.fsum(weight * count for _, _, weight, count in rows)
    labeled_judge_mean = math.fsum(judge * weight * count for judge, _, weight, count in rows) / weights
    label_mean = math.fsum(label * weight * count for _, label, weight, count in rows) / weights
    products = ((judge - labeled_judge_mean) * (label - label_mean) * weight * count for judge, label, weight, count in rows)
    covariance = math.fsum(products) / weights

    if kind == "pass":
        passes = sum(count for _, label, _, count in rows if 2 * label >= 1)
        smallest = min(passes, labels - passes)
    else:
        smallest = sum(count for judge, label, _, count in rows if judge != label)

    has_correction = labels >= MIN_LABELS and smallest >= MIN_OF_CLASS and labeled_cases > 1
    slope = 0.0
    if has_correction and variance > 0:
        max_slope = total / (total - labels) if labels < total else math.inf  # λ is at most 1.
        slope = min(max_slope, max(0.0, covariance / variance))

    pseudo_variance = 0.0
    if kind == "pass" and all(observation.judge in {0, 1} for observation in trials):
        residuals = [label - label_mean - slope * (judge - labeled_judge_mean) for judge, label in ((0.0, 1.0), (1.0, 0.0))]
        pseudo_variance = _PSEUDO_LABELS * math.fsum(residual**2 for residual in residuals) / labeled_cases**2

    return _Fit(
        method="ppi" if has_correction else "labels",
        trials=total,
        labels=labels,
        cases=labeled_cases,
        weights=weights,
        judge_mean=judge_mean,
        labeled_judge_mean=labeled_judge_mean,
        label_mean=label_mean,
        slope=slope,
        pseudo_variance=pseudo_variance,
    )
