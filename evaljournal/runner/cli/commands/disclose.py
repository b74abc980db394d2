"""The command `evaljournal disclose`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from evaljournal.journal.format.codec import MAX_INTEGER
from evaljournal.replay.claims.shapes import MAX_SAMPLE
from evaljournal.replay.state.trial import failing_trials
from evaljournal.replay.text import quote
from evaljournal.runner.cli.arguments import output_option, run_argument
from evaljournal.runner.cli.commands.export import check_target
from evaljournal.runner.cli.terminal.display import open_run
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.runs.atomic_write import write_atomically
from evaljournal.runner.sessions.claims.claim import disclose as disclose_trials
from evaljournal.runner.sessions.claims.files import newest_statement, read_statement

_TARGET: Final = Path("bundle.jsonl")


@click.command()
@run_argument
@click.option("--trials", metavar="A,B", multiple=True, help="Names of trials; repeatable.")
@click.option("--failing", "is_failing", is_flag=True, help="All trials with an error or a failing score.")
@click.option("--sample", type=click.IntRange(1, MAX_SAMPLE), metavar="N", help="A random sample, which `check` draws again.")
@click.option("--seed", type=click.IntRange(0, MAX_INTEGER), metavar="S", help="Seed of the sample; let the checker choose it.")
@click.option("--all", "is_all", is_flag=True, help="All trials, so that the claim can be recomputed.")
@click.option("--reveal", type=click.Choice(["model", "dataset"]), multiple=True, help="Also the committed model or dataset.")
@click.option(
    "--statement", type=click.Path(path_type=Path), metavar="FILE", help="Statement (default: the newest of the run)."
)
@output_option("FILE", f"Output file (default: {_TARGET}).", default=_TARGET)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def disclose(
    path: Path,
    *,
    trials: Sequence[str],
    is_failing: bool,
    sample: int | None,
    seed: int | None,
    is_all: bool,
    reveal: Sequence[str],
    statement: Path | None,
    target: Path,
    force: bool,
) -> None:
    """Write a bundle: a statement, selected trials with input, expected output, output and scores, and a proof for each.

    The proof shows that the trial was in the run when the claim was made. Nothing can be learned from it about other trials.

    \b
    evaljournal disclose runs/capitals/0001 --trials peru,chile -o bundle.jsonl
    evaljournal disclose runs/capitals/0001 --sample 20 --seed 4711
    evaljournal disclose runs/capitals/0001 --all --reveal dataset
    """
    if sum((bool(trials), is_failing, sample is not None, is_all)) != 1 or (sample is None) != (seed is None):
        raise click.UsageError("pass one of --trials, --failing, --sample N --seed S, and --all")
    check_target(target, directory=False, force=force)

    names: Sequence[str] | None = None
    if is_failing or trials:
        states = open_run(path).state.trials
        names = [name for text in trials for name in ([text] if text in states else text.split(","))]
        names = failing_trials(states) if is_failing else names

    drawn = None if sample is None or seed is None else {"size": sample, "seed": seed}
    claim = read_statement(statement or newest_statement(path), is_plan=False)
    count, lines = disclose_trials(path, claim, names, drawn, reveal)

    write_atomically(target, lines)
    echo(f"{target}: {count:,} of {claim.own['tree']['size']:,} trials disclosed", err=True)
    echo(f"next: evaljournal check {quote(target)}", err=True)
