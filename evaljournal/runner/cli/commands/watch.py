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

from evaljournal.journal import follow
from evaljournal.journal.disk.lock import is_held
from evaljournal.journal.errors import InvalidRecord, JournalDamaged
from evaljournal.replay.render.ending import final_report
from evaljournal.replay.runs.loaded_run import LoadedRun, reject_invalid_record
from evaljournal.replay.text import printable
from evaljournal.runner.cli import UNFINISHED
from evaljournal.runner.cli.arguments import suite_argument
from evaljournal.runner.cli.suites.views import watch_suite
from evaljournal.runner.cli.terminal.display import (
    FRAME_INTERVAL,
    Show,
    age,
    exit_code,
    exit_if_damaged,
    open_run,
    print_json,
    print_screen,
    run_display,
    status_json,
)
from evaljournal.runner.cli.terminal.output import echo, line_width
from evaljournal.runner.engine.recorder import Clock
from evaljournal.runner.errors import command
from evaljournal.runner.runs.paths import last_record
from evaljournal.runner.sessions.suite_file import is_suite, read_suite
from evaljournal.runner.signals import until_signal

LOCK_CHECK_AFTER: Final = 1.0
"""Seconds without a record after which the lock of the run is checked."""


@click.command()
@suite_argument
@click.option("--json", "as_json", is_flag=True, help="No screen; print a summary as JSON when the run has ended.")
def watch(path: Path, as_json: bool) -> None:
    """Watch a run or a suite live until it ends.

    Only its files are read, so the run can be in another process or container. Ctrl-C stops watching, not the run (exit code
    3). Otherwise the exit codes are: 0 finished, 1 finished but trials have an error, outputs were not scored or a gate
    did not pass, 3 not finished, 4 damaged, 5 too few labels for a gate on a review.

    \b
    evaljournal watch
    evaljournal watch runs/capitals/0001 && evaljournal verify runs/capitals/0001
    """
    if is_suite(path):
        watch_suite(read_suite(path), as_json=as_json)

    view = _watch_live(path, quiet=as_json) if is_held(path) else open_run(path)
    if as_json:
        print_json(status_json(view))
    elif view.problem is not None:
        print_screen(view)
    else:
        echo(final_report(view.state, path=path, width=line_width()))
        if view.status == "interrupted" and view.state.sessions:
            writer = view.state.sessions[-1]
            echo(f"process {writer.pid} on {printable(writer.host)} exited without ending the run", err=True)

    exit_if_damaged(view.problem, quiet=as_json)
    sys.exit(exit_code(view.state, path, stopped=view.state.outcome != "finished"))


def _watch_live(path: Path, *, quiet: bool) -> LoadedRun:
    """Watch a run until it ends; exit with 3 on Ctrl-C."""
    watcher = RunWatcher(path)
    with nullcontext(lambda *_: None) if quiet else run_display() as show:
        has_ended = trio.run(until_signal, partial(watcher.show_until_end, show), signal.SIGINT)
    if not has_ended:
        echo(f"the run continues; watch it with {command('watch', path)}", err=True)
        sys.exit(UNFINISHED)
    return watcher.run if watcher.has_read_all else open_run(path)


class RunWatcher:
    def __init__(self, path: Path) -> None:
        self.run = LoadedRun(path)
        self.has_read_all = False
        """Whether the last record was read; otherwise the end of the journal is torn or damaged."""
        self._is_broken = False
        self._record_at = 0.0
        """When the last record was written, on the local clock."""
        self._checked_at = 0.0

    async def show_until_end(self, show: Show) -> None:
        """Show the run until its process has ended and all its records are read."""
        self._clock = Clock()
        last_seq = await self._last_seq()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            while not await self._is_over():
                if self.run.seq >= max(last_seq, 1):  # Older records are not played back.
                    show(self.run, self._now())
                await trio.sleep(FRAME_INTERVAL)
            nursery.cancel_scope.cancel()

    async def _read(self) -> None:
        try:
            with reject_invalid_record(self.run.path, lambda: self.run.seq + 1):
                async for record in follow(self.run.path, load_blobs=False):
                    self.run.apply(record)
                    self._record_at = self._clock.now() - age(self.run.state, self._clock.wall())
        except (JournalDamaged, InvalidRecord):
            self._is_broken = True  # Reading it from the start reports the damage.

    def _now(self) -> float:
        """Return the current time of the run, in the seconds of `t`."""
        return self.run.state.t + max(0.0, self._clock.now() - self._record_at)

    async def _is_over(self) -> bool:
        now = self._clock.now()
        if self._is_broken:
            return True
        if now - max(self._checked_at, -math.inf if self.run.state.outcome else self._record_at) < LOCK_CHECK_AFTER:
            return False
        self._checked_at = now
        if await trio.to_thread.run_sync(is_held, self.run.path):
            return False
        last_seq = await self._last_seq()
        self.has_read_all = 0 < last_seq <= self.run.seq
        return self.has_read_all or not last_seq

    async def _last_seq(self) -> int:
        """Return the number of the last record; 0 if the end of the journal is torn or damaged."""
        newest_record = await trio.to_thread.run_sync(last_record, self.run.path)
        return 0 if newest_record is None else newest_record.seq
