"""The executor of a session: consumers execute the jobs of the scheduler; timeouts and stops cancel their calls.

**Consumers.** A consumer is a trio task. It takes the next job, executes it to its end or its next wait, and parks when
there is no job. There are as many as calls may be in flight, started when they are needed: a task per trial would cost more
than the journal.

**Exactly one end.** Each call ends once: it returns, or its scope is cancelled by its timeout, a limit of its trial or a stop.
A call that does not respond to its cancellation is abandoned: its end is recorded without it, another consumer takes its
place, and what it returns later is recorded as late. So a call that hangs costs one slot for a limited time, never the run.

**A stop** lets calls in flight finish for the grace period, then cancels them, then records those that do not respond as
interrupted. What was not recorded by then is repeated by the next session; nothing that was recorded is lost.

Never await between taking a job and entering it into `CallsInFlight.jobs`, or between its end and its record: a stop in between
would lose it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import trio

from evaljournal.journal.errors import SegmentLost
from evaljournal.journal.format.codec import json_round_trip
from evaljournal.journal.threads import InThread
from evaljournal.runner.calls import Task
from evaljournal.runner.engine.admission import Admission, TrialSource
from evaljournal.runner.engine.attempts import Attempts
from evaljournal.runner.engine.call import CallScope, Interrupted, LimitExceeded, TimedOut
from evaljournal.runner.engine.jobs import Job, ScorerCall, TrialWork
from evaljournal.runner.engine.layers import Layer, Layers, surround
from evaljournal.runner.engine.recorder import Clock, LateRecorder, Recorder, RunLoop, Shutdown, Timer
from evaljournal.runner.engine.scheduler import KernelSettings, Scheduler
from evaljournal.runner.engine.scoring import Scoring
from evaljournal.runner.scorers.scorer import OpenScorer

TURN: Final = 0.01
"""Seconds after which consumers whose tasks never wait yield to others."""
CANCEL_TIMEOUT: Final = 1.0
"""Seconds that a cancelled call gets to end before it counts as unresponsive."""


class Helper(Protocol):
    """What runs beside the consumers of a session and gives jobs their replies."""

    is_sending: bool
    """Whether it must not be cancelled now."""

    async def run(self) -> None:
        """Run until the session is stopped."""
        ...


class CallsInFlight:
    """The calls in flight, and those that do not respond to their cancellation.

    A call is cancelled when its time is over, and abandoned if it has not ended some time later: `on_abandoned` records its
    end without it.
    """

    def __init__(self, clock: Clock, grace: float, on_abandoned: Callable[[CallScope, Job], None]) -> None:
        """`grace`: seconds that a call gets to end, besides `CANCEL_TIMEOUT`."""
        self.jobs: dict[CallScope, Job] = {}
        """Those in flight, without abandoned ones."""
        self.abandoned: dict[CallScope, str] = {}
        """Those that did not respond to their timeout, and are still running."""
        self.unresponsive_jobs: list[str] = []
        """Jobs that did not respond to their cancellation when the session was stopped."""
        self.timer = Timer(clock, self._time_out)
        self._patience = grace + CANCEL_TIMEOUT
        self._on_abandoned = on_abandoned

    def _time_out(self, now: float) -> None:
        for scope in list(self.jobs):
            if scope.deadline <= now:
                if scope.is_cancelled:
                    self._abandon(scope)
                else:
                    scope.time_out(now + self._patience)
        self.timer.schedule(min((scope.deadline for scope in self.jobs), default=math.inf))

    def _abandon(self, scope: CallScope) -> None:
        job = self.jobs.pop(scope)
        scope.is_abandoned, scope.deadline = True, math.inf
        self.abandoned[scope] = _job_name(job)
        self._on_abandoned(scope, job)

    def exceed_limit(self, trial: str) -> None:
        """Cancel the attempt in flight of a trial that may not continue; see `Layer.over_limit`."""
        for scope, job in self.jobs.items():
            if isinstance(job, TrialWork) and job.trial == trial and not job.has_output:
                deadline = self.timer.now() + self._patience
                scope.exceed_limit(deadline)
                self.timer.schedule(deadline)

    @property
    def unresponsive(self) -> list[str]:
        """Names of the calls that do not respond to their cancellation."""
        return [*self.abandoned.values(), *self.unresponsive_jobs]


class TrialExecutor:
    """The consumers of a session."""

    def __init__(
        self,
        recorder: Recorder,
        settings: KernelSettings,
        tasks: Mapping[str, Task],
        scorers: Sequence[OpenScorer],
        *,
        in_thread: InThread,
        key_of: Callable[[TrialWork], str] | None,
        max_failures: float,
        fail_ambiguous: bool,
        cancel_timeout: float,
    ) -> None:
        """Without `tasks`, outputs are only scored.

        `key_of` returns the rate-limit key of a trial; None: there is only one. `fail_ambiguous`: see `Attempts`.
        `cancel_timeout`: seconds that calls get to end after they were cancelled because the session is stopped.
        The assembly sets `Scheduler.new_lane`, and attaches layers before the executor runs.
        """
        self._recorder = recorder
        self._settings = settings
        self._scorers = scorers
        loop = RunLoop()
        self.shutdown = Shutdown(recorder.clock.now, grace=settings.grace, cancel_timeout=cancel_timeout, on_stop=self._on_stop)
        self.scheduler = Scheduler(
            recorder,
            settings,
            self.shutdown,
            loop=loop,
            start_consumer=lambda: self._nursery.start_soon(self._consume),
            has_keys=key_of is not None,
        )
        self.late_recorder = late_recorder = LateRecorder(recorder, loop, self.shutdown)
        self._attempts = Attempts(
            tasks, self.scheduler, late_recorder, max_failures=max_failures, fail_ambiguous=fail_ambiguous
        )
        self._layers = list[Layer]()
        self.scoring = Scoring(scorers, self.scheduler, late_recorder, in_thread)
        self._admission = Admission(self.scheduler, in_thread, key_of)
        self.calls = CallsInFlight(recorder.clock, settings.grace, self._on_abandoned)
        self._turn_end = 0.0
        """When consumers must yield, even if their tasks do not wait for anything."""
        self._idle_event = trio.Event()
        """Set when `_wait_idle` must check again."""
        self.helper: Helper | None = None
        """What runs beside the consumers and gives jobs their replies, if anything does."""

    def attach(self, layers: Sequence[Layer]) -> None:
        """Put layers around the attempts that start from now on, outside the earlier ones, the innermost first."""
        self._layers += layers
        self._attempts.tasks = surround(self._attempts.tasks, layers)
        self._attempts.layers = Layers(self._layers)

    async def run(self, trials: TrialSource, *, on_unresponsive: Callable[[], Any] | None = None) -> None:
        """Run all trials, unless the session is stopped.

        `on_unresponsive` is awaited if a call does not respond to its cancellation. If it returns, the call is waited for.
        """
        try:
            await self._run(trials, on_unresponsive)
        finally:
            self._recorder.journal.on_segment_lost = None
            self._end()  # Later results are not recorded.

    async def _run(self, trials: TrialSource, on_unresponsive: Callable[[], Any] | None) -> None:
        if self._attempts.tasks and not self.scheduler.read_ahead.has_keys:
            self.scheduler.open_lane("", trials=True)
        for scorer in self._scorers:
            if not scorer.scorer.is_local and scorer.threads is None:
                self.scheduler.open_lane(scorer.key, calls=True)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._recorder.journal.on_segment_lost = self._stop_on_lost_segment
            nursery.start_soon(self._admission.run, trials)
            nursery.start_soon(self.scheduler.timer.run)
            nursery.start_soon(self.calls.timer.run)
            if (plain_scorers := self.scoring.plain) is not None:
                plain_scorers.on_idle = self._check_idle
                nursery.start_soon(plain_scorers.run)
                nursery.start_soon(plain_scorers.timer.run)
            if self.helper is not None:
                nursery.start_soon(self._run_helper, self.helper)
            if self._settings.deadline is not None:
                nursery.start_soon(self._stop_at_deadline, self._settings.deadline)
            await self.shutdown.wait_over()
            await self._wait_idle(trio.CancelScope(), self._settings.grace, self.calls.abandoned)
            if self.calls.unresponsive and on_unresponsive is not None:
                await on_unresponsive()
            nursery.cancel_scope.cancel()

    async def _run_helper(self, helper: "Helper") -> None:
        await helper.run()
        self._idle_event.set()

    async def _consume(self) -> None:
        calls = self.calls
        scope = CallScope(calls.timer)
        try:
            while self.scheduler.consumers.is_open:
                scope = CallScope(calls.timer)
                with scope.scope:
                    await self._serve(scope)
                if scope in calls.jobs:
                    self._end_cancelled_job(calls.jobs.pop(scope), scope.outcome)
                elif scope.is_abandoned or not scope.is_cancelled:
                    break  # Another consumer has replaced it, or there are more consumers than the limits allow.
        except SegmentLost:
            pass  # It waited for a record that cannot be written; the other consumers get their grace period.
        except trio.Cancelled:
            job = calls.jobs.get(scope)
            if isinstance(job, TrialWork) and not job.has_output:
                self._attempts.cancel(job)
            raise
        finally:
            self.scheduler.consumers.count -= not scope.is_abandoned
            calls.jobs.pop(scope, None)
            calls.abandoned.pop(scope, None)
            if not calls.jobs or not calls.abandoned:
                self._idle_event.set()

    async def _serve(self, scope: CallScope) -> None:
        """Execute one job after the other, each to its end or to its next wait."""
        in_flight, attempts, scoring, scheduler = self.calls.jobs, self._attempts, self.scoring, self.scheduler
        consumers = scheduler.consumers
        consumers.is_looking = False
        while consumers.is_open and not scope.is_cancelled:
            job = scheduler.next_job()
            if job is None:
                if consumers.count > scheduler.queues.max_consumers:
                    return
                if not in_flight:
                    self._idle_event.set()
                scheduler.on_idle()
                await consumers.park()
                continue
            in_flight[scope] = job
            if isinstance(job, ScorerCall):
                await scoring.call(job, scope)
            elif job.has_output or await attempts.attempt(job, scope):
                if self._scorers:
                    job.output = json_round_trip(job.output)  # The same value before and after a resume.
                    await scoring.score(job)
                else:
                    scheduler.complete(job)
            del in_flight[scope]
            if self._recorder.state.t > self._turn_end:  # The time of the last record: reading the clock costs more.
                await trio.lowlevel.checkpoint()
                self._turn_end = self._recorder.clock.now() + TURN

    def _end_cancelled_job(self, job: Job, outcome: TimedOut | LimitExceeded | Interrupted) -> None:
        if isinstance(job, ScorerCall):
            assert not isinstance(outcome, LimitExceeded)  # Only attempts have such limits.
            self.scoring.end(job, outcome)
        elif job.has_output:
            self.scheduler.release()  # The output is scored when the run is resumed.
        else:
            self._attempts.end(job, outcome)

    def _on_abandoned(self, scope: CallScope, job: Job) -> None:
        """Record the end of a call that is still running, and let another consumer replace the one that waits for it."""
        outcome = LimitExceeded() if scope.outcome == LimitExceeded() else TimedOut()
        self.scheduler.consumers.count -= 1
        self._end_cancelled_job(job, outcome)
        self.scheduler.wake()

    async def _stop_at_deadline(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self.shutdown.stop("deadline", f"the deadline of {seconds:g} s was reached")

    def _stop_on_lost_segment(self, failure: SegmentLost) -> None:
        """Stop because the journal was deleted or truncated; nothing is recorded in the grace period."""
        self.shutdown.stop("interrupted", str(failure))

    def _on_stop(self) -> None:
        """Start no more attempts. A run still scores outputs within the grace period; a re-scoring starts nothing more."""
        if not self._attempts.tasks or not self._scorers:
            self.scheduler.close()
        else:
            self.scheduler.queues.close_attempts()
        self.scheduler.read_ahead.request()
        self.scheduler.on_idle()
        self._nursery.start_soon(self._drain)

    async def _drain(self) -> None:
        """Wait for the calls in flight, cancel them after the grace period, and record unresponsive attempts as abandoned."""
        shutdown, calls = self.shutdown, self.calls
        await self._wait_idle(shutdown.grace_scope, shutdown.grace, calls.jobs)
        self.scoring.interrupt()
        self.scheduler.close()
        for scope in calls.jobs:
            scope.interrupt()
        await self._wait_idle(trio.CancelScope(), shutdown.cancel_timeout, calls.jobs)
        for job in calls.jobs.values():
            calls.unresponsive_jobs.append(_job_name(job))
            if isinstance(job, TrialWork) and not job.has_output:
                self._attempts.abandon(job)
        self._end()

    async def _wait_idle(self, scope: trio.CancelScope, seconds: float, calls: Mapping[CallScope, Any]) -> None:
        """Wait until these calls have ended and no more outputs can be scored in the grace period, for at most `seconds`."""
        scope.deadline = trio.current_time() + seconds
        with scope:
            while (
                calls
                or self.scoring.is_busy
                or (self.helper is not None and self.helper.is_sending)
                or (self.scheduler.consumers.is_open and self.scheduler.queues.has_calls(self.shutdown.grace_end))
            ):
                self._idle_event = trio.Event()
                await self._idle_event.wait()

    def _check_idle(self) -> None:
        """Let `_wait_idle` check again."""
        self._idle_event.set()

    def _end(self) -> None:
        self.shutdown.end()
        self.scoring.interrupt()
        self.scheduler.close()


def _job_name(job: Job) -> str:
    if isinstance(job, ScorerCall):
        return f"{job.work.trial} in scorer {job.scorer.scorer.name}"
    return f"{job.trial} in a scorer" if job.has_output else f"{job.trial} in slot {job.slot}"
