"""Standard output and standard error of the commands: everything that they print goes through here."""

import codecs
import sys
from collections.abc import Iterable

import click


def echo(text: str, *, err: bool = False) -> None:
    """Print text and a line feed, with control characters escaped."""
    from replay.text import escape_controls  # noqa: PLC0415  # not needed for `--help`

    click.echo(escape_controls(text), err=err)


def write_data(pieces: Iterable[bytes]) -> None:
    """Write data to standard output: unchanged to a file or pipe, with control characters escaped to a terminal."""
    sys.stdout.flush()
    stream, is_terminal = sys.stdout.buffer, sys.stdout.isatty()
    for piece in _escaped(pieces) if is_terminal else pieces:
        stream.write(piece)
    stream.flush()


def _escaped(pieces: Iterable[bytes]) -> Iterable[bytes]:
    from replay.text import escape_controls  # noqa: PLC0415  # not needed for `--help`

    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")  # A piece may end within a character.
    for piece in pieces:
        yield escape_controls(decoder.decode(piece)).encode()
    yield escape_controls(decoder.decode(b"", final=True)).encode()
