"""The journal: an append-only, hash-chained log of what happened in a run. Part of evaljournal.

This package handles files and bytes; it defines the events of an evaluation and does not interpret them.

- `writing` opens a journal for writing; `read` returns its records, `follow` also waits for new ones.
- `verify` checks every hash, every blob and the order of events; `salvage` copies the intact records of a damaged journal.
- `journal.events` defines the events, `journal.errors` the errors.
"""

from journal.blobs import Blob
from journal.clock import Clock
from journal.errors import JournalError
from journal.events import Event, Record
from journal.reader import follow, read
from journal.salvaging import SalvageResult, salvage
from journal.verification import Verification, verify
from journal.writer import Durability, Journal, writing

__all__ = [
    "Blob",
    "Clock",
    "Durability",
    "Event",
    "Journal",
    "JournalError",
    "Record",
    "SalvageResult",
    "Verification",
    "follow",
    "read",
    "salvage",
    "verify",
    "writing",
]
