"""Places in workers: a job that runs in a worker starts only if one has a place for it.

A job whose last call ended with its worker needs a worker of its own: the next one may end, too, and would take others with it.
Such a job waits for one outside its lane, so that the jobs behind it can use the places that are free.
"""

import math
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from evaljournal.runner.engine.jobs import ANY_JOB, Job, Lane, ScorerCall, StartGate, TrialWork
from evaljournal.runner.engine.scheduler import Scheduler
from evaljournal.runner.workers.driver import Workers

_ONLY_FIRST: Final = 1


class PlacesGate(StartGate):
    def __init__(self, workers: Workers, scheduler: Scheduler) -> None:
        self._workers = workers
        self._scheduler = scheduler
        workers.on_room = scheduler.wake

    def _needs_place(self, job: Job) -> bool:
        return job.scorer.scorer.workers if isinstance(job, ScorerCall) else self._workers.runs_tasks

    def _needs_own_worker(self, job: Job) -> bool:
        return job.state.ended_with_worker if isinstance(job, TrialWork) else job in self._workers.interrupted_calls

    def reach(self, lane: Lane) -> int:
        """Set jobs aside that need a worker of their own; without room, only a first job that has its place may start."""
        self._set_aside(lane)
        if self._workers.has_room or not (lane.calls or lane.trials):
            return ANY_JOB
        job: Job = lane.calls[0] if lane.calls else lane.trials[0]
        if not self._needs_place(job):
            return ANY_JOB
        return _ONLY_FIRST if job in self._workers.places else 0

    def admit(self, job: Job, now: float) -> float | None:  # noqa: ARG002
        is_refused = job not in self._workers.places and not self._workers.has_room and self._needs_place(job)
        return math.inf if is_refused else None

    def start(self, job: Job) -> None:
        if self._needs_place(job):
            self._workers.reserve(job)

    def end_fields(self, job: Job) -> Mapping[str, Any]:
        name = self._workers.names.get(job)
        return {} if name is None else {"worker": name}

    def _set_aside(self, lane: Lane) -> None:
        """Let the jobs at the head of a lane that need a worker of their own wait for one outside the lane."""
        queue: deque[Any]
        for queue in (lane.calls, lane.trials) if self._workers.runs_tasks else (lane.calls,):
            while queue and self._needs_own_worker(job := queue[0]) and not self._workers.has_place(job):
                queue.popleft()
                self._scheduler.queues.waiting_trials -= job.__class__ is TrialWork
                self._workers.reserve_own_worker(job, partial(self._put_back, queue, job))

    def _put_back(self, queue: "deque[Any]", job: Job) -> None:
        queue.appendleft(job)
        self._scheduler.queues.waiting_trials += job.__class__ is TrialWork
        self._scheduler.wake()
