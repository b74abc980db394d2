"""The user's code inside a command: its prints, its signals, its exits, and calls that do not end."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Generator
from typing import NoReturn

from evaljournal.runner.cli import OUTPUT_FAILED, UNFINISHED, CommandError
from evaljournal.runner.cli.terminal.output import command_stream, echo, restore_streams
from evaljournal.runner.errors import UsageError
from evaljournal.runner.signals import STOP_SIGNALS, handle_signals


@contextlib.contextmanager
def user_code() -> Generator[None]:
    """Redirect the prints of the user's code to standard error, and let SIGTERM and SIGHUP interrupt it as Ctrl-C does.

    Standard output and standard error that it closes or replaces, and their file descriptors, are restored, and its SystemExit
    does not end the command.
    """
    with (
        restore_streams(),
        handle_signals(signal.default_int_handler, *STOP_SIGNALS[1:]),
        contextlib.redirect_stdout(sys.stderr),
    ):
        try:
            yield
        except SystemExit as exc:  # Its code must not become the exit code of the command.
            raise UsageError(f"the evaluation's code called sys.exit({exc.code!r})") from exc


def exit_immediately(finish: Callable[[], NoReturn]) -> None:
    """Print the summary with `finish` and exit immediately, although a call is still running."""
    with contextlib.redirect_stdout(command_stream("stdout")):
        try:
            finish()
        except BrokenPipeError:
            code = OUTPUT_FAILED
        except CommandError as exc:
            echo(f"Error: {exc.message}", err=True)
            code = exc.exit_code
        except SystemExit as exc:
            code = exc.code if isinstance(exc.code, int) else UNFINISHED
        if (stderr := command_stream("stderr")) is not None:
            stderr.flush()
        os._exit(code)
