"""Random costs, slots, judges, failures and kills: no run exceeds its budget, as far as costs are known in advance."""

from typing import Any

import attrs
import pytest
import trio
import trio.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evaljournal import Outcome, Retry, note
from evaljournal.journal import Record, read
from evaljournal.journal.events import AttemptFailed, AttemptStarted, AttemptTimedOut, Noted, TrialCompleted
from evaljournal.replay import fold
from evaljournal.runner.calls.notes import engine_note
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, AnyEvaluation, audited, define, numbered_cases, run_killed, run_virtual


@attrs.frozen
class Plan:
    """What happens in a run; amounts are in cents, so that sums are exact."""

    costs: list[int]
    """What each attempt at a case costs, without the judge."""
    judge: int
    """What each call of the judge costs; 0: there is none."""
    problems: list[str]
    """What happens to the first attempt at each case: `fails`, `hangs` or nothing."""
    estimate: int | None
    limit: int
    slots: int
    kills: list[float]
    """Seconds after which each session but the last one is killed."""


class PaidTask:
    """A task that counts what it has cost, even if the process dies before that is recorded."""

    __name__ = "paid_task"

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._called: set[str] = set()
        self.paid = 0

    async def __call__(self, name: str) -> str:
        """Cost something, and report it; the first attempt may fail after that, or hang before."""
        number = int(name.removeprefix("case-"))
        problem = "" if name in self._called else self._plan.problems[number]
        self._called.add(name)
        self.paid += self._plan.costs[number]
        await trio.sleep(0.3 + number % 4)
        if problem == "hangs":
            await trio.sleep_forever()
        note(cost=self._plan.costs[number] / 100)
        await trio.sleep(0.3)
        if problem == "fails":
            raise ConnectionError("gone")
        return name

    def check_price(self, _: Any, /) -> None:
        """There is a price."""

    def estimate(self, _: Any, __: float | None, /) -> dict[str, float]:
        """Return the estimate of the plan, if it has one."""
        return {} if self._plan.estimate is None else {"cost": self._plan.estimate / 100}


class PaidJudge:
    """The judge of a `PaidTask`."""

    __name__ = "judge"

    def __init__(self, task: PaidTask, cost: int) -> None:
        self._task, self._cost = task, cost

    async def __call__(self, output: str) -> bool:
        """Cost something, and report it as a judge does."""
        self._task.paid += self._cost
        await trio.sleep(0.7)
        engine_note(judge_usage={"usage": {"cost": self._cost / 100}})
        return bool(output)

    def check_price(self, _: Any, /) -> None:
        """There is a price."""

    def estimate(self, _: Any, __: float | None, /) -> dict[str, float]:
        """Return nothing: the estimate of the task contains it."""
        return {"cost": 0.0}


def evaluation_of(plan: Plan, task: PaidTask) -> AnyEvaluation:
    """Return an evaluation that is the same in all sessions of a run."""
    retry = Retry(errors=4, timeouts=4, base_delay=0.5)
    options: dict[str, Any] = {"slots": plan.slots, "budget": {"cost": plan.limit / 100}, "policy": "fixed", "retry": retry}
    defined = define(task, numbered_cases(len(plan.costs)), timeout=9.0, write_ahead=True, **options)
    if plan.judge:
        defined.score(PaidJudge(task, plan.judge))
    return defined


def run_plan(plan: Plan) -> tuple[SimulatedDisk, PaidTask, AnyEvaluation]:
    """Run a plan, with its kills, until the run is finished or stopped by its budget."""
    task = PaidTask(plan)
    defined, disk = evaluation_of(plan, task), SimulatedDisk()

    async def main() -> SimulatedDisk:
        killed_disk, is_resumed = disk, False
        for after in plan.kills:
            try:
                killed_disk = await run_killed(defined, killed_disk, after=after, resume=is_resumed)
            except IndexError:  # It had ended before.
                return killed_disk
            is_resumed = True
        await run_virtual(defined, killed_disk, resume=is_resumed)
        return killed_disk

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)), task, defined


def resumed(defined: AnyEvaluation, disk: SimulatedDisk, **options: Any) -> Outcome:
    """Resume a run."""

    async def main() -> Outcome:
        return await run_virtual(defined, disk, resume=True, **options)

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@st.composite
def plans(draw: st.DrawFn, *, bounded: bool) -> Plan:
    """Return plans; with `bounded`, no attempt costs more than its reserve."""
    count, judge = draw(st.integers(1, 12)), draw(st.sampled_from([0, 0, 7]))
    problems = st.sampled_from(["", "", "", "fails", *(["hangs"] if bounded else [])])
    if bounded:
        cost = draw(st.integers(1, 60))
        costs: list[int] = [cost] * count
        estimate: int | None = cost + judge + draw(st.sampled_from([0, 0, 15]))
        kills = draw(st.lists(st.floats(0.1, 8.0), max_size=4))
    else:
        costs, kills = draw(st.lists(st.integers(0, 60), min_size=count, max_size=count)), []
        estimate = draw(st.none() | st.integers(0, 60))
    return Plan(
        costs=costs,
        judge=judge,
        problems=draw(st.lists(problems, min_size=count, max_size=count)),
        estimate=estimate,
        limit=draw(st.integers(1, 500)),
        slots=draw(st.integers(1, 8)),
        kills=kills,
    )


def check_bounded(plan: Plan) -> None:
    """A run whose attempts cost at most their reserve pays at most its budget."""
    disk, task, defined = run_plan(plan)
    result, state = audited(disk), fold(read(PATH, files=disk))
    use = result.budget["cost"]

    assert (0.0, ()) == (use.overshoot, result.findings)
    assert task.paid <= plan.limit
    assert task.paid <= round(100 * use.spent, 6)
    assert state.outcome in {"finished", "budget"}
    if state.outcome == "budget":
        check_stopped(task, defined, disk)


def check_stopped(task: PaidTask, defined: AnyEvaluation, disk: SimulatedDisk) -> None:
    """A run that was stopped by its budget stops immediately if it is resumed with it, and is finished with a larger one."""
    paid = task.paid

    assert ("budget", paid) == (resumed(defined, disk).stop_reason, task.paid)
    assert "" == resumed(defined, disk, budget={"cost": 1_000}).stop_reason
    assert () == audited(disk).findings


def check_overshoot(plan: Plan) -> None:
    """The overshoot is what the audit reports, and at most what the last attempts in flight cost beyond the last reserve."""
    disk, task, _ = run_plan(plan)
    result = audited(disk)

    assert () == result.findings
    assert max(0, task.paid - plan.limit) == round(100 * result.budget["cost"].overshoot, 6)
    assert max(0, task.paid - plan.limit) <= round(100 * excess_of_last(list(read(PATH, files=disk))), 6)


def excess_of_last(records: list[Record]) -> float:
    """Return what the attempts in flight after the last start have cost beyond its reserve."""
    starts = [(record.seq, record.event.reserved) for record in records if isinstance(record.event, AttemptStarted)]
    last, reserved = starts[-1] if starts else (0, {})
    cost: dict[str, float] = {}
    excess = 0.0
    for record in records:
        match record.event:
            case AttemptStarted() as event:
                cost[event.trial] = 0.0
            case Noted(trial=trial, value=value):
                cost[trial] += value["usage"]["cost"] if isinstance(value, dict) else value
            case TrialCompleted(trial=trial) | AttemptFailed(trial=trial) | AttemptTimedOut(trial=trial) if record.seq > last:
                excess += max(0.0, cost[trial] - reserved.get("cost", 0.0))
            case _:
                pass
    return excess


KILLED_JUDGES = Plan(costs=[31] * 5, judge=7, problems=[""] * 5, estimate=38, limit=200, slots=2, kills=[5.4, 0.6, 8.0])
"""The calls of a judge are killed twice; a third call could exceed the budget."""


@settings(max_examples=8, deadline=None, derandomize=True)
@given(plan=plans(bounded=True))
@example(plan=KILLED_JUDGES)
def test_a_run_never_exceeds_its_budget(plan: Plan) -> None:
    """If no attempt costs more than its reserve, the budget is never exceeded, whatever fails, hangs or is killed."""
    check_bounded(plan)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(plan=plans(bounded=False))
def test_the_overshoot_is_bounded_and_reported(plan: Plan) -> None:
    """If attempts cost more than their reserve, the overshoot is bounded by those in flight, and `verify` reports it."""
    check_overshoot(plan)


@pytest.mark.exhaustive
@settings(max_examples=1_000, deadline=None, derandomize=True)
@given(plan=plans(bounded=True))
def test_a_run_never_exceeds_its_budget_in_many_plans(plan: Plan) -> None:
    """The same holds for many random plans."""
    check_bounded(plan)


@pytest.mark.exhaustive
@settings(max_examples=1_000, deadline=None, derandomize=True)
@given(plan=plans(bounded=False))
def test_the_overshoot_is_bounded_and_reported_in_many_plans(plan: Plan) -> None:
    """The same holds for many random plans."""
    check_overshoot(plan)
