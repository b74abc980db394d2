"""The command `evaljournal replay`."""

import re
from datetime import UTC, datetime
from pathlib import Path

import click

from evaljournal.journal import Record, read
from evaljournal.replay.render.ending import next_action
from evaljournal.replay.runs.loaded_run import LoadedRun, reject_invalid_record
from evaljournal.replay.state.sessions import SessionTimes
from evaljournal.replay.text import printable
from evaljournal.runner.cli.arguments import run_argument
from evaljournal.runner.cli.terminal.display import (
    exit_if_damaged,
    fork_command,
    open_run,
    print_json,
    print_screen,
    status_json,
)
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.errors import UsageError
from evaljournal.runner.runs.paths import run_start


@click.command()
@run_argument
@click.option("--at", "seq", type=int, metavar="SEQ", help="Show the state as of record SEQ (default: the last).")
@click.option(
    "--at-time", metavar="T", help="As of this many seconds after the start, or a time such as 2026-11-15T09:30 (UTC)."
)
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON, as `status` does.")
def replay(path: Path, seq: int | None, at_time: str | None, as_json: bool) -> None:
    """Show a run as of any record or time.

    Every number is computed from the records. A damaged run is shown up to the damage, with exit code 4.

    \b
    evaljournal replay runs/capitals/0001 --at 276
    evaljournal replay runs/capitals/0001 --at-time 90
    """
    if seq is not None and at_time is not None:
        raise click.UsageError("--at and --at-time are mutually exclusive; pass one of them")
    seq, now = (seq, None) if at_time is None else _find_point(path, at_time)
    view = open_run(path, seq)
    if as_json:
        print_json(status_json(view))
    else:
        print_screen(view, now)
        echo(_position_text(view), err=True)
    exit_if_damaged(view.problem, quiet=as_json)


def _position_text(view: LoadedRun) -> str:
    state = view.state
    if view.problem is not None:
        return f"last intact record, at {printable(state.at)}"
    if view.is_last:
        return f"last record, at {printable(state.at)}; next: {next_action(state, view.path)}"
    return f"as of {printable(state.at)}; to continue from here: {fork_command(view.path, view.seq)}"


def _find_point(path: Path, at_time: str) -> tuple[int, float | None]:
    """Return the last record up to a time, and the time in seconds of `t`, if it is later and in the same session."""
    start = run_start(path)
    if start is not None and start[0].merged_from:  # Shards may have run at the same time, but are recorded in sequence.
        raise UsageError(f"{path} was merged from shards, so it has no single state at a time; pass --at SEQ")

    if re.fullmatch(r"\d+(?:\.\d+)?", at_time):
        return _find_seconds(path, float(at_time))

    try:
        wall_time = datetime.fromisoformat(at_time)
        wall_time = wall_time.replace(tzinfo=UTC) if wall_time.tzinfo is None else wall_time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise click.UsageError(
            f"--at-time {at_time!r}: expected seconds, such as 90, or a time, such as 2026-11-15T09:30:00"
        ) from None
    return _find_wall_time(path, wall_time), None


def _find_seconds(path: Path, time: float) -> tuple[int, float | None]:
    """Return the point at this many seconds after the start of the first session, gaps included."""
    axis, seq, last_time, last_seq = SessionTimes(), 0, 0.0, 0
    with reject_invalid_record(path, lambda: last_seq + 1):
        for record in read(path, load_blobs=False):
            sessions = len(axis.sessions)
            t = axis.apply(record)
            if t is not None:
                session = axis.sessions[-1]
                last_time = session.offset + session.end
                if last_time > time:
                    # Between two sessions, the state does not change.
                    now = time - session.offset if sessions == session.number else None
                    return seq or record.seq - 1, now
                seq = record.seq
            last_seq = record.seq
    raise UsageError(f"{path} has no state at {time:g} s; its last record is at {last_time:g} s")


def _find_wall_time(path: Path, time: datetime) -> int:
    text = f"{time:%Y-%m-%dT%H:%M:%S.%f}Z"  # The format of the journal, so that text can be compared.
    last_record: Record | None = None
    for record in read(path, load_blobs=False):
        if record.at > text:
            if last_record is None:
                raise UsageError(f"{path} has no state at {text}; its first record is at {printable(record.at)}")
            return last_record.seq
        last_record = record
    last_time = printable(last_record.at) if last_record else "an unknown time"
    raise UsageError(f"{path} has no state at {text}; its last record is at {last_time}")
