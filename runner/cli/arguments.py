"""What the words on the command line mean that many commands understand: which run, how many seconds, off."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from runner.cli import Refused

F = TypeVar("F", bound=Callable[..., Any])

RUNS: Final = Path("runs")
"""Where runs are kept unless somebody says otherwise."""

OFF: Final = "none"
"""What turns a limit off."""


def runs_under(directory: Path) -> dict[Path, int]:
    """Find the runs in a directory, in the order of their paths, and when each was last written, in nanoseconds.

    The directory itself may be a run. What begins with a dot below it is none: it is a copy that is being made, or was cut off.
    """
    found: dict[Path, int] = {}
    for file in (file for depth in ("", "*/", "*/*/", "*/*/*/") for file in directory.glob(f"{depth}journal-*.jsonl")):
        path = file.parent
        if not any(part.startswith(".") for part in path.relative_to(directory).parts):
            found[path] = max(found.get(path, 0), file.lstat().st_mtime_ns)
    return dict(sorted(found.items()))


def newest_run() -> Path:
    """Find the run under `runs/` that was written last."""
    runs = runs_under(RUNS)
    if not runs:
        raise Refused(f"no RUN was given, and there is none under {RUNS}/ here; `evaljournal run FILE.py` makes one")
    return max(runs, key=lambda path: (runs[path], path))


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
