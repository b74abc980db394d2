"""The command `evaljournal diff`."""

from typing import Final

import click

from replay import LoadedRun
from replay.comparison import NothingInCommon, Side, compare
from replay.comparison_text import lines
from replay.digest import short_ending
from replay.ending import total_trials
from replay.text import plural, printable
from replay.view_json import view_json
from runner.cli._common import ReferenceType, RunReference
from runner.cli._display import exit_if_damaged, groups_by, open_side, print_json
from runner.cli._output import echo

_MAX_LISTED: Final = 10
"""Maximum trials of a kind that are listed without --all."""


@click.command()
@click.argument("a", type=ReferenceType())
@click.argument("b", type=ReferenceType())
@click.option("--by", "key", metavar="KEY", help="Also compare the scores for each value of this metadata key.")
@click.option("--all", "show_all", is_flag=True, help="List every trial.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON, with every trial.")
def diff(a: RunReference, b: RunReference, key: str | None, show_all: bool, as_json: bool) -> None:
    """Compare two runs, or two variants (RUN@VARIANT), trial by trial: fixed, broken, changed, slower, in one run only.

    Trials are matched by case and repeat, and by variant unless RUN@VARIANT is passed; trials with different content are not
    compared. Each score difference is reported with its 95 % confidence interval, over the cases that both runs scored. The
    exit code is 0 even if the runs differ.

    \b
    evaljournal diff runs/capitals/0001 runs/capitals/0002
    evaljournal diff runs/capitals/0001 runs/capitals/0002 --by difficulty
    evaljournal diff runs/capitals/0003@mini runs/capitals/0003@large
    evaljournal diff runs/capitals/0001 runs/capitals/0002 --json | jq '.broken[].trial'
    """
    (run_a, side_a), (run_b, side_b) = open_side(a), open_side(b)
    try:
        comparison = compare(side_a, side_b, groups=None if key is None else groups_by(run_a, key))
    except NothingInCommon:
        for view in (run_a, run_b):
            exit_if_damaged(view.problem, quiet=as_json)
        raise
    if as_json:
        references = {"a": str(a.path), "b": str(b.path), "variant_a": a.variant, "variant_b": b.variant}
        problems = {f"problem_{name}": str(view.problem or "") or None for name, view in (("a", run_a), ("b", run_b))}
        print_json({**references, **problems, **view_json(comparison)})
    else:
        for name, reference, view, side in (("A", a, run_a, side_a), ("B", b, run_b, side_b)):
            echo(f"{name}  {printable(str(reference), 200)}: {_describe(view, side)}")
        for line in lines(comparison, limit=None if show_all else _MAX_LISTED):
            echo(line)
    for view in (run_a, run_b):
        exit_if_damaged(view.problem, quiet=as_json)


def _describe(view: LoadedRun, side: Side) -> str:
    state, totals = view.state, side.totals
    name = printable(state.started.evaluation) if state.started else "not started"
    counts = f"{totals.stages['completed']:,} ok{f', {totals.failed:,} failed' if totals.failed else ''}"
    total = total_trials(state) if side.variant is None else totals.total
    total_text = "" if total is None else f" of {total:,}"
    note = f"; {plural(state.from_older_task, 'output')} from an older version of the task" if state.from_older_task else ""
    return f"{name}, {short_ending(view)}, {counts}{total_text}{note}"
