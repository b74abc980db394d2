"""The command `evaljournal clean`."""

from pathlib import Path

import click
import trio

from evaljournal.journal.ownership import is_own_run
from evaljournal.replay import RunState
from evaljournal.replay.text import plural
from evaljournal.runner.cli import FAILED
from evaljournal.runner.cli.arguments import RunType
from evaljournal.runner.cli.options.decorators import task_option
from evaljournal.runner.cli.options.locate import locate_evaluation
from evaljournal.runner.cli.terminal.display import exit_if_damaged, open_run
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.cli.terminal.user_code import user_code
from evaljournal.runner.errors import UsageError, unwrap_exception_groups
from evaljournal.runner.sessions.rescore import Cleaning


@click.command()
@click.argument("run", type=RunType())
@task_option("Resume")
@click.option("--kept", is_flag=True, help="Also remove the workspaces that the run keeps, such as those of failing trials.")
def clean(run: Path, reference: str | None, *, kept: bool) -> None:
    """Remove what a killed run has not torn down: programs, set-ups and workspaces.

    Programs of its attempts are ended, the teardown is called for each set-up without one, with its recorded handle, and
    workspaces that are not kept and not needed for scores are removed. No attempt starts; `resume` does the same before it
    continues. Only runs that you have started on this machine are cleaned.

    \b
    evaljournal clean runs/fix/0001
    evaljournal clean runs/fix/0001 --kept
    """
    view = open_run(run)
    exit_if_damaged(view.problem)

    with user_code(), unwrap_exception_groups():
        if not is_own_run(run):
            raise UsageError(f"{run} has sessions of another user or machine; clean it there")
        before = len(view.state.set_ups.open)
        evaluation, _ = locate_evaluation(run, reference, verb="clean", state=RunState())
        cleaning = Cleaning(evaluation, run, removes_kept=kept)
        state = trio.run(cleaning.run).state

    remaining = len(state.set_ups.open)
    removed = plural(cleaning.removed_workspaces, "workspace")
    echo(f"{run}: {plural(before - remaining, 'set-up')} torn down, {removed} removed", err=True)
    if remaining:
        echo(f"{plural(remaining, 'set-up')} could not be torn down; `evaljournal show TRIAL` has the error", err=True)
    if left := cleaning.remaining_workspaces:
        echo(f"{plural(len(left), 'workspace')} could not be removed, such as {left[0]}", err=True)
    if remaining or left:
        raise click.exceptions.Exit(FAILED)
