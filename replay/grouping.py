"""Groups of trials by a key of their metadata, or by variant."""

from typing import Final

from journal import Blob, Record
from journal.events import TrialEnqueued
from replay.text import as_text

VARIANT: Final = "variant"
"""The key that groups trials by variant, unless their metadata has it."""
NO_GROUP: Final = "(none)"
"""The group of trials whose metadata lacks the key."""


class Grouping:
    """The group of each trial, read from the records, because `RunState` does not keep metadata."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.groups: dict[str, str] = {}
        """Trial → group."""
        self.keys: set[str] = set()
        """All keys of the metadata, to suggest one if `key` is mistyped."""
        self._labels: dict[str, str] = {}

    def apply(self, record: Record) -> None:
        """Read the group of a trial from the next record, if it enqueues one."""
        event = record.event
        if not isinstance(event, TrialEnqueued):
            return
        metadata = event.metadata.load() if isinstance(event.metadata, Blob) else event.metadata
        value = None
        if isinstance(metadata, dict):
            self.keys.update(metadata)
            value = metadata.get(self.key)
        if event.variant:
            self.keys.add(VARIANT)
            value = event.variant if value is None and self.key == VARIANT else value
        label = NO_GROUP if value is None else as_text(value)
        self.groups[event.trial] = self._labels.setdefault(label, label)  # One string per label.
