"""The command `evaljournal resume`."""

from pathlib import Path
from typing import Any, NoReturn

import click

from journal.events import RunFinished
from replay import RunState
from runner.cli._common import run_argument
from runner.cli._display import exit_if_damaged, open_run
from runner.cli._ending import finish
from runner.cli._head_file import write_head
from runner.cli._locate import locate_evaluation
from runner.cli._option_decorators import (
    GroupedCommand,
    grouped_option,
    only_variant_option,
    resume_options,
    trust_option,
    yes_option,
)
from runner.cli._options import overrides
from runner.cli._output import echo
from runner.cli._session import CommandSession, nat_output, user_code
from runner.cli._sides import check_variant
from runner.definition.gates import check_gates, gate_problems
from runner.run_paths import last_record
from runner.suggest import command


@click.command(cls=GroupedCommand)
@run_argument
@grouped_option(
    "Resume",
    "--adopt",
    is_flag=True,
    help="Accept changes to the task, cases, scorers or variants; unchanged trials keep their results.",
)
@grouped_option("Resume", "--retry-failed", is_flag=True, help="Retry failed trials.")
@grouped_option(
    "Resume",
    "--on-ambiguous",
    type=click.Choice(["retry", "fail"]),
    default="retry",
    help="What to do with attempts that were interrupted during their call (default: retry).",
)
@grouped_option("Resume", "--task", "reference", metavar="REFERENCE", help="New location of the evaluation, if it was moved.")
@trust_option("Resume")
@only_variant_option("Resume", "Only this variant in this session; the others stay open; repeatable.")
@yes_option("Resume")
@resume_options
def resume(path: Path, reference: str | None, trust: bool, **options: Any) -> None:
    """Resume an interrupted run.

    It continues in the same journal; completed trials are not called again. Options that were passed before keep their values
    unless they are passed here; other settings are read from the evaluation again. If the task, its cases, scorers or variants
    have changed, nothing is started without --adopt. A finished run is changed only by --adopt or --retry-failed; --fail-under
    is checked against it. A run that you did not start on this machine needs --trust or --task: its journal names the file,
    command or URL to use.

    \b
    evaljournal resume
    evaljournal resume runs/capitals/0001 --slots 2 --timeout 120
    evaljournal resume runs/capitals/0001 --retry-failed
    """
    last = last_record(path)
    output = nat_output(options)
    finished = last.event if last is not None and isinstance(last.event, RunFinished) else None
    if finished is not None and not options["adopt"] and not (options["retry_failed"] and finished.failed):
        view = open_run(path)
        exit_if_damaged(view.problem)
        for variant in options["only_variant"]:
            check_variant(view, variant)
        _use_gates(view.state, options["fail_under"])
        if output is not None:
            output.prepare(path)
            output.finish(path)
        write_head(options["head_file"], view.state.head)
        _finish(path, view.state, as_json=options["json"])
    changes = overrides(options)
    with user_code():
        loaded = locate_evaluation(path, reference, trust=trust)
        if output is not None:
            output.prepare(path)
        options["trust"] = trust or reference is not None
        session = CommandSession(loaded, changes, options, resume=True)
        outcome = session.run(path)
    session.finish(outcome)


def _use_gates(state: RunState, gates: tuple[str, ...]) -> None:
    """Replace the gates of a finished run with those of the command line."""
    check_gates(gates, {**dict(state.started.scorers if state.started else {}), **state.scores})
    if gates:
        state.settings["fail_under"] = list(gates)


def _finish(path: Path, state: RunState, *, as_json: bool) -> NoReturn:
    """Report that there is nothing to resume; the exit code is that of the run."""
    echo(f"{path} is finished: {state.completed:,} ok, {state.failed:,} failed; nothing to resume", err=True)
    if state.failed:
        echo(f"{command('resume', path, ' --retry-failed')} retries the failed trials", err=True)
    for line in gate_problems(state):
        echo(line, err=True)
    finish(state, path, as_json=as_json)
