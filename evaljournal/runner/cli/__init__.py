"""The command line.

Arguments are parsed and exit codes chosen here only. The module of a command is imported when the command is used, so that
`evaljournal --help` is fast.
"""

import contextlib
import errno
import gc
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final, cast

from evaljournal import entry_points
from evaljournal.runner.signals import STOP_SIGNALS, handle_signals

with handle_signals(lambda number, _: os._exit(128 + number), signal.SIGINT):  # Exit without a traceback of the import.
    import click

    from evaljournal.runner.cli.terminal.output import OutputFailed, echo, flush_output, prepare_streams, writing_output

_GROUPS: Final = {
    "First day": {
        "init": "Write a configuration file for an evaluation without code.",
        "run": "Run an evaluation, or a suite of several.",
        "resume": "Resume an interrupted run or suite.",
        "status": "Show the status of a run.",
        "show": "Show one trial in full, or list the trials.",
        "compare": "Compare two runs trial by trial, or several in one table.",
        "report": "Write an HTML report of a run, two runs, a suite or all runs.",
    },
    "Live": {
        "watch": "Watch a run live.",
        "view": "Show a run, or all runs, live in a browser.",
        "cancel": "Cancel the batches of a run.",
        "clean": "Remove what a killed run has not torn down.",
    },
    "Results": {
        "ls": "List the runs.",
        "history": "Show the results of an evaluation run by run.",
        "gate": "Check whether a run is worse than a baseline.",
        "rescore": "Re-score recorded outputs; the task is not called.",
        "prices": "Show the prices of models.",
        "what-if": "Compute cost and time of a run under other prices and limits.",
    },
    "Review": {
        "review": "Draw outputs at random for people to label.",
        "annotate": "Give an output a label, or import labels.",
        "agreement": "Show how well scorers agree with human labels.",
    },
    "Claims": {
        "attest": "State a result so that others can check it.",
        "disclose": "Write selected trials with proofs that they belong to a claim.",
        "check": "Check a claim, or trials that were disclosed for it.",
    },
    "Journal": {
        "log": "Print the records of a run.",
        "replay": "Show a run as of any record.",
        "verify": "Check that a journal is intact and its run followed the rules.",
        "salvage": "Copy the intact records of a damaged journal.",
        "fork": "Start a new run from any record of another.",
        "merge": "Merge the runs of all shards into one.",
        "pack": "Pack the recorded replies of a run into one file.",
    },
    "Formats": {
        "import": "Import a promptfoo configuration, or traces as cases.",
        "export": "Export a run: CSV, Parquet, JUnit, traces, …",
    },
}
"""Heading of the help → its commands; those of the first are enough for a first day."""
COMMANDS: Final = {name: text for commands in _GROUPS.values() for name, text in commands.items()}
"""Command → its one-line help, here so that `--help` imports no command. The module has the name of the command."""
ADDED: Final = ("import",)
"""Commands of our integrations, which are entry points of the group `evaljournal.commands`. Those of other packages are not in
the help: it would take three times as long to find them."""

FAILED: Final = 1
USAGE: Final = 2
UNFINISHED: Final = 3
DAMAGED: Final = 4
UNDECIDED: Final = 5
BUG: Final = 70
INTERRUPTED: Final = 130
"""The conventional exit code after SIGINT."""
OUTPUT_FAILED: Final = 141
"""Standard output could not be written. The conventional exit code after SIGPIPE: `evaljournal log | head`."""


class CommandError(click.ClickException):
    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click's own is a class variable


def added_command(name: str) -> click.Command | None:
    """Return a command of the group `evaljournal.commands`; None if there is none of this name."""
    entry = entry_points.find("commands", name)
    if entry is None:
        return None
    from evaljournal.runner.errors import UsageError  # noqa: PLC0415  # not needed for `--help`

    return cast(
        "click.Command", entry_points.checked(entry, UsageError, entry.load, click.Command, noun="a click.Command", verb="is")
    )


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        with _exit_on_signal():
            is_added, module = cmd_name in ADDED or cmd_name not in COMMANDS, cmd_name.replace("-", "_")
            command = added_command(cmd_name) if is_added else getattr(import_module(f"{__name__}.commands.{module}"), module)
        if command is None:
            return None
        if not gc.isenabled():  # As `evaljournal.__main__` has set it.
            gc.freeze()  # What was imported stays until the process ends: no collection looks at it, not even the last.
            gc.enable()
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            from evaljournal.runner.cli.options.foreign_words import explain  # noqa: PLC0415  # not needed for `--help`
            from evaljournal.runner.errors import suggest  # noqa: PLC0415  # not needed for `--help`

            names = [*COMMANDS, *entry_points.names("commands", excluding=COMMANDS)]
            message = explain(args[0]) or f"{exc.message.rstrip('.')}{suggest(args[0], names)}"
            raise click.UsageError(message, ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for group, commands in _GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(f"{name:<{width}}", text) for name, text in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return self._invoke(ctx)
        except click.ClickException as exc:
            from evaljournal.replay.text import escape_controls  # noqa: PLC0415  # not needed for `--help`

            if isinstance(exc, click.NoSuchOption):
                from evaljournal.runner.cli.options.foreign_words import explain  # noqa: PLC0415  # not needed for `--help`

                if message := explain(exc.option_name):
                    raise click.UsageError(message, exc.ctx) from None
            # The message may quote a name from a foreign run, or its path.
            exc.message = escape_controls(exc.message)  # type: ignore[misc]  # click declares it final, which it is not
            raise

    def _invoke(self, ctx: click.Context) -> Any:
        with _exit_on_signal():
            from evaljournal.journal import errors  # noqa: PLC0415  # not needed for `--help`
            from evaljournal.runner.cli.terminal.errors import exit_code, render  # noqa: PLC0415  # not needed for `--help`
            from evaljournal.runner.errors import InvalidSetting, UsageError, unwrap_exception_groups  # noqa: PLC0415  # not needed for `--help`

        try:
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # As `evaljournal.__main__` has set it.
                signal.signal(signal.SIGINT, signal.default_int_handler)
            with _convert_sqlite_errors(), unwrap_exception_groups(), contextlib.ExitStack() as exits:
                exits.callback(flush_output)
                return super().invoke(ctx)
        except errors.JournalError as exc:
            raise CommandError(render(exc), exit_code(exc)) from exc
        except UsageError as exc:
            from evaljournal.runner.cli.options.table import render_error  # noqa: PLC0415  # not needed for `--help`

            raise CommandError(render_error(exc), DAMAGED if isinstance(exc, InvalidSetting) else USAGE) from exc
        except KeyboardInterrupt:  # No run has started; a running one handles the signal itself.
            raise CommandError("interrupted", INTERRUPTED) from None
        except BrokenPipeError:
            sys.exit(OUTPUT_FAILED)
        except OutputFailed as exc:
            raise CommandError(str(exc), OUTPUT_FAILED) from exc
        except OSError as exc:
            from evaljournal.journal.disk.files import NotRegularFile  # noqa: PLC0415  # not needed for `--help`
            from evaljournal.journal.writers.segment_file import NO_SPACE  # noqa: PLC0415  # not needed for `--help`

            if isinstance(exc, NotRegularFile):
                raise CommandError(f"{exc.filename} cannot be a file of a run: it is {exc.strerror}", DAMAGED) from exc
            if exc.errno in NO_SPACE:
                raise CommandError(f"{exc}; free some space and run the command again", UNFINISHED) from exc
            raise CommandError(str(exc) if exc.filename is None else f"{exc.filename}: {exc.strerror}", USAGE) from exc


@contextlib.contextmanager
def _convert_sqlite_errors() -> Iterator[None]:
    """Convert SQLite's error that its temporary directory, which has the index of a large run, is full to an `OSError`."""
    try:
        yield
    except Exception as exc:
        if getattr(exc, "sqlite_errorname", "") != "SQLITE_FULL":
            raise
        from evaljournal.replay.index import temporary_directory  # noqa: PLC0415  # not needed for `--help`

        problem = "No space left for the index of the run; set SQLITE_TMPDIR to a directory with more space"
        raise OSError(errno.ENOSPC, problem, temporary_directory()) from exc


def _exit_on_signal() -> contextlib.AbstractContextManager[object]:
    """Let a signal end the process immediately, while modules are imported and nothing has started."""

    def exit_interrupted(_: int, __: object) -> None:
        os.write(2, b"Error: interrupted\n")
        os._exit(INTERRUPTED)

    return handle_signals(exit_interrupted, *STOP_SIGNALS)


CONTEXT_SETTINGS: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"]}


@click.group(cls=_Commands, context_settings=CONTEXT_SETTINGS)
@click.version_option(package_name="evaljournal", message="evaljournal %(version)s")
def cli() -> None:
    """Run evaluations that survive a crash, with a record of everything that happened.

    A run is a directory with an append-only journal. RUN is such a directory; a directory of runs or the name of an
    evaluation stands for its newest run. The default is the newest run under runs/.

    \b
    evaljournal run evals/capitals.py
    evaljournal resume
    evaljournal status capitals

    Shell completion: eval "$(_EVALJOURNAL_COMPLETE=bash_source evaljournal)", or zsh_source, fish_source.
    """


def main() -> None:
    """Run the command line; the console script `evaljournal`."""
    prepare_streams()
    try:
        with writing_output():  # click prints the help and the version here; commands handle their own errors.
            cli()
    except OutputFailed as exc:
        echo(f"Error: {exc}", err=True)
        sys.exit(OUTPUT_FAILED)
    except SystemExit:
        for number in STOP_SIGNALS:  # A signal during Python's shutdown must not change the exit code.
            signal.signal(number, signal.SIG_IGN)
        raise
    except Exception as exc:  # noqa: BLE001  # reported as a bug
        lines = "".join(traceback.format_exception(exc))
        echo(f"{lines}\nThis is a bug in evaljournal; the journal is safe. Please report the lines above.", err=True)
        sys.exit(BUG)
