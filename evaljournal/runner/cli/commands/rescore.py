"""The command `evaljournal rescore`."""

from pathlib import Path
from typing import Any

import click

from evaljournal.journal.disk.lock import is_held
from evaljournal.replay.text import plural
from evaljournal.runner.cli.arguments import RunReference, RunType, find_reference, run_argument
from evaljournal.runner.cli.options.decorators import (
    GroupedCommand,
    grouped_option,
    leave_option,
    only_variant_option,
    scorer_options,
    task_option,
    trust_option,
)
from evaljournal.runner.cli.options.locate import locate_evaluation
from evaljournal.runner.cli.options.model_urls import check_shared_options, options_from_environment
from evaljournal.runner.cli.options.no_code import scorers_from_options
from evaljournal.runner.cli.options.table import OPTIONS, overrides
from evaljournal.runner.cli.options.values import command_values
from evaljournal.runner.cli.terminal.display import finish
from evaljournal.runner.cli.terminal.output import echo, line_width
from evaljournal.runner.cli.terminal.user_code import user_code
from evaljournal.runner.data.dataset import Dataset
from evaljournal.runner.definition.evaluation import Evaluation
from evaljournal.runner.definition.loading import AnyEvaluation
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.errors import UsageError, unwrap_exception_groups
from evaljournal.runner.sessions.api import run_in_trio
from evaljournal.runner.sessions.rescore import Rescoring, pairwise_evaluation
from evaljournal.runner.sessions.session import render_report
from evaljournal.runner.signals import STOP_SIGNALS, handle_signals


@click.command(cls=GroupedCommand)
@run_argument
@scorer_options
@only_variant_option("Scoring", "Only outputs of this variant; repeatable.")
@grouped_option(
    "Scoring",
    "--all",
    "all_outputs",
    is_flag=True,
    help="Also re-score outputs already scored by the scorer's current version.",
)
@grouped_option(
    "Scoring",
    "--against",
    type=RunType(find_reference),
    metavar="RUN",
    help="The judge compares each output with that of the same trial in another run, or RUN@VARIANT, in both orders.",
)
@task_option("Scoring")
@trust_option("Scoring")
@grouped_option(
    "Scoring",
    "--slots",
    type=click.IntRange(min=1),
    metavar="N",
    help="Maximum concurrent calls per scorer (default: 100; plain functions: 32).",
)
@grouped_option(
    "Scoring", "--batch", is_flag=True, help="Send the calls of judges in batches of the provider, at half the price."
)
@leave_option("Scoring", "the same command collects the results")
@grouped_option(
    "Scoring",
    "--cancel",
    is_flag=True,
    help="Cancel the batches that this command has submitted, use the results of finished lines, and send nothing.",
)
@grouped_option("Output", "--json", "as_json", is_flag=True, help="Print a summary as JSON at the end.")
def rescore(
    path: Path,
    *,
    all_outputs: bool,
    only_variant: tuple[str, ...],
    against: RunReference | None,
    reference: str | None,
    trust: bool,
    slots: int | None,
    batch: bool,
    leave: bool,
    cancel: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Re-score recorded outputs; the task is not called.

    Without --score or --judge, the current scorers of the evaluation are used. New scores are added to the same journal; `show`
    lists the old ones as superseded. Outputs that the current version of a scorer has scored are skipped. Exit codes as for
    `run`: 1 if an output could not be scored, trials have an error or a gate did not pass, 3 if the run is not finished.

    With --against, --judge is asked which of two outputs is better, in both orders. The score JUDGE-vs-RUN is `win` or `loss`
    if both orders agree, otherwise `tie`. A --rubric needs {first_output} and {second_output}.

    \b
    evaljournal rescore
    evaljournal rescore runs/qa/0001 --score iexact --score close_to:0.01
    evaljournal rescore runs/qa/0001 --judge gpt-5.6-terra --rubric @rubric.txt
    evaljournal rescore runs/qa/0002 --against runs/qa/0001 --judge gpt-5.6-terra
    """
    if is_held(path):
        raise UsageError(f"{path} is a run in progress; re-score it when it has ended")

    values = command_values({**options, "only_variant": ()})
    has_scorers = any(options[option.name] for option in OPTIONS if option.flag and option.name in options)
    if other_settings := overrides(values).keys() - {"batch_poll"}:
        raise UsageError(f"-s {min(other_settings)} is a setting of `run` and `resume`; `rescore` has batch-poll only")

    if has_scorers and reference is not None:
        raise UsageError("--task and options that name scorers are mutually exclusive; pass one of them")
    if against is not None and ("judge" not in values or "score" in values):
        raise UsageError("--against requires --judge, without --score")

    other_run = None
    with user_code(), unwrap_exception_groups():
        if has_scorers:
            evaluation, reference = _evaluation_from_options(values), ""
            if against is not None:
                judges = {name: scorer.function for name, scorer in evaluation.scorers.items()}
                evaluation, other_run = pairwise_evaluation(evaluation, judges, against.path, against.variant)
        else:
            evaluation, reference = locate_evaluation(path, reference, verb="rescore", trust=trust, values=values)
        session_options: dict[str, Any] = {"slots": slots, "only_variants": only_variant, "task": reference}
        session_options |= {"cancel_batches": True} if cancel else {"batch": batch, "leave": leave}
        session_options |= {"batch_poll": values["batch_poll"]} if "batch_poll" in values else {}
        session = Rescoring(evaluation, path, all_outputs=all_outputs, other_run=other_run, **session_options)
        with handle_signals(lambda *_: session.interrupt(), *STOP_SIGNALS):
            result = run_in_trio(session.rescore)

    outcome, names = result.outcome, list(evaluation.scorers)
    text = f"{plural(result.outputs, 'output')} re-scored by {', '.join(names)}"
    if other_run is not None:
        names = [name for name, scorer in evaluation.scorers.items() if scorer.combines]
        text = f"{plural(result.outputs, 'output')} compared by {', '.join(names)}"
        text += f"; not compared: {other_run.unpaired_text}" if other_run.unpaired else ""
    text += f"; {result.already_scored:,} already scored" if result.already_scored else ""
    hint = "" if cancel else "; run the same command again"
    text += f"; {result.unscored:,} not scored{hint}" if result.unscored else ""
    echo(text, err=True)

    state = outcome.state
    stop_reason = outcome.stop_reason or ("" if state.outcome == "finished" else state.outcome or "interrupted")
    finish(
        state,
        path,
        as_json=as_json,
        report=render_report(outcome, width=line_width()),
        stop_reason=stop_reason,
        scorers=names,
        outputs=result.outputs,
    )


def _evaluation_from_options(values: dict[str, Any]) -> AnyEvaluation:
    evaluation: AnyEvaluation = Evaluation(lambda _: None, cases=Dataset([]), settings=Settings(), name="rescoring")
    check_shared_options(values, [])
    for name, scorer in scorers_from_options({**values, **options_from_environment(values)}):
        evaluation.score(name=name)(scorer)
    return evaluation
