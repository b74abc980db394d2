"""The versions of a definition over a run: which one was in force at a record."""

import bisect

from replay.trial_state import Location


class VersionLog:
    """The fingerprints that a definition had before each of its changes."""

    def __init__(self) -> None:
        self._changes: list[tuple[Location, str]] = []
        """Where it was changed, and its fingerprint until then."""

    def change(self, location: Location, before: str) -> None:
        """Add a change, later than all others."""
        self._changes.append((location, before))

    def is_older(self, location: Location, current: str) -> bool:
        """Whether another version than the current one was in force at a record; one that was restored is current."""
        index = bisect.bisect_right(self._changes, (location, ""))
        return index < len(self._changes) and self._changes[index][1] != current
