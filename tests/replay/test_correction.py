"""Corrected scores: equal to `ppi_py`, with the guards and the coverage that the documentation states."""

import math
from collections import Counter

import attrs
import numpy as np
import ppi_py
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.coverage import SCENARIOS, Scenario, missed, simulate
from evaljournal.replay.review.correction import (
    Case,
    CorrectedScore,
    Kind,
    Observation,
    correct,
    correct_difference,
    labels_alone,
)
from evaljournal.replay.statistics import mean_of_shares, wilson
from tests.journal.samples import examples


def uniform(pairs: list[tuple[float, float]], unlabeled: list[float]) -> Counter[Case]:
    """Return trials, each a case, of which a uniform sample has labels; a pair is the judge's score and the label."""
    weight = (len(pairs) + len(unlabeled)) / len(pairs)
    labeled = ((Observation(judge, label, weight),) for judge, label in pairs)
    return Counter([*labeled, *((Observation(judge),) for judge in unlabeled)])


def corrected(cases: Counter[Case], kind: Kind = "pass") -> CorrectedScore:
    """Return the correction of cases with labels."""
    correction = correct(cases, kind)
    assert correction is not None
    return correction


def is_close(expected: float | None, actual: float | None, *, abs_tol: float = 0.0) -> bool:
    """Return whether two numbers are equal within a tolerance; None is no number."""
    return expected is not None and actual is not None and math.isclose(expected, actual, abs_tol=abs_tol)


def verdicts(true_passes: int, false_fails: int, false_passes: int, true_fails: int) -> list[tuple[float, float]]:
    """Return pairs of a verdict and a label."""
    return [(1.0, 1.0)] * true_passes + [(0.0, 1.0)] * false_fails + [(1.0, 0.0)] * false_passes + [(0.0, 0.0)] * true_fails


NUMBERS = st.floats(-5, 5, allow_subnormal=False)


@examples(60)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=30, max_size=60), st.lists(NUMBERS, min_size=5, max_size=90))
def test_numbers_are_those_of_ppi_py(pairs: list[tuple[float, float]], unlabeled: list[float]) -> None:
    """The corrected mean of numbers is that of `ppi_py` with its tuned λ, and so is the standard error, up to n / (n - 1)."""
    scores, labels = (np.array(column) for column in zip(*pairs, strict=True))
    rest = np.array(unlabeled)
    correction = corrected(uniform(pairs, unlabeled), "number")
    if correction.method == "labels" or np.ptp(np.concatenate([scores, rest])) < 1e-3:  # no λ
        return
    low, high = (float(np.squeeze(end)) for end in ppi_py.ppi_mean_ci(labels, scores, rest, alpha=0.05, lam=correction.weight))

    assert is_close(float(np.squeeze(ppi_py.ppi_mean_pointestimate(labels, scores, rest))), correction.mean, abs_tol=1e-9)
    assert correction.low is not None
    assert correction.mean is not None
    assert correction.low <= correction.mean
    assert is_close((low + high) / 2, correction.mean, abs_tol=1e-9)


def test_shares_are_those_of_ppi_py() -> None:
    """The corrected share is that of `ppi_py`; the interval is about as wide, a little wider for the halves that are added."""
    pairs, unlabeled = verdicts(120, 10, 20, 50), [1.0] * 700 + [0.0] * 300
    scores, labels = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    correction = corrected(uniform(pairs, unlabeled))
    low, high = (float(np.squeeze(end)) for end in ppi_py.ppi_mean_ci(labels, scores, np.array(unlabeled), alpha=0.05))
    mean = float(np.squeeze(ppi_py.ppi_mean_pointestimate(labels, scores, np.array(unlabeled))))

    assert (200, 1_200, 200, "ppi") == (correction.labels, correction.trials, correction.cases, correction.method)
    assert is_close(mean, correction.mean, abs_tol=1e-12)
    assert 1.0 < ((correction.high or 0) - (correction.low or 0)) / (high - low) < 1.02


@pytest.mark.parametrize(
    ("pairs", "method"),
    [
        (verdicts(19, 0, 0, 10), "labels"),
        (verdicts(20, 0, 0, 10), "ppi"),
        (verdicts(50, 0, 0, 9), "labels"),
        (verdicts(9, 0, 0, 50), "labels"),
        (verdicts(40, 0, 10, 0), "ppi"),
    ],
)
def test_too_few_labels(pairs: list[tuple[float, float]], method: str) -> None:
    """With fewer than 30 labels, or fewer than 10 of a class, the result is the share of the labels with Wilson's interval."""
    correction = corrected(uniform(pairs, [1.0] * 300 + [0.0] * 100))
    share = sum(label for _, label in pairs) / len(pairs)

    assert method == correction.method
    if method == "labels":
        assert (share, *wilson(share, len(pairs)), 0.0) == pytest.approx(
            (correction.mean, correction.low, correction.high, correction.weight)
        )


def test_labels_of_one_case() -> None:
    """If all labels are of one case, the result is the share of the labels, and there is no corrected difference."""
    one_case = tuple(Observation(judge, label, 2.0) for judge, label in verdicts(20, 2, 2, 20))
    cases: Counter[Case] = Counter([one_case, *((Observation(1.0),) for _ in range(44))])
    pair: Counter[tuple[Case, Case]] = Counter([(case, case) for case in cases])

    assert ("labels", 0.5, 1) == (corrected(cases).method, corrected(cases).mean, corrected(cases).cases)
    assert correct_difference(pair, "pass") is None


def test_numbers_need_labels_that_differ() -> None:
    """A numeric judge that agrees with nearly all labels is not corrected: the variance of its errors is unknown."""
    pairs = [(float(index % 5), float(index % 5)) for index in range(91)]
    few_errors = pairs + [(0.0, 1.0)] * 9
    errors = pairs + [(0.0, 1.0)] * 10

    assert ["labels", "ppi"] == [corrected(uniform(rows, [1.0, 2.0] * 50), "number").method for rows in (few_errors, errors)]


def test_no_label() -> None:
    """Without a label there is no correction, and no difference of corrections."""
    cases: Counter[Case] = Counter([(Observation(1.0),), (Observation(0.0),)])
    pair: Counter[tuple[Case, Case]] = Counter([(case, case) for case in cases])

    assert (None, None, None) == (correct(cases, "pass"), labels_alone(cases, "pass"), correct_difference(pair, "pass"))


def test_one_label_of_a_number() -> None:
    """One label has a mean and no interval."""
    estimate = labels_alone(Counter([(Observation(1.0, 3.0, 1.0),)]), "number")
    assert estimate is not None

    assert (3.0, None, None) == (estimate.mean, estimate.low, estimate.high)


@pytest.mark.parametrize(
    ("pairs", "unlabeled", "mean"),
    [
        (verdicts(65, 5, 15, 15), [], 0.7),  # Every trial has a label.
        (verdicts(0, 40, 0, 20), [0.0] * 100, 2 / 3),  # The judge always gives the same verdict.
        (verdicts(40, 0, 20, 0), [1.0] * 100, 2 / 3),
        (verdicts(5, 35, 35, 5), [1.0] * 50 + [0.0] * 50, 0.5),  # It is wrong more often than right.
    ],
)
def test_a_judge_without_weight(pairs: list[tuple[float, float]], unlabeled: list[float], mean: float) -> None:
    """If the judge adds nothing, the corrected mean is that of the labels."""
    correction = corrected(uniform(pairs, unlabeled))

    assert ("ppi", 0.0) == (correction.method, correction.weight)
    assert is_close(mean, correction.mean)


def test_perfect_agreement_has_an_interval() -> None:
    """A judge that agrees with all 60 labels may still be wrong: the interval is wider than that of its own mean."""
    correction = corrected(uniform(verdicts(45, 0, 0, 15), [1.0] * 7_500 + [0.0] * 2_500))

    assert correction.low is not None
    assert correction.low < 0.75 - 0.02  # its own mean has an interval of ± 0.0085


def test_weights_undo_the_selection() -> None:
    """A sample with half of its labels from each verdict gives the mean of all trials, not that of the sample."""
    observations = [*[(1.0, 1.0, 9.0)] * 90, *[(1.0, 0.0, 9.0)] * 10, *[(0.0, 0.0, 1.0)] * 80, *[(0.0, 1.0, 1.0)] * 20]
    unlabeled = [(Observation(1.0),)] * 800
    correction = corrected(Counter([*((Observation(*row),) for row in observations), *unlabeled]))

    assert is_close(0.9 * 0.9 + 0.1 * 0.2, correction.mean)


@examples(60)
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=3), min_size=2, max_size=12))
def test_labels_alone_are_clustered(cases: list[list[bool]]) -> None:
    """The interval of labels alone is that of other scores: Wilson's, with repeats of a case as one cluster."""
    estimate = labels_alone(Counter(tuple(Observation(1.0, float(label), 2.0) for label in case) for case in cases), "pass")
    n, total = sum(map(len, cases)), sum(map(sum, cases))
    mean = total / n
    scatter = sum((sum(case) - len(case) * mean) ** 2 for case in cases) * (len(cases) - 1) / len(cases)
    expected = mean_of_shares(mean, n=n, cases=len(cases), scatter=scatter)
    assert estimate is not None
    assert estimate.low is not None
    assert expected.low is not None

    assert is_close(mean, estimate.mean)
    assert estimate.low <= mean <= (estimate.high or 0.0)
    if 0 < mean < 1 and max(map(len, cases)) == 1:
        assert is_close(expected.low, estimate.low)


def test_repeats_of_a_case_are_not_independent() -> None:
    """Four equal repeats of a case, all with a label, give the interval of one trial per case, not of four."""
    single = uniform(verdicts(60, 5, 10, 25), [1.0] * 200 + [0.0] * 100)
    repeated = Counter({case * 4: count for case, count in single.items()})
    one, four = corrected(single), corrected(repeated)

    assert is_close(one.mean, four.mean, abs_tol=1e-4)
    assert (one.low, one.high) == pytest.approx((four.low, four.high), abs=0.001)


def test_a_run_does_not_differ_from_itself() -> None:
    """The corrected difference of a run from itself is 0; its interval is that of the halves that are added to errors."""
    cases = uniform(verdicts(60, 5, 10, 25), [1.0] * 200 + [0.0] * 100)
    estimate = correct_difference(Counter({(case, case): count for case, count in cases.items()}), "pass")
    assert estimate is not None
    assert estimate.high is not None

    assert estimate.mean == 0
    assert 0 < estimate.high < 0.05


SLICE = (
    Scenario(0.7, 0.95, 0.9, 200, 1_200),
    Scenario(0.84, 0.9, 0.6, 60, 1_200, "stratified"),
    Scenario(0.7, 0.9, 0.6, 200, 1_200, "repeats"),
    Scenario(0.7, 0.9, 0.6, 200, 1_200, "difference"),
    Scenario(0.7, 0.5, 0.5, 60, 1_200),
    Scenario(0.7, 1.0, 0.95, 100, 10_000),
    Scenario(0.0, 0.5, 0.5, 200, 600, "numbers"),
)


@pytest.mark.parametrize("scenario", SLICE, ids=str)
def test_coverage(scenario: Scenario) -> None:
    """In 400 samples, no required figure is missed by more than chance explains."""
    assert [] == list(missed(scenario, simulate(scenario, 400), slack=0.03))


@pytest.mark.exhaustive
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_coverage_in_2_500_samples(scenario: Scenario) -> None:
    """In 2,500 samples of each row of the documentation, no required figure is missed by more than chance explains."""
    figures = simulate(scenario, 2_500)

    assert [] == list(missed(scenario, figures, slack=0.006))
    assert abs(figures.bias) < 0.01 or figures.shown < 0.9, attrs.asdict(figures)
