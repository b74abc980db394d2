"""A worker's process: the code that starts it, its frames, its standard error and its exit code."""

import signal
from typing import Final

from evaljournal.replay.text import escape_controls
from evaljournal.runner.errors import print_error
from evaljournal.runner.workers.frames import MAX_FRAME, InvalidFrame

EXIT_TIMEOUT: Final = 1.0
"""Seconds that a worker gets to exit after its standard input or output was closed."""
START_CODE: Final = "import sys; sys.path[:] = sys.argv.pop().split('\\n'); from evaljournal.worker import main; main()"
"""Python code of a worker's process; its last argument is `sys.path`, one entry per line."""
_MAX_LINE: Final = 4_000
"""Maximum bytes of a line on standard error; longer lines are split."""


class FrameSplitter:
    def __init__(self) -> None:
        self._fragments: list[bytes] = []
        self._size = 0

    def split(self, chunk: bytes) -> list[bytes]:
        """Return the frames that end in a chunk."""
        *lines, tail = chunk.split(b"\n")
        if self._size + len(lines[0] if lines else tail) > MAX_FRAME:
            raise InvalidFrame(f"it sent a frame of more than {MAX_FRAME:,} bytes")
        if lines:
            lines[0] = b"".join((*self._fragments, lines[0]))
            self._fragments, self._size = [], 0
        self._fragments.append(tail)
        self._size += len(tail)
        return lines


class StderrPrinter:
    """Prints the standard error of a worker on that of the run, line by line."""

    def __init__(self) -> None:
        self._line = b""

    def print(self, chunk: bytes) -> None:
        *lines, self._line = (self._line + chunk).split(b"\n")
        while len(self._line) > _MAX_LINE:
            lines.append(self._line[:_MAX_LINE])
            self._line = self._line[_MAX_LINE:]
        self._print([line[offset : offset + _MAX_LINE] for line in lines for offset in range(0, max(1, len(line)), _MAX_LINE)])

    def end(self) -> None:
        """Print the last line if it did not end with a line break."""
        self._print([self._line] if self._line else [])
        self._line = b""

    def _print(self, lines: list[bytes]) -> None:
        if lines:
            print_error("\n".join(escape_controls(line.decode("utf-8", "replace")) for line in lines))


def exit_text(code: int) -> str:
    """Return an exit code as text; a negative one is a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"
