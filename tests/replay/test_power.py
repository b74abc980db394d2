"""The smallest drop that a comparison would show: how often it is shown, and how often none is reported as one."""

import random

import pytest

from replay.power import POWER, Criterion, detectable_number, detectable_share
from replay.statistics import bonett_price, paired_numbers

EXHAUSTIVE = 10_000


def is_shown(n: int, broken: int, fixed: int, tolerated: float) -> bool:
    """Return whether a comparison reports a regression."""
    low, high = bonett_price(n, fixed - broken, fixed + broken)
    return high < 0 and low <= -tolerated


def compared(rng: random.Random, n: int, differing: float, drop: float) -> tuple[int, int]:
    """Return the broken and fixed cases of two runs whose pass rates differ by a drop."""
    broken, fixed = (differing + drop) / 2, (differing - drop) / 2
    draws = rng.choices(("broken", "fixed", ""), (broken, fixed, 1 - broken - fixed), k=n)
    return draws.count("broken"), draws.count("fixed")


SYSTEMS = [(50, 0.0), (50, 0.3), (300, 0.02), (300, 0.1), (1000, 0.02), (1000, 0.3)]
"""Numbers of cases, and the share of them in which two equal systems differ."""


@pytest.mark.parametrize(
    ("n", "differing", "tolerated", "pairs"),
    [
        (50, 0.0, 0.02, 100),
        (300, 0.02, 0.02, 100),
        (1000, 0.3, 0.0, 100),
        *(
            pytest.param(*system, tolerated, EXHAUSTIVE, marks=pytest.mark.exhaustive)
            for system in SYSTEMS
            for tolerated in (0.0, 0.02)
        ),
    ],
)
def test_drops_of_pass_rates(n: int, differing: float, tolerated: float, pairs: int) -> None:
    """Equal systems are rarely reported; the printed drop in about 80 % of comparisons, twice of it nearly always."""
    rng, counts = random.Random(f"{n} {differing} {tolerated}"), [0, 0, 0]
    for _ in range(pairs):
        broken, fixed = compared(rng, n, differing, 0.0)
        counts[0] += is_shown(n, broken, fixed, tolerated)
        drop = detectable_share(n, float(broken + fixed), Criterion(tolerated))
        assert drop is not None
        for factor in (1, 2):
            larger = min(1.0, factor * drop)
            counts[factor] += is_shown(n, *compared(rng, n, max(differing, larger), larger), tolerated)
    false_alarms, shown, surely_shown = (count / pairs for count in counts)

    slack = 0.0 if pairs == EXHAUSTIVE else 0.1
    assert false_alarms <= 0.05 + slack
    assert 0.78 - slack <= shown <= 0.86 + slack
    assert surely_shown >= 0.97 - slack


@pytest.mark.parametrize("pairs", [100, pytest.param(EXHAUSTIVE, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("n", [20, 300])
def test_drops_of_means(n: int, pairs: int) -> None:
    """The same for numbers."""
    rng, counts = random.Random(n), [0, 0, 0]
    for _ in range(pairs):
        estimate = paired_numbers([rng.gauss(0.0, 0.2) for _ in range(n)])
        drop = detectable_number(n, estimate.standard_error)
        assert drop is not None
        for factor in (0, 1, 2):
            high = paired_numbers([rng.gauss(-factor * drop, 0.2) for _ in range(n)]).high
            counts[factor] += high is not None and high < 0
    false_alarms, shown, surely_shown = (count / pairs for count in counts)

    slack = 0.0 if pairs == EXHAUSTIVE else 0.1
    assert false_alarms <= 0.05 + slack
    assert 0.78 - slack <= shown <= 0.86 + slack
    assert surely_shown >= 0.97 - slack


def test_no_drop_can_be_shown() -> None:
    """Three cases show nothing, and numbers without variation have no interval."""
    assert detectable_share(3, 0.0, Criterion()) is None
    assert detectable_number(1, None) is None
    assert detectable_number(5, 0.0) is None


def test_a_tolerated_drop_is_not_detectable() -> None:
    """With many cases, a drop is shown only beyond what is tolerated."""
    small, large = detectable_share(100_000, 0.0, Criterion()), detectable_share(100_000, 0.0, Criterion(0.02))

    assert POWER == 0.8
    assert small is not None
    assert large is not None
    assert small < 0.001
    assert 0.019 < large < 0.021
