"""Attempts at trials: start one, record how it ended, and retry it or fail the trial."""

import heapq
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from evaljournal.journal import Record, events
from evaljournal.journal.disk.files import Files
from evaljournal.journal.errors import BlobDamaged, Unserializable
from evaljournal.journal.fact import evolve_fact
from evaljournal.journal.format.blobs import LIMIT
from evaljournal.journal.readers.reader import RecordReader
from evaljournal.journal.threads import InThread
from evaljournal.replay.results.budget_text import over_budget_text
from evaljournal.replay.state.answers import NotedAnswer
from evaljournal.replay.state.attempt_warnings import BLOCKING_CALLS
from evaljournal.replay.state.budget import OVER_BUDGET
from evaljournal.replay.state.steps import NOT_REUSED, RecordedStep, remaining_timeout, reuse_of
from evaljournal.replay.state.trial import unpack_location
from evaljournal.replay.text import as_text, plural
from evaljournal.runner.calls import LateOutcome, Task, WorkerEnded
from evaljournal.runner.calls.notes import PHASE_NOTE
from evaljournal.runner.calls.usage import usage_of_response
from evaljournal.runner.concurrency.constants import SEVERAL
from evaljournal.runner.data.to_json import is_large, to_json
from evaljournal.runner.engine.call import CallOutcome, CallScope, Interrupted, OverBudget, Returned, TimedOut
from evaljournal.runner.engine.jobs import TrialWork, gate_fields
from evaljournal.runner.engine.recorder import LateRecorder
from evaljournal.runner.engine.scheduler import Scheduler
from evaljournal.runner.retries.classify import Fatal, describe
from evaljournal.runner.retries.retry import UNSERIALIZABLE, settle
from evaljournal.runner.secrets.masking import excerpt, mask_output, mask_values, sent_secrets
from evaljournal.runner.steps.admission import CallGate
from evaljournal.runner.steps.attempt_steps import AttemptSteps, Key, RecordedResult, StepsHolder, created_steps
from evaljournal.runner.steps.durable_requests import DurableRequests
from evaljournal.runner.steps.keys import KeyRules

_LARGE_OUTPUT: Final = LIMIT // 6
"""Characters from which an output may need a blob: JSON has at most six bytes per character."""
_INCOMPLETE_ANSWERS: Final = {
    "declined": ("Declined", "the model declined to answer"),
    "truncated": ("Truncated", "the answer was truncated"),
}
"""Outcome of an answer → type and message of the error that it is with `on_declined="error"` or `on_truncated="error"`."""
_MAX_ANSWER: Final = 300
"""Maximum characters of the answer in such an error."""
_NO_FIELDS: Final[dict[str, Any]] = {}
_SCALARS: Final = frozenset({type(None), bool, int, float})
"""Types of outputs that are neither large nor contain a secret."""
_MIN_BLOCKING_CALLS: Final = 3
"""Number of consecutive calls that block their event loop from which this is noted."""


class Attempts:
    """Makes the attempts of a session: calls the tasks, records the outcomes, and retries or fails the trials."""

    def __init__(
        self,
        tasks: Mapping[str, Task],
        scheduler: Scheduler,
        late_recorder: LateRecorder,
        *,
        new_calls: Callable[[TrialWork, CallScope], CallGate],
        max_failures: float,
        in_thread: InThread,
        fail_ambiguous: bool,
    ) -> None:
        """`new_calls` returns where the calls inside an attempt wait.

        `fail_ambiguous`: a trial fails if its attempt ended with its worker, because its call may have had an effect.
        """
        self.tasks = tasks
        self._scheduler = scheduler
        self._late_recorder = late_recorder
        self._new_calls = new_calls
        self._in_thread = in_thread
        self._settings = scheduler.settings
        self._requests = {
            name: getattr(task, "request", None) for name, task in tasks.items() if self._settings.record_requests
        }
        """Variant → the function that returns the request for a case, if there is one; empty if requests are not recorded."""
        self._is_step = DurableRequests.parse(self._settings.durable).includes if self._settings.durable else None
        self._key_rules = KeyRules.parse(self._settings.key_without)
        self._recorder = scheduler.recorder
        self._record = scheduler.recorder.record
        self._free_slots = [0]
        """Heap of the free slot numbers up to the first one that was never used."""
        self._failures, self._max_failures = 0, max_failures
        actions = {"declined": self._settings.on_declined, "truncated": self._settings.on_truncated}
        self._error_outcomes = frozenset(outcome for outcome, action in actions.items() if action == "error")
        self._fail_ambiguous = fail_ambiguous

    async def attempt(self, work: TrialWork, scope: CallScope) -> bool:
        """Make one attempt; return whether it returned an output."""
        task, is_live = self.tasks[work.state.variant], work.lane.is_live
        record, reuses = self._start(work)
        if self._settings.write_ahead and is_live:
            await self._recorder.journal.wait_durable(record.seq)
        steps: StepsHolder = [partial(self._new_steps, work, work.state.attempts, scope)]
        if reuses:
            await self._offer_results(work, created_steps(steps))
        try:
            for gate in work.lane.gates:
                gate.check(work)
        except Fatal as exc:
            return self.end(work, exc)
        try:
            outcome = await scope.call(
                task,
                work if task.takes_trial else work.case.input,
                timeout=work.timeout,
                steps=steps,
                sink=partial(self._receive_note, work, work.state.attempts, scope),
                on_late=partial(self._record_late_return, work.trial, work.state.attempts, record.t),
            )
        finally:
            calls = None if isinstance(steps[0], partial) else steps[0].gate
            if calls is not None:
                calls.close()
        if calls is not None and calls.failure is not None and isinstance(outcome, Returned | Exception):
            outcome = calls.failure  # Whatever the task made of it.
        if (
            getattr(task, "blocking_calls", 0) >= _MIN_BLOCKING_CALLS
            and not self._recorder.state.trials.warnings.blocking_calls
        ):
            self._note_blocking_calls(work)
        if (
            isinstance(outcome, Returned)
            and outcome.output.__class__ not in _SCALARS
            and (sent_secrets.values or self._recorder.journal.has_slow_blobs)
        ):
            outcome = await self._prepare_output(work, outcome)
        return self.end(work, outcome)

    def _new_steps(self, work: TrialWork, attempt: int, scope: CallScope) -> AttemptSteps:
        """Return the steps of an attempt, once there is one; called in any thread, also after the attempt has ended."""
        calls = self._new_calls(work, scope) if work.lane.is_live else None
        if calls is not None and (work.state.stage, work.state.attempts) != ("running", attempt):
            calls.close()
        return self._late_recorder.steps(
            work, attempt, wait=self._settings.write_ahead, is_step=self._is_step, key_rules=self._key_rules, gate=calls
        )

    def _start(self, work: TrialWork) -> tuple[Record, int]:
        """Record the start of an attempt, and inform its policy; return the record, and how many steps may be reused."""
        trial, lane, variant = work.trial, work.lane, work.state.variant
        work.slot, work.waited = 0, 0.0
        if lane.is_live:
            work.slot = heapq.heappop(self._free_slots)  # The lowest; it is in use from now on.
            if not self._free_slots:
                self._free_slots.append(work.slot + 1)
        request, new_request = None, self._requests.get(variant)
        if new_request is not None and not work.is_request_recorded:
            request, work.is_request_recorded = mask_values(new_request(work.case)), True
        open_steps, reuses, spent = self._recorder.state.steps.open.get(trial), 0, 0.0
        if open_steps is not None:
            reuses, spent = reuse_of(open_steps, work.state, self._settings.reuse_steps)
        event = events.AttemptStarted(
            trial=trial,
            attempt=work.state.attempts + 1,
            slot=work.slot,
            key=work.key,
            request=request,
            reuses=reuses,
            spent=spent,
            probe=work.is_probe,
            **(gate_fields(lane.gates, work) if lane.gates else _NO_FIELDS),
        )
        record = self._record(event)
        work.timeout, work.started_at = self._settings.timeout, record.t
        if spent:
            work.timeout = remaining_timeout(work.timeout, spent)
        self._scheduler.inform_policy(record, work)
        return record, reuses

    async def _prepare_output(self, work: TrialWork, outcome: Returned) -> Returned:
        """Mask secrets in an output, and write a large one before it is recorded."""
        if sent_secrets.values:
            outcome = await self._mask(work, outcome)
        if self._recorder.journal.has_slow_blobs and is_large(outcome.output, _LARGE_OUTPUT):
            outcome = await self._write_blobs(work, outcome)
        return outcome

    def _receive_note(self, work: TrialWork, attempt: int, scope: CallScope, values: dict[str, Any]) -> None:
        """Record notes, or start the timeout of a phase of the attempt; a teardown has a limit of its own."""
        match values.get(PHASE_NOTE):  # Sent in the loop of the run.
            case None:
                self._late_recorder.note(work.trial, attempt, work, values)
            case "setup":
                scope.restart(self._settings.timeout)
            case "task":
                scope.restart(work.timeout)
            case "teardown":
                scope.restart(None)
            case _:
                pass  # A worker sent something else.

    def _note_blocking_calls(self, work: TrialWork) -> None:
        """Note that calls of an async task block its event loop, if others could have run at the same time."""
        lane = work.lane
        if lane.policy.limit > 1 and (lane.trials or lane.counted_jobs > 1) and not self._scheduler.shutdown.is_over:
            self._record(events.Noted(name=BLOCKING_CALLS, value={"calls": _MIN_BLOCKING_CALLS}))

    async def _offer_results(self, work: TrialWork, steps: AttemptSteps) -> None:
        """Read the results of completed steps for reuse; a step whose result is damaged is executed again, which is noted."""
        journal, recorded_steps = self._recorder.journal, list(self._recorder.state.steps.open[work.trial])
        if not recorded_steps:
            return
        await journal.wait_durable(recorded_steps[-1].seq)
        results = await self._in_thread(lambda: list(_read_results(journal.path, recorded_steps, journal.files)))
        for (name, _), result in results:
            if isinstance(result, BlobDamaged):
                self._late_recorder.sink(work)({NOT_REUSED: {"step": name, "problem": str(result)}})
        steps.offer((key, result) for key, result in results if isinstance(result, RecordedResult))

    def end(self, work: TrialWork, outcome: CallOutcome | OverBudget | Interrupted) -> bool:
        """Record how an attempt ended, and what follows; return whether it returned an output."""
        trial, number = work.trial, work.state.attempts
        clock, elapsed = self._recorder.clock, 0.0
        if work.lane.is_live:
            elapsed = round(clock.monotonic() - clock.start - work.started_at, 6)
            heapq.heappush(self._free_slots, work.slot)
        self._scheduler.end_call(work, is_answered=isinstance(outcome, Returned))
        late_event = partial(events.AttemptReturnedLate, trial=trial, attempt=number, elapsed=elapsed)
        if self._scheduler.shutdown.is_over:  # The attempt was recorded as interrupted, and returned after that.
            if not isinstance(outcome, OverBudget | Interrupted):
                self._record(late_event(outcome="succeeded" if isinstance(outcome, Returned) else "failed"))
            return False
        match outcome:
            case Returned():
                return self._record_success(work, outcome, elapsed)
            case TimedOut():
                assert work.timeout is not None
                event = events.AttemptTimedOut(
                    trial=trial, attempt=number, timeout=work.timeout, elapsed=elapsed, worker=work.worker
                )
                self._record_end(event, work)
                if outcome.late_outcome is not None:
                    self._record(late_event(outcome=outcome.late_outcome))
                self._settle(work)
            case OverBudget():
                self._fail_over_budget(work, elapsed)
            case Interrupted():
                self._record_end(_interruption(work, "stopped", elapsed=elapsed), work)
                self._scheduler.release()
            case WorkerEnded():
                self._record_end(_interruption(work, outcome.reason, elapsed=elapsed, detail=outcome.detail), work)
                self._settle(work)
            case exc:
                self._record_failure(work, exc, elapsed)
        return False

    def cancel(self, work: TrialWork) -> None:
        """Record that an attempt was interrupted because the whole run was cancelled."""
        self._late_recorder.record(_interruption(work, "cancelled", elapsed=self._recorder.clock.elapsed(work.started_at)))

    def abandon(self, work: TrialWork) -> None:
        """Record an attempt that does not respond to its cancellation as interrupted."""
        if work.state.stage == "running":
            self._record_end(_interruption(work, "stopped"), work)

    def _record_end(
        self, event: events.AttemptFailed | events.AttemptTimedOut | events.AttemptInterrupted, work: TrialWork
    ) -> None:
        self._scheduler.inform_policy(self._record(event), work)

    async def _mask(self, work: TrialWork, outcome: Returned) -> Returned:
        """Mask the run's secrets in an output, and note that it was changed."""
        mask = partial(mask_output, outcome.output)
        masked_output = await self._in_thread(mask) if is_large(outcome.output, LIMIT) else mask()
        if masked_output is outcome.output:
            return outcome
        self._late_recorder.sink(work)({f"{events.NOTE_PREFIX}masked": {"output": True}})
        return Returned(output=masked_output)

    async def _write_blobs(self, work: TrialWork, outcome: Returned) -> Returned:
        """Write a large output before it is recorded, so that no other record waits for a slow disk."""
        event = events.AttemptSucceeded(trial=work.trial, attempt=work.state.attempts, output=outcome.output, elapsed=0.0)
        try:
            return Returned(output=outcome.output, in_blobs=await self._recorder.journal.write_blobs(event))
        except (Unserializable, RecursionError):
            return outcome  # `_record_success` converts it, or fails the attempt.

    def _fail_over_budget(self, work: TrialWork, elapsed: float, usage: Any = None) -> None:
        budget = self._recorder.state.budget
        assert budget is not None
        message = over_budget_text(budget, work.trial, usage)
        self._fail(work, error=OVER_BUDGET, message=message, category="fatal", elapsed=elapsed, usage=usage)

    def _fail_incomplete_answer(self, work: TrialWork, answer: NotedAnswer, output: Any, elapsed: float) -> None:
        error, message = _INCOMPLETE_ANSWERS[answer.outcome]
        message += f" by {answer.cause}" if answer.cause else ""
        text = excerpt(as_text(output), _MAX_ANSWER) or f"`evaljournal show {work.trial}` has what the provider replied"
        self._fail(work, error=error, message=f"{message}: {text}", category="fatal", elapsed=elapsed)

    def _record_success(self, work: TrialWork, outcome: Returned, elapsed: float) -> bool:
        output = outcome.output
        state = self._recorder.state
        if state.budget is not None and state.is_over_budget(work.trial):
            self._fail_over_budget(work, elapsed)
            return False
        if (answer := work.state.answer) is not None and answer.outcome in self._error_outcomes:
            self._fail_incomplete_answer(work, answer, output, elapsed)
            return False
        event = events.AttemptSucceeded(
            trial=work.trial, attempt=work.state.attempts, output=output, elapsed=elapsed, worker=work.worker
        )
        try:
            try:
                record = self._record(event, outcome.in_blobs)
            except (Unserializable, RecursionError):
                output = mask_output(to_json(output))
                usage = None if state.trials.has_noted_tokens(work.trial) else usage_of_response(output) or None
                if state.is_over_budget(work.trial, usage):
                    self._fail_over_budget(work, elapsed, usage)
                    return False
                record = self._record(evolve_fact(event, output=output, usage=usage))
        except (Unserializable, RecursionError) as exc:
            self._fail(work, error=UNSERIALIZABLE, message=describe(exc).message, category="fatal", elapsed=elapsed)
            return False
        self._scheduler.inform_policy(record, work)
        self._scheduler.queues.unscored_outputs += 1
        work.has_output = True
        work.output = output
        return True

    def _record_failure(self, work: TrialWork, exc: BaseException, elapsed: float) -> None:
        failure, error = self._settings.retry.classify_and_describe(exc, now=self._recorder.clock.wall())
        self._fail(
            work,
            stop_run=failure.stop_reason is not None,
            error=error.type,
            message=error.message,
            traceback=error.traceback,
            location=error.location,
            category=failure.category,
            retry_after=failure.retry_after,
            elapsed=elapsed,
        )
        self._scheduler.shutdown.stop_after(failure, error)

    def _fail(self, work: TrialWork, *, stop_run: bool = False, **fields: Any) -> None:
        """Record that an attempt failed, and what follows; `fields` are those of the event."""
        event = events.AttemptFailed(trial=work.trial, attempt=work.state.attempts, worker=work.worker, **fields)
        self._record_end(event, work)
        self._settle(work, stop_run=stop_run)

    def _settle(self, work: TrialWork, *, stop_run: bool = False) -> None:
        """Retry an attempt that failed, timed out or ended with its worker, or fail its trial."""
        state, settings = work.state, self._settings
        is_rate_limited = state.retry_history is not None and state.retry_history.category == "rate_limited"
        work.rate_limits = work.rate_limits + 1 if is_rate_limited else 0
        probe = self._scheduler.is_free_probe(work, work.trial)
        decision = settle(
            work.trial,
            state,
            settings.retry,
            settings.seed,
            probe=probe,
            stop_run=stop_run,
            over_budget=self._recorder.state.is_over_budget(work.trial),
            ambiguous=self._fail_ambiguous,
        )
        match decision:
            case events.RetryScheduled() as event:
                self._record(event)
                work.delay, work.goes_to_end = event.delay, event.reason == "probe" or work.rate_limits >= SEVERAL
                self._scheduler.put(work)
            case events.TrialFailed() as event:
                self._record(event)
                self._failures += 1
                self._scheduler.release()
                if self._failures > self._max_failures:
                    self._scheduler.shutdown.stop("failed_fast", f"{plural(self._failures, 'trial')} ended with an error")
                self._scheduler.stop_on_same_error()

    def _record_late_return(self, trial: str, attempt: int, started_at: float, outcome: LateOutcome) -> None:
        elapsed = self._recorder.clock.elapsed(started_at)
        self._late_recorder.record(events.AttemptReturnedLate(trial=trial, attempt=attempt, outcome=outcome, elapsed=elapsed))


def _interruption(
    work: TrialWork,
    reason: Literal["cancelled", "stopped", "worker_died", "worker_lost"],
    *,
    elapsed: float | None = None,
    detail: str = "",
) -> events.AttemptInterrupted:
    """Return the event of an interrupted attempt; `elapsed` is None if it did not respond to its cancellation."""
    return events.AttemptInterrupted(
        trial=work.trial, attempt=work.state.attempts, reason=reason, detail=detail, elapsed=elapsed, worker=work.worker
    )


def _read_results(path: Path, steps: list[RecordedStep], files: Files) -> Iterator[tuple[Key, RecordedResult | BlobDamaged]]:
    """Yield the results of completed steps, and the error in place of a result that cannot be read."""
    with RecordReader(path, files=files) as reader:
        for step in steps:
            try:
                event = reader.find(*unpack_location(step.location)).event
            except BlobDamaged as exc:
                yield (step.name, step.fingerprint), exc
                continue
            assert isinstance(event, events.StepCompleted)
            yield (
                (step.name, step.fingerprint),
                RecordedResult(step.seq, event.output, event.usage, number=(step.attempt, step.number), parent=step.parent),
            )
