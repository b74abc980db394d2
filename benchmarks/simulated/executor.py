"""An executor on an event heap instead of a clock: trials, retries, slots, judges, and several runs on one endpoint.

It follows a policy as the real executor does, through the same `KeyPolicy`, and has the same retry budgets. A trial whose
delay is over goes to the front of the queue, except after a probe or after several rate limits in a row: then it goes to the
end.
Scoring does not occupy a slot of the task.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, field

from benchmarks.simulated.endpoint import Answer, Server
from evaljournal.journal.events import AttemptFailed, AttemptStarted, AttemptSucceeded, AttemptTimedOut, FailureCategory
from evaljournal.runner.concurrency.key_policy import KeyPolicy
from evaljournal.runner.concurrency.policy import CallEvent, Change, Policy, StartPermit
from evaljournal.runner.retries.retry import jitter

ERRORS, TIMEOUTS, RATE_LIMITS = 4, 2, 600.0
"""The retry budgets: retries, retries, and seconds of waiting."""
BASE_DELAY, MAX_DELAY = 1.0, 60.0
LAST_AFTER = 4
"""Rate limits in a row after which a trial queues last."""
AHEAD = 64
"""Trials that are read ahead, beyond twice the limit."""


class Timeline:
    """Scheduled events, in order of time."""

    def __init__(self) -> None:
        """Start at 0."""
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._count = 0

    def at(self, t: float, act: Callable[[Any], None], subject: Any) -> None:
        """Call `act(subject)` at a time."""
        self._count += 1
        heapq.heappush(self._events, (t, self._count, act, subject))

    def run(self, seconds: float) -> None:
        """Run the events of this many seconds, or all events."""
        events = self._events
        while events and events[0][0] <= seconds:
            self.now, _, act, subject = heapq.heappop(events)
            act(subject)


@define(eq=False)
class Trial:
    """A trial, and its used retry budgets for the current call: that of the task, or of the judge."""

    number: int
    judging: bool = False
    attempts: int = 0
    errors: int = 0
    timeouts: int = 0
    rate_limits: int = 0
    waited: float = 0.0
    """Seconds of waiting after rate limits."""
    in_a_row: int = 0
    """Rate limits since the last other end."""
    last: bool = False
    """It queues last when its delay is over."""
    calls: int = 0
    """Calls of an agent that succeeded, in this attempt or an earlier one."""

    @property
    def name(self) -> str:
        """Name of its attempt for policies; at most one is in flight."""
        return f"trial-{self.number}:judge" if self.judging else f"trial-{self.number}"


@define(kw_only=True)
class Tally:
    """The results of a run."""

    completed: int = 0
    work: float = 0.0
    """Calls that the endpoint served, weighted by tokens, those with an error of their own included."""
    rate_limited: int = 0
    """Calls rejected by a limit."""
    random_429: int = 0
    """Calls that were rate limited at random, or because their case always is."""
    unavailable: int = 0
    """Calls that failed with a 5xx or timed out."""
    failed: int = 0
    """Trials that failed, poisoned ones not counted."""
    poisoned: int = 0
    """Poisoned trials that failed."""
    ended: float = 0.0
    """When the last trial ended."""
    in_flight: list[tuple[float, int]] | None = None
    """Attempts in flight at each start, if requested."""


@define(eq=False)
class AttemptInFlight:
    """An attempt, and the answer that ends it."""

    trial: Trial
    start: float
    probe: bool
    answer: Answer


class LanePolicy:
    """A policy behind the real `KeyPolicy`, which also decides which probes do not count against a trial's retries."""

    def __init__(self, policy: Policy) -> None:
        """Use a policy."""
        self._key_policy = KeyPolicy(lambda _: policy, policy.limit, patience=RATE_LIMITS)
        self.may_start: Callable[[float], StartPermit] = self._key_policy.may_start
        self.limit = policy.limit

    def observe(self, event: CallEvent, t: float) -> Sequence[Change]:
        """Process a start or an end."""
        changes, self.limit = self._key_policy.observe(event, t), self._key_policy.limit
        return changes

    def elapse(self, t: float) -> Sequence[Change]:
        """Process that time has passed."""
        changes, self.limit = self._key_policy.elapse(t), self._key_policy.limit
        return changes

    def is_free_probe(self, trial: Trial) -> bool:
        """Return whether the trial's last start was a probe that does not count."""
        return trial.name in self._key_policy.free_probes


class Lane:
    """One policy for one endpoint, and its queue of trials."""

    def __init__(self, policy: Policy, server: Server) -> None:
        """Use a policy for a server."""
        self.policy = LanePolicy(policy)
        self.server = server
        self.ready: deque[Trial] = deque()
        self.limit = policy.limit
        self.in_flight = 0
        self.wake: float | None = None

    def elapse(self, t: float) -> None:
        """Call the policy's `elapse` if nothing else happened at this time."""
        self.policy.elapse(t)
        self.limit = self.policy.limit

    def next(self, *, probe: bool) -> Trial:
        """Take the first trial; for a probe, the first with the fewest failures."""
        if not probe:
            return self.ready.popleft()
        trial = min(self.ready, key=lambda trial: trial.errors + trial.timeouts)
        self.ready.remove(trial)
        return trial

    def counts(self, trial: Trial, t: float, *, probe: bool) -> bool:  # noqa: ARG002  # the real policy knows them
        """Return whether the attempt that was just started counts against its trial's retries."""
        return not self.policy.is_free_probe(trial)


@define(eq=False)
class Run:
    """One run of an evaluation: its trials, the lane of the task and, with a judge, the lane of the judge."""

    timeline: Timeline
    task: Lane
    seed: int
    timeout: float
    judge: Lane | None = None
    """The lane that outputs are scored in; it may be the task's own. None: scoring takes no time."""
    trials: int | None = None
    """Number of trials; None: unlimited."""
    ahead: int = 50
    """Trials that may be open at the same time, per slot of the limit: with 1, nothing starts while all are in backoff."""
    first: int = 0
    """Number of the first trial; runs that share an endpoint have different ones."""
    tally: Tally = field(factory=Tally)
    _opened: int = 0
    _open: int = 0

    def start(self) -> None:
        """Start the first calls."""
        self._pump(self.task)

    def _read(self, lane: Lane) -> None:
        """Read trials ahead, as the real executor does."""
        if len(lane.ready) > lane.limit:
            return
        room = 2 * lane.limit + AHEAD - len(lane.ready)
        room = min(room, self.ahead * max(lane.limit, lane.in_flight + 1) - self._open)
        if self.trials is not None:
            room = min(room, self.trials - self._opened)
        for _ in range(room):
            self._opened += 1
            lane.ready.append(Trial(self.first + self._opened))
        self._open += max(room, 0)

    def _pump(self, lane: Lane) -> None:
        """Start calls while the policy allows it, and schedule the next check."""
        timeline, policy = self.timeline, lane.policy
        now = timeline.now
        while True:
            if lane is self.task:
                self._read(lane)
            if not lane.ready:
                return
            permit = policy.may_start(now)
            if not permit.open:
                if permit.check_at is not None and (lane.wake is None or permit.check_at < lane.wake):
                    lane.wake = permit.check_at
                    timeline.at(permit.check_at, self._woken, lane)
                return
            self._begin(lane, lane.next(probe=permit.probe), probe=permit.probe)

    def _woken(self, lane: Lane) -> None:
        now = self.timeline.now
        if lane.wake != now:
            return
        lane.wake = None
        permit = lane.policy.may_start(now)
        if permit.open or permit.check_at is None or permit.check_at <= now:
            lane.elapse(now)
        self._pump(lane)

    def _begin(self, lane: Lane, trial: Trial, *, probe: bool) -> None:
        now = self.timeline.now
        trial.attempts += 1
        answer = lane.server.call(now, trial.number, trial.attempts + 1000 * trial.judging)
        lane.in_flight += 1
        if self.tally.in_flight is not None:
            self.tally.in_flight.append((now, lane.in_flight))
        lane.policy.observe(AttemptStarted(trial=trial.name, attempt=trial.attempts, slot=0, probe=probe), now)
        lane.limit = lane.policy.limit
        counts = lane.counts(trial, now, probe=probe)
        end = self._judged if trial.judging else self._answered
        self.timeline.at(now + min(answer.seconds, self.timeout), end, AttemptInFlight(trial, now, not counts, answer))

    def _answered(self, call: AttemptInFlight) -> None:
        """End a call of the task."""
        if self._ended(self.task, call):
            if self.judge is None:
                self._complete()
            else:
                judging = Trial(call.trial.number, judging=True)
                if self.judge is self.task:  # It precedes new trials; otherwise all would be scored at the end.
                    self.judge.ready.appendleft(judging)
                else:
                    self.judge.ready.append(judging)
                    self._pump(self.judge)
        self._pump(self.task)

    def _judged(self, call: AttemptInFlight) -> None:
        """End a call of the judge."""
        assert self.judge is not None
        if self._ended(self.judge, call):
            self._complete()
        self._pump(self.judge)
        if self.judge is not self.task:
            self._pump(self.task)

    def _complete(self) -> None:
        self.tally.completed += 1
        self.tally.ended = self.timeline.now
        self._open -= 1

    def _ended(self, lane: Lane, call: AttemptInFlight) -> bool:
        """Pass the end of a call to the policy, and retry or fail its trial; return whether it succeeded."""
        t, trial, answer, tally = self.timeline.now, call.trial, call.answer, self.tally
        lane.in_flight -= 1
        counts, elapsed = not call.probe, t - call.start
        attempt: dict[str, Any] = {"trial": trial.name, "attempt": trial.attempts, "elapsed": elapsed}
        if answer.seconds > self.timeout:
            tally.unavailable += 1
            lane.policy.observe(AttemptTimedOut(**attempt, timeout=self.timeout), t)
            lane.limit = lane.policy.limit
            trial.timeouts += counts
            trial.in_a_row = 0
            self._retry(lane, call, self._backoff(trial, trial.timeouts), failed=trial.timeouts > TIMEOUTS)
        elif answer.kind == "ok":
            lane.policy.observe(AttemptSucceeded(**attempt, output=None), t)
            lane.limit = lane.policy.limit
            tally.work += answer.cost
            return True
        elif answer.kind in ("rate_limited", "random_429"):
            tally.rate_limited += answer.kind == "rate_limited"
            tally.random_429 += answer.kind == "random_429"
            failed = AttemptFailed(**attempt, error="", message="", category="rate_limited", retry_after=answer.retry_after)
            lane.policy.observe(failed, t)
            lane.limit = lane.policy.limit
            self._rate_limited(lane, call)
        else:
            unavailable = answer.kind == "unavailable"
            tally.work += answer.cost if answer.kind == "error" else 0.0
            tally.unavailable += unavailable
            category: FailureCategory = "unavailable" if unavailable else "error"
            failed = AttemptFailed(**attempt, error="", message="", category=category, retry_after=answer.retry_after)
            lane.policy.observe(failed, t)
            lane.limit = lane.policy.limit
            trial.errors += counts
            trial.in_a_row = 0
            delay = max(answer.retry_after or 0.0, self._backoff(trial, trial.errors))
            self._retry(lane, call, delay, failed=trial.errors > ERRORS)
        return False

    def _rate_limited(self, lane: Lane, call: AttemptInFlight) -> None:
        """Wait for Retry-After, within the remaining budget."""
        trial, requested = call.trial, call.answer.retry_after or 0.0
        trial.rate_limits += 1
        trial.in_a_row += 1
        left = RATE_LIMITS - trial.waited
        delay = min(max(requested, self._backoff(trial, trial.rate_limits)), left)
        trial.waited += delay if not call.probe else 0.0
        self._retry(lane, call, delay, failed=(left <= 0 or requested > left) and not call.probe)

    def _retry(self, lane: Lane, call: AttemptInFlight, delay: float, *, failed: bool) -> None:
        trial, timeline = call.trial, self.timeline
        if not failed:
            trial.last = call.probe or trial.in_a_row >= LAST_AFTER
            timeline.at(timeline.now + delay, self._ready, (lane, trial))
            return
        self._open -= 1
        self.tally.ended = timeline.now
        poison = self.task.server.endpoint.poison
        if poison is not None and poison.hits(trial.number):
            self.tally.poisoned += 1
        else:
            self.tally.failed += 1

    def _ready(self, subject: tuple[Lane, Trial]) -> None:
        lane, trial = subject
        (lane.ready.append if trial.last else lane.ready.appendleft)(trial)
        self._pump(lane)

    def _backoff(self, trial: Trial, times: int) -> float:
        """Return the delay: exponential, with full jitter."""
        return jitter(self.seed, trial.name, trial.attempts) * min(MAX_DELAY, BASE_DELAY * 2.0 ** min(max(times - 1, 0), 60))
