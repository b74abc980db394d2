"""The executor: trials wait in lanes, workers take them, attempts and scorer calls are made, and every step is recorded.

A worker is a task that takes the next job that may start, sees it to its end or to its next wait, and parks when there is
nothing to do. Nothing polls: whatever makes a job ready, frees a place or lets time pass wakes a worker. Decisions (whether to
retry, how many at once) are made elsewhere, as pure functions.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import attrs
import trio

from journal import Record
from journal.errors import Unserialisable
from journal.events import (
    AttemptInterrupted,
    AttemptReturnedLate,
    IntakePaused,
    Noted,
    PolicyEvent,
    PolicyShared,
    StopReason,
    TrialCompleted,
)
from journal.threads import InThread
from replay.intake import NO_RESPONSE
from runner.concurrency import Member, Policy, Steering
from runner.data.to_json import plain
from runner.definition.settings import Settings
from runner.engine.attempt import Cut, Flight, Home, OutOfTime
from runner.engine.attempts import Attempts
from runner.engine.intake import Admission, Intake
from runner.engine.lanes import Lane, Queues
from runner.engine.recorder import Recorder
from runner.engine.scoring import Scoring
from runner.engine.timer import Timer
from runner.engine.trial_work import Call, Job, Work
from runner.notes import Sink
from runner.retries.classify import describe
from runner.scorers.scorer import OpenScorer
from runner.tasks import Task

TURN: Final = 0.01
"""Seconds after which tasks that never wait must let others have their turn."""

PATIENCE: Final = 1.0
"""Seconds that an attempt gets to end after it was cancelled, before it counts as stuck."""

TICK: Final = 2e-6
"""Seconds after the time of a policy's timer at which it is called: times are rounded to the microsecond."""


class Executor:
    """The jobs that wait, the workers, and what each of them does."""

    def __init__(
        self,
        recorder: Recorder,
        task: Task | None,
        scorers: Sequence[OpenScorer],
        policy: Callable[[str], Policy],
        settings: Settings,
        *,
        most_failures: float,
        in_thread: InThread,
    ) -> None:
        """Call `policy` with a rate-limit key for the policy of its lane; without a task, outputs are only scored."""
        self.recorder = recorder
        self.settings = settings
        self.in_thread = in_thread
        self._record, self._now = recorder.record, recorder.clock.now
        self._new_policy = policy
        self.home = Home()
        self._attempts = None if task is None else Attempts(task, self, most_failures=most_failures)
        self._scorers = scorers
        self._scoring = Scoring(scorers, self) if scorers else None

        self.queues = Queues()
        self._in_hand = 0
        """Trials that were taken in and are not at their end."""
        self.completed = 0
        """Trials that have got all their scores in this session."""
        self._admission = Admission(self)

        self._workers = 0
        self._is_looking = False
        """Whether a worker was woken and has not looked for a job yet; it wakes the next if it finds one."""
        self._parked = trio.lowlevel.ParkingLot()
        self._flights: dict[Flight, Job] = {}
        """What is in flight."""
        self._turn_ends = 0.0
        """When others must have their turn, though the tasks do not wait for anything."""
        self._rung = 0.0
        """The last time that was waited for: it has come, even if a rounded clock is a hair behind it."""
        self._alarm = Timer(recorder.clock, self._rouse)
        """For jobs that wait for a time to start."""
        self._watch = Timer(recorder.clock, self._time_out)
        """For jobs in flight that have a timeout."""

        self.stopped: StopReason | None = None
        self.why = ""
        """More about why it was stopped, for people."""
        self.cut_at = math.inf
        """When what is in flight is cancelled, in the seconds of `t`, once it is stopped."""
        self.stuck: list[str] = []
        """Jobs that do not respond to their cancellation."""
        self._landed = trio.Event()
        self._in_grace = trio.CancelScope()
        self._over = trio.Event()
        self._goes_on = True
        """Whether anything more may start: it is neither stopped nor over."""
        self.is_over = False
        """Whether it has ended, so that nothing more is recorded of what is in flight."""

    async def run(self, intake: Intake, *, leave: Callable[[], Any] | None = None) -> None:
        """Run every trial, or stop when told to.

        `leave` is awaited if the run is stopped and something in flight does not end: it ends the process.
        """
        try:
            await self._run(intake, leave)
        finally:
            self._end()  # Whatever returns from now on is too late to be recorded.
            for lane in self.queues.lanes.values():
                if lane.member is not None:
                    lane.member.leave(self._now())

    async def _run(self, intake: Intake, leave: Callable[[], Any] | None) -> None:
        if self._attempts is not None and self.settings.limit_key is None:
            self._open_lane("", trials=True)
        for scorer in self._scorers:
            if not scorer.scorer.is_local:
                self._open_lane(scorer.key, calls=True)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._admission.take_in, intake)
            nursery.start_soon(self._alarm.keep)
            nursery.start_soon(self._watch.keep)
            if self.settings.deadline is not None:
                nursery.start_soon(self._keep_deadline, self.settings.deadline)
            await self._over.wait()
            if self.stuck and leave is not None:
                await leave()
            nursery.cancel_scope.cancel()

    def stop(self, reason: StopReason, why: str = "") -> None:
        """Start nothing more; give what is in flight its grace. The first reason is the one that counts."""
        if self.stopped is not None or self._over.is_set():
            return
        self.stopped, self.why, self._goes_on = reason, why, False
        self.cut_at = self._now() + self.settings.grace
        self._parked.unpark_all()
        self._admission.look()
        self._nursery.start_soon(self._land)

    def refuse(self, exc: BaseException) -> None:
        """Stop because every other call would fail in the same way."""
        error = describe(exc)
        self.stop("unauthorized", f"every other call would fail in the same way: {error.type}: {error.message}")

    def interrupt(self) -> None:
        """Stop because the user asks for it; asked while it is stopping already, cancel what is in flight at once."""
        if self.stopped is None:
            self.stop("interrupted")
        else:
            self.cut_at = min(self.cut_at, self._now())
            self._in_grace.cancel()

    # Queues.

    def _open_lane(self, key: str, *, trials: bool = False, calls: bool = False) -> None:
        """Open the lane of a rate-limit key; a new one begins with its policy's first limit."""
        lane = self.queues.lanes.get(key)
        if lane is not None:
            self.queues.open(key, lane.steering, trials=trials, calls=calls)
            return
        policy = self._new_policy(key)
        steering = Steering(policy, patience=self.settings.retry.rate_limits, key=key)
        lane = self.queues.open(key, steering, trials=trials, calls=calls)
        if isinstance(policy, Member):
            lane.member = policy
            policy.call = partial(self.home.call, self._hear, lane)
            self._record_joined(lane)
        self._record(steering.begin())
        if isinstance(policy, Member):
            self._hear(lane)

    def lane_of(self, job: Job) -> Lane:
        """Return the lane that a job counts for."""
        return self.queues.lanes[job.key]

    def admit(self, work: Work) -> None:
        """Take in a trial."""
        self._in_hand += 1
        if work.is_answered:
            self.queues.unscored += 1
            self.queues.answered.append(work)
        else:
            if self.settings.limit_key is not None:
                self._open_lane(work.key, trials=True)
            if work.delay > 0:
                self.put(work)
            else:
                self.queues.waiting += 1
                self.queues.lanes[work.key].trials.append(work)

    def put(self, job: Job) -> None:
        """Queue a job; one with a delay when that is over."""
        if job.delay > 0:
            due = self._now() + job.delay
            self.queues.delayed.put(job, due)
            self._alarm.schedule(due)
        else:
            self.queues.put(job)

    # Workers.

    def wake(self, *, for_probe: bool = False) -> None:
        """Let a worker look for a job: one that is parked, or a new one; unless there is none that it could start.

        A breaker's probe may start even where every place is taken.
        """
        if self._is_looking or not self._goes_on or not self.queues.has_startable(self.recorder.state.t, for_probe=for_probe):
            return
        if self._parked:
            self._is_looking = True
            self._parked.unpark()
        elif self._workers < self.queues.places + for_probe:
            self._is_looking = True
            self._workers += 1
            self._nursery.start_soon(self._worker)

    async def _worker(self) -> None:
        flight = Flight()
        try:
            while self._goes_on:
                flight = Flight()
                with flight.scope:
                    await self._serve(flight)
                if flight in self._flights:
                    self._end_cancelled(self._flights.pop(flight), flight.ending)
                elif not flight.is_over:
                    break  # There are more workers than places.
        except trio.Cancelled:
            job = self._flights.get(flight)
            if isinstance(job, Work) and not job.is_answered and self._attempts is not None:
                self._attempts.cancel(job)
            raise
        finally:
            self._workers -= 1
            self._flights.pop(flight, None)
            if not self._flights:
                self._landed.set()

    async def _serve(self, flight: Flight) -> None:
        """Take one job after the other, and see each to its end or to its next wait."""
        flights, attempts, scoring = self._flights, self._attempts, self._scoring
        while self._goes_on and not flight.is_over:
            job = self._next()
            if job is None:
                if self._workers > self.queues.places:
                    return
                await self._parked.park()
                continue
            flights[flight] = job
            if isinstance(job, Call):
                assert scoring is not None
                await scoring.make(job, flight)
            elif job.is_answered or (attempts is not None and await attempts.make(job, flight)):
                if scoring is None:
                    self.complete(job)
                else:
                    await scoring.begin(job)
            del flights[flight]
            if self.recorder.state.t > self._turn_ends:  # The time of the last record: to ask for another costs more.
                await trio.lowlevel.checkpoint()
                self._turn_ends = self._now() + TURN

    def _next(self) -> Job | None:
        """Return the next job that may start now; if there is none, see to it that a worker is woken when there may be one."""
        self._is_looking = False
        if not self._goes_on:
            return None
        queues, now = self.queues, max(self._now(), self._rung)
        if queues.delayed:
            self._alarm.schedule(queues.let_in(now))
        if self._admission.is_waiting:
            self._admission.look()
        if queues.answered:
            answered = queues.answered.popleft()
            self.wake()
            return answered
        for lane in queues.lanes.values():
            if lane.calls or (lane.trials and queues.unscored <= queues.most_unscored):
                gate = lane.steering.may_start(now)
                if gate.open:
                    return self._take(lane, probe=gate.probe)
                if gate.at is not None:
                    lane.closed_until = gate.at
                    self._ask_at(lane, gate.at)
        return None

    def _take(self, lane: Lane, *, probe: bool) -> Job:
        """Take the next job out of a lane, and wake a worker for the one after it."""
        job = lane.prober() if probe else lane.calls.popleft() if lane.calls else lane.trials.popleft()
        self.queues.waiting -= job.__class__ is Work
        lane.busy += 1
        job.epoch, lane.closed_until = lane.epoch, 0.0
        if self._parked or len(self.queues.lanes) > 1 or self._workers < lane.steering.limit + lane.hung:
            self.wake()
        return job

    def _set_timer(self, lane: Lane, now: float) -> None:
        """Have the policy asked when time alone may change what it decides, although every place is taken."""
        if lane.at == math.inf and lane.busy >= lane.steering.limit and (lane.trials or lane.calls):
            gate = lane.steering.may_start(now)
            if not gate.open and gate.at is not None:
                self._ask_at(lane, gate.at)

    def _ask_at(self, lane: Lane, at: float) -> None:
        lane.at = at + TICK
        self._alarm.schedule(lane.at)

    def _end_cancelled(self, job: Job, ending: OutOfTime | Cut) -> None:
        """Record the end of a job that was cancelled."""
        if isinstance(job, Call):
            assert self._scoring is not None
            self._scoring.end(job, ending)
        elif job.is_answered:
            self.let_go()  # The output stays, and is scored when the run is resumed.
        elif self._attempts is not None:
            self._attempts.end(job, ending)

    # What attempts and calls need.

    def due_in(self, timeout: float) -> float:
        """Return when a job that starts now has exceeded its timeout, and watch that time."""
        due = self._now() + timeout
        self._watch.schedule(due)
        return due

    def complete(self, work: Work) -> None:
        """Record that a trial has its output and all its scores."""
        self.queues.unscored -= 1
        self.completed += 1
        if work.completes:
            self._record(TrialCompleted(trial=work.trial, attempts=work.attempts))
        self.let_go()

    def let_go(self) -> None:
        """Count a trial that is at its end, or is left for another session."""
        self._in_hand -= 1
        if not self._in_hand:
            self.end_if_done()

    def tell(self, record: Record, job: Job) -> None:
        """Tell the policy what happened, and record what it decides."""
        lane = self.queues.lanes[job.key]
        lane.closed_until = 0.0
        events = lane.steering.take(record)
        if events or lane.steering.limit != lane.counted:
            self._decide(lane, events)
        self._set_timer(lane, record.t)

    def _decide(self, lane: Lane, events: Sequence[PolicyEvent], when: float | None = None) -> None:
        """Record what a policy has decided, and act on it."""
        self._record_joined(lane)
        for event in events:
            self._record(event, *() if when is None else (when,))
            if isinstance(event, IntakePaused) and event.cause == NO_RESPONSE:
                lane.give_up_hung()
        self.queues.count(lane)
        self.wake()

    def _hear(self, lane: Lane) -> None:
        """Record what other runs have changed in a policy that they share, and look whether something may start."""
        if self._over.is_set() or self.recorder.journal.failure is not None or lane.member is None:
            return
        lane.closed_until = 0.0
        self._decide(lane, lane.steering.adopt(lane.member.received()))

    def _record_joined(self, lane: Lane) -> None:
        """Record with which runs the policy of a lane is shared from now on."""
        if lane.member is not None:
            for run in lane.member.joined():
                self._record(PolicyShared(key=lane.key, run=run))

    def sink(self, work: Work) -> Sink:
        """Return what takes the notes of a task or a scorer, at whatever time and from wherever they come."""
        return partial(self.home.call, self._note, work, work.attempts)

    def _note(self, work: Work, number: int, values: dict[str, Any]) -> None:
        for name, value in values.items():
            event = Noted(name=name, value=plain(value), trial=work.trial, attempt=number)
            try:
                self.record_aside(event)
            except Unserialisable as exc:
                self.record_aside(attrs.evolve(event, value=str(exc)))  # type: ignore[misc]  # a fact is an attrs class

    def record_aside(self, event: Noted | AttemptReturnedLate | AttemptInterrupted) -> Record | None:
        """Record what may come at any time; if the run is over or the journal has failed, drop it."""
        if self._over.is_set() or self.recorder.journal.failure is not None:
            return None
        return self._record(event)

    # Time, and the end.

    def _rouse(self, at: float) -> None:
        """Do what was to be done at a time: ask policies with a timer, and wake a worker for what may start."""
        self._rung = at
        for lane in self.queues.lanes.values():
            if lane.at <= at:
                lane.at = math.inf
                now = int(self._now() * 1e6 + 0.5) / 1e6  # As the journal rounds it.
                if self._goes_on and (events := lane.steering.elapse(now)):
                    lane.closed_until = 0.0
                    self._decide(lane, events, now)
                self._set_timer(lane, now)
            self._alarm.schedule(lane.at)
        if self.queues.delayed:
            self._alarm.schedule(self.queues.let_in(max(self._now(), at)))
        self.wake(for_probe=True)

    def _time_out(self, at: float) -> None:
        """Cancel what has exceeded its timeout, and look again when the next may have."""
        for flight in self._flights:
            if flight.due <= at:
                flight.time_out()
        self._watch.schedule(min((flight.due for flight in self._flights), default=math.inf))

    async def _keep_deadline(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self.stop("deadline", f"the run's {seconds:g} s are over")

    def end_if_done(self) -> None:
        """End if every trial has been taken in and is at its end."""
        if self.stopped is None and not self._admission.is_open and self._in_hand == 0:
            self._end()

    def _end(self) -> None:
        """Let parked workers return by themselves, which costs less than to cancel them."""
        self._goes_on, self.is_over = False, True
        self._over.set()
        self._parked.unpark_all()

    async def _land(self) -> None:
        """Wait for what is in flight, cancel what does not end within the grace, and abandon what does not respond."""
        for scope, seconds in ((self._in_grace, self.settings.grace), (trio.CancelScope(), PATIENCE)):
            if self._flights:
                self._landed = trio.Event()
                scope.deadline = trio.current_time() + seconds
                with scope:
                    await self._landed.wait()
                for flight in self._flights:
                    flight.cut()
        for job in self._flights.values():
            if isinstance(job, Call):
                self.stuck.append(f"{job.work.trial} in scorer {job.scorer.scorer.name}")
            elif job.is_answered:
                self.stuck.append(f"{job.trial} in a scorer")
            elif self._attempts is not None:
                self.stuck.append(f"{job.trial} in slot {job.slot}")
                self._attempts.abandon(job)
        self._end()
