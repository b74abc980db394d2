"""Defects of `nat eval` that evaljournal must not have."""

import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from evaljournal import Retry, run
from evaljournal.journal.disk.files import Files
from evaljournal.journal.events import AttemptSucceeded, TrialCompleted
from evaljournal.runner.testing import Hang, Return, Scripted
from tests.journal.disk import SimulatedDisk
from tests.runs import define, events, numbered_cases, run_virtual, signal_after


async def test_each_item_is_on_disk_as_it_finishes(disk: SimulatedDisk) -> None:
    """While one trial hangs, the outputs of the others are on disk and would survive a power failure."""
    task = Scripted(lambda value, _: Hang() if value == "case-0" else Return(f"answer to {value}", int(value[-1])))
    progress: list[tuple[int, int, int]] = []

    async def check_disk(live: Any) -> None:
        for second in range(1, 5):
            await trio.sleep_until(second + 0.5)
            completed = events(disk, TrialCompleted)
            outputs = {event.trial: event.output for event in events(disk, AttemptSucceeded)}
            assert {event.trial: f"answer to {event.trial}" for event in completed} == outputs
            progress.append((second, len(completed), live.journal.durable_seq - live.state.seq))

    await run_virtual(define(task, numbered_cases(5), timeout=100, retry=Retry(timeouts=0)), disk, observer=check_disk)

    assert [(1, 1, 0), (2, 2, 0), (3, 3, 0), (4, 4, 0)] == progress


class RecordingDisk(Files):
    """The real disk; it records which thread used it."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.directories: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name not in {"threads", "directories", "idle_check_interval"}:
            self.threads.add(threading.get_ident())
        return super().__getattribute__(name)

    def mkdir(self, path: str) -> None:
        self.directories.append(path)
        super().mkdir(path)


def test_no_file_is_used_in_the_event_loop(tmp_path: Path) -> None:
    """Journal and cases are written and read in threads, so a slow disk does not block the slots."""
    disk, readers = RecordingDisk(), set[int]()

    def cases() -> Any:
        for case in numbered_cases(50):
            readers.add(threading.get_ident())
            yield case

    task = Scripted(lambda *_: Return("x" * 300_000))  # Large enough for a blob.
    run(define(task, cases), tmp_path / "run", files=disk)

    assert 50 == task.calls.total()
    assert threading.get_ident() not in disk.threads | readers


def test_directories_are_created_once(tmp_path: Path) -> None:
    """Directories are not created again for each record."""
    disk = RecordingDisk()
    run(define(Scripted(lambda *_: Return("yes")), numbered_cases(50)), tmp_path / "run", files=disk)

    assert [str(tmp_path / "run")] == disk.directories


@pytest.mark.parametrize("empty", ["", None, [], {}, 0, False])
async def test_an_empty_output_is_an_output(empty: Any) -> None:
    """An empty output is recorded, and the trial is not run again on resume."""
    task = Scripted(lambda *_: Return(empty, 1))
    evaluation_, disk = define(task, numbered_cases(4), slots=1), SimulatedDisk()
    await run_virtual(evaluation_, disk, **signal_after(1.5))
    outcome = await run_virtual(evaluation_, disk, resume=True)

    assert 4 == outcome.state.completed
    assert {f"case-{number}": 1 for number in range(4)} == task.calls
    assert [empty] * 4 == [event.output for event in events(disk, AttemptSucceeded)]


async def test_a_run_with_repeats_can_be_resumed() -> None:
    """Each repeat of a case is a trial of its own; resuming runs the missing ones."""
    task = Scripted(lambda value, _: Return(value, 1))
    evaluation_, disk = define(task, numbered_cases(4), slots=2, repeats=3), SimulatedDisk()
    await run_virtual(evaluation_, disk, policy="fixed", **signal_after(2.5))
    outcome = await run_virtual(evaluation_, disk, policy="fixed", resume=True)

    assert 12 == outcome.state.completed == task.calls.total()
    assert {f"case-{number}": 3 for number in range(4)} == task.calls
    assert {"case-0", "case-0#2", "case-0#3"} <= {event.trial for event in events(disk, TrialCompleted)}


async def test_the_cost_per_trial_is_constant() -> None:
    """Twice as many trials need at most twice as many disk calls and bytes."""

    async def cost(count: int) -> tuple[int, int]:
        calls: list[str] = []
        disk = SimulatedDisk()
        disk.on_call = calls.append
        await run_virtual(define(Scripted(lambda *_: Return("yes", 1)), numbered_cases(count), slots=10), disk, policy="fixed")
        return len(calls), sum(len(inode.visible) for _, inode in disk.files())

    small, large = await cost(100), await cost(200)

    assert all(more / less < 2.1 for less, more in zip(small, large, strict=True))
