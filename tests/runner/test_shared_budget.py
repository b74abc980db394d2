"""Runs that share a budget: together they do not exceed it by more than one run may, and each journal can be audited alone."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from evaljournal import Case, Outcome, note
from evaljournal.journal import Record, read
from evaljournal.journal.events import AttemptStarted, RunStopped
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay import RunState, fold
from evaljournal.replay.auditing.auditor import audit
from evaljournal.replay.state.budget import MAX_UNKNOWN
from evaljournal.runner.gates.shared_budget import shared_budget
from evaljournal.runner.runs.verification import verify
from evaljournal.runner.sessions.session import Session
from evaljournal.runner.testing import deterministic_options, events_of
from tests.runs import AnyEvaluation, define

MAX_COST = 0.5


class Task:
    """A task whose attempts cost the same, sometimes fail, and take different times."""

    def __init__(self, name: str, random: Random, *, is_known: bool) -> None:
        self.__name__ = name
        self._random = random
        self._cost = random.choice([0.125, 0.25, MAX_COST])
        self._is_known = is_known

    async def __call__(self, number: int) -> int:
        await trio.sleep(self._random.random())
        note(cost=self._cost)
        if self._random.random() < 0.1:
            raise ConnectionError("gone")
        return number

    def check_price(self, _: Any, /) -> None:
        """There is a price."""

    def estimate(self, _: Any, __: float | None, /) -> dict[str, float]:
        """Return the cost, if it is known in advance."""
        return {"cost": self._cost} if self._is_known else {}


def costly(name: str, random: Random, *, is_known: bool = False) -> AnyEvaluation:
    """Return an evaluation with a `Task`."""
    cases = [Case(name=f"c{number}", input=number) for number in range(random.randint(8, 30))]
    return define(Task(name, random, is_known=is_known), cases, name=name, slots=8, policy="fixed")


async def run_together(
    evaluations: dict[str, AnyEvaluation], folder: Path, states: dict[str, RunState], budget: float
) -> dict[str, Outcome]:
    """Run evaluations at the same time with a shared budget, or resume them; those with a state only have ended before."""
    shares, outcomes = shared_budget(states), dict[str, Outcome]()

    async def run_one(name: str) -> None:
        options = {**deterministic_options(), "budget": {"cost": budget}, "budget_share": shares[name]}
        outcomes[name] = await Session(evaluations[name], folder / name, resume=states[name].seq > 0, **options).run()

    with trio.fail_after(10_000):
        async with trio.open_nursery() as nursery:
            for name in evaluations:
                nursery.start_soon(run_one, name)
    return outcomes


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("seed", range(5))
async def test_the_budget_is_not_exceeded(tmp_path: Path, seed: int, is_known: bool) -> None:  # noqa: FBT001
    """Runs spend at most the budget if costs are known, and otherwise a few attempts more; `verify` recomputes each start."""
    random = Random(seed)
    evaluations = {name: costly(name, random, is_known=is_known) for name in ("one", "two", "three")}
    states = {name: RunState() for name in evaluations}
    limit = random.choice([0.5, 3.0, 8.0])

    for budget in (limit, 2 * limit, 1_000.0):
        outcomes = await run_together(evaluations, tmp_path, states, budget)
        states = {name: outcome.state for name, outcome in outcomes.items()}
        spent = sum(state.usage.get("cost", 0.0) for state in states.values())

        assert spent <= budget + (0 if is_known else MAX_UNKNOWN * MAX_COST)
        verifications = [verify(tmp_path / name) for name in evaluations]
        assert [("ok", ())] * 3 == [(verification.verdict, verification.audit.findings) for verification in verifications]
    assert {""} == {outcome.stop_reason for outcome in outcomes.values()}


async def test_what_the_other_runs_spent_is_recorded(tmp_path: Path) -> None:
    """Each start, and a stop by the budget, has what the other runs had spent; a finished run counts with its total."""
    one, two = (costly(name, Random(1)) for name in ("one", "two"))
    first = await run_together({"one": one}, tmp_path, {"one": RunState()}, 100.0)
    total = first["one"].state.usage["cost"]

    await run_together({"two": two}, tmp_path, {"one": first["one"].state, "two": RunState()}, total + 2 * MAX_COST)

    starts = [event for event in events_of(tmp_path / "one") if isinstance(event, AttemptStarted)]
    later_events = [event for event in events_of(tmp_path / "two") if isinstance(event, AttemptStarted | RunStopped)]
    assert {0.0} == {event.other_runs["cost"] for event in starts}
    assert {total} == {event.other_runs["cost"] for event in later_events}
    assert isinstance(later_events[-1], RunStopped)
    assert {"cost": total} == fold(read(tmp_path / "two")).budget.other_runs  # type: ignore[union-attr]


@pytest.mark.parametrize(("kind", "amount"), [(AttemptStarted, 1_000.0), (RunStopped, 0.0)])
async def test_another_amount_is_a_finding(tmp_path: Path, kind: type, amount: float) -> None:
    """A start that the amount of the other runs does not allow is a finding, and so is a stop although it allows a start."""
    one, two = (costly(name, Random(1)) for name in ("one", "two"))
    first = await run_together({"one": one}, tmp_path, {"one": RunState()}, 100.0)
    states = {"one": first["one"].state, "two": RunState()}
    await run_together({"two": two}, tmp_path, states, first["one"].state.usage["cost"] + 2 * MAX_COST)

    def forged(record: Record) -> Record:
        is_forged = isinstance(record.event, kind)
        return record._replace(event=evolve_fact(record.event, other_runs={"cost": amount})) if is_forged else record

    assert () == audit(read(tmp_path / "two")).findings
    assert {"budget"} == {finding.check for finding in audit(map(forged, read(tmp_path / "two"))).findings}
