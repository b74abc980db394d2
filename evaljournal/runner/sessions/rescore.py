"""Re-scoring: a session without tasks, in which recorded outputs are scored.

A new score of a scorer replaces its earlier one; the earlier records stay in the journal.
"""

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from evaljournal.journal.disk.files import Files
from evaljournal.journal.events import AttemptSucceeded, Noted, RunStopped, StopReason
from evaljournal.journal.fact import evolve_fact
from evaljournal.journal.readers.reader import fetch, read
from evaljournal.replay import RunState, TrialState, fold
from evaljournal.replay.state.scorer_calls import PAIRWISE
from evaljournal.runner.data.case import check_name
from evaljournal.runner.definition.evaluation import Evaluation
from evaljournal.runner.definition.gates import gate_results
from evaljournal.runner.definition.settings import Keep, Settings
from evaljournal.runner.engine.executor import TrialExecutor
from evaljournal.runner.engine.jobs import TrialWork
from evaljournal.runner.engine.recorder import Recorder
from evaljournal.runner.errors import UsageError, suggest
from evaljournal.runner.runs.changes import examples
from evaljournal.runner.scorers.scorer import Scorer
from evaljournal.runner.sessions.plan import Plan, scheduling_settings
from evaljournal.runner.sessions.rate_limits import TaskKeys, scorer_slots
from evaljournal.runner.sessions.session import Outcome, Session
from evaljournal.runner.sessions.set_ups import recorded_case
from evaljournal.runner.workers.processes import ProcessWorkers

if TYPE_CHECKING:
    from evaljournal.runner.scorers.pairwise import OtherRun

_BATCHES: Final = ("batch", "batch_fallback", "batch_tokens", "batch_poll")
_NO_TASKS: Final = TaskKeys(None, {}, {}, {})


@attrs.frozen
class RescoreResult:
    """The result of a re-scoring."""

    outcome: Outcome
    """How the session ended."""
    outputs: int
    """Outputs for which every scorer without a current score was called; some calls may have failed."""
    already_scored: int
    """Outputs that already had a score from the current version of every scorer."""
    unscored: int
    """Outputs that were not scored completely because the re-scoring was stopped."""


class Rescoring(Session):
    """A session that scores the outputs of a run with the scorers of an evaluation; with `all_outputs`, all of them.

    Otherwise outputs with a score from a scorer's current version are skipped. With the option `only_variants`, only the
    outputs of these variants are scored. With `other_run`, only the outputs that pairwise judges can compare with one of its.
    """

    def __init__(
        self,
        evaluation: Evaluation[Any, Any, Any],
        path: Path,
        *,
        all_outputs: bool = False,
        other_run: "OtherRun | None" = None,
        **options: Any,
    ) -> None:
        super().__init__(evaluation, path, resume=True, **options)
        self._all_outputs = all_outputs
        self._other_run = other_run
        self._run = ""
        self._total = self._scored_outputs = 0

    async def rescore(self) -> RescoreResult:
        outcome = await self.run()
        if outcome.stop_reason == "disk_full" and not self._all_outputs:  # Nothing counted what reached the disk.
            self._scored_outputs = self._total - sum(1 for _ in self._unscored_trials(outcome.state))
        outputs = sum(map(self._is_selected, outcome.state.trials, outcome.state.trials.values()))
        return RescoreResult(outcome, self._scored_outputs, outputs - self._total, self._total - self._scored_outputs)

    def _load_state(self, seq: int | None = None) -> RunState:
        state = RunState()
        state.steps.keeps_records = any(scorer.takes_trajectory for scorer in self.evaluation.scorers.values())
        records = read(self.path, load_blobs=False, files=self.options.files)
        fold(records, at=seq, state=state)
        self._run = records.run
        return state

    def _plan(self, state: RunState) -> Plan | None:
        """Check everything before anything is written: an untrusted journal may contain any name and any gate."""
        scorers, recorded_start = self.evaluation.scorers, state.started
        if not scorers:
            hint = "add one: --score exact, --judge MODEL, or @….score in Python"
            raise UsageError("the evaluation has no scorer", hint=hint)
        if recorded_start is None:
            raise UsageError(f"{self.path} was interrupted before its definition was recorded; there is nothing to score")
        for name in self.only_variants:
            if name not in state.variants:
                raise UsageError(f"{self.path} has no variant {name!r}{suggest(name, state.variants)}")
        if self._other_run is not None:
            self._other_run.pair(self._run, state)

        trials = list(self._unscored_trials(state))
        self._total = len(trials)
        for trial, _ in trials:
            check_name(state.trials[trial].case)

        self._check_workspaces(state, [trial for trial, _ in trials])
        gate_results(state)
        if self.options.cancel_batches and not state.batches.lines.open:
            raise UsageError(f"{self.path} has no open batches; remove --cancel")
        if not trials and not state.batches.lines.open:
            return None

        settings = scheduling_settings(state.settings)
        settings = settings.with_values({name: self.overrides[name] for name in _BATCHES if name in self.overrides})
        self._check_batches(settings)
        if any(scorer.workers for scorer in scorers.values()):
            settings = attrs.evolve(settings, workers=self.evaluation.settings.workers or ProcessWorkers())

        slots = scorer_slots(scorers, _NO_TASKS, self.overrides.get("slots"))
        new_start = evolve_fact(recorded_start, trials=state.sessions.planned, settings={"scorer_slots": slots})
        return Plan(settings, (), new_start, slots, self.evaluation, _NO_TASKS, (), chosen_slots=self.overrides.get("slots"))

    def _check_workspaces(self, state: RunState, trials: Sequence[str]) -> None:
        """Raise a `UsageError` if a command scores workspaces, and one was removed."""
        functions: list[Any] = [scorer.function for scorer in self.evaluation.scorers.values()]
        checks = [function.check_workspace for function in functions if getattr(function, "needs_workspace", False)]
        owners = {trial: state.workspaces.runs.get(trial) or self._run for trial in trials if checks}
        missing = [name for name, run in owners.items() if not checks[0](run, name, state.trials[name].attempts)]
        if missing:
            problem, names = "a command scores the workspaces of outputs, and some were removed", examples(missing)
            if others := {owners[name]: None for name in missing if owners[name] != self._run}:
                problem += f", or are not on this machine (run {examples(others)} made them)"
            raise UsageError(f"{problem}: {names}; run these trials again, with --keep all")

    def _check_batches(self, settings: Settings) -> None:
        if settings.batch:
            from evaljournal.runner.gates.batch_targets import BatchTargets  # noqa: PLC0415  # few re-scorings need it

            if not list(BatchTargets.of_scorers(self.evaluation.scorers, required=True)):
                raise UsageError("no scorer is a judge; only judges have batches", setting="batch", value=True)
        elif self.options.leave:
            raise UsageError("leave=True (--leave) has no effect without batches; add --batch (batch=True)")

    def _already_done(self, state: RunState) -> Outcome:
        return Outcome(self.path, state, state.head, "", "")

    def _trial_source(self, recorder: Recorder, _: Plan) -> "_Outputs":
        trials = list(self._unscored_trials(recorder.state))
        if self._other_run is not None:
            for note in self._other_run.notes(self.evaluation.scorers, self._run, self.path):
                recorder.record(Noted(name=PAIRWISE, value=note))
        return _Outputs(recorder, self.evaluation, trials, self.options.files)

    def _record_end(self, recorder: Recorder, _: object, executor: TrialExecutor) -> Outcome:
        state, self._scored_outputs = recorder.state, executor.scheduler.completed
        is_cancelled = self.options.cancel_batches and not state.batches.lines.open
        reason = None if is_cancelled or self._scored_outputs == self._total else executor.shutdown.reason
        old_outcome = "finished" if _is_finished(state) else state.sessions[-2].outcome or "interrupted"
        if reason is None and old_outcome == "finished":
            recorder.finish()
        else:
            recorder.record(RunStopped(reason=reason or cast("StopReason", old_outcome)))
        detail = self._with_batches(state, reason, executor.shutdown.detail) if reason else ""
        return Outcome(self.path, state, recorder.journal.head, reason or "", detail)

    @property
    def _cancel_command(self) -> str:
        return "the same command with --cancel"

    def _unscored_trials(self, state: RunState) -> Iterator[tuple[str, frozenset[str]]]:
        """Yield the trials with an output that the current version of a scorer has not scored, and the scorers that have."""
        scorers: Collection[Scorer] = self.evaluation.scorers.values()
        for name, trial in state.trials.items():
            if not self._is_selected(name, trial) or name not in (self.options.trials or state.trials):
                continue
            scored_versions = {(name.partition(".")[0], version) for name, (version, _) in trial.scores.items()}
            done_scorers = frozenset(
                scorer.name for scorer in scorers if not self._all_outputs and (scorer.name, scorer.version) in scored_versions
            )
            if len(done_scorers) < len(scorers):
                yield name, done_scorers

    def _is_selected(self, name: str, trial: TrialState) -> bool:
        """Return whether a trial has an output to score, a selected variant, and an output to compare with, if it needs one."""
        is_paired = self._other_run is None or name in self._other_run.pairs
        return is_paired and trial.is_scorable and (not self.only_variants or trial.variant in self.only_variants)


class Cleaning(Rescoring):
    """A session that only ends the programs, tears down the set-ups and removes the workspaces of earlier sessions."""

    removed_workspaces = 0
    remaining_workspaces: Sequence[Path] = ()
    """Those that could not be removed."""

    def __init__(self, evaluation: Evaluation[Any, Any, Any], path: Path, *, removes_kept: bool) -> None:
        """With `removes_kept`, also remove the workspaces that the settings keep."""
        unscored = copy.copy(evaluation)
        unscored.scorers = {}  # None is called, so none is opened: a judge would need its key.
        super().__init__(unscored, path)
        self._removes_kept = removes_kept

    def _batches(self, plan: Plan, state: RunState) -> None:
        """Return None: open batches are left to `resume`."""

    def _plan(self, state: RunState) -> Plan:
        if state.started is None:
            raise UsageError(f"{self.path} was interrupted before its definition was recorded; there is nothing to clean")
        new_start = evolve_fact(state.started, trials=state.sessions.planned, settings={"scorer_slots": {}})
        return Plan(scheduling_settings(state.settings), (), new_start, {}, self.evaluation, _NO_TASKS, ())

    def _unscored_trials(self, _: RunState) -> Iterator[tuple[str, frozenset[str]]]:
        return iter(())

    async def _clean(self, stack: AsyncExitStack, plan: Plan, recorder: Recorder) -> None:
        state, has_workspaces = recorder.state, bool(recorder.state.settings.get("workspace"))
        if has_workspaces:
            from evaljournal.runner.sessions.workspaces import lock_workspaces, remove_leftovers  # noqa: PLC0415  # few runs need it

            stack.enter_context(lock_workspaces(recorder.journal.run))
        await super()._clean(stack, plan, recorder)
        if has_workspaces:
            keep: Keep = "none" if self._removes_kept else state.settings.get("keep", "failing")
            self.removed_workspaces, self.remaining_workspaces = await self.options.in_thread(
                lambda: remove_leftovers(recorder.journal.run, state.trials, keep)
            )


def pairwise_evaluation(
    evaluation: Evaluation[Any, Any, Any], judges: Mapping[str, Any], path: Path, variant: str | None
) -> "tuple[Evaluation[Any, Any, Any], OtherRun]":
    """Return an evaluation whose scorers are pairwise judges, and the run or variant that they compare outputs with."""
    from evaljournal.runner.scorers.pairwise import OtherRun, pairwise_scorers  # noqa: PLC0415  # it imports the HTTP client

    other_run = OtherRun(path, variant)
    cases, settings = evaluation.cases, evaluation.settings
    pairwise: Evaluation[Any, Any, Any] = Evaluation(lambda _: None, cases=cases, settings=settings, name=evaluation.name)
    for name, judge in judges.items():
        for scorer_name, scorer in pairwise_scorers(name, judge, other_run):
            pairwise.score(name=scorer_name)(scorer)
    return pairwise, other_run


def _is_finished(state: RunState) -> bool:
    """Return whether every trial is done, even if a later re-scoring was stopped."""
    own_outcomes = [session.outcome for session in state.sessions if not session.shard]
    shard_outcomes = [session.outcome for session in state.sessions if session.shard]
    return "finished" in [*own_outcomes, *shard_outcomes[-1:]] and state.totals.done >= max(
        state.totals.total, state.sessions.planned
    )


class _Outputs:
    """The outputs to score, read from the journal as they are needed; a `TrialSource`."""

    def __init__(
        self,
        recorder: Recorder,
        evaluation: Evaluation[Any, Any, Any],
        trials: Sequence[tuple[str, frozenset[str]]],
        files: Files,
    ) -> None:
        """`trials` are those to score, each with the scorers that need not be called."""
        self._recorder = recorder
        self._evaluation = evaluation
        self._files = files
        self.items = (self._work(trial, done_scorers) for trial, done_scorers in trials)
        self.is_closed = False

    def _work(self, trial: str, done_scorers: frozenset[str]) -> TrialWork:
        state, path = self._recorder.state.trials[trial], self._recorder.journal.path
        assert state.output_location is not None
        attempt_succeeded = fetch(path, *state.output_location, files=self._files).event
        assert isinstance(attempt_succeeded, AttemptSucceeded)
        input_name = self._evaluation.cases.input_name  # In templates of scorers; the journal does not record it.
        case = recorded_case(path, state, self._files, input_name)

        return TrialWork(
            trial=trial,
            case=case,
            state=state,
            has_output=True,
            completes=state.stage == "scoring" and self._completes(state),
            output=attempt_succeeded.output,
            done_scorers=done_scorers,
        )

    def _completes(self, state: TrialState) -> bool:
        """Return whether every scorer of the run has scored a trial once these have; otherwise a resumed run completes it."""
        run_started = self._recorder.state.started
        scored_names = {name.partition(".")[0] for name in (*(state.scores or ()), *state.unscored)}
        return run_started is not None and {*self._evaluation.scorers, *scored_names}.issuperset(run_started.scorers)

    def admit(self, item: TrialWork) -> TrialWork:
        """Record nothing: an earlier session admitted the trial."""
        return item

    def close(self) -> None:
        self.is_closed = True
