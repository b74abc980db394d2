"""Defects of other tools, after a kill, rate limits or failures, that evaljournal must not have.

Tested elsewhere:

- outputs of one model are not used for another: a changed task is rejected, `tests/runner_cli/test_resume.py`
- the live state equals a fold at every record: `test_live_state_is_folded_state` in `tests/runner/test_session.py`
- `status` later shows what the run showed at its end: `tests/runner_cli/test_status.py`
"""

import random

import pytest
import trio

from evaljournal import Case, Fatal, RateLimited
from evaljournal.journal import read
from evaljournal.journal.events import AttemptFailed, AttemptSucceeded, RunStarted, TrialCompleted, TrialEnqueued
from evaljournal.replay import fold
from evaljournal.replay.ending import final_report
from evaljournal.runner.testing import Fail, Return, Scripted, events_of
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, define, events, numbered_cases, run_killed, run_virtual


@pytest.mark.parametrize("slots", [1, 4])
async def test_a_kill_loses_only_attempts_in_flight(slots: int) -> None:
    """A run that is killed after 20 of 40 cases makes the other 20 calls and repeats those in flight."""
    task = Scripted(lambda value, _: Return(f"answer to {value}", 1))
    evaluation = define(task, numbered_cases(40), slots=slots)
    disk = await run_killed(evaluation, SimulatedDisk(), after=20 / slots + 0.5, policy="fixed")
    assert 20 == fold(read(PATH, files=disk)).completed
    outcome = await run_virtual(evaluation, disk, resume=True, policy="fixed")

    assert (40, 40 + slots) == (outcome.state.completed, task.calls.total())
    assert 40 == len(events(disk, TrialCompleted)) == len(events(disk, AttemptSucceeded))


async def test_a_power_failure_costs_no_completed_trial() -> None:
    """After a power failure, every completed trial is in the journal (default durability)."""
    task = Scripted(lambda value, _: Return(f"answer to {value}", 1))
    evaluation = define(task, numbered_cases(40), slots=4)
    disk = (await run_killed(evaluation, SimulatedDisk(), after=5.5, policy="fixed")).after_power_failure(random.Random(4))
    outcome = await run_virtual(evaluation, disk, resume=True, policy="fixed")

    assert (40, 44) == (outcome.state.completed, task.calls.total())


async def test_cases_are_matched_by_name() -> None:
    """If the rows are reversed before resuming, each case keeps its own output."""
    task = Scripted(lambda value, _: Return(f"answer to {value}", 1))
    disk = await run_killed(define(task, numbered_cases(40), slots=4), SimulatedDisk(), after=5.5, policy="fixed")
    outcome = await run_virtual(define(task, numbered_cases(40)[::-1], slots=4), disk, resume=True, policy="fixed")

    assert (40, 44) == (outcome.state.completed, task.calls.total())
    questions = {event.trial: event.input for event in events(disk, TrialEnqueued)}
    outputs = {event.trial: event.output for event in events(disk, AttemptSucceeded)}
    assert {name: f"answer to {question}" for name, question in questions.items()} == outputs


async def test_a_retry_after_pauses_all() -> None:
    """After `Retry-After: 3` no call starts earlier; of forty trials, at most one per slot is rate limited."""
    task = Scripted(lambda *_: Fail(RateLimited(3.0), 0.1) if trio.current_time() < 3 else Return("yes", 0.1))
    disk = SimulatedDisk()
    outcome = await run_virtual(define(task, numbered_cases(40), slots=8), disk)

    assert (40, 0) == (outcome.state.completed, outcome.state.failed)
    assert len(events(disk, AttemptFailed)) <= 8
    start_times = [record.t for record in read(PATH, files=disk) if record.event.__class__.__name__ == "AttemptStarted"]
    assert not [t for t in start_times if 0.2 < t < 3.0]


async def test_failed_trials_are_excluded_from_the_mean() -> None:
    """If a quarter fails, the mean is over scored trials, and the summary has completed, failed and total."""
    task = Scripted(lambda value, _: Fail(Fatal("no")) if int(value[5:]) % 4 == 0 else Return("yes"))
    evaluation = define(task, numbered_cases(16))

    @evaluation.score
    def exact(output: str, case: Case[str, str]) -> bool:
        return output == case.expected

    outcome = await run_virtual(evaluation, SimulatedDisk())

    report = final_report(outcome.state, path=PATH)
    assert "16 of 16 trials done" in report
    assert "12 ok of 16 done" in report
    assert "100.0 %  12 of 12 passed" in report
    assert "4 trials failed:" in report


async def test_the_first_event_has_all_fingerprints() -> None:
    """The first event has the fingerprints of task, scorers, dataset and settings."""
    evaluation = define(Scripted(lambda *_: Return("yes")), numbered_cases(2), slots=3)

    @evaluation.score
    def exact(output: str, case: Case[str, str]) -> bool:
        return output == case.expected

    disk = SimulatedDisk()
    await run_virtual(evaluation, disk)

    first = events_of(PATH, files=disk)[0]
    assert isinstance(first, RunStarted)
    assert ("scripted", evaluation.fingerprint, 2, 3) == (
        first.evaluation,
        first.task_fingerprint,
        first.trials,
        first.settings["slots"],
    )
    assert {"exact": evaluation.scorers["exact"].version} == first.scorers
    assert all((first.dataset_fingerprint, first.settings_fingerprint))
