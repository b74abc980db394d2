"""Stopping a run from another thread or a signal handler, even before its event loop runs."""

from collections import deque
from collections.abc import Callable


class StopHandle:
    """Stops a run: the first request gracefully, the second at once. Requests may come from any thread, at any time."""

    def __init__(self) -> None:
        self._pending: deque[None] = deque()
        self._stop: Callable[[], None] | None = None
        self.requests = 0
        """How often `request` was called."""

    def request(self) -> None:
        """Stop the run, now or as soon as it starts."""
        self.requests += 1
        self._pending.append(None)
        self._forward()

    def attach(self, stop: Callable[[], None]) -> None:
        """Set the function that stops the run."""
        self._stop = stop
        self._forward()

    def _forward(self) -> None:
        while self._stop is not None:
            try:
                self._pending.popleft()  # Atomic, so that each request counts once.
            except IndexError:
                return
            self._stop()
