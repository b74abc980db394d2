"""The command `evaljournal compare`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from replay import LoadedRun
from replay.comparison import NothingInCommon, Side, sides_by_variant
from replay.comparison_table import ComparisonTable, compare_all
from replay.comparison_table_text import lines
from replay.text import printable
from replay.view_json import view_json
from runner.cli._common import ReferenceType, RunReference, find_reference, newest_run
from runner.cli._display import check_variant, exit_if_damaged, open_run, print_json
from runner.cli._output import echo
from runner.errors import UsageError

_MAX_ROWS: Final = 1_000


@click.command()
@click.argument("runs", type=ReferenceType(), nargs=-1, metavar="[RUN]...")
@click.option("--baseline", metavar="NAME", help="Row to compare the others with (default: the first).")
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON, with every trial that is not compared.")
def compare(runs: tuple[RunReference, ...], baseline: str | None, as_json: bool) -> None:
    """Compare runs and variants in one table: scores, failures, latency, tokens, cost.

    A run with variants has one row for each of them; RUN@VARIANT is one row. The scores of each row are compared with those of
    the baseline, over the trials with the same case, repeat and content; p-values are Holm-corrected across all comparisons.
    The exit code is 0 even if the rows differ; `evaljournal gate` returns a verdict.

    \b
    evaljournal compare
    evaljournal compare runs/capitals/0003 --baseline large
    evaljournal compare runs/capitals/0001 runs/capitals/0003@mini --json
    """
    references = runs or (RunReference(newest_run()),)
    views = {reference.path: open_run(reference.path) for reference in references}
    rows = _rows(references, views)
    table = _table(rows, views, baseline)
    if as_json:
        print_json(_table_json(table, rows, views))
    else:
        width = max(len(printable(str(path), 200)) for path in views)
        for path, view in views.items():
            echo(f"{printable(str(path), 200):<{width}}  head {view.state.head}")
        for line in lines(table):
            echo(line)
    for view in views.values():
        exit_if_damaged(view.problem, quiet=as_json)


_Views = Mapping[Path, LoadedRun]


def _rows(references: Sequence[RunReference], views: _Views) -> dict[str, RunReference]:
    """Return the rows by name: VARIANT if there is only one run, otherwise RUN or RUN@VARIANT."""
    rows: dict[str, RunReference] = {}
    for reference in references:
        view = views[reference.path]
        check_variant(view, reference.variant)
        variants = (reference.variant,) if reference.variant is not None else view.state.variants.names or (None,)
        for variant in variants:
            row = RunReference(reference.path, variant)
            rows[str(row) if variant is None or len(views) > 1 else variant] = row
    if len(rows) == 1:
        raise UsageError(f"only one row: {next(iter(rows))}", hint="pass another run, or a run with several variants")
    if len(rows) > _MAX_ROWS:
        raise UsageError(f"{len(rows):,} rows; at most {_MAX_ROWS:,} can be compared", hint="name variants as RUN@VARIANT")
    return rows


def _table(rows: Mapping[str, RunReference], views: _Views, baseline: str | None) -> ComparisonTable:
    variants = {path: sides_by_variant(view.state) for path, view in views.items()}
    sides = {
        name: Side(views[row.path].state) if row.variant is None else variants[row.path][row.variant]
        for name, row in rows.items()
    }
    table = compare_all(sides, next(iter(rows)) if baseline is None else _baseline(rows, baseline))
    overlaps = [row.overlap for row in table.rows if row.overlap is not None]
    if not any(overlap.common for overlap in overlaps):
        raise NothingInCommon(f"no row has a trial in common with {table.baseline}")
    return table


def _baseline(rows: Mapping[str, RunReference], baseline: str) -> str:
    """Return the name of the row that `--baseline` selects: by its name, or as a run or RUN@VARIANT."""
    if baseline in rows:
        return baseline
    try:
        reference: RunReference | None = find_reference(baseline)
    except UsageError:
        reference = None
    for name, row in rows.items():
        if row == reference:
            return name
    names = ", ".join(printable(name, 80) for name in rows)
    raise UsageError(f"--baseline {baseline} is not a row; the rows: {names}")


def _table_json(table: ComparisonTable, rows: Mapping[str, RunReference], views: _Views) -> dict[str, object]:
    members = view_json(table)
    for row in members["rows"]:
        reference = rows[row["name"]]
        view = views[reference.path]
        row |= {"path": str(reference.path), "variant": reference.variant, "head": view.state.head}
        row["problem"] = None if view.problem is None else str(view.problem)
    return members
