"""How sure a number is: held against scipy, statsmodels and numpy, and against brute force."""

import itertools
import math
from collections.abc import Iterable

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

from replay.statistics import (
    Estimate,
    Z,
    mean_of_shares,
    paired_numbers,
    paired_shares,
    pass_all,
    pass_at,
    quantile,
    t_quantile,
    wilson,
)
from replay.tally import LARGEST, Tally
from tests.journal.samples import examples

NUMBERS = st.floats(-1e6, 1e6)
PARTS = st.integers(0, 20).map(lambda number: number / 20)
TINY = 1e-100


def tallied(values: Iterable[tuple[str, object]], *, repeats: bool = True) -> Tally:
    """Count values, each with its case."""
    tally = Tally(by_case={} if repeats else None)
    for case, value in values:
        tally.add(value, case=case)
    return tally


def estimated(tally: Tally) -> Estimate:
    """Take the estimate of a tally that has one."""
    found = tally.estimate
    assert found is not None
    return found


def close(expected: float, actual: float | None, *, within: float = 1e-9) -> bool:
    """Compare two floats, relative to what they are; what cannot be told has no float."""
    return actual is not None and math.isclose(expected, actual, rel_tol=within, abs_tol=within)


@pytest.mark.parametrize("degrees", [*range(1, 130), 200, 1_000, 54_321, 1_000_000])
def test_students_t(degrees: int) -> None:
    """The quantile of Student's t is scipy's, to nine digits, for few degrees of freedom and for many."""
    assert close(stats.t.ppf(0.975, degrees), t_quantile(degrees))


def test_students_t_needs_two_numbers() -> None:
    """There is no t without a degree of freedom, and it is said so."""
    with pytest.raises(ValueError, match="at least 1 degree of freedom, not 0"):
        t_quantile(0)


@examples(200)
@given(st.integers(1, 3_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson(counts: tuple[int, int]) -> None:
    """The interval of a share is Wilson's, as statsmodels has it, and never leaves 0 to 1."""
    passed, n = counts
    low, high = proportion_confint(passed, n, alpha=0.05, method="wilson")

    assert all(map(close, (low, high), wilson(passed / n, n)))


@pytest.mark.parametrize(
    ("passed", "of", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (81, 263, 0.2553, 0.3662), (1, 1, 0.2065, 1.0)],
)
def test_a_share_has_wilsons_interval(passed: int, of: int, low: float, high: float) -> None:
    """Pass or fail, one trial a case: the values are those of published tables."""
    found = estimated(tallied(((str(at), at < passed) for at in range(of)), repeats=False))

    assert (passed / of, low, high) == (found.mean, round(found.low or 0.0, 4), round(found.high or 0.0, 4))


def has_students_interval(values: Iterable[float]) -> bool:
    """Say whether numbers differ by more than a float can square, and lie on no scale from 0 to 1."""
    known = set(values)
    return max(known) - min(known) > TINY and not (min(known) >= 0 and max(known) <= 1)


@examples(100)
@given(st.lists(NUMBERS, min_size=2, max_size=40).filter(has_students_interval))
def test_a_mean_has_students_interval(values: list[float]) -> None:
    """Numbers, one trial a case: mean, standard error and interval are scipy's."""
    found = estimated(tallied(((str(at), value) for at, value in enumerate(values)), repeats=False))
    mean, error = np.mean(values), stats.sem(values)
    half = stats.t.ppf(0.975, len(values) - 1) * error

    assert close(float(mean), found.mean, within=1e-7)
    assert close(float(error), found.standard_error, within=1e-6)
    assert close(float(mean - half), found.low, within=1e-5)
    assert close(float(mean + half), found.high, within=1e-5)


def clustered(values: list[tuple[str, float]]) -> tuple[float, float]:
    """Let statsmodels fit a mean, with errors clustered by case."""
    cases = {case: at for at, case in enumerate(dict.fromkeys(case for case, _ in values))}
    y = np.array([value for _, value in values])
    fit = sm.OLS(y, np.ones(len(y))).fit(cov_type="cluster", cov_kwds={"groups": [cases[case] for case, _ in values]})
    return float(fit.params[0]), float(fit.bse[0])


CLUSTERS = st.lists(st.lists(NUMBERS, min_size=1, max_size=4), min_size=2, max_size=8).filter(
    lambda cases: any(len(case) > 1 for case in cases) and has_students_interval(itertools.chain.from_iterable(cases))
)


@examples(30)
@given(CLUSTERS)
def test_repeats_of_a_case_are_not_independent(cases: list[list[float]]) -> None:
    """Where cases have repeats, the error is statsmodels' cluster-robust one, and t has as many degrees as cases less one."""
    values = [(str(at), value) for at, case in enumerate(cases) for value in case]
    found = estimated(tallied(values))
    mean, error = clustered(values)
    t = stats.t.ppf(0.975, len(cases) - 1)
    within = 1e-7 * max(
        1.0, *(abs(value) for _, value in values)
    )  # Digits are lost where the spread is small beside the numbers.

    assert math.isclose(mean, found.mean, abs_tol=within)
    assert math.isclose(error, found.standard_error or 0.0, abs_tol=within)
    high = found.mean if found.high is None else found.high  # There is none where all cases came out alike.
    assert math.isclose(mean + t * error, high, abs_tol=20 * within)


VERDICTS = st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=12)


@examples(200)
@given(VERDICTS)
def test_a_share_over_repeats_is_never_surer_than_without(cases: list[list[bool]]) -> None:
    """The interval of a share over repeats holds the mean, stays in 0 to 1, and is no narrower than if all were independent."""
    values = [(str(at), value) for at, case in enumerate(cases) for value in case]
    found = estimated(tallied(values))
    low, high = wilson(found.mean, len(values))

    assert found.low is not None
    assert found.high is not None
    assert 0.0 <= found.low <= low + 1e-12
    assert high - 1e-12 <= found.high <= 1.0
    assert found.low <= found.mean <= found.high


def test_a_share_over_repeats_by_its_design_effect() -> None:
    """Repeats that always agree say as much as one trial of each case; repeats that do not are worth more."""
    alike = [(str(case), case % 3 > 0) for case in range(30) for _ in range(4)]
    found = estimated(tallied(alike))
    _, error = clustered([(case, float(value)) for case, value in alike])
    effective = (2 / 9) / error**2 * 120 / 119

    assert close(error, found.standard_error)
    assert all(map(close, wilson(2 / 3, effective), (found.low, found.high)))
    assert 29 == round(effective)


def test_where_all_repeats_came_out_alike_each_case_counts_once() -> None:
    """Ten cases that pass four times out of four are ten passes, not forty."""
    found = estimated(tallied((str(case), True) for case in range(10) for _ in range(4)))

    assert (0.0, *wilson(1.0, 10)) == (found.standard_error, found.low, found.high)


def test_one_case_alone_has_no_error() -> None:
    """However often it is asked, one case says nothing about how cases differ; of a share, it counts as one."""
    number = estimated(tallied(("a", value) for value in (0.2, 0.4, 0.9)))
    share = estimated(tallied(("a", value) for value in (True, True, False)))

    assert Estimate(0.5, None, None, None) == number
    assert share.standard_error is None
    assert all(map(close, wilson(2 / 3, 1), (share.low, share.high)))


BITS = st.lists(st.lists(st.sampled_from([0, 1]), min_size=1, max_size=4), min_size=1, max_size=12)


@examples(100)
@given(BITS)
def test_zeros_and_ones_are_passes_and_failures(cases: list[list[int]]) -> None:
    """A judge that says 1.0 and 0.0 is as sure as one that says true and false: three times 1.0 are not certain."""
    said = [tallied((str(at), kind(value)) for at, case in enumerate(cases) for value in case) for kind in (bool, float, int)]
    verdicts, floats, ints = map(estimated, said)

    assert verdicts == floats == ints
    assert "number" == said[1].kind


@examples(100)
@given(st.lists(PARTS, min_size=2, max_size=20).filter(lambda values: not {0.0, 1.0} >= set(values)))
def test_a_mean_of_numbers_from_0_to_1_stays_there(values: list[float]) -> None:
    """Numbers from 0 to 1 have Student's interval within that scale; where all are alike, that of a share."""
    found = estimated(tallied(((str(at), value) for at, value in enumerate(values)), repeats=False))
    if len(set(values)) == 1:
        assert (0.0, *wilson(values[0], len(values))) == (found.standard_error, found.low, found.high)
        return
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)

    assert close(max(0.0, float(np.mean(values) - half)), found.low, within=1e-6)
    assert close(min(1.0, float(np.mean(values) + half)), found.high, within=1e-6)


def test_numbers_that_are_all_alike_have_no_range() -> None:
    """Three marks of 5 out of nobody knows how many do not say how marks vary; nor do old ones that were taken back."""
    tally = tallied([("a", 4.1), ("b", 3.3), ("c", 2.7)], repeats=False)
    for case, value in (("a", 4.1), ("b", 3.3), ("c", 2.7)):
        tally.add(5.0, 1, case)
        tally.add(value, -1, case)

    found = estimated(tally)
    assert (0.0, None, None) == (found.standard_error, found.low, found.high)
    assert close(5.0, found.mean)


@pytest.mark.parametrize(("n", "low"), [(1, None), (2, None), (5, None), (6, 0.1), (60, 0.1)])
def test_differences_that_are_all_alike(n: int, low: float | None) -> None:
    """From six on, differences that are all the same are no chance; fewer tell no range."""
    found = paired_numbers([0.3 - 0.2] * n)

    assert (low, low) == tuple(None if each is None else round(each, 9) for each in (found.low, found.high))


def test_no_estimate_of_labels_or_of_nothing() -> None:
    """Labels have frequencies, and no mean."""
    assert tallied([]).estimate is None
    assert tallied([("a", "rude")]).estimate is None


SCORES = st.tuples(st.sampled_from("abcde"), st.one_of(st.booleans(), NUMBERS, st.sampled_from(["x", "y"]), st.just(math.nan)))


@examples(100)
@given(st.lists(SCORES, max_size=25), st.lists(SCORES, max_size=10))
def test_what_is_taken_back_leaves_no_trace(kept: list[tuple[str, object]], superseded: list[tuple[str, object]]) -> None:
    """A tally from which values were taken back is that of the others."""
    tally = tallied([*superseded, *kept])
    for case, value in superseded:
        tally.add(value, -1, case=case)
    alone = tallied(kept)

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
        left, right = estimated(alone), estimated(tally)
        assert close(left.mean, right.mean, within=1e-6)
        assert (left.standard_error is None) == (right.standard_error is None)
        assert math.isclose(left.standard_error or 0.0, right.standard_error or 0.0, rel_tol=1e-4, abs_tol=0.1)  # Of a million.


def test_a_large_mean_does_not_swallow_the_spread() -> None:
    """Numbers near a billion that differ by one have the error of numbers near zero that differ by one."""
    values = [0.0, 1.0, 2.0, 1.0, 0.0]
    near = estimated(tallied((str(at), value) for at, value in enumerate(values)))
    far = estimated(tallied((str(at), 1e12 + value) for at, value in enumerate(values)))

    assert near.standard_error == far.standard_error


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -1e300, 10**400, None, [1], {}])
def test_what_cannot_be_summed_is_counted_and_poisons_nothing(value: object) -> None:
    """NaN, infinity, and what is no number at all are counted apart, and the mean is that of the others."""
    tally = tallied([("a", 0.25), ("b", value), ("c", 0.75)])

    assert (3, 2, 1, "number") == (tally.scored, tally.numbers, tally.out_of_range, tally.kind)
    assert 0.5 == tally.mean
    tally.add(value, -1, case="b")
    assert (2, 0) == (tally.scored, tally.out_of_range)


def test_the_largest_numbers_can_be_summed() -> None:
    """A million of the largest numbers that go into a mean leave everything finite."""
    tally = tallied(((str(at), LARGEST * (-1) ** at) for at in range(1_000)), repeats=False)
    found = estimated(tally)

    assert all(math.isfinite(each) for each in (found.mean, found.standard_error or 0.0, found.low or 0.0, found.high or 0.0))


@examples(100)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=30))
def test_paired_difference(pairs: list[tuple[float, float]]) -> None:
    """The mean difference of pairs and its interval are those of scipy's paired t-test."""
    a, b = zip(*pairs, strict=True)
    differences = [after - before for before, after in pairs]
    found = paired_numbers(differences)
    if max(differences) - min(differences) > TINY + 1e-5 * abs(np.mean(differences)):  # Otherwise they are alike.
        expected = stats.ttest_rel(b, a).confidence_interval(0.95)

        assert close(float(expected.low), found.low, within=1e-6)
        assert close(float(expected.high), found.high, within=1e-6)
    assert close(float(np.mean(differences)), found.mean, within=1e-9)


@examples(100)
@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.0, 0.0, 0.25, 1.0]), min_size=1, max_size=40))
def test_paired_shares_by_two_cases_in_thought(differences: list[float]) -> None:
    """The interval of a difference of shares is the normal one after one more case was fixed and one more broke."""
    found = paired_shares(differences)
    padded = np.array([*differences, 1.0, -1.0])
    half = Z * padded.std() / math.sqrt(len(padded))

    assert close(float(np.mean(differences)), found.mean)
    assert close(max(-1.0, float(padded.mean() - half)), found.low)
    assert close(min(1.0, float(padded.mean() + half)), found.high)


@pytest.mark.parametrize("n", [49, 143, 5_000])
def test_paired_shares_decide_like_mcnemar(n: int) -> None:
    """Where all that changed went one way, the interval leaves 0 out exactly where McNemar's exact test is below 5 %."""
    for fixed in range(13):
        found = paired_shares([1.0] * fixed + [0.0] * (n - fixed))
        p = mcnemar([[n - fixed, fixed], [0, 0]], exact=True).pvalue

        assert (p < 0.05) == ((found.low or 0.0) > 0), fixed


@pytest.mark.parametrize("n", [10, 30, 60])
@pytest.mark.parametrize(("fixed", "broke"), [(0.02, 0.02), (0.1, 0.1), (0.2, 0.05), (0.4, 0.1), (0.05, 0.0), (0.3, 0.3)])
def test_paired_shares_hold_what_they_promise(n: int, fixed: float, broke: float) -> None:
    """Over all that can come of n cases, the interval holds the true difference 95 times in 100, or more."""
    held = 0.0
    for up, down in itertools.product(range(n + 1), repeat=2):
        if up + down <= n:
            found = paired_shares([1.0] * up + [-1.0] * down + [0.0] * (n - up - down))
            assert found.low is not None
            assert found.high is not None
            if found.low <= fixed - broke <= found.high:
                held += stats.multinomial.pmf([up, down, n - up - down], n, [fixed, broke, 1 - fixed - broke])

    assert held > 0.94


@examples(100)
@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.lists(st.booleans(), min_size=n, max_size=n), st.integers(1, n))))
def test_pass_at_k_by_brute_force(case: tuple[list[bool], int]) -> None:
    """Both estimates are the share of all choices of k trials in which one passes, or all do."""
    verdicts, k = case
    choices = list(itertools.combinations(verdicts, k))
    n, passed = len(verdicts), sum(verdicts)

    assert close(sum(map(any, choices)) / len(choices), pass_at(k, n=n, passed=passed))
    assert close(sum(map(all, choices)) / len(choices), pass_all(k, n=n, passed=passed))


def test_pass_at_k_of_many_repeats() -> None:
    """Thousands of repeats neither overflow nor lose a digit."""
    assert close(1 - 0.5**10, pass_at(10, n=100_000, passed=50_000), within=1e-4)
    assert 1.0 == pass_at(2, n=5_000, passed=4_999)
    assert 0.0 == pass_all(5_000, n=5_000, passed=4_999)


@examples(100)
@given(st.lists(NUMBERS, min_size=1, max_size=120), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_quantiles_are_values_that_occurred(values: list[float], share: float) -> None:
    """A quantile is the nearest rank, as numpy's inverse of the empirical distribution."""
    assert float(np.quantile(values, share, method="inverted_cdf")) == quantile(sorted(values), share)


def test_shares_of_shares() -> None:
    """Shares that vary less than passes and failures would are surer, but not surer than the trials that they came of."""
    found = mean_of_shares(0.5, n=40, cases=10, scatter=0.0)

    assert (0.0, *wilson(0.5, 40)) == (found.standard_error, found.low, found.high)
