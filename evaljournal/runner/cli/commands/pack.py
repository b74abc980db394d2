"""The command `evaljournal pack`."""

from pathlib import Path

import click

from evaljournal.replay.text import plural, printable
from evaljournal.runner.cli.arguments import run_argument
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.cli.terminal.user_code import user_code
from evaljournal.runner.runs.atomic_write import write_atomically
from evaljournal.runner.secrets.masking import add_environment

_MAX_SHOWN = 3


@click.command()
@run_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="File to write, such as replies.jsonl.gz.",
)
def pack(path: Path, output: Path) -> None:
    """Pack the recorded replies of a run into one small file, which `run --replies` reads.

    It has the outputs of calls and what they are recognized by, but no requests and no scores. The same run gives the same
    bytes, so that the file can be kept in a repository; `zcat` shows its text. Secrets of the environment are masked, and there
    is a warning if an output contains what looks like one.

    \b
    evaljournal pack runs/agent/0001 -o replies.jsonl.gz
    evaljournal run agent.py --replies replies.jsonl.gz --offline --trust
    """
    from evaljournal.runner.steps.replies.packed import pack as packed  # noqa: PLC0415  # for this command only
    from evaljournal.runner.steps.replies.source import open_run  # noqa: PLC0415  # for this command only

    with user_code():
        add_environment()
        content, suspicious = packed(open_run(str(path)))
        write_atomically(output, [content])
    echo(f"{output}: {len(content):,} bytes", err=True)
    if suspicious:
        names = ", ".join(printable(name) for name in suspicious[:_MAX_SHOWN])
        count = plural(len(suspicious), "trial")
        echo(f"Warning: outputs of {count} contain what looks like a secret ({names}); look at them with zcat", err=True)
