"""How a run is stopped from outside of its loop: by a signal, or because the one who waits for it is cancelled."""

import signal
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import trio


class Reins:
    """Pulled once, a run stops with grace; pulled twice, at once. They may be pulled from any thread, at any time."""

    def __init__(self) -> None:
        self._pulls: deque[None] = deque()
        self._reach: Callable[[], None] = lambda: None
        self.pulled = 0
        """How many times."""

    def pull(self) -> None:
        """Stop the run, now or as soon as it has begun."""
        self.pulled += 1
        self._pulls.append(None)
        self._reach()

    def take(self, stop: Callable[[], None]) -> None:
        """Be held by a run; to be called in its loop."""
        token = trio.lowlevel.current_trio_token()

        def heed() -> None:
            while self._pulls:
                self._pulls.popleft()
                stop()

        def reach() -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(heed)

        self._reach = reach
        heed()


_heeding: dict[int, list[Callable[[], None]]] = {}
"""Signal → what is called when it comes. Several runs may be waited for at once; the last to end restores the handler."""
_before: dict[int, Any] = {}
"""Signal → the handler that was there."""


def _ring(number: int, _: FrameType | None) -> None:
    for call in tuple(_heeding.get(number, ())):
        call()


@contextmanager
def heeded(number: int | None, call: Callable[[], None]) -> Generator[bool]:
    """Call this when a signal comes, as long as the block lasts; say whether it can be heard: only the main thread can."""
    if number is None or threading.current_thread() is not threading.main_thread():
        yield False
        return
    calls = _heeding.setdefault(number, [])
    if not calls:
        _before[number] = signal.signal(number, _ring)
    calls.append(call)
    try:
        yield True
    finally:
        calls.remove(call)
        if not calls:
            before = _before.pop(number)
            if signal.getsignal(number) is _ring:  # Else somebody has put their own in its place, and it stays.
                signal.signal(number, signal.SIG_DFL if before is None else before)
