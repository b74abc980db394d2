"""The command `evaljournal fork`."""

from pathlib import Path

import click
import trio

from evaljournal.replay.render.ending import next_action, progress_text, total_trials
from evaljournal.replay.text import plural
from evaljournal.runner.cli.arguments import RunType, output_option
from evaljournal.runner.cli.commands.annotate import carry_over
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.runs.fork import fork as fork_run


@click.command()
@click.argument("run", type=RunType())
@click.option("--at", "seq", type=int, metavar="SEQ", help="Last record to copy (default: the last).")
@output_option("NEW", "Directory of the new run.", required=True)
def fork(run: Path, seq: int | None, target: Path) -> None:
    """Start a new run, NEW, from any record of another.

    Trials that were completed by then keep their results; `resume NEW` continues and repeats the attempts that were in flight.
    The old run is not changed, and may be running; a damaged one can be forked at any record before the damage.

    \b
    evaljournal fork runs/capitals/0001 --at 276 -o runs/capitals/0001-again
    evaljournal resume runs/capitals/0001-again
    """
    new_run = trio.run(fork_run, run, target, seq)
    state = new_run.state
    counts = f"{plural(state.totals.done, 'trial')} done, {state.totals.total:,} read so far"
    progress = f"{progress_text(state)} done" if total_trials(state) else counts
    echo(f"{target}: forked from {run} at record {new_run.seq:,}; {progress}", err=True)
    if state.batches.lines.open:
        echo("both runs collect the open batches; `evaljournal cancel` of one cancels them for both", err=True)
    carry_over(target, [run])
    echo(f"next: {next_action(state, target)}", err=True)
