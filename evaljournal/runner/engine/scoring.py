"""Scores of an output: built-in scorers compute them at once, plain functions in a thread; calls of other scorers are queued.

**Order.** Built-in scorers first, in the loop; then all plain functions are handed over to a thread together (`plain_scorers`);
then the calls of judges and other scorers wait in their lanes. What combines scores comes last, then the trial is completed.

**One end per scorer and output**: its scores, or one record that it has failed. A failed call of a function or a judge is
retried in its lane, with the scorer's own retry budget; the task is not called again. What was not recorded when a session ends
is scored by the next one.

**Starts.** The call of a judge may have cost something when it is lost half way, so its start is recorded, before it is called.
Built-in scorers and plain functions have no record of a start: repeating them costs nothing.

**What must never happen**: a trial that is completed before all its scorers have ended; a score of an output that is not
recorded; a scorer that blocks the loop, or ends the run. An exception of a scorer, a value that is no score and one that cannot
be recorded are the failure of this score. If every call of a scorer would fail, for a missing key or with the same error again,
the session stops instead of failing all outputs.

Which scorers an output still needs is computed from the recorded scores, so a resumed run and a re-scoring differ from a new
run only in `done_scorers`.
"""

import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import outcome
import trio

from evaljournal.journal import events
from evaljournal.journal.errors import JournalError, RecordTooLarge, Unserializable
from evaljournal.journal.readers.reader import fetch
from evaljournal.journal.threads import InThread
from evaljournal.replay.runs.trajectory import StepDetails
from evaljournal.replay.state.trial import unpack_location
from evaljournal.replay.state.workspaces import recorded_changes
from evaljournal.runner.concurrency.policy import call_id
from evaljournal.runner.concurrency.start import SEVERAL
from evaljournal.runner.data.to_json import is_large
from evaljournal.runner.engine.call import CallOutcome, CallScope, Interrupted, Returned, TimedOut
from evaljournal.runner.engine.jobs import ScorerCall, TrialWork, gate_error, gate_fields
from evaljournal.runner.engine.plain_scorers import SLOW, PlainCalls, PlainScorers, Result
from evaljournal.runner.engine.recorder import LateRecorder
from evaljournal.runner.engine.scheduler import Scheduler
from evaljournal.runner.retries.classify import Description, Failure, Fatal, describe
from evaljournal.runner.retries.retry import NoRetry, RetryIn, jitter
from evaljournal.runner.scorers.scorer import OpenScorer, Scorer, ScorerInput
from evaljournal.runner.signals import is_from_signal

LARGE_VALUE: Final = 16_384
"""Characters of a value from which a built-in scorer runs in a thread, so that it does not block the loop for long."""


class Scoring:
    """The scorers of a session."""

    def __init__(
        self, scorers: Sequence[OpenScorer], scheduler: Scheduler, late_recorder: LateRecorder, in_thread: InThread
    ) -> None:
        self._versions = {scorer.scorer.name: scorer.scorer.version for scorer in scorers}
        self._combining_scorers = [scorer.scorer for scorer in scorers if scorer.scorer.combines]
        self._local_scorers = [scorer.scorer for scorer in scorers if scorer.scorer.is_local and not scorer.scorer.combines]
        self._called_scorers = [scorer for scorer in scorers if not scorer.scorer.is_local]
        self._trajectory_scorers = {scorer.scorer.name: scorer.scorer for scorer in scorers if scorer.scorer.takes_trajectory}
        self.read_trajectory: Callable[[TrialWork], Awaitable[list[StepDetails]]] = _no_trajectory
        """Returns the trajectory of the attempt with the output, for the scorers that take it; set by the assembly."""
        self._takes_changes = any(scorer.scorer.takes_changes for scorer in scorers)
        self._scheduler = scheduler
        self.plain = PlainScorers(scorers, scheduler, self._end_plain) if any(scorer.threads for scorer in scorers) else None
        """The plain functions, if there are any."""
        self._late_recorder = late_recorder
        self._in_thread = in_thread
        self._record, self._clock = scheduler.recorder.record, scheduler.recorder.clock
        self._threads = trio.CapacityLimiter(os.cpu_count() or 1)

    async def score(self, work: TrialWork) -> None:
        """Score an output with the built-in scorers, then queue a call of every other scorer; an excluded one has no scores."""
        if work.state.is_excluded:
            self._scheduler.complete(work)
            return
        trajectory = await self._trajectory(work) if self._trajectory_scorers else []
        files, diff = await self._changes(work) if self._takes_changes else ([], "")
        outcome = work.state.answer_outcome
        new_input = partial(
            ScorerInput,
            work.output,
            work.case,
            trajectory,
            trial=work.trial,
            declined=outcome == "declined",
            truncated=outcome == "truncated",
            latency=work.state.latency,
            cost=work.state.cost,
            files=files,
            diff=diff,
            attempt=work.state.attempts,
            workspace_run=self._scheduler.recorder.state.workspaces.runs.get(work.trial, ""),
        )
        scorer_input = new_input()
        for scorer in self._local_scorers:
            if scorer.name not in work.done_scorers:
                await self._compute(scorer, work, scorer_input)
        called, plain = [scorer for scorer in self._called_scorers if scorer.scorer.name not in work.done_scorers], self.plain
        work.remaining_calls = len(called)
        if plain is not None and (functions := [scorer for scorer in called if plain.takes(scorer)]):
            plain.call(work, scorer_input, functions, self._late_recorder.sink(work))
            called = [scorer for scorer in called if scorer not in functions]
        for open_scorer in called:
            self._put(ScorerCall(work=work, scorer=open_scorer, input=new_input(scorer=open_scorer.scorer.name)))
        if not work.remaining_calls:
            self._complete(work)

    async def _trajectory(self, work: TrialWork) -> list[StepDetails]:
        """Read the trajectory of the attempt with the output; if that fails, the scorers that take it fail."""
        names = self._trajectory_scorers.keys() - work.done_scorers
        if not names:
            return []
        try:
            return await self.read_trajectory(work)
        except JournalError as exc:
            for name in sorted(names):
                self._record_failure(self._trajectory_scorers[name], work, describe(exc), 0.0)
            work.done_scorers |= names
            return []

    async def _changes(self, work: TrialWork) -> tuple[list[Any], str]:
        """Read what the attempt has changed in its workspace; nothing if that was not recorded."""
        recorder = self._scheduler.recorder
        location = recorder.state.workspaces.locations.get(work.trial)
        if location is None:
            return [], ""
        journal = recorder.journal
        await journal.wait_durable(journal.appended_seq)
        record = await self._in_thread(lambda: fetch(journal.path, *unpack_location(location), files=journal.files))
        files, diff = recorded_changes(record.event.value if isinstance(record.event, events.Noted) else None)
        return list(files), diff

    async def _compute(self, scorer: Scorer, work: TrialWork, scorer_input: ScorerInput) -> None:
        started_at = self._clock.now()
        compute: Callable[[], Any] = partial(scorer.call, scorer_input)
        try:
            is_slow = getattr(scorer.function, "is_slow", None)
            if (
                is_large(work.output, LARGE_VALUE)
                or is_large(work.case.expected, LARGE_VALUE)
                or (scorer_input.trajectory and scorer.name in self._trajectory_scorers)
                or (is_slow is not None and is_slow(scorer_input))
            ):
                async with self._threads:
                    value = await self._in_thread(compute)
            else:
                value = compute()
        except Exception as exc:  # noqa: BLE001  # recorded as the failure of this score
            self._record_failure(scorer, work, describe(exc), self._clock.elapsed(started_at))
        else:
            self._record_scores(scorer, work, value, self._clock.elapsed(started_at))

    @property
    def is_busy(self) -> bool:
        """Whether a plain function is being called."""
        return self.plain is not None and bool(self.plain.in_flight)

    def interrupt(self) -> None:
        """Abandon the calls of plain functions: the session ends, and their outputs are scored when the run is resumed."""
        if self.plain is not None:
            self.plain.interrupt()

    def _put(self, call: ScorerCall) -> None:
        if self.plain is not None and call.scorer.threads is not None:
            self.plain.queue(call)
        else:
            self._scheduler.put(call)

    def _end_plain(self, calls: PlainCalls, result: Result) -> bool:
        """Record how a call of a plain function ended, and what follows; return whether it returned scores."""
        scorer, ending, elapsed = result
        if isinstance(ending, outcome.Value):
            is_scored = self._record_scores(scorer.scorer, calls.work, ending.value, elapsed)
            self._end_scorer(calls.work)
            return is_scored
        call = ScorerCall(work=calls.work, scorer=scorer, input=calls.input, number=1)
        if ending is None:
            self._settle(call, _timeout(scorer.scorer), None, elapsed, is_queued=False)
        else:
            self._handle_failure(call, ending.error, elapsed, is_queued=False)
        return False

    async def call(self, call: ScorerCall, scope: CallScope) -> None:
        """Call a scorer once."""
        scorer, scheduler = call.scorer.scorer, self._scheduler
        call.number += 1
        is_live, gates = call.lane.is_live, call.lane.gates
        event = events.ScorerCallStarted(
            trial=call.work.trial,
            scorer=scorer.name,
            call=call.number,
            key=call.lane.key or call.key,
            probe=call.is_probe,
            **gate_fields(gates, call),
        )
        record = self._record(event)
        call.started_at = record.t
        scheduler.inform_policy(record, call)
        if scheduler.settings.write_ahead and is_live:
            await scheduler.recorder.journal.wait_durable(record.seq)
        if (error := gate_error(gates, call)) is not None:
            self.end(call, error)
            return
        sink = self._late_recorder.sink(call.work, job=call)
        task = call.scorer.task
        value = call if task.takes_trial else call.input
        ending = await scope.call(task, value, timeout=scorer.timeout, sink=sink, on_late=lambda _: None)
        self.end(call, ending)

    def end(self, call: ScorerCall, ending: CallOutcome | Interrupted) -> None:
        """Record how a call ended, and what follows."""
        scorer, work = call.scorer.scorer, call.work
        self._scheduler.end_call(call, is_answered=isinstance(ending, Returned))
        if self._scheduler.shutdown.is_over:
            return
        elapsed = 0.0 if not call.lane.is_live else self._clock.elapsed(call.started_at)
        is_scored = False
        match ending:
            case Returned():
                is_scored = self._record_scores(scorer, work, ending.output, elapsed, call)
                self._end_scorer(work)
            case TimedOut():
                self._settle(call, _timeout(scorer), None, elapsed)
            case Interrupted():
                pass  # The output is scored when the run is resumed.
            case exc:
                self._handle_failure(call, exc, elapsed)
        if self.plain is not None:
            self.plain.mark(scorer.name, is_quick=is_scored and elapsed < SLOW)

    def _handle_failure(self, call: ScorerCall, exc: BaseException, elapsed: float, *, is_queued: bool = True) -> None:
        scorer, work = call.scorer.scorer, call.work
        failure, error = scorer.retry.classify_and_describe(exc, now=self._clock.wall())
        self._settle(call, error, failure, elapsed, is_queued=is_queued)
        if failure.stop_reason is not None:
            value = {"scorer": scorer.name, "message": f"{error.type}: {error.message}"}
            name = f"{events.NOTE_PREFIX}{failure.stop_reason}"
            self._record(events.Noted(name=name, value=value, trial=work.trial, attempt=work.state.attempts))
            self._scheduler.shutdown.stop_after(failure, error)
            self._scheduler.close()  # Outputs that wait for this scorer would fail in the same way.

    def _settle(
        self, call: ScorerCall, error: Description, failure: Failure | None, elapsed: float, *, is_queued: bool = True
    ) -> None:
        """Record that a call failed, or timed out if there is no `failure`; schedule a retry, or record that scoring failed.

        `is_queued`: the call was started in its lane, whose policy is informed.
        """
        category: events.ScorerFailureCategory = "timed_out" if failure is None else failure.category
        retry_after, stop_run = (None, False) if failure is None else (failure.retry_after, failure.stop_reason is not None)
        scheduler, scorer, work = self._scheduler, call.scorer.scorer, call.work
        name = call_id(work.trial, scorer.name)
        call.retry_history.count_failure(category, retry_after)
        random_number, probe = (
            jitter(scheduler.settings.seed, name, call.number),
            is_queued and scheduler.is_free_probe(call, name),
        )
        decision = scorer.retry.decide(call.retry_history, random_number, probe=probe, stop_run=stop_run)
        event = events.ScorerCallFailed(
            trial=work.trial,
            scorer=scorer.name,
            call=call.number,
            error=error.type,
            message=error.message,
            category=category,
            retry_after=retry_after,
            elapsed=elapsed,
            delay=decision.delay if isinstance(decision, RetryIn) else None,
        )
        record = self._record(event)
        if is_queued:
            scheduler.inform_policy(record, call)
        call.rate_limits = call.rate_limits + 1 if category == "rate_limited" else 0
        if isinstance(decision, NoRetry):
            self._record_failure(scorer, work, error, elapsed)
            self._end_scorer(work)
            return
        call.retry_history.count_retry(decision.reason, decision.delay)
        call.delay, call.goes_to_end = decision.delay, decision.reason == "probe" or call.rate_limits >= SEVERAL
        self._put(call)

    def _record_scores(
        self, scorer: Scorer, work: TrialWork, value: Any, elapsed: float, call: ScorerCall | None = None
    ) -> bool:
        """Record the scores that a scorer returned, of which the first ends its call; return whether it returned any."""
        try:
            scores = scorer.scores(value)
        except BaseException as exc:  # The value is not a score; its class may raise anything.
            if is_from_signal(exc):
                raise
            self._record_failure(scorer, work, describe(exc), elapsed, call)
            return False
        try:
            for name, score in scores.items():
                record = self._record(
                    events.TrialScored(
                        trial=work.trial,
                        scorer=name,
                        version=scorer.version,
                        value=score.value,
                        reason=score.reason,
                        elapsed=elapsed,
                    )
                )
                if call is not None:
                    self._scheduler.inform_policy(record, call)
                    call = None
        except (Unserializable, RecordTooLarge) as exc:
            self._record_failure(scorer, work, describe(exc), elapsed, call)
            return False
        return True

    def _record_failure(
        self, scorer: Scorer, work: TrialWork, error: Description, elapsed: float, call: ScorerCall | None = None
    ) -> None:
        record = self._record(
            events.ScoringFailed(
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
            self._scheduler.inform_policy(record, call)
        if not scorer.is_local:
            self._scheduler.stop_on_same_error(scorer.name)

    def _end_scorer(self, work: TrialWork) -> None:
        work.remaining_calls -= 1
        if not work.remaining_calls:
            self._complete(work)

    def _complete(self, work: TrialWork) -> None:
        """Record the scores that combine others, and complete the trial."""
        for scorer in self._combining_scorers:
            if scorer.name not in work.done_scorers:
                scores = work.state.scores.items()
                values = {name: value for name, (version, value) in scores if version == self._versions.get(name)}
                try:
                    score = scorer.function.combine(values)  # type: ignore[attr-defined]  # as `combines` promises
                except Fatal as exc:
                    self._record_failure(scorer, work, describe(exc), 0.0)
                else:
                    self._record_scores(scorer, work, score, 0.0)
        self._scheduler.complete(work)


async def _no_trajectory(_: TrialWork) -> list[StepDetails]:
    return []


def _timeout(scorer: Scorer) -> Description:
    """Return the error of a call that exceeded the timeout of its scorer."""
    return Description(type="TimedOut", message=f"no score within {scorer.timeout:g} s", traceback="")
