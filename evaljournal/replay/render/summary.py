"""Parts of a summary as text: scores, variants, groups, latency, steps, usage, errors."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from evaljournal.replay.render.phrases import (
    describe_score,
    mean_text,
    pairwise_text,
    pass_at_k_texts,
    score_text,
    served_text,
    side_answers_text,
    versions_text,
    waited_text,
)
from evaljournal.replay.results.summary import (
    GroupSummary,
    Latency,
    ReplayedCounts,
    ScoreSummary,
    StepCounts,
    Summary,
    TrialCounts,
    models_of,
    score_of,
)
from evaljournal.replay.state.answers import ADVICE
from evaljournal.replay.state.definition import substitution
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.session_errors import ERROR_CHARS, LastError
from evaljournal.replay.state.tally import main_scorer
from evaljournal.replay.state.totals import Totals
from evaljournal.replay.state.usage import total as total_usage
from evaljournal.replay.text import as_words, columns, digits, duration, money, number, one_line, plural, printable

_MAX_MODELS: Final = 3
"""Maximum number of models without a price to list."""
_MAX_VARIANTS: Final = 8
_MAX_SCORES: Final = 3
"""Maximum number of scores in a line."""
_MAX_SCORER_ERRORS: Final = 3
_COSTS: Final = ("cost", "judge.cost")
_PAUSE_CAUSES: Final = {
    **dict.fromkeys(("retry_after", "rate_limited", "all_rate_limited"), "429s"),
    **dict.fromkeys(("unavailable", "no_response"), "outages"),
    "rate_limit": "known limits",
}
"""Reason why starts were held → its cause."""
_RETRY_NOUNS: Final = {
    "error": "error",
    "timed_out": "timeout",
    "probe": "probe",
    "unavailable": "server or connection error",  # It may be that of one input, so it does not say that the endpoint is down.
}
"""Cause of a retry → its noun, if it is one."""


def trials_text(state: RunState) -> str:
    after_failures = f" ({state.totals.recovered:,} after a failed attempt)" if state.totals.recovered else ""
    parts = [f"{plural(state.completed, 'output')}{after_failures}", plural(state.failed, "error")]
    if state.outcome and (unscored_outputs := state.totals.stages["scoring"]):
        parts.insert(1, f"{plural(unscored_outputs, 'output')} without all scores")
    if state.totals.stages["withdrawn"]:
        parts.append(f"{state.totals.stages['withdrawn']:,} withdrawn")
    return " · ".join(parts)


def waits_text(state: RunState) -> str:
    """Return how long starts were held, and the retries by cause: `waited 3 min 2 s: 429s; 41 retries: 38 rate limited, …`.

    Empty without retries, if that was shorter than a second.
    """
    seconds, parts = dict[str, float](), list[str]()
    for reason, value in state.policy.paused_seconds(state.t).items():
        cause = _PAUSE_CAUSES.get(reason) or printable(reason)
        seconds[cause] = seconds.get(cause, 0.0) + value
    if (total := sum(seconds.values())) >= 1:
        causes = [cause if len(seconds) == 1 else f"{cause} {duration(value)}" for cause, value in seconds.items()]
        parts.append(f"{waited_text(total)}: {', '.join(causes)}")
    if state.trials.attempts.retries:
        counts = (_retry_text(reason, count) for reason, count in state.trials.attempts.retries.most_common())
        parts.append(f"{plural(sum(state.trials.attempts.retries.values()), 'retry', 'retries')}: {', '.join(counts)}")
    return "; ".join(parts)


def _retry_text(reason: str, count: int) -> str:
    noun = _RETRY_NOUNS.get(reason)
    return plural(count, noun) if noun else f"{count:,} {as_words(reason)}"


def score_lines(scores: Mapping[str, ScoreSummary], trials: TrialCounts | Totals) -> Iterator[str]:
    yield from columns([(printable(scorer, 24), score_text(score, trials=trials)) for scorer, score in scores.items()])


def pairwise_lines(summary: Summary) -> Iterator[str]:
    if summary.variants is None:
        yield from (f"{printable(scorer, 40)}  {pairwise_text(result)}" for scorer, result in summary.pairwise.items())
        return
    for variant, results in summary.variants.items():
        for scorer, result in results.pairwise.items():
            yield f"{printable(variant, 40)}  {printable(scorer, 40)}  {pairwise_text(result)}"


def pass_lines(scores: Mapping[str, ScoreSummary]) -> Iterator[str]:
    """Yield pass@k and pass^k of each scorer, if cases have repeats."""
    for scorer, score in scores.items():
        if texts := list(pass_at_k_texts(score)):
            at_least_one, all_pass = (", ".join(estimates) for estimates in zip(*texts, strict=True))
            cases = next(estimate.cases for estimate in score.pass_at_k if estimate.k > 1)
            yield f"{printable(scorer, 24)}  {at_least_one} · {all_pass} of {plural(cases, 'case')}"


def variant_lines(state: RunState) -> Iterator[str]:
    """Yield results of the first variants: `mini   60 of 60 done · 2 errors · exact 91.4 % · $0.034`."""
    yield from columns(list(islice(variant_rows(state), _MAX_VARIANTS)))
    count = sum(totals.total > 0 for totals in state.variants.values())
    if count > _MAX_VARIANTS:
        yield f"… and {count - _MAX_VARIANTS:,} more"


def variant_rows(state: RunState) -> Iterator[tuple[str, str]]:
    for name, totals in state.variants.items():
        if totals.total:
            yield printable(name, 40) or "(no variant)", variant_result(state, totals)


def variant_result(state: RunState, totals: Totals) -> str:
    """Return the results of a variant in one line: `60 of 60 done · 2 errors · exact 91.4 % · $0.034`.

    How many trials a variant has is known when all trials of the run are enqueued.
    """
    is_total_known = state.outcome == "finished" or 0 < state.sessions.planned <= state.totals.total
    parts = [f"{totals.done:,} of {totals.total:,} done" if is_total_known else f"{totals.done:,} done"]
    if totals.failed:
        parts.append(plural(totals.failed, "error"))
    tallies = ((scorer, tally) for scorer, tally in totals.scores.items() if tally.mean is not None or tally.failed)
    for scorer, tally in islice(tallies, _MAX_SCORES):
        mean = [] if tally.mean is None else [mean_text(tally.kind, tally.mean)]
        errors = [plural(tally.failed, "scorer error")] if tally.failed else []
        parts.append(f"{printable(scorer, 24)} {', '.join(mean + errors)}")
    parts += filter(None, [side_answers_text(totals)])
    if any(unit in totals.usage for unit in _COSTS):
        parts.append(money(sum(totals.usage[unit] for unit in _COSTS)))
    return " · ".join(parts)


def best_variant_lines(state: RunState) -> Iterator[str]:
    """Yield the variant with the highest mean of the first score, with its interval, if there are several variants."""
    scorer = main_scorer((name, tally.kind) for name, tally in state.scores.items() if tally.mean is not None) or ""
    tallies = {name: tally for name, totals in state.variants.items() if (tally := totals.scores.get(scorer)) is not None}
    means = {name: tally.mean for name, tally in tallies.items() if tally.mean is not None}
    if len(means) > 1:
        best_variants = [name for name, mean in means.items() if mean == max(means.values())]
        texts = [describe_score(score_of(tallies[name])) for name in best_variants]
        interval = texts[0].interval if len({text.interval for text in texts}) == 1 else ""
        names = [printable(name, 40) for name in best_variants[:_MAX_SCORES]]
        names += ["…"] if len(best_variants) > _MAX_SCORES else []
        yield f"best by {printable(scorer, 24)}: {', '.join(names)}  {texts[0].figure}{interval and f' ({interval})'}"


def group_lines(groups: Mapping[str, GroupSummary], key: str, *, limit: int | None = None) -> Iterator[str]:
    yield f"by {printable(key)}:"
    for label, group in islice(groups.items(), limit):
        trials = group.trials
        counts = [f"{plural(trials.completed, 'output')} of {plural(trials.enqueued, 'trial')}"]
        counts += [plural(trials.failed, "error")] if trials.failed else []
        counts += [f"{trials.open:,} open"] if trials.open else []
        yield f"  {printable(label, 40)}  {' · '.join(counts)}"
        yield from (f"    {row}" for row in score_lines(group.scores, trials))
    if limit is not None and len(groups) > limit:
        yield f"  … and {plural(len(groups) - limit, 'more group')}"


def latency_text(times: Latency, outputs: str, *names: str) -> str:
    """Return quantiles: `p50 0.24 s · p95 0.9 s of 60 outputs`."""
    quantiles = {"p50": times.p50, "p95": times.p95, "p99": times.p99, "max": times.max}
    parts = [f"{name} {duration(quantiles[name] or 0.0)}" for name in names or quantiles]
    return f"{' · '.join(parts)} of {outputs}"


def steps_text(steps: StepCounts, per_second: float | None = None) -> str:
    """Return how many steps were executed and reused: `81 steps (2 errors), 4.2/s · 41 steps reused, $3.12 not paid again`."""
    errors = f" ({plural(steps.failed, 'error')})" if steps.failed else ""
    rate = "" if per_second is None else f", {digits(per_second, 2)}/s"
    parts = [f"{plural(steps.completed + steps.failed, 'step')}{errors}{rate}"]
    if steps.reused:
        usage = saved_usage(steps)
        amount = money(usage["cost"]) if "cost" in usage else usage_text(usage, {})
        parts.append(f"{plural(steps.reused, 'step')} reused{f', {amount} not paid again' if usage else ''}")
    if steps.seconds_waited > 0:
        parts.append(f"{duration(steps.seconds_waited)} waiting for rate limits, summed over calls")
    return " · ".join(parts)


def replayed_text(replayed: ReplayedCounts) -> str:
    """Return what was answered from recorded replies: `replayed: 1,200 replies, $1.20 not paid`."""
    cost = total_usage(replayed.unpaid, "cost")
    tokens = {name: value for name, value in replayed.unpaid.items() if "token" in name.lower()}
    amount = usage_text(tokens, {}) if cost is None else money(cost)
    return f"replayed: {plural(replayed.replies, 'reply', 'replies')}{f', {amount} not paid' if amount else ''}"


def substitution_lines(state: RunState) -> Iterator[str]:
    """Yield what `what-if` has replaced: `what-if: calls from step 3 on to gpt-5.4-nano, with another system prompt`."""
    if replaced := substitution(state.settings):
        model, prompt = replaced.get("live_model"), "live_system" in replaced
        parts = [f" to {printable(str(model), 80)}" if model else "", ", with another system prompt" if prompt else ""]
        yield f"what-if: calls from step {printable(str(replaced.get('live_from')), 20)} on{''.join(parts)}"


def saved_usage(steps: StepCounts) -> dict[str, float]:
    """Return the cost that reused steps have saved; if it is unknown, the tokens."""
    cost = {name: value for name, value in steps.usage_saved.items() if name == "cost" and value}
    return cost or {name: value for name, value in steps.usage_saved.items() if "token" in name.lower()}


def missing_step_lines(state: RunState) -> Iterator[str]:
    """Yield how many attempts have no step although their model calls should be steps, if any, why, and what to do."""
    if count := state.steps.attempts_without_steps:
        yield (
            f'{plural(count, "attempt")} without a step: durable="http" records only calls of httpx clients, and none in '
            "a thread pool; use asyncio.to_thread, @durable or the gateway"
        )


def blocking_call_lines(state: RunState) -> Iterator[str]:
    """Yield that calls of an async task blocked its event loop, if it was noted, and what to do."""
    if count := state.trials.warnings.blocking_calls:
        yield (
            f"{plural(count, 'call')} in a row blocked the event loop; if the task calls a synchronous client, use its async "
            "client, or make the task a plain def"
        )


def answer_lines(state: RunState, *, verbose: bool = False) -> Iterator[str]:
    """Yield how many outputs are truncated or declined, if any, and which models gave the outputs, with `verbose`."""
    outputs = plural(state.totals.outputs, "output")
    not_scored = {outcome: ", so not scored" if state.totals.excluded[outcome] else "" for outcome in ("truncated", "declined")}
    for cause, count in state.totals.truncation_causes.items():
        if count:
            yield f"{count:,} of {outputs} truncated by {cause}{not_scored['truncated']}; {ADVICE[cause]}"
    if state.totals.declined and not state.scores:  # Otherwise the count is beside each mean.
        yield f"{state.totals.declined:,} of {outputs} declined by the model or its provider{not_scored['declined']}"
    if verbose and (models := models_of(state.totals)):
        yield served_text(models)


def billed_usage(usage: Mapping[str, float]) -> dict[str, float]:
    """Return the tokens and costs in some usage; sums of other values, such as temperatures, are meaningless."""
    return {name: value for name, value in usage.items() if any(word in name.lower() for word in ("token", "cost", "unpriced"))}


def cost_text(usage: Mapping[str, float], unpriced_models: Mapping[str, Sequence[str]]) -> str:
    """Return the cost of a run with its judges, or its tokens if the cost is unknown: `cost $0.034`; empty without usage."""
    billed, cost = billed_usage(usage), total_usage(usage, "cost")
    if cost is None:
        return usage_text(billed, unpriced_models)
    unpriced = {name: value for name, value in billed.items() if "unpriced" in name}
    return " · ".join(filter(None, (f"cost {money(cost)}", usage_text(unpriced, unpriced_models))))


def usage_text(usage: Mapping[str, float], unpriced_models: Mapping[str, Sequence[str]]) -> str:
    """Return sums of usage: `input_tokens 1,200 · cost $0.034 · 3 calls without a price (gpt-x)`."""
    return " · ".join(_amount(name, value, unpriced_models.get(name, ())) for name, value in usage.items())


def _amount(name: str, value: float, models: Sequence[str]) -> str:
    label = printable(name.replace("judge.", "judge "), 32)
    if name in {"unpriced_calls", "judge.unpriced_calls"}:
        names = [printable(model, 40) for model in models[:_MAX_MODELS]]
        names += [f"{len(models) - _MAX_MODELS} more"] if len(models) > _MAX_MODELS else []
        suffix = f" ({', '.join(names)})" if names else ""
        return f"{plural(int(value), label.replace('unpriced_calls', 'call'))} without a price{suffix}"
    return f"{label} {money(value) if 'cost' in name.lower() else number(value)}"


def adopted_lines(state: RunState) -> Iterator[str]:
    """Yield the adopted changes, and how many outputs are from an older version of the task."""
    for session in state.sessions:
        if session.adopted:
            yield f"session {session.number} adopted changes: {printable(', '.join(session.adopted), 200)}"
    if count := state.sessions.task_versions.older_outputs:
        verb = "is" if count == 1 else "are"
        yield f"{count:,} of {plural(state.totals.outputs, 'output')} {verb} from an older version of the task"


def version_notes(state: RunState) -> Iterator[str]:
    yield from adopted_lines(state)
    for scorer, tally in state.scores.items():
        if versions := versions_text(tally.versions, tally.from_older_version):
            yield f"{plural(tally.scored, 'score')} of {printable(scorer, 24)} {versions}"


def scorer_error_lines(errors: Mapping[str, LastError], now: float | None = None) -> Iterator[str]:
    """Yield the last errors of scorers whose last calls failed."""
    for scorer, error in islice(errors.items(), _MAX_SCORER_ERRORS):
        yield f"scorer {printable(scorer, 24)}: {error_text(error, now)}"


def error_text(error: LastError, now: float | None = None) -> str:
    """Return the last error: `3 in a row, the last 2 s ago: TimeoutError: …`."""
    parts = [f"{error.consecutive:,} in a row"] if error.consecutive > 1 else []
    if now is not None:
        age = f"{duration(now - error.t)} ago"
        parts.append(f"the last {age}" if parts else age)
    return f"{', '.join(parts)}{': ' if parts else ''}{one_line(error.message, ERROR_CHARS)}"
