"""Recovery: how a writer continues after a crash.

The bytes after the last valid record are either a torn tail (a crash interrupted the write; nothing there was confirmed) or
damage (confirmed records are missing or changed). The highest durable seq, which every record contains, decides between the
two. A torn tail is set aside; damage is an error, and nothing is changed.
"""

import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import attrs

from evaljournal.journal.disk import segments
from evaljournal.journal.disk.files import Files, create, make_directory
from evaljournal.journal.errors import BlobDamaged, BlobUnreadable, Hint, JournalDamaged, JournalError
from evaljournal.journal.events import JournalRecovered, RunStarted
from evaljournal.journal.format import chain
from evaljournal.journal.format.blobs import PARENTS, blobs_of, content, location
from evaljournal.journal.format.codec import RECORD_LIMIT
from evaljournal.journal.readers.scan import Cursor, LostRecord, Scan

_TAIL: Final = re.compile(rb"%b([0-9a-f]{%d})%b" % (re.escape(chain.OPENING), chain.HASH_LENGTH, re.escape(chain.CLOSING)))
_LOST_LF: Final = re.compile(rb'(?<="\})[^\n]?(?=\{"seq":[0-9])')
"""Where a LF between two records may have been removed or replaced."""
_START: Final = re.compile(rb'\{"seq":([0-9]{1,18}),"at":"')
_D: Final = re.compile(rb',"d":([0-9]{1,18})$')
_SEGMENT_OPENED: Final = re.compile(rb'"type":"segment_opened"[^{}]*"previous_h":"([0-9a-f]{32})"')
_HEADER_LENGTH: Final = 600
"""Bytes at the start of a line that are searched for `segment_opened`."""
_D_LENGTH: Final = 32
"""Bytes at the end of a body that are searched for `d`."""
_MAX_CANDIDATES: Final = 8
"""Lines considered for one seq; there is more than one only if the file was manipulated."""
_MAX_STARTS: Final = 8
"""Starts of a record considered in one line; there is more than one only if a LF was lost."""
_MAX_FRAGMENTS: Final = 500_000
"""Records considered in one file, more than fit in a segment; the file may contain anything."""
_MIN_LENGTH: Final = len('","t":0,"type":"","d":0') + chain.TAIL
_CANDIDATE: Final = re.compile(rb"%b[^\n]{%d}" % (_START.pattern, _MIN_LENGTH))
"""Start of a record in a line that is long enough for one; the search skips other lines at no cost."""


@attrs.frozen
class Survivor:
    """A record after the first bad byte that provably belongs to this run."""

    seq: int
    d: int
    h: bytes
    line: bytes
    """Without LF."""


@attrs.define
class _Fragment:
    """Bytes that look like a record."""

    seq: int
    body: bytes
    stored_h: bytes | None
    """The hash at its end."""
    neighbor: bytes | None
    """The hash at the end of the previous line in the file."""


def survivors(cursor: Cursor, data: bytes) -> list[Survivor]:
    """Return the records in the bytes after a cursor whose hash follows from that of the previous record, stored or recomputed.

    The previous record is looked up both by position and by number, so that moved lines are recognized. The number of hashes
    to compute grows only linearly with the data.
    """
    run = cursor.run
    fragments = sorted(_fragments(data), key=lambda fragment: fragment.seq)
    stored_hashes: dict[int, set[bytes]] = {cursor.seq: {cursor.h}}
    for fragment in fragments:
        hashes = stored_hashes.setdefault(fragment.seq, set())
        if fragment.stored_h is not None and len(hashes) < _MAX_CANDIDATES:
            hashes.add(fragment.stored_h)

    repaired_hashes: dict[int, set[bytes]] = {}
    """Seq → hashes that damaged lines should have had; the damage may be in the hash itself."""
    intact_records: list[Survivor] = []
    for fragment in fragments:
        previous_hashes = set(stored_hashes.get(fragment.seq - 1, ()))
        if fragment.neighbor:
            previous_hashes.add(fragment.neighbor)
        if header := _SEGMENT_OPENED.search(fragment.body, 0, _HEADER_LENGTH):
            previous_hashes.add(header[1])

        computed_hashes = _links(run, previous_hashes, fragment.body)
        if fragment.stored_h is not None and fragment.stored_h not in computed_hashes:
            computed_hashes |= _links(run, repaired_hashes.get(fragment.seq - 1, ()), fragment.body)

        if fragment.stored_h is not None and fragment.stored_h in computed_hashes:
            d = _D.search(fragment.body, max(0, len(fragment.body) - _D_LENGTH))
            line = chain.add_hash(fragment.body, fragment.stored_h)[:-1]
            intact_records.append(Survivor(seq=fragment.seq, d=int(d[1]) if d else 0, h=fragment.stored_h, line=line))
        elif len(repaired_hashes.setdefault(fragment.seq, set())) < _MAX_CANDIDATES:
            repaired_hashes[fragment.seq] |= _links(run, previous_hashes, fragment.body)
    return intact_records


def _links(run: bytes, previous_hashes: Iterable[bytes], body: bytes) -> set[bytes]:
    return {chain.link(run, h, body).encode() for h in previous_hashes}


def _fragments(data: bytes) -> list[_Fragment]:
    """Return the parts that look like records. Only lines with the start of a record are examined."""
    fragments: list[_Fragment] = []
    end = 0
    while len(fragments) < _MAX_FRAGMENTS and (start := _CANDIDATE.search(data, end)):
        begin = data.rfind(b"\n", end, start.start()) + 1 or end
        end = data.find(b"\n", start.end())
        end = len(data) if end < 0 else end
        fragments += _fragments_of_line(data, begin, end)
    return fragments


def _fragments_of_line(data: bytes, begin: int, end: int) -> Iterator[_Fragment]:
    neighbor = _hash_before(data, _without_cr(data, begin - 1))
    cuts = [match.span() for match in _LOST_LF.finditer(data, begin, end) if _hash_before(data, match.start())]
    starts, ends = [begin, *(start for _, start in cuts)], [*(end for end, _ in cuts), _without_cr(data, end)]
    for part_start, part_end in zip(starts, ends, strict=True):
        stored_h = _hash_before(data, part_end)
        for start in itertools.islice(_START.finditer(data, part_start, part_end), _MAX_STARTS):
            if _MIN_LENGTH <= part_end - start.end() <= RECORD_LIMIT:
                yield _Fragment(int(start[1]), data[start.start() : part_end - chain.TAIL], stored_h, neighbor)
        neighbor = stored_h


def _without_cr(data: bytes, end: int) -> int:
    """Return where a line ends, without the CR of a converted line end."""
    return end - data.endswith(b"\r", max(0, end - 1), max(0, end))


def _hash_before(data: bytes, end: int) -> bytes | None:
    tail = _TAIL.fullmatch(data, max(0, end - chain.TAIL), max(0, end))
    return tail[1] if tail else None


def confirmed_seq(scan: Scan) -> int:
    """Return the highest seq that a trustworthy record reports as durable, after a complete scan.

    A `segment_sealed` names its run, so it is trusted without the record before it. Thus even the loss of the line before
    the seal is detected.
    """
    cursor, data = scan.cursor, scan.remainder()
    watermarks = [cursor.watermark, *(survivor.d for survivor in survivors(cursor, data))]

    begin = rb'\{"seq":([0-9]{1,18}),"at":"[^"\n]*","t":[0-9.]+,"type":"segment_sealed",'
    seal = begin + rb'"run":"%b",[^\n]{0,300},"d":([0-9]{1,18}),"h":'
    watermarks += [int(match[2]) for match in re.finditer(seal % re.escape(cursor.run), data) if int(match[2]) < int(match[1])]
    return max(watermarks)


def find_lost_record(scan: Scan, *, make_durable: bool = False) -> LostRecord | None:
    """Return the first unconfirmed record whose blob did not reach the disk before a power failure, after a complete scan.

    With `make_durable`, the blobs of the unconfirmed records before it are copied: see `recover`.
    """
    path, files, seqs = scan.path, scan.files, scan.cursor.seqs_with_blobs
    if not seqs or seqs[-1] <= scan.cursor.watermark:
        return None

    watermark = confirmed_seq(scan)
    unconfirmed_seqs = {seq for seq in seqs if seq > watermark}
    for record in Scan(path, files) if unconfirmed_seqs else ():
        if record.seq in unconfirmed_seqs:
            for blob in blobs_of(record.event).values():
                try:
                    data = content(blob, files)
                except BlobUnreadable:
                    if make_durable:
                        raise
                    return None  # Its content may be intact.
                except BlobDamaged as exc:
                    return LostRecord(record.seq, str(exc))
                if make_durable:
                    directory, name = os.path.split(os.path.join(str(path), location(blob.sha256)))
                    make_directory(files, directory)
                    create(files, directory, name, data, PARENTS)
    return None


def scan_before_loss(path: Path, files: Files, seq: int) -> Scan | None:
    """Return a complete scan up to the first lost record, if that is record `seq` or an earlier one."""
    lost_record = find_lost_record(Scan(path, files).read_all())
    return None if lost_record is None or lost_record.seq > seq else Scan(path, files, loss=lost_record).read_all()


def find_damage(scan: Scan) -> JournalDamaged | None:
    """Return the damage at which a scan stopped; None if no confirmed record is missing."""
    stop, cursor = scan.stop, scan.cursor
    if stop is None:
        return None

    is_in_last_segment = stop.segment == scan.numbers[-1]  # A crash can leave no other file incomplete.
    if is_in_last_segment and not (stop.is_in_header or stop.is_unreadable) and confirmed_seq(scan) <= cursor.seq:
        return None

    return JournalDamaged(
        path=scan.path,
        file=segments.name(stop.segment),
        byte=stop.byte,
        seq=stop.seq,
        check=stop.check,
        intact_records=len(survivors(cursor, scan.remainder())),
    )


def last_intact_record(path: Path, files: Files) -> tuple[int, Hint | None]:
    """Return the last record before the damage, and a hint: resume or salvage the run, or None if neither is possible."""
    seq, is_defined = 0, False
    try:
        scan = Scan(path, files)
        for record in scan:
            seq, is_defined = record.seq, is_defined or isinstance(record.event, RunStarted)
        return seq, None if not is_defined else "resume" if find_damage(scan) is None else "salvage"
    except (OSError, JournalError):
        return seq, None


def intact_records_after(scan: Scan) -> list[Survivor]:
    """Return the intact records after the first bad byte, from all files, ordered by seq."""
    stop, cursor = scan.stop, scan.cursor
    if stop is None:
        return []
    intact_records: dict[int, Survivor] = {}
    for number in scan.numbers:
        if number >= stop.segment:
            data = scan.read_from(number, stop.byte if number == stop.segment else 0)
            intact_records |= {survivor.seq: survivor for survivor in survivors(cursor, data) if survivor.seq > cursor.seq}
    return [intact_records[seq] for seq in sorted(intact_records)]


def recover(scan: Scan) -> tuple[bytes, JournalRecovered | None]:
    """Set a torn tail aside and make the rest durable; return the content of the last segment, and the event to record.

    The caller holds the lock and has checked for damage.

    The valid part is always copied into a new file, even if nothing is removed: its writer may have died before a sync, and
    after a failed sync the system may treat pages as clean that never reached the disk. Only a copy can be made durable. A
    crash in here leaves either the old file or the new one.
    """
    path, files, seq = scan.path, scan.files, scan.cursor.seq
    name, tail = segments.name(scan.numbers[-1]), scan.remainder()
    recovery = None
    if tail:  # Its file is named after its content, so that an interrupted recovery can be repeated.
        directory, torn_name = os.path.join(str(path), "torn"), f"{name}.after-{seq}.{hashlib.sha256(tail).hexdigest()[:16]}"
        make_directory(files, directory)
        create(files, directory, torn_name, tail, parents=1)
        recovery = JournalRecovered(last_seq=seq, bytes=len(tail), file=f"torn/{torn_name}")

    with files.read(os.path.join(str(path), name)) as stream:
        valid_bytes = stream.read(scan.cursor.offset)
    create(files, str(path), name, valid_bytes)
    if scan.cursor.is_sealed:
        files.make_read_only(os.path.join(str(path), name))
    return valid_bytes, recovery
