"""Progress on stderr: a tqdm bar if tqdm is installed, otherwise a line of text."""

import sys
from contextlib import suppress
from typing import Any

import trio

from evaljournal.journal.threads import InThread
from evaljournal.replay.render.screen import line
from evaljournal.runner.sessions.options import LiveRun

INTERVAL = 0.2


async def show(live_run: LiveRun, bar_format: str, in_thread: InThread) -> None:
    """Show the progress of a run until cancelled."""
    bar = _bar(live_run, bar_format)
    try:
        while True:
            done = live_run.state.totals.done
            await in_thread(lambda: bar.update(done - bar.n))  # noqa: B023  # called immediately
            await trio.sleep(INTERVAL)
    finally:
        bar.update(live_run.state.totals.done - bar.n)
        bar.close()


def _bar(live_run: LiveRun, bar_format: str) -> Any:
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]  # noqa: PLC0415  # optional
    except ImportError:
        return _Line(live_run)
    return tqdm(total=live_run.total, initial=live_run.state.totals.done, bar_format=bar_format or None, file=sys.stderr)


class _Line:
    """The part of tqdm's interface that is used, as a line of text."""

    n = 0

    def __init__(self, live_run: LiveRun) -> None:
        self._live_run = live_run
        self._last_text = ""

    def update(self, _: int) -> None:
        live_run = self._live_run
        text = line(live_run.state, now=live_run.now(), total=live_run.total)
        self._write(f"\r{text.ljust(len(self._last_text))}")
        self._last_text = text

    def close(self) -> None:
        self._write("\n")

    @staticmethod
    def _write(text: str) -> None:
        with suppress(AttributeError, OSError, ValueError):  # A task may have closed or removed it.
            sys.stderr.write(text)
            sys.stderr.flush()
