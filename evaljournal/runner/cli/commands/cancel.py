"""The command `evaljournal cancel`."""

from pathlib import Path
from typing import Any

import click

from evaljournal.replay import RunState
from evaljournal.replay.render.ending import next_command
from evaljournal.replay.text import money, plural
from evaljournal.runner.cli.arguments import RunType
from evaljournal.runner.cli.options.decorators import task_option, trust_option
from evaljournal.runner.cli.options.locate import locate_evaluation
from evaljournal.runner.cli.session import CommandSession
from evaljournal.runner.cli.terminal.display import exit_if_damaged, open_run
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.cli.terminal.user_code import user_code


@click.command()
@click.argument("run", type=RunType())
@task_option("Resume")
@trust_option("Resume")
def cancel(run: Path, reference: str | None, trust: bool) -> None:
    """Cancel the open batches of a run.

    It waits until the provider has ended them, which can take minutes, and collects the results of finished lines: these are
    charged. Nothing is sent; `resume` sends the other lines again. A batch that was deleted at the provider, or whose results
    were, is recorded as ended. With Ctrl-C, the batches that have not ended stay open.

    \b
    evaljournal cancel runs/capitals/0001
    """
    view = open_run(run)
    exit_if_damaged(view.problem)
    if not (numbers := list(view.state.batches.lines.open)):
        echo(f"{run} has no open batches", err=True)
        return

    state = RunState()
    options: dict[str, Any] = {
        **dict.fromkeys(("json", "verbose", "export", "otlp", "otlp_content", "head_file")),
        "plain": True,
        "resume": True,
        "cancel_batches": True,
        "trust": trust or reference is not None,
        "state": state,
    }
    with user_code():
        evaluation, reference = locate_evaluation(run, reference, verb="cancel", trust=trust, state=state)
        session = CommandSession(evaluation, reference, {}, options)
        outcome = session.run(run)

    state = outcome.state
    if state.batches.lines.open:
        session.finish(outcome)
    for number in numbers:
        echo(_batch_line(state, number), err=True)
    if missing := sum(state.batches[number].missing for number in numbers):
        echo(f"next: `{next_command(state, run)}` sends {plural(missing, 'line')} again", err=True)


def _batch_line(state: RunState, number: int) -> str:
    batch = state.batches[number]
    cost = f", {money(batch.usage['cost'])}" if batch.usage["cost"] else ""
    counts = f"{plural(batch.results, 'result')} used, {plural(batch.missing, 'line')} without a result"
    return f"batch {number} ({batch.state}): {counts}{cost}"
