"""The budget per trial, which ends a trial that has exceeded it; the budget of a run is a gate."""

from typing import Any

from evaljournal.replay.results.budget_text import over_budget_text
from evaljournal.replay.state.budget import OVER_BUDGET
from evaljournal.runner.engine.executor import TrialExecutor
from evaljournal.runner.engine.jobs import TrialWork
from evaljournal.runner.engine.layers import Layer, Rejected
from evaljournal.runner.engine.recorder import Recorder


class TrialBudgetLayer(Layer):
    """Fails the trials that have exceeded the budget per trial, also while an attempt is in flight."""

    def __init__(self, recorder: Recorder, executor: TrialExecutor) -> None:
        self._state = recorder.state
        self._executor = executor
        executor.late_recorder.on_record = self._check_in_flight

    def over_limit(self, work: TrialWork, usage: Any) -> Rejected | None:
        budget = self._state.budget
        if budget is None or not self._state.is_over_budget(work.trial, usage):
            return None
        return Rejected(error=OVER_BUDGET, message=over_budget_text(budget, work.trial, usage))

    def _check_in_flight(self, trial: str) -> None:
        """Cancel the attempt in flight of a trial when a note or a step has used up its budget."""
        if self._state.is_over_budget(trial):
            self._executor.calls.exceed_limit(trial)
