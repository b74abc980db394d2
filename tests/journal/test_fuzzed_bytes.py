"""Property: whatever happens to the bytes of a journal, readers return only what was written, and recovery loses no byte.

A seeded slice runs in every test run; `pytest -m exhaustive` tries 50,000 inputs.
"""

import contextlib
import functools
import random
from pathlib import Path

import pytest

from journal import JournalError, Record, read, segments, verify
from journal.open import find_end
from tests.journal.disk import SimulatedDisk
from tests.journal.samples import whole_run, written

PATH = Path("/runs/it")
FILE = f"{PATH}/{segments.name(1)}"
BYTES = (b"\n", b"\0", b"{", b'"}', b'{"seq":', b',"h":"', b"\xff", b"\x1b[2J")
"""Bytes that matter in a line, or are not text."""


@functools.cache
def original() -> tuple[bytes, list[Record]]:
    """Return a journal: its bytes and its records."""
    disk = SimulatedDisk()
    written(PATH, whole_run(5), files=disk)
    return disk.read(FILE).read(), list(read(PATH, files=disk))


def changed(data: bytes, chance: random.Random) -> bytes:
    """Return the bytes after some changes: flipped, removed, inserted, repeated or moved."""
    for _ in range(chance.randint(1, 5)):
        at, length = chance.randrange(len(data) + 1), chance.choice((1, 8, 64, 512))
        lines = data.splitlines(keepends=True)
        match chance.randrange(6):
            case 0:
                data = data[:at] + bytes(byte ^ 1 << chance.randrange(8) for byte in data[at : at + 1]) + data[at + 1 :]
            case 1:
                data = data[:at] + data[at + length :]
            case 2:
                data = data[:at] + chance.choice((*BYTES, chance.randbytes(length), bytes(length))) + data[at:]
            case 3:
                data = data[:at] + data[at : at + length] * 2 + data[at + length :]
            case 4:
                chance.shuffle(lines)
                data = b"".join(lines)
            case _:
                data = data[:at]
    return data


def check(data: bytes) -> None:
    """Read, verify and recover a journal with these bytes."""
    records, disk = original()[1], SimulatedDisk()
    disk.put(FILE, data)
    found: list[Record] = []
    with contextlib.suppress(JournalError):
        found.extend(read(PATH, files=disk))
    result = verify(PATH, files=disk)
    assert records[: len(found)] == found
    assert result.records <= len(found)
    assert data == disk.read(FILE).read()
    try:
        end = find_end(PATH, disk)
    except JournalError:
        assert not result.ok
        assert [FILE] == [name for name, _ in disk.files()]
        return
    kept = disk.read(FILE).read()
    torn = disk.read(f"{PATH}/{end.torn.file}").read() if end.torn else b""

    assert data == kept + torn
    assert records[: end.seq] == list(read(PATH, files=disk))
    assert verify(PATH, files=disk).ok


@pytest.mark.parametrize("number", [100, pytest.param(50_000, marks=pytest.mark.exhaustive)])
def test_changed_bytes(number: int) -> None:
    """A reader returns a prefix of the records; recovery keeps every byte, or changes nothing."""
    data, _ = original()
    for seed in range(number):
        try:
            check(changed(data, random.Random(seed)))
        except Exception as exc:
            exc.add_note(f"seed {seed}")
            raise
