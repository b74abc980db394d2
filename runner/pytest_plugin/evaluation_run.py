"""The run of one evaluation in a pytest session: which run it is, what is left to do in it, and what it has recorded."""

import copy
import itertools
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from evaljournal.journal import read
from evaljournal.replay import RunState, fold
from evaljournal.replay.export.source import Source
from evaljournal.replay.runs.trial import TrialDetails
from evaljournal.replay.state.trial import DONE_STAGES
from evaljournal.runner.api import run, run_async
from evaljournal.runner.data.case import Trial
from evaljournal.runner.definition.loading import AnyEvaluation
from evaljournal.runner.engine.changes import is_same
from evaljournal.runner.engine.options import LiveRun
from evaljournal.runner.engine.rescore import Rescoring
from evaljournal.runner.engine.session import Outcome
from evaljournal.runner.errors import RunChanged, UsageError
from evaljournal.runner.run_paths import RUNS, newest_run, run_start, runs_newest_first


class EvaluationRun:
    """The run of an evaluation: the first of its tests executes it, and all of them report its results."""

    def __init__(self, evaluation: AnyEvaluation, reference: str) -> None:
        self.evaluation = evaluation
        self._reference = reference
        """Location of the evaluation, with which `evaljournal resume` finds it."""
        self.trials = {trial.id: trial for trial in _trials(evaluation)}
        """All trials by id, also those that are not selected."""
        self.path: Path | None = None
        """Directory of the run; None until it is started."""
        self.state = RunState()
        self.selected: frozenset[str] = frozenset()
        """The trials whose tests are selected."""
        self.collectors: list[str] = []
        """Node ids of its collectors; several test files can import an evaluation."""

    @property
    def open_trials(self) -> list[str]:
        """The trials without an output or an error."""
        return [name for name in self.trials if not self.is_done(name)]

    def is_done(self, trial: str) -> bool:
        """Return whether the run has an output or an error of a trial, for the same case."""
        state = self.state.trials.get(trial)
        return state is not None and state.stage in DONE_STAGES and is_same(state, self.trials[trial])

    def details(self, trial: str) -> TrialDetails:
        """Read everything about one trial."""
        return self._source.trial(trial)

    @cached_property
    def _source(self) -> Source:
        assert self.path is not None
        return Source(self.path)

    def rescore(self, directory: Path) -> None:
        """Score the outputs of a run, or of the newest run of this evaluation below a directory; the task is not called."""
        for path in runs_newest_first(directory):
            start = run_start(path)
            if start is not None and start[0].evaluation == self.evaluation.name:
                self.path = path
                if self.evaluation.scorers:
                    run_async(Rescoring(self.evaluation, path, trials=self._selected_part).rescore)
                self.state = _recorded_state(path)
                return
        raise UsageError(f"{directory} is not a run of {self.evaluation.name!r}, and there is none below it")

    def run(self, announce: Callable[[Path], None], *, retries: bool, **options: Any) -> None:
        """Run the selected trials: in the newest run, if it has some of them left, otherwise in a new one.

        `retries`: in the newest run, finished or not. If the definition has changed, the run is new. In either case, trials
        with an error are retried, so that no test reports an error of an earlier session. Without trials, only a gate is
        selected: the newest run is read.
        """
        if not self.selected:
            self.path = newest_run(self.evaluation.name)
            self.state = _recorded_state(self.path)
            return
        # Settings are those of the evaluation, not those of an earlier `pytest -x` or of a command.
        options |= {"task": self._reference, "trials": self._selected_part, "ignore_recorded": True, "quiet": True}

        async def observe(live_run: LiveRun) -> None:
            self.path = live_run.journal.path  # Also if the run is interrupted.
            announce(self.path)

        options["observer"] = observe
        outcome: Outcome | None = None
        path = self._resumable_run(retries=retries)
        if path is not None:
            has_errors = any(name in self.selected and trial.stage == "failed" for name, trial in self.state.trials.items())
            with suppress(RunChanged):  # Nothing was written.
                outcome = run(self.evaluation, path, resume=True, retry_failed=has_errors, **options)
        if outcome is None:
            outcome = run(self.evaluation, **options)
        self.path, self.state = outcome.path, outcome.state

    @property
    def _selected_part(self) -> Collection[str] | None:
        """The selected trials; None if these are all."""
        return self.selected if len(self.selected) < len(self.trials) else None

    def _resumable_run(self, *, retries: bool) -> Path | None:
        """Return the newest run if it has the same cases and some of the selected trials are left; None otherwise.

        A run whose process was killed is resumed even if nothing is left.
        """
        path = next(iter(runs_newest_first(RUNS / self.evaluation.name)), None)
        if path is None:
            return None
        self.state = state = _recorded_state(path)
        recorded = {name: trial for name, trial in state.trials.items() if trial.stage != "withdrawn"}
        has_same_cases = all(name in self.trials and is_same(trial, self.trials[name]) for name, trial in recorded.items())
        is_shard = state.started is not None and state.started.shard
        is_left = not state.outcome or not all(map(self.is_done, self.selected))
        return path if has_same_cases and not is_shard and (retries or (state.outcome != "finished" and is_left)) else None


def _recorded_state(path: Path) -> RunState:
    """Read the state of a run; raise a `JournalError` if the run is damaged."""
    return fold(read(path, load_blobs=False))


def _trials(evaluation: AnyEvaluation) -> Iterator[Trial]:
    """Read the trials; cases that can be read only once stay readable for the run."""
    settings, cases = evaluation.settings, evaluation.cases
    source = cases.source
    if isinstance(source, Iterator):
        cases = copy.copy(cases)
        cases.source, evaluation.cases.source = itertools.tee(source)
    variants = evaluation.with_variants(settings.only_variants).tasks
    return iter(cases.select(settings, repeats=settings.repeats, variants=variants))
