"""The budget of a run as text: the amounts spent, and why no attempt starts."""

from collections.abc import Iterator, Mapping

from evaljournal.replay.results.summary import budget_of
from evaljournal.replay.state.budget import MAX_UNKNOWN, MAX_UNREPORTED, Block, Budget, BudgetUse
from evaljournal.replay.state.run import RunState
from evaljournal.replay.text import money, number, plural, printable


def quantity(unit: str, amount: float) -> str:
    """Return an amount of a unit: `$5.00`, `2,000,000`."""
    return money(amount) if unit == "cost" else number(amount)


def _share(unit: str, amount: float, limit: float) -> str:
    """Return `cost $1.23 of $5.00`."""
    return f"{unit} {quantity(unit, amount)} of {quantity(unit, limit)}"


def use_lines(use_by_unit: Mapping[str, BudgetUse]) -> Iterator[str]:
    """Yield, for each unit, how much of the budget is spent, and the worst possible overshoot."""
    for unit, use in use_by_unit.items():
        parts = [f"{_share(unit, use.spent, use.limit)} spent"]
        if use.reserved:
            parts.append(f"{quantity(unit, use.reserved)} reserved")
        if use.other_runs:
            parts.append(f"{quantity(unit, use.other_runs)} by other runs of the suite")
        overshoot = quantity(unit, use.overshoot) if use.overshoot else "none"
        yield f"{', '.join(parts)}; worst possible overshoot: {overshoot}"


def budget_lines(state: RunState) -> Iterator[str]:
    """Yield how much of the budget is spent, and how many trials have exceeded the budget per trial."""
    summary = budget_of(state)
    if summary is None:
        return
    yield from (f"budget: {line}" for line in use_lines(summary.run))
    if summary.more_trials is not None and state.outcome != "finished":
        yield f"budget: enough for about {plural(summary.more_trials, 'more trial')}"
    if summary.per_trial:
        limits = ", ".join(f"{unit} {quantity(unit, limit)}" for unit, limit in summary.per_trial.items())
        yield f"budget per trial: {limits}; exceeded by {plural(summary.trials_exceeded, 'trial')}"


def spent_text(state: RunState) -> str:
    """Return `cost $1.23 of $5.00 · about 37 more trials`; empty without a budget."""
    if state.budget is None or not state.budget.limits:
        return ""
    parts = [_share(unit, use.spent, use.limit) for unit, use in state.budget.use().items()]
    trials = state.budget.more_trials(state.totals.done)
    return " · ".join([*parts, *([] if trials is None else [f"about {plural(trials, 'more trial')}"])])


def block_text(state: RunState, block: Block) -> str:
    unit = block.unit
    if block.reason == "unknown":
        return f"at most {MAX_UNKNOWN} attempts in flight until one has reported its {unit}"
    if block.reason == "unreported":
        models = [printable(model, 40) for names in state.usage_parts.unpriced_models.values() for model in names[:1]]
        price = f" (no price for {models[0]}; pass --prices)" if models and unit == "cost" else ""
        trials = f"{MAX_UNREPORTED} trials have reported no {unit}{price}"
        return f"{trials}, so the budget cannot be enforced; record it with note({unit}=…)"
    use = (state.budget or Budget()).use()[unit]
    next_attempt = f"; the next attempt may use {quantity(unit, block.reserve)}" if block.reserve else ""
    other_runs = f", {quantity(unit, use.other_runs)} by other runs of the suite" if use.other_runs else ""
    return f"{_share(unit, use.spent, use.limit)} used{other_runs}{next_attempt}"


def reserved_text(state: RunState) -> str:
    """Return how much of the budget is used or reserved; empty if nothing is reserved."""
    use_by_unit = {} if state.budget is None else state.budget.use()
    text = " · ".join(_share(unit, use.spent + use.reserved, use.limit) for unit, use in use_by_unit.items() if use.reserved)
    return f"{text} used or reserved" if text else ""


def over_budget_text(budget: Budget, trial: str, usage: object) -> str:
    """Return how a trial exceeds the budget per trial; `usage` is that of its attempt in flight, if not recorded yet."""
    amounts = budget.over_trial_limit(trial, usage)
    parts = (_share(unit, amount, budget.trial_limits[unit]) for unit, amount in amounts.items())
    return f"the budget per trial is exceeded: {', '.join(parts)}"
