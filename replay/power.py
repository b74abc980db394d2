"""Statistical power: the smallest difference that a comparison of so many cases would show.

For a gate, a drop is shown if the 95 % interval of the paired difference lies below 0 and reaches the tolerated drop. In a
table of several comparisons, a difference is shown if its p-value is below the level that remains after Holm's correction. The
smallest difference that would be shown in 80 % of comparisons is reported wherever none is shown.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist
from typing import Final

import attrs

from replay.pairing import Paired
from replay.statistics import LEVEL, bonett_price, mcnemar, t_quantile, z_quantile

POWER: Final = 0.8
"""Probability with which the smallest difference would be shown."""
_Z_POWER: Final = NormalDist().inv_cdf(POWER)
_MAX_EXACT: Final = 60
"""Expected number of cases that differ up to which the probabilities are summed; above, the normal distribution is used."""
_NEGLIGIBLE: Final = 6
"""Standard deviations from the expected number beyond which probabilities are ignored."""
_STEPS: Final = 24
"""Bisections."""


def detectable_drop(paired: Paired, tolerated: float = 0.0) -> float | None:
    """Return the smallest drop that so many cases would show in a gate; None if they would show none."""
    if paired.squared_differences is not None:
        return detectable_share(paired.n, paired.squared_differences, Criterion(tolerated))
    return detectable_number(paired.n, paired.standard_error, tolerated)


def detectable_difference(paired: Paired, level: float) -> float | None:
    """Return the smallest difference that so many cases would show with a p-value below 1 - `level`; None if none."""
    squares = paired.squared_differences
    if squares is None:
        return detectable_number(paired.n, paired.standard_error, level=level)
    return detectable_share(paired.n, squares, Criterion(level=level, is_exact=squares == int(squares)))


@attrs.frozen
class Criterion:
    """When a drop of a pass rate counts as shown: the interval lies below 0 and reaches the tolerated drop."""

    tolerated: float = 0.0
    level: float = LEVEL
    is_exact: bool = False
    """Whether McNemar's exact test decides instead of the interval."""

    def is_shown(self, n: int, broken: int, fixed: int) -> bool:
        """Return whether so many broken and fixed cases of `n` show a drop."""
        if self.is_exact:
            return broken > fixed and mcnemar(fixed, broken) < 1 - self.level
        low, high = bonett_price(n, fixed - broken, fixed + broken, self.level)
        return high < 0 and low <= -self.tolerated

    def min_surplus(self, n: int, differing: float, drop: float) -> float:
        """Return about how many more cases must be broken than fixed, if a share of `differing` differs."""
        if self.is_exact:
            return z_quantile(self.level) * math.sqrt(n * differing) + 1  # One more: counts are whole.
        low, high = bonett_price(n, -n * drop, n * differing, self.level)
        half = (high - low) / 2
        return max(half, self.tolerated - half) * (n + 2)


def detectable_number(n: int, error: float | None, tolerated: float = 0.0, level: float = LEVEL) -> float | None:
    """Return the smallest drop of a mean that `n` cases would show, given the standard error of the paired difference."""
    if n < 2 or not error:  # noqa: PLR2004  # one case has no standard error
        return None
    half = t_quantile(n - 1, level) * error
    shown = _Z_POWER + (_Z_POWER**3 + _Z_POWER) / (4 * (n - 1))  # Student's t, by the first term of its series.
    return (max(half, tolerated - half) + shown * error) * (1 + 1 / (n - 1))  # The next standard error may be larger.


@lru_cache(maxsize=1024)
def detectable_share(n: int, squares: float, criterion: Criterion) -> float | None:
    """Return the smallest drop of a pass rate that `n` cases would show; None if they would show none.

    `squares` is the sum of the squared differences: the number of cases that differ, if there are no repeats. At a drop, at
    least as many cases differ as now, and at least as many as the drop itself requires.
    """
    is_whole = squares == int(squares)

    def power(drop: float) -> float:
        differing = min(1.0, max((squares + 1) / (n + 2), drop))  # One more: the next comparison may differ in more.
        power_of = _exact_power if is_whole and n * differing <= _MAX_EXACT else _normal_power
        return power_of(n, differing, drop, criterion)

    return _smallest(power)


def _smallest(power: Callable[[float], float]) -> float | None:
    low, high = 0.0, 1.0
    if power(high) < POWER:
        return None
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high


def _normal_power(n: int, differing: float, drop: float, criterion: Criterion) -> float:
    """Return the probability that a drop is shown; the number of broken cases minus that of fixed ones is normal."""
    spread = math.sqrt(max(n * (differing - drop**2), 1e-12))
    return NormalDist().cdf((n * drop - criterion.min_surplus(n, differing, drop)) / spread)


def _exact_power(n: int, differing: float, drop: float, criterion: Criterion) -> float:
    """Return the same, summed over the numbers of cases that differ and that are broken."""
    is_broken = (1 + drop / differing) / 2
    expected, spread = n * differing, math.sqrt(n * differing * (1 - differing))
    first = max(0, math.floor(expected - _NEGLIGIBLE * spread))
    last = min(n, math.ceil(expected + _NEGLIGIBLE * spread) + 1)
    return math.fsum(
        _binomial(n, count, differing)
        * math.fsum(_binomial(count, broken, is_broken) for broken in range(_min_broken(n, count, criterion), count + 1))
        for count in range(first, last + 1)
    )


@lru_cache(maxsize=4096)
def _min_broken(n: int, differing: int, criterion: Criterion) -> int:
    """Return the minimum of broken cases, among those that differ, that show a drop."""
    low, high = 0, differing + 1
    while low < high:
        broken = (low + high) // 2
        if criterion.is_shown(n, broken, differing - broken):
            high = broken
        else:
            low = broken + 1
    return low


def _binomial(n: int, count: int, share: float) -> float:
    if share in {0.0, 1.0}:
        return float(count == n * share)
    logarithm = math.lgamma(n + 1) - math.lgamma(count + 1) - math.lgamma(n - count + 1)
    return math.exp(logarithm + count * math.log(share) + (n - count) * math.log1p(-share))
