"""The journal: an append-only, hash-chained log of what happened in a run.

This package handles files and bytes; it defines the events of an evaluation and does not interpret them.

- `writing` opens a journal for writing; `read` returns its records, `follow` also waits for new ones.
- `verify` checks every hash, every blob and the order of events; `salvage` copies the intact records of a damaged journal.
- `evaljournal.journal.events` defines the events, `evaljournal.journal.errors` the errors.
"""

from evaljournal.lazy_names import TYPE_CHECKING, lazy_names

if TYPE_CHECKING:
    from evaljournal.journal.clock import Clock as Clock
    from evaljournal.journal.copies.salvage import SalvageResult as SalvageResult
    from evaljournal.journal.copies.salvage import salvage as salvage
    from evaljournal.journal.errors import JournalError as JournalError
    from evaljournal.journal.events import Event as Event
    from evaljournal.journal.events import Record as Record
    from evaljournal.journal.format.blobs import Blob as Blob
    from evaljournal.journal.readers.follow import follow as follow
    from evaljournal.journal.readers.reader import read as read
    from evaljournal.journal.readers.verification import Verification as Verification
    from evaljournal.journal.readers.verification import verify as verify
    from evaljournal.journal.writers.writer import Durability as Durability
    from evaljournal.journal.writers.writer import Journal as Journal
    from evaljournal.journal.writers.writer import writing as writing

_MODULES = {
    "Blob": "format.blobs",
    "Clock": "clock",
    "Durability": "writers.writer",
    "Event": "events",
    "Journal": "writers.writer",
    "JournalError": "errors",
    "Record": "events",
    "SalvageResult": "copies.salvage",
    "Verification": "readers.verification",
    "follow": "readers.follow",
    "read": "readers.reader",
    "salvage": "copies.salvage",
    "verify": "readers.verification",
    "writing": "writers.writer",
}
"""Public name → the module that defines it."""

__all__ = list(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]  # the names are imported above

if not TYPE_CHECKING:  # Type checkers report an unknown name themselves.
    __getattr__ = lazy_names(__name__, _MODULES)
