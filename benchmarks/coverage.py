"""How often the intervals of corrected scores cover the true mean: `python -m benchmarks coverage`.

Judges with known error rates score simulated outputs, a sample of which gets labels; `evaljournal.replay.review.correction`
corrects them. The table is that of docs/review-statistics.md. The exit code is 1 if a required figure is missed.
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs
import numpy as np

from evaljournal.replay.review.correction import Case, Kind, Observation, correct, correct_difference, labels_alone

LOWEST: Final = 0.93
"""Required coverage at 200 labels."""
HIGHEST: Final = 0.97
"""The same, unless the judge makes so few errors in a sample that the halves that are added to them count."""
LOWEST_SHOWN: Final = 0.90
"""Required coverage wherever a correction is shown in at least half of the samples."""
MAX_WIDTH: Final = 1.1
"""Maximum width of an interval, in widths of the interval of the labels alone."""
FEW_ERRORS: Final = 3
"""Expected false passes, or false fails, in a sample below which coverage may be above `HIGHEST`."""
MAX_USELESS_WEIGHT: Final = 0.1
FIXED, BROKEN = 0.2, 0.05
"""Of a difference: shares of the fails of A that pass in B, and of the passes of A that fail in B."""
CASE_CORRELATION: Final = 0.5
"""Of the repeats of a case, where there are any."""


@attrs.frozen
class Scenario:
    """A run, a judge and a sample."""

    share: float
    """True share of passes."""
    true_passes: float
    true_fails: float
    """Shares of the true passes, and fails, that the judge finds."""
    labels: int
    trials: int
    method: str = "uniform"
    """`uniform`; `stratified`: half of the labels of each verdict; `repeats`: four trials per case; `numbers`: scores that are
    not pass or fail; `difference`: of two runs over the same cases, B minus A, of which A has this share."""

    @property
    def expected_errors(self) -> float:
        """The smaller expected number of false passes and false fails in a uniform sample."""
        false_fails = self.share * (1 - self.true_passes)
        return self.labels * min(false_fails, (1 - self.share) * (1 - self.true_fails))

    @property
    def is_useless(self) -> bool:
        """Whether the judge's verdict does not depend on the output."""
        return self.true_passes == (0 if self.method == "numbers" else 1 - self.true_fails)


@attrs.frozen
class Figures:
    """What was measured."""

    shown: float
    """Share of samples with a correction."""
    coverage: float
    """Of all intervals that a reader sees, with and without a correction."""
    coverage_shown: float
    """Of those with a correction."""
    width: float
    max_width: float
    """Mean and maximum width of corrected intervals, in widths of the interval of the labels alone."""
    weight: float
    """Mean λ."""
    bias: float
    """Mean error of the corrected means."""


JUDGES: Final = ((0.95, 0.9), (0.9, 0.6), (0.98, 0.5), (0.99, 0.99), (1.0, 0.95), (0.5, 0.5))
SCENARIOS: Final = (
    *(Scenario(share, *judge, 200, 1_200) for share in (0.5, 0.7, 0.84, 0.9) for judge in JUDGES),
    *(Scenario(share, *judge, 200, 10_000) for share in (0.7, 0.9) for judge in JUDGES),
    *(Scenario(share, *judge, 60, 1_200) for share in (0.5, 0.7, 0.84) for judge in JUDGES),
    *(Scenario(0.5, *judge, 30, 300) for judge in JUDGES),
    *(Scenario(0.95, *judge, 200, 1_200) for judge in JUDGES[:2]),
    *(Scenario(share, *judge, 200, 1_200, "stratified") for share in (0.7, 0.9) for judge in JUDGES[:4]),
    *(Scenario(0.84, *judge, 60, 1_200, "stratified") for judge in JUDGES[:4]),
    *(Scenario(share, *judge, 200, 1_200, "repeats") for share in (0.7, 0.84) for judge in JUDGES[:4]),
    *(Scenario(0.7, *judge, 200, 1_200, "difference") for judge in JUDGES[:4]),
    *(Scenario(0.0, correlation, correlation, 200, 1_200, "numbers") for correlation in (0.9, 0.5, 0.0)),
)


def simulate(scenario: Scenario, repetitions: int, seed: int = 0) -> Figures:
    """Draw samples, correct the judge, and count how often the interval covers the true mean."""
    random = np.random.default_rng(seed)
    shown = covered = covered_shown = 0
    widths, weights, errors = list[float](), list[float](), list[float]()
    for _ in range(repetitions):
        if scenario.method == "difference":
            pairs, truth = _pairs(scenario, random)
            estimate = correct_difference(pairs, "pass")
            assert estimate is not None
            mean, low, high, is_shown = estimate.mean, estimate.low, estimate.high, True
            width = math.hypot(*(_label_width(Counter(pair[side] for pair in pairs.elements())) for side in (0, 1)))
        else:
            cases, truth = _numbers(scenario, random) if scenario.method == "numbers" else _cases(scenario, random)
            correction = correct(cases, "number" if scenario.method == "numbers" else "pass")
            assert correction is not None
            assert correction.mean is not None
            mean, low, high, is_shown = correction.mean, correction.low, correction.high, correction.method == "ppi"
            width = _label_width(cases, "number" if scenario.method == "numbers" else "pass")
            weights += [correction.weight] * is_shown
        assert low is not None
        assert high is not None
        is_covered = low <= truth <= high
        covered += is_covered
        if is_shown:
            shown += 1
            covered_shown += is_covered
            widths.append((high - low) / width)
            errors.append(mean - truth)
    return Figures(
        shown=shown / repetitions,
        coverage=covered / repetitions,
        coverage_shown=covered_shown / max(1, shown),
        width=float(np.mean(widths)),
        max_width=max(widths),
        weight=float(np.mean(weights)) if weights else math.nan,
        bias=float(np.mean(errors)),
    )


def _label_width(cases: Counter[Case], kind: Kind = "pass") -> float:
    estimate = labels_alone(cases, kind)
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.high - estimate.low


def _verdicts(passes: Any, scenario: Scenario, chance: Any) -> Any:
    """Return the judge's verdicts on outputs of which some truly pass; `chance` is uniform from 0 to 1."""
    return np.where(passes, chance < scenario.true_passes, chance >= scenario.true_fails)


def _sampled(verdicts: Any, passes: Any, scenario: Scenario, random: np.random.Generator) -> tuple[Any, list[Observation]]:
    """Draw a sample; return for each trial the index of its observation, and the observations."""
    labeled, weights, is_stratified = np.zeros(len(verdicts), bool), [0.0, 0.0], scenario.method == "stratified"
    for verdict in (0, 1):
        stratum = np.flatnonzero(verdicts == verdict) if is_stratified else np.arange(len(verdicts))
        count = min(len(stratum), scenario.labels // 2 if is_stratified else scenario.labels)
        weights[verdict] = len(stratum) / max(1, count)
        if is_stratified or not verdict:
            labeled[random.choice(stratum, count, replace=False)] = True
    observations = [Observation(float(verdict)) for verdict in (0, 1)]
    observations += [Observation(float(index & 1), float(index >> 1), weights[index & 1]) for index in range(4)]
    return np.where(labeled, 2 + verdicts + 2 * passes, verdicts), observations


def _counted(codes: Sequence[Any], tables: Sequence[Sequence[Observation]]) -> Counter[Case]:
    """Return the cases of some trials, given as the indexes of their observations: first the first trial of each case."""
    values, counts = np.unique(sum(code * 6**place for place, code in enumerate(codes)), return_counts=True)
    return Counter(
        {
            tuple(table[value // 6**place % 6] for place, table in enumerate(tables)): count
            for value, count in zip(values.tolist(), counts.tolist(), strict=True)
        }
    )


def _cases(scenario: Scenario, random: np.random.Generator) -> tuple[Counter[Case], float]:
    """Return the cases of a run with a share of passes, some trials of them with a label, and the true share."""
    trials, repeats = scenario.trials, 4 if scenario.method == "repeats" else 1
    chance_of_pass: Any = scenario.share
    chance = random.random(trials)
    if repeats > 1:  # Repeats of a case depend on each other, and so do the judge's errors in half of the cases.
        cases, size = trials // repeats, 1 / CASE_CORRELATION - 1
        chance_of_pass = np.repeat(random.beta(scenario.share * size, (1 - scenario.share) * size, cases), repeats)
        has_same_errors = np.repeat(random.integers(0, 2, cases) == 1, repeats)
        chance = np.where(has_same_errors, np.repeat(random.random(cases), repeats), chance)
    passes = random.random(trials) < chance_of_pass
    codes, table = _sampled(_verdicts(passes, scenario, chance), passes, scenario, random)
    return _counted([codes[start::repeats] for start in range(repeats)], [table] * repeats), scenario.share


def _numbers(scenario: Scenario, random: np.random.Generator) -> tuple[Counter[Case], float]:
    """Return scores whose correlation with the labels is that of the scenario; the judge is too kind by 0.5."""
    correlation, trials = scenario.true_passes, scenario.trials
    labels = random.standard_normal(trials)
    scores = correlation * labels + math.sqrt(1 - correlation**2) * random.standard_normal(trials) + 0.5
    weight = trials / scenario.labels
    rows = enumerate(zip(scores.tolist(), labels.tolist(), strict=True))
    return Counter(
        (Observation(score, label, weight) if index < scenario.labels else Observation(score),)
        for index, (score, label) in rows
    ), scenario.share


def _pairs(scenario: Scenario, random: np.random.Generator) -> tuple[Counter[tuple[Case, Case]], float]:
    """Return the cases of two runs: B passes a fifth of those that A fails, and fails a twentieth of those that A passes.

    The labels of B are of other cases than those of A, except by chance; half of the judge's errors are the same.
    """
    trials, codes, tables = scenario.trials, list[Any](), list[list[Observation]]()
    passes_a = random.random(trials) < scenario.share
    passes_b = np.where(passes_a, random.random(trials) >= BROKEN, random.random(trials) < FIXED)
    chance = random.random(trials)
    for passes in (passes_a, passes_b):
        own_chance = np.where(random.integers(0, 2, trials) == 1, chance, random.random(trials))
        side_codes, table = _sampled(_verdicts(passes, scenario, own_chance), passes, scenario, random)
        codes.append(side_codes)
        tables.append(table)
    pairs: Counter[tuple[Case, Case]] = Counter({((a,), (b,)): count for (a, b), count in _counted(codes, tables).items()})
    return pairs, FIXED * (1 - scenario.share) - BROKEN * scenario.share


def missed(scenario: Scenario, figures: Figures, slack: float = 0.0) -> Iterator[str]:
    """Yield the required figures that were missed; `slack` is added to the shares if there are few repetitions."""
    is_large = scenario.labels >= 200 and figures.shown > 0.5  # the required figures are of 200 labels
    if is_large and figures.coverage < LOWEST - slack:
        yield f"coverage {figures.coverage:.3f} below {LOWEST}"
    if is_large and scenario.expected_errors >= FEW_ERRORS and figures.coverage > HIGHEST + slack:
        yield f"coverage {figures.coverage:.3f} above {HIGHEST}"
    if figures.shown >= 0.5 and figures.coverage_shown < LOWEST_SHOWN - slack:
        yield f"coverage {figures.coverage_shown:.3f} of corrections below {LOWEST_SHOWN}"
    if figures.max_width > MAX_WIDTH:
        yield f"interval {figures.max_width:.2f} times as wide as that of the labels alone"
    if scenario.is_useless and figures.weight > MAX_USELESS_WEIGHT:
        yield f"λ of a useless judge is {figures.weight:.2f}"


def table(repetitions: int, seed: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of the table in Markdown, each with the figures that it missed."""
    for scenario in SCENARIOS:
        figures = simulate(scenario, repetitions, seed)
        numbers = (
            f"{scenario.share:.0%}" if scenario.method != "numbers" else "–",
            f"{scenario.true_passes:g} / {scenario.true_fails:g}"
            if scenario.method != "numbers"
            else f"r = {scenario.true_passes:g}",
            f"{scenario.labels:,} of {scenario.trials:,}",
            scenario.method,
            f"{100 * figures.coverage:.1f} %",
            f"{100 * figures.shown:.0f} %",
            f"{100 * figures.coverage_shown:.1f} %",
            f"{figures.width:.2f}",
            f"{figures.max_width:.2f}",
            "–" if math.isnan(figures.weight) else f"{figures.weight:.2f}",
        )
        yield f"| {' | '.join(numbers)} |", list(missed(scenario, figures))


def main(argv: Sequence[str]) -> int:
    """Print the table; return 1 if a required figure is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks coverage", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=10_000, help="samples per row (default: 10,000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the simulation (default: 0)")
    options = parser.parse_args(argv)
    problems: list[str] = []
    for row, row_problems in table(options.repetitions, options.seed):
        print(row, flush=True)
        problems += [f"{row}: {problem}" for problem in row_problems]
    print("\n".join(problems))
    return 1 if problems else 0
