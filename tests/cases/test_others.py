"""What other tools do when they are killed at half of forty items, refused, or failed; and what follows from it for ours.

Shown elsewhere:

- one model's answers are never taken for another's: a changed task is refused, `tests/runner_cli/test_run.py`
- the running total is at every record what a recount gives: `test_live_state_is_folded_state` in `tests/runner/test_session.py`
- what `status` says later is what the run said at its end: `tests/runner_cli/test_run.py`
"""

import random

import pytest
import trio

from journal import read
from journal.events import AttemptFailed, AttemptSucceeded, RunStarted, TrialCompleted, TrialEnqueued
from replay import fold
from replay.ending import final_report
from runner import Case, Fatal, RateLimited
from runner.testing import Answer, Fail, Scripted, events_of
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, define, events, numbered_cases, run_killed, run_virtual


@pytest.mark.parametrize("slots", [1, 4])
async def test_killed_at_half_it_pays_only_for_what_was_in_the_air(slots: int) -> None:
    """Killed when 20 of 40 are done, a run makes the other 20, and those calls again that were in the air."""
    task = Scripted(lambda value, _: Answer(f"answer to {value}", 1))
    it = define(task, numbered_cases(40), slots=slots)
    disk = await run_killed(it, SimulatedDisk(), after=20 / slots + 0.5, policy="fixed")
    assert 20 == fold(read(PATH, files=disk)).completed
    outcome = await run_virtual(it, disk, resume=True, policy="fixed")

    assert (40, 40 + slots) == (outcome.state.completed, task.calls.total())
    assert 40 == len(events(disk, TrialCompleted)) == len(events(disk, AttemptSucceeded))


async def test_unplugged_at_half_it_pays_for_no_more() -> None:
    """The same when the power fails: what was confirmed is there, and in this default mode that is everything that was done."""
    task = Scripted(lambda value, _: Answer(f"answer to {value}", 1))
    it = define(task, numbered_cases(40), slots=4)
    disk = (await run_killed(it, SimulatedDisk(), after=5.5, policy="fixed")).unplugged(random.Random(4))
    outcome = await run_virtual(it, disk, resume=True, policy="fixed")

    assert (40, 44) == (outcome.state.completed, task.calls.total())


async def test_rows_are_matched_by_name_not_by_place() -> None:
    """The rows turned round between crash and resumption: still the same cases, each with the answer to its own question."""
    task = Scripted(lambda value, _: Answer(f"answer to {value}", 1))
    disk = await run_killed(define(task, numbered_cases(40), slots=4), SimulatedDisk(), after=5.5, policy="fixed")
    outcome = await run_virtual(define(task, numbered_cases(40)[::-1], slots=4), disk, resume=True, policy="fixed")

    assert (40, 44) == (outcome.state.completed, task.calls.total())
    questions = {event.trial: event.input for event in events(disk, TrialEnqueued)}
    answers = {event.trial: event.output for event in events(disk, AttemptSucceeded)}
    assert {name: f"answer to {question}" for name, question in questions.items()} == answers


async def test_a_retry_after_is_waited_for_by_all() -> None:
    """Refused with `Retry-After: 3`, nobody comes back before: of forty items, at most a slot's worth of calls is rejected."""
    task = Scripted(lambda *_: Fail(RateLimited(3.0), 0.1) if trio.current_time() < 3 else Answer("yes", 0.1))
    disk = SimulatedDisk()
    outcome = await run_virtual(define(task, numbered_cases(40), slots=8), disk)

    assert (40, 0) == (outcome.state.completed, outcome.state.failed)
    assert len(events(disk, AttemptFailed)) <= 8
    started = [record.t for record in read(PATH, files=disk) if record.event.__class__.__name__ == "AttemptStarted"]
    assert not [t for t in started if 0.2 < t < 3.0]


async def test_permanent_failures_are_never_averaged_away() -> None:
    """A quarter fails for good: the mean is over those that were scored, and ok, failed and all are told with it."""
    task = Scripted(lambda value, _: Fail(Fatal("unauthorized")) if int(value[5:]) % 4 == 0 else Answer("yes"))
    it = define(task, numbered_cases(16))

    @it.score
    def exact(output: str, case: Case[str, str]) -> bool:
        return output == case.expected

    outcome = await run_virtual(it, SimulatedDisk())

    words = final_report(outcome.state, path=PATH)
    assert "16 of 16 trials done" in words
    assert "12 ok of 16 done" in words
    assert "100.0 %  12 of 12 passed" in words
    assert "4 trials failed:" in words


async def test_what_is_run_is_pinned_in_the_first_event() -> None:
    """The first thing that a run says is what it is a run of: task, scorers, dataset and settings, each by its fingerprint."""
    it = define(Scripted(lambda *_: Answer("yes")), numbered_cases(2), slots=3)

    @it.score
    def exact(output: str, case: Case[str, str]) -> bool:
        return output == case.expected

    disk = SimulatedDisk()
    await run_virtual(it, disk)

    first = events_of(PATH, files=disk)[0]
    assert isinstance(first, RunStarted)
    assert ("scripted", it.fingerprint, 2, 3) == (
        first.evaluation,
        first.task_fingerprint,
        first.trials,
        first.settings["slots"],
    )
    assert {"exact": it.scorers["exact"].version} == first.scorers
    assert all((first.dataset_fingerprint, first.settings_fingerprint))
