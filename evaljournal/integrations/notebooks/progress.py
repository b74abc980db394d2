"""Live progress of a run in IPython: in the cell of a notebook, or in one line of a terminal. It is not imported for that."""

import sys
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from html import escape
from importlib import import_module
from io import StringIO
from typing import Any, Final

import trio

from evaljournal.journal import JournalError
from evaljournal.replay.render.screen import line, panel
from evaljournal.replay.text import escape_controls
from evaljournal.runner.sessions.options import LiveRun

_INTERVAL: Final = 0.5
"""Seconds between two updates."""
_WIDTH: Final = 110
"""Characters of a line."""
_PRE: Final = '<pre style="font-family: ui-monospace, Menlo, Consolas, monospace; line-height: 1.3">{code}</pre>'


def progress_observer() -> Callable[[LiveRun], Awaitable[None]] | None:
    """Return an observer that shows a run in the cell that is being executed; None outside of IPython."""
    shell: Any = sys.modules["IPython"].get_ipython()
    if shell is None:
        return None
    display: Any = import_module("IPython.display").display
    display_id = uuid.uuid4().hex

    def show_in_cell(html: str, text: str, *, is_first: bool, is_last: bool) -> None:
        content = {"text/html": _PRE.format(code=escape(text)) if is_last else html, "text/plain": text}
        display(content, raw=True, display_id=display_id, update=not is_first)

    def show_in_terminal(_: str, text: str, *, is_first: bool, is_last: bool) -> None:  # noqa: ARG001  # as in a cell
        print(f"\r{text[:_WIDTH]}\x1b[K", end="\n" if is_last else "", file=sys.stderr, flush=True)  # noqa: T201  # progress

    show = show_in_cell if hasattr(shell, "kernel") else show_in_terminal

    async def observe(live_run: LiveRun) -> None:
        state = live_run.state
        shown_html = ""

        def update(*, is_last: bool = False) -> None:
            nonlocal shown_html
            figures: Any = {"now": live_run.now(), "durable": live_run.journal.durable_seq, "total": live_run.total}
            title, stop_status = str(live_run.journal.path), live_run.stop_status()
            html = _html(panel(state, **figures, width=_WIDTH, title=title, stop_status=stop_status))
            if html != shown_html or is_last:
                show(html, escape_controls(line(state, **figures)), is_first=not shown_html, is_last=is_last)
                shown_html = html

        with suppress(Exception):  # A front end that fails does not stop the run.
            try:
                while True:
                    update()
                    await trio.sleep(_INTERVAL)
            finally:
                with trio.move_on_after(_INTERVAL, shield=True), suppress(JournalError):  # The run reports a failing disk.
                    await live_run.journal.wait_durable(state.seq)
                update(is_last=True)

    return observe


def _html(frame: Any) -> str:
    """Return the live screen of a terminal as HTML; rich escapes its text."""
    from rich.console import Console  # noqa: PLC0415  # slow to import

    console = Console(record=True, width=_WIDTH, file=StringIO(), force_jupyter=False)
    console.print(frame)
    return console.export_html(inline_styles=True, code_format=_PRE)
