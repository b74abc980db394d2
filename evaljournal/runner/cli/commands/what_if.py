"""The command `evaljournal what-if`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from evaljournal.journal import Record
from evaljournal.replay import LoadedRun
from evaljournal.replay.state.usage import total as total_usage
from evaljournal.replay.text import duration, money, or_dash, plural, printable
from evaljournal.runner.calls.prices import DEFAULT_PRICES, read_prices
from evaljournal.runner.cli.arguments import run_argument
from evaljournal.runner.cli.terminal.display import open_intact_run, print_json, print_table
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.definition.limits import describe_limits, parse_limits
from evaljournal.runner.errors import UsageError
from evaljournal.runner.sessions.what_if.recompute import recompute
from evaljournal.runner.sessions.what_if.recorded import RecordedCalls
from evaljournal.runner.sessions.what_if.repricing import Repricing, parse_models
from evaljournal.runner.steps.replies.source import HOW_TO_RECORD

_SAME_ANSWERS: Final = "assumed: the model gives the same answers, in the same seconds, whatever the load"


@click.command("what-if")
@run_argument
@click.option("--prices", type=click.Path(path_type=Path), metavar="FILE", help="TOML file with other prices.")
@click.option(
    "--model-price",
    "models",
    multiple=True,
    metavar="MODEL",
    help="Prices of this model for the recorded tokens, or OLD=NEW for the calls of one model; repeatable.",
)
@click.option(
    "--cache-hit", type=click.FloatRange(0, 1), metavar="SHARE", help="Share of the input tokens that a cache has: 0 to 1."
)
@click.option("--batch", is_flag=True, help="Send the calls of chat models and judges in batches of the provider.")
@click.option("--rpm", multiple=True, metavar="N", help="Maximum requests per minute to each model, or to one: MODEL=500.")
@click.option("--tpm", multiple=True, metavar="N", help="Maximum tokens per minute, such as 200k, like --rpm.")
@click.option("--slots", type=click.IntRange(1), metavar="N", help="Maximum concurrent attempts per rate-limit key.")
@click.option(
    "--from-step",
    "from_steps",
    multiple=True,
    type=click.IntRange(1),
    metavar="K",
    help="Run again: each attempt is served its recorded steps before K, and makes its calls from there; repeatable.",
)
@click.option("--model", metavar="MODEL", help="With --from-step: send the model calls from there to this model.")
@click.option("--system", type=click.Path(path_type=Path), metavar="FILE", help="With --from-step: their system prompt.")
@click.option("--repeats", type=click.IntRange(1), metavar="N", help="With --from-step: repeats of each case.")
@click.option("--budget", multiple=True, metavar="UNIT=N", help="With --from-step: as in `run`; repeatable.")
@click.option("--task", "reference", metavar="REFERENCE", help="With --from-step: location of the evaluation, if it was moved.")
@click.option("--trust", is_flag=True, help="With --from-step: execute what a run of another user or machine names.")
@click.option("--json", "as_json", is_flag=True, help="Print an object as JSON.")
def what_if(path: Path, *, as_json: bool, **options: Any) -> None:
    """Compute cost and wall time of a run's calls under other prices and limits; nothing is called, except with --from-step.

    The cost follows from the recorded tokens. The wall time follows from the recorded seconds of each call, on a virtual clock,
    with the scheduler, limits and retries of a real run. What it assumes is printed.

    With --from-step K, the evaluation of the run is executed: each attempt gets its recorded steps before K, and calls are made
    from there, with another model or system prompt. It is a run of its own, which `resume` continues, and is compared with RUN.
    An estimate of its cost is printed first. A run that you did not start on this machine needs --trust.

    \b
    evaljournal what-if --model-price gpt-5.4-mini
    evaljournal what-if runs/capitals/0001 --cache-hit 0.8 --rpm 500 --tpm 200k
    evaljournal what-if runs/capitals/0001 --slots 50 --json
    evaljournal what-if runs/agent/0001 --from-step 2 --from-step 4 --model gpt-5.4-mini --budget cost=5
    """
    live = {name: options.pop(name) for name in ("model", "system", "repeats", "budget", "reference", "trust")}
    from_steps = options.pop("from_steps")
    if from_steps:
        if options["cache_hit"] is not None or any(value for name, value in options.items() if name != "prices"):
            raise UsageError("--from-step makes calls; pass options that only compute in another command")
        from evaljournal.runner.cli.commands.counterfactual import run_from_steps  # noqa: PLC0415  # it imports what a run needs

        run_from_steps(path, from_steps, prices=options["prices"], as_json=as_json, **live)
        return

    if unused := [name for name, value in live.items() if value]:
        flag = {"reference": "task"}.get(unused[0], unused[0])
        raise UsageError(f"--{flag} has no effect without --from-step")

    result = _computed(path, **options)
    if as_json:
        print_json(result)
        return
    print_table(list(_rows(result)))
    for line in result["assumptions"]:
        echo(line)


def _computed(
    path: Path,
    *,
    prices: Path | None,
    models: tuple[str, ...],
    cache_hit: float | None,
    batch: bool,
    slots: int | None,
    **limits: tuple[str, ...],
) -> dict[str, Any]:
    """Read a run once, and return what happened and what would have happened, as JSON."""
    changes_prices = prices is not None or bool(models) or cache_hit is not None or batch
    changes_times = slots is not None or any(limits.values())
    if not (changes_prices or changes_times):
        raise UsageError("nothing to change; pass --prices, --model-price, --cache-hit, --batch, --rpm, --tpm or --slots")
    if batch and changes_times:
        raise UsageError("--batch: rate limits and slots do not apply to batches; remove --rpm, --tpm and --slots")

    view, repricing = LoadedRun(path), None
    calls = RecordedCalls(view.state)
    if changes_prices:
        repricing = Repricing(read_prices(prices or DEFAULT_PRICES), parse_models(models), cache_hit, batch)

    def apply(run: LoadedRun, record: Record) -> None:
        calls.apply(record)
        run.apply(record)
        if repricing is not None:
            repricing.apply(record)

    open_intact_run(path, apply=apply, run=view)
    if repricing is not None:
        _check_tokens(path, repricing)

    declared, elapsed = None, view.state.elapsed
    own_seconds, seconds = None, None if batch else elapsed
    if changes_times:
        declared = _limits(view, calls, limits)
        own_seconds, seconds = recompute(calls), recompute(calls, limits=declared, slots=slots)

    usages = view.state.usage, view.state.usage if repricing is None else repricing.usage
    old, new = (
        {
            "cost": total_usage(usage, "cost"),
            "usage": dict(usage),
            "unpriced_calls": total_usage(usage, "unpriced_calls") or 0,
        }
        for usage in usages
    )
    assumptions = [_SAME_ANSWERS, *(_price_assumptions(repricing) if repricing is not None else ())]
    return {
        "path": str(path),
        "head": view.state.head,
        "recorded": {**old, "seconds": elapsed},
        "recomputed_seconds": own_seconds,
        "what_if": {**new, "seconds": seconds},
        "limits": declared,
        "slots": slots,
        "assumptions": [*assumptions, *(_time_assumptions(calls, declared) if changes_times else ())],
    }


def _check_tokens(path: Path, repricing: Repricing) -> None:
    counts = repricing.counts
    if repricing.batch and counts["priced"] and counts["inner"] == counts["priced"]:
        raise UsageError(f"{path}: calls inside an agent cannot be sent in batches", hint="remove --batch")
    if counts["priced"]:
        return
    problem = "has costs, but no tokens of a known model" if counts["kept"] else "has no recorded tokens"
    raise UsageError(f"{path} {problem}, so other prices have no effect", hint=HOW_TO_RECORD)


def _limits(view: LoadedRun, calls: RecordedCalls, options: Mapping[str, tuple[str, ...]]) -> Mapping[str, Any] | None:
    """Return the limits to declare: those of the run, replaced by the options; None if there are no options."""
    counts, path = calls.counts, view.path
    if not calls.ended_trials:
        raise UsageError(f"{path} has no attempt that ended, so there is nothing to compute")
    if view.state.usage_parts.replayed:
        raise UsageError(f"{path} was answered from recorded replies, which took no time; pass the run that made the calls")
    if counts["batched"]:
        raise UsageError(f"{path} was sent in batches, whose calls have no recorded seconds; the wall time is not computed")

    values = {name: list(amounts) for name, amounts in options.items() if amounts}
    if not values:
        return None
    limits = parse_limits(values, view.state.settings.get("limits")) or {}
    if options["tpm"] and total_usage(view.state.usage, "input_tokens") is None:
        raise UsageError(f"{path} has no recorded tokens, so --tpm has no effect", hint=HOW_TO_RECORD)
    return limits


def _rows(result: Mapping[str, Any]) -> Iterator[list[str]]:
    old, new, own_seconds = result["recorded"], result["what_if"], result["recomputed_seconds"]
    has_check = own_seconds is not None
    yield ["", "recorded", *(["recomputed"] if has_check else []), "what if", ""]

    costs = [("cost", old["cost"], new["cost"])]
    if "judge.cost" in old["usage"]:
        parts = ("  task", "cost"), ("  judges", "judge.cost")
        costs += [(label, old["usage"].get(name), new["usage"].get(name)) for label, name in parts if name in old["usage"]]
    for label, old_cost, new_cost in costs:
        old_text = or_dash(old_cost, money)
        yield [label, old_text, *([old_text] if has_check else []), or_dash(new_cost, money), _factor(old_cost, new_cost)]

    check = [duration(own_seconds)] if has_check else []
    new_seconds = "up to 24 h" if new["seconds"] is None else duration(new["seconds"])
    yield ["wall time", duration(old["seconds"]), *check, new_seconds, _factor(own_seconds, new["seconds"])]


def _time_assumptions(calls: RecordedCalls, limits: Mapping[str, Any] | None) -> Iterator[str]:
    yield "assumed: no time of the process itself; no budget, deadline or limit on failures"
    if limits is not None:
        yield f"limits of each model: {printable(describe_limits(limits), 500) or 'none'}"
    if rate_limited := calls.counts["rate_limited"]:
        rejected = plural(rate_limited, "rate-limited attempt")
        if limits is not None:
            yield f"assumed: {rejected} are not rate limited, because the limits are kept"
        else:
            yield f"assumed: {rejected} are so again; --rpm and --tpm declare the limits of the provider instead"
    if interrupted := calls.state.trials.attempts.interrupted:
        yield f"assumed: no interruption; {plural(interrupted, 'interrupted attempt')} left out"
    if calls.counts["advertised"]:
        yield "assumed: no limits in the headers of replies, which the run had; `recomputed` shows what that changes"


def _price_assumptions(repricing: Repricing) -> Iterator[str]:
    counts = repricing.counts
    if repricing.cache_hit is not None:
        yield f"assumed: {repricing.cache_hit:.0%} of the input tokens of each call are read from a cache"
    if repricing.batch:
        inner = plural(counts["inner"], "call")
        yield "assumed: all lines of the batches succeed" + (f"; {inner} inside agents stay live" if counts["inner"] else "")
    if repricing.uncached_models:
        yield f"no price of cached tokens, so they cost as much as others: {_names(repricing.uncached_models)}"
    if repricing.unpriced_models:
        yield f"no price, not in the cost: {_names(repricing.unpriced_models)}; add it to a table and pass it with --prices"
    if counts["kept"]:
        yield f"{plural(counts['kept'], 'call')} without tokens or model: the recorded cost is kept"


def _names(models: Mapping[str, None]) -> str:
    return ", ".join(printable(model, 80) for model in models)


def _factor(old: float | None, new: float | None) -> str:
    return "" if not old or new is None or new == old else f"{new / old - 1:+.0%}"
