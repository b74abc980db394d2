"""Progress of a run on a terminal: a live screen, or plain lines."""

import math
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TextIO

import attrs

from evaljournal.replay import LoadedRun, RunState
from evaljournal.replay.render.screen import LONG_PAUSE, line, stall_reason
from evaljournal.runner.cli.terminal.display import render_screen, terminal
from evaljournal.runner.cli.terminal.output import echo

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

FRAME_INTERVAL: Final = 0.2
"""Seconds between two frames of the live screen."""
MAX_LINE_INTERVAL: Final = 60.0
"""Maximum seconds between two progress lines, so that a slow run does not look stuck."""


def supports_screen(stream: TextIO) -> bool:
    """Return whether a live screen can be drawn on a stream."""
    return stream.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


def progress_tenths(state: RunState, total: int | None) -> int:
    """Return how many tenths are done; without a total, a number that grows at 1, 5, 10, 50, 100, … trials."""
    done = state.totals.done
    if total:
        return 10 * done // total
    return 0 if not done else 2 * len(str(done)) + (str(done)[0] >= "5")


@attrs.define
class ProgressPrinter:
    """Prints a line for every tenth, after a minute without one, and when the run stalls and continues.

    A run that stalls every few seconds is reported once a minute.
    """

    printed_tenth: int | None = None
    """The tenths of the last line."""
    printed_at: float = 0.0
    """Time of the last line, in the seconds of `t`."""
    err: bool = False
    prefix: str = ""
    is_stalled: bool = False
    stalled_at: float = -math.inf

    def update(self, state: RunState, *, now: float, total: int | None) -> None:
        """Print a line if one is due."""
        tenths = progress_tenths(state, total)
        is_stalled = bool(stall_reason(state, now=now, min_pause=0.0 if self.is_stalled else LONG_PAUSE))
        continues = self.is_stalled and not is_stalled and not state.outcome
        has_changed = continues or (is_stalled and not self.is_stalled and not _is_recent(self.stalled_at, now))
        if tenths != self.printed_tenth or has_changed or not _is_recent(self.printed_at, now):
            if is_stalled and not self.is_stalled:
                self.stalled_at = now
            self.printed_tenth, self.printed_at, self.is_stalled = tenths, now, is_stalled
            text = line(state, now=now, total=total)
            echo(f"{self.prefix}{'resumed: ' if continues else ''}{text}", err=self.err)


def _is_recent(time: float, now: float) -> bool:
    return 0 <= now - time < MAX_LINE_INTERVAL  # Negative after the start of a session, which resets the seconds.


Show = Callable[[LoadedRun, float], None]
"""Shows a run as of a time, in the seconds of `t`."""


def redraw(screen: "Live", frame: "Group") -> None:
    """Replace the last frame.

    In a terminal that became narrower, the lines of the last frame have wrapped into more rows, which are erased first.
    """
    from rich.console import Group  # noqa: PLC0415  # slow to import
    from rich.control import Control  # noqa: PLC0415  # slow to import
    from rich.segment import ControlType  # noqa: PLC0415  # slow to import
    from rich.text import Text  # noqa: PLC0415  # slow to import

    last_frame = screen.get_renderable()
    lines = [line for line in last_frame.renderables if isinstance(line, Text)] if isinstance(last_frame, Group) else []
    wrapped_rows = sum(max(0, line.cell_len - 1) // screen.console.width for line in lines)
    if wrapped_rows:
        screen.console.control(Control(*[(ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)] * wrapped_rows))
    screen.update(frame, refresh=True)


@contextmanager
def run_display() -> Generator[Show]:
    """Yield a function that shows a run on standard output, on a screen, whose last frame is removed, or in lines."""
    if not supports_screen(sys.stdout):
        printer = ProgressPrinter()
        yield lambda run, now: printer.update(run.state, now=now, total=run.total)
        return
    from rich.live import Live  # noqa: PLC0415  # slow to import

    console = terminal()
    with Live(console=console, auto_refresh=False, transient=True) as screen:
        yield lambda run, now: redraw(screen, render_screen(run, now, console.width))
