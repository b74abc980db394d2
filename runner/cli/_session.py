"""What `run` and `resume` share: their options, and one session with its screen and its end."""

import contextlib
import functools
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import click
import trio

from journal import segments
from journal.errors import command
from replay.ending import final_report
from replay.screen import panel, stopping_in_words
from replay.summary import in_json, summarise
from replay.text import printable
from runner.api import run as run_evaluation
from runner.cli import Interrupted, Unfinished, unwrap_exception_groups
from runner.cli._common import OFF, options, seconds
from runner.cli._display import print_json, terminal
from runner.cli._live import FRAME, ProgressPrinter, is_screen, redraw, tenth
from runner.concurrency import POLICIES
from runner.definition.gates import Gate
from runner.definition.loading import LoadedEvaluation
from runner.definition.settings import Settings
from runner.engine.live_run import LiveRun
from runner.engine.session import Outcome
from runner.errors import UsageError
from runner.run_paths import next_paths
from runner.signals import handle_signals
from runner.suggest import nearest

if TYPE_CHECKING:
    from runner.engine.nat_output import NatOutput
from runner.cli._ending import exit_code, print_missed_gates
from runner.cli._no_code_options import is_on_command_line, retry_numbers, retry_options


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


how_options = options(
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


def nat_output(options: dict[str, Any]) -> "NatOutput | None":
    """Find where the files of `nat eval` are to be kept, if anywhere."""
    if options["nat_output"] is None:
        return None
    from runner.engine.nat_output import NatOutput  # noqa: PLC0415  # it brings the exports, which few runs need

    return NatOutput(options["nat_output"], retry_failed=options.get("retry_failed", False))


def check_settings(found: LoadedEvaluation, given: dict[str, Any]) -> None:
    """Refuse settings that cannot be, in the words in which they were given, and a gate on a score that no scorer will give."""
    try:
        settings = found.evaluation.settings.changed(given)
    except UsageError as exc:
        raise UsageError(_in_flags(str(exc), given)) from exc
    for text in settings.fail_under:
        check_gate(text, found.evaluation.scorers)


def _in_flags(words: str, given: dict[str, Any]) -> str:
    """Say of flags what was said of the keywords that they stand for."""
    numbers = given.get("retry", {})
    for name, value in [*((f"retry_{name}", value) for name, value in numbers.items()), *given.items()]:
        part, flag = name.removeprefix("retry_"), f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, tuple) else (value,):
            words = words.replace(f"retry.{part}={each!r}", f"{flag} {each}").replace(f"{part}={each!r}", f"{flag} {each}")
    return words.replace("None turns", f"{OFF} turns")


def check_gate(text: str, scorers: Iterable[str]) -> None:
    name = Gate.parse(text).scorer
    if name.partition(".")[0] not in {scorer.partition(".")[0] for scorer in scorers}:
        raise UsageError(f"--fail-under {text!r}: there is no scorer {name!r}{nearest(name, scorers)}")


def given_settings(options: dict[str, Any], ctx: click.Context | None = None) -> dict[str, Any]:
    """Pick out the settings that were given; what is wrong with a value is said by the settings themselves.

    Those that stand in a file are the evaluation's own.
    """
    names = [field.name for field in attrs.fields(Settings)]
    if ctx is not None:
        names = [name for name in names if is_on_command_line(ctx, name)]
    given = {name: value for name in names if (value := options.get(name)) is not None and value != ()}
    numbers = retry_numbers({name: value for name, value in options.items() if ctx is None or is_on_command_line(ctx, name)})
    return {name: None if value == OFF else value for name, value in given.items()} | ({"retry": numbers} if numbers else {})


@contextlib.contextmanager
def prose_on_stderr() -> Generator[None]:
    """Send the prints of the user's code to standard error; and let SIGTERM break into it, as Ctrl-C does."""
    with handle_signals(signal.default_int_handler, signal.SIGTERM), contextlib.redirect_stdout(sys.stderr):
        yield


class CommandSession:
    """One session, from the command line's side: who looks on, and what is said at the end."""

    def __init__(
        self, found: LoadedEvaluation, given: dict[str, Any], options: dict[str, Any], *, resume: bool = False
    ) -> None:
        self._evaluation = found.evaluation
        self._as_json: bool = options["as_json"]
        self._plain: bool = options["plain"]
        self._output = nat_output(options)
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
            with unwrap_exception_groups():
                return run_evaluation(self._evaluation, path, signals=True, observer=observer, **self._options)
        except KeyboardInterrupt:
            if not segments.is_run(self._path):
                raise
            raise Unfinished(f"interrupted; {command('resume', self._path)} goes on") from None

    def run_numbered(self) -> Outcome:
        """Run under the next free number; if somebody else takes it meanwhile, under the one after."""
        places = next_paths(self._evaluation.name)

        def next_path() -> Path:
            self._path = next(places)
            return self._path

        self._options["next_path"] = next_path
        return self.run(next(places))

    def _in_company(self, observer: Callable[[LiveRun], Awaitable[None]]) -> Callable[[LiveRun], Awaitable[None]]:
        """Let the files that grow with the run grow while somebody looks on."""
        output = self._output
        if output is None:
            return observer

        async def both(live: LiveRun) -> None:
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
            print_missed_gates(outcome.state)
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

    async def _draw(self, live: LiveRun) -> None:
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

    async def _tell(self, live: LiveRun) -> None:
        """Print a line whenever there is something to tell, until cancelled."""
        self._total, before = live.total, live.state.done
        teller = ProgressPrinter(tenth(live.state, live.total), live.now(), err=True)
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


def _changes(live: LiveRun) -> Iterator[str]:
    """Tell which settings are no longer what they were in the session before."""
    for name, (before, now) in live.changed.items():
        if isinstance(before, dict) and isinstance(now, dict):
            parts = [(f"{name}.{part}", before.get(part), value) for part, value in now.items() if before.get(part) != value]
        else:
            parts = [(name, before, now)]
        for part, *values in parts:
            old, new = (OFF if value is None else printable(value) for value in values)
            yield f"{part} is now {new}; it was {old}"
