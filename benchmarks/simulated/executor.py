"""An executor without nursery or clock: trials, retries and slots on an event heap.

It does what the real one does with a policy's answers, and keeps the same budgets: errors 4, timeouts 2, refusals ten
minutes; neither a refusal nor a breaker's probe spends a trial's attempts.
"""

import heapq
import random
from collections import deque
from typing import Literal

from attrs import define, field

from benchmarks.simulated.endpoint import TIMEOUT, Answer, Endpoint, Server
from runner.concurrency import Decision, Failed, Policy, Started, Succeeded, TimedOut

ERRORS, TIMEOUTS, REFUSED_FOR = 4, 2, 600.0


@define
class Trial:
    """What a trial has been through."""

    number: int
    attempts: int = 0
    errors: int = 0
    timeouts: int = 0
    refusals: int = 0
    refused_at: float | None = None
    """When its present series of refusals began."""


@define(kw_only=True)
class Tally:
    """What came out."""

    completed: int = 0
    refused: int = 0
    """By a limit."""
    strays: int = 0
    """Refused for no reason."""
    ill: int = 0
    lost: int = 0
    ended: float = 0.0
    """When the last trial was done."""
    in_flight: list[tuple[float, int]] = field(factory=list[tuple[float, int]])
    """How many were in flight, each time an attempt began."""


@define
class Call:
    """An attempt in flight."""

    name: str
    trial: Trial
    began: float
    probe: bool
    answer: Answer


class Simulation:
    """One policy against one endpoint."""

    def __init__(self, policy: Policy, endpoint: Endpoint, seed: int, *, trials: int | None = None, ahead: int = 1) -> None:
        """Take as many trials as there is time for, or `trials` of them.

        There are `ahead` of them open per slot; if it is 1 and all back off, nothing is started, which is kind to policies
        that get refused.
        """
        self.policy = policy
        self.server = Server(endpoint, random.Random(f"endpoint {seed}"))
        self.chance = random.Random(f"executor {seed}")
        self.left = trials
        self.ahead = ahead
        self.opened = 0
        self.now = 0.0
        self.tally = Tally()
        self._events: list[tuple[float, int, Literal["end", "wake", "retry"], Call | Trial | None]] = []
        self._count = 0
        self._ready: deque[Trial] = deque()
        self._open = 0
        self._in_flight = 0
        self._limit = 1
        self._wake: float | None = None

    def run(self, seconds: float) -> Tally:
        """Run for so many seconds, or until every trial is done."""
        self._pump()
        while self._events and self._events[0][0] <= seconds:
            self.now, _, kind, subject = heapq.heappop(self._events)
            if kind == "end" and isinstance(subject, Call):
                self._end(subject)
            elif kind == "retry" and isinstance(subject, Trial):
                self._ready.append(subject)
            elif self._wake == self.now:
                self._wake = None
            self._pump()
        return self.tally

    def _push(self, t: float, kind: Literal["end", "wake", "retry"], subject: Call | Trial | None) -> None:
        self._count += 1
        heapq.heappush(self._events, (t, self._count, kind, subject))

    def _pump(self) -> None:
        """Start whatever may start."""
        while self._ready or (self.left != 0 and self._open < self.ahead * max(self._limit, self._in_flight + 1)):
            gate = self.policy.may_start(self.now)
            if gate.open:
                self._start(self._ready.popleft() if self._ready else self._fresh())
                continue
            if gate.at is not None and (self._wake is None or gate.at < self._wake):
                self._wake = gate.at
                self._push(gate.at, "wake", None)
            return

    def _fresh(self) -> Trial:
        self.opened += 1
        self._open += 1
        if self.left is not None:
            self.left -= 1
        return Trial(self.opened)

    def _start(self, trial: Trial) -> None:
        trial.attempts += 1
        name = f"{trial.number}/{trial.attempts}"
        answer = self.server.call(self.now)
        self._in_flight += 1
        self.tally.in_flight.append((self.now, self._in_flight))
        decision = self._heed(self.policy.take(Started(t=self.now, attempt=name)))
        call = Call(name, trial, self.now, decision.probe, answer)
        self._push(self.now + min(answer.seconds, TIMEOUT), "end", call)

    def _heed(self, decision: Decision) -> Decision:
        self._limit = decision.limit
        return decision

    def _end(self, call: Call) -> None:
        """Tell the policy how a call ended, and decide what becomes of its trial."""
        t, trial, answer = self.now, call.trial, call.answer
        self._in_flight -= 1
        # There are four ways a call can end:
        if answer.seconds > TIMEOUT:
            self.tally.ill += 1
            self._heed(self.policy.take(TimedOut(t=t, attempt=call.name)))
            trial.timeouts += not call.probe
            self._again(trial, self._backoff(trial.timeouts), lost=trial.timeouts > TIMEOUTS)
        elif answer.kind == "ok":
            self.tally.completed += 1
            self.tally.ended = t
            self._open -= 1
            self._heed(self.policy.take(Succeeded(t=t, attempt=call.name, elapsed=t - call.began, quota=answer.quota)))
        elif answer.kind in ("refused", "stray"):
            self.tally.refused += answer.kind == "refused"
            self.tally.strays += answer.kind == "stray"
            refusal = Failed(t=t, attempt=call.name, failure="rate_limited", retry_after=answer.retry_after, quota=answer.quota)
            self._heed(self.policy.take(refusal))
            trial.refusals += 1
            trial.refused_at = t if trial.refused_at is None else trial.refused_at
            wait = self._backoff(trial.refusals) if answer.retry_after is None else answer.retry_after
            self._again(trial, wait, lost=t - trial.refused_at > REFUSED_FOR)
        else:
            self.tally.ill += 1
            self._heed(self.policy.take(Failed(t=t, attempt=call.name, failure="unavailable")))
            trial.errors += not call.probe
            self._again(trial, self._backoff(trial.errors), lost=trial.errors > ERRORS)

    def _again(self, trial: Trial, delay: float, *, lost: bool) -> None:
        if lost:
            self.tally.lost += 1
            self._open -= 1
        else:
            self._push(self.now + delay, "retry", trial)

    def _backoff(self, times: int) -> float:
        """Exponential, with full jitter."""
        return float(self.chance.random() * min(60.0, 2.0 ** max(times - 1, 0)))
