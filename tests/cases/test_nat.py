"""What a toolkit's `eval` command got wrong, what the review of its repair demanded and what that review missed.

Shown elsewhere:

- an output that cannot be recorded fails its own trial, with its place in the message: `tests/runner/test_session.py`
- recoverable after a hang and after an interruption: `test_a_stop_gives_grace_then_cuts` there, and `tests/crash/`
- a rerun deletes nothing, and a second writer is kept out: `test_a_taken_path_is_rejected`, `test_kill_then_resume` in
  `tests/runner_cli/test_run.py`
- scores are recorded: `test_a_run_records_every_step` in `tests/runner/test_session.py`
- ids stay what they are in every format, duplicate ids are refused: `tests/runner/test_dataset.py`
- never more at once than slots: `test_the_limit_holds` in `tests/runner/test_session.py`
"""

import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import trio

from journal import follow, read
from journal.events import (
    AttemptFailed,
    AttemptSucceeded,
    RunFinished,
    RunStarted,
    TrialCompleted,
    TrialEnqueued,
    TrialFailed,
    TrialScored,
)
from journal.files import Files
from replay import fold
from replay.ending import final_report
from replay.summary import in_json, summarise
from runner import Case, Retry, arun, evaluation, run
from runner.engine.live_run import LiveRun
from runner.testing import Answer, Fail, Hang, Scripted, events_of
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, define, events, numbered_cases, run_killed, run_virtual, signal_after


async def test_each_item_is_on_disk_as_it_finishes() -> None:
    """While one item still hangs, the others' outputs can be read from the disk, and would survive a power cut."""
    task = Scripted(lambda value, _: Hang() if value == "case-0" else Answer(f"answer to {value}", int(value[-1])))
    disk = SimulatedDisk()
    seen: list[tuple[int, int, int]] = []

    async def look(live: Any) -> None:
        for second in range(1, 5):
            await trio.sleep_until(second + 0.5)
            done = events(disk, TrialCompleted)
            outputs = {event.trial: event.output for event in events(disk, AttemptSucceeded)}
            assert {event.trial: f"answer to {event.trial}" for event in done} == outputs
            seen.append((second, len(done), live.journal.durable - live.state.seq))

    await run_virtual(define(task, numbered_cases(5), timeout=100, retry=Retry(timeouts=0)), disk, observer=look)

    assert [(1, 1, 0), (2, 2, 0), (3, 3, 0), (4, 4, 0)] == seen


def test_somebody_can_be_told_of_each_completion(tmp_path: Path) -> None:
    """A hook per item needs no hook: whoever follows the journal is told of every completion, in order."""
    told: list[str] = []

    async def main() -> None:
        begun = trio.Event()

        async def begin(live: LiveRun) -> None:
            await live.journal.wait_durable(1)  # Then there is something to follow.
            begun.set()

        async def answer(_: str) -> str:
            await begun.wait()  # Otherwise the run could be over sooner.
            return "yes"

        async def listen() -> None:
            await begun.wait()
            async with aclosing(follow(tmp_path / "run")) as records:
                async for record in records:
                    if isinstance(record.event, TrialCompleted):
                        told.append(record.event.trial)
                    elif isinstance(record.event, RunFinished):
                        return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await arun(define(answer, numbered_cases(20)), tmp_path / "run", observer=begin)

    trio.run(main)

    assert [event.trial for event in events_of(tmp_path / "run") if isinstance(event, TrialCompleted)] == told
    assert 20 == len(told)


class Watched(Files):
    """The real disk, which remembers who used it."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.directories: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name not in {"threads", "directories"}:
            self.threads.add(threading.get_ident())
        return super().__getattribute__(name)

    def mkdir(self, path: str) -> None:
        self.directories.append(path)
        super().mkdir(path)


def test_no_file_is_touched_on_the_event_loop(tmp_path: Path) -> None:
    """The journal is written, and the cases are read, in threads: a slow disk or a slow share holds up no slot."""
    disk, readers = Watched(), set[int]()

    def cases() -> Any:
        for case in numbered_cases(50):
            readers.add(threading.get_ident())
            yield case

    task = Scripted(lambda *_: Answer("x" * 300_000))  # Too long for a line: it goes into a file of its own.
    run(define(task, cases), tmp_path / "run", files=disk)

    assert 50 == task.calls.total()
    assert threading.get_ident() not in disk.threads | readers


def test_directories_are_made_once(tmp_path: Path) -> None:
    """Records are appended to a file that is there; no directory is made again for each of them."""
    disk = Watched()
    run(define(Scripted(lambda *_: Answer("yes")), numbered_cases(50)), tmp_path / "run", files=disk)

    assert [str(tmp_path / "run")] == disk.directories


async def test_a_failed_item_leaves_a_record() -> None:
    """What failed is recorded like what worked: what was asked, what was raised, where, and that it was given up."""

    async def task(question: str) -> str:
        await trio.lowlevel.checkpoint()
        raise KeyError(question)

    disk = SimulatedDisk()
    await run_virtual(define(task, numbered_cases(1), retry=Retry(errors=0)), disk)

    (failed,) = events(disk, AttemptFailed)
    assert ("case-0", "KeyError", "'case-0'", "error") == (failed.trial, failed.error, failed.message, failed.category)
    assert "raise KeyError(question)" in failed.traceback
    assert [TrialFailed(trial="case-0", attempts=1, cause="exhausted")] == events(disk, TrialFailed)
    assert "case-0" == events(disk, TrialEnqueued)[0].input


async def test_one_hung_item_does_not_hang_the_run() -> None:
    """With no timeout said there is one all the same: an item that never answers is given up, and the run ends by itself."""
    disk = SimulatedDisk()
    task = Scripted(lambda value, _: Hang() if value == "case-3" else Answer("yes", 1))
    outcome = await run_virtual(define(task, numbered_cases(10)), disk)

    assert ("", 9, 1) == (outcome.stopped, outcome.state.completed, outcome.state.failed)


@pytest.mark.parametrize("exc", [TimeoutError("read timed out"), trio.TooSlowError("too slow"), ConnectionResetError("reset")])
async def test_a_timeout_inside_the_call_does_not_end_the_run(exc: Exception) -> None:
    """A client's own timeout is one attempt's trouble: it is tried again, and the others do not notice."""
    disk = SimulatedDisk()
    task = Scripted(lambda value, times: Fail(exc, 1) if value == "case-3" and times == 1 else Answer("yes", 1))
    outcome = await run_virtual(define(task, numbered_cases(10)), disk)

    assert (10, 1, {"case-3": 2}) == (
        outcome.state.completed,
        outcome.state.recovered,
        {name: times for name, times in task.calls.items() if times > 1},
    )


async def test_without_a_scorer_outputs_are_recorded_all_the_same() -> None:
    """An evaluation that nobody scores is still a run: every output is in the journal."""
    disk = SimulatedDisk()
    outcome = await run_virtual(define(Scripted(lambda value, _: Answer(value.upper())), numbered_cases(3)), disk)

    assert ["CASE-0", "CASE-1", "CASE-2"] == sorted(event.output for event in events(disk, AttemptSucceeded))
    assert (3, {}) == (outcome.state.completed, outcome.state.scores)


async def test_a_failed_call_is_no_empty_answer() -> None:
    """What failed has no output and no score, is not in the mean, and is named beside it; the denominator is told."""
    task = Scripted(lambda value, _: Fail(ValueError("no")) if value == "case-0" else Answer("yes"))
    it = define(task, numbered_cases(5), retry=Retry(errors=0))

    @it.score
    def exact(output: str, case: Case[str, str]) -> bool:
        return output == case.expected

    disk = SimulatedDisk()
    outcome = await run_virtual(it, disk)

    assert {f"case-{number}" for number in range(1, 5)} == {event.trial for event in events(disk, TrialScored)}
    assert (1.0, 4) == (outcome.state.scores["exact"].mean, outcome.state.scores["exact"].scored)
    words = final_report(outcome.state, path=PATH)
    assert "4 ok of 5 done" in words
    assert "exact  100.0 %  4 of 4 passed" in words
    assert "1 trial failed:\n  case-0: ValueError: no" in words
    assert {"completed": 4, "failed": 1} == {
        name: in_json(summarise(outcome.state))["trials"][name] for name in ("completed", "failed")
    }


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("qa.csv", 'id,question\n001,"1?"\n1,2?\n'),
        ("qa.jsonl", '{"id": "001", "question": "1?"}\n{"id": 1, "question": "2?"}\n'),
    ],
)
def test_ids_stay_what_they_are(tmp_path: Path, name: str, content: str) -> None:
    """The id "001" is "001" in the journal, beside 1."""
    (tmp_path / name).write_text(content)
    run(define(Scripted(lambda *_: Answer("yes")), tmp_path / name), tmp_path / "run")

    trials = {event.trial: event.input for event in events_of(tmp_path / "run") if isinstance(event, TrialEnqueued)}
    assert {"001": "1?", "1": "2?"} == trials


@pytest.mark.parametrize("empty", ["", None, [], {}, 0, False])
async def test_an_empty_answer_is_an_answer(empty: Any) -> None:
    """What the task said is its output, however little it is; a resumption does not ask for it again."""
    task = Scripted(lambda *_: Answer(empty, 1))
    it, disk = define(task, numbered_cases(4), slots=1), SimulatedDisk()
    await run_virtual(it, disk, **signal_after(1.5))
    outcome = await run_virtual(it, disk, resume=True)

    assert 4 == outcome.state.completed
    assert {f"case-{number}": 1 for number in range(4)} == task.calls
    assert [empty] * 4 == [event.output for event in events(disk, AttemptSucceeded)]


async def test_a_run_with_repeats_can_be_resumed() -> None:
    """Each repeat of a case is a trial of its own, and a resumption makes those that are missing."""
    task = Scripted(lambda value, _: Answer(value, 1))
    it, disk = define(task, numbered_cases(4), slots=2, repeats=3), SimulatedDisk()
    await run_virtual(it, disk, policy="fixed", **signal_after(2.5))
    outcome = await run_virtual(it, disk, policy="fixed", resume=True)

    assert 12 == outcome.state.completed == task.calls.total()
    assert {f"case-{number}": 3 for number in range(4)} == task.calls
    assert {"case-0", "case-0#2", "case-0#3"} <= {event.trial for event in events(disk, TrialCompleted)}


async def test_an_output_without_its_scores_is_only_scored() -> None:
    """Stopped between the answer and its score, a run asks the scorer when it goes on, and not the task."""
    judged: list[str] = []
    task = Scripted(lambda value, _: Answer(f"answer to {value}", 1))
    it = define(task, numbered_cases(3), slots=3, timeout=600)

    @it.score
    async def judge(output: str, case: Any) -> bool:
        await trio.sleep(100)
        judged.append(output)
        return True

    disk = await run_killed(it, SimulatedDisk(), after=50)
    before = fold(read(PATH, files=disk))
    assert ({"answered": 3}, []) == ({stage: count for stage, count in before.stages.items() if count}, judged)
    outcome = await run_virtual(it, disk, resume=True)

    assert (3, 3) == (task.calls.total(), outcome.state.completed)
    assert sorted(f"answer to case-{number}" for number in range(3)) == sorted(judged)


def test_two_runs_never_share_a_file(tmp_path: Path) -> None:
    """Of two runs that are begun at one place, the second is refused, and the first is as it was."""
    it = evaluation(cases=numbered_cases(2), loop="trio")(Scripted(lambda *_: Answer("yes")))
    run(it, tmp_path / "run")
    before = [record.h for record in read(tmp_path / "run")]

    with pytest.raises(Exception, match="already contains a run"):
        run(it, tmp_path / "run")
    assert before == [record.h for record in read(tmp_path / "run")]
    assert 1 == sum(isinstance(event, RunStarted) for event in events_of(tmp_path / "run"))


async def test_the_last_item_costs_what_the_first_did() -> None:
    """Twice as many items need at most twice as many calls to the disk and bytes on it: nothing is written over again."""

    async def cost(count: int) -> tuple[int, int]:
        calls: list[str] = []
        disk = SimulatedDisk()
        disk.before = calls.append
        await run_virtual(define(Scripted(lambda *_: Answer("yes", 1)), numbered_cases(count), slots=10), disk, policy="fixed")
        return len(calls), sum(len(inode.shown) for _, inode in disk.files())

    once, twice = await cost(100), await cost(200)

    assert all(more / less < 2.1 for less, more in zip(once, twice, strict=True))
