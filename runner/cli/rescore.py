"""The command that scores outputs anew."""

import functools
import sys
from pathlib import Path
from typing import Any

import click
import trio

from journal.lock import is_held
from replay.ending import final_report
from replay.summary import in_json, summarise
from replay.text import plural
from runner.cli import InvalidUsage, unwrap_exception_groups
from runner.cli._common import run_argument
from runner.cli._display import print_json
from runner.cli._ending import exit_code, print_missed_gates
from runner.cli._locate import locate_evaluation
from runner.cli._no_code_options import scorer_options, scorers_in
from runner.data.dataset import Dataset
from runner.definition.evaluation import Evaluation
from runner.definition.settings import Settings
from runner.engine.rescore import Rescored
from runner.engine.rescore import rescore as score_anew


@click.command()
@run_argument
@scorer_options
@click.option("--again", is_flag=True, help="Also what these scorers have scored before, just as they are now.")
@click.option("--task", "reference", metavar="REFERENCE", help="Where the evaluation is now, if it was moved.")
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    metavar="N",
    help="Maximum number of concurrent calls per scorer (default: 100 for judges and async functions, 32 for plain functions).",
)
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON at the end.")
def rescore(path: Path, again: bool, reference: str | None, slots: int | None, as_json: bool, **options: Any) -> None:
    """Score the outputs of a run anew, in the same journal, without a single call of the task.

    Without --score or --judge, the evaluation's own scorers do it, as they are now. What was said before is kept, and is
    superseded; `show` tells both. Outputs that a scorer has judged in its present version are left as they are. The code is 1
    if a scorer that is named here, or one of the run's own, could not score an output; others that were tried earlier and could
    not are told, and do not count.

    \b
    evaljournal rescore
    evaljournal rescore runs/qa/0001 --score iexact --score close_to:0.01
    evaljournal rescore runs/qa/0001 --judge gpt-4o --rubric @rubric.txt
    """
    if is_held(path):
        raise InvalidUsage(f"{path} is a run that is going on; its outputs can be scored anew when it is done")
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    if given and reference is not None:
        raise InvalidUsage("--task is where the evaluation's own scorers are, and others were named")
    evaluation = _scored_by(given) if given else locate_evaluation(path, reference, verb="rescore").evaluation
    scorers, name = list(evaluation.scorers.values()), evaluation.cases.input_name
    anew = functools.partial(score_anew, path, scorers, again=again, slots=slots, input_name=name, signals=True)
    with unwrap_exception_groups():
        done: Rescored = trio.run(anew)
    outcome = done.outcome
    names = [scorer.name for scorer in scorers]
    words = f"{plural(done.outputs, 'output')} scored anew by {', '.join(names)}"
    words += f"; {done.current:,} scored so before" if done.current else ""
    words += f"; {done.left:,} left, and the same command goes on with them" if done.left else ""
    click.echo(words, err=True)
    click.echo(final_report(outcome.state, path=path, stopped=outcome.stopped, why=outcome.why), err=True)
    if not outcome.stopped:
        print_missed_gates(outcome.state)
    code = exit_code(outcome.state, stopped=outcome.state.ending != "finished", asked=names)
    if as_json:
        print_json({"path": str(path), "outputs": done.outputs, "exit_code": code, **in_json(summarise(outcome.state))})
    sys.exit(code)


def _scored_by(given: dict[str, Any]) -> Evaluation[Any, Any, Any]:
    """Make an evaluation of nothing with the scorers that the flags name."""
    nothing: Evaluation[Any, Any, Any] = Evaluation(_nobody, cases=Dataset([]), settings=Settings(), name="rescoring")
    for name, scorer in scorers_in(given):
        nothing.score(name=name)(scorer)
    return nothing


def _nobody(_: object) -> None:
    """Stand in for a task that is not asked."""
