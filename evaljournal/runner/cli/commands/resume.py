"""The command `evaljournal resume`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import click
import trio

from evaljournal.replay import RunState
from evaljournal.replay.text import plural
from evaljournal.runner.cli.arguments import suite_argument
from evaljournal.runner.cli.options.decorators import (
    GroupedCommand,
    grouped_option,
    only_variant_option,
    resume_options,
    task_option,
    trust_option,
    yes_option,
)
from evaljournal.runner.cli.options.locate import locate_evaluation
from evaljournal.runner.cli.options.table import overrides
from evaljournal.runner.cli.options.values import command_values
from evaljournal.runner.cli.session import CommandSession, run_output, write_head
from evaljournal.runner.cli.terminal.display import check_variant, exit_if_damaged, finish, open_run
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.cli.terminal.user_code import user_code
from evaljournal.runner.definition.gates import check_gates, gate_problems
from evaljournal.runner.errors import UsageError, command
from evaljournal.runner.runs.paths import run_finish
from evaljournal.runner.sessions.session import seal
from evaljournal.runner.sessions.suite_file import is_suite


@click.command(cls=GroupedCommand)
@suite_argument
@grouped_option(
    "Resume",
    "--adopt",
    is_flag=True,
    help="Accept changes to the task, its files, cases, scorers or variants; unchanged trials keep their results.",
)
@grouped_option("Resume", "--retry-failed", is_flag=True, help="Retry the trials that have an error.")
@grouped_option(
    "Resume",
    "--on-ambiguous",
    type=click.Choice(["retry", "fail"]),
    default="retry",
    help="After an interrupted call: retry it, or end its trial with an error (default: retry).",
)
@task_option("Resume")
@trust_option("Resume")
@grouped_option(
    "Resume", "--wait", is_flag=True, help="Wait for the batches of the run; default: collect those that have ended."
)
@only_variant_option("Resume", "Only this variant in this session; the others stay open; repeatable.")
@yes_option("Resume")
@resume_options
def resume(path: Path, reference: str | None, trust: bool, wait: bool, **options: Any) -> None:
    """Resume an interrupted run or suite.

    It continues in the same journal; completed trials are not called again. Options that were passed before keep their values
    unless they are passed here; other settings are read from the evaluation again. If the task, a file that it depends on, its
    cases, scorers or variants have changed, nothing is started without --adopt. A finished run is changed only by --adopt or
    --retry-failed; --fail-under is checked against it. A run that you did not start on this machine needs --trust or --task:
    its journal names the file, command or URL to use. With --task alone, no setting that such a journal records applies.

    If the run has sent batches, those that have ended are collected, further ones are submitted, and the exit code is 3 as long
    as some are open.

    For a suite, unfinished evaluations are resumed, and those that have not started are started.

    \b
    evaljournal resume
    evaljournal resume runs/capitals/0001 --slots 2 --timeout 120
    evaljournal resume runs/capitals/0001 --retry-failed
    """
    options["leave"] = not wait
    values = command_values(options)
    if is_suite(path):
        from evaljournal.runner.cli.suites.command import resume_suite  # noqa: PLC0415  # most runs are in no suite

        resume_suite(path, values, options, reference, trust=trust)
    run_finished = run_finish(path)
    if run_finished is not None and not options["adopt"] and not (options["retry_failed"] and run_finished.failed):
        _report_finished(path, options)
    changes = overrides(values)
    with user_code():
        options |= {"resume": True, "trust": trust or reference is not None, "state": RunState()}
        evaluation, reference = locate_evaluation(path, reference, trust=trust, state=options["state"], values=values)
        if wait and not (changes.get("batch") or options["state"].settings.get("batch") or options["state"].batches):
            raise UsageError(f"{path} has sent no batches to wait for; remove --wait")
        run_output(options).prepare(path)
        if is_suite(path.resolve().parent):
            from evaljournal.runner.cli.suites.command import budget_share  # noqa: PLC0415  # most runs are in no suite

            options["budget_share"] = budget_share(path)
        session = CommandSession(evaluation, reference, changes, options)
        outcome = session.run(path)
    session.finish(outcome)


def _report_finished(path: Path, options: Mapping[str, Any]) -> NoReturn:
    """Report that there is nothing to resume; check the gates of the command line, otherwise those of the run."""
    view = open_run(path)
    exit_if_damaged(view.problem)
    list(gate_problems(view.state))  # An invalid gate is an error before anything is written.
    if trio.run(seal, path) is not None:
        view = open_run(path)

    for variant in options["only_variant"]:
        check_variant(view, variant)
    state, gates = view.state, options["fail_under"]
    check_gates(gates, {**dict(state.started.scorers if state.started else {}), **state.scores}, state.scores)
    if gates:
        state.settings["fail_under"] = list(gates)

    output = run_output(options)
    output.prepare(path)
    problem = output.finish(path)
    write_head(options["head_file"], state.head)

    echo(
        f"{path} is finished: {plural(state.completed, 'output')}, {plural(state.failed, 'error')}; nothing to resume", err=True
    )
    if state.failed:
        echo(f"{command('resume', path, ' --retry-failed')} retries the trials that have an error", err=True)
    for line in gate_problems(state, path):
        echo(line, err=True)

    finish(state, path, as_json=options["json"], output_problem=problem)
