"""The command `evaljournal annotate`."""

import getpass
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import trio

from evaljournal.journal import JournalError
from evaljournal.replay.review.labels import read_review
from evaljournal.replay.text import plural, printable
from evaljournal.runner.cli.arguments import RunType, TrialType
from evaljournal.runner.cli.terminal.display import open_intact_run
from evaljournal.runner.cli.terminal.errors import render
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.errors import UsageError
from evaljournal.runner.review.journal import Annotation, carry_labels
from evaljournal.runner.review.journal import annotate as record_labels


def reviewer_name(_: click.Context, __: click.Parameter, value: str | None) -> str:
    if value is None:
        try:
            value = getpass.getuser()
        except (OSError, KeyError, ImportError) as exc:
            raise UsageError("the name of the user is unknown", hint="pass --reviewer NAME") from exc
    if not value.strip():
        raise UsageError("the name of the reviewer is empty", hint="pass --reviewer NAME")
    return value.strip()


@click.command()
@click.argument("path", type=RunType(), metavar="RUN")
@click.argument("trial", type=TrialType(), required=False)
@click.argument("labels", nargs=-1, metavar="NAME=LABEL…")
@click.option("--note", default="", metavar="TEXT", help="Note on the label.")
@click.option("--reviewer", metavar="NAME", callback=reviewer_name, help="Who gives the label (default: your user name).")
@click.option("--blind", "is_blind", is_flag=True, help="Record that the reviewer did not see the scores.")
@click.option(
    "--import",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Import labels from CSV, JSONL or JSON, also exported by Label Studio or Argilla.",
)
def annotate(
    path: Path, trial: str | None, labels: tuple[str, ...], *, note: str, reviewer: str, is_blind: bool, file: Path | None
) -> None:
    """Give an output a label, or import labels from a file.

    NAME is the scorer that the label checks, LABEL is yes, no, a number or a text; an empty one withdraws your earlier label.
    Labels are appended to RUN/review/, and the run itself is not changed; it may be finished or running. A second label of the
    same reviewer replaces the first, which stays recorded.

    \b
    evaljournal annotate runs/capitals/0001 peru judge=yes --note 'also correct in Spanish'
    evaljournal annotate runs/capitals/0001 --import labels.csv
    """
    if (file is None) != (trial is not None) or bool(labels) != (trial is not None) or (file is not None and note):
        raise click.UsageError("pass TRIAL and NAME=LABEL, or --import FILE")
    from evaljournal.runner.review.labels import (  # noqa: PLC0415  # slow to import
        check_contradictions,
        check_name,
        parse_label,
        read_annotations,
    )

    run, review = open_intact_run(path), read_review(path)
    if file is not None:
        if file.is_dir():
            raise UsageError("it is a directory; pass a file with labels", path=file)
        annotations = read_annotations(run, review, file, reviewer, is_blind=is_blind)
    else:
        fields: dict[str, Any] = {"trial": trial, "note": note, "reviewer": reviewer, "is_blind": is_blind}
        values = [parse_label(run, label) for label in labels]
        annotations = [Annotation(name=name, value=value, **fields) for name, value in values]
        check_contradictions(annotations, [repr(label) for label in labels])

    notes = dict.fromkeys(check_name(run, review, annotation.name) for annotation in annotations)
    recorded = trio.run(partial(record_labels, run, annotations, is_import=file is not None))

    last_seq = review.history[-1].seq if review.history else 0
    new_labels = [label for label in recorded if label.seq > last_seq]
    withdrawn = sum(label.value == "" for label in new_labels)
    parts = [f"{plural(len(new_labels) - withdrawn, 'label')} recorded"] if len(new_labels) > withdrawn or not withdrawn else []
    parts += [f"{plural(withdrawn, 'label')} withdrawn"] if withdrawn else []
    echo(f"{path}: {', '.join(parts)}, {len(recorded) - len(new_labels):,} already recorded")

    chosen = sum(not label.sample and label.value != "" for label in new_labels)
    if chosen:
        notes[f"{plural(chosen, 'label')} of outputs that are in no sample: not used to correct a score"] = None
    for text in filter(None, notes):
        echo(printable(text, 400), err=True)


def carry_over(target: Path, sources: Sequence[Path]) -> None:
    """Copy the labels of runs to a new run that was copied from them, and report their number."""
    try:
        count = trio.run(carry_labels, target, sources)
    except JournalError as exc:
        echo(f"labels were not copied: {render(exc)}", err=True)
    else:
        if count:
            echo(f"{plural(count, 'label')} carried over", err=True)
