"""The command `evaljournal salvage`."""

from functools import partial
from pathlib import Path
from typing import Final

import click
import trio

from evaljournal.journal import salvage as salvage_journal
from evaljournal.journal.disk.segments import is_review
from evaljournal.replay.render.ending import unscored_lines
from evaljournal.replay.results.summary import unscored_counts
from evaljournal.replay.runs.loaded_run import load
from evaljournal.replay.text import plural, printable
from evaljournal.runner.cli import DAMAGED, CommandError
from evaljournal.runner.cli.arguments import RunType, find_run, output_option
from evaljournal.runner.cli.commands.annotate import carry_over
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.errors import command

_MAX_PROBLEM: Final = 1_000
"""Maximum characters of the source's problem that are printed."""


@click.command()
@click.argument("run", type=RunType(partial(find_run, or_review=True)))
@output_option("NEW", "Directory of the new run.", required=True)
def salvage(run: Path, target: Path) -> None:
    """Copy the intact records of a damaged journal to a new run, NEW.

    The damaged run is not changed. Intact records that depend on lost ones are kept in NEW/excluded.jsonl; `resume`
    re-runs their trials. Outputs whose scores are lost are listed; `rescore NEW` scores them. If the start of the run is lost,
    `resume` needs --task. Exit code 4 if the system could not read a file (EIO, permissions): the rest is copied; salvage again
    once the file is readable.

    \b
    evaljournal salvage runs/capitals/0001 -o runs/capitals/0001-salvaged
    """
    result = trio.run(salvage_journal, run, target)
    if not is_review(run):
        carry_over(target, [run])

    if result.problem is not None:
        echo(printable(result.problem.message, _MAX_PROBLEM), err=True)
    echo(f"{target}: {plural(result.kept, 'record')} kept, {result.lost:,} lost, {result.excluded:,} excluded", err=True)

    state = load(target).state
    if state.started is not None and state.started.is_replacement:
        echo(
            f"the run's definition and settings are lost; to continue: {command('resume', target, ' --task REFERENCE')}",
            err=True,
        )

    unscored = unscored_counts(state)
    for line in unscored_lines(unscored, target):
        echo(line, err=True)
    if unscored and state.settings.get("workspace"):
        echo("commands score only outputs whose workspaces were kept; run the other trials again, with --keep all", err=True)
    echo(f"next: evaljournal verify {target}", err=True)

    if result.unreadable_files:
        names = printable(", ".join(result.unreadable_files), _MAX_PROBLEM)
        raise CommandError(f"{run}: the system could not read {names}", DAMAGED)
