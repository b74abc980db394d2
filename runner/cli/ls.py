"""The command `evaljournal ls`."""

import contextlib
from pathlib import Path
from typing import Any

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
        print_json(runs)
        return
    if not runs:
        echo(f"no runs under {directory}/; start one with `evaljournal run evals/capitals.py`", err=True)
        return
    print_table([("RUN", "EVALUATION", "STARTED", "OK", "FAILED", "TRIALS", "TOOK", "ENDED"), *map(_columns, runs)])


def _entry(path: Path) -> dict[str, Any]:
    """Return the columns of a run. The last record of a finished run has its counts; any other run is read."""
    entry: dict[str, Any] = {"path": str(path)}
    last = last_record(path)
    if last is not None and isinstance(last.event, RunFinished):
        with contextlib.suppress(JournalError):
            first = run_start(path)
            done = last.event
            return entry | {
                "evaluation": first[0].evaluation if first else None,
                "started_at": first[1] if first else None,
                "completed": done.completed,
                "failed": done.failed,
                "trials": done.completed + done.failed,
                "elapsed": done.elapsed,
                "status": "finished",
                "outcome": "finished",
            }
    try:
        view = open_run(path)
    except (JournalError, OSError) as exc:  # List the other runs.
        none = dict.fromkeys(("evaluation", "started_at", "completed", "failed", "trials", "elapsed"))
        return entry | none | {"status": "unreadable", "outcome": str(exc)}
    state = view.state
    return entry | {
        "evaluation": state.started.evaluation if state.started else None,
        "started_at": state.sessions[0].at if state.sessions else None,
        "completed": state.completed,
        "failed": state.failed,
        "trials": total_trials(state),
        "elapsed": state.elapsed,
        "status": view.status,
        "outcome": short_ending(view),
    }


def _columns(entry: dict[str, Any]) -> tuple[str, ...]:
    def cell(name: str) -> str:
        value = entry[name]
        return "-" if value is None else f"{value:,}" if isinstance(value, int) else printable(value)

    started = cell("started_at")[:19].replace("T", " ")
    counts = cell("completed"), cell("failed"), cell("trials")
    took = "-" if entry["elapsed"] is None else duration(entry["elapsed"])
    return printable(entry["path"], 200), cell("evaluation"), started, *counts, took, cell("outcome")
