"""Scoring with its own concurrency, on a virtual clock: calls of scorers, their limits, timeouts, retries and audits."""

from collections.abc import Callable
from typing import Any

import pytest
import trio

from evaljournal import Case, Outcome, RateLimited, Retry, scorers
from evaljournal.journal import Record, read
from evaljournal.journal.events import (
    AttemptStarted,
    IntakePaused,
    LimitChanged,
    ScorerCallFailed,
    ScorerCallStarted,
    ScoringFailed,
    TrialScored,
)
from evaljournal.replay import fold
from evaljournal.replay.results.summary import summarize
from evaljournal.runner.testing import Fail, Hang, Return, Scripted
from tests.journal.disk import SimulatedDisk
from tests.runner.test_session import Unauthorized
from tests.runs import PATH, AnyEvaluation, audited, define, events, numbered_cases, run_virtual


class Model:
    """A scripted model at an address, as a task or as a judge; how many calls it has in flight is counted per address."""

    def __init__(self, latency: float, address: str, in_flight: "dict[str, list[int]] | None" = None) -> None:
        self.rate_limit_identity = address
        self.fingerprint = "model"
        self.__name__ = "model"
        self._latency = latency
        self._count = ({} if in_flight is None else in_flight).setdefault(address, [0, 0])

    async def __call__(self, *_: Any) -> bool:
        """Answer after a while."""
        count = self._count
        count[0] += 1
        count[1] = max(count)
        await trio.sleep(self._latency)
        count[0] -= 1
        return True


class Judging(Model):
    """A scripted model that is called with an output and a case."""

    async def __call__(self, output: Any, case: Any) -> bool:
        """Answer after a while."""
        await trio.lowlevel.checkpoint()  # So that it is recognized as a function for trio.
        return await super().__call__(output, case)


def evaluation_of(task: Any, count: int, **options: Any) -> AnyEvaluation:
    """Return an evaluation of `count` cases without retries after errors."""
    return define(task, options.pop("cases", numbered_cases(count)), **{"retry": Retry(errors=0), **options})


async def run_fixed(defined: AnyEvaluation, disk: SimulatedDisk | None = None, **options: Any) -> Outcome:
    """Run an evaluation under a fixed limit."""
    return await run_virtual(defined, disk or SimulatedDisk(), **{"policy": "fixed", **options})


def judge_of(script: Scripted) -> Callable[[Case[Any, Any]], Any]:
    """Return a scorer that does what a script defines for the name of the case."""

    async def judge(case: Case[Any, Any]) -> Any:
        await trio.lowlevel.checkpoint()
        return await script(case.name)

    return judge


async def answer_immediately(_: str) -> str:
    await trio.lowlevel.checkpoint()
    return "yes"


async def test_a_slow_judge_does_not_hold_slots_of_the_task() -> None:
    """2,000 trials in 100 slots, with 2 s for the task and 2 s for a judge elsewhere, take 2 s longer than the task alone."""
    defined = evaluation_of(Model(2.0, "task"), 2_000, slots=100)
    defined.score(name="judge")(Judging(2.0, "judge"))
    outcome = await run_fixed(defined)

    assert (2_000, 0) == (outcome.state.completed, outcome.state.failed)
    assert 42.0 <= outcome.state.t < 43


async def test_a_judge_at_the_same_endpoint_shares_the_limit(disk: SimulatedDisk) -> None:
    """Attempts and calls of a judge with the same endpoint and API key together never exceed the limit."""
    in_flight: dict[str, list[int]] = {}
    defined = evaluation_of(Model(1.0, "same", in_flight), 40, slots=8)
    defined.score(name="judge")(Judging(1.0, "same", in_flight))
    outcome = await run_fixed(defined, disk)

    assert 8 == in_flight["same"][1]
    assert 10.0 <= outcome.state.t < 11
    assert {""} == {event.key for event in events(disk, ScorerCallStarted)}
    assert {""} == {event.key for event in events(disk, LimitChanged)}


async def test_a_judge_elsewhere_has_a_limit_of_its_own(disk: SimulatedDisk) -> None:
    """A judge with another endpoint or API key has its own policy, and as many concurrent calls as the task."""
    in_flight: dict[str, list[int]] = {}
    defined = evaluation_of(Model(1.0, "task", in_flight), 40, slots=8)
    defined.score(name="judge")(Judging(1.0, "judge", in_flight))
    outcome = await run_fixed(defined, disk)

    assert (8, 8) == (in_flight["task"][1], in_flight["judge"][1])
    assert outcome.state.t < 6.5
    assert {"", "scorer:judge"} == {event.key for event in events(disk, LimitChanged)}
    assert {"scorer:judge": 8} == dict(summarize(outcome.state).scoring.limits)


async def test_the_retry_after_of_a_judge_pauses_its_calls_alone(disk: SimulatedDisk) -> None:
    """While a judge asks to wait, none of its calls starts, and attempts continue."""
    script = Scripted(
        lambda name, n: Fail(RateLimited(20.0), 0.5) if (name, n) == ("case-0", 1) else Return(output=True, after=0.5)
    )
    defined = evaluation_of(Model(1.0, "task"), 30, slots=2)
    defined.score(name="judge")(judge_of(script))
    outcome = await run_fixed(defined, disk)
    records = list(read(PATH, files=disk))
    (paused,) = [record for record in records if isinstance(record.event, IntakePaused)]
    assert isinstance(paused.event, IntakePaused)
    inside = [record.event for record in records if paused.t < record.t < paused.event.until - 1e-6]

    assert "scorer:judge" == paused.event.key
    assert not any(isinstance(event, ScorerCallStarted) for event in inside)
    assert 10 < sum(isinstance(event, AttemptStarted) for event in inside)
    assert 30 == outcome.state.completed
    assert () == audited(disk).findings


async def test_a_scorer_that_exceeds_its_timeout_is_called_again(disk: SimulatedDisk) -> None:
    """A call that hangs is recorded as timed out after the scorer's own timeout, and retried within `Retry.timeouts`."""
    script = Scripted({"case-0": [Hang(), Return(output=True, after=1)], "case-1": [Hang()]})
    defined = evaluation_of(answer_immediately, 2)
    defined.score(timeout=5, retry=Retry(timeouts=1), name="judge")(judge_of(script))
    outcome = await run_fixed(defined, disk)
    failed = events(disk, ScorerCallFailed)

    assert [("timed_out", 5.0)] * 3 == [(event.category, event.elapsed) for event in failed]
    assert [("case-0", 1, True), ("case-1", 1, True), ("case-1", 2, False)] == sorted(
        (event.trial, event.call, event.delay is not None) for event in failed
    )
    assert ["case-1"] == [event.trial for event in events(disk, ScoringFailed)]
    assert ["case-0"] == [event.trial for event in events(disk, TrialScored)]
    assert 2 == outcome.state.completed
    assert () == audited(disk).findings


async def test_the_timeout_of_a_scorer_is_that_of_the_run_by_default(disk: SimulatedDisk) -> None:
    """A scorer without a timeout of its own has that of the attempts; with None it has none."""
    defined = evaluation_of(answer_immediately, 1, retry=Retry(timeouts=0), timeout=3.0)

    async def slow(output: Any, case: Case) -> bool:
        await trio.sleep(10)
        return True

    defined.score(name="limited")(slow)
    defined.score(name="patient", timeout=None)(slow)
    await run_fixed(defined, disk)

    assert [("limited", 3.0)] == [(event.scorer, event.elapsed) for event in events(disk, ScorerCallFailed)]
    assert ["patient"] == [event.scorer for event in events(disk, TrialScored)]


async def test_built_in_scorers_record_no_calls(disk: SimulatedDisk) -> None:
    """A built-in scorer that only computes has neither calls nor a limit, whether it takes a thread or not."""

    async def answer(name: str) -> str:
        await trio.lowlevel.checkpoint()
        return "yes" if name == "case-0" else "x" * 100_000

    defined = evaluation_of(answer, 2)
    for scorer in (scorers.exact, scorers.regex("y"), scorers.close_to()):
        defined.score(scorer)
    outcome = await run_fixed(defined, disk)

    assert [] == events(disk, ScorerCallStarted)
    assert {""} == {event.key for event in events(disk, LimitChanged)}
    assert {"case-0": True, "case-1": False} == {
        event.trial: event.value for event in events(disk, TrialScored) if event.scorer == "exact"
    }
    assert (2, 2) == (outcome.state.completed, len(events(disk, ScoringFailed)))


async def test_no_attempt_starts_while_too_many_outputs_wait() -> None:
    """A scorer that cannot keep up delays attempts, so that outputs do not fill the memory; the state shows that."""
    defined = evaluation_of(Model(0.1, "task"), 200, slots=1)

    @defined.score
    async def slow(output: Any, case: Case) -> bool:
        await trio.sleep(5)
        return True

    max_scoring, is_held = 0, False
    disk, live = SimulatedDisk(), fold([])

    def follow(record: Record) -> None:
        nonlocal max_scoring, is_held
        live.apply(record)
        max_scoring = max(max_scoring, live.totals.stages["scoring"])
        is_held = is_held or live.holds_attempts

    outcome = await run_fixed(defined, disk, listener=follow)

    assert 200 == outcome.state.completed
    assert 2 * 1 + 64 + 1 == max_scoring
    assert is_held


async def test_poisoned_trials_queue_last(disk: SimulatedDisk) -> None:
    """A trial that was rate limited four times in a row is queued after those that wait."""
    script = Scripted(lambda name, n: Fail(RateLimited(None), 0.1) if name == "case-0" and n <= 6 else Return("yes", 1.0))

    async def task(name: str) -> Any:
        await trio.lowlevel.checkpoint()
        return await script(name)

    await run_fixed(evaluation_of(task, 60, slots=1, retry=Retry(base_delay=0.1, max_delay=0.2)), disk)
    order = [event.trial for event in events(disk, AttemptStarted)]

    assert 7 == order.count("case-0")
    assert order.index("case-0", order.index("case-0") + 1) < 10
    assert "case-0" in order[-3:]


async def test_a_stopped_run_scores_the_rest_when_it_is_resumed(disk: SimulatedDisk) -> None:
    """Calls in flight at the end of the grace period are cancelled without an end; a resumed run repeats them from call 1."""
    defined = evaluation_of(answer_immediately, 4, slots=4)
    calls = Scripted(lambda _, n: Hang() if n == 1 else Return(output=True))
    defined.score(timeout=None, name="judge")(judge_of(calls))
    stopped = await run_fixed(defined, disk, deadline=3.0, grace=1.0)
    resumed = await run_fixed(defined, disk, resume=True, deadline=None)

    assert ("deadline", 0) == (stopped.stop_reason, stopped.state.completed)
    assert ("", 4) == (resumed.stop_reason, resumed.state.completed)
    assert [1] * 8 == [event.call for event in events(disk, ScorerCallStarted)]
    assert 4 == len(events(disk, AttemptStarted))
    assert () == audited(disk).findings


async def test_an_unauthorized_scorer_stops_the_run(disk: SimulatedDisk) -> None:
    """A scorer whose every call would fail in the same way stops the run; its output is scored when the run is resumed."""
    defined = evaluation_of(answer_immediately, 20, slots=2)
    allowed = [False]

    @defined.score
    async def judge(output: Any, case: Case) -> bool:
        await trio.lowlevel.checkpoint()
        if not allowed[0]:
            raise Unauthorized("no such key")
        return True

    stopped = await run_fixed(defined, disk)
    allowed[0] = True
    resumed = await run_fixed(defined, disk, resume=True)

    assert "unauthorized" == stopped.stop_reason
    assert {("fatal", 0.0)} == {(event.category, event.delay) for event in events(disk, ScorerCallFailed)}
    assert (20, []) == (resumed.state.completed, events(disk, ScoringFailed))
    assert () == audited(disk).findings


@pytest.mark.parametrize("policy", ["adaptive", "fixed"])
async def test_a_policy_of_attempts_and_calls(policy: str, disk: SimulatedDisk) -> None:
    """Attempts and calls of a judge at the same endpoint stay within the limits, pauses and paces of one policy."""

    def script(name: str, times: int) -> Any:
        number = int(name.removeprefix("case-"))
        return Fail(RateLimited(1.0), 0.2) if number % 7 == 0 and times == 1 else Return("yes", 0.5 + number % 3)

    tasks, judges = Scripted(script), Scripted(script)

    class Task(Model):
        async def __call__(self, name: str) -> Any:
            await trio.lowlevel.checkpoint()
            return await tasks(name)

    class Judge(Model):
        async def __call__(self, case: Any) -> Any:
            await trio.lowlevel.checkpoint()
            return await judges(case.name)

    defined = evaluation_of(Task(0, "same"), 60, slots=12)
    defined.score(name="judge")(Judge(0, "same"))
    outcome = await run_fixed(defined, disk, policy=policy)
    result = audited(disk)

    assert 60 == outcome.state.completed
    assert () == result.findings
    assert result.decisions_reproduced >= 9


async def test_outputs_are_scored_within_the_grace(disk: SimulatedDisk) -> None:
    """After a stop no attempt starts; outputs, even of attempts in flight, are scored within the grace period."""
    defined = evaluation_of(Model(1.0, "task"), 8, slots=2)
    defined.score(name="judge")(Judging(2.0, "judge"))
    outcome = await run_fixed(defined, disk, deadline=2.5, grace=5.0)  # Six attempts have started, and two calls of the judge.

    assert ("deadline", 6, 6) == (outcome.stop_reason, len(events(disk, AttemptStarted)), outcome.state.completed)
    assert 7.0 <= outcome.state.t < 7.1
    assert () == audited(disk).findings


async def test_outputs_that_cannot_be_scored_within_the_grace_are_left(disk: SimulatedDisk) -> None:
    """A scorer call that could only start after the grace period is not waited for; the next session makes it."""
    limited = Scripted({"yes": [Fail(RateLimited(60.0), 0.1), Return(output=True)]})
    defined = evaluation_of(answer_immediately, 1)

    @defined.score(retry=Retry())
    async def judge(output: str, case: Any) -> Any:
        return await limited(output)

    stopped = await run_fixed(defined, disk, deadline=1.0, grace=30.0)
    resumed = await run_fixed(defined, disk, resume=True, deadline=None)

    assert ("deadline", 1, 0) == (stopped.stop_reason, stopped.state.totals.stages["scoring"], stopped.state.completed)
    assert ("", 1) == (resumed.stop_reason, resumed.state.completed)
