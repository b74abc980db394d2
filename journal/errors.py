"""What can be wrong with a journal, whose fault it is, and what to do about it.

Every message names what, where and why, and the command that helps. Nothing here decides anything, and nothing here
chooses an exit code.
"""

import shlex
from pathlib import Path


def command(verb: str, path: Path, rest: str = "") -> str:
    """Write a command that helps, so that it can be copied as it stands."""
    return f"`evaljournal {verb} {shlex.quote(str(path))}{rest}`"


class JournalError(Exception):
    """Something is wrong with a journal, or with what it was asked to hold."""


class NotAJournal(JournalError):
    """There is no journal at this path."""


class JournalExists(JournalError):
    """A new run was to begin where one is already."""


class JournalLocked(JournalError):
    """Another process is writing this journal."""


class UnknownFormat(JournalError):
    """The journal was written in a format that this version cannot read."""


class UnknownEvent(JournalError):
    """A record has a type that this version does not know."""


class JournalDamaged(JournalError):
    """Data that had been confirmed as durable is not what was written."""

    def __init__(self, *, path: Path, file: str, byte: int, seq: int | None, check: str, intact: int = 0) -> None:
        self.path = path
        self.file = file
        """The file in which the first bad byte stands, relative to the run's directory."""
        self.byte = byte
        """Where in that file the first record that cannot be trusted begins."""
        self.seq = seq
        """The record that should have stood there; None where it was looked for by its place."""
        self.check = check
        """The check that failed, in words."""
        self.intact = intact
        """How many records after it, in the same file, are still provably intact."""
        rest = (
            f"{intact:,} intact record{'s' if intact != 1 else ''} follow it there"
            if intact
            else "nothing intact follows it there"
        )
        place = f"{file}, byte {byte:,}" if seq is None else f"record {seq:,} ({file}, byte {byte:,})"
        super().__init__(
            f"{path} is damaged at {place}: {check}; {rest}. "
            f"Nothing was changed. {command('verify', path)} shows more, "
            f"{command('salvage', path, ' -o NEW')} copies what is intact",
        )


class InvalidRecord(JournalError):
    """The journal is whole, but a record in it is not one that may stand there: evaljournal did not write it so."""

    def __init__(self, path: Path, seq: int, why: Exception | str) -> None:
        self.seq = seq
        super().__init__(f"{path} is whole, but record {seq:,} breaks the rules: {why}")


class HeadMissing(JournalError):
    """The expected record is not in the journal: something was removed from its end, or it is another journal."""


class BlobDamaged(JournalError):
    """A value that was stored beside the journal is gone, or is not what was written."""


class IllegalEvent(JournalError):
    """This event may not follow what has happened before; nothing was written."""


class Unserialisable(JournalError):
    """A value cannot be written as JSON; nothing was written."""


class RecordTooLarge(JournalError):
    """A record is larger than the format allows; nothing was written."""


class JournalClosed(JournalError):
    """The journal was closed; it takes no more records."""


class JournalFailed(JournalError):
    """The disk refused; no further record is taken or confirmed."""

    def __init__(self, message: str, *, durable: int = 0) -> None:
        super().__init__(message)
        self.durable = durable
        """The last record that is confirmed on disk; 0 where none was asked for yet."""


class DiskFull(JournalFailed):
    """There is no space left; everything up to the last whole record is kept, and the run can be resumed."""


class WriteFailed(JournalFailed):
    """Writing or syncing failed in a way after which the system's word about this file is worth nothing."""
