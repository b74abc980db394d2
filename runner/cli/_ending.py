"""How a run ended: its gates and its exit code."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import click

from replay import RunState
from runner.cli import UNFINISHED
from runner.definition.gates import missed

if TYPE_CHECKING:
    pass

FAILED: Final = 1


def gates_of(state: RunState) -> list[str]:
    """Say what scores a run must reach, by its own settings."""
    gates = state.settings.get("fail_under")
    return [str(gate) for gate in gates] if isinstance(gates, list) else []


def print_missed_gates(state: RunState) -> None:
    """Say last which scores were not reached."""
    for why in missed(gates_of(state), state):
        click.echo(f"not reached: {why}", err=True)


def exit_code(state: RunState, *, stopped: bool, asked: Iterable[str] = ()) -> int:
    """Say in a number how a run ended; a trial that a scorer could not judge is no success either, nor is a gate not reached.

    The scorers that count are the run's own, and those that were `asked` just now: one that was tried on the outputs once, and
    was of no use, must not spoil the run for good.
    """
    if stopped:
        return UNFINISHED
    counted = {*(state.started.scorers if state.started else ()), *asked}
    unscored = any(tally.failed for name, tally in state.scores.items() if name.partition(".")[0] in counted)
    return FAILED if state.failed or unscored or missed(gates_of(state), state) else 0
