"""Outputs: what a session shows or writes besides its journal while it runs, such as the files of another tool.

Each is an entry point of the group `evaljournal.outputs`: a function of the text after the colon in `--export NAME:TEXT`, or of
None, with the keyword `retry_failed`, that returns a `RunOutput`, or None where it does not apply. An output only reads: what
the run records does not depend on it.
"""

from pathlib import Path
from typing import Any

import trio

from evaljournal import entry_points
from evaljournal.runner.errors import UsageError, suggest
from evaljournal.runner.sessions.options import LiveRun


class RunOutput:
    """An output of a session; a subclass overrides what it needs."""

    def check(self, run: Path | None = None) -> None:
        """Raise a `UsageError` if it cannot be used for this run; None: a new one. Nothing is written."""

    def prepare(self, run: Path | None = None) -> None:
        """Create what it writes to, before the session starts; raise a `UsageError` as `check` does."""
        self.check(run)

    async def update(self, live_run: LiveRun) -> None:
        """Show or write the run until cancelled; it starts with the run."""

    def finish(self, run: Path) -> str:  # noqa: ARG002  # subclasses use it
        """Complete it at the end of the session; return what is missing and why, empty if nothing is."""
        return ""


class Outputs(RunOutput):
    """Several outputs of a session."""

    def __init__(self, *outputs: RunOutput) -> None:
        self._outputs = outputs

    def check(self, run: Path | None = None) -> None:
        for output in self._outputs:
            output.check(run)

    def prepare(self, run: Path | None = None) -> None:
        for output in self._outputs:
            output.prepare(run)

    async def update(self, live_run: LiveRun) -> None:
        async with trio.open_nursery() as nursery:
            for output in self._outputs:
                nursery.start_soon(output.update, live_run)

    def finish(self, run: Path) -> str:
        return "; ".join(filter(None, [output.finish(run) for output in self._outputs]))


def output_from_text(text: str, **options: Any) -> RunOutput | None:
    """Return the output that `NAME:TEXT` names; raise a `UsageError` if there is none of this name, or it rejects the text.

    The entry point is called with the options: `retry_failed`, and those that only an option of its own sets.
    """
    name, colon, argument = text.partition(":")
    entry = entry_points.find("outputs", name)
    if entry is None:
        names = entry_points.names("outputs")
        raise UsageError(f"unknown output {name!r}; use {', '.join(names) or 'none'}{suggest(name, names)}")
    output: RunOutput | None = entry_points.checked(
        entry,
        UsageError,
        lambda: entry.load()(argument if colon else None, **options),
        RunOutput | None,
        noun="a RunOutput",
        verb="returned",
    )
    return output
