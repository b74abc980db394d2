"""Readers of a journal: all records, one record, and errors."""

from pathlib import Path

import pytest

from evaljournal.journal import Record, read, writing
from evaljournal.journal.errors import JournalDamaged, JournalError, NotAJournal, UnknownFormat
from evaljournal.journal.events import Extension, Noted
from evaljournal.journal.readers.reader import RecordReader, fetch
from tests.journal.samples import (
    complete_run,
    content,
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
    write_sync,
)


def unsealed(path: Path, count: int, tail: bytes = b"") -> list[bytes]:
    """Leave a run as a killed writer does: this many lines, no seal, an incomplete line; return all lines."""
    write_sync(path, complete_run())
    lines = lines_of(path)
    overwrite(segment(path), b"".join(lines[:count]) + tail)
    return lines


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nothing", "/nothing does not exist; check the path"),
        ("run/journal-000001.jsonl", "journal-000001.jsonl is a file; a run is a directory"),
        (".", "does not contain journal-000001.jsonl"),
    ],
)
def test_what_is_not_a_run(tmp_path: Path, path: str, message: str) -> None:
    """Nothing, a file, even a segment, and a directory without a segment are not runs."""
    write_sync(tmp_path / "run", complete_run())
    for name in ("journal-1.jsonl", "journal-000001.jsonl.bak", ".journal-000001.jsonl.new"):
        (tmp_path / name).touch()

    with pytest.raises(NotAJournal, match=message):
        list(read(str(tmp_path / path)))


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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": "otherjournal"}, "/journal-000001.jsonl is not a journal of evaljournal: its format is 'otherjournal'"),
        ({"version": "1.0"}, "the last commit of evaljournal that reads it is 80ae7681"),
        *(
            ({"version": version}, "reads only version 2; upgrade evaljournal")
            for version in ("3.0", "17.3", "0.9", "", "two", "-2.0", "²", "2" * 5000)
        ),
    ],
)
def test_other_formats_are_named(tmp_path: Path, fields: dict[str, str], message: str) -> None:
    """A journal of another program, of another major version or of an invalid one is rejected; the error says what reads it."""
    forge(tmp_path, [opened(**fields)])

    with pytest.raises(UnknownFormat, match=message) as raised:
        list(read(tmp_path))
    assert fields.items() <= {"format": raised.value.format, "version": raised.value.version}.items()


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.99"])
def test_other_minor_version_is_read(tmp_path: Path, version: str) -> None:
    """A later minor version is read."""
    forge(tmp_path, [opened(version=version), {"type": "noted", "name": "a", "value": 1, "mood": "sunny"}])

    assert Noted(name="a", value=1) == list(read(tmp_path))[1].event


def test_unknown_event_is_kept(tmp_path: Path) -> None:
    """An event type of a later minor version is read, and not interpreted."""
    forge(tmp_path, [opened(), started(), {"type": "labels_added", "labels": ["a"]}, session()], d=3)

    assert [started(), Extension(type="labels_added", data={"labels": ["a"]}), session()] == [
        record.event for record in list(read(tmp_path))[1:]
    ]


@pytest.mark.parametrize(
    "fields",
    [{"type": "trial_failed", "trial": "a", "attempts": 1}, {"type": "run_stopped"}, {"type": "trial_withdrawn", "trial": "a"}],
)
def test_lists_of_reasons_are_open(tmp_path: Path, fields: dict[str, object]) -> None:
    """A reason of a later minor version is read as text; a value that is not text is not."""
    forge(tmp_path, [opened(), started(), {**fields, "reason": "moved"}])
    assert "moved" == getattr(list(read(tmp_path))[-1].event, "reason", "")

    forge(tmp_path / "other", [opened(), started(), {**fields, "reason": 5}])
    with pytest.raises(JournalError):
        list(read(tmp_path / "other"))


@pytest.mark.parametrize("length", [1, 20, 100, -2, -1])
def test_torn_last_line_is_ignored(tmp_path: Path, length: int) -> None:
    """A torn last line is ignored, and the reader has its position."""
    lines = unsealed(tmp_path / "run", 6)
    with segment(tmp_path / "run").open("ab") as file:
        file.write(lines[6][:length])
    reader = read(tmp_path / "run")
    before = content(tmp_path / "run")

    assert 6 == len(list(reader))
    assert reader.stop is not None
    assert (1, 7, sum(map(len, lines[:6])), "the line is incomplete") == (
        reader.stop.segment,
        reader.stop.seq,
        reader.stop.byte,
        reader.stop.check,
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
            assert reader.stop is None


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
        damaged.value.intact_records,
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


@pytest.mark.parametrize("byte", [2, 30, 80, -3, -20, None])
def test_fetch_rejects_another_line(tmp_path: Path, byte: int | None) -> None:
    """A changed line, or a valid line at the position of another, is not returned as the record."""
    write_sync(tmp_path / "run", complete_run())
    records, lines = list(read(tmp_path / "run")), lines_of(tmp_path / "run")
    position, end = records[4].offset, records[5].offset
    if byte is None:
        overwrite(segment(tmp_path / "run"), b"".join([*lines[:4], lines[5], lines[4], *lines[6:]]))
    else:
        flip(segment(tmp_path / "run"), position + byte if byte > 0 else end + byte)

    with pytest.raises(JournalDamaged, match=rf"damaged at journal-000001.jsonl, byte {position:,}: "):
        fetch(tmp_path / "run", 1, position)


@pytest.mark.parametrize(("number", "offset"), [(1, 7), (1, 1 << 20), (9, 0), (1, None)])
def test_fetch_from_a_wrong_offset_is_an_error(tmp_path: Path, number: int, offset: int | None) -> None:
    """An offset at which no record starts, or a missing segment, is a journal error; so is a correctly hashed other line."""
    forge(tmp_path, [opened(), {"type": "noted"}])

    with pytest.raises(JournalError):
        fetch(tmp_path, number, len(lines_of(tmp_path)[0]) if offset is None else offset)


def test_lines_are_the_bytes_on_disk(tmp_path: Path) -> None:
    """The line of a record is what is on disk, including LF, in any order of access."""
    write_sync(tmp_path / "run", complete_run(4), roll_at=1000)
    records = list(read(tmp_path / "run"))
    with RecordReader(tmp_path / "run") as lines:
        forward = [lines.line_of(record) for record in records]
        backward = [lines.line_of(record) for record in reversed(records)]

    assert lines_of(tmp_path / "run") == forward == backward[::-1]


def test_lines_of_a_file_that_was_replaced(tmp_path: Path) -> None:
    """After recovery has replaced the last segment, the lines are those of the new file."""
    unsealed(tmp_path / "run", 6, b'{"seq":7,"at":"garbage"}\n' * 20)
    records = list(read(tmp_path / "run"))
    with RecordReader(tmp_path / "run") as lines:
        lines.line_of(records[-1])
        write_sync(tmp_path / "run", [session(2)], new=False)
        records = list(read(tmp_path / "run"))

        assert lines_of(tmp_path / "run")[5:] == [lines.line_of(record) for record in records[5:]]
