"""Commands that make a run go on: begin one, or take one up again.

Prose and the live screen are on standard error, so that standard output has nothing but what `--json` was asked for. The user's
own prints go to standard error too.
"""

import contextlib
import functools
import re
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import attrs
import click
import trio
from click.core import ParameterSource

from journal import segments
from journal.errors import command
from journal.events import RunFinished
from journal.lock import is_held
from replay import RunState
from replay.ending import final_report
from replay.screen import panel, stopping_in_words
from replay.summary import in_json, summarise
from replay.text import printable
from runner.api import run as run_evaluation
from runner.cli import UNFINISHED, Interrupted, Refused, Unfinished, one_at_a_time
from runner.cli._common import OFF, chosen_run, options, seconds
from runner.cli._dry_run import rehearse
from runner.cli._live import FRAME, Teller, is_screen, redraw, tenth
from runner.cli.init import (
    DESCRIBES,
    find_recipe,
    found_in,
    is_recipe,
    is_said,
    recipe_options,
    retry_numbers,
    retry_options,
    scorer_options,
)
from runner.cli.look import first_records, print_json, say_damage, see, task_since, terminal
from runner.concurrency import POLICIES
from runner.definition.gates import Gate, missed
from runner.definition.loading import LoadedEvaluation, find
from runner.definition.settings import Settings
from runner.engine.session import Live, Outcome
from runner.errors import MissingVariable, UsageError
from runner.run_paths import RUNS, last_record, next_path, next_paths, runs_under
from runner.signals import handle_signals
from runner.suggest import nearest

if TYPE_CHECKING:
    from runner.engine.nat_output import NatOutput

FAILED: Final = 1


def failures(given: str) -> int | float | str:
    """Read how many trials may fail: a number of them, or a part such as 5%; `none` turns the limit off."""
    if given == OFF:
        return given
    part = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", given)
    if part and float(part[1]) <= 100:  # noqa: PLR2004 - per cent
        return float(part[1]) / 100
    if given.isdecimal():
        return int(given)
    raise click.BadParameter(
        f"{given!r} is neither a number of trials, such as 10, nor a part of them, such as 5%, nor {OFF!r}"
    )


_how = options(
    click.option(
        "--slots",
        type=int,
        metavar="N",
        help="Maximum number of concurrent attempts, and of concurrent calls per scorer (default: 100 for endpoints, chat "
        "models and async functions, 32 for plain functions, the number of CPUs, at least 4, for commands).",
    ),
    click.option("--timeout", type=seconds, metavar="S", help=f"Seconds for one attempt; {OFF} turns it off."),
    click.option("--deadline", type=seconds, metavar="S", help="Seconds for this session; the rest is left for a resumption."),
    *retry_options,
    click.option("--limit-key", metavar="FIELD", help="The field of a case that names its back end; each has its own slots."),
    click.option("--policy", type=click.Choice(list(POLICIES)), help="How the number of attempts at one time is found."),
    click.option("--fail-fast/--no-fail-fast", default=None, help="Stop at the first trial that fails."),
    click.option(
        "--max-failures",
        type=failures,
        metavar="N",
        help=f"Stop when more than N trials, or N%, have failed; {OFF} turns it off.",
    ),
    click.option(
        "--fail-under",
        multiple=True,
        metavar="GATE",
        help="End with code 1 unless SCORER=NUMBER is reached, or 'SCORER>=NUMBER@lower' by its range; can be given again.",
    ),
    click.option(
        "--write-ahead", is_flag=True, default=None, help="Have the start of an attempt on disk before its call leaves."
    ),
    click.option("--durability", type=click.Choice(["sync", "os"]), help="os: faster, but a power cut may cost half a minute."),
    click.option("--grace", type=float, metavar="S", help="Seconds for attempts in the air when stopped; else 5."),
    click.option(
        "--nat-output",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="Keep the files of `nat eval` there, growing trial by trial.",
    ),
    click.option(
        "--plain",
        is_flag=True,
        help="Plain progress lines (every 10 % and at pauses) instead of the live screen.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON at the end."),
)


@click.command()
@click.argument("reference", required=False)
@recipe_options
@scorer_options
@click.option(
    "-o", "--output", "path", metavar="RUN", type=click.Path(path_type=Path), help="Where to; else the next number under runs/."
)
@_how
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
    given = _given(options, ctx)
    with _prose_on_stderr():
        found = _find(reference, ctx)
        _check_settings(found, given)
        settings = found.evaluation.settings.changed(given)
        if path is not None and not dry_run:
            _refuse_taken(path)
        if (output := _nat_output(options)) is not None and not dry_run:
            output.prepare()
    if dry_run:
        with _prose_on_stderr():
            cases = found.evaluation.cases.select(settings, repeats=settings.repeats).cases
        rehearse(found, cases, path or next_path(found.evaluation.name), settings, as_json=options["as_json"])
        return
    with _prose_on_stderr():
        session = _Session(found, given, options)
        outcome = session.run(path) if path is not None else session.run_numbered()
    session.finish(outcome)


@click.command()
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--adopt", is_flag=True, help="Take what has changed since: unchanged trials keep their results.")
@click.option("--retry-failed", is_flag=True, help="Try trials again that were given up.")
@click.option(
    "--on-ambiguous",
    type=click.Choice(["retry", "fail"]),
    default="retry",
    help="What becomes of an attempt that was cut off: its call may have taken effect.",
)
@click.option(
    "--task", "reference", metavar="REFERENCE", help="Where the evaluation is now, if it was moved; it is remembered."
)
@_how
def resume(run: Path | None, reference: str | None, **options: Any) -> None:
    """Go on with a run that was stopped or cut off, in the same journal.

    What is done stays done; only what was in the air is asked again. What was said on the command line when the run began still
    holds, until something else is said here. A run that is finished is left as it is, and the code is that of the run as it
    stands; a --fail-under that is given here is asked of it all the same.

    How the run is carried out (slots, timeouts, retries …) may be changed, here or in the file. Where what is asked or how it
    is judged (the task, its cases, scorers or repeats) was changed, nothing is done unless --adopt takes the change.

    \b
    evaljournal resume
    evaljournal resume runs/capitals/0001 --slots 2 --timeout 120
    evaljournal resume runs/capitals/0001 --retry-failed
    """
    path = chosen_run(run)
    last = last_record(path)
    if (output := _nat_output(options)) is not None:
        output.prepare(path)
    if last is not None and isinstance(last.event, RunFinished) and _has_nothing_to_do(last.event, options):
        seen = see(path)
        say_damage(seen.problem)
        _ask_finished(seen.state, options["fail_under"])
        if output is not None:
            output.finish(path)
        _say_finished(path, seen.state, as_json=options["as_json"])
    with _prose_on_stderr():
        found, given = find_again(path, reference), _given(options)
        _check_settings(found, given)
        session = _Session(found, given, options, resume=True)
        outcome = session.run(path)
    session.finish(outcome)


def _nat_output(options: dict[str, Any]) -> "NatOutput | None":
    """Find where the files of `nat eval` are to be kept, if anywhere."""
    if options["nat_output"] is None:
        return None
    from runner.engine.nat_output import NatOutput  # noqa: PLC0415  # it brings the exports, which few runs need

    return NatOutput(options["nat_output"], retry_failed=options.get("retry_failed", False))


def _find(reference: str | None, ctx: click.Context) -> LoadedEvaluation:
    """Find the evaluation in a file, or make it of what the flags say; not of both."""
    said = [name for name in DESCRIBES if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT]
    if reference is None:
        if not said:
            raise UsageError("no evaluation was named; give a file, such as evals/capitals.py, or describe one: --data FILE …")
        return found_in(ctx)
    if said:
        raise UsageError(f"{reference} says what is evaluated, and so does --{min(said).replace('_', '-')}; give one of them")
    return find(reference)


def _check_settings(found: LoadedEvaluation, given: dict[str, Any]) -> None:
    """Refuse settings that cannot be, in the words in which they were given, and a gate on a score that no scorer will give."""
    try:
        settings = found.evaluation.settings.changed(given)
    except UsageError as exc:
        raise UsageError(_in_flags(str(exc), given)) from exc
    for text in settings.fail_under:
        _check_gate(text, found.evaluation.scorers)


def _in_flags(words: str, given: dict[str, Any]) -> str:
    """Say of flags what was said of the keywords that they stand for."""
    numbers = given.get("retry", {})
    for name, value in [*((f"retry_{name}", value) for name, value in numbers.items()), *given.items()]:
        part, flag = name.removeprefix("retry_"), f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, tuple) else (value,):
            words = words.replace(f"retry.{part}={each!r}", f"{flag} {each}").replace(f"{part}={each!r}", f"{flag} {each}")
    return words.replace("None turns", f"{OFF} turns")


def _check_gate(text: str, scorers: Iterable[str]) -> None:
    name = Gate.parse(text).scorer
    if name.partition(".")[0] not in {scorer.partition(".")[0] for scorer in scorers}:
        raise UsageError(f"--fail-under {text!r}: there is no scorer {name!r}{nearest(name, scorers)}")


def _has_nothing_to_do(finished: RunFinished, options: dict[str, Any]) -> bool:
    return not options["adopt"] and not (options["retry_failed"] and finished.failed)


def _ask_finished(state: RunState, gates: tuple[str, ...]) -> None:
    """Hold a run that is finished against the gates that are given now, instead of its own."""
    for text in gates:
        _check_gate(text, {**dict(state.started.scorers if state.started else {}), **state.scores})
    if gates:
        state.settings["fail_under"] = list(gates)


def _say_finished(path: Path, state: RunState, *, as_json: bool) -> NoReturn:
    """Say that there is nothing to do; the code is that of the run as it stands."""
    words = f"{path} is finished: {state.completed:,} ok, {state.failed:,} failed; there is nothing to resume"
    if state.failed:
        words += f"\n{command('resume', path, ' --retry-failed')} tries those that failed again"
    click.echo(words, err=True)
    say_missed(state)
    code = exit_code(state, stopped=False)
    if as_json:
        print_json({"path": str(path), "stopped": None, "exit_code": code, **in_json(summarise(state))})
    sys.exit(code)


def find_again(path: Path, reference: str | None = None, *, verb: str = "resume") -> LoadedEvaluation:
    """Find the evaluation of a run: where it is said to be now, or where it was when the run began."""
    if reference is not None:
        return _found_at(reference)
    reference = _recorded_reference(path, verb)
    try:
        found = _found_at(reference)
        source = found.evaluation.cases.source
        if verb == "resume" and isinstance(source, Path) and not source.exists():
            raise UsageError(f"there is no file {source}, which holds the cases")
    except MissingVariable:
        raise  # It is where it was, and so is all else.
    except UsageError as exc:
        now = command(verb, path, f" --task {shlex.quote(reference)}")
        raise UsageError(
            f"{exc}\n{path} was begun with {reference}; go to where that is, or, if it was moved, say what it is now: {now}"
        ) from exc
    return found


def _found_at(reference: str) -> LoadedEvaluation:
    return find_recipe(reference, run) if is_recipe(reference) else find(reference)


def _recorded_reference(path: Path, verb: str) -> str:
    first = first_records(path)
    if first is None:
        raise UsageError(
            f"{path} was cut off before it said what it is a run of; {command(verb, path, ' --task REFERENCE')} says it"
        )
    started, _ = first
    task = task_since(path) or started.task
    if not task:
        there = "`runner.run(…, resume=True)` resumes" if verb == "resume" else "`runner.rescore(…)` scores"
        raise UsageError(
            f"{path} was begun from Python, with {started.evaluation!r}; {there} it there, "
            f"or say where that is: {command(verb, path, ' --task REFERENCE')}"
        )
    return task


def _given(options: dict[str, Any], ctx: click.Context | None = None) -> dict[str, Any]:
    """Pick out the settings that were given; what is wrong with a value is said by the settings themselves.

    Those that stand in a file are the evaluation's own.
    """
    names = [field.name for field in attrs.fields(Settings)]
    if ctx is not None:
        names = [name for name in names if is_said(ctx, name)]
    given = {name: value for name in names if (value := options.get(name)) is not None and value != ()}
    numbers = retry_numbers({name: value for name, value in options.items() if ctx is None or is_said(ctx, name)})
    return {name: None if value == OFF else value for name, value in given.items()} | ({"retry": numbers} if numbers else {})


def _refuse_taken(path: Path) -> None:
    """Refuse to begin a run where one is, and say what can be done with that one; or where runs are kept."""
    if not segments.is_run(path):
        if path.resolve() == RUNS.resolve() or (path.is_dir() and runs_under(path)):
            raise Refused(f"{path} is where runs are kept, and not one itself; give it a name there: -o {path / 'NAME'}")
        if inside := segments.enclosing_run(path):
            raise Refused(f"{path} is in {inside}, which is a run, and holds nothing but its journal; give another -o")
        return
    last = last_record(path)
    if is_held(path):
        raise Refused(f"{path} is a run that is going on; {command('status', path)} looks at it")
    if last is not None and isinstance(last.event, RunFinished):
        raise Refused(f"{path} is a run that is finished; nothing is ever overwritten: give another -o, or leave it away")
    raise Refused(f"{path} is a run that is not finished; {command('resume', path)} goes on with it")


@contextlib.contextmanager
def _prose_on_stderr() -> Generator[None]:
    """Send the prints of the user's code to standard error; and let SIGTERM break into it, as Ctrl-C does."""
    with handle_signals(signal.default_int_handler, signal.SIGTERM), contextlib.redirect_stdout(sys.stderr):
        yield


class _Session:
    """One session, from the command line's side: who looks on, and what is said at the end."""

    def __init__(
        self, found: LoadedEvaluation, given: dict[str, Any], options: dict[str, Any], *, resume: bool = False
    ) -> None:
        self._evaluation = found.evaluation
        self._as_json: bool = options["as_json"]
        self._plain: bool = options["plain"]
        self._output = _nat_output(options)
        self._total: int | None = None
        self._path = Path()
        self._options: dict[str, Any] = {
            **given,
            "resume": resume,
            "task": found.reference,
            **{name: options[name] for name in ("adopt", "retry_failed", "on_ambiguous") if name in options},
        }

    def run(self, path: Path) -> Outcome:
        """Run at this path."""
        self._path = path
        observer = self._in_company(self._draw if not self._plain and is_screen(sys.stderr) else self._tell)
        try:
            with one_at_a_time():
                return run_evaluation(self._evaluation, path, signals=True, observer=observer, **self._options)
        except KeyboardInterrupt:
            if not segments.is_run(self._path):
                raise
            raise Unfinished(f"interrupted; {command('resume', self._path)} goes on") from None

    def run_numbered(self) -> Outcome:
        """Run under the next free number; if somebody else takes it meanwhile, under the one after."""
        places = next_paths(self._evaluation.name)

        def elsewhere() -> Path:
            self._path = next(places)
            return self._path

        self._options["elsewhere"] = elsewhere
        return self.run(next(places))

    def _in_company(self, observer: Callable[[Live], Awaitable[None]]) -> Callable[[Live], Awaitable[None]]:
        """Let the files that grow with the run grow while somebody looks on."""
        output = self._output
        if output is None:
            return observer

        async def both(live: Live) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(output.keep, live.journal.path)
                nursery.start_soon(observer, live)

        return both

    def finish(self, outcome: Outcome) -> NoReturn:
        """Say how it ended, and end with the code that says so too."""
        if outcome.stopped and outcome.state.started is None:
            kind = Interrupted if outcome.stopped == "interrupted" else Unfinished
            raise kind(f"{outcome.why or outcome.stopped}; nothing was recorded, so begin it anew")
        if self._output is not None:
            self._output.finish(outcome.path)
        words = final_report(outcome.state, path=outcome.path, total=self._total, stopped=outcome.stopped, why=outcome.why)
        click.echo(words, err=True)
        if not outcome.stopped:
            say_missed(outcome.state)
        code = exit_code(outcome.state, stopped=bool(outcome.stopped))
        if self._as_json:
            print_json(
                {
                    "path": str(outcome.path),
                    "stopped": outcome.stopped or None,
                    "why": outcome.why or None,
                    "head": outcome.head,
                    "exit_code": code,
                    **in_json(summarise(outcome.state)),
                }
            )
        sys.exit(code)

    async def _draw(self, live: Live) -> None:
        """Draw the live screen a few times a second, until cancelled."""
        from rich.live import Live as Screen  # noqa: PLC0415  # slow to import

        self._total, before = live.total, live.state.done
        console = terminal(stderr=True)
        for sentence in _changes(live):
            click.echo(sentence, err=True)
        # A terminal that takes nothing more (Ctrl-S) must not hold up the run; nor must the user's threads hold up the screen.
        own_thread = trio.CapacityLimiter(1)
        with Screen(console=console, auto_refresh=False, transient=True) as screen:
            while True:
                drawn = panel(
                    live.state,
                    now=live.now(),
                    durable=live.journal.durable,
                    total=live.total,
                    width=console.width,
                    before=before,
                    title=str(self._path),
                    stopping=live.stopping(),
                )
                await trio.to_thread.run_sync(functools.partial(redraw, screen, drawn), limiter=own_thread)
                await trio.sleep(FRAME)

    async def _tell(self, live: Live) -> None:
        """Print a line whenever there is something to tell, until cancelled."""
        self._total, before = live.total, live.state.done
        teller = Teller(tenth(live.state, live.total), live.now(), err=True)
        is_stopping = False
        click.echo(f"{self._evaluation.name} in {self._path}; Ctrl-C stops it, and it can be resumed", err=True)
        for sentence in _changes(live):
            click.echo(sentence, err=True)
        while True:
            await trio.sleep(FRAME)
            stops = live.stopping()
            if stops and not is_stopping:
                is_stopping = True
                click.echo(f"stopping: {stopping_in_words(live.state, *stops)}", err=True)
            teller.tell(live.state, now=live.now(), durable=live.journal.durable, total=live.total, before=before)


def _changes(live: Live) -> Iterator[str]:
    """Tell which settings are no longer what they were in the session before."""
    for name, (before, now) in live.changed.items():
        if isinstance(before, dict) and isinstance(now, dict):
            parts = [(f"{name}.{part}", before.get(part), value) for part, value in now.items() if before.get(part) != value]
        else:
            parts = [(name, before, now)]
        for part, *values in parts:
            old, new = (OFF if value is None else printable(value) for value in values)
            yield f"{part} is now {new}; it was {old}"


def gates_of(state: RunState) -> list[str]:
    """Say what scores a run must reach, by its own settings."""
    gates = state.settings.get("fail_under")
    return [str(gate) for gate in gates] if isinstance(gates, list) else []


def say_missed(state: RunState) -> None:
    """Say last which scores were not reached."""
    for why in missed(gates_of(state), state):
        click.echo(f"not reached: {why}", err=True)


def exit_code(state: RunState, *, stopped: bool, asked: Iterable[str] = ()) -> int:
    """Say in a number how a run ended; a trial that a scorer could not judge is no success either, nor is a gate not reached.

    The scorers that count are the run's own, and those that were `asked` just now: one that was tried on the outputs once, and
    was of no use, must not spoil the run for good.
    """
    if stopped:
        return UNFINISHED
    counted = {*(state.started.scorers if state.started else ()), *asked}
    unscored = any(tally.failed for name, tally in state.scores.items() if name.partition(".")[0] in counted)
    return FAILED if state.failed or unscored or missed(gates_of(state), state) else 0
