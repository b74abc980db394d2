"""The command `evaljournal status`."""

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from replay import RunState
from replay.ending import final_report
from replay.summary import summarise
from replay.summary_text import group_lines
from replay.text import plural, printable
from runner.cli._common import run_argument

if TYPE_CHECKING:
    pass
from runner.cli._display import RunView, age, exit_if_damaged, groups_by, open_run, print_json, print_screen, summary_of

_GROUPS: Final = 20
"""Groups that are told one by one; `--json` has all."""

_LITTLE: Final = 1 << 20
"""Bytes below which a disk is as good as full."""


@click.command()
@run_argument
@click.option("--by", metavar="KEY", help="Also tell the trials apart by this key of their metadata.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON.")
def status(path: Path, by: str | None, as_json: bool) -> None:
    """Tell where a run stands: one that is going on, was stopped, is finished, or is damaged.

    A damaged run is told up to the damage, and the code is 4. Nothing is changed, and a run that is going on is not disturbed.

    \b
    evaljournal status
    evaljournal status runs/capitals/0001 --by difficulty
    evaljournal status runs/capitals/0001 --json | jq .trials
    """
    seen = open_run(path)
    if by is not None and not as_json:
        groups = summarise(seen.state, groups=groups_by(seen, by)).groups
        click.echo("\n".join(group_lines(groups or {}, by, most=_GROUPS)))
    if as_json:
        print_json(summary_of(seen, by))
    elif seen.is_live or seen.problem is not None:
        print_screen(seen.history, seen.state.t + age(seen.state, time.time()) if seen.problem is None else None)
        if seen.problem is None:
            click.echo(_by_whom(seen.state))
    else:
        click.echo(final_report(seen.state, path=seen.path))
        _say_room(seen)
    exit_if_damaged(seen.problem, quiet=as_json)


def _say_room(seen: RunView) -> None:
    """Say that a disk is full, where a run was cut off on it: its last word may not have had room."""
    free = shutil.disk_usage(seen.path).free
    if seen.status == "interrupted" and free < _LITTLE:
        click.echo(f"its disk has {plural(free, 'byte')} left, which may be why; make room before it is resumed")


def _by_whom(state: RunState) -> str:
    session = state.sessions[-1] if state.sessions else None
    by = f" by process {session.pid} on {printable(session.host)}" if session else ""
    return f"going on{by}; the last record is of {printable(state.at)}"
