"""Salvage: copy the intact records of a damaged journal into a new one.

The records keep their order and times. The new journal is a run of its own, with its own hash chain. A record that cannot be
appended, because records that it depends on are lost, is written to `excluded.jsonl` beside it. The source is only read.
"""

import contextlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import orjson

from evaljournal.journal import events
from evaljournal.journal.copies.staging import check_target, copied_run
from evaljournal.journal.disk.files import DISK, Files, create
from evaljournal.journal.errors import BlobDamaged, BlobUnreadable, IllegalEvent, JournalError, NotSalvageable
from evaljournal.journal.fact import evolve_fact
from evaljournal.journal.format import chain
from evaljournal.journal.format.batches import BatchLines
from evaljournal.journal.format.blobs import unloaded_blobs, with_loaded_blobs
from evaljournal.journal.format.codec import decode, encode
from evaljournal.journal.format.lifecycle import Lifecycle
from evaljournal.journal.ownership import own_hashes
from evaljournal.journal.readers.recovery import intact_records_after
from evaljournal.journal.readers.scan import Scan, record_fields
from evaljournal.journal.readers.verification import verify
from evaljournal.journal.threads import InThread, run_in_thread
from evaljournal.journal.writers.writer import Journal

_Start = events.RunStarted | events.ReviewStarted
EXCLUDED_FILE: Final = "excluded.jsonl"
_RUN_ID: Final = re.compile(rb'"run":"([0-9a-f]{32})"')
_MAX_HEADER: Final = 1_000
"""Bytes of the first line that are searched for a changed bit."""
_MAX_SESSIONS: Final = 10_000
"""Sessions of a run up to which lost ones are added; a forged record may have any number."""


@attrs.frozen
class SalvageResult:
    path: Path
    kept: int
    lost: int
    """Number of missing records, counted by the gaps in `seq`."""
    excluded: int
    """Number of intact records that could not be appended; they are in `excluded.jsonl`."""
    problem: JournalError | None = attrs.field(default=None, eq=False)
    """The first problem of the source."""
    unreadable_files: tuple[str, ...] = ()
    """Files of the source that the system could not read, or only in part; a later salvage may find more in them."""


async def salvage(
    source: Path | str, target: Path | str, *, files: Files = DISK, in_thread: InThread = run_in_thread
) -> SalvageResult:
    """Copy the intact records of a damaged journal into a new directory."""
    source, target = Path(source), Path(target)
    check_target(source, target, files)
    record, run, problem, replacement = _first_record(source, files)

    seq = intact_count = kept_count = 0
    rejects: list[bytes] = []
    unreadable_files: set[str] = set()
    batches: dict[int, int] = {}
    own_starts = own_hashes(run.decode())

    async with copied_run(target, record, files=files, in_thread=in_thread) as copy:
        journal, lifecycle = copy.journal, copy.journal.lifecycle
        if replacement is not None:
            copy.append(replacement, is_own=False)
        for record in _intact_records(source, files, run, unreadable_files):
            copy.source = record
            intact_count += 1
            seq = record.seq
            if isinstance(record.event, events.FileEvent | events.JournalSalvaged):
                continue  # They describe the files of the source.

            for number in _lost_sessions(record.event, lifecycle):
                # A record of this session is intact, so it did start; its process is unknown.
                copy.append(events.SessionStarted(session=number, pid=0, host="", boot_id=""), is_own=False)

            try:
                event = _adapt_batch(record.event, batches, lifecycle.batch_lines)
                for lost_event in _lost_batch_events(event, lifecycle):
                    journal.append(lost_event)
                copy.append(_adapt(event, journal), is_own=record.h in own_starts)
                kept_count += 1
                if isinstance(record.event, events.BatchPrepared):
                    batches[record.event.batch] = lifecycle.batch_lines.last_batch
            except IllegalEvent:
                rejects.append(encode(record.event, record.seq, record.at, record.t) + b"}\n")
            await journal.wait_room()

        counts = {"kept": kept_count, "lost": seq - intact_count, "excluded": len(rejects)}
        journal.append(events.JournalSalvaged(run=run.decode(), **counts))
        if rejects:
            await in_thread(lambda: create(files, str(journal.path), EXCLUDED_FILE, b"".join(rejects)))
    return SalvageResult(path=target, **counts, problem=problem, unreadable_files=tuple(sorted(unreadable_files)))


def _adapt(event: events.Event, journal: Journal) -> events.Event:
    """Return an event for the new journal: `BatchPrepared` without trials that it cannot contain, `RunFinished` with its head.

    Raises `IllegalEvent` if trials that `RunFinished` counts are lost.
    """
    lifecycle = journal.lifecycle
    if isinstance(event, events.BatchPrepared):  # The other lines keep their numbers, with which their results are found.
        scorer, place_of = event.scorer, lifecycle.batch_lines.place_of
        can_wait = (lifecycle.can_be_called(trial, scorer) and place_of(trial, scorer) is None for trial in event.trials)
        return evolve_fact(event, trials=[trial if can else "" for trial, can in zip(event.trials, can_wait, strict=True)])
    if not isinstance(event, events.RunFinished):
        return event
    counts = lifecycle.counts()
    if (event.completed, event.failed, event.withdrawn) != (counts["completed"], counts["failed"], counts["withdrawn"]):
        raise IllegalEvent("RunFinished", "it counts trials that are lost")
    return evolve_fact(event, head=journal.head if event.head else "")


def _adapt_batch(event: events.Event, batches: dict[int, int], lines: BatchLines) -> events.Event:
    """Return an event with the number that its batch has in the new journal; a result of a lost batch is kept without it."""
    number: int = getattr(event, "batch", 0)
    if not number:
        return event
    if isinstance(event, events.BatchPrepared):
        return evolve_fact(event, batch=lines.last_batch + 1)
    if number not in batches and isinstance(event, events.AttemptStarted | events.ScorerCallStarted):
        return evolve_fact(event, batch=0, line=0)
    return evolve_fact(event, batch=batches.get(number, 0))


def _lost_batch_events(event: events.Event, lifecycle: Lifecycle) -> Iterator[events.Event]:
    """Yield the events of batches that are lost and must have happened before this one: a submission, or ends."""
    lines = lifecycle.batch_lines
    match event:
        case events.BatchPrepared():
            places = {lines.line_of(trial, event.scorer) for trial in event.trials}
        case events.AttemptStarted() | events.ScorerCallStarted():
            scorer = event.scorer if isinstance(event, events.ScorerCallStarted) else ""
            places = {lines.line_of(event.trial, scorer)}
            batch = lines.open.get(event.batch)
            if batch is not None and not batch.is_submitted:
                yield events.BatchSubmitted(batch=event.batch, id="")
        case events.BatchCollected():
            places = set()
            yield from _lost_attempt_ends(event.batch, lifecycle)
        case _:
            places = set()

    for number in sorted({place[0] for place in places if place is not None} - {getattr(event, "batch", 0)}):
        yield from _lost_attempt_ends(number, lifecycle)
        batch = lines.open[number]
        state, missing = "ended" if batch.is_submitted else "not_sent", len(batch.trials) - batch.used_lines
        yield events.BatchCollected(batch=number, state=state, results=batch.used_lines, missing=missing)


def _lost_attempt_ends(batch: int, lifecycle: Lifecycle) -> Iterator[events.AttemptInterrupted]:
    """Yield ends of the attempts that use a line of a batch which has ended: their own are lost."""
    lines = lifecycle.batch_lines
    for trial in lines.trials_in_flight(batch) if batch in lines.open and not lines.open[batch].scorer else ():
        yield events.AttemptInterrupted(trial=trial, attempt=lifecycle.attempts_of(trial), reason="process_died")


def _lost_sessions(event: events.Event, lifecycle: Lifecycle) -> range:
    """Return the sessions whose start is lost and that must have started before this event; none if a number is implausible."""
    sessions = range(lifecycle.sessions + 1, _session_of(event, lifecycle) + 1)
    return sessions if len(sessions) <= 1 or sessions.stop <= _MAX_SESSIONS else range(0)


def _session_of(event: events.Event, lifecycle: Lifecycle) -> int:
    """Return the number of sessions that must have started before this event."""
    if isinstance(event, events.SessionStarted):
        return event.session - 1
    if isinstance(event, events.RunStarted | events.JournalRecovered | events.Extension | events.ReviewEvent):
        return 0
    return lifecycle.sessions + (lifecycle.stage != "in_session")


def _first_record(source: Path, files: Files) -> tuple[events.Record, bytes, JournalError, _Start | None]:
    """Return the first record, the run's id, the problem and, if it is lost, what replaces the `RunStarted` of the run.

    Raises if the journal cannot or need not be salvaged.
    """
    problem = verify(source, files=files).problem
    if problem is None:
        raise JournalError(f"{source} is not damaged; there is nothing to salvage", path=source)

    scan = Scan(source, files).read_all()
    for run in [scan.cursor.run] if scan.cursor.seq else _possible_runs(scan):
        first_record: events.Record | None = None
        scorers: dict[str, str] = {}
        for record in _intact_records(source, files, run, scan.unreadable_files):
            event = record.event
            if isinstance(event, events.RunStarted | events.ReviewStarted):
                return record, run, problem, None
            if isinstance(event, events.TrialScored):
                scorers[event.scorer] = event.version
            if first_record is None and not isinstance(event, events.FileEvent | events.JournalRecovered):
                first_record = record

        if first_record is not None:
            is_review = isinstance(first_record.event, events.ReviewEvent)
            return first_record, run, problem, _review_start(source.parent, files) if is_review else _replacement(scorers)
    raise NotSalvageable(problem, sorted(scan.unreadable_files))


def _review_start(path: Path, files: Files) -> events.ReviewStarted:
    """Return the start of a review whose own is lost, of the run at a path."""
    scan = Scan(path, files)
    next(iter(scan), None)
    return events.ReviewStarted(run=scan.cursor.run.decode(), head=scan.cursor.h.decode(), evaluation="")


def _replacement(scorers: dict[str, str]) -> events.RunStarted:
    """Return the start of a run whose own is lost, as far as it is known; the next session records the evaluation again."""
    return events.RunStarted(
        evaluation="unknown",
        task="",
        task_fingerprint="",
        scorers=scorers,
        dataset="unknown",
        dataset_fingerprint="",
        settings={},
        settings_fingerprint="",
        durability="sync",
        environment={},
    )


def _possible_runs(scan: Scan) -> Iterator[bytes]:
    """Yield the run ids in a journal whose first line is damaged; then that of the line if correcting one bit repairs it."""
    for number in scan.numbers:
        yield from dict.fromkeys(_RUN_ID.findall(scan.read_from(number, 0)))

    line = bytearray(scan.read_from(scan.numbers[0], 0).partition(b"\n")[0][:_MAX_HEADER])
    for byte, bit in itertools.product(range(len(line)), range(8)):
        line[byte] ^= 1 << bit
        run, parts = _RUN_ID.search(line), chain.split(bytes(line))
        if run and parts and chain.link(bytes(run[1]), chain.GENESIS, parts[0]).encode() == parts[1]:
            yield bytes(run[1])
        line[byte] ^= 1 << bit


def _intact_records(source: Path, files: Files, run: bytes, unreadable_files: set[str]) -> Iterator[events.Record]:
    """Yield the intact records; add the names of files that the system cannot read to `unreadable_files`."""
    scan = Scan(source, files)
    for record in scan:
        with _skip_damaged_blobs(unreadable_files):
            yield with_loaded_blobs(record, files)

    scan.cursor.run = run
    survivors = intact_records_after(scan)
    unreadable_files |= scan.unreadable_files
    for survivor in survivors:
        with (
            _skip_damaged_blobs(unreadable_files),
            contextlib.suppress(ValueError, KeyError, TypeError, AttributeError),  # Correct hash, but not a record of ours.
        ):
            fields = orjson.loads(survivor.line)
            fields.update(unloaded_blobs(fields.get("blobs", {}), fields["type"], source))
            seq, at, t, d = record_fields(fields)
            h = survivor.h.decode()
            yield with_loaded_blobs(events.Record(seq, at, t, decode(fields), d, h, segment=0, offset=0), files)


@contextlib.contextmanager
def _skip_damaged_blobs(unreadable_files: set[str]) -> Iterator[None]:
    """Skip a record whose blob is damaged; add the name of one that cannot be read."""
    try:
        yield
    except BlobUnreadable as exc:
        unreadable_files.add(exc.file)
    except BlobDamaged:
        pass
