"""The request that a task will send, in the record of the first start of a trial in a session (`record_requests`)."""

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakSet

from evaljournal.runner.calls import Task
from evaljournal.runner.data.case import Case
from evaljournal.runner.engine.jobs import TrialWork
from evaljournal.runner.engine.layers import Layer
from evaljournal.runner.secrets.masking import mask_values


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
