"""The final report of a run: how it ended, the counts and scores, the errors, and the next command."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import attrs

from evaljournal.replay.render import summary as summary_text
from evaljournal.replay.render.batches import batch_lines, waiting_text
from evaljournal.replay.render.failing import DEFAULT_WIDTH, failing_lines
from evaljournal.replay.results.budget_text import budget_lines
from evaljournal.replay.results.summary import Summary, crashes, forked_sessions, summarize
from evaljournal.replay.runs.idle import busy_slots_text
from evaljournal.replay.state.answers import ADVICE
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.session_errors import NOT_FOUND
from evaljournal.replay.state.steps import keeps_steps
from evaljournal.replay.state.trial import NO_SLOT
from evaljournal.replay.state.workers import ended_workers, worker_lines
from evaljournal.replay.text import duration, one_line, plural, printable, quote, reason_text, without_variable_parts

_JSON_VALUES: Final = "return a text, number, boolean, None, list, dict, dataclass, attrs or pydantic object"
_MISS: Final = "evaljournal.ReplyMissing:"
_AFTER_MISSES: Final = "restore the recorded requests, or add --no-offline --on-miss live"
"""The line that asks is not wrong, and a retry with the same recorded replies would miss them again."""
_TRUNCATION: Final = re.compile(rf"Truncated: the answer was truncated by ({'|'.join(ADVICE)}):")
_MAX_COMMAND: Final = 1_000
_MAX_CAUSES: Final = 5
_MAX_NAMES: Final = 3
_MAX_SHARDS: Final = 20

CRASHED: Final = "ended without a final record (killed, power loss or disk full)"
_OUTCOMES: Final = {
    "finished": "finished",
    "interrupted": "interrupted",
    "failed_fast": "stopped (too many errors)",
    "same_error": "stopped (always the same error)",
    "unauthorized": "stopped (unauthorized: check the key, its permissions and the credit)",
    "quota": "stopped (a quota is used up)",
    "deadline": "stopped at its deadline",
    "disk_full": "stopped (disk full)",
    "dataset_failed": "stopped (the cases could not be read)",
    "budget": "stopped by its budget",
}


def final_report(
    state: RunState,
    *,
    path: Path | str,
    head: str = "",
    stop_reason: str = "",
    detail: str = "",
    verbose: bool = False,
    width: int = DEFAULT_WIDTH,
    corrected: Iterable[str] = (),
    wall: datetime | None = None,
) -> str:
    """Return how a run ended: the scores, failing cases, errors and what fixes them, counts, cost, warnings, the next command.

    `stop_reason` is the outcome if it could not be recorded because the disk was full; `detail` is the error that
    stopped the run. `width` is that of the terminal, in characters. `corrected` has a line for each corrected score. `wall` is
    the time now (default: that of the last record). With `verbose`, also the figures that few people need, and the hash of the
    last record.
    """
    causes = _causes(state)
    summary = summarize(state)

    name = printable(state.started.evaluation) if state.started else "the run"
    name += f", shard {printable(state.started.shard, 24)}," if state.started and state.started.shard else ""
    progress, directory = progress_text(state), printable(str(path), 500)
    lines = [f"{name} {ending_text(state, stop_reason)}: {progress} done, in {directory}"]
    if detail:
        lines.append(f"  {one_line(detail, 500)}")

    lines += [f"  {row}" for row in (*_score_lines(state, summary), *corrected)]
    lines += failing_lines(state, path, width)
    lines += _error_lines(state, causes, path)
    lines += [f"  {row}" for row in _figure_lines(state, summary, verbose=verbose)]
    lines += [f"  {row}" for row in batch_lines(state, wall)]
    if missing_shards := summary.missing_shards:
        suffix = f", … ({len(missing_shards):,})" if len(missing_shards) > _MAX_SHARDS else ""
        lines.append(f"  missing shards: {', '.join(missing_shards[:_MAX_SHARDS])}{suffix}")
    lines += [f"  {row}" for row in _events(state, detail)]

    if count := len(state.set_ups.open):
        sets = "1 set-up was" if count == 1 else f"{count:,} set-ups were"
        lines.append(f"  {sets} never torn down; `evaljournal clean {quote(path)}` does it, and so does `resume`")
    if sum(totals.done > 0 for totals in state.variants.values()) > 1:
        lines.append(f"details: evaljournal compare {quote(path)}")
    lines += unscored_lines(summary.unscored, path)
    lines += _rescore_lines(state, path)
    if verbose:
        hash_text = f" · head {head}" if head else ""
        lines += [f"journal: seq {state.seq:,}{hash_text}", f"verify: evaljournal verify {quote(path)}"]

    has_results = state.outcome == "finished" and state.completed
    return "\n".join([*lines, f"next: {report_command(path) if has_results else next_action(state, path, causes)}"])


def final_summary(state: RunState, **options: Any) -> str:
    """Return the final report of a run without the next command; for the options see `final_report`."""
    return final_report(state, **options).rpartition("\n")[0]


def ending_text(state: RunState, stop_reason: str = "") -> str:
    """Return how the last session ended."""
    outcome = state.outcome or stop_reason
    if outcome == "batches":
        return waiting_text(state)
    if not outcome and state.sessions and state.sessions[-1].number in forked_sessions(state):
        return "forked while running"
    return _OUTCOMES.get(outcome, printable(outcome)) if outcome else CRASHED


def progress_text(state: RunState) -> str:
    """Return how many trials are done, of how many if that is known."""
    trials = total_trials(state)
    return plural(state.totals.done, "trial") if trials is None else f"{state.totals.done:,} of {plural(trials, 'trial')}"


def total_trials(state: RunState) -> int | None:
    """Return how many trials a run has, including those not enqueued yet; None if unknown."""
    if state.outcome == "finished":
        return state.totals.total
    return max(state.totals.total, state.sessions.planned) if state.sessions.planned else None


def larger_limits(state: RunState) -> dict[str, float]:
    """Return a larger budget that is probably enough for the open trials of a run; empty if a larger one does not help."""
    open_trials = (total_trials(state) or state.totals.total) - state.totals.done
    return {} if state.budget is None else state.budget.larger_limits(open_trials, state.totals.done)


def next_action(state: RunState, path: Path | str, causes: "Sequence[_Cause] | None" = None) -> str:
    """Return the command to run next, and before it the edit without which the errors would occur again."""
    repair = _first_repair(state, _causes(state) if causes is None else causes)
    return f"{f'{repair.edit}, then ' if repair and repair.edit else ''}{_next_command(state, repair, path)}"


def next_command(state: RunState, path: Path | str) -> str:
    return _next_command(state, _first_repair(state, _causes(state)), path)


def _next_command(state: RunState, repair: "_Repair | None", path: Path | str) -> str:
    for number in filter(state.batches.is_rescored, state.batches.lines.open):
        prepared = state.batches[number].prepared
        is_own = state.started is not None and prepared.scorer in state.started.scorers
        model = f"{'anthropic:' if prepared.api == 'anthropic' else ''}{prepared.model}"
        cancel = " --cancel" if state.batches[number].is_lost else ""
        return f"evaljournal rescore {quote(path)} {'' if is_own else f'--judge {quote(model)} '}--batch{cancel}"
    if repair is not None:
        return _resume_command(state, path, repair.options)
    if state.outcome != "finished":
        options = ["--adopt"] if state.outcome == "same_error" else []
        options += ["--retry-failed"] if options and state.failed else []
        open_batches = [state.batches[number] for number in state.batches.lines.open]
        if open_batches and all(batch.is_lost for batch in open_batches):
            return cancel_command(state, path)
        if open_batches and _has_command(state):
            options.append("--wait")
        if state.outcome == "budget":
            limits = larger_limits(state)  # Empty if usage was not reported: then the task must be changed.
            options += [f"--budget {unit}={amount:.12g}" for unit, amount in limits.items()] or ["--adopt"]
        return _resume_command(state, path, options)
    return _resume_command(state, path, ("--retry-failed",)) if state.failed else report_command(path)


def report_command(path: Path | str) -> str:
    return f"evaljournal report {quote(path)} --open"


def cancel_command(state: RunState, path: Path | str) -> str:
    has_task = state.started is not None and state.started.task
    return f"evaljournal cancel {quote(path)}{'' if has_task else ' --task FILE.py:NAME'}"


def _has_command(state: RunState) -> bool:
    """Return whether a run is resumed from the command line: it records where its task is, or that it was replaced."""
    return state.started is None or bool(state.started.task) or state.started.is_replacement


def _resume_command(state: RunState, path: Path | str, options: Iterable[str]) -> str:
    """Return the command that resumes a run; for one started from Python, which does not record where its task is, the call."""
    started, line = state.started, " ".join(options)
    if started is None or _has_command(state):
        has_task = started is not None and started.task
        words = ["evaljournal resume", quote(path), line, "" if has_task else "--task FILE.py:NAME"]
        return " ".join(word for word in map(str.strip, words) if word)
    arguments: dict[str, list[str]] = {"resume": [""]}
    for option in line.split("--")[1:]:
        name, _, value = option.strip().partition(" ")
        arguments.setdefault(name.replace("-", "_"), []).append(value)
    texts = (f"{name}={values if name == 'budget' else values[0] or True}" for name, values in arguments.items())
    name = started.evaluation if started.evaluation.isidentifier() else "…"
    return f"run({', '.join([name, repr(str(path)), *texts])})"


@attrs.frozen
class _Repair:
    """What fixes an error, if a retry alone cannot."""

    edit: str
    """What to change before the command; empty if its options are the change."""
    options: tuple[str, ...] = ("--adopt", "--retry-failed")
    """Options of `resume`."""


@attrs.define
class _Cause:
    """Errors with one cause: raised at one line, or with messages that differ only in numbers and ids."""

    reason: str
    error: str
    """Type and message of the first one."""
    location: str
    attempts: int
    """Attempts of the first trial."""
    trials: list[str] = attrs.field(factory=list[str])
    """The first trials."""
    count: int = 0


def _causes(state: RunState) -> list[_Cause]:
    """Return the errors of trials by cause, the most frequent first."""
    causes: dict[tuple[str, ...], _Cause] = {}
    for name, trial in state.trials.items() if state.failed else ():
        if trial.stage == "failed" and (history := trial.retry_history) is not None:
            reason, location = history.reason, history.location
            key = (reason, history.error_type, location)
            if not location:  # What fixes an error may depend on its status.
                key = (reason, without_variable_parts(history.error), str(NOT_FOUND.search(history.error) is not None))
            if key not in causes:
                causes[key] = _Cause(reason, history.error, location, trial.attempts)
            cause = causes[key]
            cause.count += 1
            if cause.count <= _MAX_NAMES:
                cause.trials.append(name)
    return sorted(causes.values(), key=lambda cause: -cause.count)


def _first_repair(state: RunState, causes: Sequence[_Cause]) -> _Repair | None:
    is_last_problem = state.outcome in {"finished", "same_error", "failed_fast"}
    return _repair(state, causes[0]) if causes and is_last_problem else None


def _repair(state: RunState, cause: _Cause) -> _Repair | None:
    timeout, task = state.settings.get("timeout"), state.started.task if state.started else ""
    if cause.reason == "timed_out" and isinstance(timeout, int | float):
        return _Repair("", ("--retry-failed", f"--timeout {2 * timeout:g}"))
    if cause.reason == "unserializable":
        return _Repair(_JSON_VALUES)
    if cause.reason != "fatal":
        return None

    truncation = _TRUNCATION.match(cause.error) if not cause.location else None
    if truncation is None and not NOT_FOUND.search(cause.error):
        fix = f"fix {printable(cause.location, 200)}" if cause.location else ""
        text = _AFTER_MISSES if cause.error.startswith(_MISS) else fix
        return _Repair(text) if text else None

    edit = "correct the model name or the URL" if truncation is None else ADVICE[truncation[1]]
    if (keys := _definition_keys(task)) is not None:
        names = ("max-tokens",) if truncation is not None else ("chat", "endpoint")
        assignments = [_assignment(keys, name) for name in names if name in keys or truncation is not None]
        return _Repair(edit, ("--adopt", "--retry-failed", *assignments[:1]))
    place = cause.location or task
    return _Repair(f"{edit} in {printable(place, 200)}" if place else edit)


def _definition_keys(task: str) -> dict[str, Any] | None:
    """Return the keys of an evaluation without code, as its run has recorded them; None for another evaluation."""
    try:
        fields = json.loads(task) if task.startswith("{") else None
        return None if fields is None else {**fields.get("file", {}), **fields.get("options", {})}
    except (ValueError, TypeError, AttributeError, RecursionError):  # The journal may be foreign.
        return None


def _assignment(keys: Mapping[str, Any], name: str) -> str:
    """Return the option of `resume` and `rescore` that sets a key, with its recorded value to be edited."""
    values = keys.get(name)
    value = values[0] if isinstance(values, list) and len(values) == 1 else values
    is_copied = isinstance(value, str) and value.isprintable() and 0 < len(value) <= _MAX_COMMAND
    return f"-s {shlex.quote(f'{name}={value}') if is_copied else f'{name}=…'}"


def unscored_lines(counts: Mapping[str, int], path: Path | str) -> Iterator[str]:
    """Yield how many outputs each scorer has not scored, and the command that scores them."""
    if counts:
        parts = (f"{plural(count, 'output')} not scored by {printable(scorer, 24)}" for scorer, count in counts.items())
        yield f"{', '.join(parts)}: evaljournal rescore {quote(path)}"


def _score_lines(state: RunState, summary: Summary) -> Iterator[str]:
    if state.variants:
        yield from summary_text.variant_lines(state)
        yield from summary_text.best_variant_lines(state)
    else:
        pairwise = {name for scorer in summary.pairwise for name in (scorer, *summary.pairwise[scorer].orders)}
        scores = {scorer: score for scorer, score in summary.scores.items() if scorer not in pairwise or score.failed}
        yield from summary_text.score_lines(scores, summary.trials)
        yield from summary_text.pass_lines(summary.scores)
    yield from summary_text.pairwise_lines(summary)


def _figure_lines(state: RunState, summary: Summary, *, verbose: bool) -> Iterator[str]:
    parts = [summary_text.trials_text(state)]
    if state.sessions:
        sessions = f" in {plural(len(state.sessions), 'session')}" if len(state.sessions) > 1 else ""
        shards = f", merged from {plural(len(state.sessions.merged.shards), 'shard')}" if state.sessions.merged else ""
        parts.append(f"took {duration(state.elapsed)}{sessions}{shards}")
    yield " · ".join(parts)
    if waits := summary_text.waits_text(state):
        yield waits
    if busy_slots := busy_slots_text(state):
        yield busy_slots
    if summary.latency.count:
        quantiles = () if verbose else ("p50", "p95")
        yield summary_text.latency_text(summary.latency, plural(summary.latency.count, "output"), *quantiles)
    if not verbose and (cost := summary_text.cost_text(summary.usage, summary.unpriced_models)):
        yield cost
    if summary.replayed is not None:
        yield summary_text.replayed_text(summary.replayed)
    yield from summary_text.substitution_lines(state)
    if summary.steps is not None and (summary.replayed is None or summary.steps.completed or summary.steps.failed):
        yield summary_text.steps_text(summary.steps)
    yield from summary_text.missing_step_lines(state)
    yield from summary_text.blocking_call_lines(state)
    yield from summary_text.answer_lines(state, verbose=verbose)
    yield from summary.warnings
    yield from budget_lines(state)
    yield from worker_lines(state.workers) if verbose else ended_workers(state.workers)

    if verbose and (usage := summary_text.billed_usage(summary.usage)):
        unproductive = summary_text.billed_usage(summary.usage_without_output)
        part = f"; of this {summary_text.usage_text(unproductive, {})} by attempts without an output" if unproductive else ""
        yield f"{summary_text.usage_text(usage, summary.unpriced_models)}{part}"


def _calls_in_flight(attempts: int) -> str:
    """Return the words for the calls of attempts with steps, of which several can be in flight."""
    return f"{'its' if attempts == 1 else 'their'} calls in flight"


def _repeated_calls(state: RunState) -> str:
    """Return what may have been paid for twice; without steps, an attempt may have made any number of calls."""
    repeated = state.trials.attempts.repeated
    if not state.steps.completed:
        return f"up to {plural(repeated, 'attempt')}"
    steps = state.trials.attempts.repeated_calls - repeated
    calls = _calls_in_flight(repeated)
    return f"{calls} and {plural(steps, 'completed step')}" if steps else calls


def _events(state: RunState, detail: str) -> Iterator[str]:
    attempts, errors = state.trials.attempts, state.sessions.errors
    yield from summary_text.adopted_lines(state)

    if attempts.interrupted:
        verb, subject = ("was", "it") if attempts.interrupted == 1 else ("were", "they")
        if state.steps.completed:
            subject = _calls_in_flight(attempts.interrupted)
        consequence = f"; if repeated, {subject} may be paid for twice"
        if attempts.repeated:
            count = "" if attempts.repeated == attempts.interrupted else f"{attempts.repeated:,} "
            consequence = f" and {count}repeated; {_repeated_calls(state)} may have been paid for twice"
        yield f"{plural(attempts.interrupted, 'attempt')} {verb} interrupted{consequence}"

    # Without variants, the line of a score has its errors.
    shown_scorers = set() if state.variants else {scorer for scorer, tally in state.scores.items() if tally.failed}
    scorer_errors = {scorer: error for scorer, error in errors.scorer_errors.items() if scorer not in shown_scorers}
    problem = {"unauthorized": "unauthorized", "quota": "quota used up"}.get(state.outcome)
    if problem is not None and (stopping_scorer := errors.stopping_scorer) is not None:
        message = f": {one_line(stopping_scorer.message, 200)}" if stopping_scorer.message not in detail else ""
        yield f"scorer {printable(stopping_scorer.scorer, 24)}: {problem}{message}"
        scorer_errors.pop(stopping_scorer.scorer, None)
    yield from summary_text.scorer_error_lines(scorer_errors)

    error = errors.last_error
    is_last = error is not None and error.outputs == attempts.outputs and state.outcome != "finished"
    if error is not None and is_last and error.message not in detail:
        yield f"no output since the last error{', ' if error.consecutive > 1 else ': '}{summary_text.error_text(error)}"
    if in_flight := sum(attempt.slot != NO_SLOT for attempt in state.trials.running.values()):
        reusable_steps = _reusable_steps(state)
        action = f"continued after {plural(reusable_steps, 'completed step')}" if reusable_steps else "repeated"
        yield f"{plural(in_flight, 'attempt')} in flight at the end, to be {action} on resume"
    if crash_count := crashes(state):
        yield f"{crash_count:,} of {plural(len(state.sessions), 'session')} {CRASHED}"
    if attempts.late_returns:
        yield f"{plural(attempts.late_returns, 'attempt')} returned late; results discarded"
    if recoveries := state.sessions.repairs["recovered"]:
        yield f"the journal was repaired {plural(recoveries, 'time')} after a crash; unfinished bytes are in torn/"


def _reusable_steps(state: RunState) -> int:
    """Return how many completed steps of the attempts in flight are reused when the run is resumed."""
    if not keeps_steps(state.settings.get("reuse_steps", ""), "interrupted"):
        return 0
    return sum(len(steps.steps) for trial, steps in state.steps.open.items() if trial in state.trials.running)


def _error_lines(state: RunState, causes: Sequence[_Cause], path: Path | str) -> Iterator[str]:
    if not causes:
        return
    yield f"{plural(state.failed, 'error')}:"
    for cause in causes[:_MAX_CAUSES]:
        notes = [reason_text(cause.reason), *([plural(cause.attempts, "attempt")] if cause.count == 1 else [])]
        # After an interruption, the last error is that of an earlier attempt.
        text = notes.pop(0) if cause.reason == "ambiguous" else one_line(cause.error, 200)
        details = f"{text} ({', '.join(notes)})" if notes else text
        names = ", ".join([*(printable(name, 40) for name in cause.trials), *(["…"] if cause.count > _MAX_NAMES else [])])
        yield f"  {names}: {details}" if cause.count == 1 else f"  {cause.count:,} × {details}: {names}"
        if (repair := _repair(state, cause)) is not None and repair.edit:
            yield f"    {repair.edit}"
    if len(causes) > _MAX_CAUSES:
        more = sum(cause.count for cause in causes[_MAX_CAUSES:])
        yield f"  and {more:,} more: evaljournal show {quote(path)} --errors"
    if state.outcome == "finished" and state.completed:  # Otherwise the next command is this one.
        repairs = [repair for cause in causes if (repair := _repair(state, cause)) is not None]
        options = dict.fromkeys(option for repair in repairs for option in repair.options) or ("--retry-failed",)
        yield f"  retry: {_resume_command(state, path, options)}"


def _rescore_lines(state: RunState, path: Path | str) -> Iterator[str]:
    rescore = f"evaljournal rescore {quote(path)}"
    task, scorers = (state.started.task, state.started.scorers) if state.started else ("", {})
    failed_scorers = [scorer for scorer, tally in state.scores.items() if tally.failed and scorer in scorers and task]
    if state.outcome == "finished" and failed_scorers:
        last_errors = state.sessions.errors.scorer_errors
        errors = (last_errors[scorer].message for scorer in failed_scorers if scorer in last_errors)
        if (keys := _definition_keys(task)) is not None and any(map(NOT_FOUND.search, errors)):
            options = f" {_assignment(keys, 'judge')}"
            yield f"correct the judge's model or URL, then score the outputs without a score: {rescore}{options}"
        else:
            yield f"after fixing the scorer, score the outputs without a score: {rescore}"
    scorer_names = [printable(scorer, 24) for scorer, tally in state.scores.items() if tally.from_older_version]
    if scorer_names:
        yield f"re-score everything with one version of {', '.join(scorer_names)}: {rescore}"
