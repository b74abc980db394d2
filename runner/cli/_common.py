"""What the words on the command line mean that many commands understand: which run, how many seconds, off."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from runner.cli import Refused
from runner.run_paths import RUNS, newest_first

F = TypeVar("F", bound=Callable[..., Any])

OFF: Final = "none"
"""What turns a limit off."""


def newest_run() -> Path:
    """Find the run under `runs/` that was written last."""
    runs = newest_first(RUNS)
    if not runs:
        raise Refused(f"no RUN was given, and there is none under {RUNS}/ here; `evaljournal run FILE.py` makes one")
    return runs[0]


def chosen_run(run: Path | None) -> Path:
    """Take the run that was named, or the newest."""
    return run if run is not None else newest_run()


def seconds(given: str) -> float | str:
    """Read a number of seconds; `none` turns a limit off."""
    if given == OFF:
        return given
    try:
        return float(given)
    except ValueError:
        raise click.BadParameter(f"{given!r} is not a number of seconds, such as 30 or 0.5, nor {OFF!r}") from None


def options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Put several options on a command, in this order."""

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add
