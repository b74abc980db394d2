"""Agreement between raters: Gwet's AC1, Cohen's κ, Krippendorff's α, shares and slopes of weighted labels.

Pure functions of ratings. A unit is one output that several raters have rated, with a weight: the inverse of the probability
with which it was sampled. Units of one case are kept together, because repeats of a case depend on each other.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import attrs

from evaljournal.replay.statistics import Estimate, bootstrap, t_quantile, wilson

Value = bool | float | str


class Unit(NamedTuple):
    """The ratings of one output, without missing ones."""

    values: tuple[Value, ...]
    weight: float = 1.0


Cases = Mapping[tuple[Unit, ...], int]
"""The units of a case → number of cases that are equal to it."""
Disagreement = tuple[float, float]
"""Disagreement as observed, and as expected by chance; a coefficient of agreement is 1 minus their ratio."""
Measure = Callable[[Cases], Disagreement]


@attrs.frozen
class Coefficient:
    """A coefficient of agreement: 1 is perfect agreement, 0 what chance would give."""

    value: float
    low: float | None
    high: float | None
    """95 % confidence interval; None if it cannot be computed."""


def coefficients(cases: Cases, measures: Mapping[str, Measure]) -> dict[str, Coefficient | None]:
    """Return coefficients with intervals from one bootstrap over the cases; None for one that is undefined.

    Raters who never disagree in 30 cases may do so in the next: then the interval is that of a share of disagreement of 0
    (Wilson's over the cases), compared with chance.
    """

    def values(sample: Cases) -> list[float | None]:
        return [_coefficient(*measure(sample)) for measure in measures.values()]

    results: dict[str, Coefficient | None] = {}
    for name, value, interval in zip(measures, values(cases), bootstrap(cases, values), strict=True):
        low, high = interval or (None, None)
        if value == 1:
            low, high = 1 - wilson(0.0, sum(cases.values()))[1] / measures[name](cases)[1], 1.0
        results[name] = None if value is None else Coefficient(value, low, high)
    return results


def _coefficient(disagreement: float, by_chance: float) -> float | None:
    return 1 - disagreement / by_chance if by_chance > 0 else None


def confusion(cases: Cases) -> dict[tuple[Value, Value], float]:
    """Return the pairs of ratings of two raters → their share."""
    weights: defaultdict[tuple[Value, Value], float] = defaultdict(float)
    for case, count in cases.items():
        for (first, second), weight in case:
            weights[first, second] += count * weight
    total = math.fsum(weights.values())
    return {pair: weight / total for pair, weight in weights.items()} if total else {}


def ac1(cases: Cases) -> Disagreement:
    """Return the disagreement of two raters for Gwet's AC1 (2008), which does not fall if nearly all outputs pass."""
    shares, means = confusion(cases), defaultdict[Value, float](float)
    for pair, share in shares.items():
        for value in pair:
            means[value] += share / 2
    by_chance = math.fsum(mean * (1 - mean) for mean in means.values()) / max(1, len(means) - 1)
    return _differing(shares), 1 - by_chance


def kappa(cases: Cases) -> Disagreement:
    """Return the disagreement of two raters for Cohen's κ (1960), undefined if both always give the same value."""
    shares = confusion(cases)
    first, second = defaultdict[Value, float](float), defaultdict[Value, float](float)
    for (value, other), share in shares.items():
        first[value] += share
        second[other] += share
    return _differing(shares), 1 - math.fsum(share * second[value] for value, share in [*first.items()])


def _differing(shares: Mapping[tuple[Value, Value], float]) -> float:
    return math.fsum(share for (first, second), share in shares.items() if first != second)


def alpha(cases: Cases) -> Disagreement:
    """Return the disagreement of any number of raters, with missing ratings, for Krippendorff's nominal α (2004)."""
    return _alpha(cases, _different_pairs)


def alpha_of_numbers(cases: Cases) -> Disagreement:
    """Return the disagreement for Krippendorff's interval α: squared differences, as a multiple of those by chance."""
    observed, by_chance = _alpha(cases, _squared_differences)
    return (observed / by_chance, 1.0) if by_chance > 0 else (0.0, 0.0)


def _alpha(cases: Cases, differences: Callable[[Sequence[Value], Sequence[float]], float]) -> Disagreement:
    units = [
        (values, weight * count) for case, count in cases.items() for values, weight in case if len(values) > 1 and weight > 0
    ]
    ratings = sum(len(values) * count for case, count in cases.items() for values, _ in case if len(values) > 1)
    total = math.fsum(len(values) * weight for values, weight in units)
    if not total:
        return 0.0, 0.0
    scale = ratings / total  # The weights sum to the number of ratings.
    observed = math.fsum(weight * differences(values, [1.0] * len(values)) / (len(values) - 1) for values, weight in units)

    counts: defaultdict[Value, float] = defaultdict(float)
    for values, weight in units:
        for value in values:
            counts[value] += weight * scale
    by_chance = differences([*counts], [*counts.values()])
    return scale * observed / ratings, by_chance / ratings / (ratings - 1)


def _different_pairs(values: Sequence[Value], counts: Sequence[float]) -> float:
    """Return the number of ordered pairs of different values."""
    totals: defaultdict[Value, float] = defaultdict(float)
    for value, count in zip(values, counts, strict=True):
        totals[value] += count
    return max(0.0, math.fsum(counts) ** 2 - math.fsum(count**2 for count in totals.values()))


def _squared_differences(values: Sequence[Value], counts: Sequence[float]) -> float:
    """Return the sum of the squared differences of all ordered pairs of numbers."""
    numbers = [float(value) for value in values]
    total = math.fsum(counts)
    mean = math.fsum(map(math.prod, zip(numbers, counts, strict=True))) / total
    return 2 * total * math.fsum(count * (number - mean) ** 2 for number, count in zip(numbers, counts, strict=True))


def slope(rows: Iterable[tuple[str, float, float, float]]) -> Estimate | None:
    """Return by how much a quantity rises with another: least squares, Student's t, clustered by case.

    A row has the case, the explaining quantity, the explained one, and the weight. None if the first is the same everywhere.
    """
    units = list(rows)
    total = math.fsum(weight for *_, weight in units)
    if not total:
        return None

    mean_x = math.fsum(x * weight for _, x, _, weight in units) / total
    mean_y = math.fsum(y * weight for _, _, y, weight in units) / total
    spread = math.fsum(weight * (x - mean_x) ** 2 for _, x, _, weight in units)
    cases = len({case for case, *_ in units})
    if not spread or cases < 3:  # noqa: PLR2004  # a line goes through two points
        return None

    value = math.fsum(weight * (x - mean_x) * (y - mean_y) for _, x, y, weight in units) / spread
    influences: defaultdict[str, float] = defaultdict(float)
    for case, x, y, weight in units:
        influences[case] += weight * (x - mean_x) * (y - mean_y - value * (x - mean_x)) / spread
    error = math.sqrt(math.fsum(influence**2 for influence in influences.values()) * cases / (cases - 2))
    half = t_quantile(cases - 2) * error
    return Estimate(value, error, value - half, value + half)
