"""Live progress of a run in IPython: in the cell of a notebook, or in one line of a terminal. It is not imported for that."""

import sys
import uuid
from collections.abc import Callable
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
from evaljournal.runner.sessions.outputs import RunOutput

_INTERVAL: Final = 0.5
"""Seconds between two updates."""
_WIDTH: Final = 110
"""Characters of a line."""
_PRE: Final = '<pre style="font-family: ui-monospace, Menlo, Consolas, monospace; line-height: 1.3">{code}</pre>'


class CellProgress(RunOutput):
    def __init__(self, show: Callable[..., None]) -> None:
        self._show = show
        self._html = ""

    async def update(self, live_run: LiveRun) -> None:
        """Show the run until cancelled; a front end that fails does not stop the run."""
        with suppress(Exception):
            try:
                while True:
                    self._update(live_run)
                    await trio.sleep(_INTERVAL)
            finally:
                with trio.move_on_after(_INTERVAL, shield=True), suppress(JournalError):  # The run reports a failing disk.
                    await live_run.journal.wait_durable(live_run.state.seq)
                self._update(live_run, is_last=True)

    def _update(self, live_run: LiveRun, *, is_last: bool = False) -> None:
        state, now, total = live_run.state, live_run.now(), live_run.total
        frame = panel(
            state,
            now=now,
            durable=live_run.journal.durable_seq,
            total=total,
            width=_WIDTH,
            title=str(live_run.journal.path),
            stop_status=live_run.stop_status(),
        )

        html = _html(frame)
        if html != self._html or is_last:
            text = escape_controls(line(state, now=now, total=total))
            self._show(html, text, is_first=not self._html, is_last=is_last)
            self._html = html


def cell_progress(_: str | None = None, **__: object) -> CellProgress | None:
    """Return the progress in the cell that is being executed; None outside of IPython."""
    ipython: Any = sys.modules.get("IPython")
    shell: Any = ipython and ipython.get_ipython()
    if shell is None:
        return None
    display: Any = import_module("IPython.display").display
    display_id = uuid.uuid4().hex

    def show_in_cell(html: str, text: str, *, is_first: bool, is_last: bool) -> None:
        content = {"text/html": _PRE.format(code=escape(text)) if is_last else html, "text/plain": text}
        display(content, raw=True, display_id=display_id, update=not is_first)

    def show_in_terminal(_: str, text: str, *, is_first: bool, is_last: bool) -> None:  # noqa: ARG001  # as in a cell
        print(f"\r{text[:_WIDTH]}\x1b[K", end="\n" if is_last else "", file=sys.stderr, flush=True)  # noqa: T201  # progress

    return CellProgress(show_in_cell if hasattr(shell, "kernel") else show_in_terminal)


def _html(frame: Any) -> str:
    """Return the live screen of a terminal as HTML; rich escapes its text."""
    from rich.console import Console  # noqa: PLC0415  # slow to import

    console = Console(record=True, width=_WIDTH, file=StringIO(), force_jupyter=False)
    console.print(frame)
    return console.export_html(inline_styles=True, code_format=_PRE)
