"""How somebody looks on while a run goes on, or is played again: a screen that is drawn anew, or a plain line now and then."""

import math
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, TextIO

import attrs
import click

from replay import LoadedRun, RunState
from replay.screen import LONG, line, stall_reason
from runner.cli._display import render_screen, terminal

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

FRAME: Final = 0.2
"""Seconds between two pictures of the live screen."""
QUIET: Final = 60.0
"""Seconds after which the plain mode says something even if no further tenth is done: a silent job looks like a dead one."""


def is_screen(stream: TextIO) -> bool:
    """Say whether a screen can be drawn there; where somebody reads the output later, plain lines are better."""
    return stream.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


def tenth(state: RunState, total: int | None) -> int:
    """Count the tenths that are done; where the total is not known, the digits and halves of what is done."""
    done = state.done
    if total:
        return 10 * done // total
    return 0 if not done else 2 * len(str(done)) + (str(done)[0] >= "5")


@attrs.define
class ProgressPrinter:
    """Prints a line for every further tenth, once a minute, and when the run is paused and resumed.

    Where that happens every few seconds, it is printed once a minute, to keep the log readable.
    """

    told: int | None = None
    """The tenths that were done when it last said something."""
    at: float = 0.0
    """When that was, in the seconds of `t`."""
    err: bool = False
    is_held: bool = False
    """Whether the last line reported a pause."""
    held_at: float = -math.inf
    """When it began to say so."""

    def tell(self, state: RunState, *, now: float, durable: int, total: int | None, before: int) -> None:
        """Say where the run stands, if it is time to."""
        done = tenth(state, total)
        is_held = bool(stall_reason(state, now=now, before=before, least=0.0 if self.is_held else LONG))
        is_on_again = self.is_held and not is_held and not state.ending
        is_news = is_on_again or (is_held and not self.is_held and not _is_recent(self.held_at, now))
        if done != self.told or is_news or not _is_recent(self.at, now):
            if is_held and not self.is_held:
                self.held_at = now
            self.told, self.at, self.is_held = done, now, is_held
            said = line(state, now=now, durable=durable, total=total, before=before)
            click.echo(f"resumed: {said}" if is_on_again else said, err=self.err)


def _is_recent(at: float, now: float) -> bool:
    return 0 <= now - at < QUIET  # Seconds begin anew with each session.


class Show(Protocol):
    """What shows a run as it stands at a moment."""

    def __call__(self, history: LoadedRun, now: float) -> None:
        """Show it."""
        ...


def redraw(screen: "Live", drawn: "Group") -> None:
    """Draw a picture in the place of the one before.

    Where the terminal has become narrower, it has folded the lines that were there into more rows than were drawn; without a
    step up for each of these, the first rows would stay for ever.
    """
    from rich.console import Group  # noqa: PLC0415  # slow to import
    from rich.control import Control  # noqa: PLC0415  # the same
    from rich.segment import ControlType  # noqa: PLC0415  # the same
    from rich.text import Text  # noqa: PLC0415  # the same

    before = screen.get_renderable()
    lines = [line for line in before.renderables if isinstance(line, Text)] if isinstance(before, Group) else []
    folds = sum(max(0, line.cell_len - 1) // screen.console.width for line in lines)
    if folds:
        screen.console.control(Control(*[(ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)] * folds))
    screen.update(drawn, refresh=True)


@contextmanager
def showing(*, transient: bool = False) -> Generator[Show]:
    """Show a run on standard output, as a screen or in lines; the last picture stays, unless it is transient."""
    if not is_screen(sys.stdout):
        teller = ProgressPrinter()
        yield lambda history, now: teller.tell(
            history.state, now=now, durable=history.durable, total=history.total, before=history.before
        )
        return
    from rich.live import Live  # noqa: PLC0415  # slow to import

    console = terminal()
    with Live(console=console, auto_refresh=False, transient=transient) as screen:
        yield lambda history, now: redraw(screen, render_screen(history, now, console.width))
