"""The command `evaljournal view`."""

import signal
import tempfile
import webbrowser
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click
import trio

from evaljournal.journal.disk.segments import total_size
from evaljournal.runner.cli.arguments import run_argument
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.signals import until_signal


@click.command()
@run_argument
@click.option("--port", type=click.IntRange(0, 65_535), default=0, metavar="N", help="Port (default: a free one).")
@click.option("--open", "open_browser", is_flag=True, help="Open it in a browser.")
def view(path: Path, port: int, open_browser: bool) -> None:
    """Show a run live in a browser, until Ctrl-C.

    The page is the report, updated as the journal grows; it stays available after the run has ended and continues when the run
    is resumed. The server listens on 127.0.0.1 only, at an address with a random token, which is printed.

    \b
    evaljournal view
    evaljournal view runs/capitals/0001 --open
    """
    from evaljournal.runner.cli.server import serve  # noqa: PLC0415  # `report` needs no server

    serve_page(partial(serve, path, total_size(path), port), f"showing {path}", open_browser=open_browser)


def serve_page(serve: Callable[..., Awaitable[None]], text: str, *, open_browser: bool) -> None:
    """Serve a page until Ctrl-C; print its address and what it shows. `serve` calls `on_ready` with the address."""

    def show_address(address: str) -> None:
        echo(address)
        echo(f"{text}; stop with Ctrl-C", err=True)
        if open_browser:
            page = forwarding_page(address)
            exits.callback(page.unlink, missing_ok=True)
            webbrowser.open(page.as_uri())

    with ExitStack() as exits:
        trio.run(until_signal, partial(serve, on_ready=show_address), signal.SIGINT)


def forwarding_page(address: str) -> Path:
    """Write a page that only this user can read and that forwards to an address.

    The browser is started with the page, because other users can see its command line, which must not contain the token.
    """
    fd, name = tempfile.mkstemp(prefix="evaljournal-", suffix=".html")  # with mode 0600
    with open(fd, "w", encoding="utf-8") as page:
        page.write(f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={address}">')
    return Path(name)
