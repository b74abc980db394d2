"""Decisions: whether a score got worse or better. One rule for `compare`, `gate`, the report and Markdown.

A score is worse or better if the test of its paired difference has a p-value below 5 %, Holm-corrected over the scores of one
command, and if the difference is not negligible. The test is exact for passes and for few cases; otherwise it draws signs, with
a constant seed. With every decision comes the minimum detectable difference: a comparison of this many cases finds it with 90 %
probability, and differences below it would probably not be seen.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from statistics import NormalDist
from typing import Final, TypeVar

import attrs

from evaljournal.replay.results.pairing import PairedDifference
from evaljournal.replay.statistics import LEVEL, holm, mcnemar, t_quantile

POWER: Final = 0.9
"""Probability with which the minimum detectable difference is found. With 0.8, a quarter of the gates on three unchanged scores
would not pass, because the 95 % interval of one of them reaches the minimum by chance."""
NEGLIGIBLE: Final = 0.01
"""A difference below this share of the baseline's mean is none."""
CLOCK_RESOLUTION: Final = 1e-6
"""Seconds to which times are recorded."""
_ALPHA: Final = 1 - LEVEL
_Z_POWER: Final = NormalDist().inv_cdf(POWER)
_MAX_EXACT: Final = 60
"""Maximum expected number of differing cases for which probabilities are summed; above, the normal distribution is used."""
_MAX_DEVIATIONS: Final = 6
"""Standard deviations from the expected number beyond which probabilities are ignored."""
_MAX_RATIO: Final = 100
"""Maximum ratio of the cases needed to those compared; a larger one depends on the last digits of the difference."""
_STEPS: Final = 12
"""Number of bisections; the minimum is within a thousandth of its size."""
KeyT = TypeVar("KeyT")


def decide(differences: Mapping[KeyT, PairedDifference], *, is_time: bool = False) -> dict[KeyT, PairedDifference]:
    """Return the differences with their verdicts; they are the scores of one command, and tested together.

    With `is_time` they are seconds: less is better, and a difference below the clock's resolution is none.
    """
    p_values = [difference.p for difference in differences.values() if difference.p is not None]
    comparisons, adjusted_p_values = len(p_values), iter(holm(p_values))
    return {
        key: difference if difference.p is None else _decided(difference, next(adjusted_p_values), comparisons, is_time=is_time)
        for key, difference in differences.items()
    }


def _decided(difference: PairedDifference, p_adjusted: float, comparisons: int, *, is_time: bool) -> PairedDifference:
    amount = difference.difference or 0.0
    negligible = max(NEGLIGIBLE * abs(difference.mean_a or 0.0), CLOCK_RESOLUTION if is_time else 0.0)
    minimum = detectable(difference, 1 - _ALPHA / comparisons)
    is_found = p_adjusted < _ALPHA and abs(amount) >= negligible
    return attrs.evolve(
        difference,
        verdict=("worse" if (amount < 0) != is_time else "better") if is_found else "no_difference_found",
        p_adjusted=p_adjusted,
        comparisons=comparisons,
        negligible=negligible,
        minimum_detectable=None if minimum is None else max(minimum, negligible),
    )


def more_cases(difference: PairedDifference, max_drop: float) -> int | None:
    """Return about how many more cases would decide whether a score dropped by more than is tolerated; None if unknown.

    They are assumed to differ as much as those compared: then a larger drop is worse, and the interval of a smaller one does
    not reach the tolerated drop. Close to it, more than 100 times the cases compared would be needed: then there is no number.
    """
    n, amount, low = difference.n, difference.difference or 0.0, difference.low
    cases = float(_min_cases(_ALPHA / difference.comparisons))
    if difference.minimum_detectable is not None and low is not None:
        tolerated = max(max_drop, difference.negligible)
        if math.isclose(tolerated, -amount):  # On the edge, no number of cases decides.
            return None
        ratio = difference.minimum_detectable / -amount if -amount > tolerated else (amount - low) / (tolerated + amount)
        if ratio * ratio > _MAX_RATIO:
            return None
        cases = max(cases, n * ratio * ratio)
    return max(1, math.ceil(cases) - n)


def _min_cases(alpha: float) -> int:
    """Return the minimum number of cases with which a test can be below `alpha`: if all of them differ in one direction."""
    return math.floor(1 - math.log2(alpha)) + 1


def detectable(difference: PairedDifference, level: float = LEVEL) -> float | None:
    """Return the minimum difference that this many cases show with a p-value below 1 - `level`; None if they show none."""
    n, squares, error = difference.n, difference.squared_differences, difference.standard_error
    if n < _min_cases(1 - level):
        return None
    if squares is not None:
        return detectable_share(n, math.ceil(squares), level)
    return detectable_number(n, error, level) if error else None


def detectable_number(n: int, error: float, level: float = LEVEL) -> float:
    """Return the minimum difference of means that `n` cases detect; `error` is the standard error of the paired difference."""
    t_power = _Z_POWER + (_Z_POWER**3 + _Z_POWER) / (4 * (n - 1))  # Student's t, by the first term of its series.
    return (t_quantile(n - 1, level) + t_power) * error * (1 + 1 / (n - 1))  # The next standard error may be larger.


@lru_cache(maxsize=1024)
def detectable_share(n: int, differing_cases: int, level: float = LEVEL) -> float | None:
    """Return the minimum difference of pass rates that `n` cases detect; None if they detect none.

    `differing_cases` differ by chance, in both directions, and the cases of the difference independently of that.
    """

    def power(difference: float) -> float:
        chance = (differing_cases + 1) / (n + 2)  # One more, because more may differ next time.
        return _power(n, chance + difference * (1 - chance), difference, 1 - level)

    high = 1 / n
    while power(high) < POWER:
        if high == 1:
            return None
        high = min(1.0, 2 * high)
    low = high / 2
    for _ in range(_STEPS):
        midpoint = (low + high) / 2
        low, high = (low, midpoint) if power(midpoint) >= POWER else (midpoint, high)
    return high


def _power(n: int, differing_share: float, difference: float, alpha: float) -> float:
    """Return the probability that McNemar's test finds a difference, summed over the numbers of differing and broken cases."""
    expected, spread = n * differing_share, math.sqrt(n * differing_share * (1 - differing_share))
    if expected > _MAX_EXACT:
        surplus = NormalDist().inv_cdf(1 - alpha / 2) * math.sqrt(expected) + 1  # One more, because counts are integers.
        error = math.sqrt(n * max(differing_share - difference**2, 1e-12))
        return NormalDist().cdf((n * difference - surplus) / error)
    broken_share = (1 + difference / differing_share) / 2
    low = max(0, math.floor(expected - _MAX_DEVIATIONS * spread))
    high = min(n, math.ceil(expected + _MAX_DEVIATIONS * spread) + 1)
    return math.fsum(
        _binomial(n, count, differing_share)
        * math.fsum(_binomial(count, broken, broken_share) for broken in range(_min_broken(count, alpha), count + 1))
        for count in range(low, high + 1)
    )


@lru_cache(maxsize=4096)
def _min_broken(differing_cases: int, alpha: float) -> int:
    """Return the minimum number of broken cases, among those that differ, with which the test is below `alpha`."""
    numbers = range(differing_cases // 2 + 1, differing_cases + 1)
    return numbers.start + bisect_left(numbers, 1, key=lambda broken: mcnemar(differing_cases - broken, broken) < alpha)


def _binomial(n: int, count: int, share: float) -> float:
    if share in {0.0, 1.0}:
        return float(count == n * share)
    logarithm = math.lgamma(n + 1) - math.lgamma(count + 1) - math.lgamma(n - count + 1)
    return math.exp(logarithm + count * math.log(share) + (n - count) * math.log1p(-share))
