"""The result of a run: its gates and its exit code."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NoReturn

import attrs
import click

from replay import RunState
from replay.summary import summarise
from runner.cli import UNFINISHED
from runner.cli._display import print_json
from runner.definition.gates import missed

FAILED: Final = 1


def finish(
    state: RunState, path: Path, *, as_json: bool, stopped: str = "", scorers: Iterable[str] = (), **facts: Any
) -> NoReturn:
    """Print the gates that a finished run did not reach and, `as_json`, a summary with more facts; exit with its code."""
    for gate in () if stopped else missed(_gates(state), state):
        click.echo(f"not reached: {gate}", err=True)
    code = exit_code(state, stopped=bool(stopped), scorers=scorers)
    if as_json:
        summary = {"stopped": stopped or None, **facts, "exit_code": code, **attrs.asdict(summarise(state))}
        print_json({"path": str(path), **summary})
    sys.exit(code)


def _gates(state: RunState) -> list[str]:
    gates = state.settings.get("fail_under")
    return [str(gate) for gate in gates] if isinstance(gates, list) else []


def exit_code(state: RunState, *, stopped: bool, scorers: Iterable[str] = ()) -> int:
    """Return the exit code of a run: 1 if trials failed, outputs are unscored or a gate did not pass.

    Only the run's own scorers and `scorers` count: one that was tried once with `rescore` and failed is ignored.
    """
    if stopped:
        return UNFINISHED
    counted = {*(state.started.scorers if state.started else ()), *scorers}
    is_unscored = any(tally.failed for name, tally in state.scores.items() if name.partition(".")[0] in counted)
    return FAILED if state.failed or is_unscored or missed(_gates(state), state) else 0
