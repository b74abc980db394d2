"""One call of a task or a scorer: invoke it, enforce its timeout, and return how it ended as a value.

The model calls inside an attempt wait for the known rate limits of their keys; its timeout does not include that time.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import trio

from evaljournal.journal.fact import fact
from evaljournal.journal.format.codec import Blobs
from evaljournal.runner.concurrency.limits import AdmittedCall
from evaljournal.runner.engine.known_limits import TOO_MANY_REQUESTS, KeyLimits, KnownLimits
from evaljournal.runner.engine.recorder import RunLoop, Timer
from evaljournal.runner.engine.trial_work import TrialWork
from evaljournal.runner.http.address import rate_limit_identity
from evaljournal.runner.notes import Sink, set_note_sink
from evaljournal.runner.secrets import mask
from evaljournal.runner.signals import is_from_signal
from evaljournal.runner.steps.admission import AttemptEnded, CallAdmission, LimitedCall, OverLimit
from evaljournal.runner.steps.attempt_steps import AttemptSteps, set_steps
from evaljournal.runner.tasks import LateOutcome, Task
from evaljournal.runner.tasks.call_size import CallSize
from evaljournal.runner.workers.pool import WorkerEnded

_MAX_KEY: Final = 200
"""Characters of the longest name of a rate-limit key."""


@fact
class Returned:
    """The call returned an output in time."""

    output: Any
    in_blobs: Blobs | None = None
    """The result of `Journal.write_blobs`, for a large output."""


@fact
class TimedOut:
    """The call exceeded its timeout."""

    late_outcome: LateOutcome | None = None
    """How it ended, if it did not respond to its cancellation and returned late."""


@fact
class OverBudget:
    """The call was cancelled because its trial has exceeded the budget per trial."""


@fact
class Interrupted:
    """The run was stopped, and the call was cancelled."""


CallOutcome = Returned | BaseException | TimedOut
"""How a call ended; an exception was raised by the task."""


class CallScope:
    """A cancel scope that is reused for consecutive calls of one consumer.

    Calls are made inside `scope`. When it is cancelled, the call in flight unwinds to it, `outcome` is the reason, and a new
    scope is needed. One scope serves many calls, and one timer watches all timeouts, because entering a scope and moving its
    deadline for each call is slow.
    """

    def __init__(self, timer: Timer) -> None:
        self.scope: Final = trio.CancelScope()
        self._timer = timer
        self.deadline = math.inf
        """When the call exceeds its timeout, in the seconds of `t`; once it has, when it is abandoned."""
        self._paused_seconds: float | None = None
        """Seconds that were left of the timeout when the call began to wait for a rate limit."""
        self.is_cancelled = False
        self.is_abandoned = False
        """Whether the call did not respond to its cancellation, and its outcome was recorded without it."""
        self._is_interrupted = False
        self._is_over_budget = False

    def time_out(self, deadline: float) -> None:
        """Cancel the call because it has exceeded its timeout; it is abandoned if it has not ended by `deadline`."""
        self.deadline, self.is_cancelled = deadline, True
        self.scope.cancel()

    def pause(self) -> None:
        """Stop the time of the call in flight, because it waits for a rate limit."""
        if not self.is_cancelled and self.deadline < math.inf:
            self._paused_seconds, self.deadline = self.deadline - self._timer.now(), math.inf

    def resume(self) -> None:
        """Let the time of the call in flight run again."""
        if self._paused_seconds is not None and not self.is_cancelled:
            self.deadline = self._timer.schedule_in(self._paused_seconds)
        self._paused_seconds = None

    def restart(self, timeout: float | None) -> None:
        """Start the time of the call in flight again, because another phase of it begins."""
        if not self.is_cancelled:
            self._paused_seconds = None
            self.deadline = math.inf if timeout is None else self._timer.schedule_in(timeout)

    def exceed_budget(self, deadline: float) -> None:
        """Cancel the call because its trial has exceeded its budget; it is abandoned if it has not ended by `deadline`."""
        if not self.is_cancelled:
            self._is_over_budget = True
            self.time_out(deadline)

    def interrupt(self) -> None:
        """Cancel the call because the run is stopped."""
        self._is_interrupted = self.is_cancelled = True
        self.scope.cancel()

    @property
    def outcome(self) -> TimedOut | OverBudget | Interrupted:
        """Why the call was cancelled."""
        return Interrupted() if self._is_interrupted else OverBudget() if self._is_over_budget else TimedOut()

    async def call(
        self,
        task: Task,
        value: Any,
        *,
        timeout: float | None,  # noqa: ASYNC109  # one timer enforces the timeouts of all calls
        sink: Sink,
        on_late: Callable[[LateOutcome], None],
        steps: AttemptSteps | None = None,
    ) -> CallOutcome:
        """Call a task; its notes go to `sink`, its steps to `steps`, and the outcome of an abandoned call to `on_late`."""
        self._paused_seconds = None
        if timeout is not None:
            self.deadline = self._timer.schedule_in(timeout)
        set_note_sink(sink)
        set_steps(steps)
        outcome: CallOutcome
        try:
            outcome = Returned(output=await task.call(value, on_late))
        except trio.Cancelled:
            raise
        except BaseException as exc:
            if is_from_signal(exc) or (self.scope.cancel_called and _is_cancellation(exc)):
                raise
            # Our own frame in its traceback would form a reference cycle.
            outcome = exc.with_traceback(exc.__traceback__ and exc.__traceback__.tb_next)
        if self.is_abandoned:
            on_late("succeeded" if isinstance(outcome, Returned) else "failed")
        has_worker_ended = isinstance(outcome, WorkerEnded)  # Perhaps because of another call in its worker.
        if (
            self.is_abandoned
            or (self._is_interrupted and isinstance(outcome, BaseException))
            or (self._is_over_budget and has_worker_ended)
        ):
            await trio.lowlevel.checkpoint()  # Raises the cancellation, which the task shielded itself from or replaced.
        self.deadline = math.inf
        if self.is_cancelled and not self._is_interrupted and not self._is_over_budget and not has_worker_ended:
            return TimedOut(late_outcome="succeeded" if isinstance(outcome, Returned) else "failed")
        return outcome


def _is_cancellation(exc: BaseException) -> bool:
    """Return whether an exception is a group of cancellations only, as a nursery raises it."""
    return isinstance(exc, BaseExceptionGroup) and exc.split(trio.Cancelled)[1] is None


class AttemptCalls:
    """The model calls of an attempt; see `CallGate`."""

    def __init__(
        self,
        work: TrialWork,
        scope: CallScope,
        own_limits: KeyLimits | None,
        known_limits: KnownLimits,
        *,
        loop: RunLoop,
        on_day_limit: Callable[[KeyLimits], bool],
    ) -> None:
        """`own_limits` are those of the task's own calls; `on_day_limit` stops the run if a limit per day is used up."""
        self._work = work
        self._scope = scope
        self._own_limits = own_limits
        self._known_limits = known_limits
        self._loop = loop
        self._on_day_limit = on_day_limit
        self._calls: dict[int, tuple[KeyLimits, AdmittedCall]] = {}
        """Number of a step → its call in flight."""
        self._has_own_call = False
        self._waiting_scopes: set[trio.CancelScope] = set()
        self._paused_at = 0.0
        self._is_over = False
        self.failure: OverLimit | None = None
        """A call that can never start, which fails the trial."""

    def admit_now(self, step: int, call: LimitedCall, *, can_wait: bool = True) -> CallAdmission | None:
        """Admit a call if no limit of its key is known, or if it cannot wait; None: it may have to wait."""
        limits = self._own_limits if not call.base_url else self._known_limits.get(_identity(call))
        if limits is None and not call.base_url:
            return CallAdmission()
        if limits is None and not can_wait:
            limits = self._limits_of(call)  # The caller is in the loop of the run.
        if limits is None or (can_wait and limits.needs_sizes):
            return None
        size = call.size if limits.needs_sizes else CallSize()
        return self._start(step, limits, limits.limits.start(size, limits.now()), 0.0)

    async def admit(self, step: int, call: LimitedCall) -> CallAdmission:
        """Wait until a call may start; raise `OverLimit` if it never can."""
        limits = self._own_limits if not call.base_url else self._limits_of(call)
        assert limits is not None
        if not call.base_url and not self._has_own_call and self._work.admitted is not None:
            self._has_own_call = True  # It was admitted with the attempt, which has its need.
            self._calls[step] = limits, self._work.admitted
            return CallAdmission()
        try:
            limits.check(call.size)
        except OverLimit as exc:
            self.failure = exc
            raise
        self._on_day_limit(limits)
        started_at = trio.current_time()
        with trio.CancelScope() as scope:
            if self._is_over:
                raise AttemptEnded("the attempt has ended")
            if not self._waiting_scopes:
                self._scope.pause()
                self._paused_at = started_at
            self._waiting_scopes.add(scope)
            try:
                admitted = await limits.admit(call.size)
            finally:
                self._waiting_scopes.discard(scope)
                if not self._waiting_scopes and not self._is_over:
                    self._scope.resume()
                    self._work.waited += trio.current_time() - self._paused_at
            if not call.base_url:
                self._work.admitted = admitted
            return self._start(step, limits, admitted, round(trio.current_time() - started_at, 6))
        raise AttemptEnded("the attempt has ended")

    def read(self, step: int, status: int, headers: Mapping[str, str]) -> None:
        """Read the limits in the head of the reply to a call."""
        is_read = status == TOO_MANY_REQUESTS or any("ratelimit" in name for name in headers)
        if is_read and (call := self._calls.get(step)) is not None:
            limits, admitted = call
            self._loop.call(limits.read, admitted, status, headers)

    def end(self, step: int, usage: Any) -> None:
        """Count a call that was answered."""
        if (call := self._calls.pop(step, None)) is not None:
            limits, admitted = call
            if admitted is self._work.admitted:
                self._work.admitted = None
            self._loop.call(limits.limits.end, admitted, usage if isinstance(usage, Mapping) else None)

    def close(self) -> None:
        """End the calls that still wait: the attempt has ended."""
        self._is_over = True
        for scope in self._waiting_scopes:
            scope.cancel()

    def _start(self, step: int, limits: KeyLimits, admitted: AdmittedCall, waited: float) -> CallAdmission:
        self._calls[step] = limits, admitted
        need = limits.limits.recorded_need(admitted)
        return CallAdmission(limits.key, need, waited) if need else CallAdmission()

    def _limits_of(self, call: LimitedCall) -> KeyLimits:
        host = urlsplit(call.base_url).hostname or ""
        return self._known_limits.of(_identity(call), key=mask(f"{call.model} {host}")[:_MAX_KEY], model=call.model, host=host)


def _identity(call: LimitedCall) -> object:
    return rate_limit_identity(call.base_url, call.key_digests), call.model
