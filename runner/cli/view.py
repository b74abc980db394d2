"""The command `evaljournal view`."""

import signal
import webbrowser
from functools import partial
from pathlib import Path

import click
import trio

from runner.cli._common import run_argument
from runner.cli._output import echo
from runner.cli._page import journal_size
from runner.signals import until_signal


@click.command()
@run_argument
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="Port (default: a free one).")
@click.option("--open", "then_open", is_flag=True, help="Open it in a browser.")
def view(path: Path, port: int, then_open: bool) -> None:
    """Show a run live in a browser, until Ctrl-C.

    The page is that of `report`, updated as the journal grows; it stays available after the run has ended and continues when
    the run is resumed. It listens on 127.0.0.1 only, at an address with a random token, which is printed.

    \b
    evaljournal view
    evaljournal view runs/capitals/0001 --open
    """
    from runner.cli._server import serve  # noqa: PLC0415  # `report` needs no server

    def ready(address: str) -> None:
        echo(address)
        echo(f"showing {path}; stop with Ctrl-C", err=True)
        if then_open:
            webbrowser.open(address)

    trio.run(until_signal, partial(serve, path, journal_size(path), port, ready=ready), signal.SIGINT)
