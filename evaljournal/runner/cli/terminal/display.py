"""Runs as several commands open and show them: as text, as a screen, in a table or as JSON."""

import json
import shlex
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from evaljournal.journal import JournalError, Record
from evaljournal.journal.disk.lock import is_held
from evaljournal.journal.readers.scan import ScanStop
from evaljournal.replay import LoadedRun, RunState
from evaljournal.replay.render.ending import next_command
from evaljournal.replay.render.screen import panel
from evaljournal.replay.results.summary import summarize
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.runs import idle
from evaljournal.replay.runs.loaded_run import Apply, load, reject_invalid_record
from evaljournal.replay.runs.variants import variant_problem
from evaljournal.replay.text import columns
from evaljournal.runner.cli import DAMAGED
from evaljournal.runner.cli.arguments import RunReference
from evaljournal.runner.cli.terminal.corrected import corrected_json
from evaljournal.runner.cli.terminal.errors import render
from evaljournal.runner.cli.terminal.output import echo, write_data, writing_output
from evaljournal.runner.cli.terminal.stdio import command_stream
from evaljournal.runner.errors import UsageError, suggest

if TYPE_CHECKING:
    from rich.console import Console, Group

    from evaljournal.replay.results.comparison import Side


_LIMIT_FIELDS: Final = ("key", "unit", "size", "window", "source", "header")


def open_run(path: Path, seq: int | None = None, *, apply: Apply = LoadedRun.apply, run: LoadedRun | None = None) -> LoadedRun:
    """Read a run, in any status, up to record `seq`; into `run`, if that is passed."""
    is_live = is_held(path)  # Checked first: if the process ends meanwhile, its last record is read.
    run = load(path, seq, apply=apply, run=run)
    run.is_live = is_live if run.is_last else not run.state.outcome
    return run


def open_intact_run(path: Path, *, apply: Apply = LoadedRun.apply, run: LoadedRun | None = None) -> LoadedRun:
    """Read a run for a result that needs all of its records; raise if it is damaged."""
    run = open_run(path, apply=apply, run=run)
    if run.problem is not None:
        raise run.problem
    return run


def open_side(reference: RunReference, *, apply: Apply = LoadedRun.apply) -> "tuple[LoadedRun, Side]":
    """Read the run that a reference names; return it, and its side of a comparison with digests of its outputs."""
    from evaljournal.replay.results.comparison import Side, add_digest  # noqa: PLC0415  # for comparisons only

    digests: dict[str, bytes] = {}

    def apply_and_digest(run: LoadedRun, record: Record) -> None:
        apply(run, record)
        add_digest(digests, record)

    view = open_run(reference.path, apply=apply_and_digest)
    check_variant(view, reference.variant)
    return view, Side(view.state, digests, reference.variant)


def check_variant(view: LoadedRun, variant: str | None) -> None:
    """Raise an error if a run has no such variant; None is the whole run."""
    if problem := variant_problem(view, variant):
        raise UsageError(problem)


def groups_by(view: LoadedRun, key: str) -> dict[str, str]:
    """Return the group of each trial by a key of its metadata."""
    grouping = view.grouping(key)
    if key not in grouping.keys:
        raise UsageError(f"no case of {view.path} has {key!r} in its metadata{suggest(key, grouping.keys)}")
    return grouping.groups


def exit_if_damaged(problem: JournalError | None, *, quiet: bool = False) -> None:
    """Report damage and exit with code 4, if there is any."""
    if problem is not None:
        if not quiet:
            echo(f"shown up to the damage: {render(problem)}", err=True)
        sys.exit(DAMAGED)


def warn_unconfirmed(stop: ScanStop | None) -> None:
    """Report bytes after the last record that were never confirmed."""
    if stop is not None:
        echo(f"after record {stop.seq - 1:,}: {stop.check}", err=True)


def status_json(view: LoadedRun, key: str | None = None) -> dict[str, Any]:
    """Return the status of a run as JSON; with a key of the metadata, also by group."""
    path, state, now = view.path, view.state, current_time(view)
    return {
        "path": str(path),
        "status": view.status,
        "is_live": view.is_live,
        "problem": None if view.problem is None else str(view.problem),
        "durable_seq": view.durable,
        "next_command": _next_command(view),
        "resume_after": _resume_after(state),
        "waiting": _idle_reasons(view, now),
        "limits": [
            {name: getattr(use.limit, name) for name in _LIMIT_FIELDS} | {"used": use.used}
            for use in state.policy.known_limits.uses(now)
        ],
        **view_json(summarize(state, groups=None if key is None else groups_by(view, key))),
        "corrected": corrected_json(view),
    }


def _resume_after(state: RunState) -> str | None:
    """Return the time from which a run that was stopped by a declared limit per day can continue."""
    end = state.policy.known_limits.day_limit_end() if state.outcome == "quota" else 0.0
    with suppress(ValueError, OverflowError):  # The times of a foreign journal may be any.
        return datetime.fromtimestamp(end, UTC).isoformat(timespec="seconds") if end else None
    return None


def current_time(view: LoadedRun) -> float:
    """Return the time of a running run in seconds of `t`: now, or as of its last record."""
    return view.state.t + (age(view.state, time.time()) if view.is_live and view.is_last else 0.0)


def _idle_reasons(view: LoadedRun, now: float) -> list[dict[str, Any]]:
    """Return why slots of a running run are idle, as JSON."""
    if not view.is_live or view.problem is not None:
        return []
    return [view_json(reason) for reason in idle.reasons(view.state, now=now, total=view.total)]


def _next_command(view: LoadedRun) -> str:
    """Return the command to continue: salvage, resume or fork."""
    if view.problem is not None:
        return f"evaljournal salvage {shlex.quote(str(view.path))} -o NEW"
    return next_command(view.state, view.path) if view.is_last else fork_command(view.path, view.seq)


def fork_command(path: Path, seq: int) -> str:
    """Return the command that starts a new run from a record."""
    return f"evaljournal fork {shlex.quote(str(path))} --at {seq} -o NEW"


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS  # Keys of a forged journal may be numbers.
    try:
        data = orjson.dumps(value, option=options)
    except TypeError:  # A path that is not valid UTF-8; its bytes are escaped as lone surrogates.
        data = json.dumps(value, indent=2).encode()
    write_data([data, b"\n"])


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns; the first row is the header."""
    for line in columns(rows):
        echo(line)


def terminal(*, stderr: bool = False) -> "Console":
    """Return a console that prints text unchanged, without markup."""
    from rich.console import Console  # noqa: PLC0415  # slow to import

    return Console(file=command_stream("stderr") if stderr else None, highlight=False, markup=False, emoji=False)


def print_screen(run: LoadedRun, now: float | None = None) -> None:
    """Print the screen as of a time (in the seconds of `t`; default: that of the last record)."""
    console = terminal()
    screen = render_screen(run, run.state.t if now is None else now, console.width)
    with writing_output():
        console.print(screen)


def age(state: RunState, now: float) -> float:
    """Return the seconds since the last record; 0 if it was written on another host, whose clock may differ."""
    if not state.sessions or state.sessions[-1].host != socket.gethostname():
        return 0.0
    return max(0.0, now - datetime.fromisoformat(state.at).timestamp())


def render_screen(run: LoadedRun, now: float, width: int) -> "Group":
    """Render the screen that the run itself draws."""
    with reject_invalid_record(run.path, lambda: run.seq):
        return panel(
            run.state,
            now=now,
            durable=run.durable,
            total=run.total,
            width=width,
            title=str(run.path),
            show_rate=run.problem is None,
        )
