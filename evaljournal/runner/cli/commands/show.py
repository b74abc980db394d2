"""The command `evaljournal show`."""

import itertools
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import attrs
import click

from evaljournal.journal import Blob, JournalError
from evaljournal.journal.ownership import is_own_run
from evaljournal.replay import LoadedRun, RunState, Span, TrialState
from evaljournal.replay.render.failing import value_text, value_texts
from evaljournal.replay.render.phrases import score_value_text, waited_text
from evaljournal.replay.render.trajectory import need_text, not_reused_text, trajectory_lines
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.review.labels import Label, labels_by_trial, read_review
from evaljournal.replay.runs.loaded_run import TrialValues, read_values, reject_invalid_record
from evaljournal.replay.runs.trial import AttemptDetails, ScoreDetails, ScorerCallDetails, TrialDetails
from evaljournal.replay.runs.waits import Wait
from evaljournal.replay.state.definition import definition_lines, definition_of_run
from evaljournal.replay.state.sessions import SessionState
from evaljournal.replay.state.steps import NOT_REUSED
from evaljournal.replay.state.workspaces import CHANGES, recorded_changes
from evaljournal.replay.text import (
    as_lines,
    as_words,
    cell_width,
    duration,
    escape_controls,
    pad,
    plural,
    printable,
    reason_text,
    shorten,
    stage_text,
    wrap_cells,
)
from evaljournal.runner.cli.arguments import TrialType, run_and_trial
from evaljournal.runner.cli.terminal.display import exit_if_damaged, open_run, print_json, print_table
from evaljournal.runner.cli.terminal.errors import render
from evaljournal.runner.cli.terminal.output import echo, line_width
from evaljournal.runner.errors import UsageError, suggest
from evaljournal.runner.steps.keys import NO_RULES, KeyRules, endpoint_of_step, first_difference, without_identity

_MAX_DIFFERENCE = 200

_MAX_LINES: Final = 40
"""Maximum lines of a value; `--json` has all."""
_MAX_LINE_LENGTH: Final = 500
_MAX_TEXT: Final = 40
"""Characters of an output or input in the list, unless it is printed on a terminal."""
_MIN_TEXT: Final = 12
_MIN_COLUMN: Final = 24
"""Characters of a column in which an output can be read."""
_INDENT: Final = " " * 10
_TRACEBACK_LINES: Final = 12
"""Last lines of a traceback that are shown."""


def recorded_rules(path: Path, settings: Mapping[str, Any]) -> KeyRules:
    """Return what the keys of a run leave out. A pattern of a run that the user has not written is not executed."""
    patterns = settings.get("key_without")
    with suppress(UsageError, JournalError):
        if isinstance(patterns, list) and patterns and is_own_run(path):
            return KeyRules.parse(map(str, patterns))
    return NO_RULES


def difference_of(attempt: AttemptDetails, rules: KeyRules) -> tuple[str, str] | None:
    """Return where the request of the step at which an attempt diverged differs from the recorded one; None if nowhere."""
    recorded, asked = attempt.recorded_step, attempt.diverged_step
    if recorded is None or asked is None:
        return None
    if recorded.name != asked.name:
        return printable(recorded.name, _MAX_DIFFERENCE), printable(asked.name, _MAX_TEXT)
    return first_difference(*(rules.request_text(step.name, step.input) for step in (recorded, asked)))


def comparison_lines(attempt: AttemptDetails, rules: KeyRules) -> Iterator[str]:
    omitted = {name: None for step in attempt.steps for name in without_identity(endpoint_of_step(step.name), step.input)[1]}
    texts = [*omitted, *(f"text that matches {pattern.pattern}" for pattern in rules.patterns)]
    if texts:
        yield f"compared without: {printable(', '.join(texts), _MAX_DIFFERENCE)}"
    if (difference := difference_of(attempt, rules)) is not None:
        yield f"recorded: {printable(difference[0], _MAX_DIFFERENCE)}"
        yield f"asked:    {printable(difference[1], _MAX_DIFFERENCE)}"


@click.command()
@click.argument("run", type=TrialType(), required=False, metavar="[RUN]")
@click.argument("trial", type=TrialType(), required=False)
@click.option("--at", "seq", type=int, metavar="SEQ", help="Show the state as of record SEQ (default: the last).")
@click.option(
    "--steps",
    type=click.Choice(["short", "full"]),
    default="short",
    help="short: one line per step; full: also its messages and tool calls (default: short).",
)
@click.option("--failing", is_flag=True, help="Only trials with a score that fails.")
@click.option("--errors", is_flag=True, help="Only trials with an error, or with an error of a scorer.")
@click.option("--declined", is_flag=True, help="Only trials whose output is a declined answer.")
@click.option("--truncated", is_flag=True, help="Only trials whose output is a truncated answer.")
@click.option(
    "--score",
    "conditions",
    multiple=True,
    metavar="NAME=VALUE",
    help="Only trials with this score: exact=fail, tone=polite, closeness=0.5; repeatable.",
)
@click.option("--definition", is_flag=True, help="Show the definition of the run: prompts, parameters, URLs, source.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def show(  # noqa: PLR0917  # the options
    run: str | None,
    trial: str | None,
    seq: int | None,
    steps: str,
    failing: bool,
    errors: bool,
    declined: bool,
    truncated: bool,
    conditions: Sequence[str],
    definition: bool,
    as_json: bool,
) -> None:
    """Show one TRIAL in full: scores, output, expected output, input, and every attempt with its waits and steps.

    TRIAL is the id of a trial, otherwise the name of a case; if that has several trials, their outputs are shown side by side.
    Without TRIAL, all trials are listed with their scores, outputs and expected outputs. A damaged run is shown up to the
    damage, with exit code 4.

    \b
    evaljournal show --failing
    evaljournal show peru
    evaljournal show peru --steps full
    evaljournal show runs/capitals/0001 --score exact=fail --json | jq .trials
    evaljournal show runs/capitals/0001 --definition
    """
    path, trial = run_and_trial(run, trial)
    view = open_run(path, seq)
    problem: JournalError | None = view.problem

    matching_trials = list(view.state.trials) if trial is None else _matching_trials(view, trial)
    outcomes = {outcome for outcome, is_shown in (("declined", declined), ("truncated", truncated)) if is_shown}
    is_filtered = bool(failing or errors or outcomes or conditions)

    if trial is not None and not matching_trials:
        exit_if_damaged(problem)  # The trial may be after the damage.
        position = "" if seq is None else f" at record {seq:,}"
        raise UsageError(
            f"{path} has no trial {trial!r}{position}{suggest(trial, view.state.trials)}",
            hint=f"`evaljournal show {path}` lists its trials",
        )

    if definition:
        _print_definition(view, as_json=as_json)
    elif trial is None or is_filtered or len(matching_trials) > 1:
        names = _filter_trials(
            view.state, matching_trials, failing=failing, errors=errors, outcomes=outcomes, conditions=conditions
        )
        _print_list(view, names, case=None if is_filtered else trial, failing=failing, as_json=as_json)
    else:
        trial_details = view.trial(matching_trials[0])
        problem = trial_details.problem or problem
        try:
            labels = labels_by_trial(view, read_review(path)).get(trial_details.trial, [])
        except JournalError as exc:  # The run itself can be shown.
            labels = []
            echo(f"no labels: {render(exc)}", err=True)
        rules = recorded_rules(path, view.state.settings)
        if as_json:
            version = view.state.sessions.task_versions.number(view.state.trials[trial_details.trial])
            label_fields = [view_json(label) for label in labels]
            _print_json(path, problem, **_trial_json(trial_details, rules), labels=label_fields, task_version=version)
        else:
            with reject_invalid_record(path, lambda: trial_details.seq):
                echo("\n".join(_trial_lines(trial_details, view.state, labels, rules, full=steps == "full")))

    exit_if_damaged(problem, quiet=as_json)


def _filter_trials(
    state: RunState,
    names: Iterable[str],
    *,
    failing: bool,
    errors: bool,
    outcomes: Collection[str],
    conditions: Sequence[str],
) -> list[str]:
    """Return the trials that fail, have an error or one of these outcomes, if asked for, and that meet all conditions."""
    scores = [condition.partition("=")[::2] for condition in conditions]
    for scorer, value in scores:
        if scorer not in state.scores:
            raise UsageError(f"the run has no score {scorer!r}{suggest(scorer, state.scores)}")
        if not value:
            raise UsageError(f"--score {scorer} needs a value: {scorer}=fail")

    def is_selected(trial: TrialState) -> bool:
        has_error = trial.stage == "failed" or bool(trial.unscored)
        has_problem = (failing and bool(trial.failing_scorers)) or (errors and has_error) or trial.answer_outcome in outcomes
        latest = [(trial.score(scorer), value) for scorer, value in scores]
        return (has_problem or not (failing or errors or outcomes)) and all(
            score is not None and _equals(score[1], value) for score, value in latest
        )

    return [name for name in names if is_selected(state.trials[name])]


def _equals(score: float | str, text: str) -> bool:
    """Return whether a score has this value: `pass` or `fail`, a number (1 is a pass, 0 a fail), a label."""
    if isinstance(score, str):
        return score == text
    if isinstance(score, bool) and text.casefold() in (("pass", "true") if score else ("fail", "false")):
        return True
    try:
        return score == float(text)
    except ValueError:
        return False


def _print_json(path: Path, problem: JournalError | None, **fields: Any) -> None:
    print_json({"path": str(path), "problem": None if problem is None else str(problem), **fields})


def _print_definition(view: LoadedRun, *, as_json: bool) -> None:
    """Show the definition of the run, with adopted changes applied."""
    run_started = view.state.started
    recorded_definition = None if run_started is None else definition_of_run(run_started)
    if as_json:
        _print_json(view.path, view.problem, definition=recorded_definition)
    else:
        echo("\n".join(definition_lines(recorded_definition)) or "this run has no recorded definition")


def _matching_trials(view: LoadedRun, trial: str) -> list[str]:
    """Return the trial with this id, otherwise the trials of the case with this name."""
    trials = view.state.trials
    return [trial] if trial in trials else [name for name, state in trials.items() if state.case == trial]


def _print_list(view: LoadedRun, names: Sequence[str], *, case: str | None, failing: bool, as_json: bool) -> None:
    """List trials; if they are those of one case, show their outputs side by side."""
    state = view.state
    rows = read_values(view.path, state.trials, names)
    if as_json:
        _print_json(view.path, view.problem, trials=[_entry(state, values) for values in rows])
    elif not names:
        can_fail = not state.scores or any(tally.booleans for tally in state.scores.values())
        note = "; no score of this run passes or fails, list all: evaljournal show" if failing and not can_fail else ""
        echo(f"no trial matches{note}" if state.trials else "the run has no trials yet", err=True)
    elif case is not None:
        echo("\n".join(_case_lines(state, sorted(rows, key=lambda values: state.trials[values.trial].repeat))))
    else:
        _print_trials(state, names, rows)


def _print_trials(state: RunState, trials: Sequence[str], rows: Iterable[TrialValues]) -> None:
    scorers, has_versions = list(state.scores), state.sessions.task_versions.count > 1
    max_width = max(_MIN_TEXT, line_width()) if sys.stdout.isatty() else _MAX_TEXT
    texts = [_texts(state.trials[values.trial], values, max_width) for values in rows]
    has_expected = any(expected is not None for _, expected, _ in texts)

    names = [printable(scorer, 24) for scorer in scorers]
    head = ["TRIAL", *names, "OUTPUT", *(["EXPECTED"] if has_expected else []), "INPUT", "STATUS", "ATTEMPTS", "LATENCY"]

    cells = [_cells(name, state.trials[name], scorers) for name in trials]
    width = _MAX_TEXT
    if sys.stdout.isatty():
        fixed = [max(map(cell_width, column)) for column in zip(("TRIAL", *names, *head[-3:]), *cells, strict=True)]
        width = max(_MIN_TEXT, (line_width() - sum(fixed) - 2 * (len(head) - 1)) // (len(head) - len(fixed)))

    table = [[*head, *(["VERSION"] if has_versions else [])]]
    for name, row, (output, expected, input_text) in zip(trials, cells, texts, strict=True):
        columns = [output, *([expected or "–"] if has_expected else []), input_text]
        row[-3:-3] = [shorten(text, width) for text in columns]
        table.append([*row, *([str(state.sessions.task_versions.number(state.trials[name]) or "–")] if has_versions else [])])
    print_table(table)


def _texts(trial: TrialState, values: TrialValues, width: int) -> tuple[str, str | None, str]:
    """Return the output, the expected output (None without one) and the input of a trial, each in at most `width` characters.

    The values of all trials may be larger than the memory.
    """
    output, expected = value_texts(values.output, values.expected)
    expected_text = None if values.expected is None else shorten(expected, width)
    return shorten(_output_text(trial, output), width), expected_text, shorten(value_text(values.input), width)


def _cells(name: str, trial: TrialState, scorers: Sequence[str]) -> list[str]:
    """Return the cells of a trial that are not shortened: its id, scores, status, attempts and latency."""
    latency = "–" if trial.latency is None else duration(trial.latency)
    scores = [_cell(trial, scorer) for scorer in scorers]
    reason = f" ({reason_text(trial.reason)})" if trial.stage == "failed" and trial.reason else ""
    return [printable(name, 60), *scores, f"{stage_text(trial.stage)}{reason}", str(trial.attempts), latency]


def _output_text(trial: TrialState, output: str) -> str:
    if trial.stage == "failed":
        return trial.error or reason_text(trial.reason)
    return "–" if trial.output_location is None else output


def _case_lines(state: RunState, rows: Sequence[TrialValues]) -> Iterator[str]:
    """Yield the input and the expected output of a case, and the outputs of its variants side by side, repeat by repeat."""
    first, scorers, width = rows[0], list(state.scores), line_width()
    yield f"{printable(state.trials[first.trial].case, _MAX_LINE_LENGTH)}  {plural(len(rows), 'trial')}"
    yield from _value_lines("input", first.input)
    yield from _value_lines("expected", first.expected) if first.expected is not None else ()

    variants = len({state.trials[values.trial].variant for values in rows})
    columns = max(1, min(variants if variants > 1 else len(rows), width // _MIN_COLUMN))
    column_width = (width - 2 * (columns - 1)) // columns
    for start in range(0, len(rows), columns):
        blocks = [
            [*_column_lines(state.trials[values.trial], values, scorers, column_width)]
            for values in rows[start : start + columns]
        ]
        yield ""
        for line in itertools.zip_longest(*blocks, fillvalue=""):
            yield "  ".join(pad(cell, column_width) for cell in line).rstrip()


def _column_lines(trial: TrialState, values: TrialValues, scorers: Sequence[str], width: int) -> Iterator[str]:
    yield shorten(values.trial, width)
    yield from (shorten(f"{scorer} {_cell(trial, scorer)}", width) for scorer in scorers)
    text = _output_text(trial, value_text(values.output))
    lines = [line for row in text.splitlines() for line in wrap_cells(escape_controls(row.expandtabs()), width) or [""]]
    yield from lines[:_MAX_LINES]
    if len(lines) > _MAX_LINES:
        yield f"… {plural(len(lines) - _MAX_LINES, 'more line')}"


def _entry(state: RunState, values: TrialValues) -> dict[str, Any]:
    trial = state.trials[values.trial]
    return {
        "trial": values.trial,
        "case": trial.case,
        "variant": trial.variant or None,
        "repeat": trial.repeat,
        "input": _to_json(None, None, values.input),
        "expected": _to_json(None, None, values.expected),
        "output": _to_json(None, None, values.output),
        "stage": trial.stage,
        "reason": trial.reason or None,
        "error": trial.error or None,
        "attempts": trial.attempts,
        "latency": trial.latency,
        "declined": trial.answer_outcome == "declined",
        "truncated": trial.answer_outcome == "truncated",
        "excluded": trial.is_excluded,
        "scores": {scorer: value for scorer, (_, value) in trial.scores.items()},
        "unscored": trial.unscored,
        "task_version": state.sessions.task_versions.number(trial),
    }


def _cell(trial: TrialState, scorer: str) -> str:
    if scorer not in trial.scores:
        return "error" if scorer in trial.unscored else "excluded" if trial.is_excluded else "–"
    return score_value_text(trial.scores[scorer][1])


def _trial_json(trial_details: TrialDetails, rules: KeyRules) -> dict[str, Any]:
    details = attrs.asdict(
        trial_details, filter=attrs.filters.exclude("problem", "row", "recorded_step"), value_serializer=_to_json
    )
    for attempt, attempt_details in zip(details["attempts"], trial_details.attempts, strict=True):
        span, fields = attempt.pop("span"), dict(attempt)
        del span["trial"], fields["output"]
        for step, step_details in zip(fields["steps"], attempt_details.steps, strict=True):
            step["outcome"] = step_details.outcome
        reuse: dict[str, Any] = {"reused_steps": attempt_details.reused_steps, "diverged_at": attempt_details.diverged_at}
        if (difference := difference_of(attempt_details, rules)) is not None:
            reuse["difference"] = {"recorded": difference[0], "asked": difference[1]}
        attempt.clear()
        attempt |= {**span, "run_time": span["end"] - span["start"], **reuse, **fields}
    return details


def _to_json(_: object, __: object, value: Any) -> Any:
    """Convert a blob that could not be loaded to a reference, and a span to a dict."""
    if isinstance(value, Blob):
        return {"blob": value.sha256, "bytes": value.bytes}
    return value._asdict() if isinstance(value, Span) else value


def _answer_lines(trial: TrialDetails) -> Iterator[str]:
    """Yield how an answer ended, if it is not complete, and which model gave it: `declined (excluded), served by small-1`."""
    outcome = "declined" if trial.declined else "truncated" if trial.truncated else ""
    excluded = " (excluded)" if trial.excluded else ""
    served = f"served by {printable(trial.served_model, _MAX_TEXT)}" if trial.served_model else ""
    if answer := ", ".join(filter(None, (f"{outcome}{excluded}", served))):
        yield f"{'answer':<{len(_INDENT)}}{answer}"


def _trial_lines(
    trial_details: TrialDetails, state: RunState, labels: Sequence[Label], rules: KeyRules, *, full: bool
) -> Iterator[str]:
    times, sessions = trial_details.times, state.sessions
    reason = f" ({reason_text(trial_details.reason)})" if trial_details.reason else ""
    attempts = plural(len(trial_details.attempts), "attempt")
    count = sum(len(attempt.steps) - attempt.reused_steps for attempt in trial_details.attempts)
    steps = f", {plural(count, 'step')}" if count else ""
    yield f"{printable(trial_details.trial, _MAX_LINE_LENGTH)}  {stage_text(trial_details.stage)}{reason}, {attempts}{steps}"

    yield from _batch_lines(trial_details.trial, state)
    yield from _answer_lines(trial_details)
    for score in trial_details.scores.values():
        yield from _score_lines(score)
    yield from _label_lines(labels)

    if any(attempt.span.outcome == "succeeded" for attempt in trial_details.attempts):
        yield from _value_lines("output", trial_details.output)
    for name, value in (
        ("expected", trial_details.expected),
        ("input", trial_details.input),
        ("metadata", trial_details.metadata),
    ):
        if value is not None or name == "input":
            yield from _value_lines(name, value)

    if state.sessions.task_versions.count > 1 and (
        version := state.sessions.task_versions.number(state.trials[trial_details.trial])
    ):
        changes = [(session, [change for change in session.adopted if _is_of_task(change)]) for session in sessions]
        adoptions = "; ".join(f"session {session.number} adopted {', '.join(names)}" for session, names in changes if names)
        yield from _value_lines("version", f"{version} of {state.sessions.task_versions.count} of the task; {adoptions}")

    seconds = {
        "waited": times.queue_time,
        "backoff": times.backoff_time,
        "attempts": times.run_time,
        "scoring": times.scoring_time,
        "latency": trial_details.latency,
        "time to completion": trial_details.time_to_completion,
    }
    parts = [f"queued at {printable(trial_details.enqueued_at)}"]
    yield from _value_lines(
        "times", " · ".join([*parts, *(f"{name} {duration(value)}" for name, value in seconds.items() if value)])
    )

    request = None
    for attempt in trial_details.attempts:
        session = _session_text(attempt.span.session, sessions)
        new_request = None if attempt.request == request else attempt.request
        yield from _attempt_lines(attempt, session, new_request, rules, full=full)
        request = attempt.request

    for call in trial_details.scorer_calls:
        if call.outcome != "succeeded" or call.waits:
            yield from _call_lines(call, _session_text(call.session, sessions))
    for score in trial_details.superseded_scores:
        yield from _score_lines(score, "superseded")


def _batch_lines(trial: str, state: RunState) -> Iterator[str]:
    for scorer in dict.fromkeys(batch.scorer for batch in state.batches.lines.open.values()):
        if (place := state.batches.lines.line_of(trial, scorer)) is not None:
            number, line = place
            judge = f" of {printable(scorer, 24)}" if scorer else ""
            status = printable(state.batches[number].state, 24).replace("_", " ")
            yield f"{'batch':<{len(_INDENT)}}waiting for line {line:,} of batch {number:,}{judge} ({status})"


def _is_of_task(change: str) -> bool:
    """Return whether an adopted change is one of the task: of its code, its parameters or a file."""
    return change not in {"name", "cases"} and not change.startswith(("scorer ", "variant "))


def _session_text(number: int, sessions: Sequence[SessionState]) -> str:
    """Return `session 3`, in a merged run with its shard."""
    shard = sessions[number - 1].shard if number <= len(sessions) else ""
    return f"session {number}{f' (shard {shard})' if shard else ''}"


def _attempt_lines(attempt: AttemptDetails, session: str, new_request: Any, rules: KeyRules, *, full: bool) -> Iterator[str]:
    span = attempt.span
    waits = [f" · {_waited_text(span.queue_time, attempt.waits)}"] if span.queue_time else []
    waits += [f" · backoff {duration(span.backoff_time)}"] if span.backoff_time else []

    outcome = as_words(span.outcome) or "in flight"
    detail = f": {printable(attempt.detail)}" if attempt.detail else ""
    reason = f" ({as_words(attempt.reason)}{detail})" if attempt.reason else ""
    worker = f" · worker {printable(attempt.worker)}" if attempt.worker else ""
    limit = f" of {duration(attempt.timeout)}" if attempt.timeout is not None else ""
    needs = f" · {text}" if (text := need_text(attempt.need)) else ""

    place, after = f"slot {span.slot}", f" after {duration(span.end - span.start)}{limit}"
    if span.batch:
        place, after = f"batch {span.batch:,}, line {span.line:,}", ""
    yield (
        f"attempt {span.attempt}  {outcome}{reason}{after}  "
        f"{place}{worker} · {session} · "
        f"seq {span.seq:,}{f'–{span.end_seq:,}' if span.end_seq else ''}{''.join(waits)}{needs}"
    )

    if new_request is not None:
        yield from _value_lines("  request", new_request)
    comparison = comparison_lines(attempt, rules)
    yield from (f"{_INDENT}{line}" for line in trajectory_lines(attempt, full=full, comparison=comparison))

    if attempt.category not in {"", "timed_out", "interrupted"}:
        yield from _value_lines("", f"{attempt.error}: {attempt.message}")
        yield from _value_lines("", "\n".join(attempt.traceback.splitlines()[-_TRACEBACK_LINES:])) if attempt.traceback else ()
    if attempt.retry_after is not None:
        yield f"{_INDENT}Retry-After: {duration(attempt.retry_after)}"
    if attempt.usage is not None:
        yield from _value_lines("", f"usage {printable(attempt.usage)}")

    yield from _note_lines(attempt)
    if attempt.late_outcome:
        yield f"{_INDENT}returned late ({printable(attempt.late_outcome)}); result discarded"
    if attempt.retry_delay is not None:
        yield f"{_INDENT}retry in {duration(attempt.retry_delay)}: {as_words(attempt.retry_reason)}"


def _note_lines(attempt: AttemptDetails) -> Iterator[str]:
    for is_mapping, notes in itertools.groupby(attempt.notes, lambda note: isinstance(note[1], Mapping)):
        if not is_mapping:
            yield from _value_lines("", " · ".join(f"{name} {printable(value)}" for name, value in notes))
            continue
        for name, value in notes:  # A judge's prompt, reply and usage, for example.
            if name == NOT_REUSED:
                yield f"{_INDENT}{not_reused_text(value)}"
            elif name == CHANGES:
                yield from _change_lines(value)
            else:
                yield from _value_lines("", f"{name}: {' · '.join(f'{key} {printable(item)}' for key, item in value.items())}")


def _change_lines(value: Mapping[str, Any]) -> Iterator[str]:
    files, diff = recorded_changes(value)
    if files:
        yield from _value_lines("changes", "\n".join(f"{file['change']} {printable(file['path'])}" for file in files))
    if diff:
        yield from _value_lines("diff", diff)
    if missing := [f"{as_words(name)} {printable(item)}" for name, item in value.items() if name not in {"files", "diff"}]:
        yield from _value_lines("", " · ".join(missing))


def _waited_text(seconds: float, waits: Sequence[Wait]) -> str:
    """Return how long a start was delayed, and the reason of the longest wait."""
    return waited_text(seconds, waits[0].text if waits else "")


def _call_lines(call: ScorerCallDetails, session: str) -> Iterator[str]:
    outcome = as_words(call.outcome) or "in flight"
    elapsed_text = "" if call.elapsed is None else f" after {duration(call.elapsed)}"
    wait_seconds = sum(wait.seconds for wait in call.waits)
    waits = f" · {_waited_text(wait_seconds, call.waits)}" if wait_seconds else ""
    yield f"call {call.call}    {printable(call.scorer, 24)} {outcome}{elapsed_text}  {session} · seq {call.seq:,}{waits}"
    if call.error:
        yield from _value_lines("", f"{call.error}: {call.message}")
    if call.retry_after is not None:
        yield f"{_INDENT}Retry-After: {duration(call.retry_after)}"
    if call.retry_delay is not None:
        yield f"{_INDENT}retry in {duration(call.retry_delay)}"


def _label_lines(labels: Iterable[Label]) -> Iterator[str]:
    for label in labels:
        origin = f", carried over from run {label.carried_from}" if label.carried_from else ""
        note = f"  {label.note}" if label.note else ""
        yield from _value_lines("label", f"{label.name} {score_value_text(label.value)} by {label.reviewer}{origin}{note}")


def _score_lines(details: ScoreDetails, label: str = "") -> Iterator[str]:
    suffix = f"  ({label})" if label else ""
    if details.value is None:
        yield from _value_lines("score", f"{details.scorer} error: {details.error}: {details.message}{suffix}")
    else:
        reason = f"  {details.reason}" if details.reason else ""
        yield from _value_lines("score", f"{details.scorer} {score_value_text(details.value)}{reason}{suffix}")


def _value_lines(label: str, value: Any) -> Iterator[str]:
    """Yield the lines of a value, without control characters."""
    text = f"(missing blob of {value.bytes:,} bytes)" if isinstance(value, Blob) else as_lines(value, _MAX_LINE_LENGTH)
    lines = text.splitlines() or [""]
    for index, line in enumerate(lines[:_MAX_LINES]):
        yield f"{'' if index else label:<{len(_INDENT)}}{printable(line.expandtabs(), _MAX_LINE_LENGTH)}".rstrip()
    if len(lines) > _MAX_LINES:
        yield f"{_INDENT}… {plural(len(lines) - _MAX_LINES, 'more line')}; --json has all"
