"""The model calls inside an attempt, such as those of an agent: each waits for the known limits of its own key.

The timeout of the attempt does not include that time, and neither does its latency. A call that can never start fails the
trial, whatever the task makes of the error.

A call that was rate limited, or whose provider was overloaded, waits here, too, by the retry settings of the task, and is sent
again. What it has waited counts until a call of the trial succeeds, also across attempts: otherwise the retries of a trial
would multiply those of its calls. A `Retry-After` closes the key for all calls inside attempts.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import trio

from evaljournal.replay.state.trial import RetryHistory
from evaljournal.runner.calls.call_size import CallSize
from evaljournal.runner.calls.http.identity import rate_limit_identity
from evaljournal.runner.concurrency.limits import AdmittedCall
from evaljournal.runner.engine.call import CallScope
from evaljournal.runner.engine.jobs import TrialWork
from evaljournal.runner.engine.scheduler import Scheduler
from evaljournal.runner.gates.known_limits import KeyLimits, KnownLimits, LimitsGate, stop_at_day_limit
from evaljournal.runner.retries.classify import Failure
from evaljournal.runner.retries.limit_headers import limit_headers
from evaljournal.runner.retries.retry import RetryIn, jitter
from evaljournal.runner.secrets.masking import mask
from evaljournal.runner.steps.attempt_steps import AttemptEnded, CallAdmission, LimitedCall, OverLimit

_MAX_KEY: Final = 200
"""Characters of the longest name of a rate-limit key."""


class InnerCalls:
    """The model calls of an attempt; see `CallGate`."""

    def __init__(
        self,
        work: TrialWork,
        scope: CallScope,
        own_gate: LimitsGate | None,
        known_limits: KnownLimits,
        scheduler: Scheduler,
        *,
        rejections: RetryHistory,
    ) -> None:
        """`own_gate` has the limits of the task's own calls; `rejections` are those since a call of the trial succeeded."""
        self._rejections = rejections
        self._work = work
        self._scope = scope
        self._own_limits = None if own_gate is None else own_gate.limits
        self._own_call = None if own_gate is None else own_gate.call_of(work)
        """The call with which the attempt was admitted."""
        self._known_limits = known_limits
        self._scheduler = scheduler
        self._calls: dict[int, tuple[KeyLimits, AdmittedCall]] = {}
        """Number of a step → its call in flight."""
        self._has_own_call = False
        self._waiting_scopes: set[trio.CancelScope] = set()
        self._paused_at = 0.0
        self._is_over = False
        self.failure: OverLimit | None = None

    def admit_now(self, step: int, call: LimitedCall, *, can_wait: bool = True) -> CallAdmission | None:
        limits = self._own_limits if not call.base_url else self._known_limits.get(_identity(call))
        if limits is None and not call.base_url:
            return CallAdmission()
        if limits is None and not can_wait:
            limits = self._limits_of(call)  # The caller is in the loop of the run.
        if limits is None or (can_wait and (limits.needs_sizes or limits.is_closed)):
            return None
        size = call.size if limits.needs_sizes else CallSize()
        return self._start(step, limits, limits.limits.start(size, limits.now()), 0.0)

    async def admit(self, step: int, call: LimitedCall) -> CallAdmission:
        limits = self._own_limits if not call.base_url else self._limits_of(call)
        assert limits is not None
        own_call = self._own_call
        if not call.base_url and not self._has_own_call and own_call is not None and own_call.admitted is not None:
            self._has_own_call = True  # It was admitted with the attempt, which has its need.
            self._calls[step] = limits, own_call.admitted
            return CallAdmission()

        try:
            limits.check(call.size)
        except OverLimit as exc:
            self.failure = exc
            raise
        stop_at_day_limit(limits, self._scheduler)

        started_at, was_closed = trio.current_time(), limits.is_closed
        with self._waiting():
            admitted = await limits.admit(call.size)
            if not call.base_url and own_call is not None:
                own_call.admitted = admitted
            waited = round(trio.current_time() - started_at, 6)
            admission = self._start(step, limits, admitted, waited)
            return admission if admission.need or not was_closed else CallAdmission(waited=waited)
        raise AttemptEnded("the attempt has ended")

    async def wait_again(self, step: int, failure: Failure) -> float | None:
        settings, history, started_at = self._scheduler.settings, self._rejections, trio.current_time()
        limits, _ = self._calls.pop(step, (None, None))
        history.count_failure(failure.category, failure.retry_after)
        random = jitter(settings.seed, f"{self._work.trial} step {step}", self._work.state.attempts)
        decision = settings.retry.decide(history, random)
        if not isinstance(decision, RetryIn):
            return None

        history.count_retry(decision.reason, decision.delay)
        if limits is not None and failure.retry_after:
            limits.close(failure.retry_after)
        with self._waiting():
            await trio.sleep(decision.delay)
            return round(trio.current_time() - started_at, 6)
        return None

    @contextmanager
    def _waiting(self) -> Generator[None]:
        """Stop the time of the attempt while a call waits in the block, which is left when the attempt has ended."""
        with trio.CancelScope() as scope:
            if self._is_over:
                raise AttemptEnded("the attempt has ended")
            if not self._waiting_scopes:
                self._scope.pause()
                self._paused_at = trio.current_time()
            self._waiting_scopes.add(scope)
            try:
                yield
            finally:
                self._waiting_scopes.discard(scope)
                if not self._waiting_scopes and not self._is_over:
                    self._scope.resume()
                    self._work.waited += trio.current_time() - self._paused_at

    def read(self, step: int, status: int, headers: Mapping[str, str]) -> None:
        relevant_headers = limit_headers(status, headers)
        if relevant_headers is not None and (call := self._calls.get(step)) is not None:
            limits, admitted = call
            self._scheduler.loop.call(limits.read, admitted, status, relevant_headers)

    def end(self, step: int, usage: Any) -> None:
        self._rejections.reset()
        if (call := self._calls.pop(step, None)) is not None:
            limits, admitted = call
            if self._own_call is not None and admitted is self._own_call.admitted:
                self._own_call.admitted = None
            self._scheduler.loop.call(limits.limits.end, admitted, usage if isinstance(usage, Mapping) else None)

    def close(self) -> None:
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
