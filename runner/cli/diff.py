"""The command `evaljournal diff`."""

from pathlib import Path
from typing import Final

import click

from replay import LoadedRun
from replay.comparison import Side, compare, outputs
from replay.comparison_text import lines
from replay.digest import short_ending
from replay.ending import total_trials
from replay.text import plural, printable
from replay.view_json import view_json
from runner.cli._common import RunType
from runner.cli._display import exit_if_damaged, groups_by, open_run, print_json
from runner.cli._output import echo

_LISTED: Final = 10
"""Maximum trials of a kind that are listed without --all."""


@click.command()
@click.argument("a", type=RunType())
@click.argument("b", type=RunType())
@click.option("--by", metavar="KEY", help="Also compare the scores for each value of this metadata key.")
@click.option("--all", "show_all", is_flag=True, help="List every trial.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON, with every trial.")
def diff(a: Path, b: Path, by: str | None, show_all: bool, as_json: bool) -> None:
    """Compare two runs trial by trial: fixed, broken, changed, slower, only in one.

    Trials are matched by name and content; trials with the same name and different content are not compared. Each score
    difference is reported with its 95 % confidence interval, over the cases that both runs scored. The exit code is 0 even if
    the runs differ.

    \b
    evaljournal diff runs/capitals/0001 runs/capitals/0002
    evaljournal diff runs/capitals/0001 runs/capitals/0002 --by difficulty
    evaljournal diff runs/capitals/0001 runs/capitals/0002 --json | jq '.broken[].trial'
    """
    runs = open_run(a), open_run(b)
    sides = [Side(view.state, outputs(view.records())) for view in runs]
    comparison = compare(*sides, groups=None if by is None else groups_by(runs[0], by))
    if as_json:
        paths = {"a": str(a), "b": str(b)}
        problems = {f"problem_{name}": str(view.problem or "") or None for name, view in zip("ab", runs, strict=True)}
        print_json({**paths, **problems, **view_json(comparison)})
    else:
        for name, view in zip("AB", runs, strict=True):
            echo(f"{name}  {_describe(view)}")
        for line in lines(comparison, limit=None if show_all else _LISTED):
            echo(line)
    for view in runs:
        exit_if_damaged(view.problem, quiet=as_json)


def _describe(view: LoadedRun) -> str:
    """Describe a run: its evaluation, status and counts."""
    state = view.state
    name = printable(state.started.evaluation) if state.started else "not started"
    failed = f", {state.failed:,} failed" if state.failed else ""
    older = f"; {plural(state.from_older_task, 'output')} from an older version of the task" if state.from_older_task else ""
    total = total_trials(state)
    planned = "" if total is None else f" of {total:,}"
    return f"{printable(str(view.path), 200)}: {name}, {short_ending(view)}, {state.completed:,} ok{failed}{planned}{older}"
