"""The command `evaljournal history`."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import click

from evaljournal.journal import JournalError
from evaljournal.journal.disk.segments import total_size
from evaljournal.replay import LoadedRun, load
from evaljournal.replay.history.digest import digest
from evaljournal.replay.history.history import Entry, History, histories
from evaljournal.replay.history.text import basis_text, change_lines, table, trend_lines
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.text import plural, printable
from evaljournal.runner.cli.digests import DigestCache
from evaljournal.runner.cli.terminal.display import corrected_json, corrected_lines, has_labels, print_json, print_table
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.errors import UsageError, suggest
from evaljournal.runner.runs.paths import RUNS, run_start, runs_under

_DEFAULT_LAST: Final = 20


@click.command()
@click.argument("evaluation", required=False)
@click.option(
    "--last",
    "count",
    metavar="K",
    type=click.IntRange(min=1),
    default=_DEFAULT_LAST,
    help=f"Number of newest runs to show of each evaluation (default: {_DEFAULT_LAST}).",
)
@click.option("--score", "scorer", metavar="NAME", help="The score to show (default: the first).")
@click.option("--json", "as_json", is_flag=True, help="Print a list of evaluations as JSON.")
def history(evaluation: str | None, count: int, scorer: str | None, as_json: bool) -> None:
    """Show the results of an evaluation run by run, and the cases that broke, were fixed or are flaky.

    EVALUATION is a name, or a directory of runs; the default is every evaluation under runs/. A score is the mean over the
    cases that a run has in common with the newest finished run, with its 95 % confidence interval.

    \b
    evaljournal history
    evaljournal history capitals --last 50
    evaljournal history /mnt/archive/runs --json
    """
    directory = _directory(evaluation)
    entries = _find_entries(evaluation, directory)
    items = histories(entries, last=count, scorer=scorer)
    if scorer is not None:
        _check_scorer(scorer, entries)

    if as_json:
        corrected = [{path: corrected_json(load(path)) for path in _labeled_paths(item)} for item in items]
        print_json([{**view_json(item), "corrected": scores} for item, scores in zip(items, corrected, strict=True)])
        return

    if not items:
        is_empty = not runs_under(directory)
        hint = "start one with `evaljournal run evals/capitals.py`" if is_empty else "merge them with `evaljournal merge`"
        echo(f"{'no runs' if is_empty else 'only shards'} under {printable(str(directory), 200)}/; {hint}", err=True)
    for index, item in enumerate(items):
        if index:
            echo("")
        _print_history(item)


def read_entries(directory: Path) -> list[Entry]:
    """Read the digests of the runs in a directory; shards are part of the run that they are merged into."""
    entries: list[Entry] = []
    with DigestCache() as cache:
        for path in runs_under(directory):
            run, columns = cache.read(path)
            if run.evaluation is None:  # The run is damaged before its first record.
                run = attrs.evolve(run, evaluation=path.parent.name)
            if not run.shard:
                entries.append(Entry(str(path), run, columns))
    return entries


def entries_since(run: LoadedRun, *, max_size: int) -> list[Entry]:
    """Return a run after the last usable one before it: of the same evaluation, in the same directory.

    Empty without one, or if one of the two has more than `max_size` bytes: the cases of both are kept in memory.
    """
    evaluation = run.state.started.evaluation if run.state.started else None
    starts: list[tuple[str, Path]] = []
    for path in {file.parent for file in run.path.parent.glob("[!.]*/journal-*.jsonl")}:
        with contextlib.suppress(JournalError, OSError):
            start = run_start(path)
            if start is not None and not start[0].shard and start[0].evaluation == evaluation:
                starts.append((start[1], path))

    starts.sort()
    earlier_paths = [path for _, path in starts]
    earlier_paths = earlier_paths[: earlier_paths.index(run.path)] if run.path in earlier_paths else []

    with DigestCache() as cache:
        for path in reversed(earlier_paths):
            if max(total_size(run.path), total_size(path)) > max_size:
                break
            earlier_run, columns = cache.read(path)
            if earlier_run.is_usable and columns:
                return [Entry(str(path), earlier_run, columns), Entry(str(run.path), *digest(run))]
    return []


def _directory(argument: str | None) -> Path:
    """Return the directory that an argument names, itself or under runs/; otherwise runs/."""
    return next((path for path in (Path(argument), RUNS / argument) if path.is_dir()), RUNS) if argument else RUNS


def _find_entries(argument: str | None, directory: Path) -> list[Entry]:
    entries = read_entries(directory)
    if argument is None or directory != RUNS or Path(argument).is_dir():
        return entries
    names = {entry.run.evaluation or "": None for entry in entries}
    if argument not in names:
        raise UsageError(f"no evaluation {argument!r} under {RUNS}/, and no such directory{suggest(argument, names)}")
    return [entry for entry in entries if entry.run.evaluation == argument]


def _check_scorer(scorer: str, entries: list[Entry]) -> None:
    scorers = {name: None for entry in entries for name in entry.run.scorers}
    if scorer not in scorers:
        raise UsageError(f"no run has a numeric score {scorer!r}{suggest(scorer, scorers)}")


def _labeled_paths(history: History) -> list[str]:
    """Return the runs that have labels; no other run is read."""
    return [path for path in dict.fromkeys(point.path for point in history.points) if has_labels(Path(path))]


def _corrected_rows(history: History) -> Iterator[str]:
    for path in _labeled_paths(history):
        yield from (f"{printable(Path(path).name, 40)}: {line}" for line in corrected_lines(load(path)))


def _print_history(history: History) -> None:
    runs = plural(len({point.path for point in history.points}), "run")
    echo(", ".join(filter(None, [f"{printable(history.evaluation)}: {runs}", basis_text(history)])))
    print_table(table(history))
    for line in (*trend_lines(history), *_corrected_rows(history), *change_lines(history)):
        echo(line)
