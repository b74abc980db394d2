"""How a suite is shown: `status` and `watch` of all its runs, and at its end its summary and its exit code."""

import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from evaljournal.journal.disk import segments
from evaljournal.journal.disk.lock import is_held
from evaljournal.replay import LoadedRun, RunState
from evaljournal.replay.render.ending import larger_limits
from evaljournal.replay.render.ending import next_command as next_command_of_run
from evaljournal.replay.render.suite import SuiteRow, larger_budget, suite_panel, table_lines, totals_text
from evaljournal.replay.results.summary import summarize
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.text import one_line, printable, quote
from evaljournal.runner.cli import BUG, DAMAGED, FAILED, OUTPUT_FAILED, UNDECIDED, UNFINISHED, USAGE, CommandError
from evaljournal.runner.cli.terminal.display import (
    current_time,
    exit_code,
    live_screen,
    open_run,
    print_json,
    redraw,
    supports_screen,
)
from evaljournal.runner.cli.terminal.output import OutputFailed, echo, flush_output
from evaljournal.runner.definition.gates import problems
from evaljournal.runner.errors import command
from evaljournal.runner.sessions.suite_file import Suite
from evaljournal.runner.signals import until_signal

EXIT_CODES: Final = (BUG, DAMAGED, USAGE, UNFINISHED, FAILED, UNDECIDED, 0)
"""The exit code of a suite is the first of these that one of its evaluations has."""
Details = Mapping[str, tuple[int, list[str]]]
"""Evaluation → its exit code, and why it did not pass."""

_MIN_INTERVAL: Final = 1.0
_PAUSE: Final = 9
"""A suite that is watched is read again after 9 times as long as reading it took, but not before a second."""


def suite_exit_code(codes: Iterable[int]) -> int:
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
    return exit_code(state, path, stopped=not is_finished), lines


def finish_suite(suite: Suite, rows: Sequence[SuiteRow], details: Details, *, as_json: bool) -> NoReturn:
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
    code = suite_exit_code(code for code, _ in details.values())
    ending = "finished" if all(row.state is not None and row.state.outcome == "finished" for row in rows) else "not finished"
    yield f"{printable(suite.name)} {ending}: {totals_text(rows)}, in {printable(str(suite.path), 500)}"
    yield from table_lines(rows)
    for name, (_, lines) in details.items():
        yield from (f"{printable(name, 40)}: {one_line(line, 500)}" for line in lines)
    for row in [row for row in rows if row.state is not None and details[row.name][1]][:1]:
        yield f"details: evaljournal status {quote(suite.runs[row.name])}"
    yield f"next: {next_command(suite, rows, code)}"


def next_command(suite: Suite, rows: Sequence[SuiteRow], code: int) -> str:
    path, states = quote(suite.path), {row.name: row.state for row in rows if row.state is not None}
    if code in {UNFINISHED, USAGE}:
        limits = larger_budget(list(states.values()))
        stopped_runs = [name for name, state in states.items() if state.outcome == "budget"]
        if stopped_runs and not limits:  # By a budget of its own, or because usage was not reported.
            return next_command_of_run(states[stopped_runs[0]], suite.runs[stopped_runs[0]])
        options = (f" --budget {unit}={limit:.12g}" for unit, limit in limits.items() if stopped_runs)
        return f"evaljournal resume {path}{''.join(options)}"
    if code == FAILED and any(state.failed for state in states.values()):
        return f"evaljournal resume {path} --retry-failed"
    return f"evaljournal verify {path}" if code == DAMAGED else f"evaljournal report {path} --open"


def suite_json(suite: Suite, rows: Sequence[SuiteRow], details: Details) -> dict[str, Any]:
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


def _views(suite: Suite) -> dict[str, LoadedRun | None]:
    """Read the runs of a suite; None for one that has not started."""
    return {name: open_run(path) if segments.is_run(path) else None for name, path in suite.runs.items()}


def _row(name: str, view: LoadedRun | None) -> SuiteRow:
    if view is None or (view.state.started is None and view.problem is None):
        return SuiteRow(name=name)
    problem = "" if view.problem is None else f"damaged: {view.problem.message}"
    if not view.is_live or problem:
        return SuiteRow(name=name, state=view.state, error=problem)
    return SuiteRow(name=name, state=view.state, now=current_time(view), total=view.total)


def _details(row: SuiteRow, view: LoadedRun | None, path: Path) -> tuple[int, list[str]]:
    if view is not None and view.problem is not None:
        return DAMAGED, [str(view.problem)]
    return run_details(row.state, path)


def _read(suite: Suite) -> tuple[list[SuiteRow], Details, bool]:
    """Return the rows of a suite, the exit codes and problems of its runs, and whether it is running."""
    views = _views(suite)
    rows = [_row(name, view) for name, view in views.items()]
    is_live = any(view is not None and view.is_live for view in views.values())
    return rows, {row.name: _details(row, views[row.name], suite.runs[row.name]) for row in rows}, is_live


def print_status(suite: Suite, *, as_json: bool) -> None:
    """Print the status of a suite; exit with 4 if a run is damaged."""
    rows, details, is_live = _read(suite)
    if as_json:
        print_json({"is_live": is_live, **suite_json(suite, rows, details)})
    elif is_live:
        lines = [
            f"{printable(suite.name)} running: {totals_text(rows)}, in {printable(str(suite.path), 500)}",
            *table_lines(rows),
        ]
        echo("\n".join([*lines, f"next: {command('watch', suite.path)[1:-1]}"]))
    else:
        echo("\n".join(report_lines(suite, rows, details)))
    if any(code == DAMAGED for code, _ in details.values()):
        sys.exit(DAMAGED)


def watch_suite(suite: Suite, *, as_json: bool) -> None:
    """Show a suite until its process has ended, then print its summary and exit with its code; 3 on Ctrl-C."""
    import trio  # noqa: PLC0415  # slow to import, and `status` does not need it

    is_drawn = not as_json and supports_screen(sys.stdout)
    if not trio.run(until_signal, partial(_watch, suite, is_drawn=is_drawn, quiet=as_json), signal.SIGINT):
        echo(f"the suite continues; watch it with {command('watch', suite.path)}", err=True)
        sys.exit(UNFINISHED)
    rows, details, _ = _read(suite)
    finish_suite(suite, rows, details, as_json=as_json)


async def _watch(suite: Suite, *, is_drawn: bool, quiet: bool) -> None:
    import trio  # noqa: PLC0415  # as above

    last_text = ""
    with live_screen() if is_drawn else nullcontext() as screen:
        while any(is_held(path) for path in suite.runs.values()):
            started = trio.current_time()
            rows = [_row(name, view) for name, view in (await trio.to_thread.run_sync(_views, suite)).items()]
            if screen is not None:
                title, size = f"{suite.name}  {suite.path}", screen.console.size
                redraw(screen, suite_panel(rows, title=title, width=size.width, height=size.height))
            elif not quiet and (text := totals_text(rows)) != last_text:
                echo(last_text := text)
            await trio.sleep(max(_MIN_INTERVAL, _PAUSE * (trio.current_time() - started)))
