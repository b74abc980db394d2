"""The findings and notes that an audit collects."""

from collections.abc import Iterable
from typing import Final

from journal import Record
from replay.audit_types import Finding

MAX_FINDINGS: Final = 100
"""Findings that are kept; further ones are only counted."""


class Findings:
    """The findings and notes so far."""

    def __init__(self) -> None:
        self.kept: list[Finding] = []
        self.count = 0
        """Number of all findings."""
        self.notes: dict[str, None] = {}
        """What was not checked, and why, each once."""

    def add(self, record: Record, check: str, message: str) -> None:
        """Add a finding about a record."""
        self.count += 1
        if len(self.kept) < MAX_FINDINGS:
            self.kept.append(Finding(record.seq, check, message))

    def add_all(self, record: Record, check: str, messages: Iterable[str]) -> None:
        """Add a finding for each message."""
        for message in messages:
            self.add(record, check, message)

    def note(self, text: str) -> None:
        """Add a note, unless there is an equal one."""
        self.notes[text] = None

    def truncate(self, kept: int, count: int) -> None:
        """Remove the findings after those that were kept and counted at an earlier time."""
        del self.kept[kept:]
        self.count = count
