"""How a run is stopped from outside of its loop, even before it has one: by a signal, or as the one who waits is cancelled."""

from collections import deque
from collections.abc import Callable


class StopHandle:
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
