"""The command `evaljournal ls`."""

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

import click

from journal import JournalError
from journal.events import RunFinished
from replay.ending import total_trials
from replay.text import duration, printable
from runner.cli._display import open_run, print_json, print_table, short_ending
from runner.cli._locate import run_start
from runner.cli._output import echo
from runner.errors import UsageError
from runner.run_paths import RUNS, last_record, runs_under


@click.command("ls")
@click.argument("directory", type=click.Path(path_type=Path), required=False, default=RUNS)
@click.option("--json", "as_json", is_flag=True, help="Print a list as JSON.")
def ls(directory: Path, as_json: bool) -> None:
    """List the runs under runs/, or under DIRECTORY.

    For a finished run, only the first and the last record are read; `evaljournal verify` checks all of them.

    \b
    evaljournal ls
    evaljournal ls /mnt/archive/runs --json | jq '.[].path'
    """
    if not directory.is_dir() and directory != RUNS:
        raise UsageError(f"{directory} is not a directory")
    runs = [_entry(path) for path in runs_under(directory)]
    if as_json:
        print_json([run._asdict() for run in runs])
        return
    if not runs:
        echo(f"no runs under {directory}/; start one with `evaljournal run evals/capitals.py`", err=True)
        return
    print_table([("RUN", "EVALUATION", "STARTED", "OK", "FAILED", "TRIALS", "TOOK", "ENDED"), *map(_columns, runs)])


class _Entry(NamedTuple):
    path: str
    evaluation: str | None = None
    started_at: str | None = None
    completed: int | None = None
    failed: int | None = None
    trials: int | None = None
    elapsed: float | None = None
    status: str = "finished"
    outcome: str = "finished"


def _entry(path: Path) -> _Entry:
    """Return the columns of a run. The last record of a finished run has its counts; any other run is read."""
    last = last_record(path)
    if last is not None and isinstance(last.event, RunFinished):
        with contextlib.suppress(JournalError):
            first, at = run_start(path) or (None, None)
            name, end = first.evaluation if first else None, last.event
            return _Entry(str(path), name, at, end.completed, end.failed, end.completed + end.failed, end.elapsed)
    try:
        view = open_run(path)
    except (JournalError, OSError) as exc:  # List the other runs.
        return _Entry(str(path), status="unreadable", outcome=str(exc))
    state = view.state
    name, at = state.started.evaluation if state.started else None, state.sessions[0].at if state.sessions else None
    done = state.completed, state.failed
    return _Entry(str(path), name, at, *done, total_trials(state), state.elapsed, view.status, short_ending(view))


def _columns(entry: _Entry) -> tuple[str, ...]:
    def cell(value: Any) -> str:
        return "-" if value is None else f"{value:,}" if isinstance(value, int) else printable(value)

    started = cell(entry.started_at)[:19].replace("T", " ")
    counts = cell(entry.completed), cell(entry.failed), cell(entry.trials)
    took = "-" if entry.elapsed is None else duration(entry.elapsed)
    return printable(entry.path, 200), cell(entry.evaluation), started, *counts, took, cell(entry.outcome)
