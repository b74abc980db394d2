"""Whole runs on a virtual clock: what is recorded, what is retried, what stops, what goes on."""

import itertools
import random
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
from hypothesis import given, settings
from hypothesis import strategies as st

from journal import read, verify
from journal.errors import JournalExists, JournalLocked, JournalPoisoned
from journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptReturnedLate,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    IntakePaused,
    LimitChanged,
    RetryScheduled,
    RunFinished,
    RunStarted,
    RunStopped,
    ScoringFailed,
    SessionStarted,
    TrialCompleted,
    TrialEnqueued,
    TrialFailed,
    TrialScored,
    TrialWithdrawn,
)
from replay import fold
from replay.audit import audit
from replay.screen import ending, score_in_words
from replay.summary import Adoption, summarise
from runner import Case, Evaluation, Fatal, RateLimited, Retry, UsageError, evaluation, note
from runner.doors import arun
from runner.errors import RunChanged
from runner.resume import in_force
from runner.session import Outcome, Session
from runner.signals import told
from runner.testing import Answer, Fail, Hang, Scripted, SimulatedEndpoint, Step, events_of, repeatable
from tests.journal.disk import PowerCut, SimulatedDisk

PATH = Path("/runs/it/0001")
Made = Evaluation[Any, Any, Any]


def made(task: Callable[[Any], Any], cases: Any, **options: Any) -> Made:
    """Make an evaluation for trio."""
    defined: Made = evaluation(cases=cases, **{"loop": "trio", "timeout": 30.0, **options})(task)
    return defined


def named(count: int) -> list[Case[str, str]]:
    return [Case(name=f"case-{number}", input=f"case-{number}", expected="yes") for number in range(count)]


async def go(it: Made, disk: SimulatedDisk, **options: Any) -> Outcome:
    """Run it in one order, on a disk in memory."""
    with trio.fail_after(100_000):  # Virtual seconds: what hangs is told, not waited for.
        return await arun(it, PATH, **{**repeatable(), "files": disk, **options})


def count(disk: SimulatedDisk, kind: type) -> int:
    return sum(isinstance(event, kind) for event in events_of(PATH, files=disk))


async def test_a_run_records_every_step() -> None:
    """A trial that works out leaves four facts and its scores; the run says what it was and how it ended."""
    it = made(Scripted(lambda _, __: Answer("yes", 0.5)), named(1))

    @it.score
    def exact(output: str, case: Case[str, str]) -> bool:
        return output == case.expected

    disk = SimulatedDisk()
    outcome = await go(it, disk)

    kinds = [type(event).__name__ for event in events_of(PATH, files=disk)]
    assert [
        "RunStarted",
        "SessionStarted",
        "LimitChanged",
        "TrialEnqueued",
        "AttemptStarted",
        "AttemptSucceeded",
        "TrialScored",
        "TrialCompleted",
        "RunFinished",
    ] == kinds
    assert AttemptSucceeded(trial="case-0", attempt=1, output="yes", elapsed=0.5) in events_of(PATH, files=disk)
    assert ("", 1, 0) == (outcome.stopped, outcome.state.completed, outcome.state.failed)
    assert verify(PATH, files=disk, expect_head=outcome.head).holds


async def test_a_failure_is_retried_after_a_delay() -> None:
    """An error is followed by a recorded back-off, and a trial that then works out counts as recovered."""
    task = Scripted({"a": [Fail(ConnectionError("no")), Fail(ValueError("odd")), Answer(1)]})
    disk = SimulatedDisk()
    outcome = await go(made(task, [Case(name="a", input="a")]), disk)

    assert ["unavailable", "error"] == [e.category for e in events_of(PATH, files=disk) if isinstance(e, AttemptFailed)]
    delays = [e.delay for e in events_of(PATH, files=disk) if isinstance(e, RetryScheduled)]
    assert 2 == len(delays)
    assert all(0 <= delay <= 2 for delay in delays)
    assert (1, 1, 3) == (outcome.state.completed, outcome.state.recovered, outcome.state.attempts)


async def test_fresh_work_proceeds_while_others_back_off() -> None:
    """A slot is not held by a trial that waits: with one slot, the others are done before the retry."""
    task = Scripted({"a": [Fail(ConnectionError("no")), Answer(1)], "b": [Answer(2)], "c": [Answer(3)]})
    disk = SimulatedDisk()
    retry = Retry(base_delay=60, max_delay=60)
    await go(made(task, [Case(name=n, input=n) for n in "abc"], slots=1, retry=retry), disk)

    ends = [event.trial for event in events_of(PATH, files=disk) if isinstance(event, TrialCompleted)]
    assert ["b", "c", "a"] == ends


async def test_a_timeout_is_one_attempts_outcome() -> None:
    """An attempt that outlives its limit is recorded with the limit; the trial has two more, then it is given up."""
    disk = SimulatedDisk()
    outcome = await go(made(Scripted({"a": [Hang()]}), [Case(name="a", input="a")], timeout=30), disk)

    events = events_of(PATH, files=disk)
    assert [AttemptTimedOut(trial="a", attempt=n, limit=30.0, elapsed=30.0) for n in (1, 2, 3)] == [
        event for event in events if isinstance(event, AttemptTimedOut)
    ]
    assert TrialFailed(trial="a", attempts=3, cause="timed_out") in events
    assert ("", 1) == (outcome.stopped, outcome.state.failed)


async def test_no_timeout_is_really_none() -> None:
    """With `timeout=None` an attempt may take a day."""
    disk = SimulatedDisk()
    outcome = await go(made(Scripted({"a": [Answer(1, after=86_000)]}), [Case(name="a", input="a")], timeout=None), disk)

    assert 1 == outcome.state.completed


async def test_a_programming_error_is_not_retried() -> None:
    """A TypeError would be the same next time: one attempt, and the trial is given up as fatal."""
    task = Scripted({"a": [Fail(TypeError("no such argument"))]})
    disk = SimulatedDisk()
    await go(made(task, [Case(name="a", input="a")]), disk)

    assert 1 == task.calls["a"]
    assert TrialFailed(trial="a", attempts=1, cause="fatal") in events_of(PATH, files=disk)


async def test_what_is_raised_on_purpose_is_heeded() -> None:
    """`Fatal` ends a trial; `RateLimited` never spends its attempts, and pauses everyone for as long as it asks."""
    task = Scripted({"a": [Fail(Fatal("never"))], "b": [*[Fail(RateLimited(3.0))] * 8, Answer(1)]})
    disk = SimulatedDisk()
    outcome = await go(made(task, [Case(name=n, input=n) for n in "ab"], retry=Retry(errors=0)), disk)

    assert (1, 1) == (outcome.state.completed, outcome.state.failed)
    assert 9 == task.calls["b"]
    assert count(disk, IntakePaused) >= 1


class Ruin(BaseException):
    """What no library should raise."""


@pytest.mark.parametrize("exc", [Ruin("all"), SystemExit(3), GeneratorExit()])
async def test_a_task_that_raises_baseexception_fails_alone(exc: BaseException) -> None:
    """Whatever a task raises is a fact about its attempt; the other trials go on."""
    task = Scripted({"a": [Fail(exc)], "b": [Answer(1)]})
    disk = SimulatedDisk()
    outcome = await go(made(task, [Case(name=n, input=n) for n in "ab"], retry=Retry(errors=0)), disk)

    assert (1, 1) == (outcome.state.completed, outcome.state.failed)


async def test_an_output_that_cannot_be_written_fails_its_trial_only() -> None:
    """One output that is not JSON fails that trial, with its place in the message, and no other."""
    task = Scripted({"a": [Answer({"deep": [object()]})], "b": [Answer(1)]})
    disk = SimulatedDisk()
    outcome = await go(made(task, [Case(name=n, input=n) for n in "ab"]), disk)

    failed = next(event for event in events_of(PATH, files=disk) if isinstance(event, AttemptFailed))
    assert "output.deep[0]" in failed.message
    assert TrialFailed(trial="a", attempts=1, cause="unserialisable") in events_of(PATH, files=disk)
    assert (1, 1) == (outcome.state.completed, outcome.state.failed)


async def test_a_task_that_swallows_cancellation_is_late_not_right() -> None:
    """An answer that comes after the limit, because the task would not be cancelled, is recorded as late, and not used."""

    async def stubborn(_: Any) -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(50)
        return "too late"

    disk = SimulatedDisk()
    it = made(stubborn, [Case(name="a", input="a")], timeout=30, retry=Retry(timeouts=0))
    await go(it, disk)

    events = events_of(PATH, files=disk)
    assert AttemptTimedOut(trial="a", attempt=1, limit=30.0, elapsed=50.0) in events
    assert AttemptReturnedLate(trial="a", attempt=1, ending="succeeded", elapsed=50.0) in events
    assert 0 == count(disk, AttemptSucceeded)


async def test_a_nursery_that_is_cancelled_is_not_late() -> None:
    """A task whose own nursery ends with it when its time is over has timed out, and that is all."""

    async def several(_: Any) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 50)
            nursery.start_soon(trio.sleep, 60)

    disk = SimulatedDisk()
    await go(made(several, [Case(name="a", input="a")], timeout=30, retry=Retry(timeouts=0)), disk)

    assert AttemptTimedOut(trial="a", attempt=1, limit=30.0, elapsed=30.0) in events_of(PATH, files=disk)
    assert 0 == count(disk, AttemptReturnedLate)


async def test_notes_are_kept_with_their_attempt() -> None:
    """What a task notes is recorded, and numbers are added up."""

    async def task(_: Any) -> int:
        note(tokens=12, model="small")
        note(tokens=3)
        await trio.lowlevel.checkpoint()
        return 1

    disk = SimulatedDisk()
    outcome = await go(made(task, [Case(name="a", input="a")]), disk)

    assert 15 == outcome.state.usage["tokens"]


async def test_a_scorer_that_fails_never_runs_the_task_again() -> None:
    """A scorer that raises is asked again by its own budget, then its score is missing; the task was called once."""
    task = Scripted({"a": [Answer("x")]})
    it = made(task, [Case(name="a", input="a")])
    asked: list[str] = []

    @it.score(retry=Retry(errors=2))
    async def judge(output: str, case: Any) -> bool:
        await trio.lowlevel.checkpoint()
        asked.append(output)
        raise ConnectionError("the judge is out")

    @it.score
    def fine(output: str, case: Any) -> float:
        return 0.5

    disk = SimulatedDisk()
    outcome = await go(it, disk)

    assert (1, 3) == (task.calls["a"], len(asked))
    assert 1 == count(disk, ScoringFailed)
    assert 0.5 == outcome.state.scores["fine"].mean
    assert 1 == outcome.state.completed


async def test_a_scorer_may_say_several_things() -> None:
    """A mapping gives several scores at once, each with a name."""
    it = made(Scripted({"a": [Answer("x")]}), [Case(name="a", input="a")])

    @it.score
    def judge(output: str, case: Any) -> dict[str, float]:
        return {"tone": 0.25, "facts": 1.0}

    disk = SimulatedDisk()
    await go(it, disk)

    scores = {e.scorer: e.value for e in events_of(PATH, files=disk) if isinstance(e, TrialScored)}
    assert {"judge.tone": 0.25, "judge.facts": 1.0} == scores


async def test_fail_fast_stops_at_the_first_failure() -> None:
    """With `fail_fast`, the first trial that is given up stops the run, which can be resumed."""
    task = Scripted(lambda value, _: Fail(Fatal("no"), 1) if value == "case-3" else Answer(1, 1))
    disk = SimulatedDisk()
    outcome = await go(made(task, named(50), slots=2), disk, fail_fast=True)

    assert "failed_fast" == outcome.stopped
    assert outcome.state.completed < 10
    assert RunStopped(reason="failed_fast") in events_of(PATH, files=disk)


async def test_a_refused_key_stops_the_run_at_once() -> None:
    """A 401 would meet every trial: the run stops with one message instead of fifty failures."""

    class Unauthorized(Exception):
        status_code = 401

    disk = SimulatedDisk()
    outcome = await go(made(Scripted(lambda *_: Fail(Unauthorized("bad key"), 0.1)), named(50), slots=2), disk)

    assert "refused" == outcome.stopped
    assert "bad key" in outcome.why
    assert (0, 2) == (outcome.state.failed, count(disk, AttemptStarted))


async def test_a_key_refused_twice_does_not_cut_off_the_others() -> None:
    """What stops the run stops it once: a second refusal leaves the grace to those that are still in the air."""

    class Unauthorized(Exception):
        status_code = 401

    def step(value: str, _: int) -> Step:
        return Answer(1, 2) if value == "case-2" else Fail(Unauthorized("bad key"), 0.5 if value == "case-0" else 1.0)

    disk = SimulatedDisk()
    outcome = await go(made(Scripted(step), named(4), slots=3), disk, policy="fixed", grace=5)

    assert ("refused", 1, 0) == (outcome.stopped, outcome.state.completed, outcome.state.failed)
    assert 0 == count(disk, AttemptInterrupted)


@pytest.mark.parametrize("read", [list, iter])
async def test_a_stop_with_the_last_trial_leaves_nothing_to_resume(read: Callable[[Any], Any]) -> None:
    """A run that is told to stop when everything is done is finished, though its last trial failed; nothing is left."""
    task = Scripted(lambda value, _: Fail(Fatal("no"), 2) if value == "case-2" else Answer(1, 1))
    disk = SimulatedDisk()
    outcome = await go(made(task, read(named(3)), slots=3), disk, policy="fixed", fail_fast=True)

    assert ("", "finished", 2, 1) == (outcome.stopped, outcome.state.ending, outcome.state.completed, outcome.state.failed)


async def test_most_failures_can_be_a_part() -> None:
    """`max_failures=0.1` lets a tenth fail, and no more."""
    task = Scripted(lambda *_: Fail(Fatal("no"), 1))
    disk = SimulatedDisk()
    outcome = await go(made(task, named(50), slots=1), disk, max_failures=0.1)

    assert ("failed_fast", 6) == (outcome.stopped, outcome.state.failed)


async def test_a_deadline_stops_the_run() -> None:
    """After its deadline a run starts nothing more, and can be resumed."""
    disk = SimulatedDisk()
    it = made(Scripted(lambda *_: Answer(1, 10)), named(20), slots=1, deadline=35)
    outcome = await go(it, disk, grace=20)

    assert ("deadline", 4) == (outcome.stopped, outcome.state.completed)
    outcome = await go(it, disk, resume=True, grace=20)
    assert ("deadline", 8) == (outcome.stopped, outcome.state.completed)


async def test_cases_that_break_half_way_leave_a_run_that_can_be_resumed() -> None:
    """If reading the cases fails in the middle, what is finished stays, and the run stops as resumable."""

    def broken() -> Any:
        yield from named(30)
        raise OSError("the network share went away")

    disk = SimulatedDisk()
    task = Scripted(lambda *_: Answer(1, 1))
    outcome = await go(made(task, broken, slots=2), disk)

    assert "intake_failed" == outcome.stopped
    assert "network share" in outcome.why
    assert 0 < outcome.state.completed <= 30
    assert verify(PATH, files=disk).holds


async def test_the_limit_holds() -> None:
    """Never more attempts at once than slots, from the journal as from the task."""
    task = Scripted(lambda value, _: Answer(1, 0.1 + len(value) * 0.01))
    disk = SimulatedDisk()
    await go(made(task, named(100), slots=4), disk)

    assert 4 == task.most_in_flight
    flying = 0
    for event in events_of(PATH, files=disk):
        flying += isinstance(event, AttemptStarted) - isinstance(event, AttemptSucceeded)
        assert flying <= 4


async def test_one_item_takes_as_long_as_it_takes() -> None:
    """Nothing sleeps to look again: one trial of no length takes no time, thirty at once take no longer than one."""
    disk = SimulatedDisk()
    before = trio.current_time()
    await go(made(Scripted(lambda *_: Answer(1)), named(1)), disk)

    assert 0 == trio.current_time() - before


async def test_a_second_outage_loses_nothing() -> None:
    """An outage of a second costs back-off, not trials: all hundred are completed."""
    endpoint = SimulatedEndpoint(lambda value: value, latency=0.05)
    endpoint.down_until = trio.current_time() + 1.0
    disk = SimulatedDisk()
    outcome = await go(made(endpoint, named(100), slots=10), disk)

    assert (100, 0) == (outcome.state.completed, outcome.state.failed)


async def test_trials_that_always_fail_hold_up_nobody() -> None:
    """One case in twenty is always reset by the other side: those are given up, all others are done, and soon."""
    cases = named(400)
    bad = {case.input for case in cases[::20]}
    task = Scripted(lambda value, _: Fail(ConnectionResetError("reset"), 0.5) if value in bad else Answer(1, 0.5))
    disk = SimulatedDisk()
    before = trio.current_time()
    outcome = await go(made(task, cases, slots=120), disk)

    assert (380, 20) == (outcome.state.completed, outcome.state.failed)
    assert 60 > trio.current_time() - before


async def test_a_probe_is_made_by_a_trial_that_has_not_failed() -> None:
    """After an outage, trials that always fail do not stand between the run and the first answer."""
    cases = named(300)
    bad = {case.input for case in cases[:30]}
    began = trio.current_time()

    def script(value: str, _: int) -> Step:
        down = trio.current_time() < began + 3
        return Fail(ConnectionResetError("reset"), 0.1) if down or value in bad else Answer(1, 0.1)

    disk = SimulatedDisk()
    outcome = await go(made(Scripted(script), cases, slots=50), disk)

    assert (270, 30) == (outcome.state.completed, outcome.state.failed)
    assert 300 > trio.current_time() - began


async def test_a_rate_limit_is_found_and_kept() -> None:
    """An endpoint of ten a second serves everything, and few calls are refused."""
    endpoint = SimulatedEndpoint(lambda value: value, latency=0.5, rate=10, burst=20, retry_after=1.0)
    disk = SimulatedDisk()
    outcome = await go(made(endpoint, named(400), slots=64), disk)

    assert 400 == outcome.state.completed
    assert endpoint.refused <= 40


async def test_a_retry_after_beyond_the_budget_ends_its_trial_only() -> None:
    """A trial that is asked to wait longer than it may is given up; others wait two minutes, and that costs them nothing."""
    task = Scripted({"a": [Fail(RateLimited(3600))], "b": [Fail(RateLimited(1)), Answer(1)]})
    disk = SimulatedDisk()
    cases = [Case(name=name, input=name) for name in "ab"]
    outcome = await go(made(task, cases, retry=Retry(rate_limits=60)), disk, slots=1)

    assert [TrialFailed(trial="a", attempts=1, cause="exhausted")] == [
        event for event in events_of(PATH, files=disk) if isinstance(event, TrialFailed)
    ]
    assert (1, True) == (outcome.state.completed, 120 < outcome.state.t < 130)


async def test_a_stop_gives_grace_then_cuts() -> None:
    """Told to stop, a run starts nothing more, waits for what ends in time, records the rest as interrupted, and resumes."""
    task = Scripted(lambda value, times: Hang() if value == "case-1" and times == 1 else Answer(1, 2))
    it = made(task, named(6), slots=2, timeout=None)
    disk = SimulatedDisk()

    async def stop_soon(live: Any) -> None:
        await trio.sleep(1)
        stopper()

    stopper = stop_when_started(it)
    before = trio.current_time()
    outcome = await go(it, disk, onlooker=stop_soon, grace=5)

    assert ("interrupted", 1) == (outcome.stopped, outcome.state.completed)
    cut = [event for event in events_of(PATH, files=disk) if isinstance(event, AttemptInterrupted)]
    assert [("case-1", 1, "stopped")] == [(event.trial, event.attempt, event.why) for event in cut]
    assert 6.0 == trio.current_time() - before
    assert RunStopped(reason="interrupted") in events_of(PATH, files=disk)

    outcome = await go(it, disk, resume=True)
    assert ("", 6) == (outcome.stopped, outcome.state.completed)
    assert 1 == task.calls["case-0"]


def stop_when_started(_: Made) -> Callable[[], None]:
    """Get hold of the executor of the next run, to stop it as a signal would."""
    from runner import executor

    running: list[executor.Executor] = []
    original = executor.Executor.run

    async def run(self: executor.Executor, *args: Any, **kwargs: Any) -> None:
        running.append(self)
        executor.Executor.run = original  # type: ignore[method-assign]
        await original(self, *args, **kwargs)

    executor.Executor.run = run  # type: ignore[method-assign]
    return lambda: running[0].interrupt()  # noqa: PLW0108  # there is none yet


async def test_a_second_stop_cuts_at_once() -> None:
    """A second signal does not wait for the grace."""
    it = made(Scripted(lambda *_: Hang()), named(2), slots=2, timeout=None)
    disk = SimulatedDisk()
    stopper = stop_when_started(it)

    async def twice(_: Any) -> None:
        await trio.sleep(1)
        stopper()
        await trio.sleep(0.5)
        stopper()

    before = trio.current_time()
    outcome = await go(it, disk, onlooker=twice, grace=100)

    assert "interrupted" == outcome.stopped
    assert 1.5 == trio.current_time() - before


async def test_a_second_stop_does_not_wait_for_what_resists() -> None:
    """An attempt that cannot be cancelled gets a second, not the grace, when the run is told twice; its answer is late."""

    async def stubborn(_: Any) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(50)

    it = made(stubborn, named(1), timeout=None)
    disk = SimulatedDisk()
    stopper = stop_when_started(it)

    async def twice(_: Any) -> None:
        await trio.sleep(1)
        stopper()
        stopper()

    outcome = await go(it, disk, onlooker=twice, grace=100)

    assert [2.0] == [record.t for record in read(PATH, files=disk) if isinstance(record.event, AttemptInterrupted)]
    assert AttemptReturnedLate(trial="case-0", attempt=1, ending="succeeded", elapsed=50.0) in events_of(PATH, files=disk)
    assert ("interrupted", 0) == (outcome.stopped, outcome.state.completed)


async def test_an_onlooker_is_told_that_a_run_is_stopping() -> None:
    """While a run is being stopped it says why, and how long attempts in the air have left; asked again, no longer at all."""
    it = made(Scripted(lambda *_: Answer(1, 10)), named(2), slots=2)
    stopper = stop_when_started(it)
    seen: list[Any] = []

    async def look(live: Any) -> None:
        for stops in (False, True, False, True):
            if stops:
                stopper()
            seen.append(live.stopping())
            await trio.sleep(1)

    await go(it, SimulatedDisk(), onlooker=look, grace=5)

    assert [None, ("interrupted", 5.0), ("interrupted", 4.0), ("interrupted", 0.0)] == seen


async def test_asked_to_stop_before_it_has_begun() -> None:
    """A session that is asked to stop before its journal is open, even while cases are read, has never been."""
    disk = SimulatedDisk()
    early = Session(made(Scripted({}), named(1)), PATH, **repeatable(), files=disk)
    early.interrupt()
    with pytest.raises(KeyboardInterrupt):
        await early.run()

    class Cases(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            reading.interrupt()
            return super().__iter__()

    reading = Session(made(Scripted({}), Cases(named(1))), PATH, **repeatable(), files=disk)
    with pytest.raises(KeyboardInterrupt):
        await reading.run()
    assert not disk.is_directory("/runs")


async def test_asked_to_stop_while_the_journal_is_opened() -> None:
    """A session that is asked to stop while it opens its journal calls nothing, says that it is stopped, and can be resumed."""
    disk = SimulatedDisk()
    task = Scripted(lambda *_: Answer(1))
    it = made(task, named(1))
    session = Session(it, PATH, **repeatable(), files=disk)
    asked: list[str] = []

    def ask_once(what: str) -> None:
        if not asked:
            asked.append(what)
            session.interrupt()

    disk.before = ask_once
    outcome = await session.run()

    assert "interrupted" == outcome.stopped
    kinds = [type(event) for event in events_of(PATH, files=disk)]
    assert [RunStarted, SessionStarted, LimitChanged, RunStopped] == [kind for kind in kinds if kind is not TrialEnqueued]
    assert not task.calls
    assert ("", 1) == ((await go(it, disk, resume=True)).stopped, task.calls["case-0"])


async def test_a_loop_that_is_held_up_is_broken_into() -> None:
    """Code that holds up the loop does not let a session notice that it is asked to stop: the third time, it is broken into."""
    disk = SimulatedDisk()

    async def blocking(_: Any) -> None:
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)

    session = Session(made(blocking, named(5), slots=5), PATH, **repeatable(), policy="fixed", files=disk)
    with pytest.RaisesGroup(KeyboardInterrupt, flatten_subgroups=True), told(lambda *_: session.interrupt(), signal.SIGINT):
        await session.run()

    assert 1 == count(disk, AttemptStarted)
    assert verify(PATH, files=disk).holds


async def test_what_was_begun_from_python_goes_on_from_python() -> None:
    """A run whose evaluation no command could find again names the call that goes on with it; another the command."""
    disk = SimulatedDisk()
    await go(made(Scripted(lambda *_: Answer(1)), named(2)), disk, limit=1)
    other = made(Scripted(lambda *_: Answer(1)), named(3), repeats=2)

    with pytest.raises(JournalExists, match=re.escape("already holds a run; `run(…, resume=True)` goes on")):
        await go(other, disk)
    with pytest.raises(JournalExists, match="already holds a run; `evaljournal resume /runs/it/0001` goes on"):
        await go(other, disk, task="it.py:it")
    for options, way in (({}, "`run(…, resume=True, adopt=True)`"), ({"task": "it.py:it"}, "`evaljournal resume")):
        with pytest.raises(RunChanged, match=re.escape(way)):
            await go(other, disk, resume=True, retry_failed=True, **options)


async def test_run_and_resume_refuse_what_is_not_theirs() -> None:
    """A run does not begin where one is; a finished one is not run again; a running one is left alone."""
    it = made(Scripted(lambda *_: Answer(1)), named(2))
    disk = SimulatedDisk()
    await go(it, disk)

    with pytest.raises(JournalExists, match="resume"):
        await go(it, disk)
    outcome = await go(it, disk, resume=True)
    assert ("", "it was finished already") == (outcome.stopped, outcome.why)
    assert 2 == outcome.state.completed

    waiting = made(Scripted(lambda *_: Answer(1, 5)), named(1))
    disk = SimulatedDisk()

    async def second(_: Any) -> None:
        await trio.sleep(1)
        with pytest.raises(JournalLocked, match="is being written by"):
            await arun(waiting, PATH, **{**repeatable(), "files": disk, "resume": True})
        seen.append("locked")

    seen: list[str] = []
    await go(waiting, disk, onlooker=second)
    assert ["locked"] == seen


def with_power_cut(it: Made, disk: SimulatedDisk, seq: int, **options: Any) -> Outcome | None:
    """Run it until a record of this number has been appended, and pull the plug there."""
    from journal import writer

    append = writer.Journal.append

    def cutting(self: writer.Journal, event: Any) -> Any:
        record = append(self, event)
        if record.seq >= seq:
            disk.before = cut
            raise PowerCut
        return record

    def cut(_: str) -> None:
        raise PowerCut

    async def main() -> Outcome:
        return await arun(it, PATH, **{**repeatable(), "files": disk, **options})

    writer.Journal.append = cutting  # type: ignore[method-assign]
    try:
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    except PowerCut:
        return None
    except BaseExceptionGroup as group:
        if group.split((PowerCut, JournalPoisoned))[1] is not None:
            raise
        return None
    finally:
        writer.Journal.append = append  # type: ignore[method-assign]
        disk.before = lambda _: None


def flaky(value: str, times: int) -> Step:
    """Fail now and then, as decided by the name alone."""
    luck = random.Random(f"{value}").random()
    if luck < 0.2 and times == 1:
        return Fail(ConnectionError("no"), 0.5)
    if luck < 0.3 and times == 1:
        return Fail(RateLimited(2.0), 0.1)
    if luck < 0.35 and times == 1:
        return Hang()
    if luck > 0.95:
        return Fail(Fatal("never"), 0.2)
    return Answer(f"answer to {value}", 0.1 + luck)


def flaky_evaluation(count: int) -> tuple[Made, Scripted]:
    task = Scripted(flaky)
    it = made(task, named(count), slots=3, timeout=5)

    @it.score
    async def length(output: str, case: Any) -> float:
        await trio.lowlevel.checkpoint()
        return float(len(output))

    return it, task


def results(disk: SimulatedDisk) -> dict[str, Any]:
    """What the run came to: the output of every trial, or that it was given up."""
    found: dict[str, Any] = {}
    for event in events_of(PATH, files=disk):
        match event:
            case AttemptSucceeded():
                found[event.trial] = event.output
            case TrialFailed():
                found[event.trial] = event.cause
            case _:
                pass
    return found


def crash_everywhere(count: int, stride: int, crashes: int) -> int:
    """Cut the power at every record of a run, up to a few times in one run, and go on: it ends like one that was not cut."""
    it, _ = flaky_evaluation(count)
    whole = SimulatedDisk()
    assert with_power_cut(it, whole, 10**9) is not None
    expected = results(whole)
    last = max(record.seq for record in read(PATH, files=whole))
    points = 0
    for seq in range(2, last, stride):
        it, task = flaky_evaluation(count)
        disk = SimulatedDisk()
        outcome = with_power_cut(it, disk, seq)
        for crash in range(1, crashes + 1):
            disk = disk.unplugged(random.Random(seq * 10 + crash))
            points += 1
            is_there = disk.is_directory(str(PATH)) and any(n.startswith("journal-") for n in disk.names(str(PATH)))
            done = [e.trial for e in events_of(PATH, files=disk) if isinstance(e, TrialCompleted)] if is_there else []
            before = dict(task.calls)
            outcome = with_power_cut(it, disk, 10**9 if crash == crashes else seq + crash * last // 3, resume=is_there)
            assert all(task.calls[trial] == before.get(trial, 0) for trial in done), "a finished trial was run again"
            if outcome is not None:
                break
        assert outcome is not None
        assert outcome.stopped == ""
        assert expected == results(disk)
        completed = [e.trial for e in events_of(PATH, files=disk) if isinstance(e, TrialCompleted)]
        assert len(completed) == len(set(completed)), "a completion was recorded twice"
        assert verify(PATH, files=disk).holds
        recount = fold(read(PATH, files=disk))
        assert recount.completed == outcome.state.completed == len(completed)
        assert recount.attempts == outcome.state.attempts
    return points


def test_power_cuts_at_many_records_change_no_result() -> None:
    """A run that is cut at a record, resumed, cut again and resumed, ends with the same outputs as one that is not."""
    assert crash_everywhere(12, 3, 3) >= 40


@pytest.mark.exhaustive
def test_power_cuts_at_every_record_change_no_result() -> None:
    """The same at every single record, over runs of several sizes, up to three times in one run."""
    assert sum(crash_everywhere(size, 1, 3) for size in (12, 25, 40, 60, 80, 100)) >= 2500


STEPS = st.one_of(
    st.builds(Answer, st.just("yes"), st.sampled_from([0.0, 0.1, 3.0])),
    st.builds(Fail, st.sampled_from([ConnectionError("c"), ValueError("v"), RateLimited(1.5), RateLimited()]), st.just(0.1)),
    st.just(Hang()),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    scripts=st.lists(st.lists(STEPS, min_size=1, max_size=4), min_size=1, max_size=12),
    slots=st.integers(1, 5),
    policy=st.sampled_from(["adaptive", "aimd", "fixed"]),
)
def test_every_trial_reaches_an_end(scripts: list[list[Step]], slots: int, policy: str) -> None:
    """Whatever the tasks do, under every policy, each trial is completed or failed, and the limit is never exceeded."""
    task = Scripted({f"case-{number}": steps for number, steps in enumerate(scripts)})
    it = made(task, named(len(scripts)), slots=slots, timeout=2, retry=Retry(rate_limits=20))
    disk = SimulatedDisk()

    async def main() -> Outcome:
        return await go(it, disk, policy=policy)

    outcome = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    assert outcome.state.completed + outcome.state.failed == len(scripts)
    assert task.most_in_flight <= slots
    limit, flying = 0, 0
    for event in events_of(PATH, files=disk):
        if isinstance(event, LimitChanged):
            limit = event.after
        elif isinstance(event, AttemptStarted):
            flying += 1
            assert flying <= limit
        elif isinstance(event, AttemptSucceeded | AttemptFailed | AttemptTimedOut):
            flying -= 1


def test_live_state_is_folded_state() -> None:
    """After every record the state that the run keeps is the state that a reader would fold."""
    it, _ = flaky_evaluation(10)
    disk = SimulatedDisk()
    snapshots: dict[int, tuple[Any, ...]] = {}

    from runner import recorder

    record = recorder.Recorder.record

    def spying(self: recorder.Recorder, event: Any) -> Any:
        made = record(self, event)
        snapshots[made.seq] = summary(self.state)
        return made

    recorder.Recorder.record = spying  # type: ignore[method-assign]
    try:
        assert with_power_cut(it, disk, 10**9) is not None
    finally:
        recorder.Recorder.record = record  # type: ignore[method-assign]

    for seq, live in snapshots.items():
        assert live == summary(fold(read(PATH, files=disk), at=seq))


def summary(state: Any) -> tuple[Any, ...]:
    tallies = {name: (tally.scored, tally.total) for name, tally in state.scores.items()}
    stages = {stage: number for stage, number in state.stages.items() if number}
    return state.seq, stages, sorted(state.running), sorted(state.backing_off), tallies, state.attempts, dict(state.limits)


def test_the_same_seed_makes_the_same_bytes() -> None:
    """Two runs with the same seed on the same clock write the same journal, byte for byte."""
    disks = [SimulatedDisk(), SimulatedDisk()]
    for disk in disks:
        from trio._core import _run as scheduler

        scheduler._r.seed(0)
        it, _ = flaky_evaluation(15)
        assert with_power_cut(it, disk, 10**9) is not None

    first, second = ({name: bytes(inode.shown) for name, inode in disk.files() if "LOCK" not in name} for disk in disks)
    assert first == second


async def test_changed_cases_are_refused_and_adopted() -> None:
    """A changed dataset is refused with what differs; adopted, the unchanged keep their results and the changed run again."""
    task = Scripted(lambda value, _: Answer(value, 1))
    disk = SimulatedDisk()
    stopper = stop_when_started(made(task, named(2)))

    async def stop(_: Any) -> None:
        await trio.sleep(2.5)
        stopper()

    await go(made(task, named(6), slots=1), disk, onlooker=stop)
    changed = [*named(5)[:1], Case(name="case-1", input="another"), *named(8)[3:]]

    with pytest.raises(RunChanged, match="dataset fingerprint") as refused:
        await go(made(task, changed, slots=1), disk, resume=True)
    assert "\n  1 case is changed: 'case-1'\n  1 case is no longer there: 'case-2'\n" in str(refused.value)
    outcome = await go(made(task, changed, slots=1), disk, resume=True, adopt=True)

    events = events_of(PATH, files=disk)
    assert TrialWithdrawn(trial="case-1", why="changed") in events
    assert TrialWithdrawn(trial="case-2", why="removed") in events
    assert (7, 1) == (outcome.state.completed, task.calls["case-0"])
    assert 1 == task.calls["another"]


async def stopped_after(it: Made, disk: SimulatedDisk, seconds: float, **options: Any) -> Outcome:
    """Run it for so long."""
    return await go(it, disk, **{"deadline": seconds, "grace": 0.0, **options})


def judged(answer: str, verdict: bool) -> Made:  # noqa: FBT001  # what it says
    """Make an evaluation of six cases whose task and scorer are known by what they say."""

    async def task(_: str) -> str:
        await trio.sleep(1)
        return answer

    def exact(*_: object) -> bool:
        return verdict

    task.fingerprint, exact.fingerprint = f"task {answer}", f"exact {verdict}"  # type: ignore[attr-defined]  # as users do
    it = made(task, named(6), slots=1)
    it.score(exact)
    return it


async def test_what_was_adopted_is_recorded_and_told() -> None:
    """A changed task and scorer that are adopted stand in the journal; how much is by the older ones is told, everywhere."""
    disk = SimulatedDisk()
    await stopped_after(judged("old", verdict=False), disk, 2.5)
    await stopped_after(judged("new", verdict=True), disk, 1.5, resume=True, adopt=True)
    with pytest.raises(RunChanged, match="task fingerprint: 'task new' is now 'task old'"):
        await go(judged("old", verdict=True), disk, resume=True)
    outcome = await go(judged("new", verdict=True), disk, resume=True, deadline=None)

    begun = [event.adopted for event in events_of(PATH, files=disk) if isinstance(event, SessionStarted)]
    assert [None, {"task_fingerprint": "task new", "scorers": {"exact": "exact True"}}, None] == begun
    summary = summarise(outcome.state)
    assert [Adoption(2, ("task", "scorer exact"))] == summary.adopted
    assert (2, 2, 2) == (summary.by_older_task, summary.scores["exact"].versions, summary.scores["exact"].by_older)
    told = ending(outcome.state, path=PATH)
    assert "\n  session 2 adopted what had changed: task, scorer exact\n" in told
    assert "\n  2 of 6 answers are by an older version of the task\n" in told
    notes = audit(read(PATH, files=disk)).notes
    assert "6 scores of exact by 2 versions of the scorer, 2 by an older one" in notes
    assert summary.adopted == summarise(fold(read(PATH, files=disk))).adopted


async def test_a_scorer_that_is_adopted_when_all_is_judged() -> None:
    """A scorer that was changed and adopted, and has nothing left to judge, does not make the old scores its own."""
    disk = SimulatedDisk()
    await go(judged("old", verdict=False), disk)
    outcome = await go(judged("old", verdict=True), disk, resume=True, adopt=True)

    exact = summarise(outcome.state).scores["exact"]
    assert (1, 6, 0) == (exact.versions, exact.by_older, exact.passed)
    assert score_in_words(exact).endswith("; all by an older version of the scorer")


async def test_answers_of_an_older_task_that_no_longer_count_are_not_counted() -> None:
    """A case that is changed with the task is asked again, and its answer is no longer one of the older task."""
    disk = SimulatedDisk()
    await stopped_after(judged("old", verdict=True), disk, 3.5)
    it = judged("new", verdict=True)
    changed = made(it.task, [Case(name="case-0", input="another"), *named(6)[1:]], slots=1)
    changed.score(it.scorers["exact"].function)
    outcome = await go(changed, disk, resume=True, adopt=True, deadline=None)

    assert (2, 6) == (outcome.state.by_older_task, outcome.state.completed)
    assert ("task", "cases") == outcome.state.sessions[-1].adopted


async def test_cases_that_were_not_taken_in_yet_cannot_be_named() -> None:
    """Where only cases have changed that the run has not come to, it is refused as well, and said so."""
    disk = SimulatedDisk()
    task = Scripted(lambda *_: Answer(1, 10))
    await stopped_after(made(task, named(200), slots=1), disk, 5)
    others = [*named(199), Case(name="case-199", input="another")]

    with pytest.raises(RunChanged, match="none of the cases that were taken in so far has changed"):
        await go(made(task, others, slots=1), disk, resume=True)


def settings_of_sessions(disk: SimulatedDisk) -> list[dict[str, Any] | None]:
    return [event.settings for event in events_of(PATH, files=disk) if isinstance(event, SessionStarted)]


async def test_another_experiment_is_refused_setting_by_setting() -> None:
    """Resuming with settings that ask something else is refused, and each difference is named; nothing is written."""
    disk = SimulatedDisk()
    task = Scripted(lambda *_: Answer(1, 10))
    await go(made(task, named(3), slots=1, deadline=5), disk, grace=0)
    before = len(events_of(PATH, files=disk))

    with pytest.raises(RunChanged) as raised:
        await go(made(task, named(3), slots=1, repeats=2), disk, resume=True, only="case-?", shuffle=True)
    assert [
        "  setting repeats: 1 is now 2",
        "  setting only: [] is now ['case-?']",
        "  setting shuffle: False is now True",
    ] == str(raised.value).splitlines()[1:-1]
    assert before == len(events_of(PATH, files=disk))


async def test_how_a_run_is_carried_out_may_change() -> None:
    """Settings that do not touch what is asked may change on resumption, by word or in the definition; that is recorded."""
    disk = SimulatedDisk()
    task = Scripted(lambda *_: Answer(1, 10))
    await go(made(task, named(9), slots=1, deadline=5), disk, grace=0)
    changed = made(task, named(9), slots=2, deadline=5, retry=Retry(errors=9))
    seen: dict[str, Any] = {}

    async def look(live: Any) -> None:
        seen.update(live.changed)
        await trio.lowlevel.checkpoint()

    outcome = await go(changed, disk, resume=True, deadline=None, policy="fixed", onlooker=look)

    assert ("", 9, 2) == (outcome.stopped, outcome.state.completed, task.most_in_flight)
    first, second = settings_of_sessions(disk)
    assert first is None
    assert second is not None
    assert {"slots", "deadline", "policy", "retry", "given"} == set(second)
    assert (2, None, "fixed", 9) == (second["slots"], second["deadline"], second["policy"], second["retry"]["errors"])
    assert {"slots": (1, 2), "deadline": (5.0, None), "policy": ("adaptive", "fixed")} == {
        name: values for name, values in seen.items() if name != "retry"
    }


async def test_what_was_given_holds_for_every_session() -> None:
    """What a run was given (cases, repeats, slots, policy, seed) is in its journal, and a resumption takes it from there."""
    disk = SimulatedDisk()
    task = Scripted(lambda *_: Answer(1, 10))
    it = made(task, named(20), slots=7)
    given = {"only": ["case-?"], "skip": "case-0", "limit": 3, "shuffle": True, "repeats": 2, "slots": 1, "policy": "fixed"}
    await go(it, disk, **given, seed=5, deadline=15, grace=0)
    begun = next(event for event in events_of(PATH, files=disk) if isinstance(event, RunStarted))
    for _ in range(2):
        await go(it, disk, resume=True, seed=5)
    outcome = await go(it, disk, resume=True, seed=5, deadline=None)

    kept = {name: begun.settings[name] for name in given}
    assert {**given, "skip": ["case-0"]} == kept
    assert ["skip", "limit"] == [name for name in begun.settings["given"] if name in ("skip", "limit")]
    assert ("", 6, 1) == (outcome.stopped, outcome.state.completed, task.most_in_flight)
    assert [None, None, None, {"deadline": None}] == settings_of_sessions(disk)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"given": ["slots"], "slots": "many"}, "slots='many': give a whole number"),
        ({"given": ["only"], "only": 5}, "the journal has a setting that cannot be"),
    ],
)
def test_a_journal_with_settings_that_cannot_be(settings: dict[str, Any], said: str) -> None:
    """Settings of a journal are checked like any others; what is given in their place holds."""
    own = made(Scripted({}), named(1)).settings

    with pytest.raises(UsageError, match=re.escape(said)):
        in_force(own, {}, settings)
    name = settings["given"][0]
    assert (own, [name]) == in_force(own, {name: getattr(own, name)}, settings)


@pytest.mark.parametrize(
    "settings", [{}, {"given": None}, {"given": ["no such", "slots", 7, ["x"]]}, {"given": {"slots": 1}}, {"given": 5}]
)
def test_a_journal_without_settings_that_were_given(settings: dict[str, Any]) -> None:
    """What a journal does not say, or says in a way that is not ours, leaves the evaluation's own settings."""
    own = made(Scripted({}), named(1)).settings

    assert (own, []) == in_force(own, {}, settings)


@pytest.mark.parametrize(("choice", "failed", "calls"), [("retry", 0, 2), ("fail", 1, 1)])
def test_an_ambiguous_attempt_is_retried_or_failed(choice: str, failed: int, calls: int) -> None:
    """An attempt that was in the air when the process died is closed as such, and then follows what was chosen."""
    task = Scripted(lambda *_: Answer(1, 1))
    it = made(task, named(1), write_ahead=True)
    disk = SimulatedDisk()
    place = itertools.count(1)
    while task.calls["case-0"] == 0:
        disk = SimulatedDisk()
        with_power_cut(it, disk, next(place))
    disk = disk.killed()
    outcome = with_power_cut(it, disk, 10**9, resume=True, on_ambiguous=choice)

    assert outcome is not None
    assert AttemptInterrupted(trial="case-0", attempt=1, why="process_died") in events_of(PATH, files=disk)
    assert (failed, calls) == (outcome.state.failed, task.calls["case-0"])


async def test_the_failed_can_be_tried_again() -> None:
    """`retry_failed` gives trials that were given up another life; the others are left alone."""
    task = Scripted({"case-0": [Fail(Fatal("no")), Answer(1)], "case-1": [Answer(1)]})
    it = made(task, named(2))
    disk = SimulatedDisk()
    await go(it, disk)
    outcome = await go(it, disk, resume=True, retry_failed=True)

    assert (2, 0) == (outcome.state.completed, outcome.state.failed)
    assert {"case-0": 2, "case-1": 1} == dict(task.calls)
    assert 2 == count(disk, SessionStarted)
    assert 2 == count(disk, RunFinished)


@pytest.mark.parametrize(
    "options",
    [{"policy": "bold"}, {"grace": -1}, {"max_failures": -1}, {"max_failures": 5.0}, {"durability": "none"}, {"slotz": 4}],
    ids=str,
)
async def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    """An option that cannot be meant is refused before anything is written."""
    disk = SimulatedDisk()
    with pytest.raises(UsageError):
        await go(made(Scripted(lambda *_: Answer(1)), named(1)), disk, **options)
    assert not disk.is_directory("/runs")


async def test_trials_are_enqueued_only_a_little_ahead() -> None:
    """A generator of a million cases is read as the slots need it, not before."""
    read_so_far = 0

    def endless() -> Any:
        nonlocal read_so_far
        for number in range(1_000_000):
            read_so_far += 1
            yield Case(name=f"n{number}", input=number)

    disk = SimulatedDisk()
    outcome = await go(made(Scripted(lambda *_: Answer(1, 1)), endless, slots=4, deadline=10), disk)

    assert "deadline" == outcome.stopped
    assert read_so_far <= outcome.state.completed + 2 * 4 + 16 + 8
    assert count(disk, TrialEnqueued) == read_so_far
