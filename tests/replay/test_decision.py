"""Decisions on scores and gates: their rule, and on simulated systems how often it is wrong.

The rates are printed: `pytest -m exhaustive -rP tests/replay/test_decision.py`.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evaljournal.replay.results.gate import MAX_DROP, Check, check_drop
from evaljournal.replay.results.pairing import PairedDifference, compare_values, decide
from evaljournal.replay.results.sensitivity import (
    POWER,
    detectable_drop,
    detectable_number,
    detectable_share,
    trial_variance,
)
from evaljournal.replay.statistics import holm, mcnemar, mcnemar_worse, sign_flip
from tests.journal.samples import examples

PAIRS = 2_000
SIGN_FLIP_PAIRS = 300
"""A sign-flip test of many cases takes some milliseconds."""
SLICE = 40


def passes(n: int, broken: int, fixed: int = 0) -> PairedDifference:
    """Return the difference of two runs of `n` cases, of which `broken` are broken, `fixed` are fixed, and the others pass."""
    before = [1.0] * broken + [0.0] * fixed + [1.0] * (n - broken - fixed)
    after = [0.0] * broken + [1.0] * (n - broken)
    return compare_values("pass", before, after, cases=n, scorer_changed=False, is_share=True)


def numbers(before: Sequence[float], after: Sequence[float]) -> PairedDifference:
    """Return the difference of two runs with these numbers."""
    return compare_values("number", before, after, cases=len(before), scorer_changed=False, is_share=False)


def decided(difference: PairedDifference, *, is_time: bool = False) -> PairedDifference:
    """Return a difference that is decided alone."""
    return decide({"": difference}, is_time=is_time)[""]


@pytest.mark.parametrize(
    ("difference", "verdict"),
    [
        (passes(60, 6), "worse"),
        (passes(60, 0, 6), "better"),
        (passes(60, 5), "no_difference_found"),  # p = 1/16
        (passes(60, 0), "no_difference_found"),
        (passes(1, 1), "no_difference_found"),
        (numbers([0.5] * 8, [0.4] * 8), "worse"),
        (numbers([0.5] * 8, [0.6] * 8), "better"),
        (numbers([0.5] * 5, [0.4] * 5), "no_difference_found"),  # p = 1/16
        (numbers([0.5] * 8, [0.5] * 8), "no_difference_found"),
        (numbers([0.5], [0.1]), "no_difference_found"),
        (numbers([1000.0] * 8, [991.0] * 8), "no_difference_found"),  # Less than 1 %.
        (numbers([1000.0] * 8, [989.0] * 8), "worse"),
        (numbers([0.0] * 8, [-1e-9] * 8), "worse"),  # No share of 0 is negligible.
        (numbers([], []), None),
    ],
)
def test_the_verdict_on_a_score(difference: PairedDifference, verdict: str | None) -> None:
    """A score is worse or better if the test finds a difference of at least 1 %."""
    assert verdict == decided(difference).verdict


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (2.0, 2.1, "worse"),
        (2.0, 1.9, "better"),
        (2.0, 2.019, "no_difference_found"),
        (5e-6, 5.9e-6, "no_difference_found"),
        (5e-6, 6.1e-6, "worse"),
    ],
)
def test_the_verdict_on_times(before: float, after: float, verdict: str) -> None:
    """More seconds are worse; a difference below 1 % or a microsecond, the clock's resolution, is none."""
    assert verdict == decided(numbers([before] * 9, [after] * 9), is_time=True).verdict


def test_scores_of_one_command_are_tested_together() -> None:
    """Six broken cases are a difference alone, and none among two scores; a label is not tested."""
    label = PairedDifference(kind="label", n=3, missing=0, changed=2, scorer_changed=False)
    decisions = decide({"exact": passes(60, 6), "near": numbers([0.5], [0.5]), "tone": label})

    assert ["no_difference_found", "no_difference_found", None] == [difference.verdict for difference in decisions.values()]
    assert [pytest.approx(0.0625), 1.0, None] == [difference.p_adjusted for difference in decisions.values()]
    assert [2, 2, 0] == [difference.comparisons for difference in decisions.values()]


def verdict_of(difference: PairedDifference, max_drop: float = MAX_DROP) -> str:
    return check_drop("exact", difference, max_drop).verdict


@pytest.mark.parametrize(
    ("difference", "max_drop", "verdict"),
    [
        *((passes(n, 0), 0.0, "passed") for n in (1, 2, 5, 20, 300)),
        (passes(20, 6), 0.02, "regressed"),
        (passes(10, 5), 0.02, "regressed"),
        (passes(20, 4), 0.02, "too_little_evidence"),  # p = 1/16
        (passes(20, 3), 0.02, "too_little_evidence"),  # p = 1/8
        (passes(20, 2), 0.02, "passed"),  # p = 1/4
        (passes(100, 5), 0.02, "regressed"),
        (passes(300, 6), 0.02, "passed"),  # 1 - 294/300 is more than 0.02 by a rounding error.
        (passes(300, 7), 0.02, "regressed"),
        (passes(60, 7), 0.12, "passed"),  # Worse by 11.7 points, which is tolerated.
        (passes(4, 4), 0.02, "too_little_evidence"),  # Four cases cannot show anything.
        (passes(4, 1), 0.02, "too_little_evidence"),
        (passes(4, 1, 2), 0.02, "passed"),
        (passes(5, 5), 0.02, "regressed"),
        (passes(20_000, 420), 0.02, "regressed"),
        (passes(20_000, 40, 10), 0.001, "regressed"),
        (passes(100, 12, 9), 0.02, "passed"),
        (numbers([0.5] * 3, [0.5] * 3), 0.0, "passed"),
        (numbers([0.5] * 9, [0.4] * 9), 0.02, "regressed"),
        (numbers([0.5] * 9, [0.4] * 9), 0.1, "passed"),  # Equal to the tolerated drop.
        (numbers([0.5], [0.4]), 0.02, "too_little_evidence"),
        (numbers([1e9] * 9, [1e9 - 0.02] * 9), 0.02, "passed"),
    ],
)
def test_the_verdict_of_a_gate(difference: PairedDifference, max_drop: float, verdict: str) -> None:
    """A larger drop than is tolerated regressed with p < 0.05, and is undecided with p < 0.2 or too few cases."""
    assert verdict == verdict_of(difference, max_drop)


VERDICTS = ["passed", "too_little_evidence", "regressed"]


@pytest.mark.parametrize("n", [4, 10, 20, 30, 50, 100, 300])
def test_one_more_broken_case_never_improves_a_verdict(n: int) -> None:
    """The verdict on passes gets worse with each broken case, whatever was fixed and how many scores there are."""
    for fixed, scores in itertools.product({0, 1, n // 10, n // 3}, (1, 2, 3)):
        others = [passes(n, n // 10), passes(n, 0)][: scores - 1]
        results = [
            [VERDICTS.index(check.verdict) for check in checks([passes(n, broken, fixed), *others])]
            for broken in range(n - fixed + 1)
        ]

        assert all(before <= after for pair in itertools.pairwise(results) for before, after in zip(*pair, strict=True))


@pytest.mark.parametrize("pairs", [50, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_a_lower_number_rarely_improves_a_verdict(pairs: int) -> None:
    """One more case that lost all of its score makes the verdict better in at most 0.5 % of random pairs of runs."""
    rng, better = np.random.default_rng(pairs), 0
    for _ in range(pairs):
        n = int(rng.integers(5, 120))
        before = np.clip(rng.beta(8, 2, n) + rng.normal(0, 0.1, n), 0, 1)
        after = np.clip(before + rng.normal(-rng.choice([0, 0.02, 0.05]), rng.choice([0.02, 0.1]), n), 0, 1)
        broken = after.copy()
        broken[rng.integers(n)] = 0.0
        verdicts = [VERDICTS.index(verdict_of(numbers(before.tolist(), values.tolist()))) for values in (after, broken)]
        better += verdicts[1] < verdicts[0]
    print(f"better in {better} of {pairs:,} pairs")  # noqa: T201

    assert better <= 0.005 * pairs


def test_trials_with_an_output_need_no_evidence_if_none_is_lost() -> None:
    """Three cases with an output in both runs pass."""
    assert "passed" == check_drop("completed", passes(3, 0), 0.02).verdict


@pytest.mark.parametrize(("broken", "n", "fixed"), [(3, 20, 0), (4, 20, 0), (4, 4, 0), (9, 60, 4), (30, 400, 21)])
def test_more_cases_would_decide(broken: int, n: int, fixed: int) -> None:
    """With about as many more cases as a gate asks for, and the same shares of broken and fixed ones, it regresses."""
    check = check_drop("exact", passes(n, broken, fixed), 0.0)
    assert check.more_cases is not None
    ratio = 1 + 1.1 * check.more_cases / n
    later_check = check_drop("exact", passes(round(n * ratio), round(broken * ratio), round(fixed * ratio)), 0.0)

    assert ["too_little_evidence", "regressed"] == [check.verdict, later_check.verdict]


def test_the_first_cases() -> None:
    """Without enough cases for any verdict, those missing for one are asked for; more for several scores."""
    assert [4, 8] == [check_drop("exact", passes(n, 1), 0.02).more_cases for n in (1, 2)]
    assert 5 == check_drop("exact", passes(1, 1), 0.02, comparisons=3).more_cases


@examples(40)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=7), st.sampled_from([1, 2, 3, 5]))
def test_sign_flips_are_those_of_all_combinations(differences: list[int], repeats: int) -> None:
    """The p-values are the shares of all combinations of signs whose sum is as far from 0, and as low, or more."""
    sums = [sum(map(int.__mul__, differences, signs)) for signs in itertools.product((1, -1), repeat=len(differences))]

    two_sided = sum(abs(value) >= abs(sum(differences)) for value in sums) / len(sums)
    one_sided = sum(value <= sum(differences) for value in sums) / len(sums)
    assert (two_sided, one_sided) == sign_flip([difference / repeats for difference in differences])


@examples(30)
@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 50))
def test_sign_flips_of_passes_are_mcnemar_s_test(broken: int, fixed: int, unchanged: int) -> None:
    """Of differences of ±1 and 0, the test is McNemar's: exactly for up to 13 that differ, otherwise up to chance."""
    error = 1e-9 if broken + fixed <= 13 else 0.02
    expected = (mcnemar(fixed, broken), mcnemar_worse(fixed, broken))
    assert pytest.approx(expected, abs=error) == sign_flip([1.0] * fixed + [-1.0] * broken + [0.0] * unchanged)


@examples(30)
@given(st.integers(0, 400), st.integers(0, 400))
def test_the_one_sided_test_of_passes_is_that_of_scipy(broken: int, fixed: int) -> None:
    """The probability of as many broken pairs, or more, is the binomial test's."""
    p = stats.binomtest(broken, broken + fixed, 0.5, "greater").pvalue if broken + fixed else 1.0
    assert pytest.approx(p, rel=1e-9) == mcnemar_worse(fixed, broken)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("differences", [[0.01] * 50 + [300.0], [n / 1000 for n in range(50, 249)] + [60.0]])
def test_sign_flips_with_one_outlier(differences: list[float], sign: int) -> None:
    """One very large difference does not hide that all of them have the same sign: no other combination is as far from 0."""
    assert (0.0001, 0.0001 if sign < 0 else 1.0) == sign_flip([sign * difference for difference in differences])


@pytest.mark.parametrize(("n", "error"), [(30, 0.1), (256, 0.1), (300, 0.2), (5_000, 0.6)])
def test_sign_flips_of_many_numbers(n: int, error: float) -> None:
    """The p-value is close to that of the t-test, and the extremes of floats are no exception."""
    differences = np.random.default_rng(n).normal(2 / np.sqrt(n), 1, n)

    assert pytest.approx(stats.ttest_1samp(differences, 0).pvalue, rel=error) == sign_flip(differences.tolist())[0]
    assert sign_flip((differences * 1e100).tolist()) == sign_flip((differences * 1e-300).tolist())


@pytest.mark.parametrize(("n", "count"), [(12, 400), (600, 20), pytest.param(600, 80, marks=pytest.mark.exhaustive)])
def test_sign_flips_of_outliers(n: int, count: int) -> None:
    """Differences with a few very large ones, as of times, are not called different more often than others."""
    rng = np.random.default_rng(n)
    alarms = sum(sign_flip(rng.standard_t(1, n).tolist())[0] < 0.05 for _ in range(count))

    assert alarms <= 0.05 * count + 2 * np.sqrt(count * 0.05 * 0.95)


@pytest.mark.parametrize(("n", "error"), [(20, 0.05), (300, 0.01)])
def test_detectable_mean_is_that_of_scipy(n: int, error: float) -> None:
    """The power of the paired t-test at the printed difference is 90 % by scipy's noncentral t, or a little more."""
    power = stats.nct.cdf(stats.t.ppf(0.05, n - 1), n - 1, -detectable_number(n, error, 0.05) / error)

    assert POWER <= power <= POWER + 0.05


@pytest.mark.parametrize(("n", "differing", "alpha"), [(50, 10, 0.05), (100, 10, 0.01), (80, 0, 0.05), (300, 60, 0.05)])
def test_detectable_share_is_that_of_all_outcomes(n: int, differing: int, alpha: float) -> None:
    """The power of McNemar's test at the printed difference is 90 %, summed over all outcomes with scipy's multinomial."""
    drop = detectable_share(n, differing, alpha)
    assert drop is not None
    chance = (differing + 1) / (n + 2)
    fixed_share = chance * (1 - drop) / 2
    found = [
        (broken, fixed, n - broken - fixed)
        for broken in range(n + 1)
        for fixed in range(min(broken, n - broken) + 1)
        if mcnemar_worse(fixed, broken) < alpha
    ]
    shares = [fixed_share + drop, fixed_share, 1 - 2 * fixed_share - drop]

    assert pytest.approx(POWER, abs=0.015 if n == 300 else 1e-3) == stats.multinomial.pmf(found, n, shares).sum()


def test_the_noise_of_unchanged_trials() -> None:
    """The variance of a trial is the mean of those of the cases with several values; without one it is unknown."""
    assert pytest.approx(0.25) == trial_variance([[1.0, 0.0], [1.0, 1.0, 1.0], [0.0]])
    assert trial_variance([[1.0], [0.0]]) is None


def test_nothing_can_be_detected() -> None:
    """Fewer than five cases show no drop; numbers without noise show every drop."""
    assert [None, 0.0] == [detectable_drop(4, 0.0, 0.05, is_share=True), detectable_drop(9, 0.0, 0.05, is_share=False)]
    assert detectable_drop(5, 0.0, 0.05, is_share=True) is not None


def simulated_passes(
    rng: np.random.Generator, n: int, repeats: int, drop: float, noise: str = "coin flips"
) -> PairedDifference:
    """Return the difference of two systems: a tenth of the cases are coin flips, or all of them err with 10 %.

    With a drop, cases fail in the second one, so that its mean is lower by this much, or 0.
    """
    shares = np.repeat([0.5, 1.0], [n // 10, n - n // 10]) if noise == "coin flips" else np.full(n, 0.9)
    before, after = (rng.random((2, repeats, n)) < shares).mean(axis=1)
    after *= rng.random(n) >= drop / shares.mean()
    return compare_values("pass", before.tolist(), after.tolist(), cases=n, scorer_changed=False, is_share=True)


def simulated_numbers(rng: np.random.Generator, n: int, repeats: int, drop: float) -> PairedDifference:
    """Return the difference of two systems whose cases are of different difficulty, with a tenth of the range as noise."""
    before, after = np.clip(rng.beta(8, 2, n) + rng.normal(0, 0.1, (2, repeats, n)), 0, 1).mean(axis=1)
    return numbers(before.tolist(), (after - drop).tolist())


def checks(differences: Sequence[PairedDifference]) -> list[Check]:
    """Return the checks of a gate on some scores, tested together."""
    p_values = [difference.p_worse for difference in differences]
    adjusted = holm([p for p in p_values if p is not None])
    return [
        check_drop("exact", difference, MAX_DROP, p, len(adjusted)) for difference, p in zip(differences, adjusted, strict=True)
    ]


SYSTEMS: dict[str, Callable[[np.random.Generator, int, int, float], PairedDifference]] = {
    "a tenth are coin flips": simulated_passes,
    "all err with 10 %": partial(simulated_passes, noise="errors"),
    "numbers": simulated_numbers,
}
MIN_PASSED = {"a tenth are coin flips": 0.85, "all err with 10 %": 0.82, "numbers": 0.75}


@pytest.mark.parametrize(
    ("system", "n", "scores", "repeats", "pairs"),
    [
        *(pytest.param(*row, 1, SLICE) for row in itertools.product(SYSTEMS, (20, 50), (1, 3))),
        *(
            pytest.param(*row, 1, PAIRS, marks=pytest.mark.exhaustive)
            for row in itertools.product([*SYSTEMS][:2], (20, 50, 100, 300), (1, 2, 3))
        ),
        *(
            pytest.param(*row, SIGN_FLIP_PAIRS, marks=pytest.mark.exhaustive)
            for row in [
                *itertools.product([*SYSTEMS][:2], (50, 300), (3,), (3,)),
                *(("numbers", n, 3, 1) for n in (20, 50, 300)),
            ]
        ),
    ],
)
def test_gates_on_unchanged_systems(system: str, n: int, scores: int, repeats: int, pairs: int) -> None:
    """Of unchanged systems at most 5 % regress, and most pass."""
    rng, counts = np.random.default_rng([n, repeats, scores]), Counter[str]()
    for _ in range(pairs):
        results = checks([SYSTEMS[system](rng, n, repeats, 0.0) for _ in range(scores)])
        verdicts = {check.verdict for check in results}
        counts["regressed"] += "regressed" in verdicts
        counts["passed"] += verdicts == {"passed"}
    rates = {event: counts[event] / pairs for event in ("regressed", "passed")}
    figures = ", ".join(f"{event} {100 * rate:.1f} %" for event, rate in rates.items())
    print(f"{system}, n = {n}, scores {scores}, repeats {repeats}: {figures}")  # noqa: T201
    chance = 0.0 if pairs == PAIRS else 2 * np.sqrt(0.05 * 0.95 / pairs)

    assert rates["regressed"] <= 0.05 + chance
    assert rates["passed"] >= MIN_PASSED[system] - chance


def table_of_cases() -> list[str]:
    """Return the table of docs/how-many-cases.md: the minimum detectable drop, by cases and by what differs by chance."""
    columns = [(0.0, 1), (0.05, 1), (0.1, 1), (0.2, 1), (0.1, 3)]
    lines = ["| cases | no case differs by chance | 5 % differ | 10 % differ | 20 % differ | 10 % differ, three scores |"]
    lines.append("|---" * (1 + len(columns)) + "|")
    for n in (20, 50, 100, 200, 300, 500, 1_000, 2_000, 5_000, 10_000):
        cells = [f"{n:,}"]
        for share, scores in columns:
            drop = detectable_drop(n, share, 0.05 / scores, is_share=True)
            assert drop is not None
            cells.append(f"{100 * max(drop, MAX_DROP):.1f} points")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def test_the_table_of_cases() -> None:
    """The table of the guide is that of the rule."""
    page = Path(__file__).parents[2].joinpath("docs", "how-many-cases.md").read_text()

    assert table_of_cases() == page.split("<!-- table")[1].split("<!-- /table")[0].splitlines()[1:]
