"""Each safeguard, switched off: the tests that it is there for must notice.

A check that cannot fail proves nothing, so here each is shown to fail without the behaviour that it watches.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio

from journal import Event, blobs, chain, codec, writer, writing
from journal.errors import JournalError, JournalLocked
from journal.files import Files
from journal.segment_file import SegmentFile
from tests.journal.disk import SimulatedDisk
from tests.journal.samples import RUN, fake_clock, inline, session, started
from tests.journal.test_faults import PATH, Fault, Told, assert_kept, life
from tests.journal.test_recovery import assert_refused, history


@pytest.fixture(autouse=True)
def _small_blobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "LIMIT", 300)


@contextmanager
def must_be_noticed() -> Iterator[None]:
    """Demand that the check inside fails."""
    with pytest.raises((AssertionError, JournalError, pytest.fail.Exception)):
        yield


def unplug_now_and_then() -> None:
    """Write a run, and pull the plug after each confirmation: everything confirmed must be there."""

    async def main() -> None:
        disk = SimulatedDisk()
        told = Told()
        async with writing(PATH, new=True, run=RUN, clock=fake_clock(), files=disk, in_thread=inline, roll_at=1200) as journal:
            for event in life():
                record = journal.append(event)
                told.taken[record.seq] = record.h
                await journal.wait_durable(record.seq)
                told.confirmed[record.seq] = record.h
                left[len(told.taken)] = (disk.unplugged(random.Random(record.seq)), dict(told.confirmed), dict(told.taken))

    left: dict[int, tuple[SimulatedDisk, dict[int, str], dict[int, str]]] = {}
    trio.run(main)
    for disk, confirmed, taken in left.values():
        assert_kept(disk, Told(confirmed=confirmed, taken=taken))


def write_short() -> None:
    """Write a run on a system that takes three bytes of one of the writes: nothing may be missing."""
    for n in range(1, 12):
        disk = SimulatedDisk()
        disk.before = Fault("write", n, None)
        told = Told().write(disk, life(), new=True)
        assert told.error is None
        assert_kept(disk.killed(), told)


def flip_confirmed() -> None:
    """Flip bits in confirmed data: it must be refused."""
    truth = history()
    for byte in range(0, len(truth.synced), 97):
        data = bytearray(truth.written)
        data[byte] ^= 1
        assert_refused(bytes(data), f"byte {byte}")


def write_twice() -> None:
    """Let a second writer try while the first is at work: it must be kept out."""

    async def main() -> None:
        disk = SimulatedDisk()
        async with writing(PATH, new=True, run=RUN, clock=fake_clock(), files=disk, in_thread=inline) as journal:
            journal.append(started())
            await journal.wait_durable(journal.append(session()).seq)
            with pytest.raises(JournalLocked):
                async with writing(PATH, new=False, clock=fake_clock(), files=disk, in_thread=inline):
                    pass

    trio.run(main)


CHECKS: list[Callable[[], None]] = [unplug_now_and_then, write_short, flip_confirmed, write_twice]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_checks_hold_while_nothing_is_switched_off(check: Callable[[], None]) -> None:
    """With every safeguard in place, each of the checks passes: the mutants are what makes them fail."""
    check()


def test_a_writer_that_confirms_before_the_sync_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: a record is confirmed as soon as it is written."""
    monkeypatch.setattr(SegmentFile, "sync", lambda _: None)

    with must_be_noticed():
        unplug_now_and_then()


def test_a_writer_that_does_not_sync_directories_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: a new file's name is not forced to the disk."""
    monkeypatch.setattr(SimulatedDisk, "sync_directory", lambda *_: None)

    with must_be_noticed():
        unplug_now_and_then()


def test_a_writer_that_leaves_out_the_watermark_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: records do not say what was durable when they were built."""
    encode = codec.encode

    def forgetful(event: Event, seq: int, at: str, t: float, _: int, **others: Any) -> bytes:
        return encode(event, seq, at, t, 0, **others)

    monkeypatch.setattr(writer, "encode", forgetful)

    with must_be_noticed():
        flip_confirmed()


def test_a_writer_that_believes_in_whole_writes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: what the system did not take at once is not written at all."""

    def once(files: Files, fd: int, data: memoryview) -> memoryview:
        files.write(fd, data)
        return data[:0]

    monkeypatch.setattr("journal.segment_file.write_some", once)

    with must_be_noticed():
        write_short()


def test_a_writer_without_a_lock_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: everyone gets the lock."""
    monkeypatch.setattr(SimulatedDisk, "lock", lambda *_: True)

    with must_be_noticed():
        write_twice()


def test_a_reader_that_does_not_check_hashes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: a line is believed whatever its hash."""
    truth = history()
    stored = {body[-64:]: h.decode() for body, h in filter(None, (chain.split(line[:-1]) for line in truth.lines))}

    def flip_inside() -> None:
        """Flip a bit in the name of a trial in confirmed lines, where only the hash can notice."""
        for line in truth.lines[4 : truth.confirmed - 1]:
            place = truth.written.index(line)
            data = bytearray(truth.written)
            data[place + line.index(b'"trial":"') + 9] ^= 1
            assert_refused(bytes(data), f"line at {place}")

    flip_inside()
    monkeypatch.setattr(chain, "link", lambda _run, _previous, body: stored.get(body[-64:], ""))
    with must_be_noticed():
        flip_inside()


def test_the_simulated_disk_answers_every_call_itself() -> None:
    """No call of the journal slips past the simulated disk to the real one."""
    calls = {name for name in vars(Files) if not name.startswith("_")}

    assert calls <= vars(SimulatedDisk).keys()
