"""Following a journal: new records, sessions, recovery and damage."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import BinaryIO

import pytest

from evaljournal.journal import Record, follow, read, writing
from evaljournal.journal.disk.files import Files
from evaljournal.journal.errors import JournalDamaged, JournalError, NotAJournal
from evaljournal.journal.events import JournalRecovered, SegmentOpened, SessionStarted
from tests.journal.samples import (
    complete_run,
    cut_tail,
    fake_clock,
    flip,
    inline,
    lines_of,
    overwrite,
    segment,
    session,
    started,
    trial,
    write,
)


class LimitedDisk(Files):
    """A disk that allows a limited number of reads."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self, path: str, parents: int = 0) -> BinaryIO:
        """Count the reads."""
        self.reads += 1
        assert self.reads < 5_000, "the expected record was never read"
        return super().read(path, parents)


@contextlib.asynccontextmanager
async def follower(path: Path, files: Files | None = None) -> AsyncIterator[AsyncIterator[Record]]:
    """Follow a run; close the generator at the end."""
    records = follow(path, files=files or LimitedDisk())
    assert isinstance(records, AsyncGenerator)
    try:
        yield records
    finally:
        await records.aclose()


async def take(records: AsyncIterator[Record], number: int) -> list[Record]:
    """Return the next records of a follower."""
    return [await anext(records) for _ in range(number)]


async def test_follow_returns_new_records(tmp_path: Path) -> None:
    """A follower gets each record once it is written, across segments."""
    received: list[Record] = []
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=inline, roll_at=1000) as journal:
        journal.append(started())
        await journal.wait_durable(2)
        async with follower(tmp_path / "run") as records:
            for event in complete_run(3)[1:]:
                record = journal.append(event)
                await journal.wait_durable(record.seq)
                received += await take(records, record.seq - len(received))

                assert record == received[-1]

    assert list(read(tmp_path / "run"))[:-1] == received
    assert received[-1].segment > 2


async def test_follow_continues_in_the_next_session(tmp_path: Path) -> None:
    """A follower continues when a session ends and another starts."""
    await write(tmp_path / "run", complete_run())
    async with follower(tmp_path / "run") as records:
        first = await take(records, len(lines_of(tmp_path / "run")))
        await write(tmp_path / "run", [session(2), *trial("b")], new=False)
        second = await take(records, 3)

    assert list(read(tmp_path / "run"))[: len(first) + 3] == first + second
    assert [SegmentOpened, SessionStarted] == [type(record.event) for record in second[:2]]


class ChangingDisk(LimitedDisk):
    """A disk that changes between reads."""

    def __init__(self, path: Path, changes: dict[int, bytes]) -> None:
        super().__init__()
        self._path = path
        self._changes = changes
        """Number of reads so far → new content of the first segment."""

    def read(self, path: str, parents: int = 0) -> BinaryIO:
        """Change the segment if it is due, then read."""
        if self.reads in self._changes:
            overwrite(segment(self._path), self._changes[self.reads])
        return super().read(path, parents)


@pytest.mark.parametrize("length", [1, 50, -2, -1])
async def test_follow_waits_for_a_complete_line(tmp_path: Path, length: int) -> None:
    """An incomplete line is not returned until it is complete."""
    await write(tmp_path / "run", complete_run())
    expected, lines = list(read(tmp_path / "run")), lines_of(tmp_path / "run")
    overwrite(segment(tmp_path / "run"), b"".join(lines[:5]) + lines[5][:length])
    disk = ChangingDisk(tmp_path / "run", {10: b"".join(lines[:6])})
    async with follower(tmp_path / "run", disk) as records:
        assert expected[:5] == await take(records, 5)
        assert expected[5] == await anext(records)

    assert disk.reads > 10


@pytest.mark.parametrize("tail", [b"", b'{"seq":6,"at":"2026', b"garbage\n", b"\x00" * 512, b"garbage\n" * 1000])
async def test_follow_survives_a_recovery(tmp_path: Path, tail: bytes) -> None:
    """A follower continues after recovery has replaced the segment."""
    await write(tmp_path / "run", complete_run())
    overwrite(segment(tmp_path / "run"), b"".join(lines_of(tmp_path / "run")[:6]) + tail)
    async with follower(tmp_path / "run") as records:
        received = await take(records, 6)
        await write(tmp_path / "run", [session(2)], new=False)
        received += await take(records, len(lines_of(tmp_path / "run")) - 6)

    assert list(read(tmp_path / "run")) == received
    assert bool(tail) == any(isinstance(record.event, JournalRecovered) for record in received)


async def test_follow_accepts_a_torn_tail(tmp_path: Path) -> None:
    """A torn tail is not damage however often it is read, even if it grows."""
    await write(tmp_path / "run", complete_run())
    expected, lines = list(read(tmp_path / "run")), lines_of(tmp_path / "run")
    intact = b"".join(lines[:6])
    overwrite(segment(tmp_path / "run"), intact + b"garbage\n")
    changes = {10: intact + b"garbage\n" * 2, 20: intact + b"garbage\n" * 3, 50: b"".join(lines)}
    async with follower(tmp_path / "run", ChangingDisk(tmp_path / "run", changes)) as records:
        received = await take(records, len(lines))

    assert expected == received


@pytest.mark.parametrize("roll_at", [1000, 1 << 20])
async def test_follow_raises_at_damage(tmp_path: Path, roll_at: int) -> None:
    """A follower returns the records before the damage, then raises."""
    await write(tmp_path / "run", complete_run(), roll_at=roll_at)
    intact = list(read(tmp_path / "run"))
    flip(segment(tmp_path / "run", intact[8].segment), intact[8].offset + 50)
    async with follower(tmp_path / "run") as records:
        assert intact[:8] == await take(records, 8)
        with pytest.raises(JournalDamaged, match="damaged at record 9"):
            await anext(records)


async def test_follow_raises_at_damage_that_comes_later(tmp_path: Path) -> None:
    """Lines that are added later are checked as well."""
    await write(tmp_path / "run", complete_run())
    lines = lines_of(tmp_path / "run")
    overwrite(segment(tmp_path / "run"), b"".join(lines[:5]))
    async with follower(tmp_path / "run") as records:
        await take(records, 5)
        changed = lines[5].replace(b'"Lima"', b'"Rome"')
        overwrite(segment(tmp_path / "run"), b"".join([*lines[:5], changed, *lines[6:]]))

        with pytest.raises(JournalDamaged, match="damaged at record 6"):
            await anext(records)


async def test_follow_of_a_removed_run_is_an_error(tmp_path: Path) -> None:
    """If the run is removed, the follower raises a journal error."""
    await write(tmp_path / "run", complete_run())
    cut_tail(segment(tmp_path / "run"), 1)
    async with follower(tmp_path / "run") as records:
        await take(records, len(lines_of(tmp_path / "run")))
        segment(tmp_path / "run").unlink()

        with pytest.raises(JournalError):
            await anext(records)


async def test_follow_of_a_missing_run_is_an_error(tmp_path: Path) -> None:
    """Following a path without a run is an error."""
    with pytest.raises(NotAJournal, match="does not exist"):
        await anext(follow(str(tmp_path / "nothing")))
