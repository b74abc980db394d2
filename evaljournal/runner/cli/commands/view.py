"""The command `evaljournal view`."""

import signal
import tempfile
import webbrowser
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import click
import trio

from evaljournal.journal.disk.segments import is_run, total_size
from evaljournal.runner.cli.arguments import RunType, find_run
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.errors import UsageError
from evaljournal.runner.runs.paths import RUNS, runs_under
from evaljournal.runner.signals import until_signal


def _ip_address(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    try:
        return None if value is None else str(ip_address(value))
    except ValueError as exc:
        raise UsageError(f"--host {value}: it is not an IP address; use 0.0.0.0 for all of IPv4") from exc


@click.command()
@click.argument(
    "path", type=click.Path(path_type=Path), required=False, metavar="[RUN]", shell_complete=RunType().shell_complete
)
@click.option("--port", type=click.IntRange(0, 65_535), default=0, metavar="N", help="Port (default: a free one).")
@click.option("--host", metavar="IP", callback=_ip_address, help="IP address to listen on (default: 127.0.0.1); see above.")
@click.option("--open", "open_browser", is_flag=True, help="Open it in a browser.")
def view(path: Path | None, port: int, host: str | None, open_browser: bool) -> None:
    """Show runs live in a browser, until Ctrl-C: all under runs/, under another directory, or one RUN.

    The page of a directory has its evaluations and runs with score, interval, cost and state, filters, and the comparison of
    two runs; a link opens the page of a run. That page is the report, updated as the journal grows; it stays available after
    the run has ended and continues when the run is resumed.

    The address has a random token, which is printed; without it, nothing is shown. With another --host, everyone who knows the
    token can read the runs, and HTTP is not encrypted: put a proxy with TLS and a login in front of it.

    \b
    evaljournal view
    evaljournal view runs/capitals/0001 --open
    evaljournal view /mnt/archive/runs --host 10.0.0.5 --port 8000
    """
    from evaljournal.runner.cli.servers.server import HOST, serve  # noqa: PLC0415  # `report` needs no server

    if path is None or (path.is_dir() and not is_run(path) and runs_under(path)):
        from evaljournal.runner.cli.servers.directory import serve_directory  # noqa: PLC0415  # one run needs no such server

        path = path or RUNS
        server = partial(serve_directory, path, port, host=host or HOST)
    else:
        path = find_run(path)
        server = partial(serve, path, total_size(path), port, host=host or HOST)
    serve_page(server, f"showing {path}", open_browser=open_browser)


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
