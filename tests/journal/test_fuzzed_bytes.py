"""Property: if bytes of a journal change, readers return only what was written, and recovery loses no byte.

A seeded slice runs in every test run; `pytest -m exhaustive` tries 20,000 inputs.
"""

import contextlib
import functools
import random
from pathlib import Path

import pytest

from evaljournal.journal import JournalError, Record, read, verify
from evaljournal.journal.disk import segments
from evaljournal.journal.writers.open import find_end
from tests.journal.disk import SimulatedDisk
from tests.journal.samples import complete_run, write_sync

PATH = Path("/runs/changed")
FILE = f"{PATH}/{segments.name(1)}"
BYTES = (b"\n", b"\0", b"{", b'"}', b'{"seq":', b',"h":"', b"\xff", b"\x1b[2J")
"""Bytes that matter in a line, or are not text."""


@functools.cache
def original() -> tuple[bytes, list[Record]]:
    """Return a journal: its bytes and its records."""
    disk = SimulatedDisk()
    write_sync(PATH, complete_run(5), files=disk)
    return disk.read(FILE).read(), list(read(PATH, files=disk))


def change(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes after some changes: flipped, removed, inserted, repeated or moved."""
    for _ in range(rng.randint(1, 5)):
        start, length = rng.randrange(len(data) + 1), rng.choice((1, 8, 64, 512))
        lines = data.splitlines(keepends=True)
        match rng.randrange(6):
            case 0:
                data = (
                    data[:start] + bytes(byte ^ 1 << rng.randrange(8) for byte in data[start : start + 1]) + data[start + 1 :]
                )
            case 1:
                data = data[:start] + data[start + length :]
            case 2:
                data = data[:start] + rng.choice((*BYTES, rng.randbytes(length), bytes(length))) + data[start:]
            case 3:
                data = data[:start] + data[start : start + length] * 2 + data[start + length :]
            case 4:
                rng.shuffle(lines)
                data = b"".join(lines)
            case _:
                data = data[:start]
    return data


def check(data: bytes) -> None:
    """Read, verify and recover a journal with these bytes."""
    records, disk = original()[1], SimulatedDisk()
    disk.add_file(FILE, data)
    records_read: list[Record] = []
    with contextlib.suppress(JournalError):
        records_read.extend(read(PATH, files=disk))
    result = verify(PATH, files=disk)
    assert records[: len(records_read)] == records_read
    assert result.records <= len(records_read)
    assert data == disk.read(FILE).read()
    try:
        end = find_end(PATH, disk)
    except JournalError:
        assert not result.ok
        assert {FILE: data} == {name: inode.visible for name, inode in disk.files()}
        return
    remaining = disk.read(FILE).read()
    torn = disk.read(f"{PATH}/{end.recovery.file}").read() if end.recovery else b""

    assert data == remaining + torn
    assert end.recovery is None or (end.cursor.seq, len(torn)) == (end.recovery.last_seq, end.recovery.bytes)
    assert records[: end.cursor.seq] == list(read(PATH, files=disk))
    assert verify(PATH, files=disk).ok


@pytest.mark.parametrize("number", [100, pytest.param(20_000, marks=pytest.mark.exhaustive)])
def test_changed_bytes(number: int) -> None:
    """A reader returns a prefix of the records; recovery keeps every byte, or changes nothing."""
    data, _ = original()
    for seed in range(number):
        try:
            check(change(data, random.Random(seed)))
        except Exception as exc:
            exc.add_note(f"seed {seed}")
            raise
