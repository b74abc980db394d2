"""Standard output and standard error of the commands: escape control characters, and report failed writes.

The streams may be closed, full, or closed by the user's code.
"""

import codecs
import io
import os
import shutil
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal, TextIO

import click

_STANDARD: Final = (0, 1, 2)


class _LossyStderr(io.TextIOWrapper):
    """Standard error that drops what cannot be written, to a full disk or a closed pipe for example.

    It stays open: a task may close `sys.stderr`, or `sys.stdout`, which is the same while a run executes tasks.
    """

    def write(self, text: str, /) -> int:
        with suppress(OSError, ValueError):  # ValueError: its buffer was closed or detached.
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            super().flush()

    def close(self) -> None:
        self.flush()

    def detach(self) -> Any:
        self.flush()
        return self.buffer


def prepare_streams() -> None:
    """Open the null device for closed standard streams, and ignore failed writes to standard error."""
    for fd in _STANDARD:
        if not _is_open(fd):
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
    if os.name != "nt":  # The console of Windows has its own kind of stream.
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        binary = open(2, "wb", closefd=False)  # noqa: SIM115  # used until the end of the process
        sys.stderr = _LossyStderr(binary, encoding=encoding, errors="backslashreplace", line_buffering=True)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


_STREAM_NAMES: Final = ("stdout", "stderr", "__stdout__", "__stderr__")
_command_streams: dict[str, TextIO] = {}
"""The streams of the command while the user's code runs, which may replace those of `sys`, even with objects that raise."""


def command_stream(name: Literal["stdout", "stderr"]) -> TextIO:
    """Return standard output or standard error of the command, even if the user's code has replaced it."""
    stream: TextIO = _command_streams.get(name) or getattr(sys, name)
    return stream


@contextmanager
def restore_streams() -> Generator[None]:
    """Restore standard output and standard error after code that may close or replace them or their file descriptors."""
    copies = {fd: os.dup(fd) for fd in _STANDARD[1:] if _is_open(fd)}
    streams = {name: getattr(sys, name) for name in _STREAM_NAMES}
    outer_streams = _command_streams.copy()
    _command_streams.update(outer_streams or streams)
    for name in ("__stdout__", "__stderr__"):  # If a task closed the real ones, the report would be lost.
        setattr(sys, name, sys.stderr)

    try:
        yield
    finally:
        if not outer_streams:
            _command_streams.clear()
        for name, stream in streams.items():
            setattr(sys, name, stream)
        for fd, copy in copies.items():
            with suppress(OSError):  # The copy may have been closed as well.
                if not _is_open(fd) or not os.path.sameopenfile(fd, copy):
                    os.dup2(copy, fd)
                os.close(copy)


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
    if sys.stdout is None:  # It was closed before the start; text is not printed either.
        return
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
