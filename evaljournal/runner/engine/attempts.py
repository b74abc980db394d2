"""Attempts at trials: start one, record how it ended, and retry it or fail the trial.

**What it promises.** Every attempt that is recorded as started is recorded as ended, exactly once: as succeeded, failed, timed
out or interrupted; only the death of the process leaves one open, and the next session ends it. What follows from the end, a
retry with its delay or the failure of the trial, is recorded immediately after it, without a wait; only what its policy
decides because of the end is recorded in between.

**The order.** The start is recorded, and the policy of its lane informed. If starts must be on disk (`write_ahead`), it waits
for that. Layers prepare, gates check, then the task is called. The end frees the slot, is recorded, and only then is the
policy informed: it must never see what the journal does not have.

**What must never happen**: a call without the record of its start; an output that is used for scores before it is recorded; an
end after the session is over (it is recorded as a late return instead). A value that cannot be recorded fails its own trial,
never the run.

Everything else about an attempt is in layers, which the assembly attaches; see `layers`.
"""

import heapq
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Literal

from evaljournal.journal import Record, events
from evaljournal.journal.errors import Unserializable
from evaljournal.replay.state.attempt_warnings import BLOCKING_CALLS
from evaljournal.replay.text import plural
from evaljournal.runner.calls import LateOutcome, Task, WorkerEnded
from evaljournal.runner.calls.notes import Sink
from evaljournal.runner.concurrency.start import SEVERAL
from evaljournal.runner.engine.call import CallOutcome, CallScope, Interrupted, LimitExceeded, Returned, TimedOut
from evaljournal.runner.engine.jobs import TrialWork, gate_error, gate_fields
from evaljournal.runner.engine.layers import Layers, Rejected
from evaljournal.runner.engine.recorder import LateRecorder
from evaljournal.runner.engine.scheduler import Scheduler
from evaljournal.runner.retries.classify import describe
from evaljournal.runner.retries.retry import UNSERIALIZABLE, settle

_NO_FIELDS: Final[dict[str, Any]] = {}
_SCALARS: Final = frozenset({type(None), bool, int, float})
"""Types of outputs that no layer changes."""
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
        max_failures: float,
        fail_ambiguous: bool,
    ) -> None:
        """`fail_ambiguous`: a trial fails if its attempt ended with its worker, because its call may have had an effect."""
        self.tasks = tasks
        self._scheduler = scheduler
        self._late_recorder = late_recorder
        self.layers = Layers()
        """What surrounds the attempts; set before the first one."""
        self._settings = scheduler.settings
        self._recorder = scheduler.recorder
        self._record = scheduler.recorder.record
        self._free_slots = [0]
        """Heap of the free slot numbers up to the first one that was never used."""
        self._failures, self._max_failures = 0, max_failures
        self._fail_ambiguous = fail_ambiguous

    async def attempt(self, work: TrialWork, scope: CallScope) -> bool:
        """Make one attempt; return whether it returned an output."""
        task, layers, number = self.tasks[work.state.variant], self.layers, work.state.attempts + 1
        record = self._start(work, number)
        if self._settings.write_ahead and work.lane.is_live:
            await self._recorder.journal.wait_durable(record.seq)

        objects = dict[type, Any]()
        for prepare in layers.prepare:
            await prepare(work, scope, objects)
        if work.lane.gates and (error := gate_error(work.lane.gates, work)) is not None:
            return self.end(work, error)

        record_notes = partial(self._late_recorder.note, work.trial, number, work)
        outcome: CallOutcome | None = None
        try:
            outcome = await scope.call(
                task,
                work if task.takes_trial else work.case.input,
                timeout=work.timeout,
                attachments=(partial(self._attach, work, number, scope), objects) if layers.attach else None,
                sink=partial(self._receive_note, work, scope, record_notes) if layers.noted else record_notes,
                on_late=partial(self._record_late_return, work.trial, number, record.t),
            )
        finally:
            if objects:
                for leave in layers.leave:
                    outcome = leave(objects, outcome)
        assert outcome is not None
        self._scheduler.loop.catch_up()  # A result may overtake what its thread has reported.
        if (
            getattr(task, "blocking_calls", 0) >= _MIN_BLOCKING_CALLS
            and not self._recorder.state.trials.warnings.blocking_calls
        ):
            self._note_blocking_calls(work)
        if layers.change and isinstance(outcome, Returned) and outcome.output.__class__ not in _SCALARS:
            outcome = await self._change(work, outcome)
        return self.end(work, outcome)

    async def _change(self, work: TrialWork, outcome: Returned) -> Returned:
        """Let the layers change an output before it is recorded."""
        for change in self.layers.change:
            if (changing := change(work, outcome)) is not None:
                outcome = await changing
        return outcome

    def _attach(self, work: TrialWork, attempt: int, scope: CallScope, kind: type) -> Any:
        """Return what an attempt asks for; called in any thread, also after the attempt has ended."""
        for attach in self.layers.attach:
            if (value := attach(kind, work, attempt, scope)) is not None:
                return value
        return None

    def _start(self, work: TrialWork, number: int) -> Record:
        """Record the start of an attempt, and inform its policy; return the record."""
        lane, fields = work.lane, _NO_FIELDS
        work.slot, work.waited = 0, 0.0
        if lane.is_live:
            work.slot = heapq.heappop(self._free_slots)  # The lowest; it is in use from now on.
            if not self._free_slots:
                self._free_slots.append(work.slot + 1)
        if lane.gates or self.layers.fields:
            fields = gate_fields(lane.gates, work)
            for layer_fields in self.layers.fields:
                fields |= layer_fields(work)
        event = events.AttemptStarted(
            trial=work.trial, attempt=number, slot=work.slot, key=lane.key or work.key, probe=work.is_probe, **fields
        )
        record = self._record(event)
        work.timeout, work.started_at = self._settings.timeout, record.t
        self._scheduler.inform_policy(record, work)
        return record

    def _receive_note(self, work: TrialWork, scope: CallScope, record_notes: Sink, values: dict[str, Any]) -> None:
        """Record notes, unless a layer processes them."""
        if not any(noted(work, scope, values) for noted in self.layers.noted):
            record_notes(values)

    def _note_blocking_calls(self, work: TrialWork) -> None:
        """Note that calls of an async task block its event loop, if others could have run at the same time."""
        lane = work.lane
        if lane.policy.limit > 1 and (lane.trials or lane.counted_jobs > 1) and not self._scheduler.shutdown.is_over:
            self._record(events.Noted(name=BLOCKING_CALLS, value={"calls": _MIN_BLOCKING_CALLS}))

    def end(self, work: TrialWork, outcome: CallOutcome | LimitExceeded | Interrupted) -> bool:
        """Record how an attempt ended, and what follows; return whether it returned an output."""
        trial, number = work.trial, work.state.attempts
        clock, elapsed = self._recorder.clock, 0.0
        if work.lane.is_live:
            elapsed = max(
                round(clock.monotonic() - clock.start - work.started_at, 6), 0.0
            )  # As `Clock.elapsed`, without a call.
            heapq.heappush(self._free_slots, work.slot)
        self._scheduler.end_call(work, is_answered=isinstance(outcome, Returned))
        late_event = partial(events.AttemptReturnedLate, trial=trial, attempt=number, elapsed=elapsed)
        if self._scheduler.shutdown.is_over:  # The attempt was recorded as interrupted, and returned after that.
            if not isinstance(outcome, LimitExceeded | Interrupted):
                self._record(late_event(outcome="succeeded" if isinstance(outcome, Returned) else "failed"))
            return False
        match outcome:
            case Returned():
                return self._record_success(work, outcome, elapsed)
            case TimedOut():
                assert work.timeout is not None
                event = events.AttemptTimedOut(
                    trial=trial, attempt=number, timeout=work.timeout, elapsed=elapsed, **_end_fields(work)
                )
                self._record_end(event, work)
                if outcome.late_outcome is not None:
                    self._record(late_event(outcome=outcome.late_outcome))
                self._settle(work)
            case LimitExceeded():
                rejected = self._rejection(work)
                assert rejected is not None
                self._reject(work, rejected, elapsed)
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

    def _record_success(self, work: TrialWork, outcome: Returned, elapsed: float) -> bool:
        layers = self.layers
        for over_limit in layers.over_limit:
            if (rejected := over_limit(work, None)) is not None:
                return self._reject(work, rejected, elapsed)
        for check in layers.check:
            if (rejected := check(work, outcome.output)) is not None:
                return self._reject(work, rejected, elapsed)
        fields = _end_fields(work) if work.lane.gates else _NO_FIELDS
        event = events.AttemptSucceeded(
            trial=work.trial, attempt=work.state.attempts, output=outcome.output, elapsed=elapsed, **fields
        )
        try:
            try:
                record = self._record(event, outcome.in_blobs)
            except (Unserializable, RecursionError):
                for convert in layers.convert:
                    event = convert(work, event)
                for over_limit in layers.over_limit:
                    if event.usage and (rejected := over_limit(work, event.usage)) is not None:
                        return self._reject(work, rejected, elapsed, usage=event.usage)
                record = self._record(event)
        except (Unserializable, RecursionError) as exc:
            self._fail(work, error=UNSERIALIZABLE, message=describe(exc).message, category="fatal", elapsed=elapsed)
            return False
        self._scheduler.inform_policy(record, work)
        self._scheduler.queues.unscored_outputs += 1
        work.has_output = True
        work.output = event.output
        return True

    def _reject(self, work: TrialWork, rejected: Rejected, elapsed: float, **fields: Any) -> bool:
        """Fail a trial for a reason that a layer has; return that it has no output."""
        self._fail(work, error=rejected.error, message=rejected.message, category="fatal", elapsed=elapsed, **fields)
        return False

    def _rejection(self, work: TrialWork) -> Rejected | None:
        """Return why a trial may not continue."""
        rejections = (over_limit(work, None) for over_limit in self.layers.over_limit)
        return next((rejected for rejected in rejections if rejected is not None), None)

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
        event = events.AttemptFailed(trial=work.trial, attempt=work.state.attempts, **_end_fields(work), **fields)
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
            over_budget=self._rejection(work) is not None,
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
        trial=work.trial, attempt=work.state.attempts, reason=reason, detail=detail, elapsed=elapsed, **_end_fields(work)
    )


def _end_fields(work: TrialWork) -> dict[str, Any]:
    """Return what the record of an end has about the gates of its lane."""
    fields = _NO_FIELDS
    for gate in work.lane.gates:
        fields = {**fields, **gate.end_fields(work)}
    return fields
