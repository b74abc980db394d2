"""The result of a run: its gates and its exit code."""

from collections.abc import Iterable
from typing import Final

import click

from replay import RunState
from runner.cli import UNFINISHED
from runner.definition.gates import missed

FAILED: Final = 1


def _gates(state: RunState) -> list[str]:
    gates = state.settings.get("fail_under")
    return [str(gate) for gate in gates] if isinstance(gates, list) else []


def print_missed_gates(state: RunState) -> None:
    """Print the gates that were not reached."""
    for gate in missed(_gates(state), state):
        click.echo(f"not reached: {gate}", err=True)


def exit_code(state: RunState, *, stopped: bool, scorers: Iterable[str] = ()) -> int:
    """Return the exit code of a run: 1 if trials failed, outputs are unscored or a gate was not reached.

    Only the run's own scorers and `scorers` count: one that was tried once with `rescore` and failed is ignored.
    """
    if stopped:
        return UNFINISHED
    counted = {*(state.started.scorers if state.started else ()), *scorers}
    is_unscored = any(tally.failed for name, tally in state.scores.items() if name.partition(".")[0] in counted)
    return FAILED if state.failed or is_unscored or missed(_gates(state), state) else 0
