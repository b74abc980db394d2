"""Trials with three scorers, and the lines of the live screen."""

import io
from typing import Any

from rich.console import Console

from evaljournal.journal import Event
from evaljournal.replay import RunState
from evaljournal.replay.render.screen import panel
from tests.replay.trial_events import answered

SCORERS = ("exact", "closeness", "tone")


def ok(name: str, *scores: bool | float | str) -> list[Event]:
    """Return all events of a trial that completes immediately."""
    return answered(name, dict(zip(SCORERS, scores, strict=False)))


def screen_lines(state: RunState, **options: Any) -> list[str]:
    """Return the lines of the panel, without colors."""
    options = {"now": 0.0, "durable": state.seq - 1, "total": None, "width": 110, "title": "runs/1", **options}
    out = io.StringIO()
    Console(file=out, width=options["width"], highlight=False).print(panel(state, **options))
    return out.getvalue().splitlines()


def row(lines: list[str], label: str) -> str:
    """Return the panel's text after a label."""
    return next(line[9:] for line in lines if line.startswith(f"{label:<9}"))
