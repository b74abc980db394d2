"""The files that a writer leaves: permissions, segments, and the same bytes for the same events."""

import hashlib
import os
import stat
from pathlib import Path

import pytest

from evaljournal.journal import Record, read, verify, writing
from evaljournal.journal.disk import segments
from evaljournal.journal.disk.files import Files
from evaljournal.journal.events import Noted, SegmentOpened, SegmentSealed
from tests.journal.samples import RUN, complete_run, fake_clock, inline, lines_of, segment, started, write


class RecordingDisk(Files):
    """A disk that records the files that were opened."""

    def __init__(self) -> None:
        self.opened: dict[str, int] = {}
        """Name → file descriptor."""

    def open(self, path: str, flags: int, parents: int = 0) -> int:
        """Open a file and record it."""
        fd = self.opened[os.path.basename(path)] = super().open(path, flags, parents)
        return fd


def mode(path: Path) -> int:
    """Return the permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


async def test_files_are_private(tmp_path: Path) -> None:
    """Only the owner can read a run, and sealed segments are read-only."""
    run = tmp_path / "runs" / "run"
    async with writing(run, new=True, clock=fake_clock(), in_thread=inline, roll_at=1500) as journal:
        for event in [*complete_run()[:-1], Noted(name="long", value="v" * (300 << 10))]:
            await journal.wait_durable(journal.append(event).seq)
        numbers = range(1, len(list(run.glob("journal-*.jsonl"))) + 1)

        assert len(numbers) > 1
        assert [0o400] * (len(numbers) - 1) + [0o600] == [mode(segment(run, number)) for number in numbers]

    assert {0o400} == {mode(segment(run, number)) for number in numbers}
    assert {0o600} == {mode(file) for file in [run / "LOCK", *run.glob("blobs/*/*")]}
    assert {0o700} == {mode(directory) for directory in [run, run.parent, run / "blobs", *run.glob("blobs/*")]}


async def test_children_inherit_nothing(tmp_path: Path) -> None:
    """A program that is started while the journal is open does not inherit its file descriptors."""
    disk = RecordingDisk()
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=inline, files=disk) as journal:
        await journal.wait_durable(journal.append(started()).seq)

        assert {"LOCK", "journal-000001.jsonl"} <= disk.opened.keys()
        assert [] == [name for name in ("LOCK", "journal-000001.jsonl") if os.get_inheritable(disk.opened[name])]


async def test_files_roll(tmp_path: Path) -> None:
    """A segment that is long enough is sealed and followed by another; seal and header describe what precedes them."""
    await write(tmp_path / "run", complete_run(4), roll_at=1000)
    files = sorted((tmp_path / "run").glob("journal-*.jsonl"))
    records = list(read(tmp_path / "run"))

    assert len(files) > 2
    assert [f"journal-{number:06}.jsonl" for number in range(1, len(files) + 1)] == [file.name for file in files]
    for number, file in enumerate(files, start=1):
        data, segment_records = file.read_bytes(), [record for record in records if record.segment == number]
        content_before_seal = data[: segment_records[-1].offset]
        previous = files[number - 2].read_bytes() if number > 1 else b""

        assert segment_records[0].event == SegmentOpened(
            format="evaljournal",
            version=segments.VERSION,
            run=RUN,
            segment=number,
            previous_seq=segment_records[0].seq - 1,
            previous_h=records[segment_records[0].seq - 2].h if previous else "",
            previous_bytes=len(previous),
            previous_sha256=hashlib.sha256(previous).hexdigest() if previous else "",
        )
        assert segment_records[-1].event == SegmentSealed(
            run=RUN,
            segment=number,
            records=len(segment_records) - 1,
            bytes=len(content_before_seal),
            sha256=hashlib.sha256(content_before_seal).hexdigest(),
        )
        assert number == len(files) or len(content_before_seal) >= 1000

    assert complete_run(4) == [
        record.event for record in records if not isinstance(record.event, SegmentOpened | SegmentSealed)
    ]


@pytest.mark.parametrize("confirm", [True, False])
@pytest.mark.parametrize("roll_at", [1, 500, 1 << 20])
async def test_files_roll_at_any_length(tmp_path: Path, roll_at: int, *, confirm: bool) -> None:
    """However short the files are, and however fast the events come, the journal verifies."""
    await write(tmp_path / "run", complete_run(), roll_at=roll_at, confirm=confirm)
    result = verify(tmp_path / "run")

    assert (True, len(lines_of(tmp_path / "run"))) == (result.ok, result.records)
    assert result.segments == len(list((tmp_path / "run").glob("journal-*.jsonl")))


async def test_threads_write_the_same_records(tmp_path: Path) -> None:
    """With real threads the events on disk are the same; only the watermarks may differ."""
    events = complete_run(20)
    async with writing(tmp_path / "run", new=True, run=RUN, clock=fake_clock(), roll_at=2000) as journal:
        for number, event in enumerate(events):
            record = journal.append(event)
            if number % 7 == 0:
                await journal.wait_durable(record.seq)

    assert events == [r.event for r in read(tmp_path / "run") if not isinstance(r.event, SegmentOpened | SegmentSealed)]
    assert verify(tmp_path / "run").ok


async def test_times_are_kept_to_the_microsecond(tmp_path: Path) -> None:
    """A record's `t` has at most six decimals, in the file and in the returned record."""

    def clock() -> tuple[str, float]:
        return "2026-11-15T00:00:00.000000Z", 1 / 3

    records: list[Record] = await write(tmp_path / "run", [started()], clock=clock)

    assert [0.333333] == [record.t for record in records]
    assert {0.333333} == {record.t for record in read(tmp_path / "run")}
