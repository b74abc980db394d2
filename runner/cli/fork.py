"""The command `evaljournal fork`."""

from pathlib import Path

import click
import trio

from replay.ending import next_command, progress_in_words, total_trials
from replay.text import plural
from runner.cli._common import RunType
from runner.fork import fork as fork_run


@click.command()
@click.argument("run", type=RunType())
@click.option("--at", type=int, metavar="SEQ", help="The last record to take over; else the last there is.")
@click.option("-o", "--output", "target", metavar="NEW", required=True, type=click.Path(path_type=Path), help="Where to.")
def fork(run: Path, at: int | None, target: Path) -> None:
    """Start a new run, NEW, from a point of an old one.

    What was done by then keeps its outcome; `resume NEW` goes on, and makes those attempts again that were in the air. The old
    run is only read, and may be going on; a damaged one can be forked at any point before the damage.

    \b
    evaljournal fork runs/capitals/0001 --at 276 -o runs/capitals/0001-again
    evaljournal resume runs/capitals/0001-again
    """
    forked = trio.run(fork_run, run, target, at)
    state = forked.state
    taken_in = f"{state.done:,} done of {plural(state.total, 'trial')} taken in by then"
    what = f"{progress_in_words(state)} done" if total_trials(state) else taken_in
    click.echo(f"{target}: forked from {run} at record {forked.seq:,}; {what}", err=True)
    click.echo(f"next: {next_command(state, target)}", err=True)
