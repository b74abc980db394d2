"""The command `evaljournal report`."""

import os
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import attrs
import click

from evaljournal.journal import JournalError
from evaljournal.journal.disk.segments import is_run
from evaljournal.replay.history.history import Entry, histories
from evaljournal.replay.page.page import index_page, is_page, page, since_data
from evaljournal.replay.page.page_content import FULL_SIZE
from evaljournal.replay.runs.loaded_run import LoadedRun
from evaljournal.replay.text import escape_controls, plural
from evaljournal.runner.cli.arguments import RunReference, RunType, find_reference
from evaljournal.runner.cli.commands.export import check_target
from evaljournal.runner.cli.commands.history import entries_since, read_entries
from evaljournal.runner.cli.terminal.display import check_variant, exit_if_damaged
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.errors import UsageError
from evaljournal.runner.runs.atomic_write import write_atomically
from evaljournal.runner.runs.page import read_page_run, side_by_side
from evaljournal.runner.runs.paths import RUNS
from evaljournal.runner.sessions.claims.files import claim_summaries
from evaljournal.runner.sessions.suite_file import find_suite, read_suite

_TARGET: Final = "report.html"
_INDEX: Final = "index.html"
_Key = TypeVar("_Key")


@click.command()
@click.argument("path", type=RunType(Path), required=False, metavar="[RUN]")  # With --all, a directory of runs.
@click.argument("second", metavar="[B]", type=RunType(find_reference), required=False)
@click.option("--all", "all_runs", is_flag=True, help="Write one page with all runs under runs/, or under the directory RUN.")
@click.option(
    "-o", "--output", "target", type=click.Path(path_type=Path), help=f"Output file (default: {_TARGET}; with --all: {_INDEX})."
)
@click.option("--open", "open_browser", is_flag=True, help="Open it in a browser.")
@click.option("--force", is_flag=True, help="Replace an existing file that is not a report.")
def report(
    path: Path | None, second: RunReference | None, *, all_runs: bool, target: Path | None, open_browser: bool, force: bool
) -> None:
    """Write an HTML report of a run, of two runs or variants side by side, of a suite or of all runs; it needs no network.

    For a suite, it writes a page with all evaluations, and next to it a report of each, with links.

    It has the results, every trial with its attempts, the concurrency history with a scrubber, and the audit. With two runs or
    variants, A and B, it compares them; @VARIANT is a variant of the newest run. Long values are shortened. An existing report
    is replaced; any other file needs --force. A damaged run is shown up to the damage, with exit code 4.

    A report of one run also shows what changed since the previous run of the evaluation in the same directory.

    With --all, it has the `history` of every evaluation. A run is linked to its report if the report is next to the page
    and named after the run's path: capitals-0001.html for runs/capitals/0001; a change is linked to the report of both runs,
    capitals-0001--capitals-0002.html.

    \b
    evaljournal report --open
    evaljournal report runs/capitals/0001 -o capitals.html
    evaljournal report runs/capitals/0001 runs/capitals/0002 -o compared.html
    evaljournal report @mini @large
    evaljournal report --all -o index.html
    """
    if all_runs and second is not None:
        raise click.UsageError("--all takes one directory of runs, not two runs")
    target = target or Path(_INDEX if all_runs else _TARGET)

    suite = None if all_runs or second is not None else find_suite(path)
    first = None if all_runs or suite is not None else find_reference(path)
    check_target(target, directory=False, force=force or is_page(target))

    problems: list[JournalError | None] = []
    if suite is not None:
        problems = _write_suite(suite, target, force=force)
        subject = str(suite)
    elif first is None:
        subject = _write_index(path or RUNS, target)
    else:
        references = [first] if second is None else [first, second]
        if second is None and first.variant is not None:
            raise UsageError(f"{first} is one variant; pass a second one to compare it with, or the whole run")
        runs = {reference.path: read_page_run(reference.path) for reference in references}
        if second is None:
            page_run = runs[first.path]
            claims = claim_summaries(first.path, page_run.run.state.head)
            pieces = page([attrs.evolve(page_run, since=_since(page_run.run), claims=claims).data()])
        else:
            for reference in references:
                check_variant(runs[reference.path].run, reference.variant)
            pieces = side_by_side([(runs[reference.path], reference.variant) for reference in references])
        write_atomically(target, pieces)
        problems = [page_run.run.problem for page_run in runs.values()]
        subject = " and ".join(map(str, references))

    echo(f"{target}: report of {subject}, {target.stat().st_size / 1e6:,.2f} MB", err=True)
    if open_browser:
        webbrowser.open(target.resolve().as_uri())
    for problem in problems:
        exit_if_damaged(problem)


def _since(run: LoadedRun) -> dict[str, Any] | None:
    """Return what changed since the previous run, from the digests of both; None if one is too large to show in full."""
    items = histories(_escape_path(entry) for entry in entries_since(run, max_size=FULL_SIZE))
    return since_data(items[0]) if items else None


def _escape_path(entry: Entry) -> Entry:
    return entry._replace(path=escape_controls(entry.path))  # A path need not be valid UTF-8.


def _write_suite(path: Path, target: Path, *, force: bool) -> list[JournalError | None]:
    """Write the page of a suite, and next to it the report of each run, such as 0001-capitals.html; return their damage."""
    runs = [run for run in read_suite(path).runs.values() if is_run(run)]
    files = {run: target.with_name(f"{_page_name(run, path.parent)}.html") for run in runs}
    for file in files.values():
        check_target(file, directory=False, force=force or is_page(file))
    problems: list[JournalError | None] = []
    for run, file in files.items():
        page_run = read_page_run(run)
        write_atomically(file, page([page_run.data()], None))
        problems.append(page_run.run.problem)
    _write_index(path, target, path.parent)
    return problems


def _page_name(run: Path | str, directory: Path) -> str:
    return "-".join(Path(os.path.relpath(run, directory)).parts)


def _write_index(directory: Path, target: Path, base: Path | None = None) -> str:
    """Write the page with all runs, linked to reports that are named after their paths in `base`; return what it is about."""
    if not directory.is_dir() and directory != RUNS:
        raise UsageError(f"{directory} is not a directory; --all takes a directory of runs")
    entries = read_entries(directory)
    names = {escape_controls(entry.path): _page_name(entry.path, base or directory) for entry in entries}
    items = histories(map(_escape_path, entries))
    pairs = {(point.previous, point.path) for item in items for point in item.points if point.previous is not None}
    links = _find_pages(target, names)
    comparisons = _find_pages(target, {(a, b): f"{names[a]}--{names[b]}" for a, b in sorted(pairs)})
    write_atomically(target, index_page(items, links, comparisons))
    return plural(len(entries), "run")


def _find_pages(target: Path, names: Mapping[_Key, str]) -> dict[_Key, str]:
    """Return the addresses of the pages that exist next to `target`, given their names without `.html`."""
    files = {key: target.with_name(f"{name}.html") for key, name in names.items()}
    return {key: quote(os.fsencode(file.name), safe="") for key, file in files.items() if is_page(file)}
