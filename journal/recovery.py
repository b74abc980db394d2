"""What a bad end means, and how the journal goes on before it.

After the last good record there may be a remainder. Either a crash cut short what nobody had been promised (a torn tail: set it
aside and go on), or something that had been confirmed is no longer what was written (damage: refuse, and touch nothing).
Every record carries the highest seq that was durable when it was built, and that decides between the two.
"""

import hashlib
import itertools
import os
import re
from pathlib import Path
from typing import Final

import attrs

from journal import chain, segments
from journal.errors import JournalDamaged
from journal.files import Files, create, make_directory
from journal.scan import Scan

_BOUNDARY: Final = re.compile(rb'\n|(?<=,"h":"[0-9a-f]{32}"\})[^\n](?=\{"seq":[0-9])')
"""Where a line ends: at a LF, or at the one byte between two records that should have been a LF."""
_START: Final = re.compile(rb'\{"seq":([0-9]{1,18}),"at":"')
_D: Final = re.compile(rb',"d":([0-9]{1,18})$')
_OPENED: Final = re.compile(rb'"type":"segment_opened"[^{}]*"previous_h":"([0-9a-f]{32})"')
_HEADER: Final = 600
"""How far into a line its `segment_opened` can reach."""
_MARK: Final = 32
"""How far before the end of a body its watermark can begin."""
_CANDIDATES: Final = 8
"""How many lines of one number are considered; there is one, unless somebody made more."""
_STARTS: Final = 8
"""How many beginnings of a record are looked for in one line; more than one means that two were run together."""


@attrs.frozen
class Survivor:
    """A record behind the first bad byte that is provably one of this run's."""

    seq: int
    d: int
    h: bytes
    line: bytes
    """Without its LF."""


@attrs.define
class _Fragment:
    """Something that looks like a record, and what might be the hash before it."""

    seq: int
    body: bytes
    stored: bytes | None
    neighbour: bytes | None
    """The hash at the end of the line that stands before it."""


def survivors(run: bytes, data: bytes, *, seq: int, h: bytes) -> list[Survivor]:
    """Find the records in a remainder that still verify, each against the stored hash of the record before it.

    `seq` and `h` are those of the last good record. The record before is looked for by its place and by its number, so
    that lines which were moved are recognised too. Nothing is tried that only guesses gave rise to, so the effort stays in
    proportion to the data, whatever that is.
    """
    fragments = sorted(_fragments(data), key=lambda fragment: fragment.seq)
    stored: dict[int, set[bytes]] = {seq: {h}}
    for fragment in fragments:
        known = stored.setdefault(fragment.seq, set())
        if fragment.stored is not None and len(known) < _CANDIDATES:
            known.add(fragment.stored)
    should: dict[int, set[bytes]] = {}
    """The hashes that damaged lines should have had: their own may be what was hit."""
    found: list[Survivor] = []
    for fragment in fragments:
        before = set(stored.get(fragment.seq - 1, ()))
        if fragment.neighbour:
            before.add(fragment.neighbour)
        if opened := _OPENED.search(fragment.body, 0, _HEADER):
            before.add(opened[1])
        computed = {chain.link(run, link, fragment.body) for link in before}
        if fragment.stored is not None and fragment.stored not in computed:
            computed |= {chain.link(run, link, fragment.body) for link in should.get(fragment.seq - 1, ())}
        if fragment.stored is not None and fragment.stored in computed:
            mark = _D.search(fragment.body, max(0, len(fragment.body) - _MARK))
            line = chain.close(fragment.body, fragment.stored)[:-1]
            found.append(Survivor(seq=fragment.seq, d=int(mark[1]) if mark else 0, h=fragment.stored, line=line))
        elif len(should.setdefault(fragment.seq, set())) < _CANDIDATES:
            should[fragment.seq] |= {chain.link(run, link, fragment.body) for link in before}
    return found


def _fragments(data: bytes) -> list[_Fragment]:
    fragments: list[_Fragment] = []
    begin, neighbour = 0, None
    for boundary in [*_BOUNDARY.finditer(data), None]:
        end = boundary.start() if boundary else len(data)
        piece = data[begin:end]
        parts = chain.split(piece)
        stored = parts[1] if parts else None
        fragments += [
            _Fragment(int(start[1]), piece[start.start() : -chain.TAIL], stored, neighbour)
            for start in itertools.islice(_START.finditer(piece), _STARTS)
        ]
        neighbour = stored
        begin = boundary.end() if boundary else end
    return fragments


def watermark(run: bytes, data: bytes, *, seq: int, h: bytes) -> int:
    """Tell the highest seq that a trustworthy record in the remainder calls durable.

    A seal names its run, so it is believed without a neighbour: after a journal was closed, even the loss of the line
    before the seal is recognised.
    """
    marks = [survivor.d for survivor in survivors(run, data, seq=seq, h=h)]
    begin = rb'\{"seq":([0-9]{1,18}),"at":"[^"\n]*","t":[0-9.]+,"type":"segment_sealed",'
    seal = begin + rb'"run":"%b",[^\n]{0,300},"d":([0-9]{1,18}),"h":'
    marks += [int(match[2]) for match in re.finditer(seal % re.escape(run), data) if int(match[2]) < int(match[1])]
    return max(marks, default=0)


def damage(scan: Scan) -> JournalDamaged | None:
    """Judge how a scan ended: None if nothing that was confirmed is missing."""
    stop, cursor = scan.stop, scan.cursor
    if stop is None:
        return None
    rest = scan.remainder()
    if scan.is_in_last and not stop.in_header:
        confirmed = max(cursor.watermark, watermark(cursor.run, rest, seq=cursor.seq, h=cursor.h))
        if confirmed <= cursor.seq:
            return None
    return JournalDamaged(
        path=scan.path,
        file=segments.name(stop.segment),
        byte=stop.byte,
        seq=stop.seq,
        check=stop.check,
        intact=len(survivors(cursor.run, rest, seq=cursor.seq, h=cursor.h)),
    )


def intact_after(scan: Scan) -> list[Survivor]:
    """List every record behind the first bad byte that still verifies, in the order of their numbers, from all files."""
    stop, cursor = scan.stop, scan.cursor
    if stop is None:
        return []
    found: dict[int, Survivor] = {}
    for number in scan.numbers:
        if number >= stop.segment:
            with scan.files.read(segments.file(scan.path, number)) as stream:
                stream.seek(stop.byte if number == stop.segment else 0)
                here = survivors(cursor.run, stream.read(), seq=cursor.seq, h=cursor.h)
            found.update((survivor.seq, survivor) for survivor in here if survivor.seq > cursor.seq)
    return [found[seq] for seq in sorted(found)]


@attrs.frozen
class SetAside:
    """What recovery took out of the journal."""

    bytes: int
    file: str
    """Relative to the run's directory."""


def recover(scan: Scan) -> SetAside | None:
    """Let the last file go on after its last good record; what follows it is set aside, never deleted.

    The good part is written into a new file even if nothing is cut off, and even if it is sealed: whoever wrote it may have
    died before it was synced, and after a failed sync the system may believe pages to be clean that never reached the disk.
    The old file's bytes cannot be made durable any more; a copy's can. The caller holds the lock and has seen that there is
    no damage. A crash in here leaves either the old file or the new.
    """
    path, files = scan.path, scan.files
    last = scan.numbers[-1]
    torn = scan.remainder()
    aside = _set_aside(path, files, last, scan.cursor.seq, torn) if torn else None
    with files.read(segments.file(path, last)) as stream:
        good = stream.read(scan.cursor.offset)
    create(files, str(path), segments.name(last), good)
    if scan.cursor.sealed:
        files.make_read_only(segments.file(path, last))
    return aside


def _set_aside(path: Path, files: Files, number: int, seq: int, torn: bytes) -> SetAside:
    """Keep the bytes under a name that their content decides, so that a recovery that was cut off is simply done again."""
    directory = os.path.join(str(path), "torn")
    name = f"{segments.name(number)}.after-{seq}.{hashlib.sha256(torn).hexdigest()[:16]}"
    make_directory(files, directory)
    create(files, directory, name, torn)
    return SetAside(bytes=len(torn), file=f"torn/{name}")
