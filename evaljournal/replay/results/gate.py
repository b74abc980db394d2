"""Gates against a baseline: whether a run is worse than an earlier one.

Pure functions of two runs and some rules, so the same journals always give the same verdict. For each score, a one-sided test
asks whether it is worse (McNemar's exact test for passes, the sign-flip test for numbers and repeats), over the means of the
cases that both runs have. The p-values are Holm-corrected over the scores of the gate; the share of trials with all scores is
tested alone. If the mean dropped by more than is tolerated, the score

- *regressed* if p < 0.05;
- has *too little evidence* if p < 0.2, or if there are so few cases that p < 0.05 could not be reached if all of them broke.

Otherwise it *passed*. One more broken case lowers the mean and the p-value of McNemar's test, so it never makes a verdict
better. The tolerated drop does not depend on the changed cases: if broken cases counted as noise, five of ten would pass.

There is also too little evidence if several models answered for one variant: an alias or a gateway has changed the model.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import attrs

from evaljournal.replay.results.comparison import Comparison, Side, compare
from evaljournal.replay.results.pairing import PairedDifference, number
from evaljournal.replay.results.sensitivity import detectable_drop, min_cases, more_cases, trial_variance
from evaljournal.replay.results.summary import score_of, unscored_counts
from evaljournal.replay.state.usage import total
from evaljournal.replay.statistics import LEVEL, ROUNDING, holm

Verdict = Literal["passed", "regressed", "too_little_evidence"]
MAX_DROP: Final = 0.02
"""Tolerated drop of a score without a rule of its own."""
_ALPHA: Final = 1 - LEVEL
"""p-value below which a drop that is not tolerated is a regression."""
_MAX_DOUBT: Final = 0.2
"""p-value below which a drop that is not tolerated does not pass: it would occur by chance in fewer than one of five runs."""
COMPLETED: Final = "completed"
"""Name of the share of trials with an output that is not excluded and that no scorer failed to score."""
BROKEN: Final = "broken"
"""Name of the number of trials that passed in the baseline and now fail."""


@attrs.frozen
class ScoreRule:
    max_drop: float | None = None
    """Tolerated drop against the baseline."""
    at_least: float | None = None
    """Minimum of its mean."""


@attrs.frozen
class Limit:
    """Upper bounds of an amount."""

    at_most: float | None = None
    """Its maximum, in its own unit."""
    at_most_ratio: float | None = None
    """Its maximum relative to the baseline; cost and tokens are compared per trial."""


@attrs.frozen
class GateRules:
    scores: Mapping[str, ScoreRule] | None = None
    """Scorer → its rule; None: every score of both runs may drop by `MAX_DROP`."""
    limits: Mapping[str, Limit] = attrs.field(factory=dict[str, Limit])
    """`cost`, `tokens` or `p95` → its limit."""
    no_broken: bool = False
    allow_mixed_models: bool = False
    """Whether a variant may have been served by several models; otherwise there is too little evidence."""


@attrs.frozen(kw_only=True)
class Check:
    """One rule, and whether the run passes it."""

    name: str
    """The score, `completed`, `broken`, `cost`, `tokens` or `p95`."""
    rule: Literal["max_drop", "at_least", "at_most", "at_most_ratio"]
    bound: float
    verdict: Verdict
    kind: Literal["pass", "number"] = "number"
    baseline: float | None
    value: float | None
    n: int | None = None
    """Cases compared."""
    lower: int | None = None
    higher: int | None = None
    """Cases whose value is lower than in the baseline (broken, for passes), and higher (fixed)."""
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    """Run minus baseline, with its 95 % confidence interval."""
    p: float | None = None
    """One-sided p-value that it is worse, Holm-corrected over the scores of the gate."""
    more_cases: int | None = None
    """With too little evidence: about how many more cases would decide, if they differ as those compared do."""


@attrs.frozen
class GateReport:
    verdict: Verdict
    checks: tuple[Check, ...]
    comparison: Comparison
    has_mixed_models: bool
    """Whether a variant of one of the runs was served by several models."""
    allows_mixed_models: bool


UnchangedValues = Mapping[str, Iterable[Sequence[float]]]
"""Score → for each of some cases, its values in trials of the same definition."""


class NotComparable(Exception):
    """The two runs cannot be compared, for the reason in the message."""


def gate(baseline: Side, run: Side, rules: GateRules) -> GateReport:
    """Check a run against a baseline.

    Raises:
        NotComparable: A run is not finished, lacks scores or prices or has results of several versions, a scorer differs or is
            missing, or a rule has no values.
        NothingInCommon: No trial is in both runs with the same content.
    """
    for name, side in (("the baseline", baseline), ("the run", run)):
        _check_uniform(name, side)

    comparison = compare(baseline, run)
    if rules.scores is None:
        for name in comparison.scorers_only_a:
            if baseline.totals.scores[name].kind != "label":
                problem = f"the run has no scorer {name!r}, which the baseline has"
                raise NotComparable(f"{problem}; re-score the run, or name the scores to check in a rules file")
    if not comparison.completion.mean_a and not comparison.completion.mean_b:
        raise NotComparable("neither of the runs has an output")

    checks = [*_score_checks(comparison, run, rules), *_limit_checks(baseline, run, rules)]
    if rules.no_broken:
        checks.append(_check_bound(BROKEN, "at_most", 0.0, None, float(len(comparison.broken))))

    has_mixed_models = bool(comparison.answers_a.mixed_models or comparison.answers_b.mixed_models)
    is_doubtful = has_mixed_models and not rules.allow_mixed_models
    verdicts: list[Verdict] = [check.verdict for check in checks] + ["too_little_evidence"] * is_doubtful
    return GateReport(worst_verdict(verdicts), tuple(checks), comparison, has_mixed_models, rules.allow_mixed_models)


def worst_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    order: tuple[Verdict, ...] = ("passed", "too_little_evidence", "regressed")
    return order[max(map(order.index, verdicts), default=0)]


def _check_uniform(name: str, side: Side) -> None:
    state = side.state
    if state.outcome != "finished":
        raise NotComparable(f"{name} is not finished")
    if state.sessions.task_versions.older_outputs:
        raise NotComparable(
            f"{name} has {state.sessions.task_versions.older_outputs:,} outputs of an older version of the task"
        )

    for scorer, tally in side.totals.scores.items():
        if tally.versions > 1:
            raise NotComparable(
                f"{name} has scores of {tally.versions} versions of {scorer!r}; `evaljournal rescore` replaces them"
            )
    for scorer, count in unscored_counts(state, side.variant).items():
        raise NotComparable(f"{name} has {count:,} outputs without a score of {scorer!r}; `evaljournal rescore` adds them")


def _score_checks(comparison: Comparison, run: Side, rules: GateRules) -> Iterator[Check]:
    scores = {name: difference for name, difference in comparison.scores.items() if difference.kind != "label"}
    score_rules = dict.fromkeys(scores, ScoreRule(MAX_DROP)) if rules.scores is None else dict(rules.scores)
    tested = {name: scores[name] for name, rule in score_rules.items() if rule.max_drop is not None and name in scores}
    p_values = {name: difference.p_worse for name, difference in tested.items() if difference.p_worse is not None}
    adjusted = dict(zip(p_values, holm([*p_values.values()]), strict=True))

    max_drop = score_rules.setdefault(COMPLETED, ScoreRule(MAX_DROP)).max_drop
    completed = None
    if max_drop is not None and comparison.completion.n:
        completed = check_drop(COMPLETED, comparison.completion, max_drop)

    for name, rule in score_rules.items():
        difference = comparison.completion if name == COMPLETED else scores.get(name)
        if difference is not None and not difference.n and completed is not None and completed.verdict != "passed":
            continue  # The errors of the run decide.
        if difference is None or not difference.n:
            raise NotComparable(f"the runs have no numbers of {name!r} in common")
        if difference.scorer_changed:
            raise NotComparable(f"the runs used different versions of the scorer {name!r}; re-score one of them")
        if name == COMPLETED and completed is not None:
            yield completed
        elif rule.max_drop is not None:
            yield check_drop(name, difference, rule.max_drop, adjusted[name], len(adjusted))
        if rule.at_least is not None:
            mean = difference.mean_b if name == COMPLETED else score_of(run.totals.scores[name]).mean
            yield _check_bound(name, "at_least", rule.at_least, difference.mean_a, mean)


def check_drop(name: str, difference: PairedDifference, max_drop: float, p: float | None = None, comparisons: int = 1) -> Check:
    """Check a score, or the share of trials with all scores, against the tolerated drop.

    `p` is its one-sided p-value, corrected for so many `comparisons`; by default that of the difference alone.
    """
    n, drop, is_share = difference.n, -(difference.difference or 0.0), difference.kind == "pass"
    p = difference.p_worse if p is None else p
    assert p is not None  # There are cases with a value in both runs.
    alpha = _ALPHA / comparisons
    rounding = ROUNDING * max(1.0, abs(difference.mean_a or 0.0))

    verdict: Verdict = "passed"
    more: int | None = None
    if drop > max_drop and not math.isclose(drop, max_drop, abs_tol=rounding):  # 1 - 294/300 is a little more than 0.02.
        if p < _ALPHA:
            verdict = "regressed"
        elif p < _MAX_DOUBT or n < min_cases(alpha):
            verdict = "too_little_evidence"
            broken, fixed = difference.lower, difference.higher
            more = more_cases(n, alpha, p=difference.p_worse or p, broken=broken, fixed=fixed, is_share=is_share)

    return Check(
        name=name,
        rule="max_drop",
        bound=max_drop,
        verdict=verdict,
        kind="pass" if is_share else "number",
        baseline=difference.mean_a,
        value=difference.mean_b,
        n=n,
        lower=difference.lower,
        higher=difference.higher,
        difference=difference.difference,
        low=difference.low,
        high=difference.high,
        p=p,
        more_cases=more,
    )


def minimum_detectable_drops(
    baseline: Side, run: Side, checks: Iterable[Check], unchanged: UnchangedValues
) -> dict[str, float | None]:
    """Return score → the minimum drop that is found with 90 % probability, given the noise of unchanged trials.

    None: there are too few cases to find any. Scores whose noise is unknown are omitted.
    """
    scores = [check for check in checks if check.rule == "max_drop" and check.name != COMPLETED]
    drops: dict[str, float | None] = {}
    for check in scores:
        variance = trial_variance(unchanged.get(check.name, ()))
        if variance is not None and check.n:
            noise = variance / baseline.trials_per_case + variance / run.trials_per_case
            drop = detectable_drop(check.n, noise, _ALPHA / len(scores), is_share=check.kind == "pass")
            drops[check.name] = None if drop is None else max(drop, check.bound)
    return drops


def repeats(side: Side) -> UnchangedValues:
    """Return the values of each score by case and variant: repeats of a case are unchanged trials."""
    values: dict[str, dict[tuple[str, str], list[float]]] = {scorer: {} for scorer in side.totals.scores}
    for (case, variant, _), trial in side.trials.items():
        for scorer, by_case in values.items():
            if (value := number(trial, scorer)) is not None:
                by_case.setdefault((case, variant), []).append(value)
    return {scorer: [*by_case.values()] for scorer, by_case in values.items()}


def _limit_checks(baseline: Side, run: Side, rules: GateRules) -> Iterator[Check]:
    for name, limit in rules.limits.items():
        baseline_amount, run_amount = _amount(name, baseline), _amount(name, run)
        if limit.at_most is not None:
            yield _check_bound(name, "at_most", limit.at_most, baseline_amount, run_amount)
        if limit.at_most_ratio is not None:
            trials = (baseline.totals.done, run.totals.done) if name != "p95" else (1, 1)
            ratio = None
            if baseline_amount and run_amount is not None:
                ratio = (run_amount / trials[1]) / (baseline_amount / trials[0])
            yield _check_bound(name, "at_most_ratio", limit.at_most_ratio, None, ratio)


def _check_bound(
    name: str,
    rule: Literal["at_least", "at_most", "at_most_ratio"],
    bound: float,
    baseline: float | None,
    value: float | None,
) -> Check:
    if value is None:
        raise NotComparable(f"there is no {name!r} to compare with {rule} = {bound:g}")
    is_passed = value >= bound if rule == "at_least" else value <= bound
    is_passed = is_passed or math.isclose(value, bound)  # Ten times 0.1 is not exactly 1.
    return Check(
        name=name, rule=rule, bound=bound, verdict="passed" if is_passed else "regressed", baseline=baseline, value=value
    )


def _amount(name: str, side: Side) -> float | None:
    if name == "p95":
        return side.latency.p95
    if name == "cost" and (unpriced_calls := total(side.totals.usage, "unpriced_calls")):
        raise NotComparable(f"the cost is incomplete: {unpriced_calls:,.0f} calls have no price; pass --prices when you run")
    return total(side.totals.usage, name)
