"""How a suite is shown: `status`, `watch` and `verify` of all its runs."""

import signal
import sys
from functools import partial
from pathlib import Path
from typing import Final

from evaljournal.journal.disk import segments
from evaljournal.journal.disk.lock import is_held
from evaljournal.replay import LoadedRun
from evaljournal.replay.render.suite import SuiteRow, suite_panel, table_lines, totals_text
from evaljournal.replay.text import printable
from evaljournal.runner.cli import DAMAGED, UNFINISHED
from evaljournal.runner.cli.suites.ending import Details, finish_suite, report_lines, run_details, suite_json
from evaljournal.runner.cli.terminal.display import current_time, open_run, print_json, terminal
from evaljournal.runner.cli.terminal.live import redraw, supports_screen
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.errors import command
from evaljournal.runner.sessions.suite_file import Suite
from evaljournal.runner.signals import until_signal

_MIN_INTERVAL: Final = 1.0
_PAUSE: Final = 9
"""A suite that is watched is read again after 9 times as long as reading it took, but not before a second."""


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
    from rich.live import Live  # noqa: PLC0415  # slow to import

    console, last_text = terminal(), ""
    with Live(console=console, auto_refresh=False, transient=True) as screen:
        while any(is_held(path) for path in suite.runs.values()):
            started = trio.current_time()
            rows = [_row(name, view) for name, view in (await trio.to_thread.run_sync(_views, suite)).items()]
            if is_drawn:
                title = f"{suite.name}  {suite.path}"
                redraw(screen, suite_panel(rows, title=title, width=console.width, height=console.height))
            elif not quiet and (text := totals_text(rows)) != last_text:
                echo(last_text := text)
            await trio.sleep(max(_MIN_INTERVAL, _PAUSE * (trio.current_time() - started)))
