"""The run of one evaluation in a pytest session: which run it is, what is left to do in it, and what it has recorded."""

import copy
import itertools
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from evaljournal.journal.disk.files import DISK, create
from evaljournal.journal.ownership import start_events
from evaljournal.replay import RunState
from evaljournal.replay.export.source import Source
from evaljournal.replay.state.definition import substitution
from evaljournal.replay.state.trial import DONE_STAGES
from evaljournal.runner.data.case import Trial
from evaljournal.runner.definition.loading import AnyEvaluation
from evaljournal.runner.errors import RunChanged, UsageError
from evaljournal.runner.runs.changes import is_same
from evaljournal.runner.runs.paths import RUNS, run_start, runs_newest_first
from evaljournal.runner.sessions.api import run, run_async
from evaljournal.runner.sessions.options import LiveRun
from evaljournal.runner.sessions.rescore import Rescoring
from evaljournal.runner.sessions.session import Outcome

_OPEN_SESSION: Final = ".pytest-session"
"""File beside the runs of an evaluation with the name of the one that a session of pytest uses, until that session ends."""


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

    @cached_property
    def source(self) -> Source:
        assert self.path is not None
        return Source(self.path)

    def rescore(self, directory: Path) -> None:
        """Score the outputs of a run, or of the user's newest run of this evaluation below a directory.

        Runs of `what-if` below it do not count. The task is not called.
        """
        for path in runs_newest_first(directory):
            start = run_start(path)
            if start is None or start[0].evaluation != self.evaluation.name:
                continue
            if path == directory or (_is_own(path) and not substitution(start[0].settings)):
                self.path = path
                if self.evaluation.scorers:
                    run_async(Rescoring(self.evaluation, path, trials=self._selected_part).rescore)
                start_events(path, self.state.apply)
                return
        other_runs = "there is none below it that you started on this machine"
        raise UsageError(f"{directory} is not a run of {self.evaluation.name!r}, and {other_runs}")

    def run(self, announce: Callable[[Path], None], *, retries: bool, **options: Any) -> None:
        """Run the selected trials: in the newest run, if it has some of them left, otherwise in a new one.

        `retries`: in the newest run, finished or not. If the definition has changed, the run is new. In either case, trials
        with an error are retried, so that no test reports an error of an earlier session. Without trials, only a gate is
        selected: the newest run is read. Runs of other users or machines, whose outputs may be forged, do not count.
        """
        newest = self._newest_own_run()
        if not self.selected:
            if newest is None:
                hint = "select tests of trials, too"
                raise UsageError(f"you have started no run under {RUNS / self.evaluation.name}/ on this machine", hint=hint)
            self.path = newest
            return

        # Settings are those of the evaluation, not those of an earlier `pytest -x` or of a command.
        options |= {"task": self._reference, "trials": self._selected_part, "ignore_recorded": True, "quiet": True}

        async def observe(live_run: LiveRun) -> None:
            self.path = live_run.journal.path  # Also if the run is interrupted.
            with suppress(OSError):
                create(DISK, str(self.path.parent), _OPEN_SESSION, self.path.name.encode())
            announce(self.path)

        options["observer"] = observe

        outcome: Outcome | None = None
        is_open = newest is not None and _open_run(newest.parent) == newest
        if newest is not None and self._is_resumable(retries=retries, is_open=is_open):
            has_errors = any(name in self.selected and trial.stage == "failed" for name, trial in self.state.trials.items())
            with suppress(RunChanged):  # Nothing was written.
                # Otherwise it would not be noticed that the definition of a finished run has changed.
                outcome = run(self.evaluation, newest, resume=True, retry_failed=has_errors or is_open, **options)

        if outcome is None:
            outcome = run(self.evaluation, **options)
        self.path, self.state = outcome.path, outcome.state

    @property
    def _selected_part(self) -> Collection[str] | None:
        """The selected trials; None if these are all."""
        return self.selected if len(self.selected) < len(self.trials) else None

    def _newest_own_run(self) -> Path | None:
        """Return the newest own run but those of `what-if`, and read its state; raise a `JournalError` if it is damaged."""
        for path in runs_newest_first(RUNS / self.evaluation.name):
            self.state = RunState()
            if _is_own(path, self.state) and not substitution(self.state.settings):
                return path
        return None

    def _is_resumable(self, *, retries: bool, is_open: bool) -> bool:
        """Return whether the newest run has the same cases, and some of the selected trials are left.

        A run whose process was killed is resumed even if nothing is left; `is_open`: its session of pytest was.
        """
        state = self.state
        recorded = {name: trial for name, trial in state.trials.items() if trial.stage != "withdrawn"}
        has_same_cases = all(name in self.trials and is_same(trial, self.trials[name]) for name, trial in recorded.items())
        is_shard = state.started is not None and state.started.shard
        is_left = not state.outcome or not all(map(self.is_done, self.selected))
        return has_same_cases and not is_shard and (retries or is_open or (state.outcome != "finished" and is_left))


def end_session(run: Path) -> None:
    """Let the next session of pytest start a new run."""
    if _open_run(run.parent) == run:
        (run.parent / _OPEN_SESSION).unlink(missing_ok=True)


def _open_run(directory: Path) -> Path | None:
    """Return the run of an evaluation that a session of pytest used which has not ended, or was killed."""
    try:
        return directory / (directory / _OPEN_SESSION).read_text()
    except (OSError, ValueError):
        return None


def _is_own(path: Path, state: RunState | None = None) -> bool:
    """Return whether the user has started a run and all its sessions; apply its records to the state."""
    return all(is_own for _, is_own in start_events(path, None if state is None else state.apply))


def _trials(evaluation: AnyEvaluation) -> Iterator[Trial]:
    """Read the trials; cases that can be read only once stay readable for the run."""
    settings, cases = evaluation.settings, evaluation.cases
    source = cases.source
    if isinstance(source, Iterator):
        cases = copy.copy(cases)
        cases.source, evaluation.cases.source = itertools.tee(source)
    variants = evaluation.with_variants(settings.only_variants).tasks
    return iter(cases.select(settings, repeats=settings.repeats, variants=variants))
