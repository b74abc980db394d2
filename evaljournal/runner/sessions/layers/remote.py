"""Calls in a worker instead of this process, and a gateway for the model calls of a task."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from evaljournal.runner.calls import Task, WrappedTask
from evaljournal.runner.calls.notes import PHASE_NOTE
from evaljournal.runner.engine.call import CallScope
from evaljournal.runner.engine.jobs import TrialWork
from evaljournal.runner.engine.layers import Layer
from evaljournal.runner.steps.gateway.gateway import Gateway
from evaljournal.runner.workers.driver import Workers
from evaljournal.runner.workers.remote_task import call_in_worker


class RemoteLayer(Layer):
    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def wrap(self, task: Task, variant: str) -> Task:
        return WrappedTask(task, partial(call_in_worker, self._workers, variant))

    def noted(self, work: TrialWork, scope: CallScope, values: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Discard phases that a worker reports although the task has none."""
        return PHASE_NOTE in values


class GatewayLayer(Layer):
    """Lets the task call models through a gateway, which records the calls as steps."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def wrap(self, task: Task, variant: str) -> Task:  # noqa: ARG002
        return WrappedTask(task, self._gateway.call, takes_trial=task.takes_trial)
