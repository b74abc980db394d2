"""Results of pairwise judges: wins, losses and ties against another run, position flips, and a ranking of several variants.

A judge was asked in both orders; a win counts only if both orders agree. Wins and losses are compared by the sign test over
cases; with repeats, by the sign-flip test of the means of the cases. The ranking is Davidson's extension of the Bradley-Terry
model to ties (1970), which does not depend on the order of the comparisons, as Elo ratings do.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import mul
from typing import Any, Final

import attrs

from evaljournal.replay.results.pairing import PairedDifference, compare_values, decide
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.trial import TrialState
from evaljournal.replay.statistics import bootstrap

WIN: Final = "win"
LOSS: Final = "loss"
TIE: Final = "tie"
MAX_RANKED: Final = 50
"""Maximum number of runs and variants in a ranking; the time grows with the cube of their number."""
_BLOCKS: Final = 256
"""Maximum number of blocks that the bootstrap draws from; of more cases, several are drawn together."""
_NONE: Final = (0.0, 0.0, 0.0)
_DRAWS: Final = 999
_ITERATIONS: Final = 100
_PRECISION: Final = 1e-6


def combine(first: object, second: object) -> str:
    """Return the verdict of both orders: that on which they agree, otherwise `tie`."""
    return str(first) if first == second else TIE


@attrs.frozen(kw_only=True)
class PairwiseSummary:
    """The verdicts of a pairwise judge on the outputs of a run or a variant, compared with those of another."""

    model: str
    """The judge."""
    orders: Sequence[str]
    """The scorers of the two orders: with this output first, and second."""
    run: str
    """Id of the other run."""
    path: str
    """Where it was."""
    variant: str | None
    """Its variant; None: all, or it has none."""
    head: str
    """Hash of the last record that was read of it."""
    pairs: int
    """Trials with a verdict of both orders."""
    wins: int
    losses: int
    ties: int
    """Orders that disagree are a tie."""
    flips: int
    """Pairs whose winner was that of the same position in both orders."""
    flips_to_first: int
    """Those in which it was the first position."""
    difference: PairedDifference
    """Share of wins minus share of losses over the cases."""


def pairwise_summaries(state: RunState, variant: str | None = None) -> dict[str, PairwiseSummary]:
    """Return the results of each pairwise judge by scorer; with `variant`, of its trials only."""
    results: dict[str, PairwiseSummary] = {}
    for scorer, note in _notes(state):
        trials = [trial for trial in state.trials.values() if variant is None or trial.variant == variant]
        verdicts = [(trial, value) for trial in trials if (value := _verdict(trial, scorer, note)) is not None]
        if not verdicts:
            continue

        counts = Counter(value for _, value in verdicts)
        orders = [tuple(_verdict(trial, order, note) for order in note["orders"]) for trial, _ in verdicts]
        against = note["against"]
        results[scorer] = PairwiseSummary(
            model=str(note["judge"]["model"]),
            orders=note["orders"],
            run=str(against["run"]),
            path=str(against["path"]),
            variant=None if against["variant"] is None else str(against["variant"]),
            head=str(against["head"]),
            pairs=len(verdicts),
            wins=counts[WIN],
            losses=counts[LOSS],
            ties=counts[TIE],
            flips=orders.count((WIN, LOSS)) + orders.count((LOSS, WIN)),
            flips_to_first=orders.count((WIN, LOSS)),
            difference=_difference(verdicts),
        )

    decided = decide({scorer: result.difference for scorer, result in results.items()})
    return {scorer: attrs.evolve(result, difference=decided[scorer]) for scorer, result in results.items()}


def order_scorers(state: RunState) -> set[str]:
    """Return the scorers of single orders, which are no results of their own."""
    return {order for _, note in _notes(state) for order in note["orders"]}


def _notes(state: RunState) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the notes of pairwise judges that have the expected form; a journal may be foreign."""
    for scorer, note in state.scoring.pairwise.items():
        match note:
            case {
                "judge": {"model": _, "version": _},
                "against": {"run": _, "path": _, "variant": _, "head": _},
                "orders": [str(), str()] as orders,
                "versions": {**versions},
            } if {scorer, *orders} <= versions.keys():
                yield scorer, note


def _verdict(trial: TrialState, scorer: str, note: Mapping[str, Any]) -> str | None:
    """Return a verdict of the judge of the note; None if there is none, or only one of another judge or against another run."""
    version, value = trial.score(scorer) or ("", None)
    is_current = version == note["versions"][scorer]
    return value if is_current and value in (WIN, LOSS, TIE) and isinstance(value, str) else None


def _difference(verdicts: Iterable[tuple[TrialState, str]]) -> PairedDifference:
    """Return the difference between the shares of wins and losses; each case counts once."""
    by_case: defaultdict[str, list[str]] = defaultdict(list)
    for trial, verdict in verdicts:
        by_case[trial.case].append(verdict)
    losses, wins = ([values.count(verdict) / len(values) for _, values in sorted(by_case.items())] for verdict in (LOSS, WIN))
    return compare_values("pass", losses, wins, cases=len(by_case), scorer_changed=False, is_share=True)


@attrs.frozen
class Strength:
    """A run or a variant in a ranking."""

    name: str
    strength: float
    """Logarithm of the strength, relative to the mean of all: without ties, a beats b with odds of exp(a - b)."""
    low: float
    high: float
    """95 % interval: percentiles of the bootstrap over cases."""
    wins: int
    losses: int
    ties: int


@attrs.frozen
class Ranking:
    """Runs and variants that one judge has compared, the strongest first."""

    model: str
    cases: int
    sides: int
    """Number of the runs and variants."""
    strengths: Sequence[Strength]
    """Empty if there are more than `MAX_RANKED`."""


_Side = tuple[str, str]
"""Id of the run, and variant."""
_Counts = dict[tuple[_Side, _Side], list[float]]
"""Two sides → wins of the first, wins of the second, ties."""


def rankings(states: Iterable[RunState]) -> list[Ranking]:
    """Return a ranking for each judge and each group of at least three runs and variants that are connected by comparisons."""
    judges: defaultdict[tuple[str, str], defaultdict[str, _Counts]] = defaultdict(lambda: defaultdict(dict))
    paths: dict[str, str] = {}
    for state in states:
        for scorer, note in _notes(state):
            judge, against = note["judge"], note["against"]
            own_run, other_run = str(note.get("run")), str(against["run"])
            paths |= {own_run: str(note.get("path")), other_run: str(against["path"])}
            cases = judges[str(judge["model"]), str(judge["version"])]
            for trial in state.trials.values():
                if (verdict := _verdict(trial, scorer, note)) is not None:
                    variant = trial.variant if against["variant"] is None else str(against["variant"])
                    counts = cases[trial.case].setdefault(((own_run, trial.variant), (other_run, variant)), [0.0, 0.0, 0.0])
                    counts[(WIN, LOSS, TIE).index(verdict)] += 1

    results: list[Ranking] = []
    for (model, _), cases in judges.items():
        for sides in _components({pair for counts in cases.values() for pair in counts}):
            if len(sides) >= 3:  # noqa: PLR2004 - for two, the sign test is enough
                own_cases = [
                    {pair: counts for pair, counts in case_counts.items() if pair[0] in sides}
                    for _, case_counts in sorted(cases.items())
                ]
                results.append(_ranking(model, sides, list(filter(None, own_cases)), paths))
    return results


def _components(pairs: Iterable[tuple[_Side, _Side]]) -> list[list[_Side]]:
    """Return the groups of sides that are connected by comparisons, in alphabetical order."""
    groups: dict[_Side, set[_Side]] = {}
    for pair in pairs:
        group = {*pair}.union(*(groups.get(side, ()) for side in pair))
        groups |= dict.fromkeys(group, group)
    return sorted(sorted(group) for group in {id(group): group for group in groups.values()}.values())


def _ranking(model: str, sides: Sequence[_Side], cases: Sequence[_Counts], paths: Mapping[str, str]) -> Ranking:
    if len(sides) > MAX_RANKED:
        return Ranking(model, len(cases), len(sides), ())
    totals = _sum(cases)
    estimate = _fit(sides, totals)
    blocks = [_sum(cases[start::_BLOCKS]) for start in range(min(_BLOCKS, len(cases)))]
    columns = {pair: [*zip(*(block.get(pair, _NONE) for block in blocks), strict=True)] for pair in totals}

    def strengths_of(sample: Mapping[int, int]) -> list[float]:
        weights = [sample.get(number, 0) for number in range(len(blocks))]
        counts = {pair: [sum(map(mul, values, weights)) for values in kinds] for pair, kinds in columns.items()}
        return _fit(sides, counts, estimate)

    intervals = bootstrap(dict.fromkeys(range(len(blocks)), 1), strengths_of, resamples=_DRAWS)
    has_one_run = len({run for run, _ in sides}) == 1
    strengths: list[Strength] = []
    for index, (run, variant) in enumerate(sides):
        wins = losses = ties = 0.0
        for pair, (first_wins, second_wins, pair_ties) in totals.items():
            if (run, variant) in pair:
                is_first = pair[0] == (run, variant)
                wins += first_wins if is_first else second_wins
                losses += second_wins if is_first else first_wins
                ties += pair_ties
        name = variant if has_one_run else f"{paths[run]}@{variant}" if variant else paths[run]
        low, high = intervals[index] or (estimate[index], estimate[index])
        strengths.append(Strength(name, estimate[index], low, high, int(wins), int(losses), int(ties)))

    return Ranking(model, len(cases), len(sides), sorted(strengths, key=lambda strength: -strength.strength))


def _sum(counts_of_cases: Iterable[_Counts]) -> _Counts:
    totals: _Counts = {}
    for counts in counts_of_cases:
        for pair, values in counts.items():
            total = totals.setdefault(pair, [0.0, 0.0, 0.0])
            for index, value in enumerate(values):
                total[index] += value
    return totals


def _fit(sides: Sequence[_Side], counts: _Counts, start: Sequence[float] = ()) -> list[float]:
    """Return the logarithm of each side's strength, with mean 0: the maximum of the likelihood, by Newton's method.

    Each pair that was compared counts half a win more for both, so that a side that has won or lost everything has a finite
    strength. `start` is a first estimate.
    """
    numbers = {side: number for number, side in enumerate(sides)}
    comparisons = [
        (numbers[a], numbers[b], wins, losses, pair_ties) for (a, b), (wins, losses, pair_ties) in sorted(counts.items())
    ]
    ties = sum(comparison[4] for comparison in comparisons)
    strengths = [*(start or [0.0] * len(sides))]
    tie_strength = math.log(2 * ties / sum(sum(comparison[2:4]) + 1 for comparison in comparisons)) if ties else -math.inf

    for _ in range(_ITERATIONS):
        *changes, tie_change = _newton_update(comparisons, strengths, tie_strength)
        largest = max(map(abs, (*changes, tie_change)))
        scale = 1 / max(1.0, largest)
        strengths[:-1] = [value + scale * change for value, change in zip(strengths, changes, strict=False)]
        tie_strength += scale * tie_change
        if largest < _PRECISION:
            break

    mean = math.fsum(strengths) / len(strengths)
    return [value - mean for value in strengths]


def _newton_update(
    comparisons: Iterable[tuple[int, int, float, float, float]], strengths: Sequence[float], tie_strength: float
) -> list[float]:
    """Return the changes of all strengths except the last, which is constant, and of that of ties."""
    size = len(strengths)  # Ties have the place of the last side, whose derivatives are not needed.
    gradient, hessian = [0.0] * size, [[0.0] * size for _ in range(size)]
    for a, b, wins, losses, ties in comparisons:
        logarithms = strengths[a], strengths[b], tie_strength + (strengths[a] + strengths[b]) / 2
        largest = max(logarithms)
        win, loss, tie = (math.exp(value - largest) for value in logarithms)
        total, n = win + loss + tie, wins + losses + ties + 1
        tie /= total
        mean_a, mean_b = win / total + tie / 2, loss / total + tie / 2
        sides = [(a, mean_a, wins + (1 + ties) / 2), (b, mean_b, losses + (1 + ties) / 2)]

        for side, mean, score_sum in sides:
            if side < size - 1:
                gradient[side] += score_sum - n * mean
                hessian[side][side] += n * (mean - tie / 4 - mean * mean)
                covariance = n * tie * (0.5 - mean)
                hessian[side][-1] += covariance
                hessian[-1][side] += covariance

        if max(a, b) < size - 1:
            hessian[a][b] += n * (tie / 4 - mean_a * mean_b)
            hessian[b][a] = hessian[a][b]
        gradient[-1] += ties - n * tie
        hessian[-1][-1] += n * tie * (1 - tie)

    hessian[-1][-1] = hessian[-1][-1] or 1.0  # There are no ties.
    return _solve(hessian, gradient)


def _solve(matrix: list[list[float]], vector: Sequence[float]) -> list[float]:
    """Solve linear equations by Gaussian elimination; the matrix is symmetric and positive definite."""
    rows = [[*row, value] for row, value in zip(matrix, vector, strict=True)]
    for index, pivot in enumerate(rows):
        for row in rows[index + 1 :]:
            factor = row[index] / pivot[index]
            for column in range(index, len(row)):
                row[column] -= factor * pivot[column]
    solution = [0.0] * len(rows)
    for index in reversed(range(len(rows))):
        row = rows[index]
        solution[index] = (row[-1] - math.fsum(row[j] * solution[j] for j in range(index + 1, len(rows)))) / row[index]
    return solution
