"""Who does what when: trials wait, slots take them, attempts are made, and every step is recorded before it is relied on.

A slot is a task that takes the next trial which is ready, makes one attempt, and parks when there is nothing to do. Nothing
polls: whoever makes a trial ready, frees a place or lets time pass wakes a slot. What is decided (again or not, how many at
once) is decided elsewhere, as pure functions; here it is only done.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Protocol

import attrs
import trio

from journal.errors import JournalError, Unserialisable
from journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptReturnedLate,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    IntakePaused,
    IntakeResumed,
    LimitChanged,
    Noted,
    RetryScheduled,
    ScoringFailed,
    TrialCompleted,
    TrialFailed,
    TrialScored,
)
from journal.writer import InThread
from runner import concurrency
from runner.attempt import Answered, Cut, Flight, Home, OutOfTime, Raised
from runner.case import Case
from runner.concurrency import Decision, LimitMoved, Paused, Policy, Resumed, Signal
from runner.definition import Settings
from runner.failure import Failure, describe
from runner.plain import plain
from runner.recorder import Recorder
from runner.retry import Again, GiveUp, Spent, TimedOut, chance
from runner.score import Scorer
from runner.tasks import Ending, Task

PATIENCE: Final = 1.0
"""Seconds that an attempt gets to end after it was cut off, before it counts as stuck."""

Reason = Literal["interrupted", "failed_fast", "deadline", "disk_full", "intake_failed"]


@attrs.define
class Work:
    """A trial in hand: taken in, and not at its end."""

    trial: str
    case: Case
    attempts: int = 0
    """How many it has had, in all sessions."""
    spent: Spent = attrs.field(factory=Spent)
    is_answered: bool = False
    """Whether it has an output already, and is only to be scored."""
    output: Any = None
    scored: frozenset[str] = frozenset()
    """The scorers that have had their turn."""
    delay: float = 0.0
    """Seconds until it may be taken."""


class Intake(Protocol):
    """Where trials come from."""

    def read(self, most: int) -> Sequence[Any]:
        """Read what comes next, so much at the most; nothing when there is no more. It may block: it is called in a thread."""
        ...

    def admit(self, item: Any) -> Work | None:
        """Record that a trial is taken in; None if nothing is left to do for it. It is called here, and does not block."""
        ...

    def close(self) -> None:
        """See to what follows from there being no more."""
        ...


class Executor:
    """The trials that wait, the slots, and who holds which."""

    def __init__(
        self,
        recorder: Recorder,
        task: Task,
        scorers: dict[str, tuple[Scorer, Task]],
        policy: Policy,
        settings: Settings,
        *,
        seed: int,
        grace: float,
        most_failures: float,
        in_thread: InThread,
    ) -> None:
        self._recorder = recorder
        self._record = recorder.record
        self._now = recorder.clock.now
        self._task = task
        self._scorers = scorers
        self._policy = policy
        self._settings = settings
        self._seed = seed
        self._grace = grace
        self._most_failures = most_failures
        self._in_thread = in_thread
        self._home = Home()

        self._ready: deque[Work] = deque()
        self._delayed: list[tuple[float, int, Work]] = []
        """Who waits for a time, the earliest first; the middle number keeps equals in order."""
        self._counter = itertools.count()
        self._in_hand = 0
        """Trials that are ready, delayed or held by a slot."""
        self._intake_is_open = True
        self._hungry = trio.Event()

        self._limit = policy.limit
        self._slots = 0
        self._numbers: list[int] = []
        """Numbers of slots that have retired, the lowest first, to be used again."""
        self._parked = trio.lowlevel.ParkingLot()
        self._flights: dict[int, tuple[Work, Flight]] = {}
        """Slot → what it holds."""
        self._rung = 0.0
        """The last time that was waited for: it has come, even if a rounded clock is a hair behind it."""
        self._alarm = math.inf
        self._alarm_moved = trio.Event()

        self._ill_since: float | None = None
        """When the first probe was made that no success has followed yet."""
        self.stopped: Reason | None = None
        self.why = ""
        """More about why it was stopped, for people."""
        self.stuck: list[str] = []
        """Trials whose attempts did not let themselves be cut off."""
        self._failures = 0
        self._landed = trio.Event()
        self._over = trio.Event()

    async def run(self, intake: Intake, *, leave: Callable[[], Any] | None = None) -> None:
        """Make every trial, or stop when told to.

        `leave` is awaited if the run is stopped and an attempt resists to the last: it ends the process.
        """
        self._say(self._limit, 0)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._take_in, intake)
            nursery.start_soon(self._keep_time)
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
        self.stopped, self.why = reason, why
        self._parked.unpark_all()
        self._hungry.set()
        self._nursery.start_soon(self._land)

    def interrupt(self) -> None:
        """Stop because somebody asks for it; asked while it is stopping already, cut off what is in the air at once."""
        if self.stopped is None:
            self.stop("interrupted")
        else:
            self._cut()

    # Taking in.

    async def _take_in(self, intake: Intake) -> None:
        """Enqueue trials as they are needed, at most a few times the limit ahead."""
        try:
            while self.stopped is None:
                room = 2 * self._limit + 16 - len(self._ready)
                if room <= self._limit:
                    self._hungry = trio.Event()
                    await self._hungry.wait()
                    continue
                await self._recorder.journal.wait_room()
                items = await self._in_thread(lambda: intake.read(room))  # noqa: B023  # called at once
                if not items:
                    intake.close()
                    break
                for item in items:
                    work = intake.admit(item)
                    if work is not None:
                        self._in_hand += 1
                        self._put(work)
                self._wake()
        except Exception as exc:
            if isinstance(exc, JournalError):
                raise
            said = describe(exc)
            self.stop("intake_failed", f"the cases could not be read to their end ({said.type}: {said.message})")
        self._intake_is_open = False
        self._end_if_done()

    def _put(self, work: Work) -> None:
        if work.delay > 0:
            due = self._now() + work.delay
            heapq.heappush(self._delayed, (due, next(self._counter), work))
            self._ring_at(due)
        else:
            self._ready.append(work)

    # Slots.

    def _wake(self) -> None:
        """Let a slot look for work: one that is parked, or a new one while there may be more."""
        if self._parked:
            self._parked.unpark()
        elif self._slots < self._limit and self.stopped is None:
            number = heapq.heappop(self._numbers) if self._numbers else self._slots
            self._slots += 1
            self._nursery.start_soon(self._slot, number)

    async def _slot(self, number: int) -> None:
        try:
            while self._slots <= self._limit and self.stopped is None:
                work = self._next()
                if work is None:
                    await self._parked.park()
                else:
                    await self._serve(work, number)
        finally:
            self._slots -= 1
            heapq.heappush(self._numbers, number)
        if self.stopped is None and (self._ready or self._delayed):
            self._wake()  # It may have been woken for work, and retired because there were too many.

    def _next(self) -> Work | None:
        """Find a trial that may start now; if there is none, see to it that somebody is woken when there may be one."""
        if self.stopped is not None:
            return None
        now = max(self._now(), self._rung)
        while self._delayed and self._delayed[0][0] <= now:
            self._ready.appendleft(heapq.heappop(self._delayed)[2])
        if self._delayed:
            self._ring_at(self._delayed[0][0])
        if len(self._ready) <= self._limit:
            self._hungry.set()
        if not self._ready:
            return None
        gate = self._policy.may_start(now)
        if not gate.open:
            if gate.at is not None:
                self._ring_at(gate.at)
            return None
        work = self._ready.popleft()
        if self._ready:
            self._wake()
        return work

    async def _serve(self, work: Work, slot: int) -> None:
        """Make an attempt, and see the trial to its end or to its next wait."""
        flight = Flight()
        self._flights[slot] = (work, flight)
        try:
            if work.is_answered or await self._attempt(work, slot, flight):
                await self._score(work, flight)
        finally:
            del self._flights[slot]
            if not self._flights:
                self._landed.set()

    async def _attempt(self, work: Work, slot: int, flight: Flight) -> bool:
        """Make one attempt; say whether it gave an output."""
        trial, number, home = work.trial, work.attempts + 1, self._home
        work.attempts = number
        name = f"{trial}/{number}"
        started = self._record(AttemptStarted(trial=trial, attempt=number, slot=slot))
        probe = self._is_free(started.t, probe=self._tell(concurrency.Started(t=started.t, attempt=name)).probe)
        if self._settings.write_ahead:
            await self._recorder.journal.wait_durable(started.seq)
        outcome = await flight.ask(
            self._task,
            work if self._task.wants_trial else work.case.input,
            limit=self._settings.timeout,
            sink=lambda values: home.call(self._note, work, number, values),
            late=lambda ending: self._late(work, number, started.t, ending),
        )
        elapsed = round(self._now() - started.t, 6)
        match outcome:
            case Answered(output):
                return self._answered(work, name, output, elapsed)
            case Raised(exc):
                self._failed(work, name, exc, elapsed, probe=probe)
            case OutOfTime(came):
                limit = self._settings.timeout
                assert limit is not None
                record = self._record(AttemptTimedOut(trial=trial, attempt=number, limit=limit, elapsed=elapsed))
                self._tell(concurrency.TimedOut(t=record.t, attempt=name))
                if came is not None:
                    self._record(AttemptReturnedLate(trial=trial, attempt=number, ending=came, elapsed=elapsed))
                self._settle(work, TimedOut(), probe=probe)
            case Cut():
                record = self._record(AttemptInterrupted(trial=trial, attempt=number, why="stopped", elapsed=elapsed))
                self._tell(concurrency.Interrupted(t=record.t, attempt=name))
                self._let_go()
        return False

    def _is_free(self, now: float, *, probe: bool) -> bool:
        """Say whether an attempt is a probe that costs its trial nothing: not if the other side has been ill for too long."""
        if probe and self._ill_since is None:
            self._ill_since = now
        return probe and self._ill_since is not None and now - self._ill_since < self._settings.retry.rate_limits

    def _answered(self, work: Work, name: str, output: Any, elapsed: float) -> bool:
        event = AttemptSucceeded(trial=work.trial, attempt=work.attempts, output=output, elapsed=elapsed)
        try:
            try:
                record = self._record(event)
            except Unserialisable:
                output = plain(output)
                record = self._record(attrs.evolve(event, output=output))  # type: ignore[misc]  # a fact is an attrs class
        except Unserialisable as exc:
            said = describe(exc)
            failed = AttemptFailed(
                trial=work.trial,
                attempt=work.attempts,
                error="Unserialisable",
                message=said.message,
                category="fatal",
                elapsed=elapsed,
            )
            self._tell(concurrency.Failed(t=self._record(failed).t, attempt=name, failure="fatal"))
            self._give_up(work, "unserialisable")
            return False
        self._tell(concurrency.Succeeded(t=record.t, attempt=name, elapsed=elapsed))
        self._ill_since = None
        work.output, work.is_answered = output, True
        return True

    def _failed(self, work: Work, name: str, exc: BaseException, elapsed: float, *, probe: bool) -> None:
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
        signal = concurrency.Failed(t=record.t, attempt=name, failure=failure.kind, retry_after=failure.retry_after)
        self._tell(signal)
        self._settle(work, failure, probe=probe)
        if failure.stop_run:
            self.stop("failed_fast", f"every other trial would meet the same: {said.type}: {said.message}")

    def _settle(self, work: Work, ended: Failure | TimedOut, *, probe: bool) -> None:
        """Decide what follows an attempt that did not work out, and record it."""
        spent = work.spent.plus(ended)
        match self._settings.retry.after(ended, spent, chance(self._seed, work.trial, work.attempts)):
            case Again() as again:
                # A breaker's probe is made for everyone's sake; the trial that makes it does not pay for it.
                work.spent = work.spent if probe else spent.plus(again)
                self._try_again(work, again.delay, "probe" if probe else again.cause)
            case GiveUp(cause="exhausted" | "timed_out") if probe:
                self._try_again(work, self._settings.retry.base_delay, "probe")
            case GiveUp(cause=cause):
                self._give_up(work, cause)

    def _try_again(self, work: Work, delay: float, cause: str) -> None:
        work.delay = round(delay, 6)
        self._record(RetryScheduled(trial=work.trial, attempt=work.attempts + 1, delay=work.delay, cause=cause))
        self._put(work)

    def _give_up(self, work: Work, cause: Literal["exhausted", "fatal", "timed_out", "ambiguous", "unserialisable"]) -> None:
        self._record(TrialFailed(trial=work.trial, attempts=work.attempts, cause=cause))
        self._failures += 1
        self._let_go()
        if self._failures > self._most_failures:
            self.stop("failed_fast", f"{self._failures} trials failed")

    def _let_go(self) -> None:
        self._in_hand -= 1
        self._end_if_done()

    # Scoring.

    async def _score(self, work: Work, flight: Flight) -> None:
        """Let every scorer have its turn; a scorer that fails costs its own score only."""
        for scorer, task in self._scorers.values():
            if scorer.name not in work.scored and not await self._score_by(scorer, task, work, flight):
                self._let_go()  # Stopped in the middle: the output stays, and a resumption scores the rest.
                return
        self._record(TrialCompleted(trial=work.trial, attempts=work.attempts))
        self._let_go()

    async def _score_by(self, scorer: Scorer, task: Task, work: Work, flight: Flight) -> bool:
        """Ask one scorer, again where that may help; say whether it came to an end."""
        spent = Spent()
        began = self._now()
        home = self._home

        def sink(values: dict[str, Any]) -> None:
            home.call(self._note, work, work.attempts, values)

        for times in itertools.count(1):
            outcome = await flight.ask(task, (work.output, work.case), limit=None, sink=sink, late=lambda _: None)
            if isinstance(outcome, Cut):
                return False
            try:
                if isinstance(outcome, Answered):
                    self._scored(scorer, work, outcome.output, began)
                    return True
                assert isinstance(outcome, Raised)
                exc = outcome.exc
            except Exception as caught:  # what it returned is not a score
                if isinstance(caught, JournalError) and not isinstance(caught, Unserialisable):
                    raise
                self._scoring_failed(scorer, work, caught, began)
                return True
            failure = scorer.retry.judge(exc, now=self._recorder.clock.wall())
            spent = spent.plus(failure)
            luck = chance(self._seed, f"{work.trial}\0{scorer.name}", times)
            decision = scorer.retry.after(failure, spent, luck)
            if isinstance(decision, GiveUp):
                self._scoring_failed(scorer, work, exc, began)
                return True
            spent = spent.plus(decision)
            del exc, outcome
            if not await flight.rest(decision.delay):
                return False
        return True

    def _scored(self, scorer: Scorer, work: Work, returned: Any, began: float) -> None:
        elapsed = round(self._now() - began, 6)
        for name, score in scorer.scores(returned).items():
            self._record(
                TrialScored(
                    trial=work.trial,
                    scorer=name,
                    version=scorer.version,
                    value=score.value,
                    reason=score.reason,
                    elapsed=elapsed,
                )
            )

    def _scoring_failed(self, scorer: Scorer, work: Work, exc: BaseException, began: float) -> None:
        said = describe(exc)
        self._record(
            ScoringFailed(
                trial=work.trial,
                scorer=scorer.name,
                version=scorer.version,
                error=said.type,
                message=said.message,
                traceback=said.traceback,
                elapsed=round(self._now() - began, 6),
            )
        )

    # What is said besides.

    def _note(self, work: Work, number: int, values: dict[str, Any]) -> None:
        for name, value in values.items():
            event = Noted(name=name, value=plain(value), trial=work.trial, attempt=number)
            try:
                self._aside(event)
            except Unserialisable as exc:
                self._aside(attrs.evolve(event, value=str(exc)))  # type: ignore[misc]  # a fact is an attrs class

    def _late(self, work: Work, number: int, began: float, ending: Ending) -> None:
        elapsed = round(self._now() - began, 6)
        self._aside(AttemptReturnedLate(trial=work.trial, attempt=number, ending=ending, elapsed=elapsed))

    def _aside(self, event: Noted | AttemptReturnedLate) -> None:
        """Record what may come at any time, even when the run is over or the journal has failed: then it is let go."""
        if not self._over.is_set() and self._recorder.journal.failure is None:
            self._record(event)

    def _tell(self, signal: Signal) -> Decision:
        """Tell the policy what happened, and record what it changes."""
        decision = self._policy.take(signal)
        for change in decision.changes:
            match change:
                case LimitMoved():
                    self._say(change.after, change.before, change.cause, change.evidence)
                case Paused():
                    until = round(change.until, 6)
                    self._record(IntakePaused(until=until, cause=change.cause, evidence=change.evidence))
                case Resumed():
                    self._record(IntakeResumed(cause=change.cause, evidence=change.evidence))
        self._limit = decision.limit
        return decision

    def _say(self, after: int, before: int, cause: str = "start", evidence: str = "") -> None:
        self._record(LimitChanged(before=before, after=after, cause=cause, evidence=evidence))

    # Time, and the end.

    def _ring_at(self, when: float) -> None:
        if when < self._alarm:
            self._alarm = when
            self._alarm_moved.set()

    async def _keep_time(self) -> None:
        """Wake a slot when a time has come that somebody waits for."""
        while True:
            moved = self._alarm_moved = trio.Event()
            with trio.CancelScope(deadline=self._recorder.clock.began + self._alarm):
                await moved.wait()
            if not moved.is_set():
                self._rung, self._alarm = self._alarm, math.inf
                self._wake()

    async def _keep_deadline(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self.stop("deadline", f"the run's {seconds:g} s are over")

    def _end_if_done(self) -> None:
        if self.stopped is None and not self._intake_is_open and self._in_hand == 0:
            self._over.set()

    def _cut(self) -> None:
        for _, flight in self._flights.values():
            flight.cut()

    async def _land(self) -> None:
        """Wait for what is in the air, cut off what is not down in time, and leave what resists."""
        for seconds in (self._grace, PATIENCE):
            if self._flights:
                self._landed = trio.Event()
                with trio.move_on_after(seconds):
                    await self._landed.wait()
                self._cut()
        for slot, (work, _) in self._flights.items():
            self.stuck.append(f"{work.trial} in slot {slot}")
            if self._recorder.state.trials[work.trial].stage == "running":
                self._record(AttemptInterrupted(trial=work.trial, attempt=work.attempts, why="stopped"))
        self._over.set()
