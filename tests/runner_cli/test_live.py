"""Progress lines."""

import io
import re

import pytest
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from evaljournal.journal import Event, Record
from evaljournal.journal.events import IntakePaused, LimitChanged, RunStopped
from evaljournal.runner.cli.terminal.display import ProgressPrinter, progress_tenths, redraw
from tests.replay.trial_events import answered, enqueued, state_of

START = 5.0
"""When the first line is printed, in the seconds of `t`."""


def printed(capsys: pytest.CaptureFixture[str], events: dict[int, Event], *, seconds: int) -> list[tuple[int, str]]:
    """Play events in a half-finished run; return the start of each line and its second."""
    state = state_of([LimitChanged(before=0, after=4, reason="start"), *answered("a"), enqueued("b")])
    printer, lines = ProgressPrinter(progress_tenths(state, 2), START), list[tuple[int, str]]()
    for second in range(seconds):
        if second in events:
            state.apply(Record(state.seq + 1, state.at, START + second, events[second], 0, "", 1, 0))
        printer.update(state, now=START + second, total=2)
        lines += [(second, line.partition(" · seq")[0]) for line in capsys.readouterr().out.splitlines()]
    return lines


def pause(second: int, until: int) -> dict[int, Event]:
    """Pause starts from one second to another."""
    return {second: IntakePaused(until=START + until, reason="retry_after")}


def test_a_pause_is_reported_at_its_start_and_end(capsys: pytest.CaptureFixture[str]) -> None:
    """A pause is reported when it starts, with its length, and when it is over."""
    assert [
        (3, "1 of 2 (50 %) · 1 output · 0 errors · waiting: Retry-After: 30 s left"),
        (33, "resumed: 1 of 2 (50 %) · 1 output · 0 errors"),
    ] == printed(capsys, pause(3, 33), seconds=60)


def test_short_pauses_are_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """A pause of a few seconds is not reported."""
    assert [] == printed(capsys, pause(3, 7), seconds=60)


def test_many_pauses_do_not_fill_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """Of pauses every few seconds, one a minute is reported."""
    pauses = {second: event for start in range(0, 120, 10) for second, event in pause(start, start + 8).items()}

    assert [0, 8, 60, 68] == [second for second, _ in printed(capsys, pauses, seconds=119)]


def test_a_pause_that_ends_with_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """A pause that ends with the run is not reported as over."""
    stopped: dict[int, Event] = {10: RunStopped(reason="interrupted")}

    assert [3] == [second for second, _ in printed(capsys, {**pause(3, 33), **stopped}, seconds=50)]


@pytest.mark.parametrize(("width", "rows"), [(40, 3), (120, 3), (30, 4), (10, 8), (9, 10)])
def test_a_terminal_that_became_narrower_is_cleared(width: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows into which the last frame has wrapped are cleared, and no row above them."""
    monkeypatch.setenv("TERM", "xterm")
    console = Console(file=io.StringIO(), force_terminal=True, width=40, height=20)
    with Live(console=console, auto_refresh=False) as screen:
        redraw(screen, Group(Text("x" * 40), Text(""), Text("首" * 15)))
        console.width, console.file = width, io.StringIO()
        redraw(screen, Group(Text("new")))
        drawn = console.file.getvalue()

    assert ["\x1b[1A"] * (rows - 1) == re.findall("\x1b\\[1A", drawn)
    assert drawn.endswith("\x1b[2Knew")
