"""The scheduler: which job starts next, and when. It has the lanes and their policies, delays, and the read-ahead of trials.

Nothing polls: an event that makes a job ready or frees a place, or a timer, wakes a consumer.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import trio

from evaljournal.journal import Record
from evaljournal.journal.events import AttemptStarted, AttemptSucceeded, IntakePaused, LimitUnit, TrialCompleted
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay.results.budget_text import block_text
from evaljournal.replay.state.budget import Amounts, Block
from evaljournal.replay.state.pauses import NO_RESPONSE
from evaljournal.replay.text import day_limit_text
from evaljournal.runner.concurrency.key_policy import KeyPolicy
from evaljournal.runner.concurrency.policy import CallEvent, Change
from evaljournal.runner.data.case import Case
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.definition.shared_budget import BudgetShare
from evaljournal.runner.engine.known_limits import KeyLimits, max_slots
from evaljournal.runner.engine.queues import Lane, Queues
from evaljournal.runner.engine.recorder import Recorder, RunLoop, Shutdown, Timer
from evaljournal.runner.engine.trial_work import Job, ScorerCall, TrialWork
from evaljournal.runner.tasks.call_size import CallSize
from evaljournal.runner.tasks.prices import BATCH
from evaljournal.runner.workers.driver import Workers

READ_AHEAD: Final = 64
"""Trials that are read beyond twice the limit: reading in batches saves switches to a thread."""
READ_AHEAD_WITH_KEYS: Final = 10_000
"""Trials that are read if there are rate-limit keys: those of a paused key must not delay the others."""
TICK: Final = 2e-6
"""Seconds added to the time at which a policy asks to be called, because times are rounded to the microsecond."""


Estimate = Callable[[Case, str, str], Amounts]
"""Returns what an attempt at a case with a variant may use in a service tier."""


class Scheduler:
    """The queued jobs of a session, and the consumers that wait for them."""

    def __init__(
        self,
        recorder: Recorder,
        settings: Settings,
        new_policy: Callable[[str], KeyPolicy],
        shutdown: Shutdown,
        *,
        has_keys: bool,
        loop: RunLoop,
        start_consumer: Callable[[], None],
        estimate: Estimate | None = None,
        budget_share: BudgetShare | None = None,
        limits_of: Callable[[str], KeyLimits | None] = lambda _: None,
        is_elastic: Callable[[str], bool] = lambda _: False,
        size_of: Callable[[Job], CallSize] = lambda _: CallSize(),
        workers: Workers | None = None,
    ) -> None:
        """`new_policy` returns the policy for a rate-limit key; `has_keys`: attempts have several.

        `limits_of` returns the known limits of a key, and `size_of` the size of the call that a job makes. `is_elastic` returns
        whether the slots of a key follow from its known limits.

        `estimate` returns what an attempt at a case with a variant may use; without it there is no budget. `budget_share` is
        the run's part if other runs spend from the same one. Jobs that run in workers wait for a place in `workers`.
        """
        self.recorder = recorder
        self.settings = settings
        self.shutdown = shutdown
        self.loop = loop
        self._record, self._now = recorder.record, recorder.clock.now
        self._new_policy = new_policy
        self.has_keys = has_keys
        self._start_consumer = start_consumer
        self._limits_of, self._is_elastic = limits_of, is_elastic
        self._size_of = size_of
        self._estimate = estimate
        self._budget = budget if estimate is not None and (budget := recorder.state.budget) and budget.limits else None
        self._budget_share = budget_share if self._budget is not None else None
        if self._budget is not None and budget_share is not None:
            budget_share.begin(self._budget, self.wake, self._is_settled)
        self._block: Block | None = None
        """Why the budget did not allow the last line of a batch."""
        self._is_over_budget = False
        """Whether the budget did not allow the last start."""
        self._workers = workers
        if workers is not None:
            workers.on_room = self.wake
        self.queues = Queues()
        self.timer = Timer(recorder.clock, self._fire)
        """Fires for jobs and policies that wait for a time."""
        self._fired_at = 0.0
        """The last time for which the timer fired; a rounded clock may be slightly behind it."""
        self.is_open = True

        self._unfinished_trials = 0
        """Trials that were admitted and are neither done nor released."""
        self.completed = 0
        """Trials whose scorers have all ended in this session."""
        self.is_admission_done = False
        self._is_admission_waiting = False
        self._admission_event = trio.Event()

        self.consumers = 0
        self._is_looking = False
        """Whether a consumer was woken and has not looked for a job yet; it wakes the next one if it finds a job."""
        self._parking_lot = trio.lowlevel.ParkingLot()
        self.wake_batcher: Callable[[], bool] = lambda: False
        """Lets the batcher check what can be done; returns whether the session can still end a batch."""

    def close(self) -> None:
        """Start nothing more; parked consumers return."""
        self.is_open = False
        self._parking_lot.unpark_all()

    def open_lane(self, key: str, *, trials: bool = False, calls: bool = False) -> None:
        """Open the lane of a rate-limit key for attempts or scorer calls; a new one starts with its policy's first limit."""
        lane = self.queues.lanes.get(key)
        if lane is not None:
            self.queues.open(lane, trials=trials, calls=calls)
            return
        lane = Lane(key, self._new_policy(key), self._limits_of(key), self._is_elastic(key))
        self._raise_limit(lane)  # The first limit is recorded below.
        self.queues.open(lane, trials=trials, calls=calls)
        self._record(lane.policy.begin())

    def _raise_limit(self, lane: Lane) -> list[Change]:
        """Let the limit of a lane follow from the rate of its known limits, if it has any; return the change to record."""
        rate = None if lane.limits is None else lane.limits.limits.call_rate
        if rate is None:
            return []
        used_slots = sum(other.policy.limit for other in self.queues.lanes.values() if other is not lane)
        return lane.policy.follow_rate(rate, max_slots(used_slots) if lane.is_elastic else 0)

    def admit(self, work: TrialWork) -> None:
        """Queue an admitted trial."""
        self._unfinished_trials += 1
        if work.has_output:
            self.queues.unscored_outputs += 1
            self.queues.outputs_to_score.append(work)
        else:
            if self.has_keys:
                self.open_lane(work.key, trials=True)
            self.put(work)

    @property
    def admission_room(self) -> int:
        """How many trials to read now; 0 if enough are queued, or too many outputs wait for scores."""
        queues = self.queues
        capacity = READ_AHEAD_WITH_KEYS if self.has_keys else 2 * queues.limit + READ_AHEAD
        room = capacity - queues.waiting_trials
        return 0 if room <= queues.limit or queues.is_behind else room

    async def wait_admission_needed(self) -> None:
        """Wait until few trials are queued, or the session is stopped."""
        self._admission_event, self._is_admission_waiting = trio.Event(), True
        await self._admission_event.wait()

    def request_admission(self) -> None:
        """Let admission continue if few trials are queued, or if the session is stopped."""
        queues, low_mark = self.queues, READ_AHEAD_WITH_KEYS // 2 if self.has_keys else 0
        is_low = queues.waiting_trials <= queues.limit or queues.waiting_trials <= low_mark
        if (is_low and not queues.is_behind) or self.shutdown.reason is not None:
            self._is_admission_waiting = False
            self._admission_event.set()

    def complete(self, work: TrialWork) -> None:
        """Record that a trial is completed: it has an output, and its scorers have all ended."""
        self.queues.unscored_outputs -= 1
        self.completed += 1
        if work.completes:
            self._record(TrialCompleted(trial=work.trial, attempts=work.state.attempts))
        if self._budget_share is not None:
            self._budget_share.wake_others()
        self.release()

    def release(self) -> None:
        """Count a trial that is done or is left for another session."""
        self._unfinished_trials -= 1
        if not self._unfinished_trials:
            self.end_if_done()

    def end_if_done(self) -> None:
        """End the session if every trial was admitted and is done."""
        if self.wake_batcher():
            return
        if self.shutdown.reason is None and self.is_admission_done and not self._unfinished_trials:
            self.shutdown.end()
            self.close()

    def stop_on_same_error(self, scorer: str = "") -> None:
        """Stop the session if its first trials, or the first outputs of a scorer, have all ended with the same error."""
        state = self.recorder.state
        error = state.repeated_errors[scorer]
        if error.stops_run(state.settings):
            name = f"{error.type} at {error.location}" if error.location else error.type
            subject = f"scorer {scorer}: the first {error.trials:,} outputs" if scorer else f"the first {error.trials:,} trials"
            self.shutdown.stop("same_error", f"{subject} ended with {name}; fix it, then resume")
            if scorer:
                self.close()  # Outputs that wait for this scorer would fail in the same way.

    def put(self, job: Job) -> None:
        """Queue a job, after its delay if it has one."""
        if job.delay > 0:
            due_time = self._now() + job.delay
            self.queues.delay(job, due_time)
            self.timer.schedule(due_time)
        else:
            self.queues.put(job)

    def wake(self, *, for_probe: bool = False) -> None:
        """Let a consumer, parked or new, look for a job if there is one that may be able to start.

        A breaker's probe may exceed the limit.
        """
        if self._is_looking or not self.is_open or not self.queues.has_startable(self.recorder.state.t, for_probe=for_probe):
            return
        if self._parking_lot:
            self._is_looking = True
            self._parking_lot.unpark()
        elif self.consumers < self.queues.max_consumers + for_probe:
            self._is_looking = True
            self.consumers += 1
            self._start_consumer()

    async def park(self) -> None:
        """Wait until there may be a job."""
        await self._parking_lot.park()

    def next_job(self) -> Job | None:
        """Return the next job that may start now; if there is none, a consumer is woken when there may be one."""
        self._is_looking = False
        if not self.is_open:
            return None
        queues, now = self.queues, max(self._now(), self._fired_at)
        if queues.delayed_jobs:
            self.timer.schedule(queues.put_due(now))
        if self._is_admission_waiting:
            self.request_admission()
        if queues.collected and self.shutdown.reason is None:
            return self._collected_job()
        if queues.outputs_to_score and self._may_score(queues.outputs_to_score[0]):
            work = queues.outputs_to_score.popleft()
            self.wake()
            return work
        for lane in queues.lanes.values():
            if self._workers is not None:
                self._set_aside(lane, self._workers)
            if self._has_next(lane) and (job := self._start(lane, now)) is not None:
                return job
        return None

    def _collected_job(self) -> Job:
        """Return the next job that has its reply; it reserves nothing, because its batch does, and is no probe."""
        job = self.queues.collected.popleft()
        job.is_probe = False
        if isinstance(job, TrialWork):
            job.reserved = job.other_runs = None
        self.wake()
        return job

    def _start(self, lane: Lane, now: float) -> Job | None:
        """Return the next job of a lane if its policy, the budget and the known limits allow it."""
        permit, workers = lane.policy.may_start(now), self._workers
        if permit.check_at is not None:
            lane.closed_until = permit.check_at
            self._call_policy_at(lane, permit.check_at)
        if not permit.open:
            return None
        # Without room, only the first job has a place.
        probe = permit.probe and (workers is None or workers.has_room or not (lane.calls or workers.runs_tasks))
        state = self.recorder.state
        job = lane.next_job(self._is_held if state.errors or state.calls_failed else None, probe=probe)
        if job is None or (job.place is None and workers is not None and not workers.has_room and _needs_place(job, workers)):
            return None
        if not self._is_affordable(job) or not self._has_room(lane, job, now):
            return None
        self._dequeue(lane, job)
        job.is_probe = permit.probe
        return job

    def _is_held(self, job: Job) -> bool:
        """Return whether a job waits for the first ones, which failed with the same error."""
        state = self.recorder.state
        if isinstance(job, ScorerCall):
            return state.is_held(job.work.trial, job.scorer.scorer.name)
        return state.is_held(job.trial)

    def _is_affordable(self, job: Job) -> bool:
        """Return whether the budget allows an attempt, and set its reserve; scorer calls are part of it."""
        budget, estimate = self._budget, self._estimate
        if budget is None or not isinstance(job, TrialWork):
            return True
        assert estimate is not None
        variant = job.state.variant
        job.reserved = budget.reserve(variant, {})
        if len(job.reserved) < len(budget.limits):
            job.reserved = budget.reserve(variant, estimate(job.case, variant, ""))
        if (share := self._budget_share) is not None:
            job.other_runs = share.other_runs()
            if len(job.reserved) < len(budget.limits) and not share.may_explore:
                return self._is_allowed(Block(reason="unknown", unit=min(budget.limits.keys() - job.reserved.keys())))
        return self._is_allowed(budget.block(variant, job.reserved, job.other_runs or {}))

    def _has_room(self, lane: Lane, job: Job, now: float) -> bool:
        """Return whether the known limits have room for a job, and take its need from them."""
        limits = lane.limits
        if limits is None:
            return True
        job.size = size = self._size_of(job) if limits.needs_sizes else CallSize()
        job.admitted, job.usage = None, None
        if limits.limits.impossible(size) is not None:
            return True  # It fails before anything is sent, and takes nothing.
        admitted = limits.limits.admit(size, limits.now())
        if not isinstance(admitted, float):
            job.admitted = admitted
            return True
        if limits.day_wait() > 0:
            if self._is_idle:
                self.stop_at_day_limit(limits)
            return False
        lane.closed_until = now + admitted
        self._call_policy_at(lane, now + admitted)
        return False

    def stop_at_day_limit(self, limits: KeyLimits) -> bool:
        """Stop the session if a declared limit per day is used up; return whether it is."""
        if (day_wait := limits.day_wait()) > 0:
            self.shutdown.stop("quota", day_limit_text(day_wait, self.recorder.clock.wall()))
        return day_wait > 0

    @property
    def is_waiting(self) -> bool:
        """Whether all trials were read, and no job is queued that may start now or after a delay."""
        queues = self.queues
        return self.is_admission_done and not (queues.collected or queues.delayed_jobs or self._is_looking)

    @property
    def has_live_jobs(self) -> bool:
        """Whether a job is queued in a lane that does not wait for the budget."""
        return any(lane.calls or (lane.trials and not self._is_over_budget) for lane in self.queues.lanes.values())

    def reserve_line(self, job: Job, reserved: Mapping[str, float]) -> Amounts | None:
        """Return what the budget reserves for a line of a batch whose other lines need `reserved`; None if it does not fit.

        Scorer calls are part of what it reserves for attempts.
        """
        budget, estimate = self._budget, self._estimate
        if budget is None or isinstance(job, ScorerCall):
            return {}
        assert estimate is not None
        variant = job.state.variant
        reserve = budget.reserve(variant, estimate(job.case, variant, BATCH))
        share = self._budget_share
        other_runs = share.other_runs() if share is not None else {}
        total = {unit: reserved.get(unit, 0.0) + amount for unit, amount in reserve.items()}
        self._block = budget.block(variant, total, other_runs)
        return reserve if self._block is None else None

    def stop_over_budget(self) -> None:
        """Stop the session because the budget allows no line of a batch, unless other runs may release a part of it."""
        self._is_allowed(self._block)

    def need_of(self, job: Job) -> dict[LimitUnit, float] | None:
        """Return what a job that starts takes from the known limits, to be recorded; None if none is known."""
        limits = None if job.is_collected else self.queues.lanes[job.key].limits
        return None if limits is None or job.admitted is None else limits.limits.recorded_need(job.admitted)

    def check_size(self, job: Job) -> None:
        """Raise `OverLimit` if the call of a job needs more than a limit allows."""
        limits = None if job.is_collected else self.queues.lanes[job.key].limits
        if limits is not None and job.admitted is None:
            limits.check(job.size)

    def read_reply(self, job: Job, status: int, headers: Mapping[str, str]) -> None:
        """Read the limits in the head of the reply to a job's call, which may allow the next start."""
        lane = self.queues.lanes[job.key]
        if lane.limits is not None and job.admitted is not None:
            lane.limits.read(job.admitted, status, headers)
            lane.closed_until = 0.0
            if lane.may_rise and (events := self._raise_limit(lane)):
                self._apply(lane, events)
            self.wake()

    def end_call(self, job: Job, *, is_answered: bool) -> None:
        """Count the call of a job that has ended; the reply of a batch is no call."""
        if job.is_collected:
            return
        self.queues.lanes[job.key].end(job)
        limits = self.queues.lanes[job.key].limits
        if limits is not None and job.admitted is not None and is_answered:
            limits.limits.end(job.admitted, job.usage)
        job.admitted = None

    def _may_score(self, work: TrialWork) -> bool:
        """Return whether the output of an earlier session may be scored: not if the budget is exceeded, and judges cost."""
        budget = self._budget
        if budget is None or not any(lane.has_calls for lane in self.queues.lanes.values()):
            return True
        other_runs = {} if self._budget_share is None else self._budget_share.other_runs()
        return self._is_allowed(budget.block(work.state.variant, dict.fromkeys(budget.limits, 0.0), other_runs))

    def _is_allowed(self, block: Block | None) -> bool:
        """Return whether the budget allows a start; if not, stop the session if nothing is in flight, here or in other runs."""
        if (share := self._budget_share) is not None:
            share.is_blocked = block is not None
        self._is_over_budget = block is not None
        if block is None:
            return True
        if self._is_idle and not self.recorder.state.batch_lines.open and not (share is not None and share.others_may_release):
            if share is not None and self._budget is not None:
                share.blocked_by = self._budget.other_runs = share.other_runs()  # Recorded with the stop.
            self.shutdown.stop("budget", block_text(self.recorder.state, block))
            self.close()
        return False

    def _is_settled(self) -> bool:
        """Whether the session will release no reserve: nothing is in flight, and outputs to score must wait for the budget."""
        share = self._budget_share
        is_idle = self._is_idle and not self.recorder.state.batch_lines.open
        return is_idle and (not self.queues.unscored_outputs or (share is not None and share.is_blocked))

    @property
    def _is_idle(self) -> bool:
        """Whether no attempt is in flight, and no output is being scored."""
        return not self.recorder.state.running and self.queues.unscored_outputs == len(self.queues.outputs_to_score)

    def _has_next(self, lane: Lane) -> bool:
        """Return whether a lane has a job that may be taken; if it runs in a worker, there must be a place for it."""
        queues, workers = self.queues, self._workers
        if not lane.calls and (not lane.trials or queues.is_behind):
            return False
        if workers is None:
            return True
        job: Job = lane.calls[0] if lane.calls else lane.trials[0]
        return not _needs_place(job, workers) or job.place is not None or workers.has_room

    def _set_aside(self, lane: Lane, workers: Workers) -> None:
        """Let the jobs at the head of a lane that need a worker of their own wait for one outside the lane."""
        queue: deque[Any]
        for queue in (lane.calls, lane.trials) if workers.runs_tasks else (lane.calls,):
            while queue and (job := queue[0]).needs_own_worker and (job.place is None or not job.place.is_alive):
                queue.popleft()
                job.place = None
                self.queues.waiting_trials -= job.__class__ is TrialWork
                workers.reserve_own_worker(job, partial(self._put_back, queue, job))

    def _put_back(self, queue: "deque[Any]", job: Job) -> None:
        queue.appendleft(job)
        self.queues.waiting_trials += job.__class__ is TrialWork
        self.wake()

    def _dequeue(self, lane: Lane, job: Job) -> None:
        """Take a job out of its lane, and wake a consumer for the next one."""
        lane.remove(job)
        if self._workers is not None and _needs_place(job, self._workers):
            self._workers.reserve(job)
        self.queues.waiting_trials -= job.__class__ is TrialWork
        lane.counted_jobs += 1
        job.epoch, lane.closed_until = lane.epoch, 0.0
        if self._parking_lot or len(self.queues.lanes) > 1 or self.consumers < lane.policy.limit + lane.hung_jobs:
            self.wake()

    def inform_policy(self, record: Record, job: Job) -> None:
        """Pass the start or the end of a job to its policy, and record the decisions of the policy."""
        event = cast("CallEvent", record.event)
        if self._budget_share is not None and not isinstance(event, AttemptStarted):
            self._budget_share.wake_others()
        if job.is_collected:
            return
        lane = self.queues.lanes[job.key]
        lane.closed_until = 0.0
        if job.waited and isinstance(event, AttemptSucceeded):  # Its latency is that of its calls.
            event = evolve_fact(event, elapsed=max(event.elapsed - job.waited, 0.0))
        events = lane.policy.observe(event, record.t)
        if lane.limits is not None and lane.limits.needs_sizes and lane.may_rise:
            events += self._raise_limit(lane)
        if events or lane.policy.limit != lane.counted_limit:
            self._apply(lane, events)
        self._set_timer(lane, record.t)

    def is_free_probe(self, job: Job, name: str) -> bool:
        """Return whether the last start of a trial or a scorer call was a probe that does not use up its retry budget."""
        return not job.is_collected and name in self.queues.lanes[job.key].policy.free_probes

    def _apply(self, lane: Lane, events: Sequence[Change]) -> None:
        """Record the decisions of a policy, and act on them."""
        for event in events:
            self._record(event)
            if isinstance(event, IntakePaused) and event.reason == NO_RESPONSE:
                lane.discount_in_flight()
        self.queues.update_sums(lane)
        self.wake()

    def _set_timer(self, lane: Lane, now: float) -> None:
        """Call the policy again when the passing of time may change its decision, although its limit is reached."""
        if lane.next_check == math.inf and lane.counted_jobs >= lane.policy.limit and (lane.trials or lane.calls):
            permit = lane.policy.may_start(now)
            if not permit.open and permit.check_at is not None:
                self._call_policy_at(lane, permit.check_at)

    def _call_policy_at(self, lane: Lane, time: float) -> None:
        lane.next_check = time + TICK
        self.timer.schedule(lane.next_check)

    def _fire(self, time: float) -> None:
        """Call the policies whose time has come, and wake a consumer for the jobs that are due."""
        self._fired_at = time
        for lane in self.queues.lanes.values():
            if lane.next_check <= time:
                lane.next_check = math.inf
                now = self._now()
                if self.is_open and (events := lane.policy.elapse(now)):
                    lane.closed_until = 0.0
                    self._apply(lane, events)
                self._set_timer(lane, now)
            self.timer.schedule(lane.next_check)
        self.timer.schedule(self.queues.put_due(max(self._now(), time)))
        self.wake(for_probe=True)


def _needs_place(job: Job, workers: Workers) -> bool:
    return job.needs_place if isinstance(job, ScorerCall) else workers.runs_tasks
