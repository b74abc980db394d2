"""`evaljournal what-if --from-step K`: runs whose attempts are served their recorded steps up to one, and are live from there.

Each of them is an ordinary run with recorded replies: it has a directory, a budget, and is resumed by `evaljournal resume`.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaljournal.replay import RunState
from evaljournal.replay.render.comparison import lines
from evaljournal.replay.results.comparison import NothingInCommon, compare
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.state.usage import total as total_usage
from evaljournal.replay.text import money, plural, printable
from evaljournal.runner.calls.prices import DEFAULT_PRICES, read_prices
from evaljournal.runner.cli.arguments import RunReference
from evaljournal.runner.cli.options.locate import locate_evaluation
from evaljournal.runner.cli.session import CommandSession
from evaljournal.runner.cli.suites.views import suite_exit_code
from evaljournal.runner.cli.terminal.display import exit_code, open_intact_run, open_side, print_json
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.cli.terminal.user_code import user_code
from evaljournal.runner.definition.limits import parse_budget
from evaljournal.runner.errors import UsageError, command
from evaljournal.runner.runs.changes import recorded_overrides
from evaljournal.runner.sessions.session import Outcome
from evaljournal.runner.sessions.what_if.repricing import LiveEstimate, Repricing
from evaljournal.runner.steps.replies.rewrite import Rewrite
from evaljournal.runner.steps.replies.source import open_run as open_source

_MAX_LISTED = 5
"""Trials of a kind that are listed for each step."""


def run_from_steps(
    path: Path,
    from_steps: Sequence[int],
    *,
    model: str | None,
    system: Path | None,
    repeats: int | None,
    budget: tuple[str, ...],
    prices: Path | None,
    reference: str | None,
    trust: bool,
    as_json: bool,
) -> None:
    repricing = Repricing(read_prices(prices or DEFAULT_PRICES), {} if model is None else {"": model})
    rewrites = [Rewrite(number, model, None if system is None else _read(system)) for number in dict.fromkeys(from_steps)]

    view = open_intact_run(path)
    estimates = [LiveEstimate(rewrite) for rewrite in rewrites]
    for entry, _, replies in open_source(str(path)).trials():
        for expected in estimates if entry.has_output else ():
            expected.add([step for step in replies.all_steps if not step.error], repricing)
    for expected in estimates:
        expected.check(path)

    state = RunState()
    with user_code():
        evaluation, location = locate_evaluation(path, reference, verb="what-if", trust=trust, state=state)

    overrides: dict[str, Any] = recorded_overrides(state.settings)
    recorded_repeats = int(state.settings.get("repeats") or 1)
    total_repeats = repeats or recorded_repeats
    settings = {**overrides, "replies": [str(path)], "repeats": total_repeats, "offline": False, "on_miss": None}
    settings |= {"budget": parse_budget("budget", list(budget))} if budget else {}

    for expected in estimates:
        echo(_estimate_text(expected, total_repeats / recorded_repeats, len(view.state.trials), model), err=True)

    results: list[dict[str, Any]] = []
    codes: list[int] = []
    for expected in estimates:
        rewrite = expected.rewrite
        live = {"live_from": rewrite.from_step, "live_model": rewrite.model, "live_system": rewrite.system}
        with user_code():
            # Options of output that this command does not have are off.
            session_options = defaultdict[str, Any](lambda: None, trust=trust)
            outcome = CommandSession(evaluation, location, {**settings, **live}, session_options).run_numbered()
        if outcome.stop_reason:
            echo(f"step {rewrite.from_step}: {outcome.stop_reason}; to continue: {command('resume', outcome.path)}", err=True)
        results.append(_compared(path, expected, outcome, as_json=as_json))
        codes.append(exit_code(outcome.state, outcome.path, stopped=bool(outcome.stop_reason)))
        if outcome.stop_reason == "interrupted":
            break

    if as_json:
        print_json({"path": str(path), "steps": results})
    sys.exit(suite_exit_code(codes))


def _read(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"cannot read the system prompt: {exc}", path=file) from exc
    if not text.strip():
        raise UsageError("the system prompt is empty", path=file)
    return text


def _estimate_text(estimate: LiveEstimate, factor: float, trials: int, model: str | None) -> str:
    cost, unpriced = total_usage(estimate.usage, "cost"), estimate.usage["unpriced_calls"]
    money_text = "cost unknown" if cost is None else f"about {money(cost * factor)}"
    if unpriced:
        money_text += f" without {plural(round(unpriced), 'call')} of a model without a price"
    tokens = f" for the recorded tokens at the prices of {printable(model, 80)}" if model and cost is not None else ""
    return (
        f"from step {estimate.rewrite.from_step}: {estimate.trials:,} of {plural(trials, 'trial')} go live, "
        f"about {plural(round(estimate.calls * factor), 'model call')}, {money_text}{tokens}"
    )


def _compared(path: Path, estimate: LiveEstimate, outcome: Outcome, *, as_json: bool) -> dict[str, Any]:
    """Print how a run differs from the recorded one, or return it as JSON."""
    (recorded, side_a), (_, side_b) = open_side(RunReference(path)), open_side(RunReference(outcome.path))
    try:
        comparison = compare(side_a, side_b)
    except NothingInCommon:
        comparison = None

    costs = [total_usage(state.usage, "cost") for state in (recorded.state, outcome.state)]
    if not as_json:
        paid = "" if costs[1] is None else f", paid {money(costs[1])}"
        echo(f"from step {estimate.rewrite.from_step} (B {outcome.path}{paid}), compared with {path} (A):")
        for line in [] if comparison is None else lines(comparison, limit=_MAX_LISTED):
            echo(f"  {line}")
        return {}

    return {
        "from_step": estimate.rewrite.from_step,
        "path": str(outcome.path),
        "stop_reason": outcome.stop_reason,
        "trials": estimate.trials,
        "estimated_calls": estimate.calls,
        "estimated_cost": total_usage(estimate.usage, "cost"),
        "paid": costs[1],
        "comparison": None if comparison is None else view_json(comparison),
    }
