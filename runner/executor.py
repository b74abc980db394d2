"""Who does what when: trials wait, slots take them, attempts are made, and every step is recorded before it is relied on.

A slot is a task that takes the next trial which is ready, makes one attempt, and parks when there is nothing to do. Nothing
polls: whoever makes a trial ready, frees a place or lets time pass wakes a slot. What is decided (again or not, how many at
once) is decided elsewhere, as pure functions; here it is only done.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, Protocol

import attrs
import trio

from journal import Record
from journal.codec import as_read
from journal.errors import JournalError, Unserialisable
from journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptReturnedLate,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    Noted,
    Reason,
    RetryScheduled,
    TrialCompleted,
    TrialFailed,
)
from journal.threads import InThread
from replay.screen import plural
from runner.alarm import Alarm
from runner.attempt import Answered, Cut, Flight, Home, Landing, OutOfTime, Raised
from runner.concurrency import Policy, Steering
from runner.definition import Settings
from runner.failure import Failure, describe
from runner.notes import Sink
from runner.plain import plain
from runner.recorder import Recorder
from runner.retry import Again, GiveUp, TimedOut, chance
from runner.score import Scorer
from runner.scoring import Scoring
from runner.tasks import Ending, Task
from runner.work import Work, key_of

AHEAD: Final = 64
"""Trials that are taken in beyond twice the limit: to read them costs a thread's turn, which few slots should share."""

MOST_AHEAD: Final = 10_000
"""Trials that are taken in where there are keys: those of a back end that is not to be asked now must not hide the others'."""

SOON: Final = 0.02
"""Seconds after which what was read so far is taken in: where cases come slowly, the first must not wait for the others."""

TURN: Final = 0.01
"""Seconds after which tasks that never wait must let others have their turn."""

PATIENCE: Final = 1.0
"""Seconds that an attempt gets to end after it was cut off, before it counts as stuck."""


class Intake(Protocol):
    """Where trials come from."""

    @property
    def found(self) -> deque[Any]:
        """What was read and is not taken in yet."""
        ...

    def read(self, most: int) -> bool:
        """Find what comes next, so much at the most; say whether there was anything.

        It may block, for it is called in a thread; what it has found until then is taken in meanwhile.
        """
        ...

    def admit(self, item: Any) -> Work | None:
        """Record that a trial is taken in; None if nothing is left to do for it. It is called here, and does not block."""
        ...

    def close(self) -> None:
        """See to what follows from there being no more."""
        ...


@attrs.define
class Lane:
    """One back end: the trials that could be put to it, and what decides how many may be at once."""

    steering: Steering
    ready: deque[Work] = attrs.field(factory=deque)

    def prober(self) -> Work:
        """Take the first trial that has not failed, lest a probe tells of a trial and not of the other side; else the first."""
        place = next((place for place, work in enumerate(self.ready) if not (work.spent.errors or work.spent.timeouts)), 0)
        work = self.ready[place]
        del self.ready[place]
        return work


class Executor:
    """The trials that wait, the slots, and who holds which."""

    def __init__(
        self,
        recorder: Recorder,
        task: Task,
        scorers: dict[str, tuple[Scorer, Task]],
        policy: Callable[[], Policy],
        settings: Settings,
        *,
        most_failures: float,
        in_thread: InThread,
    ) -> None:
        self._recorder = recorder
        self._record, self._now = recorder.record, recorder.clock.now
        self._task = task
        self._new_policy = policy
        self._settings = settings
        self._most_failures, self._failures = most_failures, 0
        self._in_thread = in_thread
        self._home = Home()
        self._scoring = Scoring(scorers, recorder, seed=settings.seed, sink=self._sink, refused=self._refused)

        self._lanes: dict[str, Lane] = {}
        """Key → who waits for that back end, and how many it is asked at once; without keys there is one lane, for all."""
        self._waiting = 0
        """How many wait in all lanes."""
        self._plenty = 0 if settings.limit_key is None else MOST_AHEAD // 2
        """How many may wait before no more are looked for, whatever the limit."""
        self._delayed: list[tuple[float, int, Work]] = []
        """Who waits for a time, the earliest first; the middle number keeps equals in order."""
        self._counter = itertools.count()
        self._in_hand = 0
        """Trials that are ready, delayed or held by a slot."""
        self._intake_is_open = True
        self._hungry = trio.Event()

        self._limit = 0
        """The most attempts at one time, over all lanes."""
        self._slots = 0
        self._numbers: list[int] = []
        """Numbers of slots that have retired, the lowest first, to be used again."""
        self._parked = trio.lowlevel.ParkingLot()
        self._flights: dict[int, tuple[Work, Flight]] = {}
        """Slot → what it holds."""
        self._turn_ends = 0.0
        """When others must have their turn, though the tasks do not wait for anything."""
        self._rung = 0.0
        """The last time that was waited for: it has come, even if a rounded clock is a hair behind it."""
        self._alarm = Alarm(recorder.clock, self._rouse)
        """For those who wait for a time to start."""
        self._watch = Alarm(recorder.clock, self._time_out)
        """For those in the air, whose time will be over."""

        self.stopped: Reason | None = None
        self.why = ""
        """More about why it was stopped, for people."""
        self.cut_at = math.inf
        """When what is in the air is cut off, in the seconds of `t`, once it is stopped."""
        self.stuck: list[str] = []
        """Trials whose attempts did not let themselves be cut off."""
        self._landed = trio.Event()
        self._in_grace = trio.CancelScope()
        self._over = trio.Event()
        self._goes_on = True
        """Whether anything more may start: it is neither stopped nor over."""

    async def run(self, intake: Intake, *, leave: Callable[[], Any] | None = None) -> None:
        """Make every trial, or stop when told to.

        `leave` is awaited if the run is stopped and an attempt resists to the last: it ends the process.
        """
        try:
            await self._run(intake, leave)
        finally:
            self._end()  # Whatever comes back from now on comes too late to be recorded.

    async def _run(self, intake: Intake, leave: Callable[[], Any] | None) -> None:
        if self._settings.limit_key is None:
            self._open_lane("")
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._take_in, intake)
            nursery.start_soon(self._alarm.keep)
            nursery.start_soon(self._watch.keep)
            if self._settings.deadline is not None:
                nursery.start_soon(self._keep_deadline, self._settings.deadline)
            await self._over.wait()
            if self.stuck and leave is not None:
                await leave()
            nursery.cancel_scope.cancel()

    def stop(self, reason: Reason, why: str = "") -> None:
        """Start nothing more; give what is in the air its grace. The first reason is the one that counts."""
        if self.stopped is not None:
            return
        self.stopped, self.why, self._goes_on = reason, why, False
        self.cut_at = self._now() + self._settings.grace
        self._parked.unpark_all()
        self._hungry.set()
        self._nursery.start_soon(self._land)

    def interrupt(self) -> None:
        """Stop because somebody asks for it; asked while it is stopping already, cut off what is in the air at once."""
        if self.stopped is None:
            self.stop("interrupted")
        else:
            self.cut_at = min(self.cut_at, self._now())
            self._in_grace.cancel()

    # Taking in.

    async def _take_in(self, intake: Intake) -> None:
        """Enqueue trials as they are needed, at most a few times the limit ahead."""
        try:
            while self.stopped is None:
                room = (2 * self._limit + AHEAD if self._settings.limit_key is None else MOST_AHEAD) - self._waiting
                if room <= self._limit:
                    self._hungry = trio.Event()
                    await self._hungry.wait()
                    continue
                await self._recorder.journal.wait_room()
                if not await self._read(intake, room):
                    intake.close()
                    break
        except Exception as exc:
            if isinstance(exc, JournalError):
                raise
            said = describe(exc)
            self.stop("intake_failed", f"the cases could not be read to their end ({said.type}: {said.message})")
        self._intake_is_open = False
        self._end_if_done()

    async def _read(self, intake: Intake, most: int) -> bool:
        """Read on, and take in what comes: where the rest keeps us waiting, without it. Say whether there was anything."""
        results: list[bool | BaseException] = []
        is_read = trio.Event()

        def read() -> None:
            try:
                results.append(intake.read(most))
            except BaseException as exc:  # noqa: BLE001  # it is raised again where it is waited for
                results.append(exc)
            self._home.call(is_read.set)

        with trio.move_on_after(SOON):
            await self._in_thread(read)
        self._admit(intake)
        if not is_read.is_set():
            await is_read.wait()
            self._admit(intake)
        if isinstance(results[0], BaseException):
            raise results[0]
        return results[0]

    def _admit(self, intake: Intake) -> None:
        while intake.found:
            work = intake.admit(intake.found.popleft())
            if work is not None:
                if self._settings.limit_key is not None:
                    work.key = key_of(work.case, self._settings.limit_key)
                    self._open_lane(work.key)
                self._in_hand += 1
                self._put(work)
        self._wake()

    def _put(self, work: Work) -> None:
        if work.delay > 0:
            due = self._now() + work.delay
            heapq.heappush(self._delayed, (due, next(self._counter), work))
            self._alarm.ring_at(due)
        else:
            self._waiting += 1
            self._lanes[work.key].ready.append(work)

    def _open_lane(self, key: str) -> None:
        if key not in self._lanes:
            steering = Steering(self._new_policy(), patience=self._settings.retry.rate_limits, key=key)
            self._lanes[key] = Lane(steering)
            self._limit += steering.limit
            self._record(steering.begin())

    # Slots.

    def _wake(self) -> None:
        """Let a slot look for work: one that is parked, or a new one while there may be more."""
        if self._parked:
            self._parked.unpark()
        elif self._slots < self._limit and self._goes_on:
            number = heapq.heappop(self._numbers) if self._numbers else self._slots
            self._slots += 1
            self._nursery.start_soon(self._slot, number)

    async def _slot(self, number: int) -> None:
        try:
            while self._slots <= self._limit and self._goes_on:
                flight = Flight()
                with flight.scope:
                    await self._serve(number, flight)
                if number in self._flights:
                    self._unwound(*self._flights.pop(number))
        except trio.Cancelled:
            self._cancelled(number)
            raise
        finally:
            self._slots -= 1
            heapq.heappush(self._numbers, number)
            self._flights.pop(number, None)
            if not self._flights:
                self._landed.set()
        if self._goes_on and (self._waiting or self._delayed):
            self._wake()  # It may have been woken for work, and retired because there were too many.

    async def _serve(self, number: int, flight: Flight) -> None:
        """Take one trial after the other, and see each to its end or to its next wait."""
        while self._slots <= self._limit and self._goes_on and not flight.is_over:
            work = self._next()
            if work is None:
                await self._parked.park()
                continue
            self._flights[number] = (work, flight)
            if work.is_answered or await self._attempt(work, number, flight):
                if self._scoring.scorers:
                    await self._scoring.score(work, flight)
                self._record(TrialCompleted(trial=work.trial, attempts=work.attempts))
                self._let_go()
            del self._flights[number]
            if self._recorder.state.t > self._turn_ends:  # The time of the last record: to ask for another costs more.
                await trio.lowlevel.checkpoint()
                self._turn_ends = self._now() + TURN

    def _next(self) -> Work | None:
        """Find a trial that may start now; if there is none, see to it that somebody is woken when there may be one."""
        if not self._goes_on:
            return None
        now = max(self._now(), self._rung)
        if self._delayed:
            self._let_in(now)
        if self._waiting <= self._limit or self._waiting <= self._plenty:
            self._hungry.set()
        for lane in self._lanes.values():
            if not lane.ready:
                continue
            gate = lane.steering.may_start(now)
            if gate.open:
                work = lane.prober() if gate.probe else lane.ready.popleft()
                self._waiting -= 1
                if self._waiting:
                    self._wake()
                return work
            if gate.at is not None:
                self._alarm.ring_at(gate.at)
        return None

    def _let_in(self, now: float) -> None:
        """Let those go on whose wait is over, and wait for the next."""
        delayed = self._delayed
        while delayed and delayed[0][0] <= now:
            work = heapq.heappop(delayed)[2]
            self._waiting += 1
            ready = self._lanes[work.key].ready
            (ready.append if work.is_last else ready.appendleft)(work)
        if delayed:
            self._alarm.ring_at(delayed[0][0])

    async def _attempt(self, work: Work, slot: int, flight: Flight) -> bool:
        """Make one attempt; say whether it gave an output."""
        trial = work.trial
        work.attempts = number = work.attempts + 1
        started = self._record(AttemptStarted(trial=trial, attempt=number, slot=slot, key=work.key))
        work.began = started.t
        self._tell(started, work)
        if self._settings.write_ahead:
            await self._recorder.journal.wait_durable(started.seq)
        limit, due = self._settings.timeout, math.inf
        if limit is not None:
            due = self._now() + limit
            self._watch.ring_at(due)
        outcome = await flight.ask(
            self._task,
            work if self._task.wants_trial else work.case.input,
            due=due,
            sink=self._sink(work),
            late=partial(self._late, trial, number, started.t),
        )
        return self._ended(work, outcome)

    def _unwound(self, work: Work, flight: Flight) -> None:
        """See to a trial whose attempt, or whose scoring, was cancelled."""
        if work.is_answered:
            self._let_go()  # The output stays, and a resumption scores the rest.
        else:
            self._ended(work, flight.ending)

    def _cancelled(self, slot: int) -> None:
        """Say that an attempt was cut off because everything around it was: whoever runs the evaluation has cancelled it."""
        work = self._flights[slot][0] if slot in self._flights else None
        if work is not None and not work.is_answered:
            elapsed = round(self._now() - work.began, 6)
            self._aside(AttemptInterrupted(trial=work.trial, attempt=work.attempts, why="cancelled", elapsed=elapsed))

    def _ended(self, work: Work, outcome: Landing | Cut) -> bool:
        """Record how an attempt ended, and what follows; say whether it gave an output."""
        trial, number = work.trial, work.attempts
        elapsed = round(self._now() - work.began, 6)
        if not self._goes_on and self._over.is_set():  # It was left behind, recorded as interrupted, and comes back after all.
            if not isinstance(outcome, Cut):
                ending: Ending = "succeeded" if isinstance(outcome, Answered) else "failed"
                self._record(AttemptReturnedLate(trial=trial, attempt=number, ending=ending, elapsed=elapsed))
            return False
        match outcome:
            case Answered():
                return self._answered(work, outcome.output, elapsed)
            case Raised():
                self._failed(work, outcome.exc, elapsed)
            case OutOfTime():
                limit = self._settings.timeout
                assert limit is not None
                self._tell(self._record(AttemptTimedOut(trial=trial, attempt=number, limit=limit, elapsed=elapsed)), work)
                if outcome.came is not None:
                    self._record(AttemptReturnedLate(trial=trial, attempt=number, ending=outcome.came, elapsed=elapsed))
                self._settle(work, TimedOut())
            case Cut():
                cut = AttemptInterrupted(trial=trial, attempt=number, why="stopped", elapsed=elapsed)
                self._tell(self._record(cut), work)
                self._let_go()
        return False

    def _answered(self, work: Work, output: Any, elapsed: float) -> bool:
        event = AttemptSucceeded(trial=work.trial, attempt=work.attempts, output=output, elapsed=elapsed)
        try:
            try:
                record = self._record(event)
            except (Unserialisable, RecursionError):
                output = plain(output)
                record = self._record(attrs.evolve(event, output=output))  # type: ignore[misc]  # a fact is an attrs class
        except (Unserialisable, RecursionError) as exc:  # It may be nested without an end.
            said = describe(exc)
            failed = AttemptFailed(
                trial=work.trial,
                attempt=work.attempts,
                error="Unserialisable",
                message=said.message,  # It names the place; a traceback would only lead into our own code.
                category="fatal",
                elapsed=elapsed,
            )
            self._tell(self._record(failed), work)
            self._give_up(work, "unserialisable")
            return False
        self._tell(record, work)
        work.output, work.is_answered = as_read(output), True  # A scorer sees the same now, after a crash, and years later.
        return True

    def _failed(self, work: Work, exc: BaseException, elapsed: float) -> None:
        failure = self._settings.retry.judge(exc, now=self._recorder.clock.wall())
        said = describe(exc)
        record = self._record(
            AttemptFailed(
                trial=work.trial,
                attempt=work.attempts,
                error=said.type,
                message=said.message,
                traceback=said.traceback,
                category=failure.kind,
                retry_after=failure.retry_after,
                elapsed=elapsed,
            )
        )
        self._tell(record, work)
        self._settle(work, failure)
        if failure.stop_run:
            self._refused(exc)

    def _refused(self, exc: BaseException) -> None:
        said = describe(exc)
        self.stop("refused", f"every other trial would meet the same: {said.type}: {said.message}")

    def _settle(self, work: Work, ended: Failure | TimedOut) -> None:
        """Decide what follows an attempt that did not work out, and record it."""
        spent, probe = work.spent.plus(ended), work.trial in self._lanes[work.key].steering.free
        match self._settings.retry.after(ended, spent, chance(self._settings.seed, work.trial, work.attempts), probe=probe):
            case Again(delay=delay, cause=cause) as again:
                work.spent = work.spent if cause == "probe" else spent.plus(again)
                work.delay, work.is_last = delay, cause == "probe"
                self._record(RetryScheduled(trial=work.trial, attempt=work.attempts + 1, delay=delay, cause=cause))
                self._put(work)
            case GiveUp(cause=cause):
                self._give_up(work, cause)

    def _give_up(self, work: Work, cause: Literal["exhausted", "fatal", "timed_out", "ambiguous", "unserialisable"]) -> None:
        self._record(TrialFailed(trial=work.trial, attempts=work.attempts, cause=cause))
        self._failures += 1
        self._let_go()
        if self._failures > self._most_failures:
            self.stop("failed_fast", f"{plural(self._failures, 'trial')} failed")

    def _let_go(self) -> None:
        self._in_hand -= 1
        if not self._in_hand:
            self._end_if_done()

    # What is said besides.

    def _sink(self, work: Work) -> Sink:
        """Make what takes the notes of the attempt under way, at whatever time and from wherever they come."""
        return partial(self._home.call, self._note, work, work.attempts)

    def _note(self, work: Work, number: int, values: dict[str, Any]) -> None:
        for name, value in values.items():
            event = Noted(name=name, value=plain(value), trial=work.trial, attempt=number)
            try:
                record = self._aside(event)
            except Unserialisable as exc:
                record = self._aside(attrs.evolve(event, value=str(exc)))  # type: ignore[misc]  # a fact is an attrs class
            if record is not None and name == "quota":
                self._tell(record, work)

    def _late(self, trial: str, number: int, began: float, ending: Ending) -> None:
        elapsed = round(self._now() - began, 6)
        self._aside(AttemptReturnedLate(trial=trial, attempt=number, ending=ending, elapsed=elapsed))

    def _aside(self, event: Noted | AttemptReturnedLate | AttemptInterrupted) -> Record | None:
        """Record what may come at any time, even when the run is over or the journal has failed: then it is let go."""
        if self._over.is_set() or self._recorder.journal.failure is not None:
            return None
        return self._record(event)

    def _tell(self, record: Record, work: Work) -> None:
        """Tell the policy what happened, and record what it changes."""
        steering = self._lanes[work.key].steering
        before = steering.limit
        for event in steering.take(record):
            self._record(event)
        if steering.limit != before:
            self._limit += steering.limit - before

    # Time, and the end.

    def _rouse(self, at: float) -> None:
        """Wake a slot: what somebody has waited for may start."""
        self._rung = at
        self._wake()

    def _time_out(self, at: float) -> None:
        """Cut off the attempts whose time is over, and look again when that of the next is."""
        for _, flight in self._flights.values():
            if flight.due <= at:
                flight.time_out()
        self._watch.ring_at(min((flight.due for _, flight in self._flights.values()), default=math.inf))

    async def _keep_deadline(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self.stop("deadline", f"the run's {seconds:g} s are over")

    def _end_if_done(self) -> None:
        if self.stopped is None and not self._intake_is_open and self._in_hand == 0:
            self._end()

    def _end(self) -> None:
        """Let it be over: slots that are parked go home by themselves, which costs less than to be cancelled."""
        self._goes_on = False
        self._over.set()
        self._parked.unpark_all()

    def _cut(self) -> None:
        for _, flight in self._flights.values():
            flight.cut()

    async def _land(self) -> None:
        """Wait for what is in the air, cut off what is not down in time, and leave what resists."""
        for scope, seconds in ((self._in_grace, self._settings.grace), (trio.CancelScope(), PATIENCE)):
            if self._flights:
                self._landed = trio.Event()
                scope.deadline = trio.current_time() + seconds
                with scope:
                    await self._landed.wait()
                self._cut()
        for slot, (work, _) in self._flights.items():
            self.stuck.append(f"{work.trial} in slot {slot}")
            if self._recorder.state.trials[work.trial].stage == "running":
                cut = AttemptInterrupted(trial=work.trial, attempt=work.attempts, why="stopped")
                self._tell(self._record(cut), work)
        self._end()
