"""A task and a scorer that are called in a worker."""

from typing import Any, Protocol

import attrs

from evaljournal.runner.calls import OnLateResult, Task
from evaljournal.runner.calls.gateway_env import gateway_env
from evaljournal.runner.calls.notes import note_sink
from evaljournal.runner.data.case import Case
from evaljournal.runner.scorers.scorer import ScorerInput
from evaljournal.runner.steps.attempt_steps import current_steps
from evaljournal.runner.workers.driver import RemoteCall, Workers


class RemoteTask:
    """A task whose attempts run in workers; the local task only renders its requests."""

    takes_trial: bool = True

    def __init__(self, task: Task, variant: str, workers: Workers) -> None:
        self._variant = variant
        self._workers = workers
        self._takes_case = task.takes_trial
        self.request = getattr(task, "request", None)

    async def call(self, work: Any, _: OnLateResult, /) -> Any:
        """Call the task for a trial, in the place that it has."""
        steps = current_steps()
        assert steps is not None
        results = steps.available_results
        fields: dict[str, Any] = {"variant": self._variant, "trial": work.trial, "attempt": steps.attempt}
        if self._takes_case:
            fields["case"] = _case_fields(work.case)
        else:
            fields["input"] = work.case.input
        if results:
            fields["results"] = [[*key, attrs.asdict(result, recurse=False)] for key, result in results]
        if environment := gateway_env():
            fields["gateway_env"] = environment
        reusable_seqs = frozenset(result.seq for _, result in results)
        return await self._workers.call(work, {"call": fields}, RemoteCall(note_sink(), steps, reusable_seqs))


def _case_fields(case: Case) -> dict[str, Any]:
    return {**attrs.asdict(case, recurse=False), "metadata": dict(case.metadata), "files": dict(case.files)}


class PlacedScoring(Protocol):
    """A call of a scorer that has a place in a worker."""

    @property
    def input(self) -> ScorerInput:
        """What the scorer is called with."""
        ...


class RemoteScorer:
    """A scorer that is called in a worker."""

    takes_trial: bool = True

    def __init__(self, name: str, workers: Workers) -> None:
        self._name = name
        self._workers = workers

    async def call(self, job: PlacedScoring, _: OnLateResult, /) -> Any:
        """Call the scorer, in the place that its job has."""
        scorer_input = job.input
        fields = {
            "scorer": self._name,
            "output": scorer_input.output,
            "case": _case_fields(scorer_input.case),
            "trajectory": [attrs.asdict(step, recurse=False) for step in scorer_input.trajectory],
            "declined": scorer_input.declined,
            "truncated": scorer_input.truncated,
            "latency": scorer_input.latency,
            "cost": scorer_input.cost,
        }
        return await self._workers.call(job, {"score": fields}, RemoteCall(note_sink(), None, frozenset()))
