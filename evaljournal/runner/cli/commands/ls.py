"""The command `evaljournal ls`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from evaljournal.replay.history.digest import RunDigest, first_score
from evaljournal.replay.history.history import Entry, changed_since, entries_by_evaluation
from evaljournal.replay.render.phrases import changed_text, range_text
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.text import duration, money, or_dash, printable
from evaljournal.runner.cli.digests import DigestCache
from evaljournal.runner.cli.terminal.display import print_json, print_table
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.errors import UsageError
from evaljournal.runner.runs.paths import RUNS, runs_under


@click.command("ls")
@click.argument("directory", type=click.Path(path_type=Path), required=False, default=RUNS)
@click.option("--json", "as_json", is_flag=True, help="Print a list as JSON.")
def ls(directory: Path, as_json: bool) -> None:
    """List the runs under runs/, or under DIRECTORY, with their first score, cost, and what changed since the previous run.

    A summary of each intact run that has ended is cached and used until its files change. Of a finished run above 16 MiB,
    only the first and the last records are read: score and cost are shown after `evaljournal history` has read it.

    \b
    evaljournal ls
    evaljournal ls /mnt/archive/runs --json | jq '.[].path'
    """
    if not directory.is_dir() and directory != RUNS:
        raise UsageError(f"{directory} is not a directory")

    with DigestCache() as cache:
        runs = {path: cache.run(path) for path in runs_under(directory)}
    changed = _changed(runs)

    if as_json:
        views = ({**view_json(run, omit="identity"), "git": run.git, "changed": changed[path]} for path, run in runs.items())
        print_json([{"path": str(path), **view} for path, view in zip(runs, views, strict=True)])
        return

    if not runs:
        echo(f"no runs under {directory}/; start one with `evaljournal run evals/capitals.py`", err=True)
        return
    header = ("RUN", "EVALUATION", "STARTED", "OUTPUTS", "ERRORS", "TRIALS", "SCORE", "COST", "DURATION", "ENDED", "CHANGED")
    print_table([header, *((*_columns(path, run), changed_text(changed[path])) for path, run in runs.items())])


def _changed(runs: Mapping[Path, RunDigest]) -> dict[Path, tuple[str, ...]]:
    """Return what differs between each run and the one of the same evaluation before it."""
    return {
        Path(entry.path): names
        for entries in entries_by_evaluation(Entry(str(path), run, []) for path, run in runs.items()).values()
        for entry, names in zip(entries, changed_since([entry.run for entry in entries]), strict=True)
    }


def _columns(path: Path, run: RunDigest) -> tuple[str, ...]:
    def cell(value: Any) -> str:
        return "-" if value is None else f"{value:,}" if isinstance(value, int) else printable(value)

    start = cell(run.started_at)[:19].replace("T", " ")
    counts = cell(run.completed), cell(run.failed), cell(run.trials)
    amounts = or_dash(run.cost, money), or_dash(run.elapsed, duration)
    return (
        printable(str(path), 200),
        cell(run.evaluation),
        start,
        *counts,
        _score_text(run),
        *amounts,
        printable(run.outcome or "-", 120),
    )


def _score_text(run: RunDigest) -> str:
    """Return the first score of a run: `exact 93.3 %`, or the range of several."""
    scorer = first_score(run)
    return "-" if scorer is None else f"{printable(scorer, 24)} {range_text(run.means_of(scorer))}"
