"""The scheduler: which job starts next, and when. It has the lanes and their policies, delays, and the read-ahead of trials.

**A start.** A consumer that is free asks for the next job. Jobs whose reply is there already come first, then outputs of
earlier sessions, then the lanes in the order in which they were opened. In a lane, scorer calls come before attempts, so
that outputs do not accumulate. A lane asks, in this order: how far its gates reach into the queue; its policy, which knows
how many may be in flight; then each gate. If one refuses, it names a time, for which a timer is set, or infinity: then it wakes
the scheduler itself. Until that time no consumer is woken for the lane; one that is free anyway asks again.

**Consumers do not poll.** An event that makes a job ready or frees a place, or a timer, wakes one consumer; it wakes the next
one if it finds a job. So a wake-up costs nothing if there is nothing to do, and none is lost: what changes what a gate or a
policy decides calls `wake`.

**The end.** The session is over when every trial was read and is done, or when it is stopped. A stop closes attempts first;
outputs may still be scored in the grace period.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import trio

from evaljournal.journal.events import AttemptSucceeded, IntakePaused, Record, TrialCompleted
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay.state.pauses import NO_RESPONSE
from evaljournal.runner.concurrency.policy import Change
from evaljournal.runner.engine.jobs import ANY_JOB, Job, Lane, ScorerCall, StartGate, TrialWork
from evaljournal.runner.engine.queues import Queues, ReadAhead
from evaljournal.runner.engine.recorder import Recorder, RunLoop, Shutdown, Timer
from evaljournal.runner.retries.retry import Retry

TICK: Final = 2e-6
"""Seconds added to the time at which a policy asks to be called, because times are rounded to the microsecond."""


class KernelSettings(Protocol):
    """The settings of a session that the kernel reads; all others belong to what is attached to it."""

    @property
    def timeout(self) -> float | None:
        """Seconds for one attempt."""
        ...

    @property
    def retry(self) -> Retry:
        """Which failures are retried, how often and after which delays."""
        ...

    @property
    def seed(self) -> int:
        """Of the random part of delays."""
        ...

    @property
    def write_ahead(self) -> bool:
        """Whether a start must be on disk before its call."""
        ...

    @property
    def deadline(self) -> float | None:
        """Seconds after which the session stops."""
        ...

    @property
    def grace(self) -> float:
        """Seconds that calls in flight get when the session is stopped."""
        ...


class Consumers:
    """How many consumers there are, and which of them wait for a job."""

    def __init__(self, start: Callable[[], None]) -> None:
        self.count = 0
        self.is_open = True
        """Whether a consumer may take another job."""
        self.is_looking = False
        """Whether a consumer was woken and has not run yet; it wakes the next one if it finds a job. Meanwhile, a consumer
        whose calls never wait takes one job after the other and wakes no other."""
        self.parked = 0
        """Consumers that wait for a job, without those that were woken."""
        self._parking_lot = trio.lowlevel.ParkingLot()
        self._start = start

    def start(self) -> None:
        """Start one more."""
        self.is_looking = True
        self.count += 1
        self._start()

    async def park(self) -> None:
        """Wait until this consumer is woken."""
        self.parked += 1
        try:
            await self._parking_lot.park()
        except trio.Cancelled:
            self.parked -= 1
            raise
        self.is_looking = False

    def wake(self) -> None:
        """Wake one that is parked."""
        self.is_looking = True
        self.parked -= 1
        self._parking_lot.unpark()

    def close(self) -> None:
        """Let all of them return."""
        self.is_open = False
        self.parked = 0
        self._parking_lot.unpark_all()


class Scheduler:
    """The queued jobs of a session, and the consumers that wait for them."""

    def __init__(
        self,
        recorder: Recorder,
        settings: KernelSettings,
        shutdown: Shutdown,
        *,
        loop: RunLoop,
        start_consumer: Callable[[], None],
        has_keys: bool,
    ) -> None:
        """`has_keys`: attempts have several rate-limit keys."""
        self.recorder = recorder
        self.settings = settings
        self.shutdown = shutdown
        self.loop = loop
        self._clock = recorder.clock
        self.new_lane: Callable[[str], Lane]
        """Returns the lane of a rate-limit key, with its policy and gates; set by the assembly."""
        self.gates: tuple[StartGate, ...] = ()
        """The gates that all lanes share."""
        self.queues = Queues()
        self.timer = Timer(recorder.clock, self._fire)
        """Fires for jobs and policies that wait for a time."""
        self._fired_at = 0.0
        """The last time for which the timer fired; a rounded clock may be slightly behind it."""
        self._unfinished_trials = 0
        """Trials that were admitted and are neither done nor released."""
        self.completed = 0
        """Trials whose scorers have all ended in this session."""
        self.read_ahead = ReadAhead(self.queues, shutdown, has_keys=has_keys)
        self.consumers = Consumers(start_consumer)
        self.on_idle: Callable[[], bool] = lambda: False
        """Called when a consumer finds no job, and at the end; returns whether replies may still come from elsewhere."""

    def close(self) -> None:
        """Start nothing more; parked consumers return."""
        self.consumers.close()

    def open_lane(self, key: str, *, trials: bool = False, calls: bool = False) -> None:
        """Open the lane of a rate-limit key for attempts or scorer calls; a new one starts with its policy's first limit."""
        lane = self.queues.lanes.get(key)
        if lane is not None:
            self.queues.open(lane, trials=trials, calls=calls)
            return
        lane = self.new_lane(key)
        self.queues.open(lane, trials=trials, calls=calls)
        self.recorder.record(lane.policy.begin())

    def admit(self, work: TrialWork) -> None:
        """Queue an admitted trial."""
        self._unfinished_trials += 1
        if work.has_output:
            self.queues.unscored_outputs += 1
            self.queues.outputs_to_score.append(work)
        else:
            if self.read_ahead.has_keys:
                self.open_lane(work.key, trials=True)
            self.put(work)

    def complete(self, work: TrialWork) -> None:
        """Record that a trial is completed: it has an output, and its scorers have all ended."""
        self.queues.unscored_outputs -= 1
        self.completed += 1
        if work.completes:
            self.recorder.record(TrialCompleted(trial=work.trial, attempts=work.state.attempts))
        for gate in self.gates:
            gate.completed(work)
        self._unfinished_trials -= 1
        if not self._unfinished_trials:
            self.end_if_done()

    def release(self) -> None:
        """Count a trial that has failed or is left for another session."""
        self._unfinished_trials -= 1
        if not self._unfinished_trials:
            self.end_if_done()

    def end_if_done(self) -> None:
        """End the session if every trial was admitted and is done."""
        if self.on_idle():
            return
        if self.shutdown.reason is None and self.read_ahead.is_done and not self._unfinished_trials:
            self.shutdown.end()
            self.close()

    def stop_on_same_error(self, scorer: str = "") -> None:
        """Stop the session if its first trials, or the first outputs of a scorer, have all ended with the same error."""
        state = self.recorder.state
        error = state.sessions.errors.repeated_errors[scorer]
        if error.stops_run(state.settings):
            name = f"{error.type} at {error.location}" if error.location else error.type
            subject = f"scorer {scorer}: the first {error.trials:,} outputs" if scorer else f"the first {error.trials:,} trials"
            self.shutdown.stop("same_error", f"{subject} ended with {name}; fix it, then resume")
            if scorer:
                self.close()  # Outputs that wait for this scorer would fail in the same way.

    def put(self, job: Job) -> None:
        """Queue a job, after its delay if it has one."""
        if job.delay > 0:
            due_time = self._clock.now() + job.delay
            self.queues.delay(job, due_time)
            self.timer.schedule(due_time)
        elif self.queues.hold is None:
            self.queues.put_live(job)
        else:
            self.queues.put(job)

    def wake(self, *, for_probe: bool = False) -> None:
        """Let a consumer, parked or new, look for a job if there is one that may be able to start.

        A breaker's probe may exceed the limit.
        """
        consumers, queues = self.consumers, self.queues
        if not consumers.is_looking and consumers.is_open and queues.has_startable(self.recorder.state.t, for_probe=for_probe):
            if consumers.parked:
                consumers.wake()
            elif consumers.count < queues.max_consumers + for_probe:
                consumers.start()

    def next_job(self) -> Job | None:
        """Return the next job that may start now; if there is none, a consumer is woken when there may be one."""
        if not self.consumers.is_open:
            return None
        clock, queues = self._clock, self.queues
        now = max(clock.monotonic() - clock.start, self._fired_at)
        if queues.delayed_jobs:
            self.timer.schedule(queues.put_due(now))
        if self.read_ahead.is_waiting:
            self.read_ahead.request()
        if queues.answered and self.shutdown.reason is None:
            return self._answered_job()
        if queues.outputs_to_score and all(gate.may_score(queues.outputs_to_score[0]) for gate in self.gates):
            work = queues.outputs_to_score.popleft()
            self.wake()
            return work
        takes_trials = queues.unscored_outputs <= queues.max_unscored_outputs
        for lane in queues.lanes.values():
            if (lane.calls or (lane.trials and takes_trials)) and (job := self._start(lane, now)) is not None:
                return job
            if not self.consumers.is_open:  # A gate has stopped the session.
                break
        return None

    def _answered_job(self) -> Job:
        """Return the next job that has its reply."""
        job_lane, job = self.queues.answered.popleft()
        job.lane, job.epoch, job.is_probe = job_lane, job_lane.epoch, False
        job_lane.counted_jobs += 1
        self.wake()
        return job

    def _start(self, lane: Lane, now: float) -> Job | None:
        """Return the next job of a lane if its policy and its gates allow it."""
        gates, reach = lane.gates, ANY_JOB
        for gate in gates:
            reach = min(reach, gate.reach(lane))
        if gates and not (reach and (lane.calls or (lane.trials and not self.queues.is_behind))):
            return None  # A gate may have taken jobs out of the lane.
        permit = lane.policy.may_start(now)
        if permit.check_at is not None:
            self._close_until(lane, permit.check_at)
        if not permit.open:
            return None
        state = self.recorder.state
        queue: deque[Any] = lane.calls or lane.trials
        job: Job | None = queue[0]
        if permit.probe or state.trials.attempts.errors or state.scoring.failed:
            job = lane.next_job(self._is_held, probe=permit.probe and reach == ANY_JOB)
        if job is None or (gates and not self._is_admitted(job, lane, now)):
            return None
        if job is queue[0]:
            queue.popleft()
        else:
            queue.remove(job)
        for gate in gates:
            gate.start(job)
        self.queues.waiting_trials -= job.__class__ is TrialWork
        lane.counted_jobs += 1
        job.lane, job.epoch, job.is_probe, lane.closed_until = lane, lane.epoch, permit.probe, 0.0
        # If another job may start while this one is executed, a consumer looks for it.
        consumers = self.consumers
        if not consumers.is_looking and (
            consumers.parked or len(self.queues.lanes) > 1 or consumers.count < lane.policy.limit + lane.hung_jobs
        ):
            self.wake()
        return job

    def _is_admitted(self, job: Job, lane: Lane, now: float) -> bool:
        """Return whether all gates of a lane admit a job; otherwise close the lane until the time that the first one names."""
        for gate in lane.gates:
            if (time := gate.admit(job, now)) is not None:
                if time < math.inf:
                    self._close_until(lane, time)
                return False
        return True

    def _close_until(self, lane: Lane, time: float) -> None:
        lane.closed_until = time
        self._call_policy_at(lane, time)

    def _is_held(self, job: Job) -> bool:
        """Return whether a job waits for the first ones, which failed with the same error."""
        state = self.recorder.state
        if isinstance(job, ScorerCall):
            return state.is_held(job.work.trial, job.scorer.scorer.name)
        return state.is_held(job.trial)

    @property
    def is_waiting(self) -> bool:
        """Whether all trials were read, and no job is queued that may start now or after a delay."""
        queues = self.queues
        return self.read_ahead.is_done and not (queues.answered or queues.delayed_jobs or self.consumers.is_looking)

    def end_call(self, job: Job, *, is_answered: bool) -> None:
        """Count the call of a job that has ended."""
        lane = job.lane
        if job.epoch == lane.epoch:
            lane.counted_jobs -= 1
        else:
            lane.hung_jobs -= 1
        for gate in lane.gates:
            gate.leave(job, is_answered=is_answered)

    @property
    def is_idle(self) -> bool:
        """Whether no attempt is in flight, and no output is being scored."""
        return not self.recorder.state.trials.running and self.queues.unscored_outputs == len(self.queues.outputs_to_score)

    def inform_policy(self, record: Record, job: Job) -> None:
        """Pass the start or the end of a job to its policy, and record the decisions of the policy."""
        lane, event = job.lane, record.event
        if lane.is_live:
            lane.closed_until = 0.0
            if job.waited and isinstance(event, AttemptSucceeded):  # Its latency is that of its calls.
                event = evolve_fact(event, elapsed=max(event.elapsed - job.waited, 0.0))
            events = lane.policy.observe(event, record.t)  # type: ignore[arg-type]  # a start or an end
        else:
            events = []
        for gate in lane.gates:
            events += gate.observe(job, record)
        if not lane.is_live:
            return
        if events or lane.policy.limit != lane.counted_limit:
            self.apply(lane, events)
        if lane.next_check == math.inf and lane.counted_jobs >= lane.policy.limit:
            self._set_timer(lane, record.t)

    def is_free_probe(self, job: Job, name: str) -> bool:
        """Return whether the last start of a trial or a scorer call was a probe that does not count against its retries."""
        return job.lane.is_live and name in job.lane.policy.free_probes

    def apply(self, lane: Lane, events: Sequence[Change]) -> None:
        """Record the decisions of a policy, and act on them."""
        for event in events:
            self.recorder.record(event)
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
                now = self._clock.now()
                if self.consumers.is_open and (events := lane.policy.elapse(now)):
                    lane.closed_until = 0.0
                    self.apply(lane, events)
                self._set_timer(lane, now)
            self.timer.schedule(lane.next_check)
        self.timer.schedule(self.queues.put_due(max(self._clock.now(), time)))
        self.wake(for_probe=True)
