"""Plain functions as scorers: all of those of an output are handed over to a thread at once.

Most of them only compute something, in less time than it takes to queue a call. So an output is handed over once, the thread
calls one function after the other, and the results come back together: no lane, no policy, no slot, and no record of a start.

**One does not delay the others.** A call that takes longer than `SLOW` keeps its thread; the other functions of the output, and
the other outputs, go to another one. There are at most as many threads as `slots`.

**Each has its own end.** A call returns, raises, or exceeds its timeout. Then it is abandoned: its thread continues with it and
ends, what it returns is discarded, and another thread takes its place. Nothing is recorded before the first end of a call, so a
process that dies before that has lost nothing but time: the next session calls the functions of this output without a score.

**A function that calls something** is not just computing: once a call of it has failed or was slow, the next ones are queued
in a lane, as those of a judge, with a policy, retries and records of starts, until one is quick again. So a judge that is a
plain function waits after a 429 like any other. In the threads and in its lane together, it has at most `slots` calls.

**Threads.** A function that must be called is taken from `waiting`, by the thread or by the loop, never by both; its result is
added before the thread takes the next one. All else happens in the loop.
"""

import contextvars
import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs
import outcome
import trio

from evaljournal.runner.calls.notes import Sink, set_attachments, set_note_sink
from evaljournal.runner.engine.jobs import Job, ScorerCall, StartGate, TrialWork
from evaljournal.runner.engine.recorder import Timer
from evaljournal.runner.engine.scheduler import Scheduler
from evaljournal.runner.scorers.scorer import OpenScorer, ScorerInput

SLOW: Final = 0.01
"""Seconds from which a call is slow: then queueing it, which takes less than a millisecond, does not matter."""

Result = tuple[OpenScorer, "outcome.Value[Any] | outcome.Error | None", float]
"""A scorer, what it returned or raised (None: it exceeded its timeout), and the seconds that it took."""


@attrs.define(eq=False)
class PlainCalls:
    """The calls of plain functions with one output, handed over together."""

    work: TrialWork
    input: ScorerInput
    waiting: deque[OpenScorer]
    """Those that were not called yet."""
    names: set[str]
    """Those whose end is not recorded yet."""
    context: contextvars.Context
    _now: Callable[[], float]
    _on_end: Callable[["PlainCalls"], None]
    results: deque[Result] = attrs.field(factory=deque)
    current: tuple[OpenScorer, float] | None = None
    """The one that was called last, and when."""
    due: float = 0.0
    """When the loop looks at it again, if it has not ended; 0: it has not looked yet."""
    is_abandoned: bool = False

    def run(self) -> None:
        """Call the functions; in a thread."""
        while (scorer := self.begin()) is not None:
            self.end(scorer, self.call(scorer))

    def begin(self) -> OpenScorer | None:
        """Return the next one to call."""
        try:
            scorer = self.waiting.popleft()
        except IndexError:
            return None
        self.current = scorer, self._now()
        return scorer

    def call(self, scorer: OpenScorer) -> "outcome.Value[Any] | outcome.Error":
        """Call a function; the variables that it sets in its context do not affect the others."""
        return self.context.copy().run(outcome.capture, scorer.scorer.call, self.input)

    def end(self, scorer: OpenScorer, result: "outcome.Value[Any] | outcome.Error") -> None:
        """Add the result of a call."""
        assert self.current is not None
        self.results.append((scorer, result, round(self._now() - self.current[1], 6)))

    def deliver(self) -> None:
        """Process that the thread has ended; called in the loop."""
        self._on_end(self)

    def take_waiting(self) -> list[OpenScorer]:
        """Take those that were not called yet."""
        return list(_drain(self.waiting))


def _drain(items: deque[Any]) -> Iterable[Any]:
    """Take items from a deque that another thread may change."""
    while True:
        try:
            yield items.popleft()
        except IndexError:
            return


class PlainScorers(StartGate):
    """The plain functions of a session; as a gate, it counts the calls in threads when a queued one is to start."""

    def __init__(
        self,
        scorers: Iterable[OpenScorer],
        scheduler: Scheduler,
        record: Callable[[PlainCalls, Result], bool],
    ) -> None:
        """`record` records how a call has ended, and returns whether it has returned scores."""
        self._scheduler = scheduler
        self._record = record
        self.on_idle: Callable[[], object] = lambda: None
        """Called when no call is in flight any more."""
        self._now = scheduler.recorder.clock.now
        threads = next((scorer.threads for scorer in scorers if scorer.threads is not None), None)
        assert threads is not None
        self._threads = threads
        self._abandoned = 0
        """Threads that still call an abandoned function."""
        self._queued: set[str] = set()
        """Functions whose last call has failed or was slow."""
        self.in_flight: dict[PlainCalls, None] = {}
        """The oldest first."""
        self._ended: deque[PlainCalls] = deque()
        """Those to record."""
        self._waiter: trio.lowlevel.Task | None = None
        """The task that records them, while there are none."""
        self.timer = Timer(scheduler.recorder.clock, self._check)
        self._has_new = False
        """Whether there are calls that the timer has not looked at."""

    def takes(self, scorer: OpenScorer) -> bool:
        """Return whether the next call of a scorer is one of a plain function that is not queued."""
        if scorer.threads is None or scorer.scorer.name in self._queued:
            return False
        lane = self._scheduler.queues.lanes.get(scorer.key)
        return lane is None or not (lane.calls or lane.counted_jobs)

    def call(self, work: TrialWork, scorer_input: ScorerInput, scorers: Iterable[OpenScorer], sink: Sink) -> None:
        """Call functions with an output, in a thread."""
        set_note_sink(sink)
        set_attachments(None)
        self._hand_over(work, scorer_input, deque(scorers), contextvars.copy_context())

    def _hand_over(
        self, work: TrialWork, scorer_input: ScorerInput, scorers: deque[OpenScorer], context: contextvars.Context
    ) -> None:
        names = {scorer.scorer.name for scorer in scorers}
        calls = PlainCalls(work, scorer_input, scorers, names, context, self._now, self._end)
        self.in_flight[calls] = None
        self._threads.start(calls)
        if not self._has_new:
            self._has_new = True
            self.timer.schedule_in(SLOW)

    def queue(self, call: ScorerCall) -> None:
        """Queue a call of a function in its lane, which is opened for the first one."""
        lanes, key = self._scheduler.queues.lanes, call.key
        if key not in lanes:
            self._scheduler.open_lane(key, calls=True)
            lanes[key].gates = (self, *lanes[key].gates)  # First: the last gate may take something when it admits.
        self._scheduler.put(call)

    def admit(self, job: Job, now: float) -> float | None:  # noqa: ARG002
        """Refuse a queued call of a function that has `slots` calls with those in threads; their ends wake the scheduler."""
        assert isinstance(job, ScorerCall)
        name, lane = job.scorer.scorer.name, self._scheduler.queues.lanes[job.key]
        calls_in_threads = sum(name in calls.names for calls in self.in_flight)
        return math.inf if calls_in_threads and calls_in_threads + lane.counted_jobs >= self._threads.limit else None

    def mark(self, name: str, *, is_quick: bool) -> None:
        """Decide how a function is called with the next output, after a call of it has ended."""
        (self._queued.discard if is_quick else self._queued.add)(name)

    async def run(self) -> None:
        """Record the ends of calls, until cancelled.

        In a task: an error of the journal must end the run, and callbacks of trio must not raise.
        """

        def abort(_: object) -> trio.lowlevel.Abort:
            self._waiter = None
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            while self._ended:
                calls = self._ended.popleft()
                self._record_results(calls)
                self.in_flight.pop(calls, None)
            self._continue()
            if not self._ended:
                self._waiter = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(abort)

    def _end(self, calls: PlainCalls) -> None:
        """Process that a thread has ended its calls."""
        if calls.is_abandoned:
            self._abandoned -= 1
            if self._threads.threads > self._threads.limit + self._abandoned:
                self._threads.end_thread()
            return
        self._ended.append(calls)
        if self._waiter is not None:
            trio.lowlevel.reschedule(self._waiter)
            self._waiter = None

    def _record_results(self, calls: PlainCalls) -> None:
        """Record the ends of calls so far."""
        for result in _drain(calls.results):
            self._record_result(calls, result)

    def _record_result(self, calls: PlainCalls, result: Result) -> None:
        scorer, _, seconds = result
        name = scorer.scorer.name
        calls.names.discard(name)  # First: a retry is queued, and its gate must not wait for this call.
        if not self._scheduler.shutdown.is_over:
            self.mark(name, is_quick=self._record(calls, result) and seconds < SLOW)

    def _continue(self) -> None:
        """Let attempts and queued calls start that have waited for these ends."""
        scheduler = self._scheduler
        if scheduler.read_ahead.is_waiting:
            scheduler.read_ahead.request()
        scheduler.wake()
        if not self.in_flight:
            self.on_idle()

    def _check(self, now: float) -> None:
        """Look for calls that are slow, or have exceeded their timeout."""
        self._has_new = False
        for calls in list(self.in_flight):
            if calls.due <= now:
                calls.due = self._check_calls(calls, now)
        self.timer.schedule(min((calls.due for calls in self.in_flight if calls.due), default=math.inf))
        self._continue()

    def _check_calls(self, calls: PlainCalls, now: float) -> float:
        """Let another thread call the others if a call is slow; abandon one that exceeded its timeout. Return when to check."""
        if calls.current is None:  # It waits for a thread, perhaps since a moment ago.
            if calls.due:
                self._threads.grow(self._abandoned)
            return now + SLOW
        scorer, started_at = calls.current
        name, timeout = scorer.scorer.name, scorer.scorer.timeout
        if now < started_at + SLOW:
            return started_at + SLOW

        others = calls.take_waiting()  # First: from now on, the thread begins no other one.
        self._record_results(calls)
        if others:
            calls.names.difference_update(scorer.scorer.name for scorer in others)
            self._hand_over(calls.work, calls.input, deque(others), calls.context.copy())
        if name not in calls.names:  # It has just ended.
            return now + SLOW
        self.mark(name, is_quick=False)
        self._threads.grow(self._abandoned)
        if timeout is None or now < started_at + timeout:
            return math.inf if timeout is None else started_at + timeout

        calls.is_abandoned = True
        self._abandoned += 1
        del self.in_flight[calls]
        self._threads.grow(self._abandoned)
        self._record_result(calls, (scorer, None, round(self._now() - started_at, 6)))
        return math.inf

    def interrupt(self) -> None:
        """Abandon what is in flight, because the session ends; the outputs are scored when the run is resumed."""
        for calls in self.in_flight:
            calls.is_abandoned = True
            calls.take_waiting()
        self._abandoned += len(self.in_flight)
        self.in_flight.clear()
