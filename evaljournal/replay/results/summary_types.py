"""The results of a run as data: what `replay.results.summary` computes, and `--json` and the report page contain."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from evaljournal.replay.results.pairwise import PairwiseSummary
from evaljournal.replay.state.budget import BudgetUse
from evaljournal.replay.state.session_errors import LastError, StoppingScorer
from evaljournal.replay.state.workers import WorkerTotals


@attrs.frozen
class TrialCounts:
    """Numbers of trials by stage."""

    enqueued: int
    """All that were not withdrawn."""
    with_output: int
    """With an output: completed or being scored."""
    completed: int
    failed: int
    """Without an output; excluded from all means."""
    recovered: int
    """Completed after a failed attempt."""
    declined: int
    """With an output that was declined by the model or its provider."""
    truncated: int
    """With an output that was truncated: by the token limit, the context window or a pause of the provider's tools."""
    excluded: Mapping[str, int]
    """`declined` or `truncated` → number of these outputs that are not scored, because the settings exclude them."""
    open: int
    """Neither completed nor failed: the sum of the next six."""
    queued: int
    running: int
    scoring: int
    unsettled: int
    interrupted: int
    backing_off: int
    withdrawn: int


@attrs.frozen
class PassK:
    """Estimates for `k` trials of one case: that at least one passes (pass@k), and that all pass (pass^k)."""

    k: int
    cases: int
    """Cases with at least `k` values; the estimates are means over these."""
    at_least_one: float
    at_least_one_low: float | None
    at_least_one_high: float | None
    all: float
    all_low: float | None
    all_high: float | None


@attrs.frozen
class ScoreSummary:
    """The values of one scorer."""

    kind: Literal["pass", "number", "label", "mixed", "nothing"]
    scored: int
    """Trials with a value of this scorer."""
    failed: int
    """Outputs for which the scorer failed."""
    error: str
    """The last error of the scorer."""
    numbers: int
    """Values in the mean; true is 1, false is 0."""
    passed: int | None
    """Number of passes, if all values are booleans."""
    out_of_range: int
    """Numbers that are not finite or exceed 1e100; excluded from the mean."""
    cases: int
    """Cases with a number; the standard error and the confidence interval are clustered by case."""
    mean: float | None
    standard_error: float | None
    low: float | None
    high: float | None
    """95 % confidence interval of the mean."""
    labels: Mapping[str, int]
    """Label → count, most frequent first."""
    versions: int
    """Number of versions of the scorer among the values."""
    from_older_version: int
    """Values of older versions of the scorer; `evaljournal rescore` replaces them."""
    pass_at_k: Sequence[PassK]
    """For k = 1, 2, 4, … and the largest number of repeats; empty without repeats, with values other than booleans, and over
    several variants."""


@attrs.frozen
class Latency:
    """The latency of the current outputs in seconds: of the attempts that returned them, and of the steps that they reused."""

    count: int
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


@attrs.frozen
class AttemptCounts:
    """Numbers of attempts by how they ended."""

    started: int
    succeeded: int
    failed: int
    timed_out: int
    interrupted: int
    """Their calls may or may not have been paid for."""
    repeated_calls: int
    """Calls of interrupted attempts that were repeated, and may have been paid for twice: one for each
    attempt, which may have made more calls that were not completed steps, and the completed steps that were not reused."""
    returned_late: int


@attrs.frozen
class StepCounts:
    """Numbers of steps by how they ended."""

    completed: int
    """Executed, with a result."""
    failed: int
    """Executed; they raised an exception."""
    reused: int
    """Not executed, because an earlier attempt had completed them."""
    usage_saved: Mapping[str, float]
    """Usage of the reused steps, which was not paid for again."""
    seconds_waited: float = 0.0
    """Seconds that steps have waited for known rate limits, summed; they are not part of latencies."""


@attrs.frozen
class ReplayedCounts:
    """What was answered from recorded replies."""

    replies: int
    """Steps, answers and verdicts."""
    unpaid: Mapping[str, float]
    """What they used in the runs that paid for them."""


@attrs.frozen
class ScoringCounts:
    """Outputs that wait for scores, and scorer calls; built-in scorers that compute a score locally make no calls."""

    unscored_outputs: int
    """Outputs that are not fully scored yet."""
    calls_in_flight: Mapping[str, int]
    """By scorer."""
    calls_in_backoff: int
    calls_started: Mapping[str, int]
    """By scorer, over all sessions."""
    calls_failed: Mapping[str, int]
    """By category, over all sessions."""
    errors: Mapping[str, LastError]
    """Scorer → the error of its last call in the last session, if that call failed."""
    limits: Mapping[str, int]
    """Rate-limit key → concurrency limit; `scorer:NAME`, or the task's key if they share one."""
    holds_attempts: bool
    """Whether no attempt starts because too many outputs wait for scores."""


@attrs.frozen
class BudgetSummary:
    """The budgets of a run and of a trial, and how much is used."""

    run: Mapping[str, BudgetUse]
    """By unit; empty if only trials have a budget."""
    more_trials: int | None
    """How many more trials fit into the rest of the budget, at the average usage of the done trials; None if unknown."""
    per_trial: Mapping[str, float]
    """Unit → the budget of each trial; empty if trials have none."""
    trials_exceeded: int
    """Trials that failed because they exceeded it."""


@attrs.frozen(kw_only=True)
class BatchSummary:
    """One batch of requests."""

    batch: int
    """Its number, from 1."""
    scorer: str | None
    """The judge whose requests it has; None: they are those of the task."""
    model: str
    api: str
    address: str
    id: str | None
    """The provider's id; None until it is submitted."""
    is_open: bool
    """Whether it has not been collected."""
    state: str
    """`prepared`, `submitted`, then the provider's own word."""
    lines: int
    open_lines: int
    """Lines whose results are not used yet."""
    completed: int
    """Lines with a result, as the provider last reported."""
    failed: int
    """Lines with an error, as the provider last reported."""
    results: int
    """Lines whose results were used."""
    missing: int
    """Lines without a result when it was collected."""
    unused: int
    """Results that were not used."""
    prepared_at: str
    submitted_at: str | None
    expires: str | None
    """When unfinished lines expire."""
    ended_at: str | None
    cost: float | None
    """Dollars that its results cost, at the batch price; None if no price is known."""
    message: str | None
    """The provider's error."""


@attrs.frozen
class Adoption:
    """The changes since the previous session that a session adopted."""

    session: int
    changes: Sequence[str]
    """`task`, `cases`, `scorer exact`."""


@attrs.frozen
class GroupSummary:
    """The results of one group of trials."""

    trials: TrialCounts
    scores: Mapping[str, ScoreSummary]
    latency: Latency


@attrs.frozen
class VariantSummary:
    """The results of one variant."""

    trials: TrialCounts
    attempts: int
    scores: Mapping[str, ScoreSummary]
    usage: Mapping[str, float]
    """Sums of all numbers in notes and in the usage of attempts, including failed attempts."""
    models: Mapping[str, int]
    """Model that answered → number of current outputs, as far as attempts have noted it."""
    pairwise: Mapping[str, PairwiseSummary]
    """Scorer of a pairwise judge → its verdicts on the outputs of this variant; empty if there are none."""


@attrs.frozen
class Summary:
    """The results of a run up to some record."""

    evaluation: str | None
    task: str | None
    dataset: str | None
    started_at: str | None
    updated_at: str | None
    seq: int
    sessions: int
    elapsed: float
    """Seconds of all sessions; the time between them does not count."""
    crashes: int
    """Earlier sessions that ended without a final record, except those ended by a fork."""
    outcome: str | None
    """`finished`, or the reason the last session stopped; None while it runs or if it crashed."""
    planned_trials: int
    """Planned number of trials; 0 if unknown."""
    missing_shards: Sequence[str]
    """Shards that an unfinished merged run does not have."""
    adopted: Sequence[Adoption]
    """The sessions that adopted changes."""
    from_older_task: int
    """Current outputs from an older version of the task."""
    models: Mapping[str, int]
    """Model that answered → number of current outputs, as far as attempts have noted it."""
    warnings: Sequence[str]
    """What makes the results doubtful although no trial has an error: empty outputs, variants with the same outputs, truncated
    prompts."""
    trials: TrialCounts
    attempts: AttemptCounts
    steps: StepCounts | None
    """None if the run has no steps."""
    replayed: ReplayedCounts | None
    """What was answered from recorded replies; None: nothing."""
    what_if: Mapping[str, Any] | None
    """What `what-if` has replaced in the calls: `live_from`, `live_model`, `live_system`; None: nothing."""
    scoring: ScoringCounts
    retries: Mapping[str, int]
    """By cause."""
    paused_seconds: Mapping[str, float]
    """Reason → seconds in which starts were held: the pauses `retry_after`, `rate_limited`, `all_rate_limited`, `unavailable`
    and `no_response`; `rate_limit`, a known limit; and, if nothing was in flight until a backoff ended, `rate_limited` after a
    429 and `backoff` after other failures. A time in which several rate-limit keys wait counts once."""
    errors: Mapping[str, int]
    last_error: LastError | None
    """The last failure in the current session."""
    unauthorized_scorer: StoppingScorer | None
    """The scorer whose unauthorized call has stopped the run."""
    failed_by_reason: Mapping[str, int]
    """Reason → failed trials."""
    scores: Mapping[str, ScoreSummary]
    unscored: Mapping[str, int]
    """Scorer of the run → completed trials without its score, because the scorer is newer or the score was lost;
    `evaljournal rescore` adds them."""
    pairwise: Mapping[str, PairwiseSummary]
    """Scorer of a pairwise judge → its verdicts; empty if there are none. Variants have their own."""
    latency: Latency
    usage: Mapping[str, float]
    """Sums of all numbers in notes and in the usage of attempts, including failed attempts."""
    unpriced_models: Mapping[str, Sequence[str]]
    """Name of the sum in `usage` that counts calls without a price → their models, the first few."""
    usage_without_output: Mapping[str, float]
    """The part of `usage` that attempts without an output used."""
    budget: BudgetSummary | None
    """None if the run has no budget."""
    batches: Sequence[BatchSummary]
    """All batches, open or collected; empty if the run has none."""
    limit: int | None
    workers: Mapping[str, WorkerTotals] | None
    """Worker → its totals; None if all attempts ran in the process of the run."""
    variants: Mapping[str, VariantSummary] | None
    """Variant → its results; None if the run has no variants."""
    groups: Mapping[str, GroupSummary] | None
    """Group → its results; None if no grouping was requested."""
