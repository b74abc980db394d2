"""Faults of the disk, concurrent sessions and blocking code: a clear error, and no lost records."""

import errno
import os
import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from evaljournal import arun, evaluation, run
from evaljournal.journal import read, verify
from evaljournal.journal.errors import JournalLocked, WriteFailed
from evaljournal.journal.events import RunStopped, SessionStarted, TrialCompleted
from evaljournal.replay import fold
from evaljournal.runner.sessions.session import Outcome
from evaljournal.runner.testing import Return, Scripted
from tests.journal.disk import SimulatedDisk
from tests.processes import TIMEOUT
from tests.runner_cli.commands import run_process
from tests.runs import PATH, define, events, numbered_cases, run_killed, run_virtual

FILLING = """
import os
from evaljournal import Case, evaluation

if "FULL" in os.environ:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, resource.RLIM_INFINITY))

@evaluation(cases=[Case(name=f"t{number}", input=number) for number in range(60)], slots=2, write_ahead=True)
def task(number): return number
"""


def test_a_full_disk_ends_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk the run stops, names the last complete record, and can be resumed later."""
    Path("task.py").write_text(FILLING)
    monkeypatch.setenv("FULL", "1")
    code, full, _ = run_process("run", "task.py")
    records = verify("runs/task/0001").records
    monkeypatch.delenv("FULL")
    resumed_code, resumed, _ = run_process("resume")

    assert (3, 0) == (code, resumed_code)
    assert "task stopped (disk full)" in full
    assert "no space left for runs/task/0001" in full
    (seq,) = re.findall(r"complete up to record (\d+); free some disk space, then resume the run", full)
    assert int(seq) <= records
    assert full.endswith("next: evaljournal resume runs/task/0001\n")
    assert "task finished: 60 of 60 trials done" in resumed
    assert verify("runs/task/0001").ok


def fail_from(disk: SimulatedDisk, call: str, first: int, code: int, *, accepted: int | None = None) -> None:
    """Let a disk fail from the given call of a kind on; the first write that fails may accept some bytes."""
    call_count = 0

    def fail_call(name: str) -> int | None:
        nonlocal call_count
        if name != call:
            return None
        call_count += 1
        if call_count == first and accepted is not None:
            return accepted
        if call_count >= first:
            raise OSError(code, os.strerror(code))
        return None

    disk.on_call = fail_call


@pytest.mark.parametrize("accepted", [None, 10], ids=["nothing", "ten bytes"])
async def test_a_disk_that_fills_up_at_any_write_loses_nothing(accepted: int | None) -> None:
    """Whichever write is the first without space: with space again, the run is resumed and finishes."""
    stopped = 0
    for write in range(1, 100):
        task = Scripted(lambda value, _: Return(f"answer to {value}", 1))
        evaluation_, disk = define(task, numbered_cases(8), slots=2), SimulatedDisk()
        fail_from(disk, "write", write, errno.ENOSPC, accepted=accepted)
        outcome = await run_virtual(evaluation_, disk)
        if not outcome.stop_reason:
            break
        stopped += 1
        assert "disk_full" == outcome.stop_reason
        assert "no space left" in outcome.detail
        disk.on_call = lambda _: None
        completed = completed_trials(disk)
        assert len(completed) == outcome.state.completed  # What is on disk, not what was in memory.
        calls = dict(task.calls)
        outcome = await run_virtual(evaluation_, disk, resume=has_journal(disk))

        assert ("", 8) == (outcome.stop_reason, outcome.state.completed)
        assert all(calls[trial] == task.calls[trial] for trial in completed)
        assert verify(PATH, files=disk).ok
    assert stopped >= 10


def has_journal(disk: SimulatedDisk) -> bool:
    return disk.is_directory(str(PATH)) and any(name.startswith("journal-") for name in disk.list_directory(str(PATH)))


def completed_trials(disk: SimulatedDisk) -> list[str]:
    return [event.trial for event in events(disk, TrialCompleted)] if has_journal(disk) else []


async def test_a_full_disk_is_recorded_if_there_is_space() -> None:
    """If only a large value did not fit, the journal records that the disk was full."""
    task = Scripted(lambda value, _: Return("x" * 300_000 if value == "case-3" else "yes", 1))
    evaluation_, disk = define(task, numbered_cases(6), slots=1), SimulatedDisk()
    calls: list[str] = []

    def fail_call(call: str) -> int | None:
        calls.append(call)
        if calls.count("mkdir") == 5 and calls[-2:] == ["open", "write"]:  # The directory of blobs has just been created.
            calls.clear()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return None

    disk.on_call = fail_call
    outcome = await run_virtual(evaluation_, disk)

    assert "disk_full" == outcome.stop_reason
    assert [RunStopped(reason="disk_full")] == events(disk, RunStopped)
    assert 6 == (await run_virtual(evaluation_, disk, resume=True)).state.completed


@pytest.mark.parametrize("call", ["write", "fdatasync"])
async def test_a_disk_that_fails_confirms_nothing_more(call: str) -> None:
    """An I/O error ends the run with the last confirmed record; the run can be resumed from there."""
    task = Scripted(lambda value, _: Return(f"answer to {value}", 1))
    evaluation_, disk = define(task, numbered_cases(8), slots=2), SimulatedDisk()
    fail_from(disk, call, 6, errno.EIO)
    with pytest.raises(WriteFailed, match=r"records up to \d+ are on disk, later ones may be lost") as error:
        await run_virtual(evaluation_, disk)
    disk.on_call = lambda _: None
    disk = disk.after_kill()

    assert error.value.durable_seq <= max(record.seq for record in read(PATH, files=disk))
    assert ("", 8) == ((outcome := await run_virtual(evaluation_, disk, resume=True)).stop_reason, outcome.state.completed)
    assert verify(PATH, files=disk).ok


@pytest.mark.parametrize("seed", range(5))
def test_two_concurrent_sessions_in_one_process(seed: int) -> None:
    """One session gets the journal and finishes; the other gets an error that names the writer, and makes no call."""
    from trio._core import _run as scheduler

    task = Scripted(lambda *_: Return("yes", 1))
    evaluation_ = define(task, numbered_cases(10), slots=2)
    outcomes: list[Outcome | JournalLocked] = []

    async def main() -> SimulatedDisk:
        disk = await run_killed(evaluation_, SimulatedDisk(), after=2.5, policy="fixed")

        async def resume() -> None:
            try:
                outcomes.append(await run_virtual(evaluation_, disk, resume=True, policy="fixed"))
            except JournalLocked as exc:
                outcomes.append(exc)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(resume)
            nursery.start_soon(resume)
        return disk

    scheduler._r.seed(seed)
    disk = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    rejected, finished = outcomes
    assert isinstance(rejected, JournalLocked)
    assert "is being written by" in str(rejected)
    assert isinstance(finished, Outcome)
    assert ("", 10, 12) == (finished.stop_reason, finished.state.completed, task.calls.total())
    assert 2 == len(events(disk, SessionStarted))
    assert 10 == len(events(disk, TrialCompleted)) == fold(read(PATH, files=disk)).completed


def test_a_late_thread_of_a_cancelled_run_is_ignored(tmp_path: Path) -> None:
    """A thread that returns after its run was cancelled does not break the caller's loop."""
    has_started, is_cancelled, has_returned = threading.Event(), threading.Event(), threading.Event()

    def slow(value: str) -> str:
        has_started.set()
        is_cancelled.wait(TIMEOUT)
        has_returned.set()
        return value

    async def main() -> bool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(arun, evaluation(cases=["a"])(slow), tmp_path / "run"))
            await trio.to_thread.run_sync(has_started.wait, TIMEOUT)
            nursery.cancel_scope.cancel()
        is_cancelled.set()
        return await trio.to_thread.run_sync(has_returned.wait, TIMEOUT)

    assert trio.run(main)
    assert "interrupted" == fold(read(tmp_path / "run")).outcome


def test_a_blocking_generator_does_not_delay_earlier_cases(tmp_path: Path) -> None:
    """If a generator blocks after three cases, those three are run immediately."""
    calls: list[int] = []
    has_three = threading.Event()
    wait_results: list[bool] = []

    def cases() -> Iterator[int]:
        yield from (1, 2, 3)
        wait_results.append(has_three.wait(TIMEOUT))
        yield 4

    def task(number: int) -> int:
        calls.append(number)
        if len(calls) == 3:
            has_three.set()
        return number

    outcome = run(evaluation(cases=cases)(task), tmp_path / "run")

    assert ([True], [1, 2, 3, 4], 4) == (wait_results, sorted(calls), outcome.state.completed)
