"""How a run is stopped from outside of its loop: by a signal, or because the one who waits for it is cancelled."""

import signal
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Reins:
    """Pulled once, a run stops with grace; pulled twice, at once. They may be pulled from any thread, at any time."""

    def __init__(self) -> None:
        self._pulls: deque[None] = deque()
        self._stop: Callable[[], None] | None = None
        self.pulled = 0
        """How many times."""

    def pull(self) -> None:
        """Stop the run, now or as soon as there is one."""
        self.pulled += 1
        self._pulls.append(None)
        self._heed()

    def hold(self, stop: Callable[[], None]) -> None:
        """Give them to a run, which stops when told."""
        self._stop = stop
        self._heed()

    def _heed(self) -> None:
        while self._stop is not None:
            try:
                self._pulls.popleft()  # By one thread only, whoever is first: each pull counts once.
            except IndexError:
                return
            self._stop()


_heeding: dict[int, list[Callable[[], None]]] = {}
"""Signal → what is called when it comes. Several runs may be waited for at once; the last to end restores the handler."""
_before: dict[int, Any] = {}
"""Signal → the handler that was there."""


def _ring(number: int, _: FrameType | None) -> None:
    for call in tuple(_heeding.get(number, ())):
        call()


@contextmanager
def heeded(number: int | None, call: Callable[[], None]) -> Generator[bool]:
    """Call this when a signal comes, as long as the block lasts; say whether it can be heard.

    Only the main thread can hear it. What is ignored on purpose stays so.
    """
    hears = threading.current_thread() is threading.main_thread()
    if number is None or not hears or signal.getsignal(number) in (signal.SIG_IGN, None):
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
                signal.signal(number, before)
