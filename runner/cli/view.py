"""The command `evaljournal view`."""

import signal
import webbrowser
from functools import partial
from pathlib import Path

import click
import trio

from runner.cli._common import run_argument
from runner.cli._page import journal_size
from runner.signals import until_signal


@click.command()
@run_argument
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="The port to listen on; one that is free if left out.")
@click.option("--open", "then_open", is_flag=True, help="Show it in a browser at once.")
def view(path: Path, port: int, then_open: bool) -> None:
    """Show a run in a browser as it goes on, through its files only, until Ctrl-C.

    The page is the report's, and is told what is new from the journal's tail: it stays after the run has ended, and goes along
    when another process resumes it. Only this machine can reach it, and only who knows the address, which is printed.

    \b
    evaljournal view
    evaljournal view runs/capitals/0001 --open
    """
    from runner.cli._server import serve  # noqa: PLC0415  # `report` needs no server

    def ready(address: str) -> None:
        click.echo(address)
        click.echo(f"{path} is shown there until Ctrl-C", err=True)
        if then_open:
            webbrowser.open(address)

    trio.run(until_signal, partial(serve, path, journal_size(path), port, ready=ready), signal.SIGINT)
