"""The command `evaljournal watch`."""

import math
import signal
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Final

import click
import trio

from journal import follow
from journal.errors import InvalidRecord, JournalDamaged, command
from journal.lock import is_held
from replay import LoadedRun
from replay.ending import final_report
from replay.loaded_run import reject_invalid_record
from replay.text import printable
from runner.cli import UNFINISHED
from runner.cli._common import run_argument
from runner.cli._display import (
    RunView,
    age,
    exit_if_damaged,
    open_run,
    print_json,
    print_screen,
    summary_of,
)
from runner.cli._ending import exit_code
from runner.cli._live import FRAME, Show, showing
from runner.engine.recorder import Clock
from runner.run_paths import last_record
from runner.signals import until_signal

SILENCE: Final = 1.0
"""Seconds without a record after which a watcher looks whether the writer is still there."""


@click.command()
@run_argument
@click.option("--json", "as_json", is_flag=True, help="Draw nothing; print a summary as JSON when the run has ended.")
def watch(path: Path, as_json: bool) -> None:
    """Look on while another process runs an evaluation, through its files only, until it ends.

    The screen is the run's own. Ctrl-C ends the watching, not the run. The code is that of the run: 0 done, 1 done but trials
    failed, 3 stopped, cut off or still going on, 4 damaged.

    \b
    evaljournal watch
    evaljournal watch runs/capitals/0001 && evaljournal verify runs/capitals/0001
    """
    seen = _watched(path, quiet=as_json) if is_held(path) else open_run(path)
    if as_json:
        print_json(summary_of(seen))
    elif seen.problem is not None:
        print_screen(seen.history)
    else:
        click.echo(final_report(seen.state, path=path))
        if seen.status == "interrupted" and seen.state.sessions:
            writer = seen.state.sessions[-1]
            click.echo(f"its writer, process {writer.pid} on {printable(writer.host)}, is gone without a word", err=True)
    exit_if_damaged(seen.problem, quiet=as_json)
    sys.exit(exit_code(seen.state, stopped=seen.state.ending != "finished"))


def _watched(path: Path, *, quiet: bool) -> RunView:
    """Watch a run to its end; leave with code 3 if somebody does not want to wait for it."""
    watching = Watching(path)
    with nullcontext(_nothing) if quiet else showing(transient=True) as show:
        has_ended = trio.run(until_signal, partial(watching.until_the_end, show), signal.SIGINT)
    if not has_ended:
        click.echo(f"the run goes on; {command('watch', path)} looks on again", err=True)
        sys.exit(UNFINISHED)
    return RunView(watching.history, is_live=False) if watching.has_seen_all else open_run(path)


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
