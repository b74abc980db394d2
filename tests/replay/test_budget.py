"""The budget of a run as the journal records it: what the audit recomputes, and what the screen and the summary show."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import pytest
import trio

from evaljournal import note
from evaljournal.journal import Event, Record, read
from evaljournal.journal.events import AttemptFailed, AttemptStarted, AttemptSucceeded, Noted, RunStopped, TrialCompleted
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay import RunState, fold
from evaljournal.replay.auditing.auditor import audit
from evaljournal.replay.auditing.findings import Audit
from evaljournal.replay.render.ending import next_command
from evaljournal.replay.render.screen import line
from evaljournal.replay.results.budget_text import spent_text
from evaljournal.replay.results.summary import summarize
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.state.budget import Budget, round_up
from evaljournal.runner.retries.rules import retry_rules
from tests.journal.disk import SimulatedDisk
from tests.journal.samples import started
from tests.replay.recorded_run import Change, changing, index_of, run_virtually, with_settings
from tests.replay.trial_events import enqueued, records
from tests.runs import PATH, define, numbered_cases, run_virtual


@functools.cache
def records_of_run(**options: Any) -> tuple[Record, ...]:
    """Return the records of a run in which each attempt costs 0.10 dollars."""

    async def task(value: str) -> str:
        await trio.sleep(1)
        note(cost=0.1)
        return value

    disk = SimulatedDisk()
    definition = define(task, numbered_cases(12), slots=2, policy="fixed", **options)
    run_virtually(functools.partial(run_virtual, definition, disk))
    return tuple(read(PATH, files=disk))


def audit_of(run: Sequence[Record]) -> Audit:
    """Return the audit of records."""
    return audit(run, rules=retry_rules)


def with_reserve(reserved: Any, n: int = 4) -> Change:
    """Change the reserve of an attempt."""
    return changing(AttemptStarted, n, reserved=reserved)


def state_with(events: Iterable[Event], **settings: Any) -> RunState:
    """Return the state of a run with these events, a budget and these settings."""
    run = evolve_fact(started(), settings={**started().settings, "budget": {"cost": 1}, **settings})
    return fold(records(events, run))


STOPPED = {"budget": "cost=0.5"}


def test_a_run_passes() -> None:
    """Every admission, and the stop, is recomputed; the audit has what was spent and the worst possible overshoot."""
    result = audit_of(records_of_run(**STOPPED))
    use = result.budget["cost"]

    assert ((), 6) == (result.findings, result.decisions_reproduced)  # 5 attempts and the stop.
    assert (0.5, 0.5, 0.0, 0.0, 0.0) == attrs.astuple(use)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (with_reserve(None), "the reserve of 'case-4' is None, but the budget reserves {'cost': 0.1}"),
        (with_reserve({}), "the reserve of 'case-4' is {}, but the budget reserves {'cost': 0.1}"),
        (with_reserve({"cost": 0.01}), "but the budget reserves {'cost': 0.1}"),
        (with_reserve({"cost": 0.2}), "but the budget reserves {'cost': 0.1}"),
        (with_reserve({"cost": "0.1"}), "but the budget reserves {'cost': 0.1}"),
        (with_reserve({"cost": 0.6}, 0), "'case-0' starts, but the budget does not allow it: limit (cost)"),
        (with_settings(budget={"cost": 0.4}), "'case-4' starts, but the budget does not"),
        (with_settings(budget={"cost": 0.6}), "but the budget allows another attempt"),
        (with_settings(budget=None), "'case-0' has a reserve, but the run has no budget"),
    ],
)
def test_violations(change: Change, problem: str) -> None:
    """The audit detects a wrong reserve, a start that the budget does not allow, and a stop without a cause."""
    result = audit_of(change(records_of_run(**STOPPED)))

    assert "budget" == result.findings[0].check
    assert problem in result.findings[0].message


@pytest.mark.parametrize(
    "budget", [{"cost": "5"}, {"cost": float("inf")}, {"cost": -1}, "cost=5", 7, {"other": 1}, [1]], ids=str
)
def test_foreign_budgets(budget: Any) -> None:
    """An invalid budget in a foreign journal is ignored."""
    state = fold(with_settings(budget=budget)(records_of_run(**STOPPED)))

    assert state.budget is not None
    assert ({}, "") == (state.budget.use(), spent_text(state))


def test_violations_of_the_budget_per_trial() -> None:
    """The audit detects an output of a trial that exceeded its budget, and a budget failure of a trial that did not."""
    run = records_of_run(budget_per_trial="cost=0.1")
    exceeded, index = changing(Noted, value=0.2)(run), index_of(run, AttemptSucceeded)
    succeeded: Any = run[index].event
    failure = AttemptFailed(
        trial=succeeded.trial, attempt=1, error="OverBudget", message="", category="fatal", elapsed=succeeded.elapsed
    )

    assert () == audit_of(run).findings
    message = f"{succeeded.trial!r} has an output, but exceeded the budget per trial"
    assert [message] == [finding.message for finding in audit_of(exceeded).findings]
    message = f"{succeeded.trial!r} fails because of the budget per trial, but did not exceed it"
    assert message == audit_of([*run[:index], run[index]._replace(event=failure), *run[index + 1 :]]).findings[0].message


def test_what_is_shown() -> None:
    """The screen and the summary as JSON show what is spent, the limit, and how many more trials the budget is enough for."""
    run = records_of_run(budget="cost=0.75", deadline=2.5)
    state = fold(run)

    assert "cost $0.600 of $0.750 · about 1 more trial" == spent_text(state)
    assert "budget: cost $0.600 of $0.750 · about 1 more trial" in line(state, now=3.0, total=12)
    assert {
        "run": {"cost": {"limit": 0.75, "spent": 0.6, "reserved": 0.0, "other_runs": 0.0, "overshoot": 0.0}},
        "more_trials": 1,
        "per_trial": {},
        "trials_exceeded": 0,
    } == view_json(summarize(state))["budget"]


def test_an_interrupted_session() -> None:
    """While attempts are in flight, or if their process was killed, their reserves are part of the worst overshoot."""
    run = [record for record in records_of_run(**STOPPED) if not isinstance(record.event, RunStopped)]
    last = max(record.seq for record in run if isinstance(record.event, AttemptStarted))
    state = fold(record for record in run if record.seq <= last)

    assert state.budget is not None
    assert (0.4, 0.1) == (state.budget.use()["cost"].spent, state.budget.use()["cost"].reserved)


def test_the_next_command() -> None:
    """A run that was stopped by its budget is resumed with one that is enough for the remaining trials."""
    state = fold(records_of_run(**STOPPED))

    assert "run(task, 'runs/a/0001', resume=True, budget=['cost=1.3'])" == next_command(state, "runs/a/0001")


@pytest.mark.parametrize(
    ("amount", "expected"), [(0.0, 0.0), (1.01, 1.1), (1.1, 1.1), (0.0123, 0.013), (99.5, 100.0), (4567, 4600)]
)
def test_round_up(amount: float, expected: float) -> None:
    """A suggested budget has two digits."""
    assert expected == round_up(amount)


def test_a_huge_budget() -> None:
    """A foreign journal may have any budget."""
    budget = Budget(limits={"cost": 1e308})
    budget.spent["cost"] = 1e-9

    assert 10**9 == budget.more_trials(50)


def test_a_budget_without_trials() -> None:
    """Before the first trial is done, no number of further trials is shown; the suggested budget is twice the current one."""
    budget = Budget(limits={"cost": 1.5, "output_tokens": 2e6})

    assert (None, {"cost": 3.0, "output_tokens": 4e6}) == (budget.more_trials(0), budget.larger_limits(3, 0))
    command = "evaljournal resume r --budget cost=3 --budget output_tokens=4000000 --task FILE.py:NAME"
    state = RunState(budget=budget)
    state.sessions.outcome = "budget"
    assert command == next_command(state, "r")


def test_unrelated_usage() -> None:
    """Notes of a run, of a trial without an attempt and with invalid amounts change no reserve."""
    notes = [
        Noted(name="cost", value=0.25),
        Noted(name="cost", value=-1),
        Noted(name="usage", value={"cost": "much", "input_tokens": True}),
        Noted(name="cost", value=0.25, trial="a"),
    ]
    start = AttemptStarted(trial="a", attempt=1, slot=0, reserved={"cost": 0.1})
    state = state_with([enqueued("a"), *notes, start])

    assert state.budget is not None
    assert (0.5, 0.1) == (state.budget.spent["cost"], state.budget.use()["cost"].reserved)


def test_late_usage_of_an_earlier_attempt() -> None:
    """What an abandoned attempt reports later is spent, and does not use up the reserve of the next attempt."""
    first = AttemptStarted(trial="a", attempt=1, slot=0, reserved={"cost": 0.1})
    failed = AttemptFailed(trial="a", attempt=1, error="E", message="", category="error", elapsed=0.5)
    second = AttemptStarted(trial="a", attempt=2, slot=0, reserved={"cost": 0.1})
    state = state_with([enqueued("a"), first, failed, second, Noted(name="cost", value=0.3, trial="a", attempt=1)])

    assert state.budget is not None
    assert (0.3, 0.1) == (state.budget.spent["cost"], state.budget.use()["cost"].reserved)


def test_completed_trials_are_removed() -> None:
    """Nothing is kept of a trial that is done, so that memory does not grow."""
    events: list[Event] = [
        enqueued("a"),
        AttemptStarted(trial="a", attempt=1, slot=0, reserved={}),
        Noted(name="cost", value=0.3, trial="a", attempt=1),
        AttemptSucceeded(trial="a", attempt=1, output="x", elapsed=0.5),
        TrialCompleted(trial="a", attempts=1),
    ]
    state = state_with(events, budget_per_trial={"cost": 1})

    assert state.budget is not None
    assert ({}, {}) == (state.budget._open, state.budget._usage_by_trial)
    assert {"cost": 0.3} == state.budget.reserve("", {})
