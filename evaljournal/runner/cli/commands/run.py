"""The command `evaljournal run`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from evaljournal.journal.disk import segments
from evaljournal.journal.disk.lock import is_held
from evaljournal.replay.state.shards import Shard
from evaljournal.runner.cli.options.decorators import (
    GroupedCommand,
    config_option,
    grouped_option,
    leave_option,
    run_options,
    yes_option,
)
from evaljournal.runner.cli.options.locate import enter_offline, load_reference
from evaljournal.runner.cli.options.no_code import DEFINITION, Definition, build_evaluation
from evaljournal.runner.cli.options.table import overrides
from evaljournal.runner.cli.options.values import command_values, to_keys
from evaljournal.runner.cli.session import CommandSession, run_output
from evaljournal.runner.cli.suites.discovery import check_options, discover, is_suite_reference
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.cli.terminal.user_code import user_code
from evaljournal.runner.definition.loading import AnyEvaluation, LoadedEvaluation
from evaljournal.runner.errors import UsageError, command
from evaljournal.runner.runs.changes import effective_settings
from evaljournal.runner.runs.paths import RUNS, next_path, run_finish, runs_under
from evaljournal.runner.sessions.plan import select_trials
from evaljournal.runner.sessions.workers import new_workers


def _parse_shard(text: str) -> Shard:
    try:
        return Shard.parse(text)
    except ValueError as exc:
        raise click.BadParameter(f"{text!r}: {exc}") from None


@click.command(cls=GroupedCommand)
@click.argument("references", nargs=-1, metavar="[REFERENCE]...")
@config_option
@run_options
@grouped_option(
    "Dataset",
    "--shard",
    metavar="K/N",
    type=_parse_shard,
    help="Run the cases of shard K of N only, chosen by a hash of their content; `merge` joins the N runs.",
)
@grouped_option(
    "Output",
    "-o",
    "--output",
    "path",
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="Directory of the run (default: the next number under runs/NAME; with --shard, a name such as 0001-3of8).",
)
@grouped_option(
    "Output",
    "--dry-run",
    is_flag=True,
    help="Print the first request, the number of calls and the cost expected from earlier runs; nothing is called or written.",
)
@yes_option("Target")
@leave_option("Concurrency")
@grouped_option(
    "Replies", "--trust", is_flag=True, help="Use replies of others: they decide what your code does, such as its tools."
)
def run(references: tuple[str, ...], path: Path | None, dry_run: bool, **options: Any) -> None:
    """Run an evaluation, or a suite of several.

    REFERENCE is file.py, file.py:name, package.module:name or a configuration file. Without it, the options describe the
    evaluation. Every attempt is recorded in the directory of the run; an interrupted run can be resumed. If the directory of -o
    is an unfinished run, it is resumed with these arguments only: nothing that its journal names is executed, and no recorded
    setting applies.

    A directory, several references, or a TOML file with `suite = [...]` are a suite: all of its evaluations run at the same
    time, with these options, and share their rate limits and the budget.

    Exit codes: 0 finished, 1 finished but trials have an error, outputs were not scored or a gate did not pass, 2 usage error,
    3 not finished, 4 the journal was changed by another process, 5 too few labels for a gate on a review.

    \b
    evaljournal run evals/capitals.py
    evaljournal run evals/capitals.py:capitals --slots 4 --limit 20 --max-failures 5%
    evaljournal run evals/ --budget cost=5
    evaljournal run --data qa.jsonl --chat gpt-5.6-luna --prompt 'Answer briefly: {question}' --judge gpt-5.6-terra
    evaljournal run --data qa.jsonl --endpoint http://localhost:8000/generate --output-path output --score exact
    evaljournal run --data qa.jsonl --command './answer.sh' --score contains --fail-under contains=0.9
    evaljournal run evals/capitals.py --shard 3/8 -o runs/capitals/0001-3of8
    """
    values = command_values(options)
    changes = overrides(values)
    enter_offline(changes)
    if is_suite_reference(references):
        check_options(values, options)
        if not dry_run:
            from evaljournal.runner.cli.suites.command import run_suite  # noqa: PLC0415  # most runs are in no suite

            run_suite(references, path, values, {**options, "path": path})
        with user_code():
            suite = discover(references, values)
        for evaluation, reference in suite.evaluations:
            _dry_run(evaluation, reference, suite.changes, path, options)
        return

    with user_code():
        evaluation, reference = _load(references[0] if references else None, options["config"], values)
    with user_code():
        run_to_resume = path if path is not None and _is_unfinished(path) else None
        if run_to_resume is not None:
            if dry_run:
                raise UsageError(f"{path} is an unfinished run, which --dry-run cannot resume; pass another -o or omit it")
            echo(f"{path} is an unfinished run; it is resumed with these arguments", err=True)
            options |= {"resume": True, "trust": True, "ignore_recorded": True}
        output = run_output(options)
        output.check(run_to_resume)
        session = CommandSession(evaluation, reference, changes, options)

    if dry_run:
        _dry_run(evaluation, reference, changes, path, options)
        return

    with user_code():
        output.prepare(run_to_resume)
        outcome = session.run(path) if path is not None else session.run_numbered()
    session.finish(outcome)


def _dry_run(
    evaluation: AnyEvaluation, reference: str, changes: Mapping[str, Any], path: Path | None, options: Mapping[str, Any]
) -> None:
    """Print what would be run; raise the usage errors that the run would raise before it starts anything."""
    from evaljournal.runner.cli.dry_run import print_dry_run  # noqa: PLC0415  # it reads earlier runs, which few runs need

    settings, _ = effective_settings(evaluation.settings, changes, {})
    shard = options["shard"]
    with user_code():
        selection = select_trials(evaluation, settings, shard, yes=options["yes"])
        if settings.workers is not None:
            new_workers(settings.workers, selection.evaluation, settings, list(selection.evaluation.tasks), reference)
    path = path or next_path(evaluation.name, shard)
    print_dry_run(selection, reference, path, settings, shard, as_json=options["json"])


def _load(reference: str | None, config: Path | None, values: Mapping[str, Any]) -> LoadedEvaluation:
    definition_values = {name: value for name, value in values.items() if name in DEFINITION}
    if reference is not None:
        if config is not None or definition_values:
            flag = "--config" if config is not None else f"--{min(to_keys(definition_values))}"
            raise UsageError(f"{reference} and {flag} both define the evaluation; pass only one")
        if not reference.endswith((".py", ".toml")):
            from evaljournal.runner.cli.options.foreign_words import explain_file  # noqa: PLC0415  # needed for errors only

            if hint := explain_file(reference):
                raise UsageError(f"{reference} is not an evaluation; {hint}")
        return load_reference(reference)

    if config is not None:
        return build_evaluation(Definition.read(config, definition_values), is_new=True)
    if not definition_values:
        raise UsageError("no evaluation: pass a file, such as evals/capitals.py, or describe one with --data FILE …")
    return build_evaluation(Definition(definition_values), is_new=True)


def _is_unfinished(path: Path) -> bool:
    """Return whether a directory is an unfinished run; reject one that is another run, is inside a run, or contains runs."""
    if not segments.is_run(path):
        if path.resolve() == RUNS.resolve() or (path.is_dir() and runs_under(path)):
            raise UsageError(f"{path} contains runs; pass a new directory in it: -o {path / 'NAME'}")
        if run := segments.enclosing_run(path):
            raise UsageError(f"{path} is inside the run {run}; pass another -o")
        return False
    is_finished = run_finish(path) is not None
    if is_held(path):
        raise UsageError(f"{path} is a run in progress; pass another -o ({command('status', path)} shows the run)")
    if is_finished:
        raise UsageError(f"{path} is a finished run and is never overwritten; pass another -o or omit it")
    return True
