"""Defects of other tools, after a kill, rate limits or failures, that evaljournal must not have.

Tested elsewhere:

- outputs of one model are not used for another: a changed task is rejected, `tests/runner_cli/test_resume.py`
- the live state equals a fold at every record: `test_live_state_is_folded_state` in `tests/runner/test_session.py`
- `status` later shows what the run showed at its end: `tests/runner_cli/test_status.py`
"""

import random

import pytest

from evaljournal import Case
from evaljournal.journal import read
from evaljournal.journal.events import AttemptSucceeded, RunStarted, TrialCompleted, TrialEnqueued
from evaljournal.replay import fold
from evaljournal.runner.testing import Return, Scripted, events_of
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


async def test_the_first_event_has_all_fingerprints(disk: SimulatedDisk) -> None:
    """The first event has the fingerprints of task, scorers, dataset and settings."""
    evaluation = define(Scripted(lambda *_: Return("yes")), numbered_cases(2), slots=3)

    @evaluation.score
    def exact(output: str, case: Case[str, str]) -> bool:
        return output == case.expected

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
