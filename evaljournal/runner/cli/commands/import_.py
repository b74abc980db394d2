"""The command `evaljournal import`.

Each format that it reads is an integration, found by an entry point of the group `evaljournal.imports`.
"""

from pathlib import Path

import click

from evaljournal import entry_points
from evaljournal.replay.text import plural
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.data.traces import write_cases
from evaljournal.runner.errors import UsageError


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--atif", "kind", flag_value="atif", help="FILE has trajectories of agents (ATIF): import a case of each.")
@click.option(
    "--otlp", "kind", flag_value="otlp", help="FILE has OpenTelemetry spans (OTLP, JSON): import a case of each trace."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("evals"),
    metavar="DIR",
    help="Output directory (default: evals).",
)
@click.option("--expected", metavar="NAME", help="Of traces: the annotation with the expected output (default: expected).")
@click.option(
    "--partial", is_flag=True, help="Of promptfoo: import the rest if parts have no counterpart; the file lists these."
)
def import_(file: Path, kind: str | None, output: Path, expected: str | None, *, partial: bool) -> None:
    """Import a promptfoo configuration, or the traces of an application as cases.

    A configuration is converted to files for `evaljournal run`. Whatever has no counterpart is printed with its line; nothing
    is written then, unless --partial is passed.

    A trace becomes a case with its input, the expected output if it is annotated, and the recorded output, the names of the
    tools that were called and the trajectory as further columns. Nothing is executed or fetched, and no file is overwritten.

    \b
    evaljournal import promptfooconfig.yaml
    evaljournal import --otlp failures.jsonl --expected review.answer
    evaljournal import --atif trajectories.jsonl -o evals/
    """
    if kind is not None and partial:
        raise click.UsageError("--partial is for promptfoo")
    if kind is None and expected is not None:
        raise click.UsageError("--expected needs --atif or --otlp")

    entry = entry_points.find("imports", kind or "promptfoo")
    assert entry is not None, "it is one of ours"
    with entry_points.using(entry, UsageError):
        importer = entry.load()
    if kind is None:
        importer(file, output, partial=partial)
        return

    target = output / f"{file.stem}.jsonl"
    if file.resolve() == target.resolve():
        raise UsageError("this file would be replaced; pass another directory with -o", path=target)
    count = write_cases(importer(file, expected), target)
    echo(f"{target} written: {plural(count, 'case')}; next: evaljournal run --data {target} --limit 5 …", err=True)
