"""Trials with three scorers, and the lines of the live screen."""

import io

from rich.console import Console

from evaljournal.journal import Event
from evaljournal.replay import RunState
from evaljournal.replay.render.screen import panel
from tests.replay.trial_events import answered

SCORERS = ("exact", "closeness", "tone")


def ok(name: str, *scores: bool | float | str) -> list[Event]:
    """Return all events of a trial that completes immediately."""
    return answered(name, dict(zip(SCORERS, scores, strict=False)))


def screen_lines(state: RunState, *, now: float = 0.0, total: int | None = None, width: int = 110) -> list[str]:
    """Return the lines of the panel, without colors."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False)
    console.print(panel(state, now=now, durable=state.seq - 1, total=total, width=width, title="runs/1"))
    return out.getvalue().splitlines()


def row(lines: list[str], label: str) -> str:
    """Return the panel's text after a label."""
    return next(line[9:] for line in lines if line.startswith(f"{label:<9}"))
