"""The command `evaljournal compare`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from evaljournal.journal import read
from evaljournal.replay import LoadedRun
from evaljournal.replay.history.digest import short_ending
from evaljournal.replay.page.page_content import FULL_SIZE
from evaljournal.replay.render.comparison import lines, table_lines
from evaljournal.replay.render.ending import total_trials
from evaljournal.replay.render.phrases import pairwise_text, ranking_lines
from evaljournal.replay.results.comparison import NothingInCommon, Side, sides_by_variant
from evaljournal.replay.results.comparison import compare as compare_sides
from evaljournal.replay.results.pairwise import PairwiseSummary, pairwise_summaries, rankings
from evaljournal.replay.results.table import ComparisonTable, compare_all
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.state.usage import total as total_usage
from evaljournal.replay.text import money, plural, printable
from evaljournal.runner.cli.arguments import RunReference, RunType, find_reference
from evaljournal.runner.cli.commands.history import entries_since
from evaljournal.runner.cli.terminal.display import (
    check_variant,
    corrected_json,
    corrected_lines,
    difference_json,
    difference_lines,
    exit_if_damaged,
    groups_by,
    open_run,
    open_side,
    print_json,
    print_table,
)
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.errors import UsageError

_MAX_ROWS: Final = 1_000
_MAX_LISTED: Final = 10
"""Maximum trials of a kind that are listed without --all."""


@click.command()
@click.argument("runs", type=RunType(find_reference), nargs=-1, metavar="[RUN]...")
@click.option("--baseline", metavar="NAME", help="Row of the table to compare the others with (default: the best).")
@click.option("--by", "key", metavar="KEY", help="For two runs: also compare the scores for each value of this metadata key.")
@click.option("--all", "show_all", is_flag=True, help="For two runs: list every trial.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON, with every trial.")
def compare(runs: tuple[RunReference, ...], baseline: str | None, key: str | None, show_all: bool, as_json: bool) -> None:
    """Compare two runs or variants (RUN@VARIANT) trial by trial, or any number of them in one table.

    Two runs: the trials that were fixed, broke, changed, became slower, or are in one run only. Trials are matched by case and
    repeat, and by variant unless RUN@VARIANT is passed. Each score difference is reported with its 95 % confidence interval,
    over the cases that both runs scored.

    No run: the newest and the one before it of the same evaluation; if the newest has variants, a table of these.

    One run, more than two, or --baseline: a table of scores, errors, latency, tokens and cost. A run with variants has one
    row for each of them. The scores of each row are compared with those of the baseline; p-values are Holm-corrected across
    all comparisons.

    Trials with different content are not compared. The exit code is 0 even if the runs differ; `evaljournal gate` returns a
    verdict.

    \b
    evaljournal compare runs/capitals/0001 runs/capitals/0002 --by difficulty
    evaljournal compare runs/capitals/0001 runs/capitals/0002 --json | jq '.broken[].trial'
    evaljournal compare
    evaljournal compare runs/capitals/0003 --baseline large
    evaljournal compare runs/capitals/0003@mini runs/capitals/0003@large
    """
    references = runs or _newest_and_previous()
    if len(references) == 2 and baseline is None:  # noqa: PLR2004 - two runs
        _compare_two(*references, key, show_all=show_all, as_json=as_json)
        return

    if key is not None or show_all:
        raise UsageError("--by and --all require exactly two runs, without --baseline")

    views = {reference.path: open_run(reference.path) for reference in references}
    rows = _rows(references, views)
    table = _table(rows, views, baseline)

    if as_json:
        print_json(_table_json(table, rows, views))
    else:
        print_table([(printable(str(path), 200), f"head {view.state.head}") for path, view in views.items()])
        for line in (*table_lines(table), *_corrected_rows(rows, views)):
            echo(line)
        for ranking in rankings(view.state for view in views.values()):
            echo("\n".join(["", *ranking_lines(ranking)]))

    for view in views.values():
        exit_if_damaged(view.problem, quiet=as_json)


def _newest_and_previous() -> tuple[RunReference, ...]:
    """Return the run before the newest one and the newest one; only the newest if it has variants or is the first."""
    newest = find_reference()
    view = open_run(newest.path)
    if view.state.variants.names or not (entries := entries_since(view, max_size=FULL_SIZE)):
        return (newest,)
    return RunReference(Path(entries[0].path)), newest


def _compare_two(a: RunReference, b: RunReference, key: str | None, *, show_all: bool, as_json: bool) -> None:
    (run_a, side_a), (run_b, side_b) = open_side(a), open_side(b)
    try:
        comparison = compare_sides(side_a, side_b, groups=None if key is None else groups_by(run_a, key))
    except NothingInCommon:
        for view in (run_a, run_b):
            exit_if_damaged(view.problem, quiet=as_json)
        raise

    pairwise = {
        "pairwise_a": _pairwise(run_a, a.variant, b.path),
        "pairwise_b": _pairwise(run_b, b.variant, a.path),
    }

    if as_json:
        references = {"a": str(a.path), "b": str(b.path), "variant_a": a.variant, "variant_b": b.variant}
        problems = {f"problem_{name}": str(view.problem or "") or None for name, view in (("a", run_a), ("b", run_b))}
        fields = {name: {key: view_json(value) for key, value in values.items()} for name, values in pairwise.items()}
        corrected = difference_json((run_a, side_a), (run_b, side_b))
        print_json({**references, **problems, **view_json(comparison), "corrected": corrected, **fields})
    else:
        for name, reference, view, side in (("A", a, run_a, side_a), ("B", b, run_b, side_b)):
            echo(f"{name}  {printable(str(reference), 200)}: {_describe(view, side)}")
        for line in lines(comparison, limit=None if show_all else _MAX_LISTED):
            echo(line)
        for line in difference_lines((run_a, side_a), (run_b, side_b)):
            echo(line)
        for name, results in (("A", pairwise["pairwise_a"]), ("B", pairwise["pairwise_b"])):
            for scorer, result in results.items():
                echo(f"{printable(scorer, 40)}  {name}: {pairwise_text(result, f'{name} is ')}")

    for view in (run_a, run_b):
        exit_if_damaged(view.problem, quiet=as_json)


def _pairwise(view: LoadedRun, variant: str | None, other: Path) -> dict[str, PairwiseSummary]:
    """Return the results of the pairwise judges that compared the outputs of a run with those of another."""
    if not view.state.scoring.pairwise:
        return {}
    records = read(other, load_blobs=False)
    next(iter(records), None)
    results = pairwise_summaries(view.state, variant)
    return {scorer: result for scorer, result in results.items() if result.run == records.run}


def _describe(view: LoadedRun, side: Side) -> str:
    state, totals, cost = view.state, side.totals, total_usage(side.totals.usage, "cost")
    name = printable(state.started.evaluation) if state.started else "not started"
    counts = plural(totals.stages["completed"], "output") + (f", {plural(totals.failed, 'error')}" if totals.failed else "")
    total = total_trials(state) if side.variant is None else totals.total
    total_text = "" if total is None else f" of {total:,}"
    cost_text = "" if cost is None else f", {money(cost)}"
    note = (
        f"; {plural(state.sessions.task_versions.older_outputs, 'output')} from an older version of the task"
        if state.sessions.task_versions.older_outputs
        else ""
    )
    return f"{name}, {short_ending(view)}, {counts}{total_text}{cost_text}{note}"


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
    table = compare_all(sides, None if baseline is None else _baseline(rows, baseline))
    if not any(row.overlap is not None and row.overlap.common for row in table.rows):
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


def _corrected_rows(rows: Mapping[str, RunReference], views: _Views) -> Iterator[str]:
    for name, row in rows.items():
        yield from (f"{printable(name, 200)}: {line}" for line in corrected_lines(views[row.path], row.variant))


def _table_json(table: ComparisonTable, rows: Mapping[str, RunReference], views: _Views) -> dict[str, object]:
    fields = view_json(table)
    for row in fields["rows"]:
        reference = rows[row["name"]]
        view = views[reference.path]
        row |= {"path": str(reference.path), "variant": reference.variant, "head": view.state.head}
        row["problem"] = None if view.problem is None else str(view.problem)
        row["corrected"] = corrected_json(view, reference.variant)
    fields["rankings"] = [view_json(ranking) for ranking in rankings(view.state for view in views.values())]
    return fields
