"""Gates and comparison tables on simulated systems: false alarms, and how often a true difference is found.

The rates are printed: `pytest -m exhaustive -rP tests/replay/test_power.py`.
"""

import math
from collections import Counter
from functools import cache

import numpy as np
import pytest
from scipy import stats

from evaljournal.replay.results.gate import check_drop
from evaljournal.replay.results.pairing import PairedDifference, compare_values
from evaljournal.replay.results.power import POWER, Criterion, detectable_number, detectable_share
from evaljournal.replay.results.table import Difference, assess
from evaljournal.replay.statistics import mcnemar

EXHAUSTIVE = 10_000
SLICE = 100


@cache
def paired_passes(n: int, broken: int, fixed: int) -> PairedDifference:
    """Return the comparison of two runs of `n` cases, of which `broken` are broken and `fixed` are fixed."""
    before = [1.0] * broken + [0.0] * (n - broken)
    after = [0.0] * broken + [1.0] * fixed + [0.0] * (n - broken - fixed)
    return compare_values("pass", before, after, cases=n, scorer_changed=False, is_share=True)


def simulated(rng: np.random.Generator, n: int, differing: float | None, drop: float = 0.0) -> PairedDifference:
    """Return the comparison of two runs whose true pass rates, or means if `differing` is None, differ by a drop."""
    if differing is None:
        after = rng.normal(-drop, 0.2, n).tolist()
        return compare_values("number", [0.0] * n, after, cases=n, scorer_changed=False, is_share=False)
    drop = min(1.0, drop)
    broken, fixed = (max(differing, drop) + drop) / 2, (max(differing, drop) - drop) / 2
    counts = rng.multinomial(n, [broken, fixed, max(0.0, 1 - broken - fixed)])
    return paired_passes(n, int(counts[0]), int(counts[1]))


def check_rates(name: str, counts: Counter[str], pairs: int, *, is_exact: bool = False) -> None:
    """Print the rates, and check them; with few pairs the check is looser.

    With `is_exact`, 5 % is not the maximum of false alarms but their rate, which a simulation estimates with an error.
    """
    rates = {event: counts[event] / pairs for event in ("false alarm", "shown", "twice shown")}
    print(f"{name}: " + ", ".join(f"{event} {100 * rate:.2f} %" for event, rate in rates.items()))  # noqa: T201

    slack = 0.0 if pairs == EXHAUSTIVE else 0.1
    error = 3 * math.sqrt(0.05 * 0.95 / pairs) if is_exact else 0.0
    assert rates["false alarm"] <= 0.05 + slack + error
    assert 0.78 - slack <= rates["shown"] <= 0.86 + slack
    assert 0.97 - slack <= rates["twice shown"]


SYSTEMS = [(50, 0.0), (50, 0.3), (300, 0.02), (300, 0.1), (1000, 0.02), (1000, 0.3), (20, None), (300, None)]
"""Numbers of cases, and the share of them in which two equal systems differ; None if their scores are numbers."""


def is_worse(difference: Difference) -> bool:
    """Return whether a row is reported as worse than the baseline."""
    return difference.is_distinguishable and (difference.paired_difference.difference or 0.0) < 0


@pytest.mark.parametrize(
    ("n", "differing", "tolerated", "pairs"),
    [
        (50, 0.0, 0.02, SLICE),
        (1000, 0.3, 0.0, SLICE),
        (20, None, 0.0, SLICE),
        *(
            pytest.param(*system, tolerated, EXHAUSTIVE, marks=pytest.mark.exhaustive)
            for system in SYSTEMS
            for tolerated in (0.0, 0.02)
            if system[1] is not None or not tolerated
        ),
    ],
)
def test_gates(n: int, differing: float | None, tolerated: float, pairs: int) -> None:
    """Equal systems rarely regress; at the printed drop about 80 % do, at twice that drop nearly all."""
    rng, counts = np.random.default_rng([n, round(1000 * (differing or 0)), round(1000 * tolerated)]), Counter[str]()
    for _ in range(pairs):
        check = check_drop("exact", simulated(rng, n, differing), tolerated)
        counts["false alarm"] += check.verdict == "regressed"
        drop = check.minimum_detectable
        assert drop is not None
        for event, size in (("shown", drop), ("twice shown", 2 * drop)):
            counts[event] += check_drop("exact", simulated(rng, n, differing, size), tolerated).verdict == "regressed"

    check_rates(f"gate, n = {n}, {differing} differ, {tolerated} tolerated", counts, pairs)


@pytest.mark.parametrize(
    ("n", "differing", "comparisons", "pairs"),
    [
        (50, 0.3, 2, SLICE // 2),
        (300, 0.02, 5, SLICE // 2),
        (20, None, 3, SLICE // 2),
        *(
            pytest.param(*system, comparisons, EXHAUSTIVE, marks=pytest.mark.exhaustive)
            for system in SYSTEMS
            for comparisons in (1, 5, 20)
            if (system != (50, 0.0) or comparisons < 20) and (system[1] is not None or comparisons == 1)
        ),
    ],
)
def test_tables(n: int, differing: float | None, comparisons: int, pairs: int) -> None:
    """Equal systems: few tables have any difference. A system worse by the printed difference is found in about 80 %."""
    rng, counts = np.random.default_rng([n, round(1000 * (differing or 0)), comparisons]), Counter[str]()
    for _ in range(pairs):
        equal = [simulated(rng, n, differing) for _ in range(comparisons)]
        differences = assess(equal)
        counts["false alarm"] += any(difference.is_distinguishable for difference in differences)
        size = differences[0].minimum_detectable
        assert size is not None
        for event, drop in (("shown", size), ("twice shown", 2 * size)):
            counts[event] += is_worse(assess([simulated(rng, n, differing, drop), *equal[1:]])[0])

    check_rates(f"table, n = {n}, {differing} differ, {comparisons} comparisons", counts, pairs, is_exact=differing is None)


@pytest.mark.parametrize(("n", "error"), [(20, 0.05), (300, 0.01)])
def test_detectable_mean_is_that_of_scipy(n: int, error: float) -> None:
    """The power of the paired t-test at the printed drop is 80 % by scipy's noncentral t, or a little more."""
    drop = detectable_number(n, error)
    assert drop is not None
    power = stats.nct.cdf(stats.t.ppf(0.025, n - 1), n - 1, -drop / error)

    assert POWER <= power <= POWER + 0.05


@pytest.mark.parametrize(("n", "differing", "alpha"), [(50, 10, 0.05), (100, 10, 0.01), (80, 3, 0.05)])
def test_detectable_share_is_that_of_all_outcomes(n: int, differing: int, alpha: float) -> None:
    """The power of McNemar's test at the printed drop is 80 %, summed over all outcomes with scipy's multinomial."""
    drop = detectable_share(n, float(differing), Criterion(level=1 - alpha, is_exact=True))
    assert drop is not None
    rate = max((differing + 1) / (n + 2), drop)
    shares = [(rate + drop) / 2, max(0.0, (rate - drop) / 2), 1 - rate]
    shown = [
        (broken, fixed, n - broken - fixed)
        for broken in range(n + 1)
        for fixed in range(min(broken, n - broken) + 1)
        if mcnemar(fixed, broken) < alpha
    ]

    assert pytest.approx(POWER, abs=1e-3) == stats.multinomial.pmf(shown, n, shares).sum()


def test_no_drop_can_be_detected() -> None:
    """Three cases detect nothing, and numbers without variation have no interval."""
    assert detectable_share(3, 0.0, Criterion()) is None
    assert detectable_number(1, None) is None
    assert detectable_number(5, 0.0) is None


def test_a_tolerated_drop_is_not_detectable() -> None:
    """With many cases, a drop is detected only beyond what is tolerated."""
    small, large = detectable_share(100_000, 0.0, Criterion()), detectable_share(100_000, 0.0, Criterion(0.02))

    assert POWER == 0.8
    assert small is not None
    assert large is not None
    assert small < 0.001
    assert 0.019 < large < 0.021
