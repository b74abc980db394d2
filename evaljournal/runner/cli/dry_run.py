"""`run --dry-run`: what a run would do, its first request, and its cost, estimated from earlier runs of the same evaluation."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import attrs

from evaljournal.journal.events import Noted
from evaljournal.replay import LoadedRun
from evaljournal.replay.export.model_call import TaskModels
from evaljournal.replay.render.summary import billed_usage
from evaljournal.replay.results.budget_text import quantity
from evaljournal.replay.state.definition import substitution
from evaljournal.replay.state.known_limits import MAX_SLOTS
from evaljournal.replay.state.shards import Shard
from evaljournal.replay.state.totals import Totals
from evaljournal.replay.state.usage import JUDGE_USAGE, add
from evaljournal.replay.text import as_text, duration, money, number, plural, printable
from evaljournal.runner.calls import Billed
from evaljournal.runner.calls.prices import BATCH, BATCH_FACTOR
from evaljournal.runner.calls.turns import turns_of
from evaljournal.runner.cli.terminal.display import open_run, print_json
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.data.dataset import Trials
from evaljournal.runner.data.to_json import to_json
from evaljournal.runner.definition.limits import describe_limits, ignores_headers
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.retries.retry import Retry
from evaljournal.runner.runs.paths import RUNS, runs_under
from evaljournal.runner.secrets.masking import mask_values
from evaljournal.runner.sessions.plan import SelectedTrials
from evaljournal.runner.sessions.rate_limits import TaskKeys, default_slots, has_elastic_slots

_MAX_RUNS: Final = 20
"""Number of earlier runs searched for recorded usage."""
_MAX_SHOWN_PARTS: Final = 8
_MAX_REQUEST: Final = 2_000
"""Characters of the first request that are shown."""


@attrs.frozen
class _UsageEstimate:
    """The average usage of a task or a judge in an earlier run."""

    path: Path
    per_trial: dict[str, float]
    """Usage of a trial, retries included."""
    per_call: dict[str, float]


class _EarlierRuns:
    """The last runs of an evaluation, newest first; each is read when it is needed."""

    def __init__(self, evaluation: str, *, is_batched: bool) -> None:
        """`is_batched`: the costs are those in batches."""
        self._is_batched = is_batched
        self.directory = RUNS / evaluation
        self.paths = list(reversed(runs_under(self.directory)))[:_MAX_RUNS]
        self._runs: dict[Path, LoadedRun] = {}

    def task_usage(self, variant: str, model: str | None) -> _UsageEstimate | None:
        """Return the usage of the last run with this model, by a variant of this name if there is one.

        A task without a known model is matched by the name of its variant, which is empty without variants.
        """
        for run in self._read():
            recorded_tasks = list(_recorded_tasks(run))
            for name, recorded_model, totals in sorted(recorded_tasks, key=lambda recorded_task: recorded_task[0] != variant):
                is_same = recorded_model == model and (model is not None or name == variant)
                usage = {unit: amount for unit, amount in billed_usage(totals.usage).items() if not unit.startswith("judge.")}
                if is_same and usage and totals.done and totals.attempts:
                    usage = self._at_price(usage, run)
                    return _UsageEstimate(run.path, _scale(usage, 1 / totals.done), _scale(usage, 1 / totals.attempts))
        return None

    def judge_usage(self, model: str) -> _UsageEstimate | None:
        """Return the usage of the last run whose judge is this model; units begin with `judge.`."""
        for run in self._read():
            usage: Counter[str] = Counter()
            calls = 0
            for record in run.records():
                event = record.event
                if isinstance(event, Noted) and event.name == JUDGE_USAGE and _field(event.value, "model") == model:
                    call_usage = _field(event.value, "usage")
                    calls += call_usage is not None
                    add(usage, call_usage)
            if amounts := self._at_price(billed_usage(usage), run):
                per_call = {f"judge.{unit}": amount / calls for unit, amount in amounts.items()}
                return _UsageEstimate(run.path, per_call, per_call)
        return None

    def _at_price(self, usage: dict[str, float], run: LoadedRun) -> dict[str, float]:
        """Return usage of an earlier run, with the cost that it would have in a batch, or without one."""
        was_batched = run.state.settings.get("batch") is True
        if was_batched == self._is_batched:
            return usage
        factor = BATCH_FACTOR if self._is_batched else 1 / BATCH_FACTOR
        return {unit: factor * amount if unit == "cost" else amount for unit, amount in usage.items()}

    def _read(self) -> Iterator[LoadedRun]:
        for path in self.paths:
            if path not in self._runs:
                self._runs[path] = open_run(path)
            if not substitution(self._runs[path].state.settings):
                yield self._runs[path]


def _scale(usage: dict[str, float], factor: float) -> dict[str, float]:
    return {name: factor * value for name, value in usage.items()}


def _recorded_tasks(run: LoadedRun) -> Iterator[tuple[str, str | None, Totals]]:
    """Yield the variants of a run, or its task under an empty name, each with its model, if known, and its totals."""
    models = TaskModels(run.state.started and run.state.started.definition)
    for name, totals in run.state.variants.items() if run.state.variants else [("", run.state.totals)]:
        yield name, models.for_variant(name).model or None, totals


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


@attrs.frozen
class _Part:
    """The calls of a variant, of a task without variants, or of a judge."""

    name: str
    """The variant, `task`, or the scorer."""
    model: str | None
    trials: int
    """Its trials; 1 if their number is unknown."""
    calls: int
    """Calls for these trials without retries."""
    max_attempts: int
    """Attempts of each of these calls, if all its retries are needed."""
    estimate: _UsageEstimate | None
    max_cost: float | None = None
    """Maximum cost of the calls; None if unknown."""
    is_judge: bool = False

    @property
    def label(self) -> str:
        return self.name if self.model in {None, self.name} else f"{self.name} ({self.model})"

    @property
    def usage(self) -> dict[str, float] | None:
        return _scale(self.estimate.per_trial, self.trials) if self.estimate else None

    @property
    def max_usage(self) -> dict[str, float] | None:
        """The expected usage, if all retries are needed."""
        return _scale(self.estimate.per_call, self.trials * self.max_attempts) if self.estimate else None


def print_dry_run(
    selection: SelectedTrials, reference: str, path: Path, settings: Settings, shard: Shard | None, *, as_json: bool
) -> None:
    cases, shards = selection.trials.cases, shard.count if shard else 1
    evaluation, variants = selection.evaluation, selection.evaluation.variants
    slots = settings.slots or min(default_slots(task, shards) for task in evaluation.tasks.values())

    trials_per_case = settings.repeats * max(1, len(variants))
    trials = None if cases is None else cases * trials_per_case
    max_trials = trials if cases is not None or settings.limit is None else settings.limit * trials_per_case

    earlier_runs = _EarlierRuns(evaluation.name, is_batched=settings.batch)
    parts = list(_parts(selection, settings, earlier_runs))
    # If the number of cases is unknown, the calls are those of one trial, which has one variant.
    counted_parts = parts if trials is not None else [parts[0], *(part for part in parts if part.is_judge)]
    factor = 1 if trials is not None or max_trials is None else max_trials
    min_calls = sum(part.calls for part in counted_parts)
    max_calls = factor * sum(part.calls * part.max_attempts for part in counted_parts)

    usage, max_usage = _sum(part.usage for part in counted_parts), _sum(part.max_usage for part in counted_parts)
    max_costs = [part.max_cost for part in parts if part.max_cost is not None]
    max_cost = sum(max_costs) if len(max_costs) == len(parts) else None

    first_request = _first_request(selection)
    batches = _batches(selection, counted_parts) if settings.batch and trials is not None else None

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
                "calls": None if max_trials is None else {"min": None if trials is None else min_calls, "max": max_calls},
                "batches": batches and [{"name": name, "lines": lines, "batches": count} for name, lines, count in batches],
                "first_request": first_request,
                "variants": {part.name: part.usage for part in parts if not part.is_judge} if variants else None,
                "judges": {part.name: {"model": part.model, "usage": part.usage} for part in parts if part.is_judge},
                "scorers": list(evaluation.scorers),
                "settings": settings.to_json(),
                "usage_per_trial": _scale(usage, 1 / (trials or 1)) if usage else None,
                "usage_sources": sorted({str(part.estimate.path) for part in parts if part.estimate}),
                "expected_usage": usage if trials else None,
                "max_cost_without_retries": max_cost,
                "expected_usage_max": max_usage if trials else None,
            }
        )
        return

    location = "" if reference.startswith("{") else f" ({reference})"  # JSON is the definition of a run without code.
    echo(f"{evaluation.name}{location} would run in {path}; nothing was written")
    if shard:
        count = "unknown number of cases" if selection.trials.all_cases is None else plural(selection.trials.all_cases, "case")
        echo(f"  shard {shard}; all shards: {count}, at most {plural(slots * shards, 'slot')}")
    echo(f"  {_trials_text(cases, settings, len(variants))}")
    if variants or len(parts) > 1:
        for line in _part_lines(parts):
            echo(f"    {line}")

    calls = f"at least {min_calls:,}{_calls_by_part(counted_parts)}, at most {plural(max_calls, 'call')}"
    calls += " for each trial" if max_trials is None else ""
    causes = "rate limits and outages" if settings.workers is None else "rate limits, outages and ends of workers"
    echo(f"  {calls}, plus retries after {causes}")
    retry = settings.retry
    echo(
        f"  retries: {retry.errors} after errors, {retry.timeouts} after timeouts, {duration(retry.rate_limits)} on rate limits"
    )

    for line in _setting_lines(selection, settings, slots, shards):
        echo(f"  {line}")
    if batches is not None:
        echo(f"  {_batches_text(batches)}")
    if first_request is not None:
        target = f" to {printable(first_request['address'], 500)}" if first_request["address"] else ""
        request = printable(as_text(first_request["request"]), _MAX_REQUEST)
        echo(f"  first request ({printable(first_request['case'])}){target}: {request}")

    if usage is not None and max_usage is not None:
        echo(f"  expected {'per trial' if trials is None else 'in total'}: {_usage_text(usage, max_usage, parts)}")
    elif max_cost is not None:
        echo(f"  cost: at most {money(max_cost)} without retries, by the length of the prompts and --max-tokens")
    else:
        echo(f"  cost: unknown; {_unknown_text(parts, earlier_runs)}")


def _parts(selection: SelectedTrials, settings: Settings, earlier_runs: _EarlierRuns) -> Iterator[_Part]:
    """Yield the variants, or the task; and the judges, each called once for each trial. Calls of other scorers are unknown."""
    evaluation, trials = selection.evaluation, selection.trials
    count = 1 if trials.cases is None else trials.cases * settings.repeats
    models, attempts = TaskModels(to_json(evaluation.definition)), _max_attempts(settings.retry)
    tier = BATCH if settings.batch else ""
    for name, (calls, max_cost) in _calls_and_costs(evaluation.tasks, trials, count, tier).items():
        model = models.for_variant(name).model or None
        yield _Part(name or "task", model, count, calls, attempts, earlier_runs.task_usage(name, model), max_cost)

    judge_count = count if trials.cases is None else count * max(1, len(evaluation.variants))
    for name, scorer in evaluation.scorers.items():
        model = getattr(getattr(scorer.function, "chat", None), "model", None)
        if isinstance(model, str):
            attempts = _max_attempts(scorer.with_defaults(settings.retry, settings.timeout).retry)
            usage = earlier_runs.judge_usage(model)
            yield _Part(name, model, judge_count, judge_count, attempts, usage, is_judge=True)


def _batches(selection: SelectedTrials, parts: Sequence[_Part]) -> list[tuple[str, int, int]]:
    """Return the models and judges whose calls are sent in batches, each with its lines and the least number of batches."""
    from evaljournal.runner.gates.batch_targets import BatchTargets  # noqa: PLC0415  # an HTTP client is slow to import

    lines: Counter[str] = Counter()
    max_lines: dict[str, int] = {}
    targets = {target.scorer or target.model: target.api.max_lines for target in BatchTargets.of(selection.evaluation)}
    for part in parts:
        name = part.name if part.is_judge else part.model or part.name
        lines[name] += part.calls
        max_lines[name] = targets.get(name, max(targets.values()))
    return [(name, count, -(-count // max_lines[name])) for name, count in lines.items()]


def _batches_text(batches: Sequence[tuple[str, int, int]]) -> str:
    texts = [
        f"{plural(lines, 'line')} of {printable(name, 40)} in {plural(count, 'batch', 'batches')}"
        for name, lines, count in batches
    ]
    return f"batches: {', '.join(texts)}; costs are at the batch price; slots, timeout and rate limits do not apply"


def _max_attempts(retry: Retry) -> int:
    return 1 + retry.errors + min(retry.parse_errors, retry.errors) + retry.timeouts


def _calls_and_costs(tasks: Mapping[str, Any], trials: Trials, count: int, tier: str) -> dict[str, tuple[int, float | None]]:
    """Return the calls of each variant without retries, and their maximum cost; None if that is unknown.

    A conversation has one call for each turn. The cost is known for a model with a price and a token limit. Each variant has
    `count` calls and an unknown cost if the cases can be read only once.
    """
    if trials.cases is None or not any(hasattr(task, "turns") or isinstance(task, Billed) for task in tasks.values()):
        return dict.fromkeys(tasks, (count, None))
    calls = dict.fromkeys(tasks, 0)
    costs: dict[str, float | None] = {name: 0.0 if isinstance(task, Billed) else None for name, task in tasks.items()}
    for trial in trials:
        name, task = trial.variant, tasks[trial.variant]
        column = getattr(task, "turns", None)
        calls[name] += 1 if column is None else len(turns_of(trial.case, column))
        if (cost := costs[name]) is not None:
            trial_cost = task.estimate(trial.case, None, *filter(None, [tier])).get("cost")
            costs[name] = None if trial_cost is None else cost + trial_cost
    return {name: (calls[name], costs[name]) for name in tasks}


def _first_request(selection: SelectedTrials) -> dict[str, Any] | None:
    """Return the first request with its case and address, as it is recorded; None if the task renders none."""
    if selection.trials.cases is None:
        return None  # The case would be lost.
    for trial in islice(selection.trials, 1):
        task: Any = selection.evaluation.tasks[trial.variant]
        if (request := getattr(task, "request", None)) is not None:
            return {
                "case": trial.case.name,
                "address": getattr(task, "address", None),
                "request": mask_values(request(trial.case)),
            }
    return None


def _usage_text(usage: Mapping[str, float], max_usage: Mapping[str, float], parts: Iterable[_Part]) -> str:
    totals = [f"{printable(name, 24)} {number(usage[name])} ({number(max_usage[name])} with all retries)" for name in usage]
    sources = sorted({str(part.estimate.path) for part in parts if part.estimate})
    return f"{', '.join(totals)}, based on {', '.join(map(printable, sources))}"


def _calls_by_part(parts: Sequence[_Part]) -> str:
    judges = [f"{part.calls:,} of {printable(part.name, 24)}" for part in parts if part.is_judge]
    task_calls = sum(part.calls for part in parts if not part.is_judge)
    return f" ({', '.join([f'{task_calls:,} of the task', *judges])})" if judges else ""


def _sum(usages: Iterable[dict[str, float] | None]) -> dict[str, float] | None:
    """Return the sum of usages; None if one is unknown."""
    total: dict[str, float] = {}
    for usage in usages:
        if usage is None:
            return None
        add(total, usage)
    return total


def _unknown_text(parts: Sequence[_Part], earlier_runs: _EarlierRuns) -> str:
    directory = printable(str(earlier_runs.directory))
    if not earlier_runs.paths:
        return f"no earlier run in {directory}"
    models = {part.model or part.name: None for part in parts if part.estimate is None}
    if list(models) == ["task"]:
        return f"none of the last {_MAX_RUNS} runs recorded usage (record it with note(tokens=…, cost=…))"
    names = ", ".join(printable(model, 40) for model in islice(models, _MAX_SHOWN_PARTS))
    return f"none of the last {_MAX_RUNS} runs in {directory} recorded usage of {names}"


def _setting_lines(selection: SelectedTrials, settings: Settings, slots: int, shards: int) -> Iterator[str]:
    timeout = "none" if settings.timeout is None else duration(settings.timeout)
    scope = f"{_slot_scope(selection.keys)}{_more_slots(selection, settings)}"
    yield f"at most {plural(slots, 'slot')}{scope} ({settings.policy}), timeout {timeout}"
    if declared := describe_limits(settings.limits):
        division = f", divided by {shards:,} shards" if shards > 1 else ""
        yield f"rate limits: at most {printable(declared, 1_000)}{division}"
    if ignores_headers(settings.limits):
        yield "rate limits in the headers of replies are ignored"

    yield f"scorers: {', '.join(selection.evaluation.scorers) or 'none'}"
    if settings.fail_under:
        yield f"gates: {', '.join(settings.fail_under)}; exit code 1 if one does not pass"
    if conditions := list(_stop_conditions(settings)):
        yield f"stops {', or '.join(conditions)}; `evaljournal resume` continues"


def _more_slots(selection: SelectedTrials, settings: Settings) -> str:
    """Return how many slots may follow from a known limit, if they may."""
    keys, evaluation = selection.keys, selection.evaluation
    is_elastic = (has_elastic_slots(key, keys, evaluation.scorers, settings, evaluation.hooks) for key in keys.tasks)
    if settings.slots is not None or settings.policy != "adaptive" or not any(is_elastic):
        return ""
    return f", {MAX_SLOTS:,} if a known limit can use them"


def _slot_scope(keys: TaskKeys) -> str:
    if keys.limit_key is not None:
        return f" for each {printable(keys.limit_key, 40)}"
    return f" for each of {len(keys.tasks):,} rate-limit keys" if keys.has_several else ""


def _part_lines(parts: Sequence[_Part]) -> Iterator[str]:
    """Yield the variants or the task, and the judges: each with its expected cost or tokens, otherwise its maximum cost."""
    for part in parts[:_MAX_SHOWN_PARTS]:
        usage, text = part.usage, "usage unknown"
        if usage is not None:
            cost = sum(amount for unit, amount in usage.items() if unit.endswith("cost"))
            amounts = ", ".join(f"{printable(unit, 24)} {number(amount)}" for unit, amount in usage.items())
            text = f"expected {f'cost {money(cost)}' if cost else amounts}"
        elif part.max_cost is not None:
            text = f"cost at most {money(part.max_cost)} without retries"
        yield f"{printable(part.label, 80)}: {text}"
    if len(parts) > _MAX_SHOWN_PARTS:
        yield f"… and {len(parts) - _MAX_SHOWN_PARTS:,} more"


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
        yield "at the first error"
    elif isinstance(max_failures, int):
        yield f"after more than {plural(max_failures, 'error')}"
    elif max_failures is not None:
        yield f"when more than {100 * max_failures:g} % of the trials have an error"
    if settings.deadline is not None:
        yield f"after {duration(settings.deadline)}"
    if settings.budget:
        limits = (f"{unit} {quantity(unit, amount)}" for unit, amount in settings.budget.items())
        yield f"before it exceeds its budget ({', '.join(limits)})"
