"""The command `evaljournal run`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from journal import segments
from journal.errors import command
from journal.events import RunFinished
from journal.lock import is_held
from runner.cli import InvalidUsage
from runner.cli._dry_run import print_dry_run
from runner.definition.loading import LoadedEvaluation, find
from runner.errors import UsageError
from runner.run_paths import RUNS, last_record, next_path, runs_under

if TYPE_CHECKING:
    pass
from runner.cli._no_code_options import DESCRIBES, evaluation_from_options, recipe_options, scorer_options
from runner.cli._session import CommandSession, check_settings, given_settings, how_options, nat_output, prose_on_stderr


@click.command()
@click.argument("reference", required=False)
@recipe_options
@scorer_options
@click.option(
    "-o", "--output", "path", metavar="RUN", type=click.Path(path_type=Path), help="Where to; else the next number under runs/."
)
@how_options
@click.option("--repeats", type=int, metavar="N", help="How many times each case is asked.")
@click.option(
    "--only", multiple=True, metavar="PATTERN", help="Only cases whose name matches, as in 'peru*'; can be given again."
)
@click.option("--skip", multiple=True, metavar="PATTERN", help="No cases whose name matches; can be given again.")
@click.option("--limit", type=int, metavar="N", help="The most cases to use.")
@click.option("--shuffle", is_flag=True, default=None, help="Take the cases in an order that --seed decides.")
@click.option("--seed", type=int, metavar="N", help="Decides the order, and the jitter of delays.")
@click.option("--dry-run", is_flag=True, help="Say what would be run, and write nothing.")
@click.pass_context
def run(ctx: click.Context, /, reference: str | None, path: Path | None, dry_run: bool, **options: Any) -> None:
    """Run an evaluation: REFERENCE is a file, or file.py:name, or package.module:name. Without one, flags describe it.

    Every step is recorded under runs/. A run that is stopped by Ctrl-C, killed or unplugged can be resumed.
    Code 0: done. 1: done, but trials failed. 2: nothing was started. 3: not done; `resume` goes on.

    \b
    evaljournal run evals/capitals.py
    evaljournal run evals/capitals.py:capitals --slots 4 --limit 20 --max-failures 5%
    evaljournal run evals/capitals.py --dry-run
    evaljournal run --data qa.jsonl --endpoint http://localhost:8000/generate --output-path output --score exact
    evaljournal run --data qa.jsonl --chat gpt-4o-mini --prompt 'Answer briefly: {question}' --judge gpt-4o
    evaljournal run --data qa.jsonl --command './answer.sh' --score contains --fail-under contains=0.9
    """
    given = given_settings(options, ctx)
    with prose_on_stderr():
        found = _find(reference, ctx)
        check_settings(found, given)
        settings = found.evaluation.settings.changed(given)
        if path is not None and not dry_run:
            _refuse_taken(path)
        if (output := nat_output(options)) is not None and not dry_run:
            output.prepare()
    if dry_run:
        with prose_on_stderr():
            cases = found.evaluation.cases.select(settings, repeats=settings.repeats).cases
        print_dry_run(found, cases, path or next_path(found.evaluation.name), settings, as_json=options["as_json"])
        return
    with prose_on_stderr():
        session = CommandSession(found, given, options)
        outcome = session.run(path) if path is not None else session.run_numbered()
    session.finish(outcome)


def _find(reference: str | None, ctx: click.Context) -> LoadedEvaluation:
    """Find the evaluation in a file, or make it of what the flags say; not of both."""
    said = [name for name in DESCRIBES if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT]
    if reference is None:
        if not said:
            raise UsageError("no evaluation was named; give a file, such as evals/capitals.py, or describe one: --data FILE …")
        return evaluation_from_options(ctx)
    if said:
        raise UsageError(f"{reference} says what is evaluated, and so does --{min(said).replace('_', '-')}; give one of them")
    return find(reference)


def _refuse_taken(path: Path) -> None:
    """Refuse to begin a run where one is, and say what can be done with that one; or where runs are kept."""
    if not segments.is_run(path):
        if path.resolve() == RUNS.resolve() or (path.is_dir() and runs_under(path)):
            raise InvalidUsage(f"{path} is where runs are kept, and not one itself; give it a name there: -o {path / 'NAME'}")
        if inside := segments.enclosing_run(path):
            raise InvalidUsage(f"{path} is in {inside}, which is a run, and holds nothing but its journal; give another -o")
        return
    last = last_record(path)
    if is_held(path):
        raise InvalidUsage(f"{path} is a run that is going on; {command('status', path)} looks at it")
    if last is not None and isinstance(last.event, RunFinished):
        raise InvalidUsage(f"{path} is a run that is finished; nothing is ever overwritten: give another -o, or leave it away")
    raise InvalidUsage(f"{path} is a run that is not finished; {command('resume', path)} goes on with it")
