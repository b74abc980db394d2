"""The trials that a session has to do: each case is compared with its recorded state."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from evaljournal.journal.events import AttemptSucceeded, RetryScheduled, TrialEnqueued, TrialFailed, TrialWithdrawn
from evaljournal.journal.readers.reader import fetch
from evaljournal.replay.text import plural
from evaljournal.runner.data.case import Trial
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.engine.jobs import TrialWork
from evaljournal.runner.engine.recorder import Recorder
from evaljournal.runner.errors import RunChanged
from evaljournal.runner.retries.retry import settle
from evaljournal.runner.runs.changes import examples, is_same
from evaljournal.runner.sessions.options import Options


class PendingTrials:
    """Reads the cases, compares each with its recorded state, and admits what is left to do; a `TrialSource`."""

    def __init__(
        self, recorder: Recorder, trials: Iterable[Trial], settings: Settings, options: Options, variants: Collection[str]
    ) -> None:
        """Read `trials`, which have these variants; trials of others are left for another session."""
        self._recorder = recorder
        self._state = recorder.state
        self._path = recorder.journal.path
        self._settings = settings
        self._options = options
        self.items = self._pending_trials(trials)
        self.is_closed = False
        """Whether every case was read, and every recorded trial is accounted for."""
        self._missing_trials = {
            trial for trial, state in recorder.state.trials.items() if state.stage != "withdrawn" and state.variant in variants
        }
        """Recorded trials whose cases were not read yet."""

    def withdraw_variants(self, variants: Collection[str]) -> None:
        """Withdraw the trials of variants that have changed or are not in `variants`, those of the run now.

        The user has adopted the change, in this session or in one that was interrupted before all were withdrawn.
        """
        for trial, state in list(self._state.trials.items()):
            is_removed = state.variant not in variants
            if state.stage != "withdrawn" and (is_removed or self._state.variants.is_outdated(state)):
                self._recorder.record(TrialWithdrawn(trial=trial, reason="removed" if is_removed else "changed"))
                self._missing_trials.discard(trial)

    def _pending_trials(self, trials: Iterable[Trial]) -> Iterator[tuple[Trial, Any]]:
        """Yield the trials that may have something left to do, with their output if only scores are missing."""
        for trial in trials:
            state = self._state.trials.get(trial.id)
            output = None
            if self._options.trials is not None and trial.id not in self._options.trials:
                self._missing_trials.discard(trial.id)
                continue
            if state is not None and is_same(state, trial):
                self._missing_trials.discard(trial.id)
                if state.stage == "completed" or (state.stage == "failed" and not self._options.retry_failed):
                    continue
                if state.output_location is not None and state.stage == "scoring":
                    event = fetch(self._path, *state.output_location, files=self._options.files).event
                    assert isinstance(event, AttemptSucceeded)
                    output = event.output
            yield trial, output

    def admit(self, item: tuple[Trial, Any]) -> TrialWork | None:
        """Record that a trial is admitted or settled; return what is left to do, if anything."""
        trial, output = item
        state = self._state.trials.get(trial.id)
        if state is not None and state.stage != "withdrawn" and not is_same(state, trial):
            if not self._options.adopt:
                problem = f"case {trial.case.name!r} has changed since the run was started"
                raise self._changed_error(problem, "runs it again and keeps the results of the others")
            self._missing_trials.discard(trial.id)
            self._recorder.record(TrialWithdrawn(trial=trial.id, reason="changed"))
            state = None
        if state is None or state.stage == "withdrawn":
            return self._enqueue(trial)
        return self._resume(TrialWork(trial=trial.id, case=trial.case, state=state, output=output))

    def _changed_error(self, problem: str, effect: str) -> RunChanged:
        return RunChanged(problem, hint=f"{self._options.how_to_resume(self._path, adopt=True)} {effect}")

    def _enqueue(self, trial: Trial) -> TrialWork:
        case = trial.case
        self._recorder.record(
            TrialEnqueued(
                trial=trial.id,
                case=case.name,
                variant=trial.variant,
                repeat=trial.repeat,
                input=case.input,
                expected=case.expected,
                metadata=dict(case.metadata) or None,
                fingerprint=case.fingerprint,
            )
        )
        return TrialWork(trial=trial.id, case=case, state=self._state.trials[trial.id])

    def _resume(self, work: TrialWork) -> TrialWork | None:
        state = work.state
        match state.stage:
            case "scoring":
                work.has_output = True
                work.done_scorers = frozenset(name.partition(".")[0] for name in (*(state.scores or ()), *state.unscored))
            case "backing_off":
                work.delay = self._state.trials.backing_off[work.trial]
            case "unsettled" | "failed":
                return self._settle(work)
            case "interrupted" if self._must_settle(work):
                return self._settle(work)
            case _:
                pass  # Queued, or interrupted and to be repeated.
        return work

    def _must_settle(self, work: TrialWork) -> bool:
        """Return whether `settle` must decide if an interrupted trial is repeated."""
        may_have_called = work.trial in self._state.trials.attempts.interrupted_trials
        is_ambiguous = self._options.on_ambiguous == "fail" and may_have_called
        return is_ambiguous or work.state.ended_with_worker or self._state.is_over_budget(work.trial)

    def _settle(self, work: TrialWork) -> TrialWork | None:
        """Record whether a trial is retried or fails, by the rules of the executor; return what is left to do, if anything."""
        event = settle(
            work.trial,
            work.state,
            self._settings.retry,
            self._settings.seed,
            over_limit=self._state.is_over_budget(work.trial),
            ambiguous=self._options.on_ambiguous == "fail",
        )
        self._recorder.record(event)

        if isinstance(event, TrialFailed):
            return None
        assert isinstance(event, RetryScheduled)
        work.delay = event.delay
        return work

    def close(self) -> None:
        """Withdraw the trials whose cases were removed, or raise if that is not adopted; called after the last case."""
        if self._missing_trials and not self._options.adopt:
            trials = f"{plural(len(self._missing_trials), 'trial')} were removed: {examples(sorted(self._missing_trials))}"
            raise self._changed_error(f"the cases of {trials}", "withdraws them")
        for trial in sorted(self._missing_trials):
            self._recorder.record(TrialWithdrawn(trial=trial, reason="removed"))
        self.is_closed = True
