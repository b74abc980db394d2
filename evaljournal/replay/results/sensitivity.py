"""What a gate can see: the minimum drop that it would find, and how many more cases would decide.

The minimum drop is computed from the noise of *unchanged* trials: the repeats of the baseline, or runs with its definition.
Never from the change under test: each broken case would then count as noise, and make the gate more tolerant.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Final

from evaljournal.replay.statistics import mcnemar_worse, t_quantile

POWER: Final = 0.9
"""Probability with which the minimum drop is found."""
_Z_POWER: Final = NormalDist().inv_cdf(POWER)
_MAX_EXACT: Final = 60
"""Maximum expected number of differing cases for which probabilities are summed; above, the normal distribution is used."""
_MAX_DEVIATIONS: Final = 6
"""Standard deviations from the expected number beyond which probabilities are ignored."""
_MAX_RATIO: Final = 100
"""Maximum ratio of the cases that would decide to those compared."""
_BISECTIONS: Final = 12
"""With these, the minimum is within a thousandth of its size."""


def trial_variance(groups: Iterable[Sequence[float]]) -> float | None:
    """Return the variance of a score of one trial if nothing changes, from the values of some cases; None without any two."""
    variances: list[float] = []
    for values in groups:
        if len(values) > 1:
            mean = math.fsum(values) / len(values)
            variances.append(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return math.fsum(variances) / len(variances) if variances else None


def detectable_drop(n: int, noise: float, alpha: float, *, is_share: bool) -> float | None:
    """Return the minimum drop that `n` cases show with a one-sided p-value below `alpha`; None if they show none.

    `noise` is the variance of the difference of a case if nothing changes.
    """
    if n < min_cases(alpha):
        return None
    if is_share:
        return detectable_share(n, math.ceil(round(n * noise, 6)), alpha)
    return detectable_number(n, math.sqrt(noise / n), alpha)


def min_cases(alpha: float) -> int:
    """Return the minimum number of cases with which a one-sided test can be below `alpha`: if all of them break."""
    return math.floor(-math.log2(alpha)) + 1


def more_cases(n: int, alpha: float, *, p: float, broken: int, fixed: int, is_share: bool) -> int:
    """Return about how many more cases would make a p-value smaller than `alpha`, if they differ as those compared do."""
    if is_share:  # As many of each kind, and the first integers with which McNemar's test is below.
        stride = max(1, n // 50)  # The number is approximate, and each test takes time.
        totals = range(max(n + 1, min_cases(alpha)), _MAX_RATIO * n, stride)
        is_below = (mcnemar_worse(math.ceil(fixed * total / n), broken * total // n) < alpha for total in totals)
        cases = next((total for total, below in zip(totals, is_below, strict=True) if below), totals.stop)
    else:  # The distance from chance, in standard errors, grows with the root of the number of cases.
        ratio = NormalDist().inv_cdf(alpha) / NormalDist().inv_cdf(p) if p < 1 / 2 else 0.0
        cases = max(min_cases(alpha), math.ceil(n * ratio**2))
    return max(1, cases - n)


def detectable_number(n: int, error: float, alpha: float) -> float:
    """Return the minimum drop of a mean that `n` cases detect; `error` is the standard error of the paired difference."""
    t_power = _Z_POWER + (_Z_POWER**3 + _Z_POWER) / (4 * (n - 1))  # Student's t, by the first term of its series.
    return (t_quantile(n - 1, 1 - 2 * alpha) + t_power) * error * (1 + 1 / (n - 1))  # The next standard error may be larger.


@lru_cache(maxsize=1024)
def detectable_share(n: int, differing_cases: int, alpha: float) -> float | None:
    """Return the minimum drop of a pass rate that `n` cases detect; None if they detect none.

    `differing_cases` differ by chance, in both directions, and the cases of the drop independently of that.
    """

    def power(drop: float) -> float:
        chance = (differing_cases + 1) / (n + 2)  # One more, because more may differ next time.
        return _power(n, chance + drop * (1 - chance), drop, alpha)

    high = 1 / n
    while power(high) < POWER:
        if high == 1:
            return None
        high = min(1.0, 2 * high)
    low = high / 2
    for _ in range(_BISECTIONS):
        midpoint = (low + high) / 2
        low, high = (low, midpoint) if power(midpoint) >= POWER else (midpoint, high)
    return high


def _power(n: int, differing_share: float, drop: float, alpha: float) -> float:
    """Return the probability that McNemar's test finds a drop, summed over the numbers of differing and broken cases."""
    expected, spread = n * differing_share, math.sqrt(n * differing_share * (1 - differing_share))
    if expected > _MAX_EXACT:
        surplus = NormalDist().inv_cdf(1 - alpha) * math.sqrt(expected) + 1  # One more, because counts are integers.
        error = math.sqrt(n * max(differing_share - drop**2, 1e-12))
        return NormalDist().cdf((n * drop - surplus) / error)

    broken_share = (1 + drop / differing_share) / 2
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
    return numbers.start + bisect_left(numbers, 1, key=lambda broken: mcnemar_worse(differing_cases - broken, broken) < alpha)


def _binomial(n: int, count: int, share: float) -> float:
    if share in {0.0, 1.0}:
        return float(count == n * share)
    logarithm = math.lgamma(n + 1) - math.lgamma(count + 1) - math.lgamma(n - count + 1)
    return math.exp(logarithm + count * math.log(share) + (n - count) * math.log1p(-share))
