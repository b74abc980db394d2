"""Estimates and intervals, compared with scipy, statsmodels, numpy and brute force."""

import itertools
import math
from collections.abc import Iterable

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats import contingency_tables as contingency
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from evaljournal.replay.state.tally import LARGEST, Tally
from evaljournal.replay.statistics import (
    Estimate,
    Z,
    holm,
    mcnemar,
    mean_of_shares,
    paired_numbers,
    paired_shares,
    pass_all,
    pass_at,
    quantile,
    t_quantile,
    wilson,
)
from tests.journal.samples import examples

NUMBERS = st.floats(-1e6, 1e6)
PARTS = st.integers(0, 20).map(lambda number: number / 20)
TINY = 1e-100


def tally_of(values: Iterable[tuple[str, object]], *, repeats: bool = True) -> Tally:
    """Return a tally of values, each with its case."""
    tally = Tally(by_case={} if repeats else None)
    for case, value in values:
        tally.add(value, case=case)
    return tally


def estimate_of(tally: Tally) -> Estimate:
    """Return the estimate of a tally that has one."""
    estimate = tally.estimate
    assert estimate is not None
    return estimate


def close(expected: float, actual: float | None, *, within: float = 1e-9) -> bool:
    """Return whether two floats are equal within a relative tolerance."""
    return actual is not None and math.isclose(expected, actual, rel_tol=within, abs_tol=within)


@pytest.mark.parametrize("degrees", [*range(1, 130), 200, 1_000, 54_321, 1_000_000])
def test_students_t(degrees: int) -> None:
    """The quantile of Student's t equals scipy's to nine digits, for few and many degrees of freedom."""
    assert close(stats.t.ppf(0.975, degrees), t_quantile(degrees))
    assert close(stats.t.ppf(0.9995, degrees), t_quantile(degrees, 0.999), within=1e-7)


@examples(200)
@given(st.integers(1, 3_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson(counts: tuple[int, int]) -> None:
    """The interval of a proportion, one trial per case, is Wilson's, as computed by statsmodels."""
    passed, n = counts
    low, high = proportion_confint(passed, n, alpha=0.05, method="wilson")
    estimate = estimate_of(tally_of(((str(index), index < passed) for index in range(n)), repeats=False))

    assert all(map(close, (passed / n, low, high), (estimate.mean, estimate.low, estimate.high)))
    assert wilson(passed / n, n) == (estimate.low, estimate.high)


def has_students_interval(values: Iterable[float]) -> bool:
    """Return whether numbers differ by more than a float can square, and are not all within 0 to 1."""
    distinct = set(values)
    return max(distinct) - min(distinct) > TINY and not (min(distinct) >= 0 and max(distinct) <= 1)


def clustered_fit(values: list[tuple[str, float]]) -> tuple[float, float]:
    """Return a mean fitted by statsmodels, with errors clustered by case."""
    cases = {case: index for index, case in enumerate(dict.fromkeys(case for case, _ in values))}
    y = np.array([value for _, value in values])
    fit = sm.OLS(y, np.ones(len(y))).fit(cov_type="cluster", cov_kwds={"groups": [cases[case] for case, _ in values]})
    return float(fit.params[0]), float(fit.bse[0])


def clusters(repeats: int) -> st.SearchStrategy[list[list[float]]]:
    """Return a strategy for the numbers of cases, each with at most this many repeats."""
    cases = st.lists(st.lists(NUMBERS, min_size=1, max_size=repeats), min_size=2, max_size=8)
    return cases.filter(lambda values: has_students_interval(itertools.chain.from_iterable(values)))


@examples(60)
@given(clusters(1) | clusters(4))
def test_mean(cases: list[list[float]]) -> None:
    """The error of a mean is statsmodels' cluster-robust one, and t has one degree of freedom less than cases."""
    values = [(str(index), value) for index, case in enumerate(cases) for value in case]
    estimate = estimate_of(tally_of(values, repeats=len(values) > len(cases)))
    mean, error = clustered_fit(values)
    t = stats.t.ppf(0.975, len(cases) - 1)
    within = 1e-7 * max(
        1.0, *(abs(value) for _, value in values)
    )  # Digits are lost if the spread is small compared with the numbers.

    assert math.isclose(mean, estimate.mean, abs_tol=within)
    assert math.isclose(error, estimate.standard_error or 0.0, abs_tol=within)
    high = estimate.mean if estimate.high is None else estimate.high  # None if all cases are equal.
    assert math.isclose(mean + t * error, high, abs_tol=20 * within)


VERDICTS = st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=12)


@examples(200)
@given(VERDICTS)
def test_proportion_with_repeats(cases: list[list[bool]]) -> None:
    """The interval contains the mean, stays within 0 to 1, and is no narrower than for independent trials."""
    values = [(str(index), value) for index, case in enumerate(cases) for value in case]
    estimate = estimate_of(tally_of(values))
    low, high = wilson(estimate.mean, len(values))

    assert estimate.low is not None
    assert estimate.high is not None
    assert 0.0 <= estimate.low <= low + 1e-12
    assert high - 1e-12 <= estimate.high <= 1.0
    assert estimate.low <= estimate.mean <= estimate.high


def test_design_effect() -> None:
    """Repeats that always agree count as one trial of each case; others count as more."""
    agreeing = [(str(case), case % 3 > 0) for case in range(30) for _ in range(4)]
    estimate = estimate_of(tally_of(agreeing))
    _, error = clustered_fit([(case, float(value)) for case, value in agreeing])
    effective = (2 / 9) / error**2 * 120 / 119

    assert close(error, estimate.standard_error)
    assert all(map(close, wilson(2 / 3, effective), (estimate.low, estimate.high)))
    assert 29 == round(effective)


def test_all_trials_pass() -> None:
    """Ten cases that pass four times out of four are ten passes, not forty."""
    estimate = estimate_of(tally_of((str(case), True) for case in range(10) for _ in range(4)))

    assert (0.0, *wilson(1.0, 10)) == (estimate.standard_error, estimate.low, estimate.high)


def test_single_case() -> None:
    """One case has no standard error, however many repeats it has; its proportion counts as one trial."""
    number = estimate_of(tally_of(("a", value) for value in (0.2, 0.4, 0.9)))
    share = estimate_of(tally_of(("a", value) for value in (True, True, False)))

    assert Estimate(0.5, None, None, None) == number
    assert share.standard_error is None
    assert all(map(close, wilson(2 / 3, 1), (share.low, share.high)))


BITS = st.lists(st.lists(st.sampled_from([0, 1]), min_size=1, max_size=4), min_size=1, max_size=12)


@examples(100)
@given(BITS)
def test_zeros_and_ones(cases: list[list[int]]) -> None:
    """1.0 and 0.0 have the same estimate as true and false."""
    tallies = [
        tally_of((str(index), kind(value)) for index, case in enumerate(cases) for value in case) for kind in (bool, float, int)
    ]
    verdicts, floats, ints = map(estimate_of, tallies)

    assert verdicts == floats == ints
    assert "number" == tallies[1].kind


@examples(100)
@given(st.lists(PARTS, min_size=2, max_size=20).filter(lambda values: not {0.0, 1.0} >= set(values)))
def test_mean_of_numbers_from_0_to_1(values: list[float]) -> None:
    """The interval stays within 0 to 1; if all numbers are equal, it is that of a proportion."""
    estimate = estimate_of(tally_of(((str(index), value) for index, value in enumerate(values)), repeats=False))
    if len(set(values)) == 1:
        assert (0.0, *wilson(values[0], len(values))) == (estimate.standard_error, estimate.low, estimate.high)
        return
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)

    assert close(max(0.0, float(np.mean(values) - half)), estimate.low, within=1e-6)
    assert close(min(1.0, float(np.mean(values) + half)), estimate.high, within=1e-6)


def test_equal_numbers() -> None:
    """Equal numbers outside 0 to 1 have no interval, also after other numbers were removed."""
    tally = tally_of([("a", 4.1), ("b", 3.3), ("c", 2.7)], repeats=False)
    for case, value in (("a", 4.1), ("b", 3.3), ("c", 2.7)):
        tally.add(5.0, 1, case)
        tally.add(value, -1, case)

    estimate = estimate_of(tally)
    assert (0.0, None, None) == (estimate.standard_error, estimate.low, estimate.high)
    assert close(5.0, estimate.mean)


@pytest.mark.parametrize(("n", "low"), [(1, None), (2, None), (5, None), (6, 0.1), (60, 0.1)])
def test_equal_differences(n: int, low: float | None) -> None:
    """Six or more equal differences have an interval of width 0; fewer have none."""
    estimate = paired_numbers([0.3 - 0.2] * n)

    assert (low, low) == tuple(None if bound is None else round(bound, 9) for bound in (estimate.low, estimate.high))


def test_no_estimate() -> None:
    """Labels have no mean, and neither has an empty tally."""
    assert tally_of([]).estimate is None
    assert tally_of([("a", "rude")]).estimate is None


SCORES = st.tuples(st.sampled_from("abcde"), st.one_of(st.booleans(), NUMBERS, st.sampled_from(["x", "y"]), st.just(math.nan)))


@examples(100)
@given(st.lists(SCORES, max_size=25), st.lists(SCORES, max_size=10))
def test_removed_values(remaining: list[tuple[str, object]], superseded: list[tuple[str, object]]) -> None:
    """A tally from which values were removed equals the tally of the others."""
    tally = tally_of([*superseded, *remaining])
    for case, value in superseded:
        tally.add(value, -1, case=case)
    alone = tally_of(remaining)

    assert (alone.kind, alone.scored, alone.numbers, alone.out_of_range, alone.cases) == (
        tally.kind,
        tally.scored,
        tally.numbers,
        tally.out_of_range,
        tally.cases,
    )
    assert +alone.labels == +tally.labels
    assert alone.passes_by_case() == tally.passes_by_case() or alone.kind != "pass"
    if alone.numbers:
        left, right = estimate_of(alone), estimate_of(tally)
        assert close(left.mean, right.mean, within=1e-6)
        assert (left.standard_error is None) == (right.standard_error is None)
        assert math.isclose(left.standard_error or 0.0, right.standard_error or 0.0, rel_tol=1e-4, abs_tol=0.1)  # Of a million.


def test_large_mean() -> None:
    """Numbers near 10^12 have the standard error of the same numbers near zero."""
    values = [0.0, 1.0, 2.0, 1.0, 0.0]
    near = estimate_of(tally_of((str(index), value) for index, value in enumerate(values)))
    far = estimate_of(tally_of((str(index), 1e12 + value) for index, value in enumerate(values)))

    assert near.standard_error == far.standard_error


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -1e300, 10**400, None, [1], {}])
def test_values_that_cannot_be_summed(value: object) -> None:
    """NaN, infinity, very large numbers and values that are no numbers are counted, and excluded from the mean."""
    tally = tally_of([("a", 0.25), ("b", value), ("c", 0.75)])

    assert (3, 2, 1, "number") == (tally.scored, tally.numbers, tally.out_of_range, tally.kind)
    assert 0.5 == tally.mean
    tally.add(value, -1, case="b")
    assert (2, 0) == (tally.scored, tally.out_of_range)


def test_largest_numbers() -> None:
    """A thousand of the largest accepted numbers leave every result finite."""
    tally = tally_of(((str(index), LARGEST * (-1) ** index) for index in range(1_000)), repeats=False)
    estimate = estimate_of(tally)

    assert all(
        math.isfinite(number)
        for number in (estimate.mean, estimate.standard_error or 0.0, estimate.low or 0.0, estimate.high or 0.0)
    )


@examples(100)
@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.0, 0.0, 0.25, 1.0]), min_size=1, max_size=40))
def test_paired_proportions(differences: list[float]) -> None:
    """The interval is the normal one with two cases added, one fixed and one broken."""
    estimate = paired_shares(differences)
    padded = np.array([*differences, 1.0, -1.0])
    half = Z * padded.std() / math.sqrt(len(padded))

    assert close(float(np.mean(differences)), estimate.mean)
    assert close(max(-1.0, float(padded.mean() - half)), estimate.low)
    assert close(min(1.0, float(padded.mean() + half)), estimate.high)


@pytest.mark.parametrize("n", [49, 143, 5_000])
def test_paired_proportions_agree_with_mcnemar(n: int) -> None:
    """If all changes go one way, the interval excludes 0 exactly when McNemar's exact test is below 5 %."""
    for fixed in range(13):
        estimate = paired_shares([1.0] * fixed + [0.0] * (n - fixed))
        p = contingency.mcnemar([[n - fixed, fixed], [0, 0]], exact=True).pvalue

        assert (p < 0.05) == ((estimate.low or 0.0) > 0), fixed


@pytest.mark.parametrize("n", [10, 30, 60])
@pytest.mark.parametrize(("fixed", "broke"), [(0.02, 0.02), (0.1, 0.1), (0.2, 0.05), (0.4, 0.1), (0.05, 0.0), (0.3, 0.3)])
def test_coverage_of_paired_proportions(n: int, fixed: float, broke: float) -> None:
    """Over all outcomes of n cases, the interval contains the true difference in at least 94 % of them."""
    covered = 0.0
    for up, down in itertools.product(range(n + 1), repeat=2):
        if up + down <= n:
            estimate = paired_shares([1.0] * up + [-1.0] * down + [0.0] * (n - up - down))
            assert estimate.low is not None
            assert estimate.high is not None
            if estimate.low <= fixed - broke <= estimate.high:
                covered += stats.multinomial.pmf([up, down, n - up - down], n, [fixed, broke, 1 - fixed - broke])

    assert covered > 0.94


@examples(100)
@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.lists(st.booleans(), min_size=n, max_size=n), st.integers(1, n))))
def test_pass_at_k_by_brute_force(case: tuple[list[bool], int]) -> None:
    """Both estimates equal the proportion of choices of k trials in which one passes, or all pass."""
    verdicts, k = case
    choices = list(itertools.combinations(verdicts, k))
    n, passed = len(verdicts), sum(verdicts)

    assert close(sum(map(any, choices)) / len(choices), pass_at(k, n=n, passes=passed))
    assert close(sum(map(all, choices)) / len(choices), pass_all(k, n=n, passes=passed))


def test_pass_at_k_of_many_repeats() -> None:
    """Thousands of repeats neither overflow nor lose precision."""
    assert close(1 - 0.5**10, pass_at(10, n=100_000, passes=50_000), within=1e-4)
    assert 1.0 == pass_at(2, n=5_000, passes=4_999)
    assert 0.0 == pass_all(5_000, n=5_000, passes=4_999)


@examples(100)
@given(st.lists(NUMBERS, min_size=1, max_size=120), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_quantile(values: list[float], share: float) -> None:
    """A quantile is the nearest rank, as numpy's `inverted_cdf`."""
    assert float(np.quantile(values, share, method="inverted_cdf")) == quantile(sorted(values), share)


def test_mean_of_shares() -> None:
    """Without scatter between cases, the interval is that of the trials, not narrower."""
    estimate = mean_of_shares(0.5, n=40, cases=10, scatter=0.0)

    assert (0.0, *wilson(0.5, 40)) == (estimate.standard_error, estimate.low, estimate.high)


@examples(200)
@given(st.integers(0, 3_000), st.integers(0, 3_000))
def test_mcnemar(fixed: int, broken: int) -> None:
    """The p-value is that of statsmodels' exact test."""
    assert close(float(contingency.mcnemar([[5, fixed], [broken, 5]], exact=True).pvalue), mcnemar(fixed, broken))


@examples(8)  # statsmodels takes 70 ms for each.
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm(p_values: list[float]) -> None:
    """The corrected p-values are those of statsmodels."""
    assert all(map(close, multipletests(p_values, method="holm")[1], holm(p_values)))
    assert [] == holm([])


@examples(100)
@given(st.lists(NUMBERS, min_size=2, max_size=30))
def test_paired_numbers(differences: list[float]) -> None:
    """Mean and interval are those of scipy's paired t-test."""
    estimate = paired_numbers(differences)
    if max(differences) - min(differences) > TINY + 1e-5 * abs(np.mean(differences)):  # Otherwise they are equal.
        interval = stats.ttest_1samp(differences, 0.0).confidence_interval(0.95)
        assert close(float(interval.low), estimate.low, within=1e-6)
        assert close(float(interval.high), estimate.high, within=1e-6)
    assert close(float(np.mean(differences)), estimate.mean, within=1e-9)


@examples(100)
@given(st.lists(st.sampled_from([-1.0, 0.0, 0.0, 0.0, 1.0]), min_size=1, max_size=60))
def test_p_of_paired_proportions(differences: list[float]) -> None:
    """The p-value is McNemar's; if it is below 5 %, the interval excludes 0."""
    estimate, fixed, broken = paired_shares(differences), differences.count(1.0), differences.count(-1.0)

    assert mcnemar(fixed, broken) == estimate.p
    if mcnemar(fixed, broken) < 0.05:
        assert (estimate.low or 0.0) > 0 or (estimate.high or 0.0) < 0
