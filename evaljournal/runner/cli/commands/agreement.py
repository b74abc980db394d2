"""The command `evaljournal agreement`."""

from typing import Final

import click

from evaljournal.replay.results.comparison import Side
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.review.reviewed import agreement as measure_agreement
from evaljournal.replay.review.reviewed import open_review
from evaljournal.replay.review.text import agreement_lines
from evaljournal.replay.text import quote
from evaljournal.runner.cli.arguments import RunReference, reference_argument
from evaljournal.runner.cli.terminal.display import check_variant, exit_if_damaged, open_run, print_json
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.errors import UsageError, suggest

_MAX_LISTED: Final = 10
"""Maximum disagreements that are listed without --all."""


@click.command()
@reference_argument
@click.option("--question", metavar="NAME", help="Only the labels of this name, which is that of a scorer (default: all).")
@click.option("--all", "show_all", is_flag=True, help="List every disagreement.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of agreements as JSON.")
def agreement(run: RunReference, question: str | None, show_all: bool, as_json: bool) -> None:
    """Show how well the scorers of a run, or of one variant (RUN@VARIANT), agree with human labels.

    For each scorer with labels: the confusion table, Gwet's AC1, Cohen's κ and Krippendorff's α with 95 % confidence
    intervals, the rates of true passes and fails, the corrected score, and the outputs on which they disagree. Also what the
    journal shows about the scorer: whether equal outputs have equal scores, and whether its errors depend on the length of the
    output or on the family of the model.

    Labels of a random sample are used, weighted by the probability with which they were drawn; without one, all labels.

    \b
    evaljournal agreement runs/capitals/0001
    evaljournal agreement runs/capitals/0001 --question judge --json | jq '.[0].ac1'
    """
    view = open_run(run.path)
    check_variant(view, run.variant)
    reviewed = open_review(view)
    names = reviewed.names if reviewed is not None else []
    if reviewed is None or not names:
        raise UsageError(
            f"{run.path} has no labels", hint=f"draw a sample with `evaljournal review {quote(run.path)} --sample 60`"
        )
    if question is not None and question not in names:
        raise UsageError(f"{run.path} has no labels of {question!r}{suggest(question, names)}")

    side = Side(view.state, variant=run.variant)
    results = [measure_agreement(reviewed, side, name) for name in names if question in {None, name}]

    if as_json:
        print_json([view_json(result) for result in results])
    else:
        for result in results:
            echo("\n".join(agreement_lines(result, limit=None if show_all else _MAX_LISTED)))
    exit_if_damaged(view.problem, quiet=as_json)
