"""Decisions on scores and gates: their rule, and on simulated systems how often it is wrong.

The rates are printed: `pytest -m exhaustive -rP tests/replay/test_decision.py`.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evaljournal.replay.results.decision import POWER, decide, detectable_number, detectable_share, more_cases
from evaljournal.replay.results.gate import MAX_DROP, Check, check_drop
from evaljournal.replay.results.pairing import PairedDifference, compare_values
from evaljournal.replay.statistics import mcnemar, sign_flip
from tests.journal.samples import examples

PAIRS = 1_000
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


@pytest.mark.parametrize(
    ("difference", "max_drop", "verdict"),
    [
        (passes(60, 7), 0.02, "regressed"),
        (passes(60, 7), 0.12, "too_little_evidence"),  # Worse by 11.7 points, which is tolerated, but perhaps by more.
        (passes(60, 7), 0.3, "passed"),  # Worse, and certainly by less than is tolerated.
        (passes(60, 5), 0.02, "passed"),  # A drop that this many cases do not show.
        (passes(60, 0), 0.0, "passed"),
        (passes(20_000, 300), 0.02, "passed"),
        (passes(20_000, 380), 0.02, "too_little_evidence"),
        (passes(20_000, 420), 0.02, "regressed"),
        (passes(20_000, 40, 10), 0.001, "passed"),  # Less than 1 % is no difference.
        (passes(5, 0), 0.02, "too_little_evidence"),
        (passes(1, 0), 0.02, "too_little_evidence"),
        (numbers([0.5] * 3, [0.5] * 3), 0.0, "passed"),  # Nothing differs.
        (numbers([0.5] * 9, [0.4] * 9), 0.02, "regressed"),
        (numbers([0.5] * 9, [0.4] * 9), 0.15, "passed"),
        (numbers([0.5], [0.4]), 0.02, "too_little_evidence"),
    ],
)
def test_the_verdict_of_a_gate(difference: PairedDifference, max_drop: float, verdict: str) -> None:
    """Worse by more than is tolerated regressed; otherwise the lower end of the interval decides."""
    assert verdict == check_drop("exact", decided(difference), max_drop).verdict


def test_trials_with_an_output_need_no_evidence_if_none_is_lost() -> None:
    """Three cases with an output in both runs pass."""
    assert "passed" == check_drop("completed", decided(passes(3, 0)), 0.02).verdict


@pytest.mark.parametrize(
    ("broken", "n", "max_drop"), [(7, 60, 0.13), (7, 60, 0.15), (0, 1, 0.02), (380, 20_000, 0.02), (30, 1_000, 0.035)]
)
def test_more_cases_would_decide(broken: int, n: int, max_drop: float) -> None:
    """With about as many more cases as a gate asks for, and the same share of broken ones, there is a verdict."""
    check = check_drop("exact", decided(passes(n, broken)), max_drop)
    assert check.more_cases is not None
    total = n + round(1.1 * check.more_cases)
    later_check = check_drop("exact", decided(passes(total, round(total * broken / n))), max_drop)

    assert ["too_little_evidence", False] == [check.verdict, later_check.verdict == "too_little_evidence"]


def test_the_first_cases() -> None:
    """Without enough cases for any verdict, those missing for one are asked for; a mean on the edge has no number."""
    assert [5, 3] == [check_drop("exact", decided(passes(n, 0)), 0.02).more_cases for n in (1, 3)]
    assert check_drop("exact", decided(passes(1_000, 20)), 0.02).more_cases is None


@pytest.mark.parametrize(
    ("drop", "max_drop"),
    [(0.1, 0.1), (0.3, 0.1 + 0.2), (0.1 + 0.2, 0.3), (0.1, 0.1 + 1e-6), (0.1, 0.1 + 1e-160), (1e-200, 0.0)],
)
def test_no_number_of_cases_close_to_the_tolerated_drop(drop: float, max_drop: float) -> None:
    """A number is given only if it is at most 100 times that of the cases compared."""
    difference = attrs.evolve(decided(numbers([0.5, 0.9] * 25, [0.4] * 50)), difference=-drop, low=-0.5, negligible=0.0)

    assert more_cases(difference, max_drop) is None


@examples(40)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=7), st.sampled_from([1, 2, 3, 5]))
def test_sign_flips_are_those_of_all_combinations(differences: list[int], repeats: int) -> None:
    """The p-value is the share of all combinations of signs whose sum is as far from 0, or farther."""
    sums = [abs(sum(map(int.__mul__, differences, signs))) for signs in itertools.product((1, -1), repeat=len(differences))]

    assert sum(value >= abs(sum(differences)) for value in sums) / len(sums) == sign_flip(
        [difference / repeats for difference in differences]
    )


@examples(30)
@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 50))
def test_sign_flips_of_passes_are_mcnemar_s_test(broken: int, fixed: int, unchanged: int) -> None:
    """Of differences of ±1 and 0, the test is McNemar's: exactly for up to 13 that differ, otherwise up to chance."""
    error = 1e-9 if broken + fixed <= 13 else 0.02
    assert pytest.approx(mcnemar(fixed, broken), abs=error) == sign_flip([1.0] * fixed + [-1.0] * broken + [0.0] * unchanged)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("differences", [[0.01] * 50 + [300.0], [n / 1000 for n in range(50, 249)] + [60.0]])
def test_sign_flips_with_one_outlier(differences: list[float], sign: int) -> None:
    """One very large difference does not hide that all of them have the same sign: no other combination is as far from 0."""
    assert 0.0001 == sign_flip([sign * difference for difference in differences])


@pytest.mark.parametrize(("n", "error"), [(30, 0.1), (256, 0.1), (300, 0.2), (5_000, 0.6)])
def test_sign_flips_of_many_numbers(n: int, error: float) -> None:
    """The p-value is close to that of the t-test, and the extremes of floats are no exception."""
    differences = np.random.default_rng(n).normal(2 / np.sqrt(n), 1, n)

    assert pytest.approx(stats.ttest_1samp(differences, 0).pvalue, rel=error) == sign_flip(differences.tolist())
    assert sign_flip((differences * 1e100).tolist()) == sign_flip((differences * 1e-300).tolist())


@pytest.mark.parametrize(("n", "count"), [(12, 400), (600, 80)])
def test_sign_flips_of_outliers(n: int, count: int) -> None:
    """Differences with a few very large ones, as of times, are not called different more often than others."""
    rng = np.random.default_rng(n)
    alarms = sum(sign_flip(rng.standard_t(1, n).tolist()) < 0.05 for _ in range(count))

    assert alarms <= 0.05 * count + 2 * np.sqrt(count * 0.05 * 0.95)


@pytest.mark.parametrize(("n", "error"), [(20, 0.05), (300, 0.01)])
def test_detectable_mean_is_that_of_scipy(n: int, error: float) -> None:
    """The power of the paired t-test at the printed difference is 90 % by scipy's noncentral t, or a little more."""
    power = stats.nct.cdf(stats.t.ppf(0.025, n - 1), n - 1, -detectable_number(n, error) / error)

    assert POWER <= power <= POWER + 0.05


@pytest.mark.parametrize(("n", "differing", "alpha"), [(50, 10, 0.05), (100, 10, 0.01), (80, 0, 0.05), (300, 60, 0.05)])
def test_detectable_share_is_that_of_all_outcomes(n: int, differing: int, alpha: float) -> None:
    """The power of McNemar's test at the printed difference is 90 %, summed over all outcomes with scipy's multinomial."""
    drop = detectable_share(n, differing, 1 - alpha)
    assert drop is not None
    chance = (differing + 1) / (n + 2)
    fixed_share = chance * (1 - drop) / 2
    found = [
        (broken, fixed, n - broken - fixed)
        for broken in range(n + 1)
        for fixed in range(min(broken, n - broken) + 1)
        if mcnemar(fixed, broken) < alpha
    ]
    shares = [fixed_share + drop, fixed_share, 1 - 2 * fixed_share - drop]

    assert pytest.approx(POWER, abs=0.015 if n == 300 else 1e-3) == stats.multinomial.pmf(found, n, shares).sum()


def test_nothing_can_be_detected() -> None:
    """Fewer than six cases show no difference; numbers that do not vary have no minimum."""
    assert [None, None, None] == [
        decided(difference).minimum_detectable
        for difference in (passes(5, 1), numbers([0.5] * 9, [0.5] * 9), numbers([0.5], [0.1]))
    ]
    assert decided(passes(6, 0)).minimum_detectable is not None


def simulated_passes(rng: np.random.Generator, n: int, repeats: int, drop: float) -> PairedDifference:
    """Return the difference of two systems: a fifth of the cases pass half of the time, so that a tenth differ by chance.

    With a drop, cases fail in the second one, so that its mean is lower by this much, or 0.
    """
    shares = np.repeat([0.5, 1.0, 0.0], [n // 5, n - n // 5 - n // 20, n // 20])
    before, after = (rng.random((2, repeats, n)) < shares).mean(axis=1)
    after *= rng.random(n) >= drop / shares.mean()
    return compare_values("pass", before.tolist(), after.tolist(), cases=n, scorer_changed=False, is_share=True)


def simulated_numbers(rng: np.random.Generator, n: int, repeats: int, drop: float) -> PairedDifference:
    """Return the difference of two systems whose cases are of different difficulty, with a tenth of the range as noise."""
    before, after = np.clip(rng.beta(8, 2, n) + rng.normal(0, 0.1, (2, repeats, n)), 0, 1).mean(axis=1)
    return numbers(before.tolist(), (after - drop).tolist())


SYSTEMS = {"pass": simulated_passes, "number": simulated_numbers}


def checks(differences: Sequence[PairedDifference]) -> list[Check]:
    return [check_drop("exact", difference, MAX_DROP) for difference in decide(dict(enumerate(differences))).values()]


@pytest.mark.parametrize(
    ("kind", "n", "repeats", "pairs"),
    [
        *(pytest.param(*system, SLICE) for system in itertools.product(SYSTEMS, (20, 50), (1, 3))),
        *(
            pytest.param(*system, PAIRS, marks=pytest.mark.exhaustive)
            for system in itertools.product(SYSTEMS, (20, 50, 100, 300), (1, 3))
        ),
    ],
)
def test_gates_on_three_scores(kind: str, n: int, repeats: int, pairs: int) -> None:
    """Of unchanged systems, at most 5 % regress and at least 80 % pass; at least 80 % of drops of twice the minimum regress."""
    rng, counts, minima = np.random.default_rng([n, repeats]), Counter[str](), list[float]()
    for _ in range(pairs):
        unchanged = [SYSTEMS[kind](rng, n, repeats, 0.0) for _ in range(3)]
        results = checks(unchanged)
        verdicts = {check.verdict for check in results}
        counts["regressed"] += "regressed" in verdicts
        counts["passed"] += verdicts == {"passed"}
        minimum = results[0].minimum_detectable
        assert minimum is not None
        minima.append(minimum)
        for factor in (1, 2):
            dropped = SYSTEMS[kind](rng, n, repeats, factor * minimum)
            counts[f"{factor} × the minimum caught"] += checks([dropped, *unchanged[1:]])[0].verdict == "regressed"
    rates = {event: count / pairs for event, count in counts.items()}
    figures = ", ".join(f"{event} {100 * rate:.1f} %" for event, rate in rates.items())
    print(f"{kind}, n = {n}, repeats {repeats}: minimum {sum(minima) / pairs:.3f}, {figures}")  # noqa: T201

    assert rates["regressed"] <= 0.05
    assert rates["passed"] >= 0.8
    assert rates["2 × the minimum caught"] >= 0.8


def table_of_cases() -> list[str]:
    """Return the table of docs/how-many-cases.md: the minimum detectable drop, by cases and by what differs by chance."""
    columns = [(0.0, 1), (0.05, 1), (0.1, 1), (0.2, 1), (0.1, 3)]
    lines = ["| cases | no case differs by chance | 5 % differ | 10 % differ | 20 % differ | 10 % differ, three scores |"]
    lines.append("|---" * (1 + len(columns)) + "|")
    for n in (20, 50, 100, 200, 300, 500, 1_000, 2_000, 5_000, 10_000):
        cells = [f"{n:,}"]
        for share, scores in columns:
            differing = round(n * share)
            difference = decide(dict.fromkeys(range(scores), passes(n, differing - differing // 2, differing // 2)))[0]
            assert difference.minimum_detectable is not None
            cells.append(f"{100 * difference.minimum_detectable:.1f} points")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def test_the_table_of_cases() -> None:
    """The table of the guide is that of the rule."""
    page = Path(__file__).parents[2].joinpath("docs", "how-many-cases.md").read_text()

    assert table_of_cases() == page.split("<!-- table")[1].split("<!-- /table")[0].splitlines()[1:]
