"""`run --dry-run`: what a run would do, and its cost, estimated from earlier runs of the same evaluation."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import attrs

from replay.summary_text import billed_usage
from replay.text import duration, number, plural, printable
from runner.cli._display import open_run, print_json
from runner.cli._output import echo
from runner.definition.loading import LoadedEvaluation
from runner.definition.settings import Settings
from runner.engine.rate_limits import default_slots
from runner.run_paths import RUNS, runs_under

_EARLIER_RUNS: Final = 5
"""Number of earlier runs searched for recorded usage."""


def print_dry_run(loaded: LoadedEvaluation, cases: int | None, path: Path, settings: Settings, *, as_json: bool) -> None:
    """Print what would be run; `cases` is None if their number is unknown."""
    trials = None if cases is None else cases * settings.repeats
    settings.failure_limit(trials)  # It raises the error that the run would raise.
    max_trials = trials if cases is not None or settings.limit is None else settings.limit * settings.repeats
    retry = settings.retry
    calls_per_trial = 1 + retry.errors + min(retry.parse_errors, retry.errors) + retry.timeouts
    before = _earlier_usage(loaded.evaluation.name)
    if as_json:
        print_json(
            {
                "evaluation": loaded.evaluation.name,
                "task": loaded.reference,
                "path": str(path),
                "cases": cases,
                "trials": trials,
                "max_trials": max_trials,
                "calls": None if max_trials is None else {"min": trials, "max": max_trials * calls_per_trial},
                "scorers": list(loaded.evaluation.scorers),
                "settings": settings.facts(),
                "usage_per_trial": before.per_trial if before else None,
                "usage_source": str(before.path) if before else None,
                "expected_usage": _scaled(before.per_trial, trials) if before and trials else None,
                "expected_usage_max": _scaled(before.per_call, trials * calls_per_trial) if before and trials else None,
            }
        )
        return
    echo(f"{loaded.evaluation.name} ({loaded.reference}) would run in {path}; nothing was written")
    echo(f"  {_trials_in_words(cases, settings)}")
    calls = plural(calls_per_trial * (1 if max_trials is None else max_trials), "call")
    calls += " for each trial" if max_trials is None else ""
    echo(f"  at least {'1' if trials is None else f'{trials:,}'}, at most {calls}, plus retries after rate limits")
    echo(
        f"  retries: {retry.errors} after errors, {retry.timeouts} after timeouts, {duration(retry.rate_limits)} on rate limits"
    )
    limit = "none" if settings.timeout is None else duration(settings.timeout)
    slots = settings.slots or min(map(default_slots, loaded.evaluation.tasks.values()))
    echo(f"  at most {plural(slots, 'slot')} ({settings.policy}), timeout {limit}")
    echo(f"  scorers: {', '.join(loaded.evaluation.scorers) or 'none'}")
    if settings.fail_under:
        echo(f"  gates: {', '.join(settings.fail_under)}; exit code 1 if one does not pass")
    if stops := list(_stops(settings)):
        echo(f"  stops {', or '.join(stops)}; `evaljournal resume` continues")
    echo(f"  {_usage_in_words(before, trials, calls_per_trial)}")


def _trials_in_words(cases: int | None, settings: Settings) -> str:
    repeats = settings.repeats
    if cases is not None:
        count = plural(cases, "case")
    else:
        limit = "unknown number of cases" if settings.limit is None else f"at most {plural(settings.limit, 'case')}"
        count = f"{limit} (they can only be read once)"
    if repeats == 1:
        return f"{count}, 1 trial each"
    return f"{count} × {repeats:,} repeats" + ("" if cases is None else f" = {plural(cases * repeats, 'trial')}")


def _stops(settings: Settings) -> Iterator[str]:
    max_failures = settings.max_failures
    if settings.fail_fast:
        yield "at the first failed trial"
    elif isinstance(max_failures, int):
        yield f"when more than {max_failures:,} of the trials have failed"
    elif max_failures is not None:
        yield f"when more than {100 * max_failures:g} % of the trials have failed"
    if settings.deadline is not None:
        yield f"after {duration(settings.deadline)}"


@attrs.frozen
class _EarlierUsage:
    """Usage of an earlier run of the same evaluation."""

    path: Path
    per_trial: dict[str, float]
    """On average, retries included."""
    per_call: dict[str, float]


def _earlier_usage(name: str) -> _EarlierUsage | None:
    """Return the usage of the latest run of this evaluation that recorded it."""
    latest: Iterable[Path] = reversed(list(runs_under(RUNS / name))[-_EARLIER_RUNS:])
    for path in latest:
        state = open_run(path).state
        usage = billed_usage(state.usage)
        if usage and state.done and state.attempts:
            return _EarlierUsage(path, _scaled(usage, 1 / state.done), _scaled(usage, 1 / state.attempts))
    return None


def _scaled(usage: dict[str, float], factor: float) -> dict[str, float]:
    return {name: factor * value for name, value in usage.items()}


def _usage_in_words(before: _EarlierUsage | None, trials: int | None, calls_per_trial: int) -> str:
    if before is None:
        return f"cost: unknown; none of the last {_EARLIER_RUNS} runs recorded usage (record it with note(tokens=…, cost=…))"
    scope, count = ("per trial", 1) if trials is None else ("in total", trials)
    expected, maximum = _scaled(before.per_trial, count), _scaled(before.per_call, count * calls_per_trial)
    sums = [f"{printable(name, 24)} {number(expected[name])} ({number(maximum[name])} with all retries)" for name in expected]
    return f"expected {scope}: {', '.join(sums)}, based on {before.path}"
