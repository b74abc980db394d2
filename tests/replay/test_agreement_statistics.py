"""Coefficients of agreement, compared with scikit-learn, `krippendorff` and published examples."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import krippendorff
import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from evaljournal.replay.review.agreement import (
    Cases,
    Coefficient,
    Measure,
    Unit,
    Value,
    ac1,
    alpha,
    alpha_of_numbers,
    coefficients,
    kappa,
    slope,
)
from evaljournal.replay.statistics import bootstrap, wilson
from tests.journal.samples import examples


def cases_of(ratings: Iterable[Sequence[Value | None]]) -> Cases:
    """Return ratings of units, each unit a case; None is a missing rating."""
    return Counter((Unit(tuple(value for value in values if value is not None)),) for values in ratings)


def table(counts: Sequence[Sequence[int]]) -> Cases:
    """Return the ratings of two raters from a table: rows are the first rater's categories, columns the second's."""
    pairs = {(row, column): count for row, line in enumerate(counts) for column, count in enumerate(line)}
    return Counter({(Unit((float(row), float(column))),): count for (row, column), count in pairs.items() if count})


def coefficient(measure: Measure, cases: Cases) -> float:
    """Return a coefficient without its interval."""
    disagreement, by_chance = measure(cases)
    return 1 - disagreement / by_chance


PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=60)
RATINGS = st.lists(st.lists(st.none() | st.integers(-2, 3), min_size=4, max_size=4), min_size=2, max_size=30)


@pytest.mark.parametrize(
    ("counts", "ac1_value", "kappa_value"),
    [
        # Gwet (2002), "Kappa statistic is not satisfactory for assessing the extent of agreement between raters".
        ([[118, 5], [2, 0]], 0.9408, -0.0234),
        # Gwet's abstractors of 100 pregnancies: `cont3x3abstractors` of his package irrCAC, in its documentation.
        ([[13, 0, 0], [0, 20, 7], [0, 4, 56]], 0.8493, 0.7964),
        # κ of Feinstein and Cicchetti (1990), "High agreement but low kappa", where raters agree on 85 of 100 both times.
        ([[40, 9], [6, 45]], 0.7007, 0.6995),
        ([[80, 10], [5, 5]], 0.8080, 0.3182),
    ],
)
def test_published_examples(counts: Sequence[Sequence[int]], ac1_value: float, kappa_value: float) -> None:
    """AC1 and κ are those of published tables; AC1 stays high where nearly all outputs are of one kind."""
    assert (ac1_value, kappa_value) == (round(coefficient(ac1, table(counts)), 4), round(coefficient(kappa, table(counts)), 4))


@examples(100)
@given(PAIRS)
def test_kappa_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    """Cohen's κ equals that of scikit-learn, for any number of categories."""
    assume(len({value for pair in pairs for value in pair}) > 1)

    assert math.isclose(cohen_kappa_score(*zip(*pairs, strict=True)), coefficient(kappa, cases_of(pairs)), abs_tol=1e-9)


@examples(100)
@given(RATINGS, st.sampled_from([("nominal", alpha), ("interval", alpha_of_numbers)]))
def test_alpha_is_that_of_krippendorff(ratings: list[list[int | None]], level: tuple[Any, Measure]) -> None:
    """Krippendorff's α of four raters with missing ratings equals that of the package `krippendorff`."""
    units = [values for values in ratings if sum(value is not None for value in values) > 1]
    assume(len({value for values in units for value in values if value is not None}) > 1)
    data = np.array([[np.nan if value is None else value for value in values] for values in ratings], dtype=float).T
    expected = krippendorff.alpha(reliability_data=data, level_of_measurement=level[0])

    assert math.isclose(expected, coefficient(level[1], cases_of(ratings)), abs_tol=1e-9)


def test_published_alpha() -> None:
    """α of four observers and twelve units with gaps is that of Krippendorff (2011), "Computing Krippendorff's Alpha"."""
    observers = ["123321412___", "1233224125_3", "_3332342251_", "12332441251_"]
    ratings = [[None if value == "_" else float(value) for value in unit] for unit in zip(*observers, strict=True)]
    values = [round(coefficient(measure, cases_of(ratings)), 3) for measure in (alpha, alpha_of_numbers)]

    assert [0.743, 0.849] == values


def test_weights_count_like_copies() -> None:
    """A unit with weight 3 counts as much as three equal units in AC1 and κ, and any common factor of the weights does not."""
    copies: Cases = Counter({(Unit((True, True)),): 20, (Unit((True, False)),): 6, (Unit((False, False)),): 9})
    weighted: Cases = Counter({(Unit((True, True), 40.0),): 1, (Unit((True, False), 4.0),): 3, (Unit((False, False), 6.0),): 3})

    for measure in (ac1, kappa):
        assert math.isclose(coefficient(measure, copies), coefficient(measure, weighted))


def test_alpha_ignores_a_common_weight() -> None:
    """Weights that are all equal do not change α."""
    units: list[tuple[Value, ...]] = [(1.0, 2.0, 2.0), (3.0, 3.0), (2.0, 1.0), (3.0, 3.0, 3.0), (1.0,)]
    plain: Cases = Counter((Unit(values),) for values in units)
    weighted: Cases = Counter((Unit(values, 7.5),) for values in units)

    for measure in (alpha, alpha_of_numbers):
        assert math.isclose(coefficient(measure, plain), coefficient(measure, weighted))


def test_undefined_coefficients() -> None:
    """If all ratings are equal, κ and α are undefined, and AC1 is 1."""
    results = coefficients(cases_of([(True, True)] * 40), {"ac1": ac1, "kappa": kappa, "alpha": alpha})

    assert [1.0, None, None] == [result and result.value for result in results.values()]


def test_no_disagreement_has_an_interval() -> None:
    """Raters who agree on all of 40 outputs have a lower end below 1: that of Wilson's interval, compared with chance."""
    cases = cases_of([(True, True)] * 20 + [(False, False)] * 20)
    share_of_disagreement = wilson(0.0, 40)[1]

    assert {"ac1": Coefficient(1.0, 1 - share_of_disagreement / 0.5, 1.0)} == coefficients(cases, {"ac1": ac1})


@pytest.mark.parametrize(("samples", "minimum"), [(20, 17), pytest.param(60, 53, marks=pytest.mark.exhaustive)])
def test_intervals_cover(samples: int, minimum: int) -> None:
    """The bootstrap interval of AC1 covers the true value in about 95 of 100 samples of 100 outputs."""
    random = np.random.default_rng(0)
    shares = [0.75, 0.05, 0.1, 0.1]
    truth = coefficient(ac1, table([[750, 50], [100, 100]]))
    covered = 0
    for _ in range(samples):
        (a, b), (c, d) = random.multinomial(100, shares).reshape(2, 2).tolist()
        result = coefficients(table([[a, b], [c, d]]), {"ac1": ac1})["ac1"]
        assert result is not None
        assert result.low is not None
        assert result.high is not None
        covered += result.low <= truth <= result.high

    assert covered >= minimum  # fewer have a probability of 1 to 2 % at 95 %


def test_repeats_widen_the_interval() -> None:
    """Four equal units of a case are less evidence than four cases."""
    values = [(True, True)] * 70 + [(True, False)] * 30
    separate = coefficients(Counter({(Unit(pair),): 4 * count for pair, count in Counter(values).items()}), {"ac1": ac1})["ac1"]
    together = coefficients(Counter({(Unit(pair),) * 4: count for pair, count in Counter(values).items()}), {"ac1": ac1})["ac1"]
    assert separate is not None
    assert together is not None

    assert separate.value == together.value
    assert (together.high or 0) - (together.low or 0) > 1.5 * ((separate.high or 0) - (separate.low or 0))


def test_bootstrap_is_repeatable() -> None:
    """The same cases always give the same interval; one case gives none."""
    cases = {1: 10, 2: 20, 5: 3}

    def mean(sample: object) -> list[float | None]:
        counts = dict(sample)  # type: ignore[call-overload]
        return [sum(value * count for value, count in counts.items()) / sum(counts.values())]

    assert bootstrap(cases, mean) == bootstrap(cases, mean)
    assert [None] == bootstrap({3: 1}, mean)


@examples(30)
@given(st.lists(st.tuples(st.integers(0, 8), st.floats(0, 10), st.floats(-1, 1), st.floats(0.5, 4)), min_size=5, max_size=40))
def test_slope_is_that_of_statsmodels(rows: list[tuple[int, float, float, float]]) -> None:
    """A slope and its standard error, clustered by case, are those of weighted least squares in statsmodels."""
    cases, x, y, weights = (np.array(column) for column in zip(*rows, strict=True))
    assume(len(set(cases.tolist())) > 3 and float(np.ptp(x)) > 0.1)  # well conditioned
    groups = {"groups": np.unique(cases, return_inverse=True)[1], "use_correction": False}
    fit = sm.WLS(y, sm.add_constant(x), weights=weights).fit(cov_type="cluster", cov_kwds=groups)
    estimate = slope((str(case), length, error, weight) for case, length, error, weight in rows)
    assert estimate is not None
    clusters = len(set(cases.tolist()))

    assert math.isclose(float(fit.params[1]), estimate.mean, abs_tol=1e-7)
    expected = float(fit.bse[1]) * math.sqrt(clusters / (clusters - 2))
    assert math.isclose(expected, estimate.standard_error or 0.0, rel_tol=1e-6, abs_tol=1e-7)


def test_slope_needs_variation() -> None:
    """Without a label, with one length, or with two cases, there is no slope."""
    assert [None, None, None] == [
        slope([]),
        slope([("a", 1.0, 0.0, 1.0), ("b", 1.0, 1.0, 1.0), ("c", 1.0, 1.0, 1.0)]),
        slope([("a", 1.0, 0.0, 1.0), ("b", 2.0, 1.0, 1.0)]),
    ]
