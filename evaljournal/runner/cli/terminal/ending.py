"""The result of a run: its gates and its exit code."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NoReturn

from evaljournal.replay import RunState
from evaljournal.replay.results.summary import summarize
from evaljournal.replay.results.view_json import view_json
from evaljournal.runner.cli import OUTPUT_FAILED, UNFINISHED, CommandError
from evaljournal.runner.cli.terminal.display import print_json
from evaljournal.runner.cli.terminal.output import OutputFailed, echo, flush_output
from evaljournal.runner.definition.gates import gate_results, trial_problems
from evaljournal.runner.errors import command

FAILED: Final = 1
UNDECIDED: Final = 5


def finish(
    state: RunState,
    path: Path,
    *,
    as_json: bool,
    report: str = "",
    stop_reason: str = "",
    scorers: Iterable[str] = (),
    output_problem: str = "",
    **fields: Any,
) -> NoReturn:
    """Print the report of a run and exit with the code of the run.

    With `as_json`, its summary and `fields` are printed as JSON, and the report goes to standard error. `output_problem` is
    why other files of the run are incomplete: it is printed last, and the exit code of a finished run is then 1.
    """
    code = exit_code(state, stopped=bool(stop_reason), scorers=scorers, path=path) or (FAILED if output_problem else 0)
    try:
        if report:
            echo(report, err=as_json)
        if as_json:
            summary = {"stopped": stop_reason or None, **fields, "exit_code": code, **view_json(summarize(state))}
            print_json({"path": str(path), **summary})
        flush_output()
        if output_problem:
            echo(f"Error: {output_problem}", err=True)
    except OutputFailed as exc:
        ending = f"not finished: {stop_reason}" if stop_reason else "finished"
        message = f"{exc}; only the summary is missing, the run is {ending}; {command('status', path)} shows it"
        raise CommandError(message, OUTPUT_FAILED) from exc
    sys.exit(code)


def exit_code(state: RunState, *, stopped: bool, scorers: Iterable[str] = (), path: Path | None = None) -> int:
    """Return the exit code of a run: 3 if it was stopped, 1 if it has errors, unscored outputs or a missed gate.

    5 if only gates on its review are missed, for which there are too few labels.
    """
    if stopped:
        return UNFINISHED
    missed = [result for result in gate_results(state, path) if not result.passed]
    if trial_problems(state, scorers):
        return FAILED
    return 0 if not missed else UNDECIDED if all(result.is_undecided for result in missed) else FAILED
