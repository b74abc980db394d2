"""A run as commands show it: on a terminal, in a table or as JSON."""

import shlex
import socket
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
import orjson

from journal import JournalError
from journal.lock import is_held
from journal.scan import ScanStop
from replay import LoadedRun, RunState, idle, load
from replay.ending import next_command
from replay.loaded_run import reject_invalid_record
from replay.screen import panel
from replay.summary import Grouping, in_json, summarise
from runner.cli import DAMAGED, InvalidUsage
from runner.suggest import nearest

if TYPE_CHECKING:
    from rich.console import Console, Group


@attrs.frozen
class RunView:
    """A run as its journal shows it, as far as the journal can be trusted."""

    history: LoadedRun
    is_live: bool
    """Whether a writer is alive; of an earlier point, whether one was."""

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.history.path

    @property
    def state(self) -> RunState:
        """How far it has come."""
        return self.history.state

    @property
    def problem(self) -> JournalError | None:
        """What is wrong with the journal behind the last record that was taken in."""
        return self.history.problem

    @property
    def status(self) -> str:
        """Say how the run stands, in one word."""
        if self.problem is not None:
            return "damaged"
        if self.is_live:
            return "running"
        return {"": "interrupted", "finished": "finished"}.get(self.state.ending, "stopped")


def open_run(path: Path, at: int | None = None) -> RunView:
    """Take in a run, whether it is live, stopped, finished or damaged, up to record `at`; nothing is changed."""
    is_live = is_held(path)  # Before it is read: a writer that ends meanwhile has then written its last word.
    history = load(path, at)
    return RunView(history, is_live if history.is_last else not history.state.ending)


def groups_by(seen: RunView, by: str) -> dict[str, str]:
    """Find the group of every trial by a key of its metadata; refuse a key that none has."""
    found = Grouping(by)
    for record in seen.history.records():
        found.take(record)
    if by not in found.keys:
        raise InvalidUsage(f"no case of {seen.path} has {by!r} in its metadata{nearest(by, found.keys)}")
    return found.groups


def exit_if_damaged(problem: JournalError | None, *, quiet: bool = False) -> None:
    """End with code 4, and say why, where what was shown goes only as far as the damage."""
    if problem is not None:
        if not quiet:
            click.echo(f"that is how far it can be trusted: {problem}", err=True)
        sys.exit(DAMAGED)


def warn_unconfirmed(stop: ScanStop | None) -> None:
    """Say what stands behind the last record, where something does that nobody was promised."""
    if stop is not None:
        click.echo(f"behind record {stop.seq - 1:,}: {stop.check}", err=True)


def summary_of(seen: RunView, by: str | None = None) -> dict[str, Any]:
    """Say in JSON where a run stands."""
    path, state = seen.path, seen.state
    return {
        "path": str(path),
        "status": seen.status,
        "is_live": seen.is_live,
        "problem": None if seen.problem is None else str(seen.problem),
        "durable": seen.history.durable,
        "next": _next(seen),
        "waiting": waiting_of(seen),
        **in_json(summarise(state, groups=None if by is None else groups_by(seen, by))),
    }


def waiting_of(seen: RunView) -> list[dict[str, Any]]:
    """Return in JSON why slots of a running run are idle, now or at the last record that was asked for."""
    if not seen.is_live or seen.problem is not None:
        return []
    now = seen.state.t + (age(seen.state, time.time()) if seen.history.is_last else 0.0)
    return idle.in_json(idle.reasons(seen.state, now=now, total=seen.history.total))


def _next(seen: RunView) -> str:
    """Name the command that comes next: for a run as it is, as it stood, or as far as it is whole."""
    if seen.problem is not None:
        return f"evaljournal salvage {shlex.quote(str(seen.path))} -o NEW"
    return next_command(seen.state, seen.path) if seen.history.is_last else fork_command(seen.path, seen.history.seq)


def fork_command(path: Path, seq: int) -> str:
    """Name the command that goes on from an earlier point."""
    return f"evaljournal fork {shlex.quote(str(path))} --at {seq} -o NEW"


def print_json(value: Any) -> None:
    """Print what was asked for as JSON."""
    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))  # A forged name may be a number.


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns; the first says what they are."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def terminal(*, stderr: bool = False) -> "Console":
    """Open the terminal to draw on; what is drawn is shown as it is, whatever it looks like."""
    from rich.console import Console  # noqa: PLC0415  # slow to import

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def print_screen(history: LoadedRun, now: float | None = None) -> None:
    """Draw the screen as it stood at a moment (in the seconds of `t`), or when the last record was written."""
    console = terminal()
    console.print(render_screen(history, history.state.t if now is None else now, console.width))


def age(state: RunState, now: float) -> float:
    """Tell how long ago the last record was written, where its clock on the wall is ours; else it is new to us."""
    if not state.sessions or state.sessions[-1].host != socket.gethostname():
        return 0.0
    try:
        return max(0.0, now - datetime.fromisoformat(state.at).timestamp())
    except ValueError:
        return 0.0


def render_screen(history: LoadedRun, now: float, width: int) -> "Group":
    """Draw the same screen that the run itself draws."""
    with reject_invalid_record(history.path, lambda: history.seq):
        return panel(
            history.state,
            now=now,
            durable=history.durable,
            total=history.total,
            width=width,
            before=history.before,
            title=str(history.path),
            goes_on=history.problem is None,
        )
