"""Defects of `nat eval`, and those found in the review of their fix, that evaljournal must not have.

Tested elsewhere:

- an output that is not JSON fails its own trial, with its position in the message: `tests/runner/test_session.py`
- recovery after a hang and after an interruption: `test_a_stop_gives_grace_then_cancels` in `tests/runner/test_resume.py`, and
  `tests/crash/`
- a second run deletes nothing, and a second writer is rejected: `test_a_taken_path_is_rejected` in `test_run.py`,
  `test_kill_then_resume` in `test_interrupts.py`, both in `tests/runner_cli`
- scores are recorded: `test_a_run_records_every_event` in `tests/runner/test_session.py`
- ids are unchanged in every format, duplicate ids are rejected: `tests/runner/test_dataset.py`
- never more attempts in flight than slots: `test_the_limit_holds` in `tests/runner/test_session.py`
"""

import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from evaljournal import Case, Retry, arun, run
from evaljournal.journal import follow, read
from evaljournal.journal.disk.files import Files
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptSucceeded,
    RunFinished,
    TrialCompleted,
    TrialEnqueued,
    TrialFailed,
    TrialScored,
)
from evaljournal.replay import fold
from evaljournal.replay.render.ending import final_report
from evaljournal.replay.results.summary import summarize
from evaljournal.runner.engine.options import LiveRun
from evaljournal.runner.testing import Fail, Hang, Return, Scripted
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, define, events, numbered_cases, run_killed, run_virtual, signal_after


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


def test_completions_can_be_followed(tmp_path: Path) -> None:
    """Following the journal gives every completion, in order."""
    followed: list[str] = []

    async def main() -> None:
        has_started = trio.Event()

        async def wait_journal(live: LiveRun) -> None:
            await live.journal.wait_durable(1)  # The journal exists from here on.
            has_started.set()

        async def task(_: str) -> str:
            await has_started.wait()  # The run must not end before it is followed.
            return "yes"

        async def follow_run() -> None:
            await has_started.wait()
            async with aclosing(follow(tmp_path / "run")) as records:
                async for record in records:
                    if isinstance(record.event, TrialCompleted):
                        followed.append(record.event.trial)
                    elif isinstance(record.event, RunFinished):
                        return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow_run)
            await arun(define(task, numbered_cases(20)), tmp_path / "run", observer=wait_journal)

    trio.run(main)

    assert [event.trial for event in events(tmp_path / "run", TrialCompleted)] == followed
    assert 20 == len(followed)


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


async def test_a_failed_trial_is_recorded(disk: SimulatedDisk) -> None:
    """A failed trial is recorded with its input, its exception, the traceback and its end."""

    async def task(question: str) -> str:
        await trio.lowlevel.checkpoint()
        raise KeyError(question)

    await run_virtual(define(task, numbered_cases(1), retry=Retry(errors=0)), disk)

    (failed,) = events(disk, AttemptFailed)
    assert ("case-0", "KeyError", "'case-0'", "parse_error") == (failed.trial, failed.error, failed.message, failed.category)
    assert "raise KeyError(question)" in failed.traceback
    assert [TrialFailed(trial="case-0", attempts=1, reason="exhausted")] == events(disk, TrialFailed)
    assert "case-0" == events(disk, TrialEnqueued)[0].input


async def test_a_failed_trial_has_no_output(disk: SimulatedDisk) -> None:
    """A failed trial has no output and no score; it is excluded from the mean, and the summary reports it."""
    task = Scripted(lambda value, _: Fail(ValueError("no")) if value == "case-0" else Return("yes"))
    evaluation_ = define(task, numbered_cases(5), retry=Retry(errors=0))

    @evaluation_.score
    def exact(output: str, case: Case[str, str]) -> bool:
        return output == case.expected

    outcome = await run_virtual(evaluation_, disk)

    assert {f"case-{number}" for number in range(1, 5)} == {event.trial for event in events(disk, TrialScored)}
    assert (1.0, 4) == (outcome.state.scores["exact"].mean, outcome.state.scores["exact"].scored)
    report = final_report(outcome.state, path=PATH)
    assert "4 ok of 5 done" in report
    assert "exact  100.0 %  4 of 4 passed" in report
    assert "1 trial failed:\n  case-0: ValueError: no" in report
    assert {"completed": 4, "failed": 1} == {
        name: attrs.asdict(summarize(outcome.state))["trials"][name] for name in ("completed", "failed")
    }


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("qa.csv", 'id,question\n001,"1?"\n1,2?\n'),
        ("qa.jsonl", '{"id": "001", "question": "1?"}\n{"id": 1, "question": "2?"}\n'),
    ],
)
def test_ids_are_unchanged(tmp_path: Path, name: str, content: str) -> None:
    """The id "001" is "001" in the journal, beside 1."""
    (tmp_path / name).write_text(content)
    run(define(Scripted(lambda *_: Return("yes")), tmp_path / name), tmp_path / "run")

    trials = {event.trial: event.input for event in events(tmp_path / "run", TrialEnqueued)}
    assert {"001": "1?", "1": "2?"} == trials


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


async def test_an_unscored_output_is_only_scored() -> None:
    """A run that stopped between output and score calls only the scorer when it is resumed."""
    judged: list[str] = []
    task = Scripted(lambda value, _: Return(f"answer to {value}", 1))
    evaluation_ = define(task, numbered_cases(3), slots=3, timeout=600)

    @evaluation_.score
    async def judge(output: str, case: Any) -> bool:
        await trio.sleep(100)
        judged.append(output)
        return True

    disk = await run_killed(evaluation_, SimulatedDisk(), after=50)
    before = fold(read(PATH, files=disk))
    assert ({"scoring": 3}, []) == ({stage: count for stage, count in before.stages.items() if count}, judged)
    outcome = await run_virtual(evaluation_, disk, resume=True)

    assert (3, 3) == (task.calls.total(), outcome.state.completed)
    assert sorted(f"answer to case-{number}" for number in range(3)) == sorted(judged)


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
