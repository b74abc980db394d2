"""Commands that travel in time: as it was, as it goes along, and on from an earlier point."""

import math
import re
import signal
import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import click
import trio

from journal import Record, follow, read
from journal.errors import InvalidRecord, JournalDamaged, command
from journal.events import SessionStarted
from journal.lock import is_held
from replay import LoadedRun, Timeline
from replay.ending import final_report, next_command, progress_in_words, total_trials
from replay.loaded_run import reject_invalid_record
from replay.text import plural, printable
from replay.timeline import OUTSIDE
from runner.cli import UNFINISHED
from runner.cli._common import chosen_run
from runner.cli._live import FRAME, Show, showing
from runner.cli.look import Seen, age, draw, fork_command, print_json, say_damage, see, summary_of
from runner.engine.recorder import Clock
from runner.errors import UsageError
from runner.fork import fork as fork_run
from runner.run_paths import last_record
from runner.signals import until_signal

SILENCE: Final = 1.0
"""Seconds without a record after which a watcher looks whether the writer is still there."""


def speed(given: str) -> float:
    """Read how fast to play: 10x, or 0.5."""
    number = re.fullmatch(r"(\d+(?:\.\d+)?)x?", given)
    if number is None or float(number[1]) <= 0:
        raise click.BadParameter(f"{given!r} is not a speed, such as 1x, 10x or 0.5x")
    return float(number[1])


@click.command()
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--at", type=int, metavar="SEQ", help="After this record.")
@click.option("--at-time", metavar="T", help="So many seconds after it began, or at a time such as 2026-11-15T09:30 (UTC).")
@click.option("--play", type=speed, metavar="SPEED", help="Play it from the beginning up to there, at 10x its speed, say.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON, as `status` does.")
def replay(run: Path | None, at: int | None, at_time: str | None, play: float | None, as_json: bool) -> None:
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
    path = chosen_run(run)
    moment = _find(path, at_time) if at_time is not None else _Moment(at)
    seen = see(path, moment.seq)
    if as_json:
        print_json(summary_of(seen))
    else:
        if play is None:
            draw(seen.history, moment.now)
        else:
            with showing() as show:
                trio.run(until_signal, partial(play_again, seen.history, play, show), signal.SIGINT)
        click.echo(_of_when(seen), err=True)
    say_damage(seen.problem, quiet=as_json)


def _of_when(seen: Seen) -> str:
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


@click.command()
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Draw nothing; print a summary as JSON when the run has ended.")
def watch(run: Path | None, as_json: bool) -> None:
    """Look on while another process runs an evaluation, through its files only, until it ends.

    The screen is the run's own. Ctrl-C ends the watching, not the run. The code is that of the run: 0 done, 1 done but trials
    failed, 3 stopped, cut off or still going on, 4 damaged.

    \b
    evaljournal watch
    evaljournal watch runs/capitals/0001 && evaljournal verify runs/capitals/0001
    """
    path = chosen_run(run)
    seen = _watched(path, quiet=as_json) if is_held(path) else see(path)
    if as_json:
        print_json(summary_of(seen))
    elif seen.problem is not None:
        draw(seen.history)
    else:
        click.echo(final_report(seen.state, path=path))
        if seen.status == "interrupted" and seen.state.sessions:
            writer = seen.state.sessions[-1]
            click.echo(f"its writer, process {writer.pid} on {printable(writer.host)}, is gone without a word", err=True)
    say_damage(seen.problem, quiet=as_json)
    from runner.cli.run import exit_code  # noqa: PLC0415  # slow to import, and only the end needs it

    sys.exit(exit_code(seen.state, stopped=seen.state.ending != "finished"))


def _watched(path: Path, *, quiet: bool) -> Seen:
    """Watch a run to its end; leave with code 3 if somebody does not want to wait for it."""
    watching = Watching(path)
    with nullcontext(_nothing) if quiet else showing(transient=True) as show:
        has_ended = trio.run(until_signal, partial(watching.until_the_end, show), signal.SIGINT)
    if not has_ended:
        click.echo(f"the run goes on; {command('watch', path)} looks on again", err=True)
        sys.exit(UNFINISHED)
    return Seen(watching.history, is_live=False) if watching.has_seen_all else see(path)


def _nothing(history: LoadedRun, now: float) -> None:
    """Show nothing."""


class Watching:
    """What somebody knows of a run who only sees its files."""

    def __init__(self, path: Path) -> None:
        self.history = LoadedRun(path)
        self.has_seen_all = False
        """Whether the last record that there is was seen; otherwise the journal's end is not whole."""
        self._is_broken = False
        self._heard = 0.0
        """When the last record was written, on our own clock."""
        self._looked = 0.0
        """When we last looked whether the writer is still there."""

    async def until_the_end(self, show: Show) -> None:
        """Show the run until its writer is gone, and everything that it wrote was seen."""
        self._clock = Clock()
        already = await self._last()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen)
            while not await self._is_over():
                if self.history.seq >= max(already, 1):  # What happened before we came is not shown bit by bit.
                    show(self.history, self._now())
                await trio.sleep(FRAME)
            nursery.cancel_scope.cancel()

    async def _listen(self) -> None:
        try:
            with reject_invalid_record(self.history.path, lambda: self.history.seq + 1):
                async for record in follow(self.history.path, load_blobs=False):
                    self.history.take(record)
                    self._heard = self._clock.now() - age(self.history.state, self._clock.wall())
        except (JournalDamaged, InvalidRecord):
            self._is_broken = True  # Whoever reads it again, from the beginning, says what it is.

    def _now(self) -> float:
        """Tell the time of the run, in the seconds of its `t`: that of its last record, and what has passed since."""
        return self.history.state.t + max(0.0, self._clock.now() - self._heard)

    async def _is_over(self) -> bool:
        """Say whether the writer is gone, and nothing is left that it wrote."""
        now = self._clock.now()
        if self._is_broken:
            return True
        if now - max(self._looked, -math.inf if self.history.state.ending else self._heard) < SILENCE:
            return False
        self._looked = now
        if await trio.to_thread.run_sync(is_held, self.history.path):
            return False
        last = await self._last()
        self.has_seen_all = 0 < last <= self.history.seq
        return self.has_seen_all or not last

    async def _last(self) -> int:
        """Tell the number of the last record; 0 where the journal's end is not whole."""
        last = await trio.to_thread.run_sync(last_record, self.history.path)
        return 0 if last is None else last.seq


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--at", type=int, metavar="SEQ", help="The last record to take over; else the last there is.")
@click.option("-o", "--output", "target", metavar="NEW", required=True, type=click.Path(path_type=Path), help="Where to.")
def fork(run: Path, at: int | None, target: Path) -> None:
    """Start a new run, NEW, from a point of an old one.

    What was done by then keeps its outcome; `resume NEW` goes on, and makes those attempts again that were in the air. The old
    run is only read, and may be going on; a damaged one can be forked at any point before the damage.

    \b
    evaljournal fork runs/capitals/0001 --at 276 -o runs/capitals/0001-again
    evaljournal resume runs/capitals/0001-again
    """
    forked = trio.run(fork_run, run, target, at)
    state = forked.state
    taken_in = f"{state.done:,} done of {plural(state.total, 'trial')} taken in by then"
    what = f"{progress_in_words(state)} done" if total_trials(state) else taken_in
    click.echo(f"{target}: forked from {run} at record {forked.seq:,}; {what}", err=True)
    click.echo(f"next: {next_command(state, target)}", err=True)
