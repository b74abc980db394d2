"""Commands that show a run in a browser: as one file that can be given away, or live, as it goes on."""

import signal
import webbrowser
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import trio

from journal import segments
from journal.files import DISK
from journal.lock import is_held
from replay import load
from replay.comparison import Side, compare, outputs
from replay.export.page import PageRun, comparison_data, is_page, page
from runner.atomic_write import write_atomically
from runner.cli._common import chosen_run
from runner.cli._page import PageReader
from runner.cli.export import check_target
from runner.cli.look import Seen, say_damage
from runner.signals import until_signal

_TARGET: Final = "report.html"


@click.command()
@click.argument("run", metavar="[RUN]", type=click.Path(path_type=Path), required=False)
@click.argument("other", metavar="[B]", type=click.Path(path_type=Path), required=False)
@click.option(
    "-o", "--output", "target", type=click.Path(path_type=Path), default=_TARGET, help=f"Where to; {_TARGET} if left out."
)
@click.option("--open", "then_open", is_flag=True, help="Show it in a browser at once.")
@click.option("--force", is_flag=True, help="Replace what is there, even if it is no report.")
def report(run: Path | None, other: Path | None, target: Path, then_open: bool, force: bool) -> None:
    """Write a run, or two runs beside each other, as one HTML file that opens anywhere, without a network.

    It has the results, the whole concurrency history with a scrubber that goes back to any record, every trial with its
    attempts, and the audit. With two runs, A and B, it also has what `diff` tells of them. Long values are cut, and the page
    says how to see them whole. A report that is there already is replaced; any other file is left alone without --force. A
    damaged run is shown up to the damage, and the code is 4.

    \b
    evaljournal report --open
    evaljournal report runs/capitals/0001 -o capitals.html
    evaljournal report runs/capitals/0001 runs/capitals/0002 -o compared.html
    """
    check_target(target, directory=False, force=force or is_page(target))
    runs = [shown(chosen_run(run))] + ([shown(other)] if other is not None else [])
    write_atomically(target, page([each.data() for each in runs], _comparison(runs)))
    what = " and ".join(str(each.history.path) for each in runs)
    click.echo(f"{target}: a report of {what}, {target.stat().st_size / 1e6:,.2f} MB", err=True)
    if then_open:
        webbrowser.open(target.resolve().as_uri())
    for each in runs:
        say_damage(each.problem)


def _comparison(runs: list[PageRun]) -> dict[str, Any] | None:
    if len(runs) == 1:
        return None
    return comparison_data(compare(*(Side(each.history.state, outputs(each.history.records())) for each in runs)))


def shown(path: Path) -> PageRun:
    """Take in a run, all that a page shows of it, and what the rules say to it, in one pass over its journal."""
    is_live = is_held(path)  # Before it is read, as `see` does.
    reader = PageReader(_size(path))
    return reader.run(Seen(load(path, take=reader.take), is_live))


def _size(path: Path) -> int:
    return sum(DISK.size(segments.file(path, number)) or 0 for number in segments.numbers(path, DISK))


@click.command()
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="The port to listen on; one that is free if left out.")
@click.option("--open", "then_open", is_flag=True, help="Show it in a browser at once.")
def view(run: Path | None, port: int, then_open: bool) -> None:
    """Show a run in a browser as it goes on, through its files only, until Ctrl-C.

    The page is the report's, and is told what is new from the journal's tail: it stays after the run has ended, and goes along
    when another process resumes it. Only this machine can reach it, and only who knows the address, which is printed.

    \b
    evaljournal view
    evaljournal view runs/capitals/0001 --open
    """
    from runner.cli._server import serve  # noqa: PLC0415  # `report` needs no server

    path = chosen_run(run)

    def ready(address: str) -> None:
        click.echo(address)
        click.echo(f"{path} is shown there until Ctrl-C", err=True)
        if then_open:
            webbrowser.open(address)

    trio.run(until_signal, partial(serve, path, _size(path), port, ready=ready), signal.SIGINT)
