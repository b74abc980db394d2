"""A process that searches texts for regular expressions; `runner.scorers.bounded_search` starts it as a script.

A request on standard input is a time limit and the lengths of pattern and text, then both. A reply on standard output is its
length, then `1` or `0`, `?` with the error in the pattern, or `!` with another error. A search that exceeds its limit ends the
process. No module of evaljournal is imported.
"""

import re
import signal
import struct
import sys
from typing import Final

REQUEST: Final = struct.Struct("<dQQ")
REPLY: Final = struct.Struct("<Q")
_MEMORY_LIMIT: Final = 2 * 1024**3
"""Maximum bytes of memory; backtracking can take far more than the text."""


def _limit_memory() -> None:
    try:
        import resource  # noqa: PLC0415  # not on Windows

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT, _MEMORY_LIMIT))
    except (ImportError, ValueError, OSError):
        pass


def _set_alarm(seconds: float) -> None:
    """Have the system end this process after this many seconds; 0 cancels that. On Windows, the parent ends it."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _search(pattern: bytes, text: bytes) -> bytes:
    try:
        match = re.search(pattern.decode("utf-8", "surrogatepass"), text.decode("utf-8", "surrogatepass"))
    except re.error as exc:
        return f"?{exc}".encode("utf-8", "backslashreplace")
    except (RecursionError, OverflowError, MemoryError) as exc:
        return f"!{type(exc).__name__}: {exc}".encode("utf-8", "backslashreplace")
    return b"0" if match is None else b"1"


def main() -> None:
    """Process requests until standard input is closed."""
    if sys.platform != "win32":
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _limit_memory()
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    while len(head := requests.read(REQUEST.size)) == REQUEST.size:
        seconds, *sizes = REQUEST.unpack(head)
        pattern, text = (requests.read(size) for size in sizes)
        _set_alarm(seconds)
        reply = _search(pattern, text)
        _set_alarm(0)
        replies.write(REPLY.pack(len(reply)) + reply)
        replies.flush()


if __name__ == "__main__":
    main()
