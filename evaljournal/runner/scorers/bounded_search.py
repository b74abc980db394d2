"""Regular expressions with a time limit, for any pattern and text.

Python's `re` backtracks, holds the GIL and cannot be interrupted, so neither a thread nor a signal helps. A search that might
take long runs in another process, which is killed at its time limit. An engine with linear time, such as RE2, has no lookaround
and no backreferences: some patterns would be invalid or give other scores.
"""

import atexit
import functools
import math
import os
import re
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Final

from evaljournal.runner.retries.classify import Fatal
from evaljournal.runner.scorers import search_process
from evaljournal.runner.scorers.search_process import REPLY, REQUEST

_QUICK_OPERATIONS: Final = 3_000_000
"""Maximum operations of a search in this process, for the worst text. They take about 30 ms; usual texts take microseconds."""
_MAX_QUICK_PATTERN: Final = 200
"""Maximum characters of a pattern that is compiled in this process; a longer one may take long."""
_UNBOUNDED_PATTERN: Final = re.compile(r"\)[*+?{]|\\[1-9]|\(\?(?:P=|\(|#|[a-zA-Z]*x)")
"""A repeated group, a backreference, a condition, or a comment or verbose flag that may hide one: the bound would not hold."""

_idle_processes: Final[list["_Process"]] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle_processes.clear)


@atexit.register
def _close_idle_processes() -> None:
    for process in _idle_processes:
        process.close()


class SearchTimedOut(Fatal):
    """A search took longer than its limit."""


class SearchFailed(Fatal):
    """A search needs too much memory, or its pattern is nested too deeply."""


def is_quick(pattern: str, length: int) -> bool:
    """Return whether a search takes few operations in the worst text of this length."""
    return length <= _quick_length(pattern)


@functools.lru_cache(1_000)
def _quick_length(pattern: str) -> int:
    """Return the maximum length of a text in which any search takes few operations; negative if there is no bound.

    The search may start anywhere, each repetition of a character may end anywhere after it, and an alternative or an optional
    character doubles the number of paths. Escaped special characters are counted, too, so the estimate is high.
    """
    if len(pattern) > _MAX_QUICK_PATTERN or _UNBOUNDED_PATTERN.search(pattern):
        return -1
    doublings = pattern.count("|") + pattern.count("?") - pattern.count("(?")
    repetitions = 1 + sum(map(pattern.count, "*+{"))
    return int((_QUICK_OPERATIONS / 2**doublings * math.factorial(repetitions)) ** (1 / repetitions))


def search(pattern: str, text: str, seconds: float) -> bool:
    """Return whether a text matches a pattern somewhere; raise `SearchTimedOut`, `SearchFailed` or `re.error`."""
    if is_quick(pattern, len(text)):
        return re.search(pattern, text) is not None

    request = pattern.encode("utf-8", "surrogatepass"), text.encode("utf-8", "surrogatepass")
    reply = None
    with suppress(IndexError, BrokenPipeError):  # No process is idle, or the idle one was killed.
        reply = _idle_processes.pop().search_within(*request, seconds)
    if reply is None:
        reply = _Process().search_within(*request, seconds)

    if reply == b"":
        raise SearchTimedOut(
            f"no result within {seconds:g} s; the pattern backtracks too much on {len(text):,} characters; simplify it"
        )
    if reply.startswith(b"?"):
        raise re.error(reply[1:].decode())
    if reply.startswith(b"!"):
        raise SearchFailed(reply[1:].decode())
    return reply == b"1"


class _Process:
    """A process that runs `search_process`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603  # our own script
            [sys.executable, "-I", "-S", search_process.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def search_within(self, pattern: bytes, text: bytes, seconds: float) -> bytes:
        """Return the reply to a request; empty if the process was killed at the limit. Otherwise the process is idle again."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None

        timer = threading.Timer(seconds, self._process.kill) if sys.platform == "win32" else None
        reply = b""
        try:
            stdin.write(REQUEST.pack(seconds, len(pattern), len(text)) + pattern + text)
            stdin.flush()
            if timer is not None:
                timer.start()
            if head := stdout.read(REPLY.size):
                reply = stdout.read(REPLY.unpack(head)[0])
        finally:
            if timer is not None:
                timer.cancel()
            if reply:
                _idle_processes.append(self)
            else:
                self.close()
        return reply

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self._process.kill()
            self._process.communicate()
