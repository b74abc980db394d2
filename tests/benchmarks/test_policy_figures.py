"""A slice of the figures of `python -m benchmarks policy`: seeded, and a few seconds each."""

import statistics

import pytest

from benchmarks.simulated.compare import FIXED, OURS, compare
from benchmarks.simulated.families import FAMILIES
from benchmarks.simulated.rows import Row, measure, ours

pytestmark = pytest.mark.slow

SEED = 3


def row(family: str, name: str) -> Row:
    """Return a row of a family by its name."""
    [found] = [row for row in FAMILIES[family] if row.name == name]
    return found


@pytest.mark.parametrize("kind", ["500", "time out"])
@pytest.mark.parametrize("share", [20, 50, 80])
@pytest.mark.parametrize("slots", [32, 100])
def test_inputs_that_always_fail_do_not_slow_a_run_down(kind: str, share: int, slots: int) -> None:
    """If a part of the inputs always answers 500 or times out, a run is at most 1.5 times as long as with a fixed limit."""
    compared = compare(row("poison", f"{share} % of 200 always {kind}, 2 s, {slots} slots"), SEED, [OURS, FIXED])

    assert compared.ratio(OURS) <= 1.5


@pytest.mark.parametrize(
    ("family", "step", "minimum"),
    [
        *(("bans", 18, 70.0), ("second-bursts", 15, 85.0), ("tenants", 20, 85.0), ("cool-downs", 15, 70.0)),
        *(
            pytest.param(*row, marks=pytest.mark.exhaustive)
            for row in (("bans", 6, 70.0), ("second-bursts", 5, 85.0), ("tenants", 8, 85.0), ("cool-downs", 5, 70.0))
        ),
    ],
)
def test_a_key_that_is_shared_or_banned_is_used_again(family: str, step: int, minimum: float) -> None:
    """What others used up for a while, or a server refused, does not limit the rest of the run."""
    rows = [row for row in FAMILIES[family] if row.has_capacity][::step]

    assert minimum <= statistics.fmean(min(measure(row, ours, SEED).goodput or 0.0, 100.0) for row in rows)


def test_small_runs_are_about_as_fast_as_with_a_fixed_limit() -> None:
    """Of a slice of the small runs, few take more than 10 % longer, and none more than 1.7 times as long."""
    compared = [compare(row, SEED, [OURS, FIXED]) for row in FAMILIES["small-runs"][::13]]
    ratios = sorted(comparison.ratio(OURS) for comparison in compared if not comparison.results[FIXED].failed)

    assert len(ratios) > 40
    assert ratios[-1] <= 1.7
    assert sum(ratio > 1.1 for ratio in ratios) <= 0.1 * len(ratios)


@pytest.mark.parametrize("name", ["5/s: 100 x 0.05 s, 100 slots", "20/s: 100 x 0.3 s, 100 slots"])
def test_a_burst_of_429s_at_the_start_is_no_rate_of_nothing(name: str) -> None:
    """If all calls of a run start together and most are rate limited, those still in flight count as accepted."""
    assert compare(row("small-runs", name), 11, [OURS, FIXED]).ratio(OURS) <= 1.5
