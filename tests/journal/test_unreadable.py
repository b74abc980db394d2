"""Files that the system cannot read: the error names them, and all other records are salvaged."""

import errno
import io
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from evaljournal.journal import read, salvage, verify, writing
from evaljournal.journal.errors import BlobUnreadable, JournalDamaged, NotSalvageable
from evaljournal.journal.events import JournalSalvaged
from evaljournal.journal.format import blobs
from tests.journal.samples import (
    UNSYNCED_DISK,
    UnsyncedDisk,
    fake_clock,
    inline,
    lines_of,
    segment,
    session,
    started,
    trial,
    write,
)

BLOCK = 4096


class BadBlocks(io.RawIOBase):
    """A file of which some bytes cannot be read."""

    def __init__(self, data: bytes, bad: range) -> None:
        super().__init__()
        self._data, self._bad, self._position = data, bad, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        assert whence == 0
        self._position = offset
        return offset

    def readinto(self, buffer: Any) -> int:
        if self._position in self._bad:
            raise OSError(errno.EIO, "Input/output error")
        end = self._bad.start if self._position < self._bad.start else len(self._data)
        part = self._data[self._position : min(end, self._position + len(buffer))]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)


class FailingDisk(UnsyncedDisk):
    """A disk that cannot read a part of one file, or cannot open it."""

    def __init__(self, name: str, bad: range | None = None, code: int = errno.EIO) -> None:
        self._name, self._bad, self._code = name, bad, code

    def read(self, path: str, parents: int = 0) -> BinaryIO:
        if not path.endswith(self._name):
            return super().read(path, parents)
        if self._bad is None:
            raise OSError(self._code, "Input/output error", path)
        with super().read(path, parents) as stream:
            return io.BufferedReader(BadBlocks(stream.read(), self._bad), 1 << 16)


async def write_trials(path: Path, trials: int, *, output: str = "Lima", roll_at: int = 6_000) -> None:
    """Write a run with some trials."""
    events = [started(), session(), *(event for number in range(trials) for event in trial(f"t{number}", f"{output}{number}"))]
    await write(path, events, files=UNSYNCED_DISK, roll_at=roll_at)


def blob_of(path: Path) -> Path:
    return next(path.glob("blobs/*/*.json"))


async def salvage_run(path: Path, files: UnsyncedDisk) -> tuple[Path, Any]:
    target = path.with_name("salvaged")
    return target, await salvage(path, target, files=files, in_thread=inline)


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_segment_that_cannot_be_opened(path: Path, number: int) -> None:
    """`verify` and `read` name the segment; the records of all others are salvaged."""
    await write_trials(path, 30)
    name = segment(path, number).name
    files = FailingDisk(name)
    problem = verify(path, files=files).problem

    assert isinstance(problem, JournalDamaged)
    assert (name, True) == (problem.file, "cannot be read" in problem.check)
    with pytest.raises(JournalDamaged, match=name):
        list(read(path, files=files))
    target, result = await salvage_run(path, files)
    lost = len(segment(path, number).read_bytes().splitlines())
    assert verify(target).ok
    assert lost == result.lost or number == 3  # How many the last file had is unknown.
    assert ((name,), True) == (result.unreadable_files, result.kept > 30)


async def test_without_a_readable_file_nothing_is_salvaged(path: Path) -> None:
    """If no file can be read, the error names them."""
    await write_trials(path, 3, roll_at=1 << 20)
    name = segment(path).name
    with pytest.raises(NotSalvageable) as raised:
        await salvage_run(path, FailingDisk(name))

    assert ((name,), "make_readable") == (raised.value.unreadable_files, raised.value.hint)
    assert name in str(raised.value)


async def test_a_block_that_cannot_be_read(path: Path) -> None:
    """Only the records in the unreadable block are lost."""
    await write_trials(path, 60, roll_at=1 << 20)
    data = segment(path).read_bytes()
    files = FailingDisk(segment(path).name, range(2 * BLOCK, 3 * BLOCK))
    target, result = await salvage_run(path, files)
    bad = range(2 * BLOCK, 3 * BLOCK)
    ends = [end for end, byte in enumerate(data) if byte == 10]
    affected = sum(end >= bad.start and start <= bad.stop for start, end in zip([0, *ends], ends, strict=False))

    assert verify(target).ok
    assert 1 <= result.lost <= affected
    assert isinstance(verify(path, files=files).problem, JournalDamaged)


async def test_a_blob_that_cannot_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` and `read` name the blob; all other records are salvaged."""
    monkeypatch.setattr(blobs, "LIMIT", 300)
    await write_trials(path, 3, output="x" * 400)
    blob = blob_of(path)
    files = FailingDisk(blob.name)
    problem = verify(path, files=files).problem

    assert isinstance(problem, BlobUnreadable)
    assert f"blobs/{blob.parent.name}/{blob.name}" == problem.file
    with pytest.raises(BlobUnreadable, match=blob.name):
        list(read(path, files=files))
    target, result = await salvage_run(path, files)
    assert verify(target).ok
    assert (1, 2) == (result.lost, result.excluded)  # The output is lost; its score and its completion depend on it.
    assert isinstance([record.event for record in read(target)][-2], JournalSalvaged)


async def test_a_process_without_free_files_finds_no_damage(path: Path) -> None:
    """Running out of open files is an error of the process, not of the journal."""
    await write_trials(path, 3)

    with pytest.raises(OSError, match="Input/output"):
        verify(path, files=FailingDisk(segment(path).name, code=errno.EMFILE))


async def test_an_unreadable_blob_is_not_set_aside(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer changes nothing if it cannot read the blob of an unconfirmed record: the blob may be intact."""
    monkeypatch.setattr(blobs, "LIMIT", 300)
    await write_trials(path, 1, output="x" * 400)
    lines = lines_of(path)
    index = next(number for number, line in enumerate(lines) if b'"blobs"' in line)
    segment(path).chmod(0o600)
    segment(path).write_bytes(b"".join(lines[: index + 1]))
    blob = blob_of(path)

    with pytest.raises(BlobUnreadable):
        async with writing(path, new=False, clock=fake_clock(), in_thread=inline, files=FailingDisk(blob.name)):
            pass
    assert index + 1 == len(lines_of(path))
    assert not (path / "torn").exists()
