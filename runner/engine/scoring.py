"""What follows an output: built-in scorers compute their scores, and calls of all others are queued.

A scorer that fails is called again where that may help, and costs its own score only; the task is never called again for it.
"""

import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from journal.errors import JournalError, Unserialisable
from journal.events import Noted, ScorerCallFailed, ScorerCallStarted, ScorerFailureCategory, ScoringFailed, TrialScored
from runner.concurrency import POISONED, call_id
from runner.engine.attempt import Answered, Cut, Flight, Landing, OutOfTime, Raised
from runner.engine.trial_work import Call, Work
from runner.retries.classify import Description, Failure, describe
from runner.retries.retry import Again, GiveUp, TimedOut, chance
from runner.scorers.scorer import OpenScorer, Scorer, ScorerInput
from runner.tasks import Ending

if TYPE_CHECKING:
    from runner.engine.executor import Executor

LARGE: Final = 16_384
"""Characters of a text from which on a built-in scorer computes in a thread; so that the loop is not blocked for long."""
MANY: Final = 1_000
"""Values inside an output from which on it does."""


class Scoring:
    """The scorers of a session."""

    def __init__(self, scorers: Sequence[OpenScorer], executor: "Executor") -> None:
        self._local = [each.scorer for each in scorers if each.scorer.is_local]
        self._called = [each for each in scorers if not each.scorer.is_local]
        self._executor = executor
        self._record, self._clock = executor.recorder.record, executor.recorder.clock
        self._threads = trio.CapacityLimiter(os.cpu_count() or 1)

    async def begin(self, work: Work) -> None:
        """Let the built-in scorers score an output, then queue a call of every other scorer."""
        for scorer in self._local:
            if scorer.name not in work.scored:
                await self._compute(scorer, work)
        calls = [
            Call(work=work, scorer=each, judged=ScorerInput(work.output, work.case))
            for each in self._called
            if each.scorer.name not in work.scored
        ]
        work.unscored = len(calls)
        for call in calls:
            self._executor.put(call)
        if not calls:
            self._executor.complete(work)

    async def _compute(self, scorer: Scorer, work: Work) -> None:
        began = self._clock.now()
        compute: Callable[[], Any] = partial(scorer.function, work.output, work.case)
        try:
            if _is_large(work.output) or _is_large(work.case.expected):
                async with self._threads:
                    value = await self._executor.in_thread(compute)
            else:
                value = compute()
        except Exception as exc:  # noqa: BLE001  # whatever it raises is a fact about this score
            self._fail(scorer, work, describe(exc), self._since(began))
        else:
            self._score(scorer, work, value, self._since(began))

    async def make(self, call: Call, flight: Flight) -> None:
        """Make one call."""
        executor, scorer = self._executor, call.scorer.scorer
        call.number += 1
        started = self._record(ScorerCallStarted(trial=call.work.trial, scorer=scorer.name, call=call.number, key=call.key))
        call.began = started.t
        executor.tell(started, call)
        if executor.settings.write_ahead:
            await executor.recorder.journal.wait_durable(started.seq)
        due = math.inf if scorer.timeout is None else executor.due_in(scorer.timeout)
        sink = executor.sink(call.work)
        self.end(call, await flight.call(call.scorer.task, call.judged, due=due, sink=sink, late=_discard))

    def end(self, call: Call, outcome: Landing | Cut) -> None:
        """Record how a call ended, and what follows."""
        executor, scorer, work = self._executor, call.scorer.scorer, call.work
        executor.lane_of(call).end(call)
        if executor.is_over or isinstance(outcome, Cut):
            return  # The output is scored when the run is resumed.
        elapsed = self._since(call.began)
        if isinstance(outcome, Answered):
            self._score(scorer, work, outcome.output, elapsed, call)
            self._done(work)
        elif isinstance(outcome, OutOfTime):
            error = Description(type="TimedOut", message=f"no score within {scorer.timeout:g} s", traceback="")
            self._settle(call, TimedOut(), error, elapsed)
        else:
            self._raised(call, outcome, elapsed)

    def _raised(self, call: Call, outcome: Raised, elapsed: float) -> None:
        scorer, work = call.scorer.scorer, call.work
        failure, error = scorer.retry.judge(outcome.exc, now=self._clock.wall()), describe(outcome.exc)
        self._settle(call, failure, error, elapsed)
        if failure.stop_run:
            words = f"{scorer.name}: {error.type}: {error.message}"
            self._record(Noted(name="unauthorized", value=words, trial=work.trial, attempt=work.attempts))
            self._executor.refuse(outcome.exc)

    def _settle(self, call: Call, ended: Failure | TimedOut, error: Description, elapsed: float) -> None:
        """Record that a call failed, and call again after a delay, or give up."""
        executor, scorer, work = self._executor, call.scorer.scorer, call.work
        name = call_id(work.trial, scorer.name)
        spent, lane = call.spent.plus(ended), executor.lane_of(call)
        luck = chance(executor.settings.seed, name, call.number)
        decision = scorer.retry.after(ended, spent, luck, probe=name in lane.steering.free)
        category: ScorerFailureCategory = "timed_out" if isinstance(ended, TimedOut) else ended.kind
        failed = ScorerCallFailed(
            trial=work.trial,
            scorer=scorer.name,
            call=call.number,
            error=error.type,
            message=error.message,
            category=category,
            retry_after=None if isinstance(ended, TimedOut) else ended.retry_after,
            elapsed=elapsed,
            delay=decision.delay if isinstance(decision, Again) else None,
        )
        executor.tell(self._record(failed), call)
        call.rate_limits = call.rate_limits + 1 if category == "rate_limited" else 0
        if isinstance(decision, GiveUp):
            self._fail(scorer, work, error, elapsed)
            self._done(work)
            return
        call.spent = call.spent if decision.cause == "probe" else spent.plus(decision)
        call.delay, call.is_last = decision.delay, decision.cause == "probe" or call.rate_limits >= POISONED
        executor.put(call)

    def _score(self, scorer: Scorer, work: Work, value: Any, elapsed: float, call: Call | None = None) -> None:
        """Record what a scorer returned; the first record of it ends its call."""
        try:
            for name, score in scorer.scores(value).items():
                record = self._record(
                    TrialScored(
                        trial=work.trial,
                        scorer=name,
                        version=scorer.version,
                        value=score.value,
                        reason=score.reason,
                        elapsed=elapsed,
                    )
                )
                if call is not None:
                    self._executor.tell(record, call)
                    call = None
        except Exception as exc:  # What it returned is not a score.
            if isinstance(exc, JournalError) and not isinstance(exc, Unserialisable):
                raise
            self._fail(scorer, work, describe(exc), elapsed, call)

    def _fail(self, scorer: Scorer, work: Work, error: Description, elapsed: float, call: Call | None = None) -> None:
        record = self._record(
            ScoringFailed(
                trial=work.trial,
                scorer=scorer.name,
                version=scorer.version,
                error=error.type,
                message=error.message,
                traceback=error.traceback,
                elapsed=elapsed,
            )
        )
        if call is not None:
            self._executor.tell(record, call)

    def _done(self, work: Work) -> None:
        work.unscored -= 1
        if not work.unscored:
            self._executor.complete(work)

    def _since(self, began: float) -> float:
        return round(self._clock.now() - began, 6)


def _discard(_: Ending) -> None:
    """Ignore the late end of a call that was abandoned."""


def _is_large(value: Any) -> bool:
    """Whether to compute with a value may take long; at most `MANY` values inside it are looked at."""
    if isinstance(value, str):
        return len(value) > LARGE
    if not isinstance(value, dict | list):
        return False
    left, texts, pending = MANY, LARGE, [value]
    while pending:
        inside = pending.pop()
        left -= 1
        if isinstance(inside, str):
            texts -= len(inside)
        elif isinstance(inside, dict | list):
            left -= len(inside)
            if left > 0:
                pending.extend(inside.values() if isinstance(inside, dict) else inside)
        if left <= 0 or texts < 0:
            return True
    return False
