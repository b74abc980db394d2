"""The command `evaljournal resume`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from journal.errors import command
from journal.events import RunFinished
from replay import RunState
from replay.summary import in_json, summarise
from runner.cli._common import run_argument
from runner.cli._display import exit_if_damaged, open_run, print_json
from runner.run_paths import last_record

if TYPE_CHECKING:
    pass
from runner.cli._ending import exit_code, print_missed_gates
from runner.cli._locate import locate_evaluation
from runner.cli._session import (
    CommandSession,
    check_gate,
    check_settings,
    given_settings,
    how_options,
    nat_output,
    prose_on_stderr,
)


@click.command()
@run_argument
@click.option("--adopt", is_flag=True, help="Take what has changed since: unchanged trials keep their results.")
@click.option("--retry-failed", is_flag=True, help="Try trials again that were given up.")
@click.option(
    "--on-ambiguous",
    type=click.Choice(["retry", "fail"]),
    default="retry",
    help="What becomes of an attempt that was cut off: its call may have taken effect.",
)
@click.option(
    "--task", "reference", metavar="REFERENCE", help="Where the evaluation is now, if it was moved; it is remembered."
)
@how_options
def resume(path: Path, reference: str | None, **options: Any) -> None:
    """Go on with a run that was stopped or cut off, in the same journal.

    What is done stays done; only what was in the air is asked again. What was said on the command line when the run began still
    holds, until something else is said here. A run that is finished is left as it is, and the code is that of the run as it
    stands; a --fail-under that is given here is asked of it all the same.

    How the run is carried out (slots, timeouts, retries …) may be changed, here or in the file. Where what is asked or how it
    is judged (the task, its cases, scorers or repeats) was changed, nothing is done unless --adopt takes the change.

    \b
    evaljournal resume
    evaljournal resume runs/capitals/0001 --slots 2 --timeout 120
    evaljournal resume runs/capitals/0001 --retry-failed
    """
    last = last_record(path)
    if (output := nat_output(options)) is not None:
        output.prepare(path)
    if last is not None and isinstance(last.event, RunFinished) and _has_nothing_to_do(last.event, options):
        seen = open_run(path)
        exit_if_damaged(seen.problem)
        _ask_finished(seen.state, options["fail_under"])
        if output is not None:
            output.finish(path)
        _say_finished(path, seen.state, as_json=options["as_json"])
    with prose_on_stderr():
        found, given = locate_evaluation(path, reference), given_settings(options)
        check_settings(found, given)
        session = CommandSession(found, given, options, resume=True)
        outcome = session.run(path)
    session.finish(outcome)


def _has_nothing_to_do(finished: RunFinished, options: dict[str, Any]) -> bool:
    return not options["adopt"] and not (options["retry_failed"] and finished.failed)


def _ask_finished(state: RunState, gates: tuple[str, ...]) -> None:
    """Hold a run that is finished against the gates that are given now, instead of its own."""
    for text in gates:
        check_gate(text, {**dict(state.started.scorers if state.started else {}), **state.scores})
    if gates:
        state.settings["fail_under"] = list(gates)


def _say_finished(path: Path, state: RunState, *, as_json: bool) -> NoReturn:
    """Say that there is nothing to do; the code is that of the run as it stands."""
    words = f"{path} is finished: {state.completed:,} ok, {state.failed:,} failed; there is nothing to resume"
    if state.failed:
        words += f"\n{command('resume', path, ' --retry-failed')} tries those that failed again"
    click.echo(words, err=True)
    print_missed_gates(state)
    code = exit_code(state, stopped=False)
    if as_json:
        print_json({"path": str(path), "stopped": None, "exit_code": code, **in_json(summarise(state))})
    sys.exit(code)
