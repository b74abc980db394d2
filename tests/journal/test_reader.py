"""JournalReader: reading all records, fetching one, following a growing journal, and errors."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, BinaryIO, get_origin, get_type_hints

import orjson
import pytest

from journal import Record, follow, read, writing
from journal.errors import JournalDamaged, JournalError, NotAJournal, UnknownEvent, UnknownFormat
from journal.events import Extension, JournalRecovered, Noted, SegmentOpened, SessionStarted
from journal.files import Files
from journal.reader import Finder, fetch
from tests.journal.samples import (
    RUN,
    complete_run,
    content,
    cut_tail,
    enqueued,
    fake_clock,
    flip,
    forge,
    inline,
    lines_of,
    opened,
    overwrite,
    segment,
    session,
    started,
    trial,
    write,
    write_sync,
)


def unsealed(path: Path, count: int, tail: bytes = b"") -> list[bytes]:
    """Leave a run as a killed writer does: this many lines, no seal, an incomplete line; return all lines."""
    write_sync(path, complete_run())
    lines = lines_of(path)
    overwrite(segment(path), b"".join(lines[:count]) + tail)
    return lines


def test_missing_run_is_an_error(tmp_path: Path) -> None:
    """The error names the path."""
    with pytest.raises(NotAJournal, match="/nothing does not exist; check the path"):
        list(read(tmp_path / "nothing"))


def test_file_is_not_a_run(tmp_path: Path) -> None:
    """A file is not a run, even if it is a segment."""
    write_sync(tmp_path / "run", complete_run())

    with pytest.raises(NotAJournal, match=r"journal-000001.jsonl is a file; a run is a directory"):
        list(read(segment(tmp_path / "run")))


def test_empty_directory_is_not_a_run(tmp_path: Path) -> None:
    """A directory without a segment is not a run."""
    (tmp_path / "journal-1.jsonl").touch()
    (tmp_path / "journal-000001.jsonl.bak").touch()
    (tmp_path / ".journal-000001.jsonl.new").touch()

    with pytest.raises(NotAJournal, match=r"does not contain journal-000001.jsonl"):
        list(read(str(tmp_path)))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"hello\n", "the first line of the file is not JSON"),
        (b"\x00" * 512, "the first line of the file is not JSON"),
        (b"\xff\xfe\n", "the first line of the file is not JSON"),
        (b"5\n", "the file does not start with segment_opened"),
        (b"[]\n", "the file does not start with segment_opened"),
        (b"{}\n", "the file does not start with segment_opened"),
        (b'{"question":"Where?","answer":"Lima"}\n', "the file does not start with segment_opened"),
    ],
)
def test_file_that_is_not_a_segment_is_rejected(tmp_path: Path, data: bytes, reason: str) -> None:
    """The error for a file with the name of a segment names the problem of its first line."""
    segment(tmp_path).write_bytes(data)

    with pytest.raises(JournalError, match=reason):
        list(read(tmp_path))
    assert data == segment(tmp_path).read_bytes()


def test_other_format_is_named(tmp_path: Path) -> None:
    """A journal of another program is rejected."""
    forge(tmp_path, [opened(format="otherjournal")])

    with pytest.raises(UnknownFormat) as raised:
        list(read(tmp_path))
    assert (f"{tmp_path}/journal-000001.jsonl", "otherjournal") == (raised.value.file, raised.value.format)


@pytest.mark.parametrize("version", ["2.0", "17.3", "0.9", "", "one", "-1.0", "²", "1" * 5000])
def test_other_major_version_is_named(tmp_path: Path, version: str) -> None:
    """A newer format is rejected with the version that is needed."""
    forge(tmp_path, [opened(version=version)])

    with pytest.raises(UnknownFormat, match="reads only version 1; upgrade evaljournal") as raised:
        list(read(tmp_path))
    assert version == raised.value.version


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.99"])
def test_other_minor_version_is_read(tmp_path: Path, version: str) -> None:
    """A later minor version is read."""
    forge(tmp_path, [opened(version=version), {"type": "noted", "name": "a", "value": 1, "mood": "sunny"}])

    assert Noted(name="a", value=1) == list(read(tmp_path))[1].event


def test_unknown_event_is_an_error(tmp_path: Path) -> None:
    """An unknown event type ends the iteration with an error, after the records before it."""
    forge(tmp_path, [opened(), started(), {"type": "trial_teleported"}, session()], d=3)
    records: list[Record] = []

    with pytest.raises(UnknownEvent, match=r"record 3 has the unknown event type 'trial_teleported'"):
        records.extend(read(tmp_path))
    assert 2 == len(records)


def test_extension_is_kept(tmp_path: Path) -> None:
    """An extension is read with all of its members."""
    event = Extension(type="x-weather", data={"sky": ["blue", None], "trial": "a"})
    write_sync(tmp_path / "run", [started(), event, session(), event])

    assert [event, event] == [record.event for record in read(tmp_path / "run") if isinstance(record.event, Extension)]


def test_reader_has_the_run_id(tmp_path: Path) -> None:
    """A reader has the id of the run."""
    write_sync(tmp_path / "run", complete_run())
    reader = read(tmp_path / "run")
    next(iter(reader))

    assert RUN == reader.run


def test_closed_journal_has_no_torn_tail(tmp_path: Path) -> None:
    """A closed journal has no bytes after its last record."""
    write_sync(tmp_path / "run", complete_run())
    reader = read(tmp_path / "run")

    assert len(lines_of(tmp_path / "run")) == len(list(reader))
    assert reader.unfinished is None


def test_reader_can_be_iterated_again(tmp_path: Path) -> None:
    """Iterating again gives the same records."""
    write_sync(tmp_path / "run", complete_run(), roll_at=1000)
    reader = read(tmp_path / "run")

    assert list(reader) == list(reader)


@pytest.mark.parametrize("length", [1, 20, 100, -2, -1])
def test_torn_last_line_is_ignored(tmp_path: Path, length: int) -> None:
    """A torn last line is ignored, and the reader has its position."""
    lines = unsealed(tmp_path / "run", 6)
    with segment(tmp_path / "run").open("ab") as file:
        file.write(lines[6][:length])
    reader = read(tmp_path / "run")
    before = content(tmp_path / "run")

    assert 6 == len(list(reader))
    assert reader.unfinished is not None
    assert (1, 7, sum(map(len, lines[:6])), "the line is incomplete") == (
        reader.unfinished.segment,
        reader.unfinished.seq,
        reader.unfinished.byte,
        reader.unfinished.check,
    )
    assert before == content(tmp_path / "run")


async def test_journal_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    """A journal can be read at any time, complete up to the last write."""
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=inline, roll_at=1000) as journal:
        for event in complete_run():
            record = journal.append(event)
            await journal.wait_durable(record.seq)
            reader = read(tmp_path / "run")

            assert record == list(reader)[-1]
            assert reader.unfinished is None


def test_damage_has_all_details(tmp_path: Path) -> None:
    """The error has the file, byte, record, failed check, number of intact records after it, and a hint."""
    write_sync(tmp_path / "a run", complete_run())
    records = list(read(tmp_path / "a run"))
    flip(segment(tmp_path / "a run"), records[4].offset + 60)
    read_before: list[Record] = []

    with pytest.raises(JournalDamaged) as damaged:
        read_before.extend(read(tmp_path / "a run"))
    assert records[:4] == read_before
    assert ("journal-000001.jsonl", records[4].offset, 5, len(records) - 5) == (
        damaged.value.file,
        damaged.value.byte,
        damaged.value.seq,
        damaged.value.intact,
    )
    assert str(damaged.value) == (
        f"{tmp_path}/a run is damaged at record 5 (journal-000001.jsonl, byte {records[4].offset:,}): "
        f"its hash does not follow from the previous record; {len(records) - 5} intact records after it in this file; "
        "the intact records can be salvaged into a new run"
    )


def test_every_record_can_be_fetched(tmp_path: Path) -> None:
    """A record can be fetched by its position, including the first and last of each segment."""
    write_sync(tmp_path / "run", complete_run(4), roll_at=1000)
    records = list(read(tmp_path / "run"))

    assert records == [fetch(tmp_path / "run", record.segment, record.offset) for record in records]
    assert records[-1].segment > 2


@pytest.mark.parametrize("byte", [2, 30, 80, -3, -20])
def test_fetch_rejects_a_changed_line(tmp_path: Path, byte: int) -> None:
    """A changed line is not returned as the record."""
    write_sync(tmp_path / "run", complete_run())
    records = list(read(tmp_path / "run"))
    position, end = records[4].offset, records[5].offset
    flip(segment(tmp_path / "run"), position + byte if byte > 0 else end + byte)

    with pytest.raises(JournalDamaged, match=rf"damaged at journal-000001.jsonl, byte {position:,}: "):
        fetch(tmp_path / "run", 1, position)


def test_fetch_rejects_another_line(tmp_path: Path) -> None:
    """A valid line at the position of another is rejected."""
    write_sync(tmp_path / "run", complete_run())
    records, lines = list(read(tmp_path / "run")), lines_of(tmp_path / "run")
    lines[4], lines[5] = lines[5], lines[4]
    overwrite(segment(tmp_path / "run"), b"".join(lines))

    with pytest.raises(JournalDamaged):
        fetch(tmp_path / "run", 1, records[4].offset)


@pytest.mark.parametrize(("number", "offset"), [(1, 7), (1, 1 << 20), (9, 0)])
def test_fetch_from_a_wrong_offset_is_an_error(tmp_path: Path, number: int, offset: int) -> None:
    """An offset at which no record starts is a journal error."""
    write_sync(tmp_path / "run", complete_run())

    with pytest.raises(JournalError):
        fetch(tmp_path / "run", number, offset)


def test_fetch_rejects_a_forged_line(tmp_path: Path) -> None:
    """A correctly hashed line that is not a record is rejected."""
    forge(tmp_path, [opened(), {"type": "noted"}])
    position = len(lines_of(tmp_path)[0])

    with pytest.raises(JournalError):
        fetch(tmp_path, 1, position)


def test_lines_are_the_bytes_on_disk(tmp_path: Path) -> None:
    """The line of a record is what is on disk, including LF, in any order of access."""
    write_sync(tmp_path / "run", complete_run(4), roll_at=1000)
    records = list(read(tmp_path / "run"))
    with Finder(tmp_path / "run") as lines:
        forward = [lines.line_of(record) for record in records]
        backward = [lines.line_of(record) for record in reversed(records)]

    assert lines_of(tmp_path / "run") == forward == backward[::-1]


def test_lines_of_a_file_that_was_replaced(tmp_path: Path) -> None:
    """After recovery has replaced the last segment, the lines are those of the new file."""
    unsealed(tmp_path / "run", 6, b'{"seq":7,"at":"garbage"}\n' * 20)
    records = list(read(tmp_path / "run"))
    with Finder(tmp_path / "run") as lines:
        lines.line_of(records[-1])
        write_sync(tmp_path / "run", [session(2)], new=False)
        records = list(read(tmp_path / "run"))

        assert lines_of(tmp_path / "run")[5:] == [lines.line_of(record) for record in records[5:]]


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


async def test_follow_starts_at_the_beginning(tmp_path: Path) -> None:
    """Following a finished run gives all of its records."""
    await write(tmp_path / "run", complete_run(4), roll_at=1000)
    expected = list(read(tmp_path / "run"))
    async with follower(tmp_path / "run") as records:
        received = await take(records, len(expected))

    assert expected == received


async def test_follow_can_be_closed() -> None:
    """`follow` returns an async generator with `aclose`, which trio requires."""
    assert AsyncGenerator is get_origin(get_type_hints(follow)["return"])


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


async def test_follow_raises_at_an_unknown_event(tmp_path: Path) -> None:
    """An unknown event type ends the iteration, after the records before it."""
    forge(tmp_path, [opened(), started(), {"type": "trial_teleported"}])
    async with follower(tmp_path) as records:
        assert [started()] == [record.event for record in (await take(records, 2))[1:]]
        with pytest.raises(UnknownEvent, match="trial_teleported"):
            await anext(records)


def test_lines_are_plain_json(tmp_path: Path) -> None:
    """Any JSON parser can read the lines."""
    value: dict[str, Any] = {"Größe": [1, 2.5, None, "\u2028\n"]}
    write_sync(tmp_path / "run", [started(), session(), enqueued("a", value)])

    assert [value] == [line["input"] for line in map(orjson.loads, lines_of(tmp_path / "run")) if "input" in line]
