"""The executor of a session: consumers execute the jobs of the scheduler; timeouts, budgets and stops cancel their calls.

A consumer is a trio task. It takes the next job, executes it to its end or its next wait, and parks when there is no job.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from evaljournal.journal.errors import JournalError, SegmentLost
from evaljournal.journal.events import Noted
from evaljournal.journal.threads import InThread
from evaljournal.replay.state.workers import WORKER_ENDED
from evaljournal.runner.definition.limits import ignores_headers
from evaljournal.runner.engine.admission import Admission, TrialSource
from evaljournal.runner.engine.attempts import Attempts
from evaljournal.runner.engine.call import CallScope, Interrupted, OverBudget, TimedOut
from evaljournal.runner.engine.known_limits import KnownLimits
from evaljournal.runner.engine.options import Options
from evaljournal.runner.engine.plan import Plan
from evaljournal.runner.engine.rate_limits import call_size, limits_by_key, policy_maker
from evaljournal.runner.engine.recorder import LateRecorder, Recorder, RunLoop, Shutdown, Timer
from evaljournal.runner.engine.scheduler import Scheduler
from evaljournal.runner.engine.scoring import Scoring
from evaljournal.runner.engine.trial_work import Job, ScorerCall, TrialWork
from evaljournal.runner.scorers.scorer import OpenScorer
from evaljournal.runner.tasks import Task
from evaljournal.runner.workers.driver import Workers
from evaljournal.runner.workers.pool import WorkerEnd

if TYPE_CHECKING:
    from evaljournal.runner.batches.api import BatchApi
    from evaljournal.runner.batches.targets import BatchTargets
    from evaljournal.runner.engine.batcher import Batcher

TURN: Final = 0.01
"""Seconds after which consumers whose tasks never wait yield to others."""
CANCEL_TIMEOUT: Final = 1.0
"""Seconds that a cancelled call gets to end before it counts as unresponsive."""


class TrialExecutor:
    """The consumers of a session, and the calls in flight."""

    def __init__(
        self,
        recorder: Recorder,
        plan: Plan,
        options: Options,
        tasks: Mapping[str, Task],
        scorers: Sequence[OpenScorer],
        *,
        in_thread: InThread,
        workers: Workers | None = None,
        batches: "tuple[BatchTargets, Mapping[int, BatchApi]] | None" = None,
    ) -> None:
        """`tasks` are those of the variants; without any, outputs are only scored.

        With `batches`, calls are sent in batches, or the open ones of earlier sessions are collected.
        """
        self._recorder = recorder
        self._now = recorder.clock.now
        self._settings = settings = plan.settings
        self._cancel_timeout = CANCEL_TIMEOUT + (settings.grace if "teardown" in plan.evaluation.hooks else 0.0)
        """Seconds that calls get to end after they were cancelled because the session is stopped."""
        self._scorers = scorers
        loop, keys = RunLoop(), plan.keys
        self.shutdown = Shutdown(self._now, grace=settings.grace, on_stop=self._on_stop)
        known_limits = KnownLimits(
            recorder.record,
            recorder.clock.wall,
            plan.declared_limits,
            lambda key: recorder.state.known_limits.recent_needs(key, self._now()),
            reads_headers=not ignores_headers(settings.limits),
        )
        self.scheduler = Scheduler(
            recorder,
            settings,
            policy_maker(settings, plan.scorer_slots, recorder, policy_factory=options.policy_factory),
            self.shutdown,
            has_keys=keys.has_several,
            loop=loop,
            start_consumer=lambda: self._nursery.start_soon(self._consume),
            estimate=plan.estimate if tasks else None,
            budget_share=options.budget_share,
            limits_of=limits_by_key(known_limits, keys, plan.evaluation.scorers, sees_calls=settings.sees_model_calls),
            is_elastic=plan.has_elastic_slots,
            size_of=lambda job: call_size(job, plan.evaluation.tasks),
            workers=workers,
        )
        if workers is not None:
            workers.is_stopping = lambda: self.shutdown.is_stopping
            workers.on_problem = partial(self.shutdown.stop, "interrupted")
            workers.on_end = self._note_worker_end
        late_recorder = LateRecorder(recorder, loop, self.shutdown, self._stop_over_budget, self.scheduler.read_reply)
        self._has_tasks = bool(tasks)
        self._attempts = Attempts(
            tasks,
            self.scheduler,
            late_recorder,
            known_limits,
            max_failures=settings.failure_limit(plan.total),
            in_thread=in_thread,
            fail_ambiguous=options.on_ambiguous == "fail",
        )
        self._scoring = Scoring(scorers, self.scheduler, late_recorder, in_thread)
        key_of = (lambda work: keys.key_of(work.case, work.state.variant)) if keys.has_several else None
        self._admission = Admission(self.scheduler, in_thread, key_of)
        self._in_flight: dict[CallScope, Job] = {}
        self._timeouts = Timer(recorder.clock, self._time_out)
        self._turn_end = 0.0
        """When consumers must yield, even if their tasks do not wait for anything."""
        self._idle_event = trio.Event()
        """Set when `_wait_idle` must check again."""
        self._unresponsive_jobs: list[str] = []
        """Jobs that did not respond to their cancellation when the session was stopped."""
        self._abandoned_calls: dict[CallScope, str] = {}
        """Calls that did not respond to their timeout, and are still running."""
        self._batcher: Batcher | None = None
        if batches is not None:
            from evaljournal.runner.engine import batcher  # noqa: PLC0415  # few runs need it

            self._batcher = batcher.Batcher(
                self.scheduler, tasks, self._in_flight, *batches, leave=options.leave, cancels=options.cancel_batches
            )

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
        if self._has_tasks and not self.scheduler.has_keys:
            self.scheduler.open_lane("", trials=True)
        for scorer in self._scorers:
            if not scorer.scorer.is_local:
                self.scheduler.open_lane(scorer.key, calls=True)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._recorder.journal.on_segment_lost = self._stop_on_lost_segment
            nursery.start_soon(self._admission.run, trials)
            nursery.start_soon(self.scheduler.timer.run)
            nursery.start_soon(self._timeouts.run)
            if self._batcher is not None:
                nursery.start_soon(self._run_batches, self._batcher)
            if self._settings.deadline is not None:
                nursery.start_soon(self._stop_at_deadline, self._settings.deadline)
            await self.shutdown.wait_over()
            await self._wait_idle(trio.CancelScope(), self._settings.grace, self._abandoned_calls)
            if self.unresponsive_calls and on_unresponsive is not None:
                await on_unresponsive()
            nursery.cancel_scope.cancel()

    async def _run_batches(self, batcher: "Batcher") -> None:
        await batcher.run()
        self._idle_event.set()

    def _note_worker_end(self, worker: str, reason: WorkerEnd, detail: str) -> None:
        if not self.shutdown.is_over:
            with suppress(JournalError):  # The journal has failed, which ends the run.
                self._recorder.record(Noted(name=WORKER_ENDED, value={"worker": worker, "reason": reason, "detail": detail}))

    async def _consume(self) -> None:
        scope = CallScope(self._timeouts)
        try:
            while self.scheduler.is_open:
                scope = CallScope(self._timeouts)
                with scope.scope:
                    await self._serve(scope)
                if scope in self._in_flight:
                    self._end_cancelled_job(self._in_flight.pop(scope), scope.outcome)
                elif scope.is_abandoned or not scope.is_cancelled:
                    break  # Another consumer has replaced it, or there are more consumers than the limits allow.
        except SegmentLost:
            pass  # It waited for a record that cannot be written; the other consumers get their grace period.
        except trio.Cancelled:
            job = self._in_flight.get(scope)
            if isinstance(job, TrialWork) and not job.has_output:
                self._attempts.cancel(job)
            raise
        finally:
            self.scheduler.consumers -= not scope.is_abandoned
            self._in_flight.pop(scope, None)
            self._abandoned_calls.pop(scope, None)
            if not self._in_flight or not self._abandoned_calls:
                self._idle_event.set()

    async def _serve(self, scope: CallScope) -> None:
        """Execute one job after the other, each to its end or to its next wait."""
        in_flight, attempts, scoring, scheduler = self._in_flight, self._attempts, self._scoring, self.scheduler
        while scheduler.is_open and not scope.is_cancelled:
            job = scheduler.next_job()
            if job is None:
                if scheduler.consumers > scheduler.queues.max_consumers:
                    return
                if not in_flight:
                    self._idle_event.set()
                scheduler.wake_batcher()
                await scheduler.park()
                continue
            in_flight[scope] = job
            if isinstance(job, ScorerCall):
                await scoring.call(job, scope)
            elif job.has_output or await attempts.attempt(job, scope):
                if self._scorers:
                    await scoring.score(job)
                else:
                    scheduler.complete(job)
            del in_flight[scope]
            if self._recorder.state.t > self._turn_end:  # The time of the last record: reading the clock costs more.
                await trio.lowlevel.checkpoint()
                self._turn_end = self._now() + TURN

    def _end_cancelled_job(self, job: Job, outcome: TimedOut | OverBudget | Interrupted) -> None:
        if isinstance(job, ScorerCall):
            assert not isinstance(outcome, OverBudget)  # Only attempts are stopped by a budget.
            self._scoring.end(job, outcome)
        elif job.has_output:
            self.scheduler.release()  # The output is scored when the run is resumed.
        else:
            self._attempts.end(job, outcome)

    def _time_out(self, now: float) -> None:
        """Cancel the calls that have exceeded their timeout, and abandon those that do not respond."""
        for scope in list(self._in_flight):
            if scope.deadline <= now:
                if scope.is_cancelled:
                    self._abandon(scope)
                else:
                    scope.time_out(now + self._settings.grace + CANCEL_TIMEOUT)
        self._timeouts.schedule(min((scope.deadline for scope in self._in_flight), default=math.inf))

    def _abandon(self, scope: CallScope) -> None:
        """Record the end of a cancelled call that is still running, and let another consumer replace this one."""
        job, outcome = self._in_flight.pop(scope), OverBudget() if scope.outcome == OverBudget() else TimedOut()
        scope.is_abandoned, scope.deadline = True, math.inf
        self._abandoned_calls[scope] = _job_name(job)
        self.scheduler.consumers -= 1
        self._end_cancelled_job(job, outcome)
        self.scheduler.wake()

    def _stop_over_budget(self, trial: str) -> None:
        for scope, job in self._in_flight.items():
            if isinstance(job, TrialWork) and job.trial == trial and not job.has_output:
                deadline = self._now() + self._settings.grace + CANCEL_TIMEOUT
                scope.exceed_budget(deadline)
                self._timeouts.schedule(deadline)

    @property
    def unresponsive_calls(self) -> list[str]:
        """Calls that do not respond to their cancellation."""
        return [*self._abandoned_calls.values(), *self._unresponsive_jobs]

    async def _stop_at_deadline(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self.shutdown.stop("deadline", f"the deadline of {seconds:g} s was reached")

    def _stop_on_lost_segment(self, failure: SegmentLost) -> None:
        """Stop because the journal was deleted or truncated; nothing is recorded in the grace period."""
        self.shutdown.stop("interrupted", str(failure))

    def _on_stop(self) -> None:
        """Start no more attempts. A run still scores outputs within the grace period; a re-scoring starts nothing more."""
        if not self._has_tasks or not self._scorers:
            self.scheduler.close()
        else:
            self.scheduler.queues.close_attempts()
        self.scheduler.request_admission()
        self.scheduler.wake_batcher()
        self._nursery.start_soon(self._drain)

    async def _drain(self) -> None:
        """Wait for the calls in flight, cancel them after the grace period, and record unresponsive attempts as abandoned."""
        shutdown = self.shutdown
        await self._wait_idle(shutdown.grace_scope, shutdown.grace, self._in_flight)
        self.scheduler.close()
        for scope in self._in_flight:
            scope.interrupt()
        await self._wait_idle(trio.CancelScope(), self._cancel_timeout, self._in_flight)
        for job in self._in_flight.values():
            self._unresponsive_jobs.append(_job_name(job))
            if isinstance(job, TrialWork) and not job.has_output:
                self._attempts.abandon(job)
        self._end()

    async def _wait_idle(self, scope: trio.CancelScope, seconds: float, calls: Mapping[CallScope, Any]) -> None:
        """Wait until these calls have ended and no more outputs can be scored in the grace period, for at most `seconds`."""
        scope.deadline = trio.current_time() + seconds
        with scope:
            while (
                calls
                or (self._batcher is not None and self._batcher.is_sending)
                or (self.scheduler.is_open and self.scheduler.queues.has_calls(self.shutdown.grace_end))
            ):
                self._idle_event = trio.Event()
                await self._idle_event.wait()

    def _end(self) -> None:
        self.shutdown.end()
        self.scheduler.close()


def _job_name(job: Job) -> str:
    if isinstance(job, ScorerCall):
        return f"{job.work.trial} in scorer {job.scorer.scorer.name}"
    return f"{job.trial} in a scorer" if job.has_output else f"{job.trial} in slot {job.slot}"
