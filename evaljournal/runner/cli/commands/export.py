"""The command `evaljournal export`."""

import functools
import os
import shlex
import stat
import sys
from pathlib import Path
from typing import Final, get_args

import attrs
import click

from evaljournal.journal import verify as verify_journal
from evaljournal.journal.disk import segments
from evaljournal.replay.export import FORMATS, Directory, File, Format, Rows, Source, TableFile
from evaljournal.replay.export.formats import BUILT_IN
from evaljournal.runner.cli.arguments import RunReference, RunType, find_reference, output_option, reference_argument
from evaljournal.runner.cli.terminal.display import check_variant, exit_if_damaged, warn_unconfirmed
from evaljournal.runner.cli.terminal.output import echo, write_data
from evaljournal.runner.errors import UsageError, suggest
from evaljournal.runner.runs.atomic_write import write_atomically, write_directory

_SUMMARY: Final = "GITHUB_STEP_SUMMARY"


class _Export(click.Command):
    """The command; its help lists the formats, and imports them only then."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.epilog = "\n".join(["\b", *(f"{name:<13} {_description(name)}" for name in FORMATS)])
        super().format_epilog(ctx, formatter)


def _description(name: str) -> str:
    """Return what a format is, or why it cannot be used."""
    try:
        return FORMATS[name].description
    except ImportError as exc:
        return str(exc)


@click.command(cls=_Export)
@reference_argument
@click.option(
    "-f",
    "--format",
    "name",
    metavar="FORMAT",
    default="jsonl",
    shell_complete=lambda _, __, incomplete: [name for name in FORMATS if name.startswith(incomplete)],
    help="One of the formats below (default: jsonl).",
)
@output_option("PATH", "Output file or directory (default: -, standard output).")
@click.option("--rows", type=click.Choice(get_args(Rows)), help="Rows of a table (default: trials).")
@click.option(
    "--baseline", metavar="RUN", type=RunType(find_reference), help="Compare with this run or variant (markdown only)."
)
@click.option("--summary", is_flag=True, help=f"Append to the file that ${_SUMMARY} names (markdown only).")
@click.option("--json", "as_json", is_flag=True, help="Write JSON, one request per line, instead of protobuf (otlp only).")
@click.option("--step-filter", metavar="TYPES", help="Types of steps (default: LLM_END,TOOL_END; nat only).")
@click.option("--force", is_flag=True, help="Replace existing files.")
def export(
    run: RunReference,
    name: str,
    target: Path | None,
    rows: Rows | None,
    *,
    baseline: RunReference | None,
    summary: bool,
    as_json: bool,
    step_filter: str | None,
    force: bool,
) -> None:
    """Export a run to another format; it may be running, stopped, finished or damaged.

    A damaged run is exported up to the damage, with exit code 4. Files are replaced atomically, and only with --force. The same
    records always give the same bytes. With --baseline, one variant of each run can be compared: RUN@VARIANT.

    \b
    evaljournal export > trials.jsonl
    evaljournal export runs/capitals/0001 --format csv --rows attempts -o attempts.csv
    evaljournal export runs/capitals/0001 --format junit -o report.xml
    evaljournal export --format markdown --baseline runs/capitals/0001 --summary
    """
    format_ = _select_format(name, has_rows=rows is not None, as_json=as_json)
    if step_filter is not None:
        format_ = _filter_steps(name, format_, step_filter)
    _check_comparison(name, format_, run, has_baseline=baseline is not None, summary=summary)

    target = None if target == Path("-") else target
    summary_file = _summary_file(target) if summary else None

    source, baseline_source = Source(run.path), None if baseline is None else Source(baseline.path)
    if baseline is not None and baseline_source is not None:
        format_ = _add_comparison(format_, (source, run.variant), (baseline_source, baseline.variant))
    if isinstance(format_, File) and format_.write_variants is not None and source.state.variants:
        format_ = Directory(format_.description, format_.write_variants)

    if summary_file is None:
        _check_destination(name, format_, target, force=force)
    try:
        _write(source, format_, target, rows or "trials", baseline=baseline_source, summary_file=summary_file)
    except OSError:
        raise  # A closed pipe or a full disk is not damage.
    except Exception as exc:
        problems = [verify_journal(reference.path).problem for reference in (run, baseline) if reference is not None]
        problem = next(filter(None, problems), None)
        if problem is None:
            raise
        raise problem from exc  # Report the damage, not its consequence.

    if target is not None or summary_file is not None:
        echo(f"exported {run.path} as {name} to {target or summary_file}, up to record {source.run.state.seq:,}", err=True)
    exit_if_damaged(source.problem or (baseline_source.problem if baseline_source is not None else None))
    warn_unconfirmed(source.run.unfinished)


def _select_format(name: str, *, has_rows: bool, as_json: bool) -> Format:
    """Return the format of this name; reject options that it does not have."""
    try:
        format_ = FORMATS.get(name)
    except ImportError as exc:  # It is of another package.
        raise UsageError(str(exc)) from exc
    if format_ is None:
        raise click.UsageError(f"unknown format {name!r}; use one of {', '.join(FORMATS)}{suggest(name, FORMATS)}")
    if has_rows and not isinstance(format_, TableFile):
        tables = ", ".join(table for table, table_format in BUILT_IN.items() if isinstance(table_format, TableFile))
        raise click.UsageError(f"--rows applies to {tables}, not to {name}; remove --rows or change --format")
    if not as_json:
        return format_
    if not isinstance(format_, Directory) or format_.write_json is None:
        raise click.UsageError(f"--json applies to otlp, not to {name}; remove --json or change --format")
    return File(format_.description, format_.write_json)


def _filter_steps(name: str, format_: Format, types: str) -> Format:
    if not isinstance(format_, Directory) or format_.write_steps is None:
        raise click.UsageError(f"--step-filter applies to nat, not to {name}; remove it or change --format")
    write_steps = format_.write_steps
    return attrs.evolve(format_, write=lambda source: write_steps(source, types))


def _check_comparison(name: str, format_: Format, run: RunReference, *, has_baseline: bool, summary: bool) -> None:
    """Reject a comparison or a summary in another format, and a variant without a comparison."""
    if (has_baseline or summary) and not (isinstance(format_, File) and format_.compare):
        option = "--summary" if summary else "--baseline"
        raise click.UsageError(f"{option} applies to markdown, not to {name}; remove {option} or change --format")
    if run.variant is not None and not has_baseline:
        raise click.UsageError(f"{run} is one variant, which needs --baseline; pass {run.path}: its export has all variants")


def _add_comparison(format_: Format, run: tuple[Source, str | None], baseline: tuple[Source, str | None]) -> Format:
    """Return the format with a comparison of these variants; None is a whole run."""
    for source, variant in (run, baseline):
        check_variant(source.run, variant)
    assert isinstance(format_, File)
    assert format_.compare is not None
    compare = functools.partial(format_.compare, variant=run[1], baseline_variant=baseline[1])
    return attrs.evolve(format_, compare=compare)


def _summary_file(target: Path | None) -> Path:
    """Return the file of the summary of a CI job; it is an error if there is none."""
    if target is not None:
        raise click.UsageError("--summary and -o are mutually exclusive; pass one of them")
    if not os.environ.get(_SUMMARY):
        raise UsageError(
            f"--summary needs the environment variable {_SUMMARY}, which GitHub Actions sets; pass -o FILE elsewhere"
        )
    return Path(os.environ[_SUMMARY])


def _check_destination(name: str, format_: Format, target: Path | None, *, force: bool) -> None:
    """Reject a destination that the format does not support, before anything is read."""
    if target is not None:
        check_target(target, directory=isinstance(format_, Directory), force=force)
    elif isinstance(format_, Directory):
        raise click.UsageError(f"{name} writes a directory; pass -o DIRECTORY")
    elif sys.stdout is None:
        raise click.UsageError("standard output is closed; pass -o PATH")
    elif not format_.is_text and sys.stdout.isatty():
        raise click.UsageError(f"{name} is binary and cannot be printed to a terminal; pass -o PATH or use a pipe")


def check_target(target: Path, *, directory: bool, force: bool) -> None:
    """Reject a target that is inside a run, has no parent directory, is of the wrong kind, or exists, unless `force`."""
    if run := segments.enclosing_run(target):
        raise UsageError(f"{target} is inside the run {run}; pass another path to -o")

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


def _write(
    source: Source,
    format_: Format,
    target: Path | None,
    rows: Rows,
    *,
    baseline: Source | None = None,
    summary_file: Path | None = None,
) -> None:
    if isinstance(format_, Directory):
        assert target is not None
        write_directory(target, format_.write(source))
        return
    if isinstance(format_, TableFile):
        chunks = format_.write(source, rows)
    else:
        chunks = format_.write(source) if baseline is None or format_.compare is None else format_.compare(source, baseline)
    if summary_file is not None:
        data = b"".join(chunks)  # Nothing is appended if the export fails.
        with open(summary_file, "ab") as stream:
            stream.write(data)
    elif target is not None:
        write_atomically(target, chunks)
    else:
        write_data(chunks)
