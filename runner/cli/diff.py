"""The command `evaljournal diff`."""

from pathlib import Path
from typing import Final

import click

from replay.comparison import Side, compare, in_json, outputs
from replay.comparison_text import lines
from replay.ending import ending_in_words, total_trials
from replay.text import plural, printable
from runner.cli._common import RunType
from runner.cli._display import (
    RunView,
    exit_if_damaged,
    groups_by,
    open_run,
    print_json,
)

_LISTED: Final = 10
"""Trials of a kind that are named one by one, unless all are asked for."""


@click.command()
@click.argument("a", type=RunType())
@click.argument("b", type=RunType())
@click.option("--by", metavar="KEY", help="Also compare the scores for each value of this key of the metadata.")
@click.option("--all", "show_all", is_flag=True, help="Name every trial, however many there are.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON; it names every trial.")
def diff(a: Path, b: Path, by: str | None, show_all: bool, as_json: bool) -> None:
    """Compare run B with run A, trial by trial: fixed, broke, changed, slower, only in one.

    Trials are matched by name and content; what has the same name and other content is a different case, and is not compared.
    Whether the scores differ is said with its 95 % range, over the cases that both runs have scored. The code is 0 whatever the
    difference: a comparison is not a gate.

    \b
    evaljournal diff runs/capitals/0001 runs/capitals/0002
    evaljournal diff runs/capitals/0001 runs/capitals/0002 --by difficulty
    evaljournal diff runs/capitals/0001 runs/capitals/0002 --json | jq '.broke[].trial'
    """
    runs = open_run(a), open_run(b)
    sides = [Side(seen.state, outputs(seen.history.records())) for seen in runs]
    found = compare(*sides, groups=None if by is None else groups_by(runs[0], by))
    if as_json:
        paths = {"a": str(a), "b": str(b)}
        problems = {f"problem_{name}": str(seen.problem or "") or None for name, seen in zip("ab", runs, strict=True)}
        print_json({**paths, **problems, **in_json(found)})
    else:
        for name, seen in zip("AB", runs, strict=True):
            click.echo(f"{name}  {_which(seen)}")
        for line in lines(found, most=None if show_all else _LISTED):
            click.echo(line)
    for seen in runs:
        exit_if_damaged(seen.problem, quiet=as_json)


def _which(seen: RunView) -> str:
    """Name a run, and say how far it is: one that is not finished may still differ."""
    state = seen.state
    name = printable(state.started.evaluation) if state.started else "a run that has not begun"
    how = seen.status if seen.problem or seen.is_live else ending_in_words(state)
    failed = f", {state.failed:,} failed" if state.failed else ""
    older = f"; {plural(state.from_older_task, 'answer')} by an older version of its task" if state.from_older_task else ""
    whole = total_trials(state)
    of = "" if whole is None else f" of {whole:,}"
    return f"{printable(str(seen.path), 200)}: {name}, {how}, {state.completed:,} ok{failed}{of}{older}"
