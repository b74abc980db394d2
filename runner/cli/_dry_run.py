"""`run --dry-run`: what a run would do, and its cost, estimated from earlier runs of the same evaluation."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

from replay.budget_text import quantity
from replay.shards import Shard
from replay.summary_text import billed_usage
from replay.text import duration, money, number, plural, printable
from replay.usage import add
from runner.cli._display import open_run, print_json
from runner.cli._output import echo
from runner.data.dataset import Trials
from runner.definition.settings import Settings
from runner.definition.variants import Variant
from runner.engine.plan import SelectedTrials
from runner.engine.rate_limits import TaskKeys, default_slots
from runner.run_paths import RUNS, runs_under
from runner.tasks import Billed
from runner.tasks.prices import DEFAULT_PRICES, price_of, read_prices

_MAX_SHOWN_VARIANTS: Final = 8
_MAX_RUNS: Final = 5
"""Number of earlier runs searched for recorded usage."""


def print_dry_run(
    selection: SelectedTrials, reference: str, path: Path, settings: Settings, shard: Shard | None, *, as_json: bool
) -> None:
    """Print what would be run."""
    cases, shards = selection.trials.cases, shard.count if shard else 1
    evaluation, variants = selection.evaluation, selection.evaluation.variants
    trials_per_case = settings.repeats * max(1, len(variants))
    slots = settings.slots or min(default_slots(task, shards) for task in evaluation.tasks.values())
    trials = None if cases is None else cases * trials_per_case
    max_trials = trials if cases is not None or settings.limit is None else settings.limit * trials_per_case
    retry = settings.retry
    calls_per_trial = 1 + retry.errors + min(retry.parse_errors, retry.errors) + retry.timeouts
    estimate = _estimate_usage(evaluation.name)
    if estimate is not None and variants:
        estimate = estimate.of_variants(variants.values())
    usage_by_variant = {
        name: _scale(estimate.by_variant[name], trials / len(variants)) if estimate and trials is not None else None
        for name in variants
    }
    max_costs = _max_costs(evaluation.tasks, selection.trials)
    max_cost = None if None in max_costs.values() else sum(filter(None, max_costs.values()))
    if as_json:
        print_json(
            {
                "evaluation": evaluation.name,
                "task": reference,
                "path": str(path),
                "shard": str(shard) if shard else None,
                "cases": cases,
                "cases_of_all_shards": selection.trials.all_cases,
                "slots": slots,
                "slots_of_all_shards": slots * shards,
                "trials": trials,
                "max_trials": max_trials,
                "calls": None if max_trials is None else {"min": trials, "max": max_trials * calls_per_trial},
                "variants": usage_by_variant or None,
                "scorers": list(evaluation.scorers),
                "settings": settings.to_json(),
                "usage_per_trial": estimate.per_trial if estimate else None,
                "usage_source": str(estimate.path) if estimate else None,
                "expected_usage": _scale(estimate.per_trial, trials) if estimate and trials else None,
                "max_cost_without_retries": max_cost,
                "expected_usage_max": _scale(estimate.per_call, trials * calls_per_trial) if estimate and trials else None,
            }
        )
        return
    echo(f"{evaluation.name} ({reference}) would run in {path}; nothing was written")
    if shard:
        count = "unknown number of cases" if selection.trials.all_cases is None else plural(selection.trials.all_cases, "case")
        echo(f"  shard {shard}; all shards: {count}, at most {plural(slots * shards, 'slot')}")
    echo(f"  {_trials_text(cases, settings, len(variants))}")
    for line in _variant_lines(usage_by_variant, max_costs):
        echo(f"    {line}")
    calls = plural(calls_per_trial * (1 if max_trials is None else max_trials), "call")
    calls += " for each trial" if max_trials is None else ""
    min_calls = "1" if trials is None else f"{trials:,}"
    causes = "rate limits and outages" if settings.workers is None else "rate limits, outages and ends of workers"
    echo(f"  at least {min_calls}, at most {calls}, plus retries after {causes}")
    echo(
        f"  retries: {retry.errors} after errors, {retry.timeouts} after timeouts, {duration(retry.rate_limits)} on rate limits"
    )
    limit = "none" if settings.timeout is None else duration(settings.timeout)
    echo(f"  at most {plural(slots, 'slot')}{_slot_scope(selection.keys)} ({settings.policy}), timeout {limit}")
    echo(f"  scorers: {', '.join(evaluation.scorers) or 'none'}")
    if settings.fail_under:
        echo(f"  gates: {', '.join(settings.fail_under)}; exit code 1 if one does not pass")
    if conditions := list(_stop_conditions(settings)):
        echo(f"  stops {', or '.join(conditions)}; `evaljournal resume` continues")
    if estimate is None and max_cost is not None:
        echo(f"  cost: at most {money(max_cost)} without retries, by the length of the prompts and --max-tokens")
    else:
        echo(f"  {_usage_text(evaluation.name, estimate, trials, calls_per_trial)}")


def _slot_scope(keys: TaskKeys) -> str:
    """Return the scope of the slots, if there are several rate-limit keys."""
    if keys.limit_key is not None:
        return f" for each {printable(keys.limit_key, 40)}"
    return f" for each of {len(keys.tasks):,} rate-limit keys" if keys.has_several else ""


def _max_costs(tasks: Mapping[str, object], trials: Trials) -> dict[str, float | None]:
    """Return the maximum cost of all trials of each variant without retries; None if it is unknown.

    The cost is known for a model with a price and a token limit, if the cases can be read twice.
    """
    billed_tasks = {} if trials.cases is None else {name: task for name, task in tasks.items() if isinstance(task, Billed)}
    costs = dict.fromkeys(billed_tasks, 0.0)
    for trial in trials if billed_tasks else ():
        if not costs:
            break
        if trial.variant in costs:
            cost = billed_tasks[trial.variant].estimate(trial.case, None).get("cost")
            if cost is None:
                del costs[trial.variant]
            else:
                costs[trial.variant] += cost
    return {name: costs.get(name) for name in tasks}


def _variant_lines(
    usage_by_variant: Mapping[str, dict[str, float] | None], max_costs: Mapping[str, float | None]
) -> Iterator[str]:
    """Yield the variants, each with its expected cost, otherwise its maximum cost."""
    for name, usage in list(usage_by_variant.items())[:_MAX_SHOWN_VARIANTS]:
        cost = sum(amount for unit, amount in (usage or {}).items() if unit.endswith("cost"))
        limit = max_costs[name]
        limit_text = f": cost at most {money(limit)} without retries" if limit is not None else ""
        yield f"{name}: expected cost {money(cost)}" if cost else f"{name}{limit_text}"
    if len(usage_by_variant) > _MAX_SHOWN_VARIANTS:
        yield f"… and {len(usage_by_variant) - _MAX_SHOWN_VARIANTS:,} more"


def _trials_text(cases: int | None, settings: Settings, variants: int) -> str:
    repeats = settings.repeats
    if cases is not None:
        count = plural(cases, "case")
    else:
        limit = "unknown number of cases" if settings.limit is None else f"at most {plural(settings.limit, 'case')}"
        count = f"{limit} (they can only be read once)"
    if repeats == 1 and not variants:
        return f"{count}, 1 trial each"
    factors = [count, *([plural(variants, "variant")] if variants else []), *([f"{repeats:,} repeats"] if repeats > 1 else [])]
    return " × ".join(factors) + ("" if cases is None else f" = {plural(cases * repeats * max(1, variants), 'trial')}")


def _stop_conditions(settings: Settings) -> Iterator[str]:
    max_failures = settings.max_failures
    if settings.fail_fast:
        yield "at the first failed trial"
    elif isinstance(max_failures, int):
        yield f"when more than {max_failures:,} of the trials have failed"
    elif max_failures is not None:
        yield f"when more than {100 * max_failures:g} % of the trials have failed"
    if settings.deadline is not None:
        yield f"after {duration(settings.deadline)}"
    if settings.budget:
        limits = (f"{unit} {quantity(unit, amount)}" for unit, amount in settings.budget.items())
        yield f"before it exceeds its budget ({', '.join(limits)})"


@attrs.frozen
class _UsageEstimate:
    """The expected usage, from an earlier run of the same evaluation."""

    path: Path
    """The earlier run."""
    per_trial: dict[str, float]
    """Average usage of a trial, retries included."""
    per_call: dict[str, float]
    by_variant: Mapping[str, dict[str, float]]
    """Variant → usage per trial."""

    def of_variants(self, variants: Collection[Variant]) -> "_UsageEstimate":
        """Return the usage per trial of these variants, and their mean.

        A variant that the earlier run did not have is expected to use as many tokens as the others, at its own price.
        """
        by_variant = {
            variant.name: self.by_variant.get(variant.name) or _reprice(self.per_trial, variant.task) for variant in variants
        }
        mean: dict[str, float] = {}
        for usage in by_variant.values():
            add(mean, _scale(usage, 1 / len(by_variant)))
        call_shares = {name: amount / self.per_trial[name] for name, amount in self.per_call.items() if self.per_trial[name]}
        per_call = {name: amount * call_shares.get(name, 1) for name, amount in mean.items()}
        return _UsageEstimate(self.path, mean, per_call, by_variant)


def _reprice(usage: dict[str, float], task: object) -> dict[str, float]:
    """Return usage with the cost of its tokens at the price of a task's model; without a price, it has no cost."""
    if not isinstance(model := getattr(task, "model", None), str):
        return usage
    price = price_of(model, read_prices(Path(getattr(task, "prices", DEFAULT_PRICES))))
    tokens = {unit: amount for unit, amount in usage.items() if unit not in {"cost", "unpriced_calls"}}
    if price is None:
        return tokens
    counts = {unit: round(1_000_000 * tokens.get(unit, 0)) for unit in ("input_tokens", "output_tokens", "cached_tokens")}
    return {**tokens, "cost": price.cost(**counts) / 1_000_000}


def _estimate_usage(evaluation: str) -> _UsageEstimate | None:
    """Return an estimate from the latest run of an evaluation that recorded usage."""
    for path in list(reversed(runs_under(RUNS / evaluation)))[:_MAX_RUNS]:
        state = open_run(path).state
        usage = billed_usage(state.usage)
        if usage and state.done and state.attempts:
            by_variant = {
                name: _scale(billed_usage(totals.usage), 1 / totals.done)
                for name, totals in state.variants.items()
                if totals.done and billed_usage(totals.usage)
            }
            return _UsageEstimate(path, _scale(usage, 1 / state.done), _scale(usage, 1 / state.attempts), by_variant)
    return None


def _scale(usage: dict[str, float], factor: float) -> dict[str, float]:
    return {name: factor * value for name, value in usage.items()}


def _usage_text(evaluation: str, estimate: _UsageEstimate | None, trials: int | None, calls_per_trial: int) -> str:
    if estimate is None:
        runs = RUNS / evaluation
        if not runs_under(runs):
            return f"cost: unknown; no earlier run in {printable(str(runs))}"
        return f"cost: unknown; none of the last {_MAX_RUNS} runs recorded usage (record it with note(tokens=…, cost=…))"
    scope, count = ("per trial", 1) if trials is None else ("in total", trials)
    expected, maximum = _scale(estimate.per_trial, count), _scale(estimate.per_call, count * calls_per_trial)
    totals = [f"{printable(name, 24)} {number(expected[name])} ({number(maximum[name])} with all retries)" for name in expected]
    return f"expected {scope}: {', '.join(totals)}, based on {estimate.path}"
