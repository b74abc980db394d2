"""The usage that `--dry-run` expects: that of earlier runs of the same evaluation, by model."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs

from evaljournal.journal.events import Noted
from evaljournal.replay import LoadedRun
from evaljournal.replay.definition import load_definition
from evaljournal.replay.render.summary import billed_usage
from evaljournal.replay.state.totals import Totals
from evaljournal.replay.state.usage import JUDGE_USAGE, add
from evaljournal.runner.cli.terminal.display import open_run
from evaljournal.runner.run_paths import RUNS, runs_under

MAX_RUNS: Final = 20
"""Number of earlier runs searched for recorded usage."""


@attrs.frozen
class UsageEstimate:
    """The average usage of a task or a judge in an earlier run."""

    path: Path
    """The earlier run."""
    per_trial: dict[str, float]
    """Usage of a trial, retries included."""
    per_call: dict[str, float]


class EarlierRuns:
    """The last runs of an evaluation, newest first; each is read when it is needed."""

    def __init__(self, evaluation: str) -> None:
        self.directory = RUNS / evaluation
        self.paths = list(reversed(runs_under(self.directory)))[:MAX_RUNS]
        self._runs: dict[Path, LoadedRun] = {}

    def task_usage(self, variant: str, model: str | None) -> UsageEstimate | None:
        """Return the usage of the last run with this model, by a variant of this name if there is one.

        A task without a known model is matched by the name of its variant, which is empty without variants.
        """
        for run in self._read():
            recorded_tasks = list(_recorded_tasks(run))
            for name, recorded_model, totals in sorted(recorded_tasks, key=lambda recorded_task: recorded_task[0] != variant):
                is_same = recorded_model == model and (model is not None or name == variant)
                usage = {unit: amount for unit, amount in billed_usage(totals.usage).items() if not unit.startswith("judge.")}
                if is_same and usage and totals.done and totals.attempts:
                    return UsageEstimate(run.path, scale(usage, 1 / totals.done), scale(usage, 1 / totals.attempts))
        return None

    def judge_usage(self, model: str) -> UsageEstimate | None:
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
            if amounts := billed_usage(usage):
                per_call = {f"judge.{unit}": amount / calls for unit, amount in amounts.items()}
                return UsageEstimate(run.path, per_call, per_call)
        return None

    def _read(self) -> Iterator[LoadedRun]:
        for path in self.paths:
            if path not in self._runs:
                self._runs[path] = open_run(path)
            yield self._runs[path]


def scale(usage: dict[str, float], factor: float) -> dict[str, float]:
    """Return usage multiplied by a factor."""
    return {name: factor * value for name, value in usage.items()}


def _recorded_tasks(run: LoadedRun) -> Iterator[tuple[str, str | None, Totals]]:
    """Yield the variants of a run, or its task under an empty name, each with its model, if known, and its totals."""
    definition = load_definition(run.state.started.definition if run.state.started else None)
    if not run.state.variants:
        yield "", _text(_field(_field(definition, "task"), "model")), run.state
    for name, totals in run.state.variants.items():
        variant = _field(_field(definition, "variants"), name)
        model = _field(_field(variant, "task"), "model") or _field(_field(variant, "parameters"), "model")
        yield name, _text(model), totals


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
