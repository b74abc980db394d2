"""A task and a scorer that are called in a worker."""

from typing import Any, Protocol

import attrs

from evaljournal.runner.calls import OnLateResult, Task, WorkerEnded
from evaljournal.runner.calls.gateway_env import gateway_env
from evaljournal.runner.calls.notes import note_sink
from evaljournal.runner.data.case import Case
from evaljournal.runner.scorers.scorer import ScorerInput
from evaljournal.runner.steps.attempt_steps import current_steps
from evaljournal.runner.workers.driver import RemoteCall, Workers


async def call_in_worker(workers: Workers, variant: str, task: Task, work: Any, _: OnLateResult) -> Any:
    """Call the task of a variant for a trial, in the place that it has; the local task only renders its requests."""
    steps = current_steps()
    assert steps is not None
    results = steps.available_results

    fields: dict[str, Any] = {"variant": variant, "trial": work.trial, "attempt": steps.attempt}
    if task.takes_trial:
        fields["case"] = _case_fields(work.case)
    else:
        fields["input"] = work.case.input
    if results:
        fields["results"] = [[*key, attrs.asdict(result, recurse=False)] for key, result in results]
    if environment := gateway_env():
        fields["gateway_env"] = environment

    reusable_seqs = frozenset(result.seq for _, result in results)
    return await workers.call(work, {"call": fields}, RemoteCall(note_sink(), steps, reusable_seqs))


def _case_fields(case: Case) -> dict[str, Any]:
    return {**attrs.asdict(case, recurse=False), "metadata": dict(case.metadata), "files": dict(case.files)}


class PlacedScoring(Protocol):
    """A call of a scorer that has a place in a worker."""

    @property
    def input(self) -> ScorerInput: ...


class RemoteScorer:
    takes_trial: bool = True

    def __init__(self, name: str, workers: Workers) -> None:
        self._name = name
        self._workers = workers

    async def call(self, job: PlacedScoring, _: OnLateResult, /) -> Any:
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
        interrupted_calls = self._workers.interrupted_calls
        interrupted_calls.discard(job)
        try:
            return await self._workers.call(job, {"score": fields}, RemoteCall(note_sink(), None, frozenset()))
        except WorkerEnded:
            interrupted_calls.add(job)
            raise
