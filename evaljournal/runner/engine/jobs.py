"""Jobs of the executor, the lanes in which they wait, and the gates that may keep them from starting.

A job is a trial that is not done, or the calls of one scorer with an output. There is one lane per rate-limit key. Nothing here
waits, records or reads a clock.
"""

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

import attrs

from evaljournal.journal import Record
from evaljournal.replay.state.trial import RetryHistory, TrialState
from evaljournal.runner.concurrency.key_policy import KeyPolicy
from evaljournal.runner.concurrency.policy import Change
from evaljournal.runner.data.case import Case
from evaljournal.runner.retries.classify import Fatal
from evaljournal.runner.scorers.scorer import OpenScorer, ScorerInput

ANY_JOB = 1 << 30
"""More jobs than a lane has."""
_FAILURES: Final = attrgetter("failures")
"""A probe is the first job with the fewest failures, so that probes do not use up the retries of one trial."""


@attrs.define(eq=False, kw_only=True)
class _QueuedJob:
    """The executor's data about a job between and during its calls."""

    started_at: float = 0.0
    """When the call in flight started, in the seconds of `t`."""
    rate_limits: int = 0
    """Consecutive rate-limited calls in this session."""
    delay: float = 0.0
    """Seconds until its next call may start."""
    goes_to_end: bool = False
    """Whether it goes to the end of the queue after its delay."""
    epoch: int = 0
    """The lane's epoch when the call in flight started."""
    is_probe: bool = False
    """Whether the call in flight probes an endpoint whose circuit breaker is open."""
    lane: "Lane" = attrs.field(init=False)
    """Where the call in flight was started."""
    permits: dict[object, Any] = attrs.field(init=False, factory=dict)
    """What the gates of its lane and the layers of the session know about it, each under itself."""
    waited: float = 0.0
    """Seconds that the call in flight has waited inside it, which are not part of its latency."""


@attrs.define(eq=False, kw_only=True)
class TrialWork(_QueuedJob):
    """A trial that was admitted and is not done."""

    trial: str
    case: Case
    state: TrialState
    """Its recorded state: attempts, failures."""
    slot: int = -1
    timeout: float | None = None
    """Seconds for the attempt in flight."""
    has_output: bool = False
    """Whether it has an output, and only scores are missing."""
    completes: bool = True
    """Whether its last score completes it; false if re-scoring adds scores to a completed trial."""
    output: Any = None
    done_scorers: frozenset[str] = frozenset()
    """Scorers that need not be called."""
    remaining_calls: int = 0
    """Scorers that were called and have not ended."""
    key: str = ""

    @property
    def id(self) -> tuple[str, str]:
        """What identifies it among the jobs of a run: its trial, and no scorer."""
        return self.trial, ""

    @property
    def was_sent(self) -> bool:
        """Whether it was attempted before."""
        return self.state.attempts > 0

    @property
    def failures(self) -> int:
        """Attempts that failed; see `RetryHistory.failures`."""
        history = self.state.retry_history
        return 0 if history is None else history.failures


@attrs.define(eq=False, kw_only=True)
class ScorerCall(_QueuedJob):
    """The calls of one scorer with the output of one trial; at most one is in flight."""

    work: TrialWork
    scorer: OpenScorer
    input: ScorerInput
    number: int = 0
    """Calls in this session, the one in flight included."""
    retry_history: RetryHistory = attrs.field(factory=RetryHistory)
    """Its failures in this session."""

    @property
    def id(self) -> tuple[str, str]:
        """What identifies it among the jobs of a run: its trial and its scorer."""
        return self.work.trial, self.scorer.scorer.name

    @property
    def was_sent(self) -> bool:
        """Whether it was called before."""
        return self.number > 0

    @property
    def key(self) -> str:
        """Its rate-limit key."""
        return self.scorer.key

    @property
    def failures(self) -> int:
        """Calls that ended in an error or a timeout."""
        return self.retry_history.errors + self.retry_history.timeouts


Job = TrialWork | ScorerCall
"""The work that a consumer takes: an attempt, the scoring of an output, or a call of a scorer."""


class StartGate:
    """What may keep a job from starting, besides the policy of its lane; this one lets everything pass.

    **Order.** A lane asks its policy first, then its gates in the order in which they were attached, the cheapest
    refusal first. The gates of one start are asked without anything in between, so what one of them has seen still
    holds when the last one agrees.

    **A refusal takes nothing.** `admit` only reads, or keeps what it has computed in the job's permits; what others
    could use is taken in `start`, when all gates have agreed. The last gate of a lane may take it in `admit`. Otherwise
    a job that a later gate refuses would hold what another job needs.

    **What a gate knows about a job is in the job's permits**, under the gate itself: a capability that is off is not a
    field.

    **Consumers do not poll.** A gate that refuses returns when to ask again, or wakes the scheduler (`Scheduler.wake`) once
    that has changed. A gate that would refuse for good stops the session, with a reason, as soon as nothing is in
    flight that could change it.
    """

    def reach(self, lane: "Lane") -> int:  # noqa: ARG002
        """Return how many jobs at the head of a lane may start now; called before its policy is asked."""
        return ANY_JOB

    def admit(self, job: "Job", now: float) -> float | None:  # noqa: ARG002
        """Return None if a job may start; otherwise when to ask again; infinity: when the gate wakes the scheduler."""
        return None

    def start(self, job: "Job") -> None:
        """Take what a job needs that all gates have admitted."""

    def check(self, job: "Job") -> None:
        """Raise the error of a call that can never start; called after the start was recorded, before anything is sent."""

    def fields(self, job: "Job") -> Mapping[str, Any]:  # noqa: ARG002
        """Return what the record of its start has about this gate."""
        return {}

    def end_fields(self, job: "Job") -> Mapping[str, Any]:  # noqa: ARG002
        """Return what the record of the end of an attempt has about this gate."""
        return {}

    def noted(self, job: "Job", name: str, value: Any) -> None:
        """Process a note of the call in flight."""

    def leave(self, job: "Job", *, is_answered: bool) -> None:
        """Give back what a job has taken: its call has ended, and that is about to be recorded."""

    def observe(self, job: "Job", record: Record) -> Iterable[Change]:  # noqa: ARG002
        """Process the record of a start or an end; return the changes to record."""
        return ()

    def may_score(self, work: "TrialWork") -> bool:  # noqa: ARG002
        """Return whether an output of an earlier session may be scored now."""
        return True

    def completed(self, work: "TrialWork") -> None:
        """Process that a trial is completed."""


def gate_fields(gates: "tuple[StartGate, ...]", job: "Job") -> dict[str, Any]:
    """Return what the record of a start has about the gates of its lane."""
    fields: dict[str, Any] = {}
    for gate in gates:
        fields |= gate.fields(job)
    return fields


def gate_error(gates: "tuple[StartGate, ...]", job: "Job") -> Fatal | None:
    """Return the error of a call that can never start."""
    try:
        for gate in gates:
            gate.check(job)
    except Fatal as exc:
        return exc
    return None


@attrs.define(eq=False)
class Lane:
    """One rate-limit key: its policy, its queued jobs, and how many are in flight."""

    key: str
    policy: KeyPolicy
    gates: tuple[StartGate, ...] = ()
    """What else may keep its jobs from starting, in the order in which they are asked."""
    is_live: bool = True
    """Whether its jobs call something; otherwise their replies are there already, and they need no slot and no policy."""
    trials: deque[TrialWork] = attrs.field(factory=deque)
    calls: deque[ScorerCall] = attrs.field(factory=deque)
    """Scorer calls; they start before attempts, so that outputs do not accumulate."""
    has_trials: bool = False
    has_calls: bool = False
    counted_jobs: int = 0
    """Attempts and calls in flight that count against the limit."""
    hung_jobs: int = 0
    """Attempts and calls in flight that do not count, because they started before the endpoint stopped responding."""
    epoch: int = 0
    """How many times the endpoint has stopped responding."""
    closed_until: float = 0.0
    """When the policy may allow the next start, unless another event comes first."""
    counted_limit: int = 0
    """The limit that is included in the sums of `Queues`."""
    next_check: float = math.inf
    """When to call the policy again, because time alone may change its decision."""

    def next_job(self, is_held: Callable[[Job], bool], *, probe: bool) -> Job | None:
        """Return the next job to start, or to be a breaker's probe; None if all are held. The lane has jobs."""
        queue: Iterable[Job] = self.calls or self.trials
        jobs = itertools.filterfalse(is_held, queue)
        return min(jobs, key=_FAILURES, default=None) if probe else next(jobs, None)

    @property
    def may_rise(self) -> bool:
        """Whether its limit may be raised: as many jobs are in flight, or were before the last one ended."""
        return self.counted_jobs + 1 >= self.policy.limit

    def discount_in_flight(self) -> None:
        """Stop counting the jobs in flight: the endpoint does not respond."""
        self.hung_jobs += self.counted_jobs
        self.counted_jobs = 0
        self.epoch += 1
