"""Large values: stored once in blobs beside the journal, and checked when they are read."""

import copy
import hashlib
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio
import trio.testing

from evaljournal.journal import Blob, Event, read, verify, writing
from evaljournal.journal.errors import BlobDamaged, JournalError
from evaljournal.journal.events import AttemptStarted, AttemptSucceeded, Noted, Record, TrialEnqueued
from evaljournal.journal.format.blobs import LIMIT, location
from evaljournal.journal.readers.reader import fetch
from evaljournal.journal.writers import blob_writer
from evaljournal.journal.writers.blob_writer import BlobWriter
from tests.journal.disk import SimulatedDisk
from tests.journal.samples import (
    UnsyncedDisk,
    enqueued,
    fake_clock,
    flip,
    forge,
    inline,
    lines_of,
    opened,
    overwrite,
    session,
    started,
    write,
    write_sync,
)
from tests.processes import TIMEOUT

PATH = Path("/runs/1")
LONG = "v" * LIMIT


def success(output: Any, usage: Any = None) -> list[Event]:
    """Return a success with this output."""
    return [
        started(),
        session(),
        enqueued("a"),
        AttemptStarted(trial="a", attempt=1, slot=0),
        AttemptSucceeded(trial="a", attempt=1, output=output, elapsed=0.5, usage=usage),
    ]


def outputs(path: Path, *, load_blobs: bool = True) -> list[Any]:
    """Return the outputs of a run."""
    events = (record.event for record in read(path, load_blobs=load_blobs))
    return [event.output for event in events if isinstance(event, AttemptSucceeded)]


def blobs(path: Path) -> list[Path]:
    """Return the blobs of a run."""
    return [file for file in sorted((path / "blobs").rglob("*")) if file.is_file()]


@pytest.mark.parametrize("value", [LONG, list(range(100_000)), {"a": {"b": [LONG, None, 1.5]}}, "Ω\n\x1b" * LIMIT])
def test_large_value_is_stored_in_a_blob(tmp_path: Path, value: Any) -> None:
    """A large value is stored in a file named by its hash and is read back unchanged."""
    write_sync(tmp_path / "run", success(value))
    text = orjson.dumps(value)
    name = hashlib.sha256(text).hexdigest()

    assert [tmp_path / "run" / "blobs" / name[:2] / f"{name}.json"] == blobs(tmp_path / "run")
    assert text == blobs(tmp_path / "run")[0].read_bytes()
    assert [value] == outputs(tmp_path / "run")
    assert {"output": {"sha256": name, "bytes": len(text)}} == orjson.loads(lines_of(tmp_path / "run")[5])["blobs"]
    assert verify(tmp_path / "run").ok


@pytest.mark.parametrize(("length", "count"), [(LIMIT - 2, 0), (LIMIT - 1, 1)])
def test_limit_is_exact(tmp_path: Path, length: int, count: int) -> None:
    """A value whose JSON has exactly the limit stays in the line; with one byte more it goes into a blob."""
    write_sync(tmp_path / "run", success("v" * length))

    assert count == len(blobs(tmp_path / "run"))
    assert ["v" * length] == outputs(tmp_path / "run")


def test_several_large_values_of_one_event(tmp_path: Path) -> None:
    """One event may have several large values; a value of half the limit stays in the line."""
    half = "h" * (LIMIT // 2)
    event = TrialEnqueued(trial="a", case="a", repeat=1, input=LONG, expected=[LONG], metadata=half, fingerprint="f")
    write_sync(tmp_path / "run", [started(), session(), event])

    assert event == list(read(tmp_path / "run"))[3].event
    assert 2 == len(blobs(tmp_path / "run"))


def test_equal_values_share_a_blob(tmp_path: Path) -> None:
    """Equal values are stored once, across sessions too."""
    write_sync(tmp_path / "run", [started(), session(), *(Noted(name=name, value=LONG) for name in "abc")])
    first = blobs(tmp_path / "run")[0].stat()
    write_sync(tmp_path / "run", [session(2), Noted(name="d", value=LONG)], new=False)

    assert [(first.st_ino, first.st_mtime_ns)] == [(f.stat().st_ino, f.stat().st_mtime_ns) for f in blobs(tmp_path / "run")]
    assert 4 == sum(isinstance(record.event, Noted) for record in read(tmp_path / "run"))
    assert 1 == verify(tmp_path / "run").blobs


def test_damaged_blob_is_rewritten(tmp_path: Path) -> None:
    """A file with the name of a blob but other content is replaced."""
    file = tmp_path / "run" / location(hashlib.sha256(orjson.dumps(LONG)).hexdigest())
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x" * len(orjson.dumps(LONG)))
    write_sync(tmp_path / "run", success(LONG))

    assert [LONG] == outputs(tmp_path / "run")


async def test_append_returns_the_value(tmp_path: Path) -> None:
    """`append` returns the record with the value; readers return it too, or its hash and size, to be loaded later."""
    record = (await write(tmp_path / "run", success(LONG)))[-1]
    unloaded = fetch(tmp_path / "run", record.segment, record.offset, load_blobs=False)
    (blob,) = outputs(tmp_path / "run", load_blobs=False)

    assert record == fetch(tmp_path / "run", record.segment, record.offset)
    assert isinstance(unloaded.event, AttemptSucceeded)
    assert Blob(sha256=blobs(tmp_path / "run")[0].stem, bytes=LIMIT + 2, path=tmp_path / "run") == blob == unloaded.event.output
    assert LONG == blob.load()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (Path.unlink, "is missing"),
        (lambda blob: overwrite(blob, blob.read_bytes()[:-1]), "was changed after it was written"),
        (lambda blob: overwrite(blob, blob.read_bytes() + b" "), "was changed after it was written"),
        (lambda blob: flip(blob, 1000), "was changed after it was written"),
    ],
    ids=["missing", "truncated", "extended", "changed"],
)
def test_damaged_blob_is_named(tmp_path: Path, change: Any, problem: str) -> None:
    """A missing, truncated, extended or changed blob is an error that names the file."""
    write_sync(tmp_path / "run", success(LONG))
    (blob,) = blobs(tmp_path / "run")
    change(blob)

    with pytest.raises(BlobDamaged, match=rf"blobs/{blob.parent.name}/{blob.name} {problem}"):
        outputs(tmp_path / "run")
    assert isinstance(verify(tmp_path / "run").problem, BlobDamaged)
    assert 1 == len(outputs(tmp_path / "run", load_blobs=False))


def test_blob_that_is_not_json_is_named(tmp_path: Path) -> None:
    """A blob with the right hash that is not JSON is an error of the blob."""
    name = hashlib.sha256(b"not JSON").hexdigest()
    note = {"type": "noted", "name": "a", "blobs": {"value": {"sha256": name, "bytes": 8}}}
    run = forge(tmp_path / "run", [opened(), started(), session(), note])
    (run / location(name)).parent.mkdir(parents=True)
    (run / location(name)).write_bytes(b"not JSON")

    with pytest.raises(BlobDamaged, match=name):
        list(read(run))


OUTSIDE = ("../../x", "/etc/passwd", "", "ab/../../../x", "A" * 64, "a" * 63, "a" * 64 + "\n", "../" * 21 + "x", None, 5)


@pytest.mark.parametrize(
    "blobs",
    [
        *([], "value", {"value": None}, {"value": {}}, {"value": {"sha256": "a" * 64}}, 5),
        *({field: {"sha256": "a" * 64, "bytes": 8}} for field in ("seq", "at", "t", "d", "h", "type", "name", "trial")),
        *({"value": {"sha256": sha256, "bytes": 8}} for sha256 in (*OUTSIDE, ["a" * 64])),
    ],
)
def test_invalid_references_are_rejected(tmp_path: Path, blobs: Any) -> None:
    """A line that names a file outside the run, which is not read, or whose own fields are in a blob, is rejected."""
    (tmp_path / "x.json").write_bytes(b'"secret"')
    (tmp_path / "x").write_bytes(b'"secret"')
    note = {"type": "noted", "name": "a", "value": 1, "blobs": blobs}
    run = forge(tmp_path / "run", [opened(), started(), session(), note])
    forge(run, [Noted(name="c", value=1)], d=4)
    records: list[Record] = []

    for load_blobs in (False, True):
        with pytest.raises(JournalError, match="not a record"):
            records.extend(read(run, load_blobs=load_blobs))
    assert (6, False) == (len(records), verify(run).ok)


class CountedDisk(SimulatedDisk):
    """A disk that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.on_call = lambda call: self.calls.update([call])


async def test_blobs_are_not_synced_with_durability_os() -> None:
    """With durability `os`, a blob is written and not synced; it is synced when the run is closed."""
    disk = CountedDisk()
    async with writing(PATH, new=True, clock=fake_clock(), files=disk, in_thread=inline, durability="os") as journal:
        await journal.wait_durable(journal.append(started()).seq)
        before = Counter(disk.calls)
        for event in success(LONG)[1:]:
            await journal.wait_durable(journal.append(event).seq)
        during = disk.calls - before

    assert (0, 0, 0) == (during["fsync"], during["fdatasync"], during["sync_directory"])
    assert [True] == [inode.visible == inode.synced for name, inode in disk.files() if "/blobs/" in name]
    assert verify(PATH, files=disk).ok


async def unsynced_blob(disk: SimulatedDisk) -> SimulatedDisk:
    """Return what the system shows of a run that was killed before the blob of its last record was synced."""
    async with writing(PATH, new=True, clock=fake_clock(), files=disk, in_thread=inline, durability="os") as journal:
        for event in success(LONG):
            record = journal.append(event)
        await journal.wait_durable(record.seq)
        return copy.deepcopy(disk).after_kill()


async def test_blob_lost_in_a_power_failure() -> None:
    """An unconfirmed record whose blob is lost is torn: readers stop before it, `verify` finds no damage, a writer recovers."""
    disk = await unsynced_blob(SimulatedDisk())
    name = next(name for name, _ in disk.files() if "/blobs/" in name)
    disk.add_file(name, b"\0" * (LIMIT + 2))
    reader = read(PATH, files=disk)

    assert [1, 2, 3, 4, 5] == [record.seq for record in reader]
    assert reader.stop is not None
    assert 6 == reader.stop.seq
    result = verify(PATH, files=disk)
    assert (True, 5) == (result.ok, result.records)
    assert result.unfinished_bytes > 0
    async with writing(PATH, new=False, clock=fake_clock(), files=disk, in_thread=inline) as journal:
        assert 5 == journal.initial_seq
        assert journal.recovery_record is not None
        journal.append(session(2))
    assert verify(PATH, files=disk).ok


async def test_recovery_makes_blobs_durable() -> None:
    """After a kill, the blob of an unconfirmed record is synced before its record is confirmed."""
    disk = await unsynced_blob(SimulatedDisk())
    async with writing(PATH, new=False, clock=fake_clock(), files=disk, in_thread=inline) as journal:
        assert 6 == journal.durable_seq
        for seed in range(20):
            disk_after = copy.deepcopy(disk).after_power_failure(random.Random(seed))
            assert 6 == len(list(read(PATH, files=disk_after)))


def test_blob_of_a_confirmed_record_is_damage() -> None:
    """A lost blob is damage if a later record confirms its record."""
    disk = SimulatedDisk()
    write_sync(PATH, success(LONG), files=disk)
    name = next(name for name, _ in disk.files() if "/blobs/" in name)
    disk.add_file(name, b"")

    assert isinstance(verify(PATH, files=disk).problem, BlobDamaged)
    with pytest.raises(BlobDamaged):
        list(read(PATH, files=disk))


class StuckDisk(UnsyncedDisk):
    """A disk on which writing a blob takes until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def open(self, path: str, flags: int, parents: int = 0) -> int:
        if "blobs" in path:
            assert self.released.wait(TIMEOUT)
        return super().open(path, flags, parents)


def test_other_records_do_not_wait_for_a_slow_blob(path: Path) -> None:
    """While a blob is written ahead of its record, other records are written; its own record comes after it."""
    disk, sample = StuckDisk(), success(LONG)

    async def main() -> None:
        async with writing(path, new=True, files=disk) as journal, trio.open_nursery() as nursery:
            for event in sample[:-1]:
                journal.append(event)

            async def succeed() -> None:
                in_blobs = await journal.write_blobs(sample[-1])
                journal.append(sample[-1], in_blobs=in_blobs)

            nursery.start_soon(succeed)
            await trio.testing.wait_all_tasks_blocked()
            await journal.wait_durable(journal.append(Noted(name="other", value=1)).seq)
            disk.released.set()

    trio.run(main)

    assert [Noted, AttemptSucceeded] == [type(record.event) for record in read(path)][-3:-1]
    assert [LONG] == outputs(path)


def test_slow_blobs_are_detected(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing counts as slow when the last four blobs took long, and no longer after a fast one."""
    writer = BlobWriter(path, UnsyncedDisk())
    path.mkdir()
    monkeypatch.setattr(blob_writer, "SLOW_WRITE", -1.0)
    is_slow = []
    for number in range(4):
        writer.write(f"{number}" * 64, b"1")
        is_slow.append(writer.is_slow)
    monkeypatch.setattr(blob_writer, "SLOW_WRITE", 60.0)

    assert [True, False] == [is_slow[-1], writer.is_slow]


def test_equal_blobs_of_several_threads(path: Path) -> None:
    """Threads that write the same value at the same time leave one complete file."""
    path.mkdir()
    writer, data = BlobWriter(path, UnsyncedDisk()), orjson.dumps(LONG)
    name = hashlib.sha256(data).hexdigest()
    with ThreadPoolExecutor(8) as threads:
        for future in [threads.submit(writer._write, name, data) for _ in range(50)]:
            future.result(10)

    assert [data] == [file.read_bytes() for file in blobs(path)]
