"""The events about the files of a journal: its segments, recovery after a crash, and salvage."""

from evaljournal.journal.fact import fact


@fact
class SegmentOpened:
    """The first record of a segment."""

    format: str
    """`evaljournal`."""
    version: str
    """Version of the format, `major.minor`; a reader rejects an unknown major version."""
    run: str
    """Random id of the run; part of every hash."""
    segment: int
    """Number of the segment, from 1."""
    previous_seq: int = 0
    """Last record of the previous segment."""
    previous_h: str = ""
    """Hash of that record."""
    previous_bytes: int = 0
    """Length of the previous segment."""
    previous_sha256: str = ""
    """SHA-256 of the previous segment, as `sha256sum` prints it."""


@fact
class SegmentSealed:
    """The last record of a segment; the file is read-only from now on."""

    run: str
    segment: int
    records: int
    """Number of records before this one in the file."""
    bytes: int
    """Number of bytes before this record in the file."""
    sha256: str
    """SHA-256 of those bytes."""


@fact
class JournalRecovered:
    """A crash left an incomplete tail; it was moved to `torn/`, and the journal continues after the last complete record."""

    last_seq: int
    """Number of the last complete record."""
    bytes: int
    """Number of bytes that were set aside."""
    file: str
    """File with these bytes, relative to the run's directory."""


@fact
class JournalSalvaged:
    """The records before this one were copied from a damaged journal."""

    run: str
    """Id of the damaged run."""
    kept: int
    """Number of intact records that were copied."""
    lost: int
    """Number of records that could not be read."""
    excluded: int
    """Number of intact records that were not copied, because records that they depend on are lost; see `excluded.jsonl`."""
