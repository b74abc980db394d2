"""The command `evaljournal export`."""

import os
import shlex
import stat
import sys
from pathlib import Path

import click

from journal import segments
from journal import verify as verify_journal
from replay.export import FORMATS, Files, Format, Rows, Source, TableFile
from runner.atomic_write import write_atomically, write_directory
from runner.cli._common import output_option, run_argument
from runner.cli._display import exit_if_damaged, warn_unconfirmed
from runner.cli._output import echo, write_data
from runner.errors import UsageError
from runner.suggest import suggest

_HELP = "\n".join(["\b", *(f"{name:<13} {format_.description}" for name, format_ in FORMATS.items())])


@click.command(epilog=_HELP)
@run_argument
@click.option(
    "-f",
    "--format",
    "name",
    metavar="FORMAT",
    default="jsonl",
    shell_complete=lambda _, __, incomplete: [name for name in FORMATS if name.startswith(incomplete)],
    help="One of the formats below (default: jsonl).",
)
@output_option("PATH", "Output file or directory (default: standard output).")
@click.option("--rows", type=click.Choice(["trials", "attempts", "steps", "events"]), help="Rows of a table (default: trials).")
@click.option("--force", is_flag=True, help="Replace existing files.")
def export(path: Path, name: str, target: Path | None, rows: Rows | None, force: bool) -> None:
    """Export a run to another format; it may be running, stopped, finished or damaged.

    A damaged run is exported up to the damage, with exit code 4. Files are replaced atomically, and only with --force. The same
    records always give the same bytes.

    \b
    evaljournal export > trials.jsonl
    evaljournal export runs/capitals/0001 --format csv --rows attempts -o attempts.csv
    evaljournal export runs/capitals/0001 --format junit -o report.xml
    """
    format_ = FORMATS.get(name)
    if format_ is None:
        raise click.UsageError(f"unknown format {name!r}; use one of {', '.join(FORMATS)}{suggest(name, FORMATS)}")
    _check(name, format_, target, rows, force=force)
    with Source(path) as source:
        try:
            _write(source, format_, target, rows or "trials")
        except OSError:
            raise  # A closed pipe or a full disk, not damage.
        except Exception as exc:
            problem = verify_journal(path).problem
            if problem is None:
                raise
            raise problem from exc  # Report the damage, not its consequence.
    if target is not None:
        echo(f"exported {path} as {name} to {target}, up to record {source.run.state.seq:,}", err=True)
    exit_if_damaged(source.problem)
    warn_unconfirmed(source.run.unfinished)


def _check(name: str, format_: Format, target: Path | None, rows: str | None, *, force: bool) -> None:
    """Reject options that the format does not support, before anything is read."""
    if rows is not None and not isinstance(format_, TableFile):
        tables = ", ".join(table for table, other in FORMATS.items() if isinstance(other, TableFile))
        raise click.UsageError(f"--rows applies to {tables}, not to {name}; remove --rows or change --format")
    if target is not None:
        check_target(target, directory=isinstance(format_, Files), force=force)
    elif isinstance(format_, Files):
        raise click.UsageError(f"{name} writes a directory; pass -o DIRECTORY")
    elif sys.stdout is None:
        raise click.UsageError("standard output is closed; pass -o PATH")
    elif not format_.is_text and sys.stdout.isatty():
        raise click.UsageError(f"{name} is binary and cannot be printed to a terminal; pass -o PATH or use a pipe")


def check_target(target: Path, *, directory: bool, force: bool) -> None:
    """Reject a target that is inside a run, has no parent directory, is of the wrong kind, or exists, unless `force`."""
    if inside := segments.enclosing_run(target):
        raise UsageError(f"{target} is inside the run {inside}; pass another path to -o")
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        if not target.parent.is_dir():
            create = f"create it with `mkdir -p {shlex.quote(str(target.parent))}`"
            raise UsageError(f"{target.parent} does not exist; {create}") from None
        return
    if directory != stat.S_ISDIR(mode) or not (directory or stat.S_ISREG(mode)):
        raise UsageError(f"{target} exists and is not a {'directory' if directory else 'file'}; pass another path to -o")
    if not force and not (directory and not os.listdir(target)):
        raise UsageError(f"{target} exists; pass --force to replace {'its files' if directory else 'it'}")


def _write(source: Source, format_: Format, target: Path | None, rows: Rows) -> None:
    if isinstance(format_, Files):
        assert target is not None
        write_directory(target, format_.write(source))
        return
    pieces = format_.write(source, rows) if isinstance(format_, TableFile) else format_.write(source)
    if target is not None:
        write_atomically(target, pieces)
    else:
        write_data(pieces)
