"""Compare any number of runs or variants: one row for each, and its paired differences from a baseline, by default the best.

A pure function of the runs. The differences of a table are tested together, with Holm's correction.
"""

import math
from collections.abc import Mapping, Sequence

import attrs

from evaljournal.replay.results.comparison import Side, SideAnswers, common_scorers
from evaljournal.replay.results.pairing import PairedDifference, Pairing, decide
from evaljournal.replay.results.pairwise import order_scorers
from evaljournal.replay.results.summary import Latency, ScoreSummary, score_of
from evaljournal.replay.state.tally import main_scorer
from evaljournal.replay.state.usage import as_integer, total


@attrs.frozen(kw_only=True)
class Overlap:
    """The trials that a row and the baseline have in common, and the others, which are not compared."""

    common: int
    """Trials with the same case, repeat and content in both."""
    only_baseline: Sequence[str]
    only_row: Sequence[str]
    different_content: Sequence[str]
    """Trials with the same case and repeat, and different content."""


@attrs.frozen(kw_only=True)
class Row:
    """The results of one run or variant."""

    name: str
    trials: int
    """Trials that were not withdrawn."""
    completed: int
    failed: int
    """Failed trials; they have no score."""
    open: int
    answers: SideAnswers
    from_older_task: int
    """Outputs of an older version of the task in its run."""
    scores: Mapping[str, ScoreSummary]
    latency: Latency
    tokens: float | None
    cost: float | None
    """Dollars, judges included; None if unknown."""
    unpriced_calls: int
    """Calls whose cost is unknown; the cost does not include them."""
    cost_per_trial: float | None
    """Cost divided by the trials that are completed or failed."""
    cost_per_pass: float | None
    """Cost divided by the passes of the table's score; None if that score has no passes."""
    is_pareto_optimal: bool
    """Whether no other row has a higher score at the same or a lower cost per trial, or the same score at a lower cost."""
    overlap: Overlap | None
    """None for the baseline."""
    differences: Mapping[str, PairedDifference]
    """Scorer → its difference from the baseline; empty for the baseline."""


@attrs.frozen(kw_only=True)
class ComparisonTable:
    baseline: str
    """Name of its row."""
    score: str | None
    """The score of `cost_per_pass` and `is_pareto_optimal`: the first pass/fail score, otherwise the first numeric one."""
    comparisons: int
    """Differences that were tested together."""
    rows: Sequence[Row]


def compare_all(sides: Mapping[str, Side], baseline: str | None = None) -> ComparisonTable:
    """Compare runs or variants, each under the name of its row, with one of them: by default the best by the table's score.

    A difference from the best answers whether another one, cheaper say, is as good. Of equal ones, the first is the best.
    """
    tallies = (item for side in sides.values() for item in side.totals.scores.items())
    score = main_scorer((scorer, tally.kind) for scorer, tally in tallies if tally.kind in {"pass", "number"})
    if baseline is None:
        means = {name: tally.mean for name, side in sides.items() if (tally := side.totals.scores.get(score or "")) is not None}
        baseline = max(sides, key=lambda name: -math.inf if (mean := means.get(name)) is None else mean)

    results = {name: _overlap_and_differences(sides[baseline], side) for name, side in sides.items() if name != baseline}
    differences = decide({(name, scorer): value for name, (_, scores) in results.items() for scorer, value in scores.items()})
    points = {name: _mean_and_cost(side, score) for name, side in sides.items()}

    rows: list[Row] = []
    for name, side in sides.items():
        totals, cost, orders = side.totals, total(side.totals.usage, "cost"), order_scorers(side.state)
        tally = totals.scores.get(score or "")
        passes = tally.passed if tally is not None and tally.kind == "pass" else 0
        shown_tallies = {scorer: tally for scorer, tally in totals.scores.items() if scorer not in orders or tally.failed}
        row = Row(
            name=name,
            trials=totals.total,
            completed=totals.stages["completed"],
            failed=totals.failed,
            open=totals.total - totals.done,
            answers=side.answers,
            from_older_task=side.state.sessions.task_versions.older_outputs,
            scores={scorer: score_of(tally) for scorer, tally in shown_tallies.items()},
            latency=side.latency,
            tokens=total(totals.usage, "tokens"),
            cost=cost,
            unpriced_calls=as_integer(total(totals.usage, "unpriced_calls") or 0),
            cost_per_trial=_cost_per(totals.done, cost),
            cost_per_pass=_cost_per(passes, cost),
            is_pareto_optimal=_is_pareto_optimal(name, points),
            overlap=results[name][0] if name in results else None,
            differences={scorer: differences[name, scorer] for scorer in results[name][1]} if name in results else {},
        )
        rows.append(row)

    comparisons = sum(difference.p_adjusted is not None for difference in differences.values())
    return ComparisonTable(baseline=baseline, score=score, comparisons=comparisons, rows=rows)


def _overlap_and_differences(baseline: Side, side: Side) -> tuple[Overlap, dict[str, PairedDifference]]:
    ids_a, ids_b = baseline.ids, side.ids
    pairing = Pairing(baseline.trials, side.trials)
    overlap = Overlap(
        common=len(pairing.common_keys),
        only_baseline=[ids_a[key] for key in pairing.only_a],
        only_row=[ids_b[key] for key in pairing.only_b],
        different_content=[ids_b[key] for key in pairing.different_content],
    )
    return overlap, pairing.scores(common_scorers(baseline, side))


def _mean_and_cost(side: Side, score: str | None) -> tuple[float, float] | None:
    """Return the mean of a score and the cost per trial; None if one of them is unknown or incomplete."""
    totals = side.totals
    tally, cost_per_trial = totals.scores.get(score or ""), _cost_per(totals.done, total(totals.usage, "cost"))
    if tally is None or tally.mean is None or cost_per_trial is None or total(totals.usage, "unpriced_calls"):
        return None
    return tally.mean, cost_per_trial


def _is_pareto_optimal(name: str, points: Mapping[str, tuple[float, float] | None]) -> bool:
    own_point = points[name]
    if own_point is None:
        return False
    other_points = (point for point in points.values() if point is not None and point != own_point)
    return not any(mean >= own_point[0] and cost <= own_point[1] for mean, cost in other_points)


def _cost_per(count: int, cost: float | None) -> float | None:
    return cost / count if cost is not None and count else None
