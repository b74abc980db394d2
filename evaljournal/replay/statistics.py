"""Means, shares and paired differences with 95 % confidence intervals and p-values; bootstrap, Holm's correction, pass@k.

The same journal always gives the same numbers: the random ones of `sign_flip` and `bootstrap` are hashes of a counter.
"""

import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import shake_256
from statistics import NormalDist
from struct import unpack
from typing import Final, TypeVar

import attrs

LEVEL: Final = 0.95
"""Confidence level of all intervals."""
Z: Final = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""Half width of the 95 % interval of a normal distribution, in standard errors."""
ROUNDING: Final = 1e-12
"""Share of a sum of squares below which a difference is a rounding error."""
_SIGN_TEST_MIN: Final = 6
"""Equal differences in the same direction that are significant at 5 % by the sign test (p = 1/32)."""
_SERIES_MIN: Final = 100
"""Degrees of freedom from which four terms of the series for Student's t give ten correct digits."""
_NEGLIGIBLE: Final = 1e-18
"""Share of the largest term of a sum below which the remaining terms are omitted."""
_BLOCKS: Final = 256
"""Maximum number of signs that `sign_flip` flips; of more cases, several share a sign."""
_MAX_SIGNS: Final = 13
"""Maximum number of signs of which all combinations are counted: 8,192, fewer than are drawn."""
_DRAWS: Final = 9_999
"""Combinations of more signs that are drawn: with the observed one 10,000, so that the smallest p-value is 0.0001."""
_RESAMPLES: Final = 1_999
KeyT = TypeVar("KeyT")


@attrs.frozen
class Estimate:
    """A mean with its 95 % confidence interval."""

    mean: float
    standard_error: float | None
    """None with only one case."""
    low: float | None
    high: float | None
    """The interval; None if it cannot be computed."""
    p: float | None = None
    """Two-sided p-value of a paired difference; None for other means."""
    p_worse: float | None = None
    """One-sided p-value of the same test: that the difference is negative."""


@lru_cache(maxsize=1024)
def t_quantile(degrees: int, level: float = LEVEL) -> float:
    """Return the half width of an interval of Student's t with at least one degree of freedom, in standard errors."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    g1 = (z**3 + z) / 4
    g2 = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    g4 = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    if degrees >= _SERIES_MIN:  # Cornish and Fisher's series.
        return z + g1 / degrees + g2 / degrees**2 + g3 / degrees**3 + g4 / degrees**4
    low, high = 0.0, math.pi / 2
    while (midpoint := (low + high) / 2) not in (low, high):  # Bisection until no float lies between.
        low, high = (midpoint, high) if _t_probability(midpoint, degrees) < level else (low, midpoint)
    return math.tan(low) * math.sqrt(degrees)


def mcnemar(fixed_pairs: int, broken_pairs: int) -> float:
    """Return the p-value of McNemar's exact test: a pair that differs is equally likely to be fixed or broken."""
    return min(1.0, 2 * mcnemar_worse(min(fixed_pairs, broken_pairs), max(fixed_pairs, broken_pairs)))


def mcnemar_worse(fixed_pairs: int, broken_pairs: int) -> float:
    """Return the one-sided p-value of McNemar's exact test: the probability of as many broken pairs, or more."""
    total = fixed_pairs + broken_pairs
    if broken_pairs > fixed_pairs:
        return _binomial_tail(total, fixed_pairs)
    return 1 - _binomial_tail(total, broken_pairs - 1)


def _binomial_tail(n: int, maximum: int) -> float:
    """Return the probability of at most `maximum` heads, less than half, in `n` tosses of a coin."""
    scale = math.lgamma(n + 1) - n * math.log(2)
    terms: list[float] = []
    for count in range(maximum, -1, -1):
        terms.append(math.exp(scale - math.lgamma(count + 1) - math.lgamma(n - count + 1)))
        if terms[-1] <= _NEGLIGIBLE * terms[0]:
            break
    return math.fsum(terms)


def sign_flip(differences: Sequence[float]) -> tuple[float, float]:
    """Return the two-sided and the one-sided p-value of the sign-flip test: a difference is as likely positive as negative.

    They are the shares of combinations of signs whose sum is as far from 0 as the observed one, or farther, and whose sum is as
    low as the observed one, or lower: of all combinations if there are at most 8,192 (of ±1 this is McNemar's test), otherwise
    of the observed one and 9,999 others, always the same. Of more than 256 differences, the sums of every 256th are flipped,
    in the order given.
    """
    sums = [math.fsum(differences[start::_BLOCKS]) for start in range(min(_BLOCKS, len(differences)))]
    largest = max(map(abs, sums), default=0.0)
    sizes = [value / largest for value in sums if value]
    observed, rounding = math.fsum(sizes), ROUNDING * math.fsum(map(abs, sizes))

    if len(sizes) <= _MAX_SIGNS:
        totals = _signed_sums(sizes)
    else:
        totals = [0.0] * _DRAWS
        for start in range(0, len(sizes), 8):  # A random byte has the signs of eight differences.
            sums_by_byte = _signed_sums([*sizes[start : start + 8], *[0.0] * 7][:8])
            signs = shake_256(start.to_bytes(2)).digest(_DRAWS)
            totals = list(map(operator.add, totals, map(sums_by_byte.__getitem__, signs)))
        totals.append(observed)

    far, low = abs(observed) - rounding, observed + rounding
    return sum(abs(total) >= far for total in totals) / len(totals), sum(total <= low for total in totals) / len(totals)


def _signed_sums(sizes: Sequence[float]) -> list[float]:
    """Return the sums of the numbers with all combinations of signs."""
    sums = [0.0]
    for size in sizes:
        sums = [*(value + size for value in sums), *(value - size for value in sums)]
    return sums


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values with Holm's correction for several comparisons.

    If those below 5 % are reported as differences, at most 5 % of reports contain a false one.
    """
    adjusted_p_values, maximum = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        maximum = adjusted_p_values[index] = min(1.0, max(maximum, (len(p_values) - rank) * p_values[index]))
    return adjusted_p_values


def _t_probability(angle: float, degrees: int) -> float:
    """Return the probability of Student's t within ± tan(angle) · √degrees (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = degrees % 2
    term = cosine if is_odd else 1.0
    terms = [term] if degrees > 1 else []
    for degree in range(3 if is_odd else 2, degrees - 1, 2):
        term *= cosine**2 * (degree - 1) / degree
        terms.append(term)
    return 2 / math.pi * (angle + sine * math.fsum(terms)) if is_odd else sine * math.fsum(terms)


def mean_of_numbers(mean: float, *, n: int, cases: int, scatter: float) -> Estimate:
    """Return the interval of the mean of `n` numbers of `cases` cases: Student's t, clustered by case.

    Repeats of a case are correlated: ten answers to one question are less evidence than an answer to each of ten. `scatter` is
    the sum over cases of the squared deviation of the case's sum (Liang and Zeger's estimate, with the usual correction for few
    clusters); with one number per case this is the plain standard error. Without any variation there is no interval.
    """
    error = _standard_error(n, cases, scatter)
    if not error:
        return Estimate(mean, error, None, None)
    half = t_quantile(cases - 1) * error
    return Estimate(mean, error, mean - half, mean + half)


def mean_of_fractions(mean: float, *, n: int, cases: int, scatter: float) -> Estimate:
    """Return the interval of the mean of `n` numbers between 0 and 1: that of `mean_of_numbers`, clipped to this range.

    Without any variation, Wilson's interval over the cases is used, because no numbers between 0 and 1 vary more than a share.
    """
    estimate = mean_of_numbers(mean, n=n, cases=cases, scatter=scatter)
    if estimate.standard_error == 0:
        return Estimate(mean, 0.0, *wilson(mean, cases))
    if estimate.low is None or estimate.high is None:
        return estimate
    return attrs.evolve(estimate, low=max(0.0, estimate.low), high=min(1.0, estimate.high))


def mean_of_shares(mean: float, *, n: int, cases: int, scatter: float) -> Estimate:
    """Return the interval of the share of `n` trials of `cases` cases: Wilson's, accurate for few trials and near 0 or 1.

    With repeats, `n` is divided by Kish's design effect, and never increased. Without any variation each case counts once.
    """
    error = _standard_error(n, cases, scatter)
    effective_n = float(n)
    if cases < n:
        spread = mean * (1 - mean)
        if error is None or spread <= 0:
            effective_n = float(cases)
        elif error:
            effective_n = min(n, max(1.0, n * spread / (n - 1) / error**2))
    return Estimate(mean, error, *wilson(mean, effective_n))


def _standard_error(n: int, cases: int, scatter: float) -> float | None:
    return math.sqrt(max(0.0, scatter) * cases / (cases - 1)) / n if cases > 1 else None


def wilson(share: float, n: float) -> tuple[float, float]:
    """Return Wilson's interval for a share of `n`, which need not be an integer."""
    scale = 1 + Z**2 / n
    midpoint = (share + Z**2 / (2 * n)) / scale
    half = Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2)) / scale
    return max(0.0, midpoint - half) if share > 0 else 0.0, min(1.0, midpoint + half) if share < 1 else 1.0


def paired_numbers(differences: Sequence[float]) -> Estimate:
    """Return the interval of the mean of paired differences, one per case: Student's t over the cases.

    The p-value is that of the sign-flip test. If all differences are equal there is no t; six or more have an interval of width
    0.
    """
    n = len(differences)
    mean = math.fsum(differences) / n
    scatter = math.fsum((difference - mean) ** 2 for difference in differences)
    p, p_worse = sign_flip(differences)
    if scatter <= ROUNDING * n * mean**2:
        low, high = (mean, mean) if n >= _SIGN_TEST_MIN else (None, None)
        return Estimate(mean, 0.0 if n > 1 else None, low, high, p, p_worse)
    return attrs.evolve(mean_of_numbers(mean, n=n, cases=n, scatter=scatter), p=p, p_worse=p_worse)


def paired_shares(differences: Sequence[float]) -> Estimate:
    """Return the interval of the mean difference of two pass rates, from one difference (-1 to 1) per case.

    Bonett and Price's interval (2012): the normal interval after adding one fixed and one broken case. The paired t would call
    4 fixed and 0 broken of 143 significant (p = 1/8) and has no width if nothing differs; McNemar's exact test gives no
    interval. This one excludes 0 with at least 6 fixed and 0 broken, as McNemar's test does at 5 % (at least 5 and 0 below 49
    cases), and works with repeats, whose differences are fractions. The p-value is that of McNemar's exact test; with repeats,
    that of the sign-flip test.
    """
    n = len(differences)
    total = math.fsum(differences)
    midpoint = total / (n + 2)
    squares = math.fsum(difference * difference for difference in differences)
    error = math.sqrt(max(0.0, (squares + 2) / (n + 2) - midpoint**2) / (n + 2))
    counts = Counter(differences)
    if counts.keys() <= {-1.0, 0.0, 1.0}:
        p, p_worse = mcnemar(counts[1.0], counts[-1.0]), mcnemar_worse(counts[1.0], counts[-1.0])
    else:
        p, p_worse = sign_flip(differences)
    return Estimate(total / n, error, max(-1.0, midpoint - Z * error), min(1.0, midpoint + Z * error), p, p_worse)


def bootstrap(
    cases: Mapping[KeyT, int],
    statistics: Callable[[Mapping[KeyT, int]], Sequence[float | None]],
    resamples: int = _RESAMPLES,
) -> list[tuple[float, float] | None]:
    """Return the 95 % percentile interval of each statistic over resampled cases; None if most resamples have no value.

    Equal cases are given once, with their number; a resample has as many cases as there are.
    """
    pool = [key for key, count in cases.items() for _ in range(count)]
    size, rows = len(pool), list[Sequence[float | None]]()
    for number in range(resamples if size > 1 else 0):
        draws = unpack(f"<{size}I", shake_256(number.to_bytes(2)).digest(4 * size))
        rows.append(statistics(Counter(pool[draw % size] for draw in draws)))
    columns = [sorted(value for value in column if value is not None) for column in zip(*rows, strict=True)]
    if not columns:
        return [None] * len(statistics(cases))
    ends = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
    return [
        (quantile(column, ends[0]), quantile(column, ends[1])) if 2 * len(column) > resamples else None for column in columns
    ]


def pass_at(k: int, *, n: int, passes: int) -> float:
    """Return the unbiased estimate that at least one of `k` trials passes (pass@k), from `n` trials with `passes` passes."""
    return 1 - math.comb(n - passes, k) / math.comb(n, k)


def pass_all(k: int, *, n: int, passes: int) -> float:
    """Return the unbiased estimate that all of `k` trials pass (pass^k), from `n` trials with `passes` passes."""
    return math.comb(passes, k) / math.comb(n, k)


def quantile(sorted_values: Sequence[float], share: float) -> float:
    """Return a quantile of ordered values by nearest rank; always one of the values."""
    return sorted_values[max(0, math.ceil(share * len(sorted_values)) - 1)]
