"""Facts: what happened, in order, on disk, provably unchanged. Part of evaljournal.

This package knows files and bytes. It knows no evaluation, and it reads no clock: whoever writes hands it the time.

- `writing` opens a journal to write; `read` goes through one, `follow` goes along with it, `fetch` finds one record.
- `verify` proves that nothing was changed, `salvage` saves what is intact.
- `events` has every fact that a journal can hold, `errors` everything that can be wrong with it.
"""

from journal.blobs import Blob
from journal.errors import JournalError
from journal.events import Event, Record, Stamp
from journal.reader import follow, read
from journal.salvaging import Salvaged, salvage
from journal.verification import Verification, verify
from journal.writer import Durability, Journal, writing

__all__ = [
    "Blob",
    "Durability",
    "Event",
    "Journal",
    "JournalError",
    "Record",
    "Salvaged",
    "Stamp",
    "Verification",
    "follow",
    "read",
    "salvage",
    "verify",
    "writing",
]
