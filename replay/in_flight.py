"""What is in flight in a session, by rate-limit key, as an audit counts it from the records."""

from collections import Counter
from collections.abc import Hashable


class InFlight:
    """Attempts and calls of scorers that have started and not ended."""

    def __init__(self) -> None:
        self._open: dict[Hashable, tuple[str, int]] = {}
        """Attempt (by its trial) or call (by trial and scorer) → its rate-limit key, and the epoch in which it started."""
        self._counts: Counter[str] = Counter()
        self._epochs: Counter[str] = Counter()
        """Rate-limit key → how many times its endpoint has stopped responding."""

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._open

    def clear(self) -> None:
        """Forget everything: a session begins."""
        self._open.clear()
        self._counts.clear()
        self._epochs.clear()

    def start(self, name: Hashable, key: str) -> int:
        """Count a start; return how many of its key are now in flight and count against the limit."""
        self._open[name] = key, self._epochs[key]
        self._counts[key] += 1
        return self._counts[key]

    def end(self, name: Hashable) -> str:
        """Count an ending; return its key."""
        key, epoch = self._open.pop(name, ("", -1))
        if epoch == self._epochs[key]:
            self._counts[key] -= 1
        return key

    def key_of(self, name: Hashable) -> str | None:
        """Return the rate-limit key of what is in flight under a name; None if nothing is."""
        return self._open[name][0] if name in self._open else None

    def give_up_hung(self, key: str) -> None:
        """Do not count what is in flight against the limit any more: the endpoint does not respond."""
        self._counts[key] = 0
        self._epochs[key] += 1
