"""Jobs of the executor: a trial that is not done, and the calls of one scorer with an output."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs

from evaljournal.replay.state.trial import RetryHistory, TrialState
from evaljournal.runner.concurrency.limits import AdmittedCall
from evaljournal.runner.data.case import Case
from evaljournal.runner.http.batch_line import BatchLine
from evaljournal.runner.scorers.scorer import OpenScorer, ScorerInput
from evaljournal.runner.steps.attempt_steps import current_steps
from evaljournal.runner.steps.durable import model_step
from evaljournal.runner.tasks import ReportedStep
from evaljournal.runner.tasks.call_size import CallSize
from evaljournal.runner.workers.driver import Worker


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
    size: CallSize = attrs.field(factory=CallSize)
    """The size of its next call, if known limits count it."""
    admitted: AdmittedCall | None = None
    """The call in flight, as the known limits of its key count it."""
    waited: float = 0.0
    """Seconds that the call in flight has waited for rate limits, inside it."""
    usage: Mapping[str, Any] | None = None
    """Tokens of the call in flight, once they are noted."""
    place: Worker | None = None
    """The worker that has a place for it."""
    worker: str = ""
    """Name of the worker that ran its last call."""
    line: BatchLine | None = None
    """The line of a batch that its next call is; None if it is made live."""

    @property
    def is_collected(self) -> bool:
        """Whether its next call is read from the result of a batch."""
        return self.line is not None and self.line.batch > 0


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
    is_request_recorded: bool = False
    """Whether this session has recorded its request."""
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
    reserved: dict[str, float] | None = None
    """Amounts that the budget reserves for the next attempt; None without a budget."""
    other_runs: dict[str, float] | None = None
    """Amounts that the other runs of the suite have spent and reserved; None without a shared budget."""

    async def model_step(
        self, name: str, request: Any, call: Callable[[], Awaitable[Any]], usage: Callable[[], Any], size: CallSize
    ) -> Any:
        """Record a model call as a step of the attempt in flight; see `TrialInput`."""
        return await model_step(name, request, call, usage, size)

    def record_steps(self, steps: Sequence[ReportedStep], duration: float) -> None:
        """Record steps of the attempt in flight that were executed elsewhere; see `TrialInput`."""
        if (attempt_steps := current_steps()) is not None:
            attempt_steps.add_reported(steps, duration)

    @property
    def line_key(self) -> tuple[str, str]:
        """What identifies its line among the open batches."""
        return self.trial, ""

    @property
    def was_sent(self) -> bool:
        """Whether it was attempted before."""
        return self.state.attempts > 0

    @property
    def failures(self) -> int:
        """Attempts that ended in an error or a timeout, or with their worker."""
        history = self.state.retry_history
        return 0 if history is None else history.errors + history.parse_errors + history.timeouts + self.needs_own_worker

    @property
    def needs_own_worker(self) -> bool:
        """Whether its next attempt needs a worker of its own."""
        return self.state.ended_with_worker


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

    needs_own_worker: bool = False
    """Whether its next call needs a worker of its own, because the last one ended with its worker."""

    @property
    def line_key(self) -> tuple[str, str]:
        """What identifies its line among the open batches."""
        return self.work.trial, self.scorer.scorer.name

    @property
    def was_sent(self) -> bool:
        """Whether it was called before."""
        return self.number > 0

    @property
    def needs_place(self) -> bool:
        """Whether it runs in a worker."""
        return self.scorer.scorer.workers

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
