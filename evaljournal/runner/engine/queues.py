"""Queues of a session: one lane with a policy per rate-limit key, and the jobs that wait for their delay.

Nothing here waits, records or reads a clock.
"""

import heapq
import itertools
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final

import attrs

from evaljournal.replay.state.run import max_unscored_outputs
from evaljournal.runner.concurrency.key_policy import KeyPolicy
from evaljournal.runner.engine.known_limits import KeyLimits
from evaljournal.runner.engine.trial_work import Job, ScorerCall, TrialWork

_FAILURES: Final = attrgetter("failures")
"""A probe is the first job with the fewest failures, so that probes do not use up the retries of one trial."""


@attrs.define(eq=False)
class Lane:
    """One rate-limit key: its policy, its queued jobs, and how many are in flight."""

    key: str
    policy: KeyPolicy
    limits: KeyLimits | None = None
    """Its known limits; None if its jobs are no calls that they apply to."""
    is_elastic: bool = False
    """Whether its slots follow from its known limits: the user has not chosen them, and a slot costs little."""
    trials: deque[TrialWork] = attrs.field(factory=deque)
    calls: deque[ScorerCall] = attrs.field(factory=deque)
    """Scorer calls; they start before attempts, so that outputs do not accumulate."""
    has_trials: bool = False
    has_calls: bool = False
    counted_jobs: int = 0
    """Attempts and calls in flight that count against the limit."""
    hung_jobs: int = 0
    """Attempts and calls in flight that do not count, because they started before the endpoint stopped responding."""
    epoch: int = 0
    """How many times the endpoint has stopped responding."""
    closed_until: float = 0.0
    """When the policy may allow the next start, unless another event comes first."""
    counted_limit: int = 0
    """The limit that is included in the sums of `Queues`."""
    next_check: float = math.inf
    """When to call the policy again, because time alone may change its decision."""

    def put(self, job: Job) -> None:
        """Queue a job; one whose delay is over goes to the front, unless it `goes_to_end`."""
        queue: deque[Any] = self.trials if isinstance(job, TrialWork) else self.calls
        (queue.appendleft if job.delay > 0 and not job.goes_to_end else queue.append)(job)

    def next_job(self, is_held: Callable[[Job], bool] | None, *, probe: bool) -> Job | None:
        """Return the next job to start, or to be a breaker's probe; None if all are held. The lane has jobs."""
        queue: Iterable[Job] = self.calls or self.trials
        jobs = iter(queue) if is_held is None else itertools.filterfalse(is_held, queue)
        return min(jobs, key=_FAILURES, default=None) if probe else next(jobs, None)

    def remove(self, job: Job) -> None:
        """Remove a job that starts."""
        queue: deque[Any] = self.calls or self.trials
        if job is queue[0]:
            queue.popleft()
        else:
            queue.remove(job)

    @property
    def may_rise(self) -> bool:
        """Whether its known limits may raise its limit: as many jobs are in flight, or were before the last one ended."""
        is_full = self.counted_jobs + 1 >= self.policy.limit
        return is_full and self.policy.may_follow_rate

    def end(self, job: Job) -> None:
        """Count a job that has ended."""
        if job.epoch == self.epoch:
            self.counted_jobs -= 1
        else:
            self.hung_jobs -= 1

    def discount_in_flight(self) -> None:
        """Stop counting the jobs in flight: the endpoint does not respond."""
        self.hung_jobs += self.counted_jobs
        self.counted_jobs = 0
        self.epoch += 1


class Queues:
    """Lanes, delayed jobs, outputs to score, and the sums of the lanes' limits."""

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        """Rate-limit key → its lane; without keys, all attempts use one lane."""
        self.outputs_to_score: deque[TrialWork] = deque()
        """Trials that were admitted with an output."""
        self.delayed_jobs: list[tuple[float, int, Job]] = []
        """Heap of the jobs that wait for their delay: due time, number and job. Jobs due at the same time keep their order."""
        self._numbers = itertools.count()
        self.collected: deque[Job] = deque()
        """Jobs that have their reply, from a batch."""
        self.hold: Callable[[Job], bool] | None = None
        """Takes a job for a batch; returns False if it is called live."""
        self.waiting_trials = 0
        """Trials that wait for an attempt, over all lanes."""
        self.unscored_outputs = 0
        """Trials with an output that are not completed."""
        self.limit = 0
        """Attempts that may be in flight, over all lanes."""
        self._scorer_limit = 0
        self.max_unscored_outputs = max_unscored_outputs(0)
        """Outputs that may wait for scores; with more, no attempt starts. Outputs may wait for batches without a limit."""
        self._is_closed = False

    def hold_for_batches(self, hold: Callable[[Job], bool]) -> None:
        """Let `hold` take jobs that are called in batches."""
        self.hold, self.max_unscored_outputs = hold, sys.maxsize

    def open(self, lane: Lane, *, trials: bool = False, calls: bool = False) -> None:
        """Open a lane for attempts or scorer calls."""
        self.lanes[lane.key] = lane
        if trials and not lane.has_trials:
            lane.has_trials = True
            self.limit += lane.counted_limit
        if calls and not lane.has_calls:
            lane.has_calls = True
            self._scorer_limit += lane.counted_limit
        self.update_sums(lane)

    def update_sums(self, lane: Lane) -> None:
        """Update the sums with the current limit of a lane."""
        change, lane.counted_limit = lane.policy.limit - lane.counted_limit, lane.policy.limit
        if lane.has_trials:
            self.limit += change
        if lane.has_calls:
            self._scorer_limit += change
            if not self._is_closed and self.hold is None:
                self.max_unscored_outputs = max_unscored_outputs(self._scorer_limit)

    def close_attempts(self) -> None:
        """Start no more attempts; scorer calls may still start."""
        self._is_closed, self.max_unscored_outputs = True, -1

    @property
    def max_consumers(self) -> int:
        """Maximum number of consumers that can have a job."""
        return sum(max(lane.counted_jobs, lane.policy.limit) + lane.hung_jobs for lane in self.lanes.values()) or 1

    @property
    def is_behind(self) -> bool:
        """Whether no attempt starts because too many outputs, which are kept in memory, wait for scores."""
        return self.unscored_outputs > self.max_unscored_outputs

    def put(self, job: Job) -> None:
        """Queue a job that may start, unless it is held for a batch."""
        if self.hold is not None and self.hold(job):
            return
        self.put_live(job)

    def put_live(self, job: Job) -> None:
        """Queue a job that may start."""
        self.waiting_trials += job.__class__ is TrialWork
        self.lanes[job.key].put(job)

    def delay(self, job: Job, due_time: float) -> None:
        """Add a job that may start at `due_time`."""
        heapq.heappush(self.delayed_jobs, (due_time, next(self._numbers), job))

    def put_due(self, now: float) -> float:
        """Queue the jobs whose delay is over; return when the next is due."""
        while self.delayed_jobs and self.delayed_jobs[0][0] <= now:
            self.put(heapq.heappop(self.delayed_jobs)[2])
        return self.delayed_jobs[0][0] if self.delayed_jobs else math.inf

    def has_startable(self, now: float, *, for_probe: bool = False) -> bool:
        """Return whether a queued job may be able to start; a breaker's probe may exceed the limit."""
        if self.outputs_to_score or self.collected:
            return True
        is_behind = self.is_behind
        for lane in self.lanes.values():
            if not lane.calls and (is_behind or not lane.trials):
                continue
            if for_probe or (lane.counted_jobs < lane.policy.limit and lane.closed_until <= now):
                return True
        return False

    def has_calls(self, deadline: float) -> bool:
        """Return whether an output waits for scorer calls that may start before `deadline`."""
        lanes = self.lanes.values()
        return (
            bool(self.outputs_to_score)
            or any(lane.calls and lane.closed_until <= deadline for lane in lanes)
            or any(due_time <= deadline and isinstance(job, ScorerCall) for due_time, _, job in self.delayed_jobs)
        )
