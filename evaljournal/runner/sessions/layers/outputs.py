"""What is recorded of an attempt, and what is an error instead of an output; nothing here has to be opened.

Of a request and an output: without the run's secrets, a large one early, and never what JSON cannot represent. Declined and
truncated answers may be errors, and so is what a trial returns that has exceeded its budget.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from evaljournal.journal.errors import Unserializable
from evaljournal.journal.events import NOTE_PREFIX, AttemptSucceeded
from evaljournal.journal.fact import evolve_fact
from evaljournal.journal.format.blobs import LIMIT
from evaljournal.journal.threads import InThread
from evaljournal.replay.results.budget_text import over_budget_text
from evaljournal.replay.state.budget import OVER_BUDGET
from evaljournal.replay.text import as_text
from evaljournal.runner.calls import Task
from evaljournal.runner.calls.usage import usage_of_response
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.to_json import is_large, to_json
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.engine.call import Returned
from evaljournal.runner.engine.executor import TrialExecutor
from evaljournal.runner.engine.jobs import TrialWork
from evaljournal.runner.engine.layers import Layer, Rejected
from evaljournal.runner.engine.recorder import LateRecorder, Recorder
from evaljournal.runner.secrets.masking import excerpt, mask_output, mask_values, sent_secrets

_LARGE_OUTPUT: Final = LIMIT // 6
"""Characters from which an output may need a blob: JSON has at most six bytes per character."""

_ERRORS: Final = {
    "declined": ("Declined", "the model declined to answer"),
    "truncated": ("Truncated", "the answer was truncated"),
}
"""Outcome of an answer → type and message of the error that it is."""
_MAX_ANSWER: Final = 300
"""Maximum characters of the answer in such an error."""


class MaskingLayer(Layer):
    """Masks the secrets that the run has sent; which ones these are may change during the session."""

    def __init__(self, late_recorder: LateRecorder, in_thread: InThread) -> None:
        self._late_recorder = late_recorder
        self._in_thread = in_thread

    def change(self, work: TrialWork, outcome: Returned) -> Awaitable[Returned] | None:
        return self._mask(work, outcome) if sent_secrets.values else None

    async def _mask(self, work: TrialWork, outcome: Returned) -> Returned:
        mask = partial(mask_output, outcome.output)
        masked_output = await self._in_thread(mask) if is_large(outcome.output, LIMIT) else mask()
        if masked_output is outcome.output:
            return outcome
        self._late_recorder.sink(work)({f"{NOTE_PREFIX}masked": {"output": True}})
        return Returned(output=masked_output)


class LargeOutputsLayer(Layer):
    """Writes a large output before it is recorded, so that no other record waits for a slow disk."""

    def __init__(self, recorder: Recorder) -> None:
        self._journal = recorder.journal

    def change(self, work: TrialWork, outcome: Returned) -> Awaitable[Returned] | None:
        is_slow = self._journal.has_slow_blobs and is_large(outcome.output, _LARGE_OUTPUT)
        return self._write(work, outcome) if is_slow else None

    async def _write(self, work: TrialWork, outcome: Returned) -> Returned:
        event = AttemptSucceeded(trial=work.trial, attempt=work.state.attempts, output=outcome.output, elapsed=0.0)
        try:
            return Returned(output=outcome.output, in_blobs=await self._journal.write_blobs(event))
        except (Unserializable, RecursionError):
            return outcome  # It is converted when it is recorded, or the attempt fails.


class ConversionLayer(Layer):
    """Converts an output that is an object, such as the reply of an SDK; what it says about usage counts."""

    def __init__(self, recorder: Recorder) -> None:
        self._trials = recorder.state.trials

    def convert(self, work: TrialWork, event: AttemptSucceeded) -> AttemptSucceeded:
        """Return the event with an output that JSON can represent, and with its usage, unless the attempt has noted it."""
        output = mask_output(to_json(event.output))
        usage = None if self._trials.has_noted_tokens(work.trial) else usage_of_response(output) or None
        return evolve_fact(event, output=output, usage=usage)


def error_outcomes(settings: Settings) -> list[str]:
    actions = {"declined": settings.on_declined, "truncated": settings.on_truncated}
    return [outcome for outcome, action in actions.items() if action == "error"]


class AnswersLayer(Layer):
    def __init__(self, outcomes: Collection[str]) -> None:
        self._outcomes = frozenset(outcomes)

    def check(self, work: TrialWork, output: Any) -> Rejected | None:
        answer = work.state.answer
        if answer is None or answer.outcome not in self._outcomes:
            return None
        error, message = _ERRORS[answer.outcome]
        message += f" by {answer.cause}" if answer.cause else ""
        text = excerpt(as_text(output), _MAX_ANSWER) or f"`evaljournal show {work.trial}` has what the provider replied"
        return Rejected(error=error, message=f"{message}: {text}")


class RequestsLayer(Layer):
    """Records requests, without their secrets; tasks that cannot render theirs have none."""

    def __init__(self) -> None:
        self._requests: dict[str, Callable[[Case], Any]] = {}
        """Variant → the function that returns the request for a case."""
        self._recorded = WeakSet[TrialWork]()
        """Trials whose request this session has recorded."""

    def wrap(self, task: Task, variant: str) -> Task:
        """Return the task itself; remember how it renders its request."""
        if (request := getattr(task, "request", None)) is not None:
            self._requests[variant] = request
        return task

    def fields(self, work: TrialWork) -> Mapping[str, Any]:
        """Return the request of a trial, once."""
        request = self._requests.get(work.state.variant)
        if request is None or work in self._recorded:
            return {}
        self._recorded.add(work)
        return {"request": mask_values(request(work.case))}


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
        """Cancel the attempt in flight of a trial when it has used up the budget per trial."""
        if self._state.is_over_budget(trial):
            self._executor.calls.exceed_limit(trial)
