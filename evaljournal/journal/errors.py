"""Errors of the journal package.

The class names the problem, and the fields locate it. `hint` names a fix; the caller turns it into a command or a Python call,
and chooses the exit code.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

Hint = Literal[
    "check_disk",
    "check_path",
    "choose_path",
    "free_space",
    "free_space_resume",
    "make_readable",
    "move_back",
    "read_log",
    "resume",
    "salvage",
    "watch",
]

Change = Literal["deleted", "moved", "truncated or replaced", "unlocked"]
"""How another process has changed the segment that was being written; `unlocked`: it removed the lock of the run."""

HINTS: Final[dict[Hint, str]] = {
    "check_disk": "check the disk, then resume the run",
    "check_path": "check the path",
    "choose_path": "choose another path",
    "free_space": "free some disk space and try again",
    "free_space_resume": "free some disk space, then resume the run",
    "make_readable": "make it readable, then try again",
    "move_back": "move it back, or resume the run at its new path",
    "read_log": "the records before the damage can still be read",
    "resume": "resume the run",
    "salvage": "the intact records can be salvaged into a new run",
    "watch": "wait until it has ended, or watch it",
}


class JournalError(Exception):
    """A journal, or an event passed to it, is invalid or cannot be used."""

    def __init__(self, message: str, *, path: Path | None = None, hint: Hint | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        """Directory of the run; None if the error is about an event."""
        self.hint: Hint | None = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}; {HINTS[self.hint]}"


class NotAJournal(JournalError):
    """There is no journal at this path."""


class JournalExists(JournalError):
    """The path for a new run is in use, or a file is in its way."""


class JournalLocked(JournalError):
    """The journal is already being written."""


class StateUnavailable(JournalError):
    """The user's state directory cannot be created, read or trusted."""


class UnknownFormat(JournalError):
    """The journal has a format or a major version that this release cannot read."""

    def __init__(self, file: str, *, format: str, version: str, readable: int) -> None:  # noqa: A002  # the field's name
        self.file = file
        self.format = format
        self.version = version
        if format != "evaljournal":
            message = f"{file} is not a journal of evaljournal: its format is {format!r}"
        elif version.partition(".")[0] == "1":
            message = f"{file} has format version {version!r}; the last commit of evaljournal that reads it is 80ae7681"
        else:
            message = (
                f"{file} has format version {version!r}, but this release reads only version {readable}; upgrade evaljournal"
            )
        super().__init__(message)


class JournalDamaged(JournalError):
    """Records that were confirmed as durable, or read before, are missing or changed."""

    def __init__(self, *, path: Path, file: str, byte: int, seq: int | None, check: str, intact_records: int = 0) -> None:
        self.file = file
        """Name of the segment with the first bad byte."""
        self.byte = byte
        """Offset of the first untrustworthy record in that file."""
        self.seq = seq
        """Number of the record expected there; None if the record was looked up by its offset."""
        self.check = check
        self.intact_records = intact_records
        """Number of intact records after it in the same file."""
        place = f"{file}, byte {byte:,}" if seq is None else f"record {seq:,} ({file}, byte {byte:,})"
        count_text = f"{intact_records:,} intact record{'' if intact_records == 1 else 's'} after it in this file"
        super().__init__(f"{path} is damaged at {place}: {check}; {count_text}", path=path, hint="salvage")


class NotSalvageable(JournalError):
    """A damaged journal has no intact records, or has lost the id of its run, without which none can be checked."""

    def __init__(self, problem: JournalError, unreadable_files: Sequence[str]) -> None:
        self.unreadable_files = tuple(unreadable_files)
        """Files that the system could not read, or only in part."""
        reason = f"; the system could not read {', '.join(unreadable_files)}" if unreadable_files else ""
        hint: Hint | None = "make_readable" if unreadable_files else "read_log"
        message = f"cannot salvage {problem.path}: it has no intact records, or the id of its run is lost{reason}"
        super().__init__(message, path=problem.path, hint=hint)


class InvalidRecord(JournalError):
    """The hashes are correct, but a record has invalid content or is not allowed at its position."""

    def __init__(self, path: Path, seq: int, reason: Exception | str) -> None:
        self.seq = seq
        self.reason = str(reason)
        super().__init__(f"{path}: record {seq:,} has a correct hash but is invalid: {reason}", path=path)


class HeadMissing(JournalError):
    """The journal has no record with the expected hash: records were removed or rewritten, or it is another run."""

    def __init__(self, path: Path, *, expected: str, seq: int, head: str) -> None:
        self.expected = expected
        self.seq = seq
        """The last record of the journal."""
        self.head = head
        super().__init__(
            f"{path} has no record with the hash {expected} (the last one, record {seq:,}, has {head}): records were removed "
            "from the end or rewritten, or this is another run",
            path=path,
        )


class BlobDamaged(JournalError):
    """A blob is missing or was changed."""

    def __init__(self, path: Path, file: str, reason: str) -> None:
        self.file = file
        """Path of the blob, relative to the run's directory."""
        self.reason = reason
        super().__init__(f"{path}: {file} {reason}", path=path)


class BlobUnreadable(BlobDamaged):
    """The system cannot read a blob; its content may be intact."""


class IllegalEvent(JournalError):
    """This event is not allowed in the current state; nothing was written."""

    def __init__(self, event: str, reason: str, *, trial: str | None = None, allowed_events: Sequence[str] = ()) -> None:
        self.event = event
        """Class of the event."""
        self.reason = reason
        self.trial = trial
        self.allowed_events = allowed_events
        """Classes of the events that are allowed for the trial now."""
        subject = event if trial is None else f"{event} for trial {trial!r}"
        choices = f"; allowed now: {', '.join(allowed_events)}" if allowed_events else ""
        super().__init__(f"{subject} is not allowed: {reason}{choices}")


class Unserializable(JournalError):
    """A value cannot be written as JSON; nothing was written."""

    def __init__(self, event: str, field: str, reason: str) -> None:
        self.event = event
        """Class of the event, or type of an extension."""
        self.field = field
        """The field with that value, and the position inside it: `output.answers[3]`."""
        self.reason = reason
        super().__init__(f"{field} of {event} {reason}" if field else f"{event} {reason}")


class RecordTooLarge(JournalError):
    """A record is larger than the format allows; nothing was written."""

    def __init__(self, event: str, *, size: int, limit: int) -> None:
        self.event = event
        self.size = size
        """Bytes of the record, without payloads that would be stored as blobs."""
        self.limit = limit
        super().__init__(f"{event} would need {size:,} bytes; a record may have {limit:,}, without inputs, outputs and notes")


class JournalClosed(JournalError):
    """The journal is closed, or used from another thread or process; nothing was written."""


class JournalFailed(JournalError):
    """Writing failed; no more records are accepted or confirmed."""

    def __init__(self, message: str, *, path: Path, hint: Hint | None, durable_seq: int = 0) -> None:
        super().__init__(message, path=path, hint=hint)
        self.durable_seq = durable_seq
        """The last record that is confirmed on disk; 0 if there is none."""


class DiskFull(JournalFailed):
    """No space is left on the device; all complete records are kept, and the run can be resumed."""


class WriteFailed(JournalFailed):
    """A write or sync failed; only records up to `durable_seq` are known to be on disk."""


class SegmentLost(JournalFailed):
    """Another process has changed or moved the segment that was being written, or removed the lock of the run."""

    def __init__(self, *, path: Path, file: str, change: Change, durable_seq: int, hint: Hint | None) -> None:
        self.file = file
        self.change: Change = change
        records = f"records up to {durable_seq:,} are intact" if durable_seq else "no record is left"
        problem = "LOCK was removed or replaced" if change == "unlocked" else f"{file} was {change}"
        message = f"{path}: {problem} while the run was writing it; {records}"
        super().__init__(message, path=path, hint=hint, durable_seq=durable_seq)
