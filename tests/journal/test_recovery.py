"""Torn tail or damage: the rule of recovery, over every state that a crash or bit rot can leave."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio

from evaljournal.journal import writing
from evaljournal.journal.disk import segments
from evaljournal.journal.errors import JournalError
from evaljournal.journal.format import chain
from evaljournal.journal.readers.recovery import find_damage
from evaljournal.journal.readers.scan import Scan
from tests.journal.disk import SECTOR, SECTOR_OUTCOMES, SimulatedDisk, data_after_power_failure
from tests.journal.samples import RUN, enqueued, fake_clock, inline, session, started, trial, write_sync

RUN_PATH = Path("/run")
SLICE = 211
"""Every run of the tests tries one state in this many; `-m exhaustive` tries them all."""

strides = pytest.mark.parametrize("stride", [SLICE, pytest.param(1, marks=pytest.mark.exhaustive)])


@attrs.frozen
class WrittenSegment:
    """The content of a segment while it is being written."""

    synced: bytes
    """The bytes that are confirmed to be on disk."""
    written: bytes
    """The bytes that were passed to the operating system."""

    @property
    def lines(self) -> list[bytes]:
        return self.written.splitlines(keepends=True)

    @property
    def confirmed(self) -> int:
        """Number of confirmed records."""
        return self.synced.count(b"\n")

    @property
    def hashes(self) -> list[str]:
        return [line[-35:-3].decode() for line in self.lines]


def write_segment(*, run: str = RUN, unconfirmed: int = 6, padding: int = 0, closed: bool = False) -> WrittenSegment:
    """Write a run in which some records are confirmed and some are only written."""

    async def main() -> WrittenSegment:
        disk = SimulatedDisk()
        async with writing(RUN_PATH, new=True, run=run, clock=fake_clock(), in_thread=inline, files=disk) as journal:
            for event in [started(), session(), *trial("lima", output="x" * padding), *trial("quito", retries=1)]:
                await journal.wait_durable(journal.append(event).seq)
            synced = disk.read(f"{RUN_PATH}/{segments.name(1)}").read()
            for number in range(unconfirmed):
                journal.append(enqueued(f"later-{number}"))
            tail = b"".join(line for group in journal._lines.groups for line in group.lines)
        if closed:
            data = disk.read(f"{RUN_PATH}/{segments.name(1)}").read()
            return WrittenSegment(data, data)
        return WrittenSegment(synced, synced + tail)

    return trio.run(main)


def recovered_hashes(data: bytes) -> list[str] | None:
    """Open a segment as a writer does: return the hashes of the records that are kept, or None if it is rejected."""
    disk = SimulatedDisk()
    disk.add_file(f"{RUN_PATH}/{segments.name(1)}", data)
    try:
        scan = Scan(RUN_PATH, disk)
        hashes = [record.h for record in scan]
    except JournalError:
        return None
    return None if find_damage(scan) else hashes


def assert_survives(state: bytes, original: WrittenSegment) -> None:
    """Assert that a crash is not reported as damage and loses no confirmed record."""
    hashes = recovered_hashes(state)

    assert hashes is not None, "a crash was reported as damage"
    assert hashes == original.hashes[: len(hashes)], "a record that was never written was accepted"
    assert len(hashes) >= original.confirmed, "a confirmed record was lost"


def assert_rejected(state: bytes, description: str) -> None:
    """Assert that changed confirmed data is rejected."""
    assert recovered_hashes(state) is None, f"{description}: the loss of confirmed data was not detected"


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_file_truncated_at_any_byte_keeps_its_complete_lines(step: int) -> None:
    """Wherever the file is truncated, its complete lines are kept."""
    original = write_segment()
    for end in range(len(original.lines[0]), len(original.written) + 1, step):
        hashes = recovered_hashes(original.written[:end])

        assert original.hashes[: original.written[:end].count(b"\n")] == hashes


def test_a_truncated_first_line_is_damage() -> None:
    """A segment gets its name after its first line is written, so a segment without it is damaged."""
    original = write_segment()
    for end in range(len(original.lines[0])):
        assert_rejected(original.written[:end], f"truncated at {end}")


def crashes(stride: int) -> Iterator[tuple[bytes, WrittenSegment]]:
    """Yield the states after a power failure: all combinations of outcomes, with several positions of the sector boundaries."""
    states = itertools.count()
    for padding in (0, 67, 150, 233, 316, 400):
        original = write_segment(padding=padding, unconfirmed=15)
        other_runs = [
            write_segment(run="f" * 32, padding=padding + 31, unconfirmed=15),
            write_segment(padding=padding + 9, unconfirmed=15),
        ]
        count = -(-len(original.written) // SECTOR) - len(original.synced) // SECTOR
        for outcomes in itertools.product(SECTOR_OUTCOMES, repeat=count):
            number = next(states)
            if number % stride == 0:
                rng = random.Random(number)
                stale = rng.choice(other_runs).written
                yield (
                    data_after_power_failure(original.synced, original.written, rng=rng, outcomes=outcomes, stale=stale),
                    original,
                )


@strides
def test_no_power_failure_is_mistaken_for_damage(stride: int) -> None:
    """Whatever unsynced sectors hold (new data, zeros, garbage, data of another run), the run can be resumed."""
    states = 0
    for state, original in crashes(stride):
        assert_survives(state, original)
        states += 1

    assert states * stride >= 90_000


@strides
def test_a_flipped_bit_in_confirmed_data_is_damage(stride: int) -> None:
    """One changed bit anywhere in confirmed data is damage."""
    original = write_segment()
    for number, (byte, mask) in enumerate(itertools.product(range(len(original.synced)), (0x01, 0x02, 0x20, 0x80))):
        if number % stride == 0:
            data = bytearray(original.written)
            data[byte] ^= mask

            assert_rejected(bytes(data), f"byte {byte} ^ {mask}")


@strides
def test_zeros_in_confirmed_data_are_damage(stride: int) -> None:
    """A range of zeros in confirmed data is damage, short or long."""
    original = write_segment()
    for number, (begin, length) in enumerate(itertools.product(range(len(original.synced)), (1, 7, 64, SECTOR))):
        if number % stride == 0:
            end = min(begin + length, len(original.synced))

            assert_rejected(original.written[:begin] + bytes(end - begin) + original.written[end:], f"zeros in {begin}-{end}")


def test_a_damaged_last_seal_loses_no_record() -> None:
    """A journal can be resumed without its last seal."""
    original = write_segment(closed=True)
    for byte in range(len(original.written) - len(original.lines[-1]), len(original.written)):
        data = bytearray(original.written)
        data[byte] ^= 0x04
        hashes = recovered_hashes(bytes(data))

        assert hashes is None or len(hashes) >= len(original.lines) - 1


def test_an_unsealed_file_is_copied(disk: SimulatedDisk) -> None:
    """After a crash the last segment is rewritten: pages of a failed sync cannot be made durable."""
    original = write_segment(unconfirmed=0)
    disk.add_file(f"{RUN_PATH}/{segments.name(1)}", original.synced)
    before = dict(disk.files())[f"{RUN_PATH}/{segments.name(1)}"]

    write_sync(RUN_PATH, [session(2)], new=False, files=disk)

    after = dict(disk.files())[f"{RUN_PATH}/{segments.name(1)}"]
    assert before is not after
    assert after.visible.startswith(original.synced)


def test_damage_to_a_stored_hash_is_recognized() -> None:
    """If only the hash of a line was changed, the next line still verifies against the correct hash."""
    original = write_segment(unconfirmed=1)
    end = sum(map(len, original.lines[: original.confirmed]))
    data = bytearray(original.written)
    data[end - 4] ^= 1
    assert chain.split(bytes(data[:end]).splitlines()[-1]) is not None

    assert_rejected(bytes(data), "the hash of the last confirmed record")
