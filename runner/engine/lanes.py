"""What waits in a session: per rate-limit key a lane with its policy and its queues, and the jobs whose delay is not over.

Nothing here waits, records or reads a clock.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterator
from typing import TypeVar

import attrs

from replay.state import most_unscored
from runner.concurrency import Member, Steering
from runner.engine.trial_work import Call, Job, Work

J = TypeVar("J", Work, Call)


@attrs.define(eq=False)
class Lane:
    """One rate-limit key: its policy, the jobs that wait for it, and how many are in flight."""

    key: str
    steering: Steering
    member: Member | None = None
    """The policy, where other runs may share it."""
    trials: deque[Work] = attrs.field(factory=deque)
    """Trials that wait for an attempt."""
    calls: deque[Call] = attrs.field(factory=deque)
    """Calls of scorers; they start before attempts, so that outputs do not pile up."""
    has_trials: bool = False
    """Whether it is the lane of attempts."""
    has_calls: bool = False
    """Whether it is the lane of a scorer."""
    busy: int = 0
    """Attempts and calls in flight that count against the limit."""
    hung: int = 0
    """Those in flight that do not: they started before the endpoint stopped responding."""
    epoch: int = 0
    """How many times the endpoint has stopped responding."""
    closed_until: float = 0.0
    """When the policy may let the next job start, unless something happens before."""
    counted: int = 0
    """The limit as it is counted in the executor's sums."""
    at: float = math.inf
    """When the policy has to be asked whether time alone has changed something."""

    def put(self, job: Job) -> None:
        """Append a job to its queue; one whose delay is over goes to the front, unless it has to be the last."""
        queue: deque[Work] | deque[Call] = self.trials if isinstance(job, Work) else self.calls
        (queue.appendleft if job.delay > 0 and not job.is_last else queue.append)(job)  # type: ignore[arg-type]  # see above

    def prober(self) -> Job:
        """Remove the job that is a breaker's next probe; there is one."""
        return _prober(self.calls) if self.calls else _prober(self.trials)

    def end(self, job: Job) -> None:
        """Count a job that has ended."""
        if job.epoch == self.epoch:
            self.busy -= 1
        else:
            self.hung -= 1

    def give_up_hung(self) -> None:
        """Do not count what is in flight any more."""
        self.hung += self.busy
        self.busy = 0
        self.epoch += 1


def _prober(queue: deque[J]) -> J:
    """Remove the first job that has not failed, so that a probe tests the endpoint and not the trial; otherwise the first."""
    place = next((place for place, job in enumerate(queue) if not (job.spent.errors or job.spent.timeouts)), 0)
    job = queue[place]
    del queue[place]
    return job


class Delays:
    """Jobs that wait for a time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Job]] = []
        """The earliest first; the number in the middle keeps the order of those that are due at the same time."""
        self._counter = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, job: Job, due: float) -> None:
        """Add a job that may start at `due`."""
        heapq.heappush(self._heap, (due, next(self._counter), job))

    def over(self, now: float) -> Iterator[Job]:
        """Remove the jobs whose delay is over."""
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)[2]

    @property
    def next(self) -> float:
        """When the next delay is over."""
        return self._heap[0][0] if self._heap else math.inf


class Queues:
    """Everything that waits: lanes, delays, and outputs that were taken in to be scored; and the sums of the lanes' limits."""

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        """Rate-limit key → its lane; without keys there is one for all attempts."""
        self.answered: deque[Work] = deque()
        """Trials that were taken in with an output."""
        self.delayed = Delays()
        self.waiting = 0
        """Trials that wait for an attempt, in all lanes."""
        self.unscored = 0
        """Trials in hand that have an output and are not completed."""
        self.limit = 0
        """The most attempts at one time, over all lanes."""
        self._scorer_limit = 0
        """The most calls of scorers at one time."""
        self.most_unscored = most_unscored(0)
        """Outputs that may wait for their scores before no attempt starts."""

    def open(self, key: str, steering: Steering, *, trials: bool = False, calls: bool = False) -> Lane:
        """Return the lane of a rate-limit key for attempts or calls; a new one has this policy."""
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane(key, steering)
        if trials and not lane.has_trials:
            lane.has_trials = True
            self.limit += lane.counted
        if calls and not lane.has_calls:
            lane.has_calls = True
            self._scorer_limit += lane.counted
        self.count(lane)
        return lane

    def count(self, lane: Lane) -> None:
        """Count the present limit of a lane in the sums."""
        change, lane.counted = lane.steering.limit - lane.counted, lane.steering.limit
        if lane.has_trials:
            self.limit += change
        if lane.has_calls:
            self._scorer_limit += change
            self.most_unscored = most_unscored(self._scorer_limit)

    @property
    def places(self) -> int:
        """How many workers there is work for at the most; what exceeds a limit that was lowered ends by itself."""
        return sum(max(lane.busy, lane.steering.limit) + lane.hung for lane in self.lanes.values()) or 1

    @property
    def is_behind(self) -> bool:
        """Whether so many outputs wait for their scores that no attempt may start: they are kept in memory."""
        return self.unscored > self.most_unscored

    def put(self, job: Job) -> None:
        """Queue a job that may start."""
        self.waiting += job.__class__ is Work
        self.lanes[job.key].put(job)

    def let_in(self, now: float) -> float:
        """Queue the jobs whose delay is over; return when the next is."""
        for job in self.delayed.over(now):
            self.put(job)
        return self.delayed.next

    def has_startable(self, now: float, *, for_probe: bool = False) -> bool:
        """Whether a job waits that the limits leave room for, and a policy may let start; a breaker's probe needs no room."""
        if self.answered:
            return True
        is_behind = self.unscored > self.most_unscored
        for lane in self.lanes.values():
            if not lane.calls and (is_behind or not lane.trials):
                continue
            if for_probe or (lane.busy < lane.steering.limit and lane.closed_until <= now):
                return True
        return False


class Slots:
    """Numbers of slots: an attempt takes the lowest one that is free."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._next = 0

    def take(self) -> int:
        """Take the lowest number that is free."""
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1

    def give_back(self, slot: int) -> None:
        """Make a number free again."""
        heapq.heappush(self._free, slot)
