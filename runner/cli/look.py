"""Commands that look at a run and change nothing."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import orjson
import trio

from journal import Blob, Lines, Record, read
from journal import follow as follow_journal
from journal.codec import KINDS, name_of
from journal.events import fields_of
from runner.cli.arguments import chosen_run, nearest, newest_run

_WIDTH = 60


@click.command()
@click.argument("run", required=False)
@click.argument("trial", required=False)
@click.option("--type", "types", metavar="TYPE", multiple=True, help="Only records of this type; can be given again.")
@click.option("-f", "--follow", is_flag=True, help="Go on as records are written, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print the lines as they stand on disk.")
def log(run: str | None, trial: str | None, types: tuple[str, ...], follow: bool, as_json: bool) -> None:
    """Print the records of a run, or those of one TRIAL.

    \b
    evaljournal log runs/capitals/0001
    evaljournal log runs/capitals/0001 peru --type attempt_failed --type attempt_timed_out
    evaljournal log -f --json | jq .type
    """
    for name in types:
        if name not in KINDS and not name.startswith("x-"):
            raise click.UsageError(f"there is no type of event {name!r}{nearest(name, KINDS)}")
    path, trial = _run_and_trial(run, trial)
    with Lines(path) as lines:
        view = _View(trial, frozenset(types), lines if as_json else None)
        if follow:
            trio.run(_follow, path, view)
            return
        reading = read(path, load_blobs=False)
        for record in reading:
            view.show(record)
    if reading.unfinished:
        click.echo(f"behind record {reading.unfinished.seq - 1:,}: {reading.unfinished.check}", err=True)
    if trial is not None and trial not in view.trials:
        raise click.UsageError(f"{path} has no trial {trial!r}{nearest(trial, view.trials)}")


class _View:
    """Which records are shown, and how."""

    def __init__(self, trial: str | None, types: frozenset[str], lines: Lines | None) -> None:
        self._trial = trial
        self._types = types
        self._lines = lines
        self.trials: set[str] = set()
        """The trials that were met, for a name that was not."""

    def show(self, record: Record) -> None:
        """Print a record, if it is one of those that were asked for."""
        about = getattr(record.event, "trial", "")
        if self._trial is not None:
            self.trials.add(about)
            if about != self._trial:
                return
        if self._types and name_of(record.event) not in self._types:
            return
        if self._lines is not None:
            click.echo(self._lines.of(record), nl=False)
        else:
            click.echo(_in_words(record))


def _run_and_trial(run: str | None, trial: str | None) -> tuple[Path, str | None]:
    """Tell a run from a trial: one word that is no directory is a trial of the newest run."""
    if run is not None and trial is None and not Path(run).exists():
        with contextlib.suppress(click.UsageError):
            return newest_run(), run
    return chosen_run(Path(run) if run is not None else None), trial


async def _follow(path: Path, view: _View) -> None:
    async with trio.open_nursery() as nursery:

        async def show_all() -> None:
            async for record in follow_journal(path, load_blobs=False):
                view.show(record)

        with trio.open_signal_receiver(signal.SIGINT) as signals:
            nursery.start_soon(show_all)
            async for _ in signals:
                nursery.cancel_scope.cancel()


def _in_words(record: Record) -> str:
    fields = " ".join(f"{name}={_short(value)}" for name, value in _fields(record))
    at, name = _short(record.at[11:23]), _short(name_of(record.event))
    return f"{record.seq:>7}  {at}  {record.t:>10.3f}  {name:<20}  {fields}"


def _fields(record: Record) -> Iterator[tuple[str, Any]]:
    for field in fields_of(type(record.event)):
        value = getattr(record.event, field.name)
        if value != field.default:
            yield field.name, value


def _short(value: Any) -> str:
    """Show a value in a few characters, none of which can do anything to a terminal."""
    if isinstance(value, Blob):
        return f"({value.bytes:,} bytes in a blob)"
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    text = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text[: _WIDTH + 1])
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
