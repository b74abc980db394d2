"""Admission of attempts: estimates and reserves for the budget rule in `replay.budget`."""

from collections.abc import Iterable, Mapping

from replay.budget import Amounts, Block, Budget
from runner.data.case import Case
from runner.data.dataset import Dataset
from runner.definition.settings import Settings
from runner.engine.trial_work import TrialWork
from runner.scorers.scorer import Scorer
from runner.tasks import Billed


def check_prices(cases: Dataset, tasks: Iterable[object], scorers: Mapping[str, Scorer], settings: Settings) -> Dataset:
    """Return the cases with a check added: if cost is limited, the models of the tasks and the judges must have a price."""
    is_run_limited, is_trial_limited = "cost" in (settings.budget or ()), "cost" in (settings.budget_per_trial or ())
    functions = [
        *(tasks if is_run_limited or is_trial_limited else ()),
        *(scorer.function for scorer in scorers.values() if is_run_limited),
    ]
    for function in functions:
        if isinstance(function, Billed):
            cases = cases.with_check(function.check_price)
    return cases


class Admission:
    """Admits attempts as long as the budget of a run allows them."""

    def __init__(self, budget: Budget, tasks: Mapping[str, object], scorers: Mapping[str, Scorer]) -> None:
        """Use the tasks of the variants and the scorers for estimates."""
        self._budget = budget
        self._tasks = tasks
        self._scorers: list[object] = [scorer.function for scorer in scorers.values() if not scorer.is_local]

    def admit(self, work: TrialWork) -> Block | None:
        """Set the reserve of the next attempt at a trial; return why it may not start, or None if it may."""
        budget, variant = self._budget, work.state.variant
        reserve = budget.reserve(variant, {})
        if len(reserve) < len(budget.limits):
            reserve = budget.reserve(variant, self._estimate(work.case, variant))
        work.reserved = reserve
        return budget.block(variant, reserve)

    def admit_scoring(self) -> Block | None:
        """Return why outputs of earlier sessions may not be scored, or None if they may; scorer calls may cost something."""
        return self._budget.excess() if self._scorers else None

    def _estimate(self, case: Case, variant: str) -> Amounts:
        """Return the most that an attempt and its scorers are expected to use; unknown units are missing."""
        task = self._tasks[variant]
        usage = dict(task.estimate(case, None)) if isinstance(task, Billed) else {}
        output_tokens = usage.get("output_tokens") or None
        for scorer in self._scorers:
            scorer_usage: Mapping[str, float] = scorer.estimate(case, output_tokens) if isinstance(scorer, Billed) else {}
            usage = {unit: usage[unit] + scorer_usage[unit] for unit in usage if unit in scorer_usage}
        return usage
