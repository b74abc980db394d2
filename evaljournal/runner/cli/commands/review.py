"""The command `evaljournal review`."""

import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import trio

from evaljournal.journal import Blob
from evaljournal.journal.format.codec import MAX_INTEGER
from evaljournal.replay import LoadedRun
from evaljournal.replay.results.pairwise import order_scorers
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.review.labels import METHODS, Label, Method, Review, Sample, labels_by_trial, read_review
from evaljournal.replay.runs.loaded_run import read_values
from evaljournal.replay.state.tally import main_scorer
from evaljournal.replay.text import plural, printable
from evaljournal.runner.cli.arguments import run_argument
from evaljournal.runner.cli.commands.annotate import reviewer_name
from evaljournal.runner.cli.commands.view import serve_page
from evaljournal.runner.cli.terminal.display import open_intact_run, print_json, print_table
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.errors import UsageError, command
from evaljournal.runner.review.journal import take_sample

_DEFAULT_SIZE: Final = 50
_DEFAULT_SEED: Final = 1
_MAX_OUTPUT: Final = 60
"""Characters of an output in the list."""


@click.command()
@run_argument
@click.option("--question", "name", metavar="NAME", help="The scorer to check, or another question (default: the first score).")
@click.option(
    "--sample",
    "size",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Outputs to draw (default: the newest sample, or {_DEFAULT_SIZE}).",
)
@click.option(
    "--seed", type=click.IntRange(0, MAX_INTEGER), metavar="N", help=f"Seed of the sample (default: {_DEFAULT_SEED})."
)
@click.option(
    "--method",
    type=click.Choice(METHODS),
    help="uniform (default); stratified: as many of each score; disagreements: half with contradicting scores or labels.",
)
@click.option("--blind", "is_blind", is_flag=True, help="Do not show the scores.")
@click.option("--reviewer", metavar="NAME", callback=reviewer_name, help="Who gives the labels (default: your user name).")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, metavar="N", help="Port of the page (default: a free one).")
@click.option("--open", "open_browser", is_flag=True, help="Open the page in a browser.")
@click.option("--list", "lists", is_flag=True, help="Print the sample and its labels instead.")
@click.option("--json", "as_json", is_flag=True, help="With --list: print inputs, outputs, scores and labels as JSON.")
def review(
    path: Path,
    *,
    name: str | None,
    size: int | None,
    seed: int | None,
    method: Method | None,
    is_blind: bool,
    reviewer: str,
    port: int,
    open_browser: bool,
    lists: bool,
    as_json: bool,
) -> None:
    """Draw outputs at random for people to label, and show them in a browser, one at a time, until Ctrl-C.

    The sample is recorded in RUN/review/ before any label, and used again until another size, seed or method is passed. The run
    may be finished or running; nothing is executed, and its journal is not changed. The server listens on 127.0.0.1 only, at an
    address with a random token, which is printed. A label is on disk when the page shows that it is saved.

    \b
    evaljournal review runs/capitals/0001 --sample 50 --seed 1 --blind --open
    evaljournal review runs/capitals/0001 --list
    evaljournal review --list --json | jq -r '.trials[] | select(.labels == []) | .trial'
    """
    if as_json and not lists:
        raise click.UsageError("--json needs --list")

    run = LoadedRun(path)
    run.state.steps.keeps_records = not lists
    open_intact_run(path, run=run)
    sample = current_sample(run, name, size, seed, method)
    if not lists:
        from evaljournal.runner.cli.servers.review import serve_review  # noqa: PLC0415  # `--list` needs no server

        options: dict[str, Any] = {"reviewer": reviewer, "is_blind": is_blind}
        serve_page(partial(serve_review, run, sample, port, **options), f"reviewing {path}", open_browser=open_browser)
        return

    own_review = read_review(path)
    labels = labels_by_trial(run, own_review)

    if as_json:
        trials = list(_trials(run, sample, labels, is_blind=is_blind))
        fields = view_json(sample, omit="trials")
        print_json({"path": str(path), "sample": {"id": fields.pop("sample"), **fields}, "trials": trials})
        return
    _print_list(run, own_review, sample, labels, is_blind=is_blind)


def current_sample(run: LoadedRun, name: str | None, size: int | None, seed: int | None, method: Method | None) -> Sample:
    """Return the newest sample of a question, or draw one; options that are not None select another."""
    pairwise_scorers = order_scorers(run.state) | run.state.scoring.pairwise.keys()
    if name in pairwise_scorers:
        hint = "pass another --question; reviewers see one output at a time"
        raise UsageError(f"{name!r} compares two outputs, so it cannot be reviewed", hint=hint)

    scorers = ((scorer, tally.kind) for scorer, tally in run.state.scores.items() if scorer not in pairwise_scorers)
    name = name or main_scorer(scorers)
    if name is None and run.state.scores:
        hint = "pass the question that reviewers answer: --question correct"
        raise UsageError(f"{run.path} has only scores that compare two outputs", hint=hint)
    if name is None:
        raise UsageError(f"{run.path} has no scores", hint="pass the question that reviewers answer: --question correct")
    from evaljournal.runner.review.labels import check_name  # noqa: PLC0415  # slow to import

    own_review = read_review(run.path)
    if note := check_name(run, own_review, name):
        echo(printable(note, 400), err=True)
    samples = [sample for sample in own_review.samples.values() if sample.name == name]
    if samples and (size, seed, method) == (None, None, None):
        return samples[-1]
    parameters: dict[str, Any] = {"n": size or _DEFAULT_SIZE, "seed": _DEFAULT_SEED if seed is None else seed}
    return trio.run(lambda: take_sample(run, name=name, method=method or "uniform", **parameters))


def _trials(run: LoadedRun, sample: Sample, labels: dict[str, list[Label]], *, is_blind: bool) -> Iterator[dict[str, Any]]:
    states = run.state.trials
    names = [trial for trial in sample.trials if trial in states]
    for values in read_values(run.path, states, names):
        state = states[values.trial]
        contents = {key: getattr(values, key) for key in ("input", "expected", "output")}
        yield {
            "trial": values.trial,
            "case": state.case,
            "variant": state.variant,
            "repeat": state.repeat,
            "probability": sample.trials[values.trial],
            **{key: value.load() if isinstance(value, Blob) else value for key, value in contents.items()},
            **({} if is_blind else {"scores": {scorer: value for scorer, (_, value) in state.scores.items()}}),
            "labels": [view_json(label) for label in labels.get(values.trial, ()) if label.name == sample.name],
        }


def _print_list(run: LoadedRun, own_review: Review, sample: Sample, labels: dict[str, list[Label]], *, is_blind: bool) -> None:
    rows: list[tuple[str, ...]] = [("TRIAL", "LABELS", "OUTPUT") if is_blind else ("TRIAL", "SCORE", "LABELS", "OUTPUT")]
    for trial in _trials(run, sample, labels, is_blind=is_blind):
        answers = ", ".join(f"{label_text(label['value'])} ({label['reviewer']})" for label in trial["labels"]) or "-"
        score = [] if is_blind else [label_text(trial["scores"].get(sample.name, "-"))]
        cells = [trial["trial"], *score, answers]
        rows.append((*(printable(cell, 40) for cell in cells), printable(trial["output"], _MAX_OUTPUT)))
    print_table(rows)
    answered = len({label.trial for label in own_review.answers(sample)})
    drawn = f"{plural(len(sample.trials), 'output')} of {sample.population:,}, {sample.method}, seed {sample.seed}"
    echo(f"sample {sample.sample} of {printable(sample.name)}: {drawn}; {answered:,} labeled", err=True)
    label = shlex.quote(f"{sample.name}={_example(run, sample)}")
    echo(f"next: {command('annotate', run.path, f' TRIAL {printable(label)}')}", err=True)


def _example(run: LoadedRun, sample: Sample) -> str:
    scores = (run.state.trials[trial].score(sample.name) for trial in sample.trials if trial in run.state.trials)
    values = (score[1] for score in scores if score is not None)
    return next((label_text(value) for value in values if not isinstance(value, bool)), "yes")


def label_text(value: Any) -> str:
    """Return a label as it is written: `yes`, `no`, a number or text."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else printable(value)
