"""The command `evaljournal report`."""

import webbrowser
from pathlib import Path
from typing import Any, Final

import click

from journal.lock import is_held
from replay import load
from replay.comparison import Side, compare, outputs
from replay.export.page import PageRun, comparison_data, is_page, page
from runner.atomic_write import write_atomically
from runner.cli._common import RunType, run_argument
from runner.cli._display import exit_if_damaged
from runner.cli._output import echo
from runner.cli._page import PageReader, journal_size
from runner.cli.export import check_target

_TARGET: Final = "report.html"


@click.command()
@run_argument
@click.argument("other", metavar="[B]", type=RunType(), required=False)
@click.option(
    "-o", "--output", "target", type=click.Path(path_type=Path), default=_TARGET, help=f"Output file (default: {_TARGET})."
)
@click.option("--open", "then_open", is_flag=True, help="Open it in a browser.")
@click.option("--force", is_flag=True, help="Replace an existing file that is not a report.")
def report(path: Path, other: Path | None, target: Path, then_open: bool, force: bool) -> None:
    """Write an HTML report of a run, or of two runs side by side, as one file that needs no network.

    It has the results, every trial with its attempts, the concurrency history with a scrubber, and the audit. With two runs, A
    and B, it also has their `diff`. Long values are shortened. An existing report is replaced; any other file needs --force. A
    damaged run is shown up to the damage, with exit code 4.

    \b
    evaljournal report --open
    evaljournal report runs/capitals/0001 -o capitals.html
    evaljournal report runs/capitals/0001 runs/capitals/0002 -o compared.html
    """
    check_target(target, directory=False, force=force or is_page(target))
    page_runs = [read_page_run(path)] + ([read_page_run(other)] if other is not None else [])
    write_atomically(target, page([page_run.data() for page_run in page_runs], _comparison(page_runs)))
    paths = " and ".join(str(page_run.run.path) for page_run in page_runs)
    echo(f"{target}: report of {paths}, {target.stat().st_size / 1e6:,.2f} MB", err=True)
    if then_open:
        webbrowser.open(target.resolve().as_uri())
    for page_run in page_runs:
        exit_if_damaged(page_run.run.problem)


def _comparison(page_runs: list[PageRun]) -> dict[str, Any] | None:
    if len(page_runs) == 1:
        return None
    return comparison_data(compare(*(Side(page_run.run.state, outputs(page_run.run.records())) for page_run in page_runs)))


def read_page_run(path: Path) -> PageRun:
    """Read a run for a page: state, columns and audit in one pass over its journal."""
    is_live = is_held(path)  # Before reading, as in `open_run`.
    reader = PageReader(journal_size(path))
    run = load(path, apply=reader.apply)
    run.is_live = is_live
    return reader.run(run)
