"""Budgets: which attempts start, when a run stops and can be resumed, and what one trial may use."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from evaljournal import Case, Retry, UsageError, arun, durable, note, scorers
from evaljournal.journal import read
from evaljournal.journal.events import AttemptFailed, AttemptStarted, AttemptSucceeded, AttemptTimedOut, RunStopped, TrialFailed
from evaljournal.replay import RunState, fold, load
from evaljournal.replay.runs.idle import reasons
from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.calls.recorded_output import RecordedOutput
from evaljournal.runner.definition.limits import parse_budget
from evaljournal.runner.sessions.options import LiveRun
from evaljournal.runner.sessions.rescore import Rescoring
from evaljournal.runner.testing import deterministic_options, inline
from tests.journal.disk import SimulatedDisk
from tests.runner.test_fork import FastDisk
from tests.runs import PATH, AnyEvaluation, audited, define, events, numbered_cases, run_killed, run_virtual

COST = 0.1


class Paid:
    """A task that costs something and takes a second; its calls are counted."""

    __name__ = "paid"

    def __init__(self, *, seconds: float = 1.0, cost: float | None = COST) -> None:
        self._seconds, self._cost = seconds, cost
        self.calls: list[str] = []
        self.in_flight = self.max_in_flight = 0

    async def __call__(self, value: str) -> str:
        """Report the cost and return the input."""
        self.calls.append(value)
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        await trio.sleep(self._seconds)
        self.in_flight -= 1
        if self._cost is not None:
            note(cost=self._cost)
        return value


def paid_evaluation(task: Callable[..., Any], count: int = 30, **options: Any) -> AnyEvaluation:
    """Return an evaluation with a budget of a dollar."""
    return define(task, numbered_cases(count), **{"slots": 10, "policy": "fixed", "budget": {"cost": 1}, **options})


def state_of(disk: SimulatedDisk) -> RunState:
    """Return the state of the run; the audit passes."""
    assert () == audited(disk).findings
    return fold(read(PATH, files=disk))


async def test_a_run_stops_before_it_exceeds_its_budget(disk: SimulatedDisk) -> None:
    """No attempt starts that could exceed the budget; `run_stopped` has the reason, and a larger budget is suggested."""
    task = Paid()
    outcome = await run_virtual(paid_evaluation(task), disk)

    assert (10, "budget") == (len(task.calls), outcome.stop_reason)
    assert ["budget"] == [event.reason for event in events(disk, RunStopped)]
    assert "cost $1.00 of $1.00 used; the next attempt may use $0.100" == outcome.detail
    assert "next: run(paid, '/runs/it/0001', resume=True, budget=['cost=3.1'])" in outcome.summary_text
    assert "budget: cost $1.00 of $1.00 spent; worst possible overshoot: none" in outcome.summary_text
    assert 1.0 == round(state_of(disk).usage["cost"], 9)


async def test_attempts_in_flight_finish(disk: SimulatedDisk) -> None:
    """A run that is stopped by its budget waits for attempts in flight, however short the grace period is."""
    task = Paid(seconds=100.0)
    outcome = await run_virtual(paid_evaluation(task, timeout=None, grace=0.1), disk)

    assert ("budget", 10, 0) == (outcome.stop_reason, outcome.state.completed, outcome.state.trials.attempts.interrupted)


async def show_reasons(shown: list[str], live: LiveRun) -> None:
    """Add the reasons why slots are idle after half a second."""
    await trio.sleep(0.5)
    shown.extend(reason.text for reason in reasons(live.state, now=live.now(), total=live.total))


async def test_few_attempts_without_a_reserve(disk: SimulatedDisk) -> None:
    """If nothing is known about the cost, at most 4 attempts are in flight until one has reported it; the reason is shown."""
    task, shown = Paid(), list[str]()
    await run_virtual(paid_evaluation(task, budget={"cost": 100}), disk, observer=partial(show_reasons, shown))

    assert ["budget: at most 4 attempts in flight until one has reported its cost"] == shown
    assert [{}] * 4 + [{"cost": COST}] * 26 == [event.reserved for event in events(disk, AttemptStarted)]
    assert 10 == task.max_in_flight


async def test_an_estimate_that_does_not_fit_yet(disk: SimulatedDisk) -> None:
    """While the estimate for the next attempt does not fit, the reason is shown; afterwards it starts."""

    class Estimated(Paid):
        def check_price(self, _: Case, /) -> None:
            """There is a price."""

        def estimate(self, case: Case, _: float | None, /) -> dict[str, float]:
            return {"cost": 0.4 if case.name == "case-0" else 0.9}

    shown = list[str]()
    await run_virtual(paid_evaluation(Estimated(), 2, slots=2), disk, observer=partial(show_reasons, shown))

    assert ["budget: cost $0.400 of $1.00 used or reserved"] == shown
    assert [{"cost": 0.4}, {"cost": 0.1}] == [event.reserved for event in events(disk, AttemptStarted)]


async def test_no_other_rate_limit_key_starts_after_the_stop(disk: SimulatedDisk) -> None:
    """When the budget has stopped the session, the consumer that found that out starts no job of another rate-limit key."""

    class Estimated(Paid):
        def check_price(self, _: Case, /) -> None:
            """There is a price."""

        def estimate(self, case: Case, _: float | None, /) -> dict[str, float]:
            return {"cost": 2.0 if case.name == "a1" else 0.1}

    task = Estimated(cost=None)
    cases = [Case(name=name, input=name, metadata={"key": name[0]}) for name in ("a0", "b0", "a1", "b1")]
    outcome = await run_virtual(define(task, cases, slots=1, limit_key="key", budget={"cost": 1}), disk)

    assert ("budget", ["a0", "b0"]) == (outcome.stop_reason, sorted(task.calls))
    state_of(disk)


async def test_usage_is_never_reported(disk: SimulatedDisk) -> None:
    """If 20 trials have reported no cost, nothing more starts; the next session tries again."""
    task = Paid(cost=None)
    outcome = await run_virtual(paid_evaluation(task, 100, budget={"cost": 100}), disk)

    assert "budget" == outcome.stop_reason
    assert "20 trials have reported no cost, so the budget cannot be enforced; record it with note(cost=…)" == outcome.detail
    assert "next: run(paid, '/runs/it/0001', resume=True, adopt=True)" in outcome.summary_text
    assert 20 <= len(task.calls) <= 23
    await run_virtual(paid_evaluation(task, 100), disk, resume=True)
    assert 40 <= len(task.calls) <= 46
    state_of(disk)


async def test_recorded_outputs_cost_nothing(disk: SimulatedDisk) -> None:
    """Outputs in the dataset need no report: nothing is called."""
    cases = [Case(name=str(number), input={"output": "yes"}) for number in range(30)]
    outcome = await run_virtual(define(RecordedOutput("output"), cases, budget={"cost": 1}, loop=None), disk)

    assert "" == outcome.stop_reason


async def test_timeouts_count_as_spent(disk: SimulatedDisk) -> None:
    """The reserve of an attempt that timed out counts as spent, because its call may have been paid for."""

    async def task(value: str) -> str:
        await trio.sleep(1 if value == "case-0" else 1_000)
        note(cost=COST)
        return value

    outcome = await run_virtual(paid_evaluation(task, slots=1, timeout=5, retry=Retry(timeouts=0)), disk)
    use = state_of(disk).budget.use()["cost"]  # type: ignore[union-attr]  # it has one

    assert ("budget", 9) == (outcome.stop_reason, len(events(disk, AttemptTimedOut)))
    assert (1.0, 0.0) == (use.spent, use.overshoot)


async def test_attempts_without_a_reserve_count_as_spent(disk: SimulatedDisk) -> None:
    """Attempts that were killed before any cost was known count with the first cost that is reported."""
    task = Paid()
    disk = await run_killed(paid_evaluation(task), disk, after=0.5)
    outcome = await run_virtual(paid_evaluation(task), disk, resume=True)
    use = state_of(disk).budget.use()["cost"]  # type: ignore[union-attr]  # it has one

    assert ("budget", 10) == (outcome.stop_reason, len(task.calls))
    assert 1.0 == use.spent


async def test_a_budget_that_is_added_later(disk: SimulatedDisk) -> None:
    """What was spent before the first budget counts; without a budget nothing is reserved."""
    task = Paid()
    stopped = await run_virtual(paid_evaluation(task, slots=1, budget=None, deadline=5.5, grace=0), disk)
    assert ("deadline", None) == (stopped.stop_reason, stopped.state.budget)
    assert {None} == {event.reserved for event in events(disk, AttemptStarted)}

    await run_virtual(paid_evaluation(task, slots=1, budget=None), disk, resume=True, budget="cost=1")
    assert 1.0 == round(state_of(disk).usage["cost"], 9)


async def test_resume_replaces_single_units(disk: SimulatedDisk) -> None:
    """`resume` keeps the units that are not passed; none removes one of them."""
    defined = paid_evaluation(Paid(), slots=1)
    await run_virtual(defined, disk, budget=["output_tokens=2M", "cost=0.3"])
    await run_virtual(defined, disk, resume=True, budget={"cost": 0.5})
    assert {"output_tokens": 2e6, "cost": 0.5} == state_of(disk).settings["budget"]

    await run_virtual(defined, disk, resume=True)
    assert {"output_tokens": 2e6, "cost": 0.5} == state_of(disk).settings["budget"]
    outcome = await run_virtual(defined, disk, resume=True, budget="cost=none")
    assert ("budget", {"output_tokens": 2e6}) == (outcome.stop_reason, outcome.state.settings["budget"])
    assert "" == (await run_virtual(defined, disk, resume=True, budget=None)).stop_reason


async def test_judges_are_part_of_the_reserve(disk: SimulatedDisk) -> None:
    """The reserve of a trial is held until it is scored, so that its judge is paid from it."""
    defined = paid_evaluation(Paid(), slots=3)

    @defined.score
    async def judge(output: str) -> bool:
        await trio.sleep(5)
        note(cost=0.4)
        return bool(output)

    outcome = await run_virtual(defined, disk, budget={"cost": 2.2})

    assert ("budget", 4) == (outcome.stop_reason, outcome.state.completed)
    assert 2.0 == round(state_of(disk).usage["cost"], 9)
    assert [0.0] * 4 == [round(event.elapsed - 1, 6) for event in events(disk, AttemptSucceeded)]


async def test_timeouts_of_judges_count_as_spent(disk: SimulatedDisk) -> None:
    """A call of a judge that timed out, and is repeated, may have been paid for: the rest of the reserve counts."""
    defined, calls = paid_evaluation(Paid(), 2, slots=1, budget={"cost": 5}), 0

    @defined.score(timeout=2)
    async def judge(output: str) -> bool:
        nonlocal calls
        calls += 1
        await trio.sleep(10 if calls == 2 else 1)
        note(cost=0.4)
        return bool(output)

    await run_virtual(defined, disk)
    use = state_of(disk).budget.use()["cost"]  # type: ignore[union-attr]  # it has one

    assert (3, 1.4) == (calls, use.spent)


async def test_retries_of_judges_are_part_of_later_reserves(disk: SimulatedDisk) -> None:
    """A judge's call that failed and was repeated counts as spent, and later attempts reserve as much."""
    defined, calls = paid_evaluation(Paid(), 20, slots=1, budget={"cost": 20}), 0

    @defined.score
    async def judge(output: str) -> bool:
        nonlocal calls
        calls += 1
        await trio.sleep(1)
        note(cost=0.4)
        if calls == 1:
            raise ConnectionError("closed")
        return bool(output)

    await run_virtual(defined, disk)
    use = state_of(disk).budget.use()["cost"]  # type: ignore[union-attr]  # it has one

    assert (21, 10.4) == (calls, use.spent)
    assert {"cost": 0.9} == events(disk, AttemptStarted)[-1].reserved


async def test_rescoring_is_not_limited(path: Path) -> None:
    """A run whose budget is used up can be re-scored, and what its judges cost is recorded."""
    files, run_evaluation = FastDisk(), paid_evaluation(Paid(), 10, slots=1, budget={"cost": 0.5})
    stopped = await arun(run_evaluation, path, files=files, **deterministic_options())
    scored = paid_evaluation(Paid())

    @scored.score
    async def judge(output: str) -> bool:
        await trio.sleep(1)
        note(cost=0.2)
        return bool(output)

    rescored = await Rescoring(scored, path, files=files, in_thread=inline).rescore()

    assert ("budget", 5, 5) == (stopped.stop_reason, stopped.state.completed, rescored.outputs)
    assert 1.5 == round(load(path).state.usage["cost"], 9)


async def test_a_reused_step_counts_once(disk: SimulatedDisk) -> None:
    """The usage of a step that is reused is spent once."""

    async def task(value: str) -> str:
        await durable(name="model", kind="model", usage=lambda _: {"cost": 0.2})(answer)(value)
        await trio.sleep(10)
        return value

    async def answer(value: str) -> str:
        await trio.sleep(1)
        return value

    defined = paid_evaluation(task, 2, slots=2)
    disk = await run_killed(defined, disk, after=5)
    await run_virtual(defined, disk, resume=True)

    state = state_of(disk)
    assert (0.4, 2) == (state.budget.spent["cost"], state.steps.reused)  # type: ignore[union-attr]  # it has one


async def test_variants_have_their_own_reserves(disk: SimulatedDisk) -> None:
    """The reserve of a variant is the most that one of its own attempts has used."""

    async def task(value: str, *, cost: float) -> str:
        await trio.sleep(1)
        note(cost=cost)
        return value

    variants = {"small": {"cost": 0.01}, "large": {"cost": 0.3}}
    outcome = await run_virtual(paid_evaluation(task, 10, variants=variants, slots=2), disk)
    last = {event.trial.partition("@")[2]: event.reserved for event in events(disk, AttemptStarted)}

    assert ({"small": {"cost": 0.01}, "large": {"cost": 0.3}}, "budget") == (last, outcome.stop_reason)
    completed = [name for name, trial in state_of(disk).trials.items() if trial.stage == "completed"]
    assert ["case-0@small", "case-0@large", "case-1@small", "case-1@large", "case-2@small", "case-2@large"] == completed[:6]
    assert len(completed) <= 7


async def test_other_rate_limit_keys_continue(disk: SimulatedDisk) -> None:
    """If the budget does not allow the next attempt of one rate-limit key, those of another use the rest of it."""

    async def task(value: str, *, model: str) -> str:
        await trio.sleep(1)
        note(cost=0.3 if model == "dear" else 0.01)
        return value

    variants = {name: {"model": name} for name in ("cheap", "dear")}
    outcome = await run_virtual(paid_evaluation(task, 30, variants=variants, slots=1, limit_key="model"), disk)
    started = [event.key for event in events(disk, AttemptStarted)]

    assert ("budget", 3, 10) == (outcome.stop_reason, started.count("dear"), started.count("cheap"))
    assert 1.0 == round(state_of(disk).usage["cost"], 9)


@pytest.mark.parametrize("cost", [0.04, 0.06])
async def test_what_one_trial_may_use(disk: SimulatedDisk, cost: float) -> None:
    """A trial whose attempts use more than the budget per trial fails with the reason `budget`, and is not retried."""

    async def task(value: str) -> str:
        note(cost=cost)
        if value == "case-0":
            raise ConnectionError("gone")
        return value

    await run_virtual(paid_evaluation(task, 2, budget=None, budget_per_trial={"cost": 0.05}), disk)
    state = state_of(disk)

    failed = {event.trial: (event.reason, event.attempts) for event in events(disk, TrialFailed)}
    second = {} if cost < 0.05 else {"case-1": ("budget", 1)}
    assert {"case-0": ("budget", 2 if cost < 0.05 else 1), **second} == failed
    assert [None] * len(events(disk, AttemptStarted)) == [event.reserved for event in events(disk, AttemptStarted)]
    assert (len(failed), {}) == (state.failed, dict(state.scores))


async def test_an_agent_that_does_not_end(disk: SimulatedDisk) -> None:
    """An attempt is cancelled when its trial exceeds the budget per trial; if it is retried, nothing is spent yet."""

    async def agent(value: str) -> str:
        for number in range(1, 8):

            @durable(name="model", kind="model", key=lambda number=number: number, usage=lambda _: {"output_tokens": 400})
            async def model() -> str:
                await trio.sleep(1)
                return "go on"

            await model()
        return value

    defined = paid_evaluation(agent, 1, budget=None, budget_per_trial="output_tokens=1k")
    outcome = await run_virtual(defined, disk)

    assert ["OverBudget"] == [event.error for event in events(disk, AttemptFailed)]
    assert "budget per trial: output_tokens 1,000; exceeded by 1 trial" in outcome.summary_text
    assert (3, 1, 1) == (outcome.state.steps.completed, outcome.state.totals.attempts, outcome.state.failed)
    retried = await run_virtual(defined, disk, resume=True, retry_failed=True, budget_per_trial="output_tokens=2800")
    assert (1, 0) == (retried.state.completed, retried.state.failed)
    state_of(disk)


async def test_a_killed_attempt_over_the_budget_per_trial(disk: SimulatedDisk) -> None:
    """A trial whose killed attempt had used too much fails when the run is resumed; it is not called again."""
    calls = 0

    async def task(value: str) -> str:
        nonlocal calls
        calls += 1
        note(cost=1)
        with trio.CancelScope(shield=True):
            await trio.sleep(3)
        return value

    defined = paid_evaluation(task, 1, budget=None, budget_per_trial={"cost": 0.5})
    disk = await run_killed(defined, disk, after=1)
    await run_virtual(defined, disk, resume=True)

    assert (1, ["budget"]) == (calls, [event.reason for event in events(disk, TrialFailed)])
    state_of(disk)


async def test_an_agent_that_does_not_respond_to_cancellation(disk: SimulatedDisk) -> None:
    """An attempt that does not respond to its cancellation is abandoned, and its trial fails."""

    async def task(value: str) -> str:
        note(cost=1)
        with trio.CancelScope(shield=True):
            await trio.sleep(100)
        return value

    await run_virtual(paid_evaluation(task, 1, budget=None, budget_per_trial={"cost": 0.5}, timeout=None), disk)

    assert ["budget"] == [event.reason for event in events(disk, TrialFailed)]
    assert [6.0] == [event.elapsed for event in events(disk, AttemptFailed)]
    state_of(disk)


def test_estimates_of_chats() -> None:
    """An estimate needs the price, a token limit, and messages that are text."""
    case = Case(name="a", input="x" * 100)
    tokens = {"input_tokens": 44, "output_tokens": 1000}
    chat = Chat("gpt-4o-mini", max_tokens=1000, base_url="http://127.0.0.1:9")

    assert {**tokens, "cost": 0.0006066} == chat.estimate(case)
    assert {"input_tokens": 44} == attrs.evolve(chat, max_tokens=None).estimate(case)
    assert tokens == attrs.evolve(chat, model="no-price").estimate(case)
    image = Case(name="b", input=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}])
    assert {"output_tokens": 1000} == chat.estimate(image)


def test_estimates_of_judges() -> None:
    """The estimate of a judge contains the output that it is called with; without its length, its own input is unknown."""
    case = Case(name="a", input="x", expected="y")
    judge = scorers.judge("gpt-4o-mini", max_tokens=100, base_url="http://127.0.0.1:9")
    short, long = judge.estimate(case, 10), judge.estimate(case, 510)

    assert 500 == long["input_tokens"] - short["input_tokens"]
    assert round(500 * 0.15e-6, 12) == round(long["cost"] - short["cost"], 12)
    assert {"output_tokens": 100} == judge.estimate(case, None)


@pytest.mark.parametrize(("setting", "where"), [("budget", "task"), ("budget_per_trial", "task"), ("budget", "judge")])
async def test_models_without_a_price(disk: SimulatedDisk, setting: str, where: str) -> None:
    """A cost budget with a model, or a judge, that has no price is a usage error; nothing is started."""
    model, judge = ("no-price", "gpt-4o") if where == "task" else ("gpt-4o-mini", "no-price")
    defined = define(Chat(model, base_url="http://127.0.0.1:9"), [Case(name="a", input="x")], loop=None)
    defined.score(name="judge")(scorers.judge(judge, base_url="http://127.0.0.1:9"))

    with pytest.raises(UsageError, match="model 'no-price' has no price"):
        options: dict[str, Any] = {setting: {"cost": 1}}
        await run_virtual(defined, disk, **options)
    assert not disk.exists(str(PATH))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"cost": 5}, {"cost": 5.0}),
        ("cost=5", {"cost": 5.0}),
        (["cost=$0.50", "output_tokens=2M"], {"cost": 0.5, "output_tokens": 2e6}),
        (("input_tokens=1.5k",), {"input_tokens": 1500.0}),
        ({"cost": "1e-3"}, {"cost": 0.001}),
        ({}, None),
        (None, None),
        ("none", None),
        (("none",), None),
    ],
)
def test_budgets(value: Any, expected: Any) -> None:
    """A budget is a mapping, a string or several strings, with suffixes for thousands and millions."""
    assert expected == parse_budget("budget", value)


@pytest.mark.parametrize(
    "value",
    [
        {"cost": 0},
        {"cost": -1},
        {"cost": float("nan")},
        {"cost": float("inf")},
        {"cost": True},
        {"cost": "1e999"},
        {"tokens": 5},
        {"Cost": 5},
        "cost=0",
        "cost=-1",
        "cost=nan",
        "cost=",
        "cost",
        "output_tokens=2G",
        ["cost=1", "cost=2"],
        ["cost=1", "none"],
        5,
    ],
    ids=str,
)
def test_invalid_budgets(value: Any) -> None:
    """Zero, negative and infinite amounts, unknown units, and a unit that is passed twice are usage errors."""
    with pytest.raises(UsageError) as caught:
        parse_budget("budget", value)
    assert "budget" == caught.value.setting
