"""Attempts and scorer calls in flight in a session, by rate-limit key, as an audit counts them."""

from collections import Counter
from collections.abc import Hashable


class InFlight:
    """Attempts and scorer calls that have started and not ended."""

    def __init__(self) -> None:
        self._open: dict[Hashable, tuple[str, int]] = {}
        """Attempt (by its trial) or call (by trial and scorer) → its rate-limit key, and the epoch in which it started."""
        self._counts: Counter[str] = Counter()
        self._epochs: Counter[str] = Counter()
        """Rate-limit key → number of times its endpoint has stopped responding."""

    def __contains__(self, name: Hashable) -> bool:
        return name in self._open

    def clear(self) -> None:
        """Clear everything at the start of a session."""
        self._open.clear()
        self._counts.clear()
        self._epochs.clear()

    def start(self, name: Hashable, key: str) -> int:
        """Add a start; return how many of its key now count against the limit."""
        self._open[name] = key, self._epochs[key]
        self._counts[key] += 1
        return self._counts[key]

    def end(self, name: Hashable) -> str:
        """Remove an ended attempt or call; return its key."""
        key, epoch = self._open.pop(name, ("", -1))
        if epoch == self._epochs[key]:
            self._counts[key] -= 1
        return key

    def key_of(self, name: Hashable) -> str | None:
        """Return the rate-limit key of an attempt or call in flight; None if there is none."""
        return self._open[name][0] if name in self._open else None

    def exclude_hung(self, key: str) -> None:
        """Stop counting what is in flight against the limit: the endpoint does not respond."""
        self._counts[key] = 0
        self._epochs[key] += 1
