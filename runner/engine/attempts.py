"""Attempts at trials: start one, record how it ended, and decide whether it is retried."""

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import attrs

from journal.codec import json_round_trip
from journal.errors import Unserialisable
from journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptReturnedLate,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    RetryScheduled,
    TrialFailed,
)
from replay.text import plural
from runner.concurrency import POISONED
from runner.data.to_json import plain
from runner.engine.attempt import Answered, Cut, Flight, Landing, OutOfTime, Raised
from runner.engine.lanes import Slots
from runner.engine.trial_work import Work
from runner.retries.classify import Failure, describe
from runner.retries.retry import Again, GiveUp, TimedOut, chance
from runner.tasks import Ending, Task

if TYPE_CHECKING:
    from runner.engine.executor import Executor

Cause = Literal["exhausted", "fatal", "timed_out", "ambiguous", "unserialisable"]


class Attempts:
    """The task of a session, and the slots of its attempts."""

    def __init__(self, task: Task, executor: "Executor", *, most_failures: float) -> None:
        self._task = task
        self._executor = executor
        self._settings = executor.settings
        self._recorder = executor.recorder
        self._record, self._now = executor.recorder.record, executor.recorder.clock.now
        self._slots = Slots()
        self._failures, self._most_failures = 0, most_failures

    async def make(self, work: Work, flight: Flight) -> bool:
        """Make one attempt; return whether it gave an output."""
        executor, trial = self._executor, work.trial
        work.attempts = number = work.attempts + 1
        work.slot = self._slots.take()
        started = self._record(AttemptStarted(trial=trial, attempt=number, slot=work.slot, key=work.key))
        work.began = started.t
        executor.tell(started, work)
        if self._settings.write_ahead:
            await self._recorder.journal.wait_durable(started.seq)
        limit = self._settings.timeout
        outcome = await flight.call(
            self._task,
            work if self._task.takes_trial else work.case.input,
            due=math.inf if limit is None else executor.due_in(limit),
            sink=executor.sink(work),
            late=partial(self._late, trial, number, started.t),
        )
        return self.end(work, outcome)

    def end(self, work: Work, outcome: Landing | Cut) -> bool:
        """Record how an attempt ended, and what follows; return whether it gave an output."""
        executor, trial, number = self._executor, work.trial, work.attempts
        elapsed = round(self._now() - work.began, 6)
        self._slots.give_back(work.slot)
        executor.queues.lanes[work.key].end(work)
        if executor.is_over:  # It was abandoned and recorded as interrupted, and has returned after all.
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
                executor.tell(self._record(AttemptTimedOut(trial=trial, attempt=number, timeout=limit, elapsed=elapsed)), work)
                if outcome.came is not None:
                    self._record(AttemptReturnedLate(trial=trial, attempt=number, ending=outcome.came, elapsed=elapsed))
                self._settle(work, TimedOut())
            case Cut():
                cut = AttemptInterrupted(trial=trial, attempt=number, why="stopped", elapsed=elapsed)
                executor.tell(self._record(cut), work)
                executor.let_go()
        return False

    def cancel(self, work: Work) -> None:
        """Record that an attempt was interrupted because the whole run was cancelled."""
        elapsed = round(self._now() - work.began, 6)
        cut = AttemptInterrupted(trial=work.trial, attempt=work.attempts, why="cancelled", elapsed=elapsed)
        self._executor.record_aside(cut)

    def abandon(self, work: Work) -> None:
        """Record that an attempt was interrupted although it does not end."""
        if self._recorder.state.trials[work.trial].stage == "running":
            cut = AttemptInterrupted(trial=work.trial, attempt=work.attempts, why="stopped")
            self._executor.tell(self._record(cut), work)

    def _answered(self, work: Work, output: Any, elapsed: float) -> bool:
        event = AttemptSucceeded(trial=work.trial, attempt=work.attempts, output=output, elapsed=elapsed)
        try:
            try:
                record = self._record(event)
            except (Unserialisable, RecursionError):
                output = plain(output)
                record = self._record(attrs.evolve(event, output=output))  # type: ignore[misc]  # a fact is an attrs class
        except (Unserialisable, RecursionError) as exc:  # It may be nested without an end.
            failed = AttemptFailed(
                trial=work.trial,
                attempt=work.attempts,
                error="Unserialisable",
                message=describe(exc).message,  # It names the place; a traceback would only lead into our own code.
                category="fatal",
                elapsed=elapsed,
            )
            self._executor.tell(self._record(failed), work)
            self._give_up(work, "unserialisable")
            return False
        self._executor.tell(record, work)
        self._executor.queues.unscored += 1
        work.output, work.is_answered = (
            json_round_trip(output),
            True,
        )  # Scorers see the same value now and on resume.
        return True

    def _failed(self, work: Work, exc: BaseException, elapsed: float) -> None:
        failure = self._settings.retry.judge(exc, now=self._recorder.clock.wall())
        error = describe(exc)
        record = self._record(
            AttemptFailed(
                trial=work.trial,
                attempt=work.attempts,
                error=error.type,
                message=error.message,
                traceback=error.traceback,
                category=failure.kind,
                retry_after=failure.retry_after,
                elapsed=elapsed,
            )
        )
        self._executor.tell(record, work)
        self._settle(work, failure)
        if failure.stop_run:
            self._executor.refuse(exc)

    def _settle(self, work: Work, ended: Failure | TimedOut) -> None:
        """Decide what follows an attempt that failed, and record it."""
        executor, settings = self._executor, self._settings
        is_rate_limited = isinstance(ended, Failure) and ended.kind == "rate_limited"
        work.rate_limits = work.rate_limits + 1 if is_rate_limited else 0
        spent, probe = work.spent.plus(ended), work.trial in executor.lane_of(work).steering.free
        match settings.retry.after(ended, spent, chance(settings.seed, work.trial, work.attempts), probe=probe):
            case Again(delay=delay, cause=cause) as again:
                work.spent = work.spent if cause == "probe" else spent.plus(again)
                work.delay, work.is_last = delay, cause == "probe" or work.rate_limits >= POISONED
                self._record(RetryScheduled(trial=work.trial, attempt=work.attempts + 1, delay=delay, cause=cause))
                executor.put(work)
            case GiveUp(cause=cause):
                self._give_up(work, cause)

    def _give_up(self, work: Work, cause: Cause) -> None:
        self._record(TrialFailed(trial=work.trial, attempts=work.attempts, cause=cause))
        self._failures += 1
        self._executor.let_go()
        if self._failures > self._most_failures:
            self._executor.stop("failed_fast", f"{plural(self._failures, 'trial')} failed")

    def _late(self, trial: str, number: int, began: float, ending: Ending) -> None:
        elapsed = round(self._now() - began, 6)
        self._executor.record_aside(AttemptReturnedLate(trial=trial, attempt=number, ending=ending, elapsed=elapsed))
