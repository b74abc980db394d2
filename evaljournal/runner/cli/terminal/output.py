"""Standard output and standard error of the commands: escape control characters, and report failed writes."""

import codecs
import os
import shutil
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress

import click

from evaljournal.runner.cli.terminal.stdio import command_stream


class OutputFailed(Exception):
    """Standard output could not be written, to a full disk for example; what follows is discarded."""


@contextmanager
def writing_output() -> Generator[None]:
    """Raise `OutputFailed` if writing to standard output fails; a closed pipe stays a `BrokenPipeError`."""
    try:
        yield
    except BrokenPipeError:
        discard_output()
        raise
    except OSError as exc:
        discard_output()
        raise OutputFailed(f"cannot write standard output: {exc.strerror or exc}") from exc


def discard_output() -> None:
    """Discard what is still in the buffer: Python flushes it again at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def flush_output() -> None:
    """Flush standard output, so that a full disk or a closed pipe is detected before the exit code is chosen."""
    if sys.stdout is not None:  # None if it was closed before the start.
        with writing_output():
            sys.stdout.flush()


def echo(text: str, *, err: bool = False) -> None:
    """Print text and a line feed, with control characters escaped."""
    from evaljournal.replay.text import escape_controls  # noqa: PLC0415  # not needed for `--help`

    with suppress(ValueError) if err else writing_output():  # Standard error may be a closed file.
        click.echo(escape_controls(text), file=command_stream("stderr") if err else None, err=err)


def line_width() -> int:
    """Return the width of the terminal in characters; 80 if it is unknown."""
    return shutil.get_terminal_size().columns


def write_data(chunks: Iterable[bytes]) -> None:
    """Write data to standard output: unchanged to a file or pipe, with control characters escaped to a terminal."""
    flush_output()
    stream, is_terminal = sys.stdout.buffer, sys.stdout.isatty()
    for chunk in _escape(chunks) if is_terminal else chunks:
        with writing_output():  # The iteration is outside, because it may read files.
            stream.write(chunk)
    with writing_output():
        stream.flush()


def _escape(chunks: Iterable[bytes]) -> Iterable[bytes]:
    from evaljournal.replay.text import escape_controls  # noqa: PLC0415  # not needed for `--help`

    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")  # A chunk may end within a character.
    for chunk in chunks:
        yield escape_controls(decoder.decode(chunk)).encode()
    yield escape_controls(decoder.decode(b"", final=True)).encode()
