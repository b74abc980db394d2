"""Statistical power: the minimum difference that a comparison of this many cases can detect.

A gate detects a drop if the 95 % interval of the paired difference lies below 0 and reaches the tolerated drop. A table of
several comparisons detects a difference if its p-value is below the level that remains after Holm's correction.
"""

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Final

import attrs

from evaljournal.replay.results.pairing import PairedDifference
from evaljournal.replay.statistics import LEVEL, bonett_price, mcnemar, t_quantile, z_quantile

POWER: Final = 0.8
"""Probability with which the minimum difference is detected."""
_Z_POWER: Final = NormalDist().inv_cdf(POWER)
_MAX_EXACT: Final = 60
"""Maximum expected number of differing cases for which probabilities are summed; above, the normal distribution is used."""
_NEGLIGIBLE: Final = 6
"""Standard deviations from the expected number beyond which probabilities are ignored."""
_STEPS: Final = 24
"""Number of bisections."""


def detectable_drop(difference: PairedDifference, max_drop: float = 0.0) -> float | None:
    """Return the minimum drop that a gate with this many cases detects; None if it detects none."""
    if difference.squared_differences is not None:
        return detectable_share(difference.n, difference.squared_differences, Criterion(max_drop))
    return detectable_number(difference.n, difference.standard_error, max_drop)


def detectable_difference(difference: PairedDifference, level: float) -> float | None:
    """Return the minimum difference that this many cases detect with a p-value below 1 - `level`; None if they detect none."""
    squares = difference.squared_differences
    if squares is None:
        return detectable_number(difference.n, difference.standard_error, level=level)
    return detectable_share(difference.n, squares, Criterion(level=level, is_exact=squares == int(squares)))


@attrs.frozen
class Criterion:
    """When a drop of a pass rate is detected: if the interval lies below 0 and reaches the tolerated drop."""

    max_drop: float = 0.0
    level: float = LEVEL
    is_exact: bool = False
    """Whether McNemar's exact test decides instead of the interval."""

    def is_detected(self, n: int, broken_cases: int, fixed_cases: int) -> bool:
        """Return whether a drop is detected with these numbers of broken and fixed cases out of `n`."""
        if self.is_exact:
            return broken_cases > fixed_cases and mcnemar(fixed_cases, broken_cases) < 1 - self.level
        low, high = bonett_price(n, fixed_cases - broken_cases, fixed_cases + broken_cases, self.level)
        return high < 0 and low <= -self.max_drop

    def min_surplus(self, n: int, differing_share: float, drop: float) -> float:
        """Return approximately how many more cases must be broken than fixed for a drop to be detected."""
        if self.is_exact:
            return z_quantile(self.level) * math.sqrt(n * differing_share) + 1  # One more, because counts are integers.
        low, high = bonett_price(n, -n * drop, n * differing_share, self.level)
        half = (high - low) / 2
        return max(half, self.max_drop - half) * (n + 2)


def detectable_number(n: int, error: float | None, max_drop: float = 0.0, level: float = LEVEL) -> float | None:
    """Return the minimum drop of a mean that `n` cases detect; `error` is the standard error of the paired difference."""
    if n < 2 or not error:  # noqa: PLR2004  # one case has no standard error
        return None
    half = t_quantile(n - 1, level) * error
    t_power = _Z_POWER + (_Z_POWER**3 + _Z_POWER) / (4 * (n - 1))  # Student's t, by the first term of its series.
    return (max(half, max_drop - half) + t_power * error) * (1 + 1 / (n - 1))  # The next standard error may be larger.


@lru_cache(maxsize=1024)
def detectable_share(n: int, squares: float, criterion: Criterion) -> float | None:
    """Return the minimum drop of a pass rate that `n` cases detect; None if they detect none.

    `squares` is the sum of the squared differences: the number of cases that differ, if there are no repeats. The next
    comparison is assumed to differ in at least as many cases, and in at least as many as the drop requires.
    """
    is_integer = squares == int(squares)

    def power(drop: float) -> float:
        differing_share = min(1.0, max((squares + 1) / (n + 2), drop))  # One more, because more cases may differ next time.
        power_of = _exact_power if is_integer and n * differing_share <= _MAX_EXACT else _normal_power
        return power_of(n, differing_share, drop, criterion)

    low, high = 0.0, 1.0
    if power(high) < POWER:
        return None
    for _ in range(_STEPS):
        midpoint = (low + high) / 2
        low, high = (low, midpoint) if power(midpoint) >= POWER else (midpoint, high)
    return high


def _normal_power(n: int, differing_share: float, drop: float, criterion: Criterion) -> float:
    """Return the probability that a drop is detected, if the surplus of broken over fixed cases is normally distributed."""
    spread = math.sqrt(max(n * (differing_share - drop**2), 1e-12))
    return NormalDist().cdf((n * drop - criterion.min_surplus(n, differing_share, drop)) / spread)


def _exact_power(n: int, differing_share: float, drop: float, criterion: Criterion) -> float:
    """Return the probability that a drop is detected, summed over the numbers of differing and broken cases."""
    broken_share = (1 + drop / differing_share) / 2
    expected, spread = n * differing_share, math.sqrt(n * differing_share * (1 - differing_share))
    low = max(0, math.floor(expected - _NEGLIGIBLE * spread))
    high = min(n, math.ceil(expected + _NEGLIGIBLE * spread) + 1)
    return math.fsum(
        _binomial(n, count, differing_share)
        * math.fsum(
            _binomial(count, broken_cases, broken_share) for broken_cases in range(_min_broken(n, count, criterion), count + 1)
        )
        for count in range(low, high + 1)
    )


@lru_cache(maxsize=4096)
def _min_broken(n: int, differing_cases: int, criterion: Criterion) -> int:
    """Return the minimum number of broken cases, among those that differ, with which a drop is detected."""
    low, high = 0, differing_cases + 1
    while low < high:
        broken_cases = (low + high) // 2
        if criterion.is_detected(n, broken_cases, differing_cases - broken_cases):
            high = broken_cases
        else:
            low = broken_cases + 1
    return low


def _binomial(n: int, count: int, share: float) -> float:
    if share in {0.0, 1.0}:
        return float(count == n * share)
    logarithm = math.lgamma(n + 1) - math.lgamma(count + 1) - math.lgamma(n - count + 1)
    return math.exp(logarithm + count * math.log(share) + (n - count) * math.log1p(-share))
