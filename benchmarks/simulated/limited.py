"""Runs behind known limits, on providers with true headers: the executor's queue and retries, and an admission of every call.

A call travels to the provider and back, so that it is admitted after it started, its headers describe a moment in the past, and
replies arrive in another order than their calls started. An attempt of an agent makes several calls, one after the other, in
one slot; each waits for the limits where it is made, and an attempt that follows a 429 repeats only the call that failed.
"""

import math
from collections import deque

from attrs import define, field, frozen

from benchmarks.simulated.altered import Provider
from benchmarks.simulated.chance import log_normal, uniform
from benchmarks.simulated.endpoint import Answer
from benchmarks.simulated.executor import ERRORS, AttemptInFlight, Lane, Run, Trial
from benchmarks.simulated.providers import Call, Reply, Request
from evaljournal.journal.events import AttemptStarted
from evaljournal.runner.calls.call_size import CallSize
from evaljournal.runner.concurrency.limits import AdmittedCall, Limits
from evaljournal.runner.retries.classify import classify
from evaljournal.runner.retries.limit_headers import advertised_limits

_INPUT, _OUTPUT, _CHARACTERS, _THERE, _BACK = range(30, 35)
MIN_WAIT = 0.001
"""Seconds between two checks of the limits: what an event loop resolves."""
GIVE_UP = 1.0
"""Seconds of an attempt that fails before its call is sent: without any, a run in which all fail would not end."""
EPOCH = 1_793_491_200.0


@frozen(kw_only=True)
class Workload:
    """What the trials of a run ask for."""

    input_tokens: tuple[int, int] = (800, 1200)
    """Smallest and largest input of a call, log-uniform."""
    output_tokens: tuple[int, int] = (100, 400)
    max_tokens: int | None = 500
    """What the client sends; None: nothing."""
    characters_per_token: float = 4.2
    """Mean; single requests differ by 10 %."""
    calls: int = 1
    """Calls of an attempt, one after the other."""

    def request(self, seed: int, trial: int, call: int, attempt: int) -> Request:
        """Return a call of a trial, which is the same in every attempt; only its latency differs."""
        tokens = _log_uniform(uniform(seed, trial, call, _INPUT), *self.input_tokens)
        output = _log_uniform(uniform(seed, trial, call, _OUTPUT), *self.output_tokens)
        return Request(
            characters=round(tokens * log_normal(uniform(seed, trial, call, _CHARACTERS), self.characters_per_token, 0.1)),
            input_tokens=tokens,
            output_tokens=output if self.max_tokens is None else min(output, self.max_tokens),
            max_tokens=self.max_tokens,
            key=(trial, 100 * attempt + call),
        )


def _log_uniform(u: float, low: int, high: int) -> int:
    return round(low * math.exp(u * math.log(high / low)))


@define(eq=False)
class _Attempt:
    """An attempt in flight."""

    trial: Trial
    start: float
    probe: bool
    waited: float = 0.0
    """Seconds that its calls waited for limits."""
    ready_at: float = 0.0
    """When its next call was ready."""
    request: Request | None = None
    admitted: AdmittedCall | None = None
    call: Call | None = None
    reply: Reply | None = None


class ProviderError(Exception):
    """An error reply, in the shape that SDKs raise it."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(f"status {reply.status}")
        self.status_code = reply.status
        self.headers = reply.headers
        self.body = reply.error


@define(eq=False, kw_only=True)
class LimitedRun(Run):
    """One run on a provider: its trials, its policy and, in front of it, the known limits."""

    provider: Provider
    workload: Workload
    limits: Limits | None = None
    """The known limits; None: the policy alone."""
    reads_headers: bool = True
    """Whether advertised limits count; otherwise only declared ones."""
    network: float = 0.03
    """Mean seconds to the provider, and back."""
    network_sigma: float = 0.5
    """Spread of the logarithm of these seconds."""
    stopped: bool = False
    """Whether an error ended the run: a quota of the day or the spend is used up."""
    _waiting: deque[_Attempt] = field(factory=deque[_Attempt])
    """Attempts whose next call waits for the limits."""
    _wake: float | None = None

    def _pump(self, lane: Lane) -> None:
        """Start attempts while the policy and, for an attempt of a single call, the limits allow it."""
        timeline = self.timeline
        now = timeline.now
        while not self.stopped:
            self._read(lane)
            if not lane.ready:
                return
            permit = lane.policy.may_start(now)
            check_at = permit.check_at
            if permit.open:
                wait = 0.0 if self.limits is None or self.workload.calls > 1 else self._wait(self._request(lane.ready[0]))
                if wait <= 0:
                    self._begin(lane, lane.next(probe=permit.probe), probe=permit.probe)
                    continue
                check_at = now + wait
            if check_at is not None and (lane.wake is None or check_at < lane.wake):
                lane.wake = check_at
                timeline.at(check_at, self._woken, lane)
            return

    def _begin(self, lane: Lane, trial: Trial, *, probe: bool) -> None:
        now = self.timeline.now
        trial.attempts += 1
        lane.in_flight += 1
        started = AttemptStarted(trial=trial.name, attempt=trial.attempts, slot=0, probe=probe)
        lane.policy.observe(started, now)
        lane.limit = lane.policy.limit
        attempt = _Attempt(trial, now, not lane.counts(trial, now, probe=probe))
        if self.workload.calls == 1:
            self._make_call(attempt)
        else:
            self._queue(attempt)

    def _queue(self, attempt: _Attempt) -> None:
        """Make the next call of an agent's attempt as soon as the limits allow it."""
        attempt.ready_at = self.timeline.now
        self._waiting.append(attempt)
        self._admit()

    def _admit(self) -> None:
        """Make the calls that wait, in order."""
        now = self.timeline.now
        while self._waiting:
            attempt = self._waiting[0]
            wait = 0.0 if self.limits is None else self._wait(self._request(attempt.trial))
            if wait > 0:
                if self._wake is None or self._wake <= now or now + wait < self._wake:
                    self._wake = now + wait
                    self.timeline.at(self._wake, lambda _: self._admit(), None)
                return
            self._waiting.popleft()
            attempt.waited += now - attempt.ready_at
            self._make_call(attempt)

    def _request(self, trial: Trial) -> Request:
        return self.workload.request(self.seed, trial.number, trial.calls, trial.attempts)

    def _wait(self, request: Request) -> float:
        assert self.limits is not None
        wait = self.limits.wait(_size(request), self.timeline.now)
        return 0.0 if wait <= 0 else max(wait, MIN_WAIT)

    def _make_call(self, attempt: _Attempt) -> None:
        timeline, request = self.timeline, self._request(attempt.trial)
        attempt.request = request
        if self.limits is not None and self.limits.impossible(_size(request)) is not None:
            attempt.trial.errors = ERRORS
            timeline.at(timeline.now + GIVE_UP, self._give_up, attempt)
            return
        if self.limits is not None:
            attempt.admitted = self.limits.start(_size(request), timeline.now)
        timeline.at(timeline.now + self._travel(request, _THERE), self._arrive, attempt)

    def _give_up(self, attempt: _Attempt) -> None:
        """Fail an attempt whose request can never be sent."""
        self._end(attempt, Answer("error", 0.0))

    def _arrive(self, attempt: _Attempt) -> None:
        assert attempt.request is not None
        attempt.call = self.provider.start(self.timeline.now, attempt.request)
        self.timeline.at(self.timeline.now + min(attempt.call.seconds, self.timeout), self._leave, attempt)

    def _leave(self, attempt: _Attempt) -> None:
        assert attempt.call is not None
        attempt.reply = self.provider.finish(self.timeline.now, attempt.call)
        self.timeline.at(self.timeline.now + self._travel(attempt.call.request, _BACK), self._receive, attempt)

    def _receive(self, attempt: _Attempt) -> None:
        """Read the reply to a call; make the next one, or end the attempt."""
        reply, call, t, trial = attempt.reply, attempt.call, self.timeline.now, attempt.trial
        assert reply is not None
        assert call is not None
        timed_out = call.seconds > self.timeout
        if self.limits is not None and attempt.admitted is not None and not timed_out:
            if self.reads_headers:
                advertised = advertised_limits(reply.headers, EPOCH + t, self.provider.host)
                self.limits.read(attempt.admitted, advertised, t, is_429=reply.status == 429)
            self.limits.end(attempt.admitted, _usage(reply))
        if timed_out:
            self._end(attempt, Answer("hung", math.inf))
        elif reply.error is None:
            self.tally.work += 1
            trial.calls += 1
            if trial.calls < self.workload.calls:
                self._queue(attempt)
            else:
                self._end(attempt, Answer("ok", 0.0, cost=0.0))
        else:
            self._fail(attempt, reply)
        self._admit()

    def _fail(self, attempt: _Attempt, reply: Reply) -> None:
        failure = classify(ProviderError(reply), now=EPOCH + self.timeline.now)
        self.stopped |= failure.stop_reason is not None
        if failure.category == "rate_limited":
            self._end(attempt, Answer("rate_limited", 0.0, retry_after=failure.retry_after))
            return
        if failure.category == "fatal":
            attempt.trial.errors = ERRORS
        self._end(attempt, Answer("unavailable" if failure.category == "unavailable" else "error", 0.0))

    def _end(self, attempt: _Attempt, answer: Answer) -> None:
        """End an attempt; the seconds that its calls waited for limits are not part of it."""
        self._answered(AttemptInFlight(attempt.trial, attempt.start + attempt.waited, attempt.probe, answer))

    def _travel(self, request: Request, purpose: int) -> float:
        median = self.network * math.exp(-(self.network_sigma**2) / 2)
        return log_normal(uniform(self.seed, *request.key, purpose), median, self.network_sigma)


def _size(request: Request) -> CallSize:
    return CallSize(request.characters, request.max_tokens)


_USAGE = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "promptTokenCount": "input_tokens",
    "candidatesTokenCount": "output_tokens",
}


def _usage(reply: Reply) -> dict[str, int] | None:
    """Return the usage of a reply in our names."""
    return None if reply.usage is None else {_USAGE.get(name, name): count for name, count in reply.usage.items()}
