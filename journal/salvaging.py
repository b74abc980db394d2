"""What is still good in a damaged journal, copied into a new one.

Nothing is invented and nothing is changed where it lies. Every record that still verifies is taken over, in order, with its
times. The new journal is a run of its own, with a chain of its own; a record that no longer fits, because the records before
it are lost, is kept beside it as it stood.
"""

import collections
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import orjson

from journal import blobs, segments
from journal.codec import decode, encode
from journal.errors import BlobDamaged, IllegalEvent, JournalError, command
from journal.events import (
    Event,
    Extension,
    FileEvent,
    JournalRecovered,
    JournalSalvaged,
    RunFinished,
    RunStarted,
    SessionStarted,
)
from journal.files import DISK, Files, create
from journal.lifecycle import Lifecycle
from journal.recovery import intact_after
from journal.scan import Scan
from journal.staging import check_target, staged_run
from journal.threads import InThread, run_in_thread
from journal.verification import verify
from journal.writer import Journal, writing

EXCLUDED: Final = "excluded.jsonl"


@attrs.frozen
class Salvaged:
    """What could be saved."""

    path: Path
    """The new run."""
    kept: int
    lost: int
    """Records that are gone, as far as the numbers of the others tell."""
    excluded: int
    """Records that are whole but no longer fit; they are in `excluded.jsonl`."""


@attrs.frozen
class _Intact:
    seq: int
    at: str
    t: float
    event: Event


async def salvage(
    source: Path | str, target: Path | str, *, files: Files = DISK, in_thread: InThread = run_in_thread
) -> Salvaged:
    """Copy what is intact in a damaged journal into a new directory; the old one is only read."""
    source, target = Path(source), Path(target)
    check_target(source, target, files)
    started, run = _look_over(source, files)
    current = started
    seq = whole = kept = 0
    excluded: list[bytes] = []
    async with staged_run(target, files=files, in_thread=in_thread) as place:
        async with writing(place, new=True, stamp=lambda: (current.at, current.t), files=files, in_thread=in_thread) as journal:
            for current in _intact(source, files, run):
                whole += 1
                seq = current.seq
                if isinstance(current.event, FileEvent | JournalSalvaged):
                    continue  # These speak of the files that are left behind.
                for n in range(journal.lifecycle.sessions + 1, _session_of(current.event, journal.lifecycle) + 1):
                    # That it began is certain, for here is what happened in it; by which process is not known any more.
                    journal.append(SessionStarted(n=n, pid=0, host="", boot_id=""))
                try:
                    journal.append(_as_own(current.event, journal))
                    kept += 1
                except IllegalEvent:
                    excluded.append(_as_line(current))
                await journal.wait_room()
            journal.append(JournalSalvaged(run=run.decode(), kept=kept, lost=seq - whole, excluded=len(excluded)))
        if excluded:
            await in_thread(lambda: create(files, str(place), EXCLUDED, b"".join(excluded)))
    return Salvaged(path=target, kept=kept, lost=seq - whole, excluded=len(excluded))


def _as_own(event: Event, journal: Journal) -> Event:
    """Let the last word of a run be true of the new journal, or refuse it: a run that has lost trials is not finished."""
    if not isinstance(event, RunFinished):
        return event
    counts = journal.lifecycle.counts()
    if (event.completed, event.failed, event.withdrawn) != (counts["completed"], counts["failed"], counts["withdrawn"]):
        raise IllegalEvent("RunFinished speaks of trials that are lost")
    return attrs.evolve(event, head=journal.head if event.head else "")  # type: ignore[misc]  # a fact is an attrs class


def _session_of(event: Event, lifecycle: Lifecycle) -> int:
    """Tell how many sessions must have begun before this event."""
    match event:
        case SessionStarted(n=n):
            return n - 1
        case RunStarted() | JournalRecovered() | Extension():
            return 0
        case _:
            return lifecycle.sessions + (lifecycle.stage != "session")


def _look_over(source: Path, files: Files) -> tuple[_Intact, bytes]:
    """Make sure that there is something to salvage; tell the run's first fact and its identity."""
    if verify(source, files=files).holds:
        raise JournalError(f"{source} is not damaged; {command('resume', source)} goes on with it, and `cp -r` copies it")
    scan = Scan(source, files)
    collections.deque(scan, maxlen=0)
    for run in [scan.cursor.run] if scan.cursor.seq else _names_of_run(scan):
        for record in _intact(source, files, run):
            if isinstance(record.event, RunStarted):
                return record, run
    raise JournalError(
        f"{source} cannot be salvaged into a run: the record that says what it is a run of did not survive. "
        f"{command('log', source, ' --json')} prints the records before the damage, and the rest stands in its files as it was"
    )


def _names_of_run(scan: Scan) -> Iterator[bytes]:
    """Guess the run's identity from every line that names it, the first file's own first line being damaged."""
    for number in scan.numbers:
        with scan.files.read(segments.file(scan.path, number)) as stream:
            yield from dict.fromkeys(re.findall(rb'"run":"([0-9a-f]{32})"', stream.read()))


def _intact(source: Path, files: Files, run: bytes) -> Iterator[_Intact]:
    """Go through every record that still verifies, in order."""
    scan = Scan(source, files)
    for record in scan:
        with contextlib.suppress(BlobDamaged):
            yield _Intact(record.seq, record.at, record.t, blobs.loaded(record.event, files))
    scan.cursor.run = run
    for survivor in intact_after(scan):
        with contextlib.suppress(BlobDamaged, ValueError, KeyError, TypeError):  # Intact, and yet no record of ours.
            members = orjson.loads(survivor.line)
            members.update(blobs.referred(members.get("blobs", {}), members["type"], source))
            yield _Intact(survivor.seq, members["at"], members["t"], blobs.loaded(decode(members), files))


def _as_line(record: _Intact) -> bytes:
    """Write a record down as it stood, without the hash that no longer leads anywhere."""
    return encode(record.event, record.seq, record.at, record.t) + b"}\n"
