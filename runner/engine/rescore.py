"""Re-scoring: a session in which recorded outputs are scored and the task is not called.

A new score of a scorer replaces its earlier one; the earlier records stay in the journal.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

import attrs
import trio

from journal import read, writing
from journal.events import SCORER_PREFIX, AttemptSucceeded, RunStopped, SessionStarted, StopReason, TrialEnqueued
from journal.files import DISK, Files
from journal.reader import fetch
from journal.threads import InThread, run_in_thread
from replay import RunState, TrialState, fold
from runner.concurrency import POLICIES
from runner.concurrency.policy import Policy
from runner.data.case import Case, check_name
from runner.definition.gates import gate_results
from runner.definition.settings import Settings
from runner.engine.environment import Environment
from runner.engine.executor import Executor
from runner.engine.open_tasks import TaskOpener
from runner.engine.rate_limits import new_policy, recorded_policy, scorer_keys, scorer_slots
from runner.engine.recorder import Clock, Recorder
from runner.engine.session import Outcome
from runner.engine.trial_work import TrialWork
from runner.errors import UsageError
from runner.retries.retry import Retry
from runner.scorers.scorer import Scorer
from runner.secrets import add_environment
from runner.signals import STOP_SIGNALS, handle_signals
from runner.suggest import suggest
from runner.workers.driver import Workers

_HAS_OUTPUT: Final = ("scoring", "completed")


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


async def rescore(
    path: Path,
    scorers: Sequence[Scorer],
    *,
    all_outputs: bool = False,
    slots: int | None = None,
    only_variants: Sequence[str] = (),
    input_name: str = "input",
    signals: bool = False,
    files: Files = DISK,
    in_thread: InThread = run_in_thread,
    workers: Workers | None = None,
) -> RescoreResult:
    """Score the outputs of a run; with `all_outputs`, including those with a score from the scorer's current version.

    With `only_variants`, only the outputs of these variants are scored. Scorers that run in workers need `workers`.

    `input_name` is the input's name in templates of scorers; the journal does not record its name in the dataset.
    """
    _check_scorers(scorers, workers)
    add_environment()
    environment = await in_thread(Environment.current)
    state = await in_thread(lambda: fold(read(path, load_blobs=False, files=files)))
    for name in only_variants:
        if name not in state.variants:
            raise UsageError(f"{path} has no variant {name!r}{suggest(name, state.variants)}")
    trials = list(_unscored_trials(state, scorers, only_variants, all_outputs=all_outputs))
    # Before anything is written: an untrusted journal may contain any name and any gate.
    for trial, _ in trials:
        check_name(state.trials[trial].case)
    gate_results(state)
    if state.started is not None and not trials:
        return RescoreResult(Outcome(path, state, state.head, "", ""), 0, _count_outputs(state, only_variants), 0)
    clock = Clock()
    async with _open_workers(workers), writing(path, new=False, clock=clock.read, files=files, in_thread=in_thread) as journal:
        state = RunState()
        state.steps.keeps_records = any(scorer.takes_trajectory for scorer in scorers)
        await in_thread(lambda: fold(read(path, load_blobs=False, files=files), at=journal.initial_seq, state=state))
        if state.started is None:
            raise UsageError(f"{path} was interrupted before its definition was recorded; there is nothing to score")
        outcome = "finished" if _is_finished(state) else state.outcome
        recorder, settings = Recorder(journal, state, clock), _settings(state.settings)
        slots_by_scorer = scorer_slots({scorer.name: scorer for scorer in scorers}, None, slots)
        new_settings = None if state.settings.get("scorer_slots") == slots_by_scorer else {"scorer_slots": slots_by_scorer}
        number, pid, host = len(state.sessions) + 1, environment.pid, environment.host
        environment.warn_without_key()
        session_started = SessionStarted(session=number, pid=pid, host=host, boot_id=environment.boot_id, settings=new_settings)
        recorder.record(session_started, key=environment.key)
        recorder.close_attempts()
        trials = list(_unscored_trials(state, scorers, only_variants, all_outputs=all_outputs))
        outputs = _Outputs(recorder, scorers, trials, files=files, input_name=input_name)

        def policy(key: str) -> Policy:
            return new_policy(settings.policy, slots_by_scorer[key.removeprefix(SCORER_PREFIX)], state.settings, state.planned)

        async with AsyncExitStack() as stack:
            if workers is not None:
                workers.begin(journal.run)
            opener = TaskOpener(stack, journal.run, grace=1.0, in_thread=in_thread, workers=workers)
            scorers = [scorer.with_defaults(scorer.retry, settings.timeout) for scorer in scorers]
            keys = scorer_keys(scorers, None)
            open_scorers = [await opener.scorer(scorer, keys[scorer.name]) for scorer in scorers]
            executor = Executor(
                recorder, {}, open_scorers, policy, settings, max_failures=0, in_thread=in_thread, workers=workers
            )
            await _execute(executor, outputs, signals=signals)
        scored_outputs = executor.scheduler.completed
        reason = None if scored_outputs == outputs.total else executor.shutdown.reason
        if reason is None and outcome == "finished":
            recorder.finish()
        else:
            recorder.record(RunStopped(reason=reason or cast("StopReason", outcome or "interrupted")))
    result = Outcome(path, state, journal.head, reason or "", executor.shutdown.detail)
    return RescoreResult(
        result, scored_outputs, _count_outputs(state, only_variants) - outputs.total, outputs.total - scored_outputs
    )


def _check_scorers(scorers: Sequence[Scorer], workers: Workers | None) -> None:
    if not scorers:
        raise UsageError("the evaluation has no scorer", hint="add one: --score exact, --judge MODEL, or @….score in Python")
    if workers is None and any(scorer.workers for scorer in scorers):
        raise UsageError("a scorer runs in workers, and there are none")


@asynccontextmanager
async def _open_workers(workers: Workers | None) -> AsyncGenerator[None]:
    """Open workers, if there are any, before anything is written."""
    if workers is None:
        yield
        return
    async with workers.open():
        await workers.wait_ready()
        yield


async def _execute(executor: Executor, outputs: "_Outputs", *, signals: bool) -> None:
    """Score the outputs; the first signal stops the session gracefully, the second immediately."""
    token = trio.lowlevel.current_trio_token()
    stop_signals = STOP_SIGNALS if signals else ()
    with handle_signals(lambda _, __: token.run_sync_soon(executor.shutdown.interrupt), *stop_signals):
        await executor.run(outputs)


def _settings(recorded_settings: Mapping[str, Any]) -> Settings:
    """Return the recorded settings that a re-scoring needs; a custom policy is replaced."""
    policy = recorded_policy(recorded_settings)
    seed, timeout = recorded_settings.get("seed"), recorded_settings.get("timeout")
    return Settings(
        policy=policy if policy in POLICIES else "adaptive",
        seed=seed if isinstance(seed, int) else 0,
        timeout=timeout if isinstance(timeout, int | float) else None,
        retry=Retry.from_settings(recorded_settings) if "retry" in recorded_settings else Retry(),
    )


def _is_finished(state: RunState) -> bool:
    """Return whether every trial is done, even if a later re-scoring was stopped."""
    own_outcomes = [session.outcome for session in state.sessions if not session.shard]
    shard_outcomes = [session.outcome for session in state.sessions if session.shard]
    return "finished" in [*own_outcomes, *shard_outcomes[-1:]] and state.done >= max(state.total, state.planned)


def _count_outputs(state: RunState, only_variants: Sequence[str]) -> int:
    return sum(_has_output(trial, only_variants) for trial in state.trials.values())


def _has_output(trial: TrialState, only_variants: Sequence[str]) -> bool:
    """Return whether a trial has an output to score, and one of these variants, if there are any."""
    has_output = trial.output_location is not None and trial.stage in _HAS_OUTPUT
    return has_output and (not only_variants or trial.variant in only_variants)


def _unscored_trials(
    state: RunState, scorers: Sequence[Scorer], only_variants: Sequence[str], *, all_outputs: bool
) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the trials with an output that the current version of a scorer has not scored, and the scorers that have."""
    for name, trial in state.trials.items():
        if not _has_output(trial, only_variants):
            continue
        scored_versions = {(name.partition(".")[0], version) for name, (version, _) in trial.scores.items()}
        done_scorers = frozenset(
            scorer.name for scorer in scorers if not all_outputs and (scorer.name, scorer.version) in scored_versions
        )
        if len(done_scorers) < len(scorers):
            yield name, done_scorers


class _Outputs:
    """The outputs to score, read from the journal as they are needed; a `TrialSource`."""

    def __init__(
        self,
        recorder: Recorder,
        scorers: Sequence[Scorer],
        trials: Sequence[tuple[str, frozenset[str]]],
        *,
        files: Files,
        input_name: str,
    ) -> None:
        """`trials` are those to score, each with the scorers that need not be called."""
        self._recorder = recorder
        self._files = files
        self._input_name = input_name
        self._scorers = {scorer.name for scorer in scorers}
        self.total = len(trials)
        self.items = (self._work(trial, done_scorers) for trial, done_scorers in trials)

    def _work(self, trial: str, done_scorers: frozenset[str]) -> TrialWork:
        state, path = self._recorder.state.trials[trial], self._recorder.journal.path
        assert state.output_location is not None
        trial_enqueued = fetch(path, *state.input_location, files=self._files).event
        attempt_succeeded = fetch(path, *state.output_location, files=self._files).event
        assert isinstance(trial_enqueued, TrialEnqueued)
        assert isinstance(attempt_succeeded, AttemptSucceeded)
        case = Case(
            name=trial_enqueued.case,
            input=trial_enqueued.input,
            expected=trial_enqueued.expected,
            metadata=trial_enqueued.metadata if isinstance(trial_enqueued.metadata, dict) else {},
            input_name=self._input_name,
        )
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
        scorers = {*self._scorers, *(name.partition(".")[0] for name in (*(state.scores or ()), *state.unscored))}
        return run_started is not None and scorers.issuperset(run_started.scorers)

    def admit(self, item: TrialWork) -> TrialWork:
        """Record nothing: an earlier session admitted the trial."""
        return item

    def close(self) -> None:
        """Record nothing."""
