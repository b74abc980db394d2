"""The summary and the exit code of a suite, after it ran or at any later time."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from evaljournal.replay import RunState
from evaljournal.replay.render.ending import larger_limits
from evaljournal.replay.render.ending import next_command as next_command_of_run
from evaljournal.replay.render.suite import SuiteRow, larger_budget, table_lines, totals_text
from evaljournal.replay.results.summary import summarize
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.text import one_line, printable, quote
from evaljournal.runner.cli import BUG, DAMAGED, OUTPUT_FAILED, UNFINISHED, USAGE, CommandError
from evaljournal.runner.cli.terminal.display import exit_code, print_json
from evaljournal.runner.cli.terminal.output import OutputFailed, echo, flush_output
from evaljournal.runner.definition.gates import problems
from evaljournal.runner.errors import command
from evaljournal.runner.sessions.suite_file import Suite

EXIT_CODES: Final = (BUG, DAMAGED, USAGE, UNFINISHED, 1, 5, 0)
"""The exit code of a suite is the first of these that one of its evaluations has."""
Details = Mapping[str, tuple[int, list[str]]]
"""Evaluation → its exit code, and why it did not pass."""


def suite_exit_code(codes: Iterable[int]) -> int:
    """Return the exit code of a suite."""
    occurring = set(codes)
    return next((code for code in EXIT_CODES if code in occurring), 0)


def run_details(state: RunState | None, path: Path, detail: str = "") -> tuple[int, list[str]]:
    """Return the exit code of an evaluation of a suite, and why it did not pass.

    `path` is that of its run; `detail`: why its session was stopped.
    """
    if state is None:
        return UNFINISHED, []
    is_finished = state.outcome == "finished"
    is_obvious = not detail or (state.outcome == "budget" and larger_limits(state))
    lines = problems(state, path) if is_finished else [] if is_obvious else [detail]
    return exit_code(state, stopped=not is_finished, path=path), lines


def finish_suite(suite: Suite, rows: Sequence[SuiteRow], details: Details, *, as_json: bool) -> NoReturn:
    """Print the summary of a suite and exit with its code."""
    code = suite_exit_code(code for code, _ in details.values())
    try:
        echo("\n".join(report_lines(suite, rows, details)), err=as_json)
        if as_json:
            print_json(suite_json(suite, rows, details))
        flush_output()
    except OutputFailed as exc:
        message = f"{exc}; only the summary is missing; {command('status', suite.path)} shows it"
        raise CommandError(message, OUTPUT_FAILED) from exc
    sys.exit(code)


def report_lines(suite: Suite, rows: Sequence[SuiteRow], details: Details) -> Iterator[str]:
    """Yield the lines of the summary of a suite."""
    code = suite_exit_code(code for code, _ in details.values())
    ending = "finished" if all(row.state is not None and row.state.outcome == "finished" for row in rows) else "not finished"
    path = printable(str(suite.path), 500)
    yield f"{printable(suite.name)} {ending}: {totals_text(rows)}, in {path}"
    yield from table_lines(rows)
    for name, (_, lines) in details.items():
        yield from (f"{printable(name, 40)}: {one_line(line, 500)}" for line in lines)
    for row in [row for row in rows if row.state is not None and details[row.name][1]][:1]:
        yield f"details: evaljournal status {quote(suite.runs[row.name])}"
    yield f"next: {next_command(suite, rows, code)}"


def next_command(suite: Suite, rows: Sequence[SuiteRow], code: int) -> str:
    """Return the command to run next."""
    path, states = quote(suite.path), {row.name: row.state for row in rows if row.state is not None}
    if code in {UNFINISHED, USAGE}:
        limits = larger_budget(list(states.values()))
        stopped_runs = [name for name, state in states.items() if state.outcome == "budget"]
        if stopped_runs and not limits:  # By a budget of its own, or because usage was not reported.
            return next_command_of_run(states[stopped_runs[0]], suite.runs[stopped_runs[0]])
        options = (f" --budget {unit}={limit:.12g}" for unit, limit in limits.items() if stopped_runs)
        return f"evaljournal resume {path}{''.join(options)}"
    if code == 1 and any(state.failed for state in states.values()):
        return f"evaljournal resume {path} --retry-failed"
    return f"evaljournal verify {path}" if code == DAMAGED else f"evaljournal report {path} --open"


def suite_json(suite: Suite, rows: Sequence[SuiteRow], details: Details) -> dict[str, Any]:
    """Return the summary of a suite as JSON."""
    code = suite_exit_code(code for code, _ in details.values())
    evaluations = [
        {
            "name": row.name,
            "path": str(suite.runs[row.name]),
            "status": row.status,
            "exit_code": details[row.name][0],
            "problems": details[row.name][1],
            "summary": None if row.state is None else view_json(summarize(row.state)),
        }
        for row in rows
    ]
    return {
        "path": str(suite.path),
        "suite": suite.name,
        "exit_code": code,
        "next_command": next_command(suite, rows, code),
        "evaluations": evaluations,
    }
