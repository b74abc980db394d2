"""The results of a run in numbers: trials, attempts, scores with confidence intervals, latency, usage.

Computed from a `RunState`. Failed and unscored trials are not part of a mean; they are counted next to it. `--json` and the
report page contain them.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import attrs

from evaljournal.replay.results.pairwise import PairwiseSummary, pairwise_summaries
from evaljournal.replay.results.warning_text import warnings_of
from evaljournal.replay.state.budget import BudgetUse
from evaljournal.replay.state.definition import substitution
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.session_errors import LastError, StoppingScorer
from evaljournal.replay.state.shards import missing_shards
from evaljournal.replay.state.tally import Tally
from evaljournal.replay.state.totals import Totals
from evaljournal.replay.state.trial import TrialState
from evaljournal.replay.state.usage import total
from evaljournal.replay.state.workers import WorkerTotals
from evaljournal.replay.statistics import mean_of_shares, pass_all, pass_at, quantile

NO_GROUP: Final = "(none)"
"""The group of trials whose metadata lacks the key."""


@attrs.frozen
class TrialCounts:
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
    kind: Literal["pass", "number", "label", "mixed", "nothing"]
    scored: int
    failed: int
    """Outputs for which the scorer failed."""
    error: str
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
    run: Mapping[str, BudgetUse]
    """By unit; empty if only trials have a budget."""
    more_trials: int | None
    """How many more trials fit into the rest of the budget, at the average usage of the done trials; None if unknown."""
    per_trial: Mapping[str, float]
    """Unit → the budget of each trial; empty if trials have none."""
    trials_exceeded: int


@attrs.frozen(kw_only=True)
class BatchSummary:
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
    trials: TrialCounts
    scores: Mapping[str, ScoreSummary]
    latency: Latency


@attrs.frozen
class VariantSummary:
    trials: TrialCounts
    attempts: int
    scores: Mapping[str, ScoreSummary]
    usage: Mapping[str, float]
    models: Mapping[str, int]
    pairwise: Mapping[str, PairwiseSummary]


@attrs.frozen
class Summary:
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
    batches: Sequence[BatchSummary]
    """All batches, open or collected; empty if the run has none."""
    limit: int | None
    workers: Mapping[str, WorkerTotals] | None
    """Worker → its totals; None if all attempts ran in the process of the run."""
    variants: Mapping[str, VariantSummary] | None
    """Variant → its results; None if the run has no variants."""
    groups: Mapping[str, GroupSummary] | None
    """Group → its results; None if no grouping was requested."""


def summarize(state: RunState, *, groups: Mapping[str, str] | None = None) -> Summary:
    """Return the results of a run; with `groups` (trial → group, from `Grouping`), also the results of each group."""
    run_started, attempts, errors = state.started, state.trials.attempts, state.sessions.errors
    shards = [] if state.outcome == "finished" else state.sessions.merged.shards
    return Summary(
        evaluation=run_started.evaluation if run_started else None,
        task=run_started.task if run_started else None,
        dataset=run_started.dataset if run_started else None,
        started_at=state.sessions[0].at if state.sessions else None,
        updated_at=state.at or None,
        seq=state.seq,
        sessions=len(state.sessions),
        elapsed=state.elapsed,
        crashes=crashes(state),
        outcome=state.outcome or None,
        planned_trials=state.sessions.planned,
        missing_shards=[str(shard) for shard in missing_shards(shards)],
        adopted=[Adoption(session.number, session.adopted) for session in state.sessions if session.adopted],
        from_older_task=state.sessions.task_versions.older_outputs,
        models=models_of(state.totals),
        warnings=warnings_of(state),
        trials=_trials(state.totals),
        attempts=AttemptCounts(
            started=state.totals.attempts,
            succeeded=attempts.outputs,
            failed=sum(attempts.errors.values()),
            timed_out=attempts.timeouts,
            interrupted=attempts.interrupted,
            repeated_calls=attempts.repeated_calls,
            returned_late=attempts.late_returns,
        ),
        steps=steps_of(state),
        replayed=replayed_of(state),
        what_if=substitution(state.settings) or None,
        scoring=ScoringCounts(
            unscored_outputs=state.totals.stages["scoring"],
            calls_in_flight=dict(Counter(scorer for _, scorer in state.scoring.open)),
            calls_in_backoff=len(state.scoring.delayed),
            calls_started=dict(state.scoring.started),
            calls_failed=dict(state.scoring.failed),
            errors=dict(errors.scorer_errors),
            limits=state.policy.scorer_limits,
            holds_attempts=state.holds_attempts,
        ),
        retries=dict(attempts.retries),
        paused_seconds=state.policy.paused_seconds(state.t),
        errors=dict(attempts.errors),
        last_error=errors.last_error,
        unauthorized_scorer=errors.stopping_scorer if state.outcome == "unauthorized" else None,
        failed_by_reason=dict(Counter(trial.reason for trial in state.trials.values() if trial.stage == "failed")),
        scores=_all_scores(state),
        unscored=unscored_counts(state),
        pairwise=pairwise_summaries(state),
        latency=latency(latencies(state)),
        usage=dict(state.usage),
        unpriced_models={name: list(models) for name, models in state.usage_parts.unpriced_models.items()},
        usage_without_output=dict(state.usage_parts.without_output),
        budget=budget_of(state),
        batches=batches_of(state),
        limit=state.policy.limit,
        workers=dict(state.workers) or None,
        variants={name: _variant(totals, pairwise_summaries(state, name)) for name, totals in state.variants.items()} or None,
        groups=None if groups is None else _groups(state, groups),
    )


def budget_of(state: RunState) -> BudgetSummary | None:
    budget = state.budget
    if budget is None or not (budget.limits or budget.trial_limits):
        return None
    exceeded_trials = sum(trial.stage == "failed" and trial.reason == "budget" for trial in state.trials.values())
    return BudgetSummary(budget.use(), budget.more_trials(state.totals.done), dict(budget.trial_limits), exceeded_trials)


def _variant(totals: Totals, pairwise: Mapping[str, PairwiseSummary]) -> VariantSummary:
    scores, usage = _scores(totals.scores), dict(totals.usage)
    return VariantSummary(_trials(totals), totals.attempts, scores, usage, models_of(totals), pairwise)


def models_of(totals: Totals) -> dict[str, int]:
    """Return the models that gave the current outputs → number of outputs, most frequent first."""
    return {model: count for model, count in totals.models.most_common() if count}


def steps_of(state: RunState) -> StepCounts | None:
    steps = state.steps
    if not steps:
        return None
    return StepCounts(steps.completed, steps.failed, steps.reused, dict(steps.usage_saved), round(steps.seconds_waited, 6))


def replayed_of(state: RunState) -> ReplayedCounts | None:
    """Return what was answered from recorded replies; None: nothing."""
    parts = state.usage_parts
    return ReplayedCounts(parts.replayed, dict(parts.unpaid)) if parts.replayed else None


def unscored_counts(state: RunState, variant: str | None = None) -> dict[str, int]:
    """Return, for each scorer, the number of completed trials that it has neither scored nor failed to score, though it should.

    With `variant`, only its trials are counted.
    """
    all_scorers = state.started.scorers if state.started else {}
    scorers = set(all_scorers)
    totals = state.totals if variant is None else state.variants[variant]
    if not totals.stages["scoring"]:  # A scorer with as many scores as completed trials lacks none.
        scored_outputs = totals.stages["completed"] - totals.excluded.total()
        scorers -= {name for name, tally in totals.scores.items() if tally.scored == scored_outputs}

    counts: Counter[str] = Counter()
    for trial in state.trials.values() if scorers else ():
        is_counted = trial.stage == "completed" and not trial.is_excluded and (variant is None or trial.variant == variant)
        if is_counted and not trial.scores.keys() >= scorers:
            scorers_of_trial = {name.partition(".")[0] for name in trial.scores}
            counts.update(scorer for scorer in scorers if scorer not in scorers_of_trial and scorer not in trial.unscored)
    return {scorer: counts[scorer] for scorer in all_scorers if counts[scorer]}


def crashes(state: RunState) -> int:
    """Return the number of earlier sessions that ended without a final record, except those ended by a fork."""
    sessions = forked_sessions(state)
    return sum(not session.outcome and session.number not in sessions for session in state.sessions[:-1])


def forked_sessions(state: RunState) -> set[int]:
    """Return the sessions that were still running where the run, or a shard of it, was forked from another."""
    sessions = set[int]()
    own_origin = state.started.forked_from if state.started else None
    for session_count, newest_origin in [(0, own_origin), *state.sessions.merged.origins()]:
        origin = newest_origin
        while isinstance(origin, dict):
            if isinstance(session := origin.get("session"), int):
                sessions.add(session_count + session)
            origin = origin.get("forked_from")
    return sessions


def _trials(totals: Totals) -> TrialCounts:
    names = ("completed", "failed", "queued", "running", "scoring", "unsettled", "interrupted", "backing_off", "withdrawn")
    return TrialCounts(
        enqueued=totals.total,
        with_output=totals.outputs,
        recovered=totals.recovered,
        declined=totals.declined,
        truncated=totals.truncated,
        excluded={outcome: count for outcome, count in totals.excluded.items() if count},
        open=totals.total - totals.done,
        **{name: totals.stages[name] for name in names},
    )


def batches_of(state: RunState) -> list[BatchSummary]:
    summaries: list[BatchSummary] = []
    for number, batch in state.batches.items():
        lines, prepared = state.batches.lines.open.get(number), batch.prepared
        summary = BatchSummary(
            batch=number,
            scorer=prepared.scorer or None,
            model=prepared.model,
            api=prepared.api,
            address=prepared.address,
            id=batch.id or None,
            is_open=batch.is_open,
            state=batch.state,
            lines=batch.lines,
            open_lines=lines.open_lines if lines else 0,
            completed=batch.completed,
            failed=batch.failed,
            results=lines.used_lines if lines else batch.results,
            missing=batch.missing,
            unused=batch.unused,
            prepared_at=batch.prepared_at,
            submitted_at=batch.submitted_at or None,
            expires=batch.expires or None,
            ended_at=batch.ended_at or None,
            cost=total(batch.usage, "cost"),
            message=batch.message or None,
        )
        summaries.append(summary)
    return summaries


def latencies(state: RunState) -> Iterable[float]:
    """Return the latencies of all current outputs that are not from a batch, in seconds."""
    if state.trials.attempts.outputs == state.totals.outputs:
        return state.trials.attempts.latencies
    return output_latencies(state.trials.values())


def output_latencies(trials: Iterable[TrialState]) -> Iterator[float]:
    """Yield the latencies of the current outputs of some trials; an output of a batch has none."""
    return (seconds for trial in trials if has_output(trial) and (seconds := trial.latency) is not None)


def has_output(trial: TrialState) -> bool:
    return trial.output_location is not None and trial.stage != "withdrawn"


def _all_scores(state: RunState) -> dict[str, ScoreSummary]:
    """Return the scores of all trials; the trials of a case in several variants are not repeats of each other."""
    if state.variants:
        return {scorer: score_of(tally) for scorer, tally in state.scores.items()}
    return _scores(state.scores)


def _scores(tallies: Mapping[str, Tally]) -> dict[str, ScoreSummary]:
    return {scorer: attrs.evolve(score_of(tally), pass_at_k=_pass_at_k(tally)) for scorer, tally in tallies.items()}


def score_of(tally: Tally) -> ScoreSummary:
    """Return a scorer's values without `pass_at_k`, which needs a pass over all cases."""
    estimate, kind = tally.estimate, tally.kind
    return ScoreSummary(
        kind=kind,
        scored=tally.scored,
        failed=tally.failed,
        error=tally.error,
        numbers=tally.numbers,
        passed=tally.passed if kind == "pass" else None,
        out_of_range=tally.out_of_range,
        cases=tally.cases,
        mean=estimate.mean if estimate else None,
        standard_error=estimate.standard_error if estimate else None,
        low=estimate.low if estimate else None,
        high=estimate.high if estimate else None,
        labels={label: count for label, count in sorted(tally.labels.items(), key=lambda item: (-item[1], item[0])) if count},
        versions=tally.versions,
        from_older_version=tally.from_older_version,
        pass_at_k=[],
    )


def _pass_at_k(tally: Tally) -> list[PassK]:
    if tally.kind != "pass" or tally.cases == tally.numbers:
        return []
    cases = tally.passes_by_case()
    max_repeats = max(n for n, _ in cases)
    powers = {1 << exponent for exponent in range(max_repeats.bit_length())}
    return [_pass_k(k, cases) for k in sorted({*powers, max_repeats})]


def _pass_k(k: int, case_counts: Mapping[tuple[int, int], int]) -> PassK:
    """Return the means over all cases with at least `k` values; each case counts once."""
    groups = [(n, passes, cases) for (n, passes), cases in case_counts.items() if n >= k]
    count = sum(cases for _, _, cases in groups)
    trials = sum(n * cases for n, _, cases in groups)
    estimates: list[float | None] = []
    for formula in (pass_at, pass_all):
        values = [(formula(k, n=n, passes=passes), cases) for n, passes, cases in groups]
        mean = sum(value * cases for value, cases in values) / count
        scatter = (trials / count) ** 2 * sum(cases * (value - mean) ** 2 for value, cases in values)
        estimate = mean_of_shares(mean, n=trials, cases=count, scatter=scatter)
        estimates += [estimate.mean, estimate.low, estimate.high]
    return PassK(k, count, *estimates)  # type: ignore[arg-type]  # the means are never None


def latency(times: Iterable[float]) -> Latency:
    """Return the quantiles of some times in seconds; each is one of them."""
    sorted_times = sorted(times)
    if not sorted_times:
        return Latency(0, None, None, None, None)
    p50, p95, p99 = (quantile(sorted_times, share) for share in (0.5, 0.95, 0.99))
    return Latency(len(sorted_times), p50, p95, p99, sorted_times[-1])


def _groups(state: RunState, groups: Mapping[str, str]) -> dict[str, GroupSummary]:
    sums: defaultdict[str, Totals] = defaultdict(Totals)
    times: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
    for name, trial in state.trials.items():
        label = groups.get(name, NO_GROUP)
        _add_trial(sums[label], trial, is_grouped_by_case=state.scores.is_grouped_by_case)
        times[label].extend(output_latencies([trial]))

    for group in sums.values():
        for scorer, tally in group.scores.items():
            tally.set_version(state.scores[scorer].version)  # Trials were not added in the order of their scores.

    return {
        label: GroupSummary(
            trials=_trials(group),
            scores=_scores({scorer: group.scores[scorer] for scorer in state.scores if scorer in group.scores}),
            latency=latency(times[label]),
        )
        for label, group in sorted(sums.items())
    }


def _add_trial(totals: Totals, trial: TrialState, *, is_grouped_by_case: bool) -> None:
    totals.stages[trial.stage] += 1
    totals.recovered += trial.recovered
    totals.count_answer(trial.answer if trial.stage in {"scoring", "completed"} else None, 1)
    totals.scores.is_grouped_by_case = is_grouped_by_case
    for scorer, (version, value) in trial.scores.items():
        tally = totals.scores.tally(scorer)
        if version != tally.version:
            tally.set_version(version)
        tally.add(value, 1, trial.case)
    for scorer in trial.unscored:
        totals.scores.tally(scorer).failed += 1
