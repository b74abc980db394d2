"""The command `evaljournal replay`."""

import re
import signal
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import attrs
import click
import trio

from journal import Record, read
from journal.events import SessionStarted
from replay import LoadedRun, Timeline
from replay.ending import next_command
from replay.loaded_run import reject_invalid_record
from replay.text import printable
from replay.timeline import OUTSIDE
from runner.cli._common import run_argument
from runner.cli._display import RunView, exit_if_damaged, fork_command, open_run, print_json, print_screen, summary_of
from runner.cli._live import FRAME, Show, showing
from runner.errors import UsageError
from runner.signals import until_signal


def speed(given: str) -> float:
    """Read how fast to play: 10x, or 0.5."""
    number = re.fullmatch(r"(\d+(?:\.\d+)?)x?", given)
    if number is None or float(number[1]) <= 0:
        raise click.BadParameter(f"{given!r} is not a speed, such as 1x, 10x or 0.5x")
    return float(number[1])


@click.command()
@run_argument
@click.option("--at", type=int, metavar="SEQ", help="After this record.")
@click.option("--at-time", metavar="T", help="So many seconds after it began, or at a time such as 2026-11-15T09:30 (UTC).")
@click.option("--play", type=speed, metavar="SPEED", help="Play it from the beginning up to there, at 10x its speed, say.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON, as `status` does.")
def replay(path: Path, at: int | None, at_time: str | None, play: float | None, as_json: bool) -> None:
    """Show the screen as it stood after any record, or at any time; or play the run again.

    Every number is counted anew, from the records alone. A damaged run is shown up to the damage, with code 4; to ask for a
    point before the damage is nothing special. What is played takes as long as it took, divided by the speed; the time
    between two sessions is left out.

    \b
    evaljournal replay runs/capitals/0001 --at 276
    evaljournal replay runs/capitals/0001 --at-time 90
    evaljournal replay --play 10x
    """
    if at is not None and at_time is not None:
        raise click.UsageError("--at and --at-time both name a point; give one of them")
    if play is not None and as_json:
        raise click.UsageError("--json tells one point; it cannot be played")
    moment = _find(path, at_time) if at_time is not None else _Moment(at)
    seen = open_run(path, moment.seq)
    if as_json:
        print_json(summary_of(seen))
    else:
        if play is None:
            print_screen(seen.history, moment.now)
        else:
            with showing() as show:
                trio.run(until_signal, partial(play_again, seen.history, play, show), signal.SIGINT)
        click.echo(_of_when(seen), err=True)
    exit_if_damaged(seen.problem, quiet=as_json)


def _of_when(seen: RunView) -> str:
    state = seen.state
    if seen.history.is_last:
        return f"that was the last record, of {printable(state.at)}; next: {next_command(state, seen.path)}"
    return f"as it stood at {printable(state.at)}; to go on from here: {fork_command(seen.path, seen.history.seq)}"


@attrs.frozen
class _Moment:
    """A point in a run: a record, and the time if it is a little later."""

    seq: int | None
    """The last record that had been written; None for the last there is."""
    now: float | None = None
    """In the seconds of `t`; None for the time of the record."""


def _find(path: Path, when: str) -> _Moment:
    """Find the point that a time names."""
    seconds = re.fullmatch(r"\d+(?:\.\d+)?", when)
    if seconds:
        return _find_seconds(path, float(when))
    try:
        wall = datetime.fromisoformat(when)
        wall = wall.replace(tzinfo=UTC) if wall.tzinfo is None else wall.astimezone(UTC)
    except (ValueError, OverflowError):
        raise click.UsageError(
            f"--at-time {when!r} is neither a number of seconds, such as 90, nor a time, such as 2026-11-15T09:30:00"
        ) from None
    return _find_wall(path, wall)


def _find_seconds(path: Path, wanted: float) -> _Moment:
    """Find the last record that was written by then, so many seconds after the first session began, gaps included."""
    told = Timeline()
    seq, last = 0, 0.0
    with reject_invalid_record(path, lambda: told.seq + 1):
        for record in read(path, load_blobs=False):
            session = len(told.sessions)
            told.apply(record)
            if record.event.__class__ not in OUTSIDE:
                last = told.sessions[-1].offset + told.sessions[-1].end
                if last > wanted:
                    # Between two sessions nobody was at work, and no time passed.
                    now = wanted - told.sessions[-1].offset if session == len(told.sessions) else None
                    return _Moment(seq or record.seq - 1, now)
                seq = record.seq
    raise UsageError(f"{path} has nothing to show at {wanted:g} s; its last record is of {last:g} s")


def _find_wall(path: Path, wanted: datetime) -> _Moment:
    """Find the last record that was written by then, by the clock on the wall."""
    text = f"{wanted:%Y-%m-%dT%H:%M:%S.%f}Z"  # As the journal writes it, so that it can be compared as it stands.
    before: Record | None = None
    for record in read(path, load_blobs=False):
        if record.at > text:
            if before is None:
                raise UsageError(f"{path} has nothing to show at {text}; its first record is of {printable(record.at)}")
            return _Moment(before.seq)
        before = record
    last = printable(before.at) if before else "no time"
    raise UsageError(f"{path} has nothing to show at {text}; its last record is of {last}")


async def play_again(history: LoadedRun, times: float, show: Show) -> None:
    """Show a run from its beginning, so many times as fast as it was."""
    played = LoadedRun(history.path)
    began = trio.current_time()
    for record in history.records():
        if isinstance(record.event, SessionStarted):  # Seconds count anew, and the time since the last session is left out.
            began = trio.current_time() - record.t / times
        elif played.state.sessions:
            while record.t > (now := (trio.current_time() - began) * times):
                show(played, now)
                await trio.sleep(FRAME)
        played.take(record)
    show(played, played.state.t)
