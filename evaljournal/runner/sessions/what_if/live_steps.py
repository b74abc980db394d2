"""The steps that a run has recorded, and what those from some step on would cost: the estimate of a counterfactual run.

The steps of a trial are those of the attempt that returned its output. Steps inside another one count like those of the task.
"""

from collections import Counter
from collections.abc import Iterable

import attrs

from evaljournal.journal import Record, events
from evaljournal.replay.state.usage import add
from evaljournal.runner.errors import UsageError
from evaljournal.runner.sessions.what_if.repricing import Repricing
from evaljournal.runner.steps.replies.rewrite import DIALECTS, Rewrite

_HOW_TO_RECORD = "-s durable=http records the model calls of a function as steps, --gateway those of a command"


@attrs.define
class _Call:
    """A step that was executed."""

    endpoint: str
    """Empty unless it is a model call over HTTP."""
    is_model: bool
    usage: dict[str, float]
    """As it is priced for the other model."""


@attrs.frozen
class LiveEstimate:
    """What a run from some step on is expected to call."""

    from_step: int
    trials: int
    """Trials that have the step."""
    calls: int
    """Their model calls from that step on."""
    usage: Counter[str]


class RecordedSteps:
    """The steps of each trial with an output."""

    def __init__(self, repricing: Repricing) -> None:
        """`repricing` has the prices of the other model."""
        self._repricing = repricing
        self._open: dict[str, dict[int, _Call]] = {}
        """Trial → number → step of the attempts that have not returned an output."""
        self._completed: dict[str, dict[int, _Call]] = {}
        """Trial → record → step of all its attempts, which a later attempt may reuse."""
        self._steps: dict[str, dict[int, _Call]] = {}

    def apply(self, record: Record) -> None:
        """Add the next record."""
        match event := record.event:
            case events.AttemptStarted():
                self._open[event.trial] = {}
            case events.StepCompleted():
                call = self._completed.setdefault(event.trial, {})[record.seq] = self._call(event)
                self._open.setdefault(event.trial, {})[event.step] = call
            case events.StepReused():
                reused = self._completed.get(event.trial, {}).get(event.completed_seq)
                if reused is not None:
                    self._open.setdefault(event.trial, {})[event.step] = reused
            case events.AttemptSucceeded():
                self._steps[event.trial] = self._open.pop(event.trial, {})
                self._completed.pop(event.trial, None)
            case events.TrialWithdrawn():
                self._steps.pop(event.trial, None)
            case _:
                pass

    def _call(self, event: events.StepCompleted) -> _Call:
        endpoint = next((name for name in DIALECTS if event.name.partition(" ")[0] == name.replace("/", ".")), "")
        usage: dict[str, float] = {}
        add(usage, self._repricing.usage_of(event))
        return _Call(endpoint, is_model=event.kind == "model", usage=usage)

    def estimate(self, rewrite: Rewrite, path: object) -> LiveEstimate:
        """Return what is called from a step on; raise a `UsageError` if there is no such step, or it cannot be rewritten."""
        longest = max((max(steps, default=0) for steps in self._steps.values()), default=0)
        if not longest:
            raise UsageError(f"{path} has recorded no steps, so nothing can start from one", hint=_HOW_TO_RECORD)
        if rewrite.from_step > longest:
            raise UsageError(
                f"--from-step {rewrite.from_step} is beyond the last step of {path}; its longest trial has {longest}"
            )
        trials = [steps for steps in self._steps.values() if max(steps, default=0) >= rewrite.from_step]
        calls = [call for steps in trials for number, call in steps.items() if number >= rewrite.from_step and call.is_model]
        self._check(rewrite, calls, path)
        usage = Counter[str]()
        for call in calls:
            add(usage, call.usage)
        return LiveEstimate(rewrite.from_step, len(trials), len(calls), usage)

    @staticmethod
    def _check(rewrite: Rewrite, calls: Iterable[_Call], path: object) -> None:
        """Raise a `UsageError` if the model calls cannot be sent with another model or system prompt."""
        if rewrite.model is None and rewrite.system is None:
            return
        calls = list(calls)
        if any(not call.endpoint for call in calls) or not calls:
            problem = "are no requests over HTTP, which could be changed" if calls else "are none"
            raise UsageError(f"the model calls of {path} from step {rewrite.from_step} on {problem}", hint=_HOW_TO_RECORD)
        for endpoint in sorted({call.endpoint for call in calls}):
            rewrite.check(endpoint)
