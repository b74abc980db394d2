"""How sure a number is: means, shares and differences with the range that holds the true value 95 times in 100.

Pure arithmetic over numbers that somebody else has counted; nothing here knows what a trial is. Nothing is drawn by chance
either: every interval has a formula, so that the same journal gives the same interval for ever.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Final

import attrs

LEVEL: Final = 0.95
"""How often the range holds the true value."""
_SHARE: Final = (1 + LEVEL) / 2
Z: Final = NormalDist().inv_cdf(_SHARE)
"""Standard errors on either side of the mean that hold 95 % of a normal distribution."""
DUST: Final = 1e-12
"""The part of a sum of squares below which what differs is nothing but rounding."""
_ONE_WAY: Final = 6
"""Differences that all go one way by chance less often than 1 time in 20: 1 in 32."""
_MANY: Final = 100
"""Degrees of freedom from which on Student's t is so near to normal that a series of four terms has ten right digits."""


@attrs.frozen
class Estimate:
    """A mean, and the range that holds the true value 95 times in 100."""

    mean: float
    standard_error: float | None
    """None where there is only one case: it says nothing about how cases differ."""
    low: float | None
    high: float | None
    """The range; None where there is none to tell."""


@lru_cache(maxsize=1024)
def t_quantile(degrees: int) -> float:
    """Standard errors on either side of the mean that hold 95 % of Student's t with these degrees of freedom."""
    if degrees < 1:
        raise ValueError(f"Student's t has at least 1 degree of freedom, not {degrees!r}")
    g1 = (Z**3 + Z) / 4
    g2 = (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96
    g3 = (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384
    g4 = (79 * Z**9 + 776 * Z**7 + 1482 * Z**5 - 1920 * Z**3 - 945 * Z) / 92160
    if degrees >= _MANY:  # Cornish and Fisher's series.
        return Z + g1 / degrees + g2 / degrees**2 + g3 / degrees**3 + g4 / degrees**4
    low, high = 0.0, math.pi / 2
    while (middle := (low + high) / 2) not in (low, high):  # Halved until no float lies between.
        low, high = (middle, high) if _within(middle, degrees) < LEVEL else (low, middle)
    return math.tan(low) * math.sqrt(degrees)


def _within(angle: float, degrees: int) -> float:
    """Say how much of Student's t lies within ± tan(angle) · √degrees: Abramowitz and Stegun's finite sums, 26.7.3 and 4."""
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = degrees % 2
    term = cosine if is_odd else 1.0
    terms = [term] if degrees > 1 else []
    for at in range(3 if is_odd else 2, degrees - 1, 2):
        term *= cosine**2 * (at - 1) / at
        terms.append(term)
    return 2 / math.pi * (angle + sine * math.fsum(terms)) if is_odd else sine * math.fsum(terms)


def mean_of_numbers(mean: float, *, n: int, cases: int, scatter: float) -> Estimate:
    """Say how sure the mean of `n` numbers about so many cases is: Student's t, clustered by case.

    Repeats of a case are alike, so that ten answers to one question say less than one answer to each of ten. `scatter` is the
    sum, over the cases, of the square of what a case's numbers together differ from the mean (Liang and Zeger's estimate, with
    the usual correction for few clusters). Where each case has one number this is the plain standard error of a mean. Where all
    cases came out alike there is no range to tell: that they vary was not seen, which is not to say that they do not.
    """
    error = _standard_error(n, cases, scatter)
    if not error:
        return Estimate(mean, error, None, None)
    half = t_quantile(cases - 1) * error
    return Estimate(mean, error, mean - half, mean + half)


def mean_of_parts(mean: float, *, n: int, cases: int, scatter: float) -> Estimate:
    """Say how sure the mean of `n` numbers from 0 to 1 is: the same, within that scale.

    Where all cases came out alike, how much they vary cannot be seen; but on this scale nothing varies more than a share does,
    so that Wilson's interval, each case counted once, is wide enough.
    """
    found = mean_of_numbers(mean, n=n, cases=cases, scatter=scatter)
    if found.standard_error == 0:
        return Estimate(mean, 0.0, *wilson(mean, cases))
    if found.low is None or found.high is None:
        return found
    return attrs.evolve(found, low=max(0.0, found.low), high=min(1.0, found.high))


def mean_of_shares(mean: float, *, n: int, cases: int, scatter: float) -> Estimate:
    """Say how sure the share of `n` trials about so many cases is: Wilson's interval, good for few trials and near 0 or 1.

    Where cases have repeats, `n` is divided by how much more the share varies than that of independent trials would (Kish's
    design effect); never made larger. Where all trials came out alike that cannot be seen, and each case counts once.
    """
    error = _standard_error(n, cases, scatter)
    effective = float(n)
    if cases < n:
        spread = mean * (1 - mean)
        if error is None or spread <= 0:
            effective = float(cases)
        elif error:
            effective = min(n, max(1.0, n * spread / (n - 1) / error**2))
    return Estimate(mean, error, *wilson(mean, effective))


def _standard_error(n: int, cases: int, scatter: float) -> float | None:
    return math.sqrt(max(0.0, scatter) * cases / (cases - 1)) / n if cases > 1 else None


def wilson(share: float, n: float) -> tuple[float, float]:
    """Give Wilson's interval for a share of `n`, which need not be whole."""
    scale = 1 + Z**2 / n
    middle = (share + Z**2 / (2 * n)) / scale
    half = Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2)) / scale
    return max(0.0, middle - half) if share > 0 else 0.0, min(1.0, middle + half) if share < 1 else 1.0


def paired_numbers(differences: Sequence[float]) -> Estimate:
    """Say how sure the mean of paired differences is, one for each case: Student's t over the cases.

    Where all differ alike there is no t. Six or more that all go one way are then enough, as they are for the sign test; fewer
    say nothing, however alike.
    """
    n = len(differences)
    mean = math.fsum(differences) / n
    scatter = math.fsum((each - mean) ** 2 for each in differences)
    if scatter <= DUST * n * mean**2:
        low, high = (mean, mean) if n >= _ONE_WAY else (None, None)
        return Estimate(mean, 0.0 if n > 1 else None, low, high)
    return mean_of_numbers(mean, n=n, cases=n, scatter=scatter)


def paired_shares(differences: Sequence[float]) -> Estimate:
    """Say how sure the mean difference of two shares of passes is, one difference (from -1 to 1) for each case.

    The interval is Bonett and Price's (2012): two cases are added in thought, one that was fixed and one that broke, and
    then the normal interval is taken. The two other ways that offer themselves are worse here. The plain paired t
    calls 4 fixed and 0 broken of 143 a difference, which chance makes in 1 of 8; and where no case differs at all it
    claims to be certain. McNemar's exact test errs on neither side, but gives no interval, and one from elsewhere
    beside it would at times contradict it. Here the interval is the test: it leaves 0 out from 6 to 0 on, as McNemar's does at
    5 % (from 5 to 0 on below 49 cases), has a width even where nothing differs, and takes cases with repeats, whose
    differences are not whole.
    """
    n = len(differences)
    total = math.fsum(differences)
    squares = math.fsum(each * each for each in differences)
    middle = total / (n + 2)
    error = math.sqrt(max(0.0, (squares + 2) / (n + 2) - middle**2) / (n + 2))
    return Estimate(total / n, error, max(-1.0, middle - Z * error), min(1.0, middle + Z * error))


def pass_at(k: int, *, n: int, passed: int) -> float:
    """Estimate how likely it is that at least one of `k` trials passes, of `n` of which so many passed, without a bias."""
    return 1 - math.comb(n - passed, k) / math.comb(n, k)


def pass_all(k: int, *, n: int, passed: int) -> float:
    """Estimate how likely it is that all of `k` trials pass (pass^k), of `n` of which so many passed, without a bias."""
    return math.comb(passed, k) / math.comb(n, k)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Find the value below which this share of the ordered values lies: the nearest rank, never a value that did not occur."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
