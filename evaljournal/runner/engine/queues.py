"""Queues of a session: its lanes, the jobs that wait for their delay, and those that have their reply.

Nothing here records or reads a clock.
"""

import heapq
import itertools
import math
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import trio

from evaljournal.replay.state.run import max_unscored_outputs
from evaljournal.runner.engine.jobs import Job, Lane, ScorerCall, TrialWork
from evaljournal.runner.engine.recorder import Shutdown

_READ_AHEAD: Final = 64
"""Trials that are read beyond twice the limit: reading several at once saves switches to a thread."""
_READ_AHEAD_WITH_KEYS: Final = 10_000
"""Trials that are read if there are rate-limit keys: those of a paused key must not delay the others."""


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
        self.answered: deque[tuple[Lane, Job]] = deque()
        """Jobs that have their reply already, each with the lane that it is executed in."""
        self.hold: Callable[[Job], bool] | None = None
        """Takes a job that waits for its reply elsewhere; returns False if it is to be called now."""
        self.waiting_trials = 0
        """Trials that wait for an attempt, over all lanes."""
        self.unscored_outputs = 0
        """Trials with an output that are not completed."""
        self.limit = 0
        """Attempts that may be in flight, over all lanes."""
        self._scorer_limit = 0
        self.max_unscored_outputs = max_unscored_outputs(0)
        """Outputs that may wait for scores; with more, no attempt starts."""
        self._is_closed = False

    def hold_with(self, hold: Callable[[Job], bool]) -> None:
        """Let `hold` take jobs before they are queued; any number of outputs may wait for scores then."""
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
            if not self._is_closed and self.max_unscored_outputs != sys.maxsize:
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
        """Queue a job that may start, unless it is held."""
        if self.hold is None or not self.hold(job):
            self.put_live(job)

    def put_live(self, job: Job) -> None:
        """Queue a job that may start; one whose delay is over goes to the front of its lane, unless it `goes_to_end`."""
        lane = self.lanes[job.key]
        queue: deque[Any] = lane.calls
        if job.__class__ is TrialWork:
            queue = lane.trials
            self.waiting_trials += 1
        if job.delay > 0 and not job.goes_to_end:
            queue.appendleft(job)
        else:
            queue.append(job)

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
        if self.outputs_to_score or self.answered:
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


class ReadAhead:
    """How far ahead of their need trials are read."""

    def __init__(self, queues: Queues, shutdown: Shutdown, *, has_keys: bool) -> None:
        """`has_keys`: attempts have several rate-limit keys."""
        self._queues = queues
        self._shutdown = shutdown
        self.has_keys = has_keys
        self.is_done = False
        """Whether all trials were read."""
        self.is_waiting = False
        self._event = trio.Event()

    @property
    def room(self) -> int:
        """How many trials to read now; 0 if enough are queued, or too many outputs wait for scores."""
        queues = self._queues
        capacity = _READ_AHEAD_WITH_KEYS if self.has_keys else 2 * queues.limit + _READ_AHEAD
        room = capacity - queues.waiting_trials
        return 0 if room <= queues.limit or queues.is_behind else room

    async def wait_needed(self) -> None:
        """Wait until few trials are queued, or the session is stopped."""
        self._event, self.is_waiting = trio.Event(), True
        await self._event.wait()

    def request(self) -> None:
        """Let reading continue if few trials are queued, or if the session is stopped."""
        queues, low_mark = self._queues, _READ_AHEAD_WITH_KEYS // 2 if self.has_keys else 0
        is_low = queues.waiting_trials <= queues.limit or queues.waiting_trials <= low_mark
        if (is_low and not queues.is_behind) or self._shutdown.reason is not None:
            self.is_waiting = False
            self._event.set()
