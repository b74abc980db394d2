"""Commands that make something of a run for others: for a spreadsheet, a CI, a viewer, another tool."""

import os
import shlex
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from journal import segments
from journal import verify as verify_journal
from replay import load
from replay.export import FORMATS, Files, Format, Rows, Source, TableFile
from runner.atomic_write import write_atomically, write_directory
from runner.cli import InvalidUsage
from runner.cli._common import run_argument
from runner.cli._display import exit_if_damaged, warn_unconfirmed
from runner.suggest import nearest

_HELP = "\n".join(["\b", *(f"{name:<13} {format_.what}" for name, format_ in FORMATS.items())])


@click.command(epilog=_HELP)
@run_argument
@click.option("-f", "--format", "name", metavar="FORMAT", default="jsonl", help="One of those below; jsonl if left out.")
@click.option(
    "-o", "--output", "target", metavar="PATH", type=click.Path(path_type=Path), help="Where to; else standard output."
)
@click.option(
    "--rows", type=click.Choice(["trials", "attempts", "events"]), help="A row for each of these; trials if left out."
)
@click.option("--force", is_flag=True, help="Replace what is there.")
def export(path: Path, name: str, target: Path | None, rows: Rows | None, force: bool) -> None:
    """Write a run in another format, whether it is going on, stopped, finished or damaged.

    A damaged run is written up to the damage, and the code is 4. A file is put in its place when it is whole; one that is there
    already is left alone without --force. The same run gives the same bytes.

    \b
    evaljournal export > trials.jsonl
    evaljournal export runs/capitals/0001 --format csv --rows attempts -o attempts.csv
    evaljournal export runs/capitals/0001 --format junit -o report.xml
    """
    format_ = FORMATS.get(name)
    if format_ is None:
        raise click.UsageError(f"there is no format {name!r}{nearest(name, FORMATS)}; there are {', '.join(FORMATS)}")
    _check(name, format_, target, rows, force=force)
    with Source(load(path)) as source:
        try:
            _write(source, format_, target, rows or "trials")
        except OSError:
            raise  # Whoever reads it has had enough, or there is no room.
        except Exception as exc:
            found = verify_journal(path).problem
            if found is None:
                raise
            raise found from exc  # It was not our doing: what the journal says makes no sense.
    if target is not None:
        click.echo(f"{target}: {name} of {path}, up to record {source.history.state.seq:,}", err=True)
    exit_if_damaged(source.problem)
    warn_unconfirmed(source.history.unfinished)


def _check(name: str, format_: Format, target: Path | None, rows: str | None, *, force: bool) -> None:
    """Refuse what cannot be done, before anything is read."""
    if rows is not None and not isinstance(format_, TableFile):
        tables = ", ".join(each for each, other in FORMATS.items() if isinstance(other, TableFile))
        raise click.UsageError(f"--rows is for {tables}; {name} has a form of its own")
    if target is not None:
        check_target(target, directory=isinstance(format_, Files), force=force)
    elif isinstance(format_, Files):
        raise click.UsageError(f"{name} is several files; give a directory for them: -o DIRECTORY")
    elif sys.stdout is None:
        raise click.UsageError("standard output is closed; give a file: -o PATH")
    elif not format_.is_text and sys.stdout.isatty():
        raise click.UsageError(f"{name} is nothing for a terminal; give a file, -o PATH, or send it on through a pipe")


def check_target(target: Path, *, directory: bool, force: bool) -> None:
    """Refuse a place that is somebody else's; that of a journal most of all."""
    if inside := segments.enclosing_run(target):
        raise InvalidUsage(f"{target} is in {inside}, which is a run, and holds nothing but its journal; give another -o")
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        if not target.parent.is_dir():
            make = f"`mkdir -p {shlex.quote(str(target.parent))}` makes it"
            raise InvalidUsage(f"{target} cannot be written: there is no directory {target.parent}; {make}") from None
        return
    if directory != stat.S_ISDIR(mode) or not (directory or stat.S_ISREG(mode)):
        raise InvalidUsage(f"{target} is there, and is not a {'directory' if directory else 'file'}; give another -o")
    if not force and not (directory and not os.listdir(target)):
        raise InvalidUsage(f"{target} exists; nothing was written: --force replaces {'its files' if directory else 'it'}")


def _write(source: Source, format_: Format, target: Path | None, rows: Rows) -> None:
    if isinstance(format_, Files):
        assert target is not None
        write_directory(target, format_.make(source))
        return
    pieces = format_.make(source, rows) if isinstance(format_, TableFile) else format_.make(source)
    if target is not None:
        write_atomically(target, pieces)
    else:
        _print(pieces)


def _print(pieces: Iterable[bytes]) -> None:
    stream = sys.stdout.buffer
    for piece in pieces:
        stream.write(piece)
    stream.flush()
