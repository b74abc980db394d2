"""The command `evaljournal simulate`."""

from pathlib import Path

import click

from replay.loaded_run import reject_invalid_record
from replay.text import as_words, duration, plural
from replay.view_json import view_json
from runner.cli._common import run_argument
from runner.cli._display import exit_if_damaged, open_run, print_json
from runner.cli._output import echo
from runner.concurrency import POLICIES
from runner.errors import UsageError
from runner.recompute.simulation import LIMITATION, Recording


@click.command()
@run_argument
@click.option("--policy", type=click.Choice(list(POLICIES)), help="Concurrency policy (default: the run's).")
@click.option("--slots", type=click.IntRange(min=1), metavar="N", help="Maximum concurrent attempts (default: the run's).")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def simulate(path: Path, policy: str | None, slots: int | None, as_json: bool) -> None:
    """Simulate a run on a virtual clock with another policy or number of slots, and compare the figures.

    Latencies and failures are taken from the journal, so the figures are estimates: under more load, an endpoint
    may be slower and rate limit more calls. Nothing is called or written.

    \b
    evaljournal simulate --policy aimd --slots 64
    evaljournal simulate runs/capitals/0001 --slots 4 --json | jq .simulated.duration
    """
    view = open_run(path)
    recording = Recording()
    with reject_invalid_record(path, lambda: recording.seq):
        for record in view.records():
            recording.apply(record)
    try:
        figures = recording.simulate(policy=policy, slots=slots)
    except UsageError as exc:
        raise UsageError(f"{view.path}: {exc}") from exc
    except OverflowError as exc:  # The clock ends at the year 9999 or earlier.
        raise UsageError(f"{view.path} has a duration that is too long to simulate") from exc
    columns = {"recorded": view_json(recording.figures), "simulated": view_json(figures)}
    trials = len(recording.done_trials)
    if as_json:
        counts = {"trials": trials, "trials_excluded": recording.excluded_count}
        print_json({"path": str(view.path), **columns, **counts, "limitation": LIMITATION})
    else:
        exclusions = f"; excluded: {recording.excluded_count:,} unfinished" if recording.excluded_count else ""
        echo(f"{view.path}: {plural(trials, 'trial')} simulated on a virtual clock{exclusions}")
        cells = ((as_words(name), *(_cell(figure[name]) for figure in columns.values())) for name in columns["recorded"])
        rows = [("", *columns), *cells]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for name, recorded_figure, figure in rows:
            echo(f"{name:<{widths[0]}}  {recorded_figure:>{widths[1]}}  {figure:>{widths[2]}}")
        echo(LIMITATION)
    exit_if_damaged(view.problem)


def _cell(value: str | float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else duration(value) if isinstance(value, float) else value
