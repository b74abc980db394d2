"""Mutants: with a safeguard switched off, the check that covers it must fail."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio

from evaljournal.journal import Event, writing
from evaljournal.journal.disk.files import Files
from evaljournal.journal.errors import JournalError, JournalLocked
from evaljournal.journal.format import blobs, chain, codec
from evaljournal.journal.writers import writer
from evaljournal.journal.writers.segment_file import SegmentFile
from tests.journal.disk import SimulatedDisk
from tests.journal.samples import RUN, fake_clock, inline, session, started
from tests.journal.test_faults import PATH, Fault, Progress, assert_kept, several_segments
from tests.journal.test_recovery import assert_rejected, write_segment


@pytest.fixture(autouse=True)
def _small_blobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "LIMIT", 300)


@contextmanager
def must_fail() -> Iterator[None]:
    """Expect that the block fails an assertion."""
    with pytest.raises((AssertionError, JournalError, pytest.fail.Exception)):
        yield


def fail_power_after_confirmations() -> None:
    """Write a run and simulate a power failure after each confirmation: all confirmed records must be present."""

    async def main() -> None:
        disk = SimulatedDisk()
        progress = Progress()
        async with writing(PATH, new=True, run=RUN, clock=fake_clock(), files=disk, in_thread=inline, roll_at=1200) as journal:
            for event in several_segments():
                record = journal.append(event)
                progress.appended[record.seq] = record.h
                await journal.wait_durable(record.seq)
                progress.confirmed[record.seq] = record.h
                states[len(progress.appended)] = (
                    disk.after_power_failure(random.Random(record.seq)),
                    dict(progress.confirmed),
                    dict(progress.appended),
                )

    states: dict[int, tuple[SimulatedDisk, dict[int, str], dict[int, str]]] = {}
    trio.run(main)
    for disk, confirmed, appended in states.values():
        assert_kept(disk, Progress(confirmed=confirmed, appended=appended))


def write_partially() -> None:
    """Write a run in which one write accepts only three bytes: no record may be missing."""
    for n in range(1, 12):
        disk = SimulatedDisk()
        disk.on_call = Fault("write", n, None)
        progress = Progress().write(disk, several_segments(), new=True)
        assert progress.error is None
        assert_kept(disk.after_kill(), progress)


def flip_confirmed() -> None:
    """Flip bits in confirmed data: it must be rejected."""
    original = write_segment()
    for byte in range(0, len(original.synced), 97):
        data = bytearray(original.written)
        data[byte] ^= 1
        assert_rejected(bytes(data), f"byte {byte}")


def open_twice() -> None:
    """Open a second writer during the first: it must be rejected."""

    async def main() -> None:
        disk = SimulatedDisk()
        async with writing(PATH, new=True, run=RUN, clock=fake_clock(), files=disk, in_thread=inline) as journal:
            journal.append(started())
            await journal.wait_durable(journal.append(session()).seq)
            with pytest.raises(JournalLocked):
                async with writing(PATH, new=False, clock=fake_clock(), files=disk, in_thread=inline):
                    pass

    trio.run(main)


CHECKS: list[Callable[[], None]] = [fail_power_after_confirmations, write_partially, flip_confirmed, open_twice]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_checks_pass_without_mutants(check: Callable[[], None]) -> None:
    """With every safeguard in place, each check passes."""
    check()


def test_a_writer_that_confirms_before_the_sync_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: a record is confirmed as soon as it is written."""
    monkeypatch.setattr(SegmentFile, "sync", lambda _: None)

    with must_fail():
        fail_power_after_confirmations()


def test_a_writer_that_does_not_sync_directories_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the directory is not synced after a new file."""
    monkeypatch.setattr(SimulatedDisk, "sync_directory", lambda *_: None)

    with must_fail():
        fail_power_after_confirmations()


def test_a_writer_without_a_watermark_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: records do not carry the durable watermark."""
    encode = codec.encode

    def encode_without_watermark(event: Event, seq: int, at: str, t: float, _: int, **options: Any) -> bytes:
        return encode(event, seq, at, t, 0, **options)

    monkeypatch.setattr(writer, "encode", encode_without_watermark)

    with must_fail():
        flip_confirmed()


def test_a_writer_that_ignores_partial_writes_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the rest of a partial write is not written."""

    def write_once(files: Files, fd: int, data: memoryview) -> memoryview:
        files.write(fd, data)
        return data[:0]

    monkeypatch.setattr("evaljournal.journal.writers.segment_file.write_some", write_once)

    with must_fail():
        write_partially()


def test_a_writer_without_a_lock_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: every writer gets the lock."""
    monkeypatch.setattr(SimulatedDisk, "lock", lambda *_: True)

    with must_fail():
        open_twice()


def test_a_reader_that_does_not_check_hashes_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: a line is accepted with any hash."""
    original = write_segment()
    stored = {body[-64:]: h.decode() for body, h in filter(None, (chain.split(line[:-1]) for line in original.lines))}

    def flip_inside() -> None:
        """Flip a bit in the name of a trial in confirmed lines, where only the hash can detect it."""
        for line in original.lines[4 : original.confirmed - 1]:
            position = original.written.index(line)
            data = bytearray(original.written)
            data[position + line.index(b'"trial":"') + 9] ^= 1
            assert_rejected(bytes(data), f"line at {position}")

    flip_inside()
    monkeypatch.setattr(chain, "link", lambda _run, _previous, body: stored.get(body[-64:], ""))
    with must_fail():
        flip_inside()


def test_the_simulated_disk_implements_every_call() -> None:
    """No call of the journal reaches the real disk."""
    calls = {name for name in vars(Files) if not name.startswith("_")}

    assert calls <= vars(SimulatedDisk).keys()
