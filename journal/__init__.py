"""The journal: an append-only, hash-chained log of what happened in a run.

This package handles files and bytes; it defines the events of an evaluation and does not interpret them.

- `writing` opens a journal for writing; `read` returns its records, `follow` also waits for new ones.
- `verify` checks every hash, every blob and the order of events; `salvage` copies the intact records of a damaged journal.
- `evaljournal.journal.events` defines the events, `evaljournal.journal.errors` the errors.
"""

from evaljournal.journal.clock import Clock
from evaljournal.journal.copies.salvage import SalvageResult, salvage
from evaljournal.journal.errors import JournalError
from evaljournal.journal.events import Event, Record
from evaljournal.journal.format.blobs import Blob
from evaljournal.journal.readers.reader import follow, read
from evaljournal.journal.readers.verification import Verification, verify
from evaljournal.journal.writers.writer import Durability, Journal, writing

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
