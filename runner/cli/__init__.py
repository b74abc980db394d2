"""The command line: verbs over a run.

Only here are arguments parsed and exit codes chosen. A command's module is imported when the command is used, so that
`evaljournal --help` answers at once.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Generator
from importlib import import_module
from typing import Any, Final

from runner.signals import STOP_SIGNALS, handle_signals

with handle_signals(
    lambda number, _: os._exit(128 + number), signal.SIGINT
):  # Python would tell at length where in it we were.
    import click

COMMANDS: Final = {
    "run": "Run an evaluation.",
    "resume": "Go on with a run that was stopped or cut off.",
    "rescore": "Score the outputs of a run anew, without a single call.",
    "init": "Write a file that describes an evaluation without code.",
    "status": "Tell where a run stands.",
    "ls": "List the runs.",
    "log": "Print the records of a run.",
    "show": "Tell all there is to know of a trial, or list all of them.",
    "watch": "Look on while another process runs.",
    "replay": "Show a run as it stood, or play it again.",
    "fork": "Start a new run from a point of an old one.",
    "verify": "Prove that a journal is what was written.",
    "salvage": "Copy what is intact out of a damaged journal.",
    "diff": "Compare two runs, trial by trial.",
    "simulate": "Make a run again under another policy, on a virtual clock.",
    "report": "Write a run, or two, as one HTML file that opens anywhere.",
    "view": "Show a run in a browser as it goes on.",
    "export": "Write a run in another format: CSV, Parquet, JUnit, a trace, …",
}
"""Command → the module it lives in, and what it does in one line (told here, so that `--help` imports nothing)."""

UNFINISHED: Final = 3
DAMAGED: Final = 4
BUG: Final = 70
INTERRUPTED: Final = 130
"""As of any program that Ctrl-C ends."""
BROKEN_PIPE: Final = 141
"""As of any program whose reader goes away: `evaljournal log | head`."""


class Damaged(click.ClickException):
    """The journal is damaged, or does not verify."""

    exit_code = DAMAGED


class Unfinished(click.ClickException):
    """The run is not done; `resume` goes on with it."""

    exit_code = UNFINISHED


class Interrupted(click.ClickException):
    """Somebody asked for the end before anything was recorded: there is nothing to resume."""

    exit_code = INTERRUPTED


class InvalidUsage(click.ClickException):
    """The command was used wrongly, or its input is bad; nothing was started."""

    exit_code = 2


class _Commands(click.Group):
    """The commands, imported one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        with _exit_on_signal():
            command = getattr(import_module(f"runner.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            from runner.suggest import nearest  # noqa: PLC0415  # not needed for `--help`

            raise click.UsageError(f"{exc.message.rstrip('.')}{nearest(args[0], COMMANDS)}", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        with _exit_on_signal():
            from journal import errors  # noqa: PLC0415  # not needed for `--help`
            from runner.errors import UsageError  # noqa: PLC0415  # the same

        try:
            with unwrap_exception_groups(), _flush_stdout():
                return super().invoke(ctx)
        except (errors.JournalDamaged, errors.InvalidRecord, errors.BlobDamaged) as exc:
            raise Damaged(str(exc)) from exc
        except errors.JournalFailed as exc:
            raise Unfinished(str(exc)) from exc
        except (errors.JournalError, UsageError) as exc:
            raise InvalidUsage(str(exc)) from exc
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None  # A run that has begun notices by itself; this was before, or a view.
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Or Python would complain of what it cannot write any more.
            sys.exit(BROKEN_PIPE)
        except OSError as exc:
            from journal.segment_file import NO_SPACE  # noqa: PLC0415  # the same

            if exc.errno in NO_SPACE:
                raise Unfinished(f"{exc}; nothing was lost: make room, and do it again") from exc
            raise InvalidUsage(str(exc) if exc.filename is None else f"{exc.filename}: {exc.strerror}") from exc


@contextlib.contextmanager
def _flush_stdout() -> Generator[None]:
    """Notice a full disk, or a reader that is gone, also where it is only the last words that are not written."""
    try:
        yield
    finally:
        if sys.stdout is not None:  # It is None where standard output was closed beforehand.
            sys.stdout.flush()


def _exit_on_signal() -> contextlib.AbstractContextManager[object]:
    """Let a signal end the process at once: nothing has begun, and a module that is half imported is no good to anyone."""

    def leave(_: int, __: object) -> None:
        os.write(2, b"Error: interrupted\n")
        os._exit(INTERRUPTED)

    return handle_signals(leave, *STOP_SIGNALS)


@contextlib.contextmanager
def unwrap_exception_groups() -> Generator[None]:
    """Take an exception out of the groups that nurseries put around it."""
    try:
        yield
    except BaseExceptionGroup as group:
        inner: BaseException = group
        while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
            inner = inner.exceptions[0]
        raise inner from inner.__cause__


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="evaljournal", message="evaljournal %(version)s")
def cli() -> None:
    """Run evaluations that survive a crash, and prove afterwards what happened.

    A run is a directory with an append-only journal in it. Where RUN can be left out, the newest under runs/ is meant.

    \b
    evaljournal run evals/capitals.py
    evaljournal resume
    evaljournal status
    """


def main() -> None:
    """Run the command line; the console script `evaljournal`."""
    try:
        cli()
    except SystemExit:
        for (
            number
        ) in STOP_SIGNALS:  # The code says how it ended; a signal that comes while Python tidies up must not change it.
            signal.signal(number, signal.SIG_IGN)
        raise
    except Exception as exc:  # noqa: BLE001  # whatever gets here is our own fault, and is told as such
        sys.excepthook(type(exc), exc, exc.__traceback__)
        click.echo("\nThis is a bug in evaljournal; the journal itself is safe. Please report the lines above.", err=True)
        sys.exit(BUG)
