"""Overhead of the journal: writing compared with the same loop without it, reading with bare JSON parsing.

Rates are per second of CPU time, to be independent of other load; the comparison with one sync per record uses wall-clock time.
"""

import argparse
import functools
import gc
import os
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import orjson
import trio

from benchmarks._figures import Figures, machine
from evaljournal import journal
from evaljournal.journal.disk.files import DISK, Files
from evaljournal.journal.events import (
    AttemptStarted,
    AttemptSucceeded,
    Event,
    RunStarted,
    SessionStarted,
    TrialCompleted,
    TrialEnqueued,
)

ROUNDS = 7

TEXT = "x" * 190
"""Makes the four records of a trial 300 bytes long on average."""


def main(argv: list[str]) -> int:
    """Print the figures; return 1 if a required one is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks journal", description=__doc__)
    parser.add_argument("--trials", type=int, default=20_000, help="trials with four events each (default: 20,000)")
    parser.add_argument("--directory", type=Path, help="directory to write to (default: a temporary one)")
    options = parser.parse_args(argv)
    print(machine())
    figures = Figures()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        _writing(figures, Path(directory), options.trials)
        _reading(figures, Path(directory) / "run-0")
        _memory(figures, Path(directory), options.trials)
    return 1 if figures.missed else 0


async def _trials(append: Callable[[Event], object], count: int) -> None:
    """Emit the four events of a trial repeatedly, with one checkpoint each, as a task has."""
    for number in range(count):
        trial = f"case-{number}"
        append(TrialEnqueued(trial=trial, case=trial, repeat=1, input={"question": TEXT}, fingerprint="5f2c9a1e"))
        append(AttemptStarted(trial=trial, attempt=1, slot=number % 8))
        append(AttemptSucceeded(trial=trial, attempt=1, output=TEXT, elapsed=0.25))
        append(TrialCompleted(trial=trial, attempts=1))
        await trio.lowlevel.checkpoint()


async def journaled(path: Path, count: int, files: Files = DISK) -> tuple[float, float]:
    """Write a run until the last record is durable; return CPU and wall-clock seconds."""
    async with journal.writing(path, new=True, files=files) as log:
        log.append(_started())
        log.append(SessionStarted(session=1, pid=os.getpid(), host="here", boot_id=""))
        cpu, wall = time.process_time(), time.perf_counter()
        await _trials(log.append, count)
        await log.wait_durable(log.appended_seq)
        return time.process_time() - cpu, time.perf_counter() - wall


def _started() -> RunStarted:
    return RunStarted(
        evaluation="benchmark",
        task="benchmark",
        task_fingerprint="",
        scorers={},
        dataset="",
        dataset_fingerprint="",
        settings={},
        settings_fingerprint="",
        durability="sync",
        environment={},
    )


async def _bare(count: int) -> float:
    cpu = time.process_time()
    await _trials(lambda _: None, count)
    return time.process_time() - cpu


def _writing(figures: Figures, directory: Path, count: int) -> None:
    rounds = []
    for number in range(ROUNDS):  # Alternating, so that other load affects both.
        bare = trio.run(_bare, count)
        rounds.append((bare, *trio.run(journaled, directory / f"run-{number}", count)))
    _, cpu, wall = (min(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(bare / journaled for bare, journaled, _ in rounds)
    lines = lines_of(directory / "run-0")
    events = 4 * count
    print(f"\nwriting: {events:,} events, {sum(map(len, lines)) / len(lines):.0f} bytes each on average, best of {ROUNDS}")
    figures.show("append + chain + group commit", events / cpu, minimum=60_000, unit="events/s")
    figures.show("… share of the rate without a journal, median of pairs", ratio, minimum=0.15)
    sync_seconds = _write_and_sync_each(directory / "each", lines[1000:1400])
    print(f"  (one write + fdatasync takes {sync_seconds * 1e6:,.0f} µs on this disk)")
    figures.show("… wall clock, speed-up over write + fdatasync per record", (events / wall) * sync_seconds, minimum=50)
    slow = SlowDisk()
    _, wall = trio.run(functools.partial(journaled, directory / "slow", count, files=slow))
    figures.show(
        f"… the same if a sync takes {slow.SYNC * 1000:.0f} ms", (events / wall) * (slow.SYNC + sync_seconds), minimum=50
    )


class SlowDisk(Files):
    """A disk with slow syncs, like one without a battery-backed cache."""

    SYNC = 0.004

    def fdatasync(self, fd: int) -> None:
        """Sync, then sleep."""
        super().fdatasync(fd)
        time.sleep(self.SYNC)


def lines_of(path: Path) -> list[bytes]:
    """Return all lines of a run."""
    return [line for file in sorted(path.glob("journal-*.jsonl")) for line in file.read_bytes().splitlines(keepends=True)]


def _write_and_sync_each(path: Path, lines: list[bytes]) -> float:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    start = time.perf_counter()
    for line in lines:
        os.write(fd, line)
        os.fdatasync(fd)
    seconds = time.perf_counter() - start
    os.close(fd)
    return seconds / len(lines)


def _reading(figures: Figures, path: Path) -> None:
    lines = lines_of(path)
    rounds = []
    for _ in range(ROUNDS):
        gc.collect()
        start = time.process_time()
        for line in lines:
            orjson.loads(line)
        parsing = time.process_time() - start
        gc.collect()
        start = time.process_time()
        for _record in journal.read(path, load_blobs=False):
            pass
        reading = time.process_time() - start
        rounds.append((parsing / len(lines), reading / len(lines)))
    bare, read_seconds = (min(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(parsing / reading for parsing, reading in rounds)
    print(
        f"\nreading: {len(lines):,} records, {read_seconds * 1e6:.2f} µs each, of which orjson.loads alone {bare * 1e6:.2f} µs"
    )
    figures.show("read + verify + typed events: share of orjson.loads' rate, median", ratio, minimum=0.2)


def _memory(figures: Figures, directory: Path, count: int) -> None:
    peaks = []
    for number, trials in enumerate((count // 8, count // 2)):
        path = directory / f"memory-{number}"
        trio.run(journaled, path, trials)
        tracemalloc.start()
        for _ in journal.read(path):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    print("\nmemory for reading")
    figures.show(f"peak while reading {count // 2 * 4:,} events", peaks[1] / 1e6, unit="MB")
    figures.show("… relative to a journal a quarter as long", peaks[1] / peaks[0], maximum=1.2)
