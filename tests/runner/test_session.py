"""Whole runs on a virtual clock: what is recorded, what is retried, and what stops them."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
import trio.lowlevel
from hypothesis import given
from hypothesis import strategies as st

from evaljournal import Case, Fatal, RateLimited, Retry, UsageError, note
from evaljournal.journal import Record, read, verify
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptReturnedLate,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    IntakePaused,
    LimitChanged,
    Noted,
    RetryScheduled,
    RunFinished,
    RunStopped,
    ScoringFailed,
    TrialCompleted,
    TrialEnqueued,
    TrialFailed,
    TrialScored,
)
from evaljournal.replay import RunState, audit, fold
from evaljournal.replay.render.ending import next_command
from evaljournal.runner.retries.rules import retry_rules
from evaljournal.runner.sessions.session import Outcome, Session
from evaljournal.runner.testing import Action, Fail, Hang, Return, Scripted, SimulatedEndpoint, deterministic_options, events_of
from tests.journal.disk import SimulatedDisk
from tests.runs import (
    PATH,
    count,
    define,
    events,
    findings,
    flaky_evaluation,
    numbered_cases,
    run_until_power_failure,
    run_virtual,
)


async def test_a_run_records_every_event(disk: SimulatedDisk) -> None:
    """A trial that succeeds leaves four events and its scores; the run records its definition and its end."""
    defined = define(Scripted(lambda _, __: Return("yes", 0.5)), numbered_cases(1))

    @defined.score
    def exact(output: str, case: Case[str, str]) -> bool:
        return output == case.expected

    outcome = await run_virtual(defined, disk)

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
    assert ("", 1, 0) == (outcome.stop_reason, outcome.state.completed, outcome.state.failed)
    assert verify(PATH, files=disk, expect_head=outcome.head).ok


async def test_a_failure_is_retried_after_a_delay(disk: SimulatedDisk) -> None:
    """An error is followed by a recorded backoff, and a trial that then succeeds counts as recovered."""
    task = Scripted({"a": [Fail(ConnectionError("no")), Fail(ValueError("odd")), Return(1)]})
    outcome = await run_virtual(define(task, [Case(name="a", input="a")]), disk)

    assert ["unavailable", "parse_error"] == [event.category for event in events(disk, AttemptFailed)]
    delays = [event.delay for event in events(disk, RetryScheduled)]
    assert 2 == len(delays)
    assert all(0 <= delay <= 2 for delay in delays)
    assert (1, 1, 3) == (outcome.state.completed, outcome.state.totals.recovered, outcome.state.totals.attempts)


async def test_a_call_that_takes_no_time(disk: SimulatedDisk) -> None:
    """The recorded time of a start may be rounded up by half a microsecond; a call that ends before it took 0 s, not less."""

    async def task(value: float) -> None:
        await trio.sleep(value)
        raise ValueError("no")

    cases = [Case(name=str(number), input=seconds) for number, seconds in enumerate((0.1234565, 0.0))]
    await run_virtual(define(task, cases, slots=1, retry=Retry(errors=0)), disk)

    assert 0.0 == events(disk, AttemptFailed)[-1].elapsed


async def test_other_trials_proceed_during_a_backoff(disk: SimulatedDisk) -> None:
    """A trial that waits holds no slot: with one slot, the others are done before the retry."""
    task = Scripted({"a": [Fail(ConnectionError("no")), Return(1)], "b": [Return(2)], "c": [Return(3)]})
    retry = Retry(base_delay=60, max_delay=60)
    await run_virtual(define(task, [Case(name=name, input=name) for name in "abc"], slots=1, retry=retry), disk)

    ends = [event.trial for event in events(disk, TrialCompleted)]
    assert ["b", "c", "a"] == ends


async def test_a_timeout_ends_one_attempt(disk: SimulatedDisk) -> None:
    """A timeout is recorded with its limit; the trial gets two more attempts, then it fails."""
    outcome = await run_virtual(define(Scripted({"a": [Hang()]}), [Case(name="a", input="a")], timeout=30), disk)

    events = events_of(PATH, files=disk)
    assert [AttemptTimedOut(trial="a", attempt=number, timeout=30.0, elapsed=30.0) for number in (1, 2, 3)] == [
        event for event in events if isinstance(event, AttemptTimedOut)
    ]
    assert TrialFailed(trial="a", attempts=3, reason="timed_out") in events
    assert ("", 1) == (outcome.stop_reason, outcome.state.failed)


async def test_every_attempt_has_its_own_timeout(disk: SimulatedDisk) -> None:
    """Attempts that start one after another in the same slots are each cancelled after their own timeout."""
    lengths = [0.1, 0.3, 9.0, 0.2, 0.4, 9.0, 9.0, 0.1]
    cases = [Case(name=f"{number}", input=seconds) for number, seconds in enumerate(lengths)]
    task = Scripted(lambda seconds, _: Return(seconds, seconds))
    await run_virtual(define(task, cases, slots=3, timeout=0.5, retry=Retry(timeouts=0)), disk, policy="fixed")

    timed_out = {event.trial: round(event.elapsed, 6) for event in events(disk, AttemptTimedOut)}
    assert {"2": 0.5, "5": 0.5, "6": 0.5} == timed_out
    assert {"0", "1", "3", "4", "7"} == {event.trial for event in events(disk, AttemptSucceeded)}


async def test_an_unserializable_output_fails_its_trial_only(disk: SimulatedDisk) -> None:
    """An output that is not JSON fails its trial, and the message names the place in it."""
    task = Scripted({"a": [Return({"deep": [object()]})], "b": [Return(1)]})
    outcome = await run_virtual(define(task, [Case(name=name, input=name) for name in "ab"]), disk)

    failed = next(event for event in events(disk, AttemptFailed))
    assert "output.deep[0]" in failed.message
    assert TrialFailed(trial="a", attempts=1, reason="unserializable") in events_of(PATH, files=disk)
    assert (1, 1) == (outcome.state.completed, outcome.state.failed)


async def test_an_output_that_was_not_awaited(disk: SimulatedDisk) -> None:
    """A missing `await` is named as the cause."""

    async def answer() -> str:
        return "Lima"

    async def task(_: str) -> Any:
        return {"answer": answer()}

    await run_virtual(define(task, [Case(name="a", input="?")]), disk)
    (failed,) = events(disk, AttemptFailed)

    assert ("fatal", True) == (failed.category, "a coroutine was not awaited" in failed.message)


async def test_a_cancelled_nursery_has_timed_out(disk: SimulatedDisk) -> None:
    """A task whose own nursery is cancelled by the timeout has timed out, and is not late."""

    async def several(_: Any) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 50)
            nursery.start_soon(trio.sleep, 60)

    await run_virtual(define(several, [Case(name="a", input="a")], timeout=30, retry=Retry(timeouts=0)), disk)

    assert AttemptTimedOut(trial="a", attempt=1, timeout=30.0, elapsed=30.0) in events_of(PATH, files=disk)
    assert 0 == count(disk, AttemptReturnedLate)


async def test_notes_are_kept_with_their_attempt(disk: SimulatedDisk) -> None:
    """Notes of a task are recorded with their attempt, and numbers are added up."""

    async def task(_: Any) -> int:
        note(tokens=12, model="small")
        note(tokens=3)
        await trio.lowlevel.checkpoint()
        return 1

    outcome = await run_virtual(define(task, [Case(name="a", input="a")]), disk)

    assert [("a", 1)] * 3 == [(event.trial, event.attempt) for event in events(disk, Noted)]
    assert 15 == outcome.state.usage["tokens"]


async def test_scorers_use_the_retries_of_the_run(disk: SimulatedDisk) -> None:
    """The retries of a run apply to its scorers, too, unless they have their own; then a score is missing.

    The task is not called again.
    """
    task, scorer_calls = Scripted(lambda _, __: Return("yes", 0.5)), Counter[str]()
    defined = define(task, numbered_cases(1))
    for name, retry in {"exact": None, "judge": Retry(errors=2)}.items():

        def fail(name: str = name) -> bool:
            scorer_calls[name] += 1
            raise OSError

        defined.score(name=name, retry=retry)(fail)
    outcome = await run_virtual(defined, disk, retry=Retry(errors=1))

    assert {"exact": 2, "judge": 3} == scorer_calls
    assert {"exact", "judge"} == {event.scorer for event in events(disk, ScoringFailed)}
    assert (1, 1) == (task.calls["case-0"], outcome.state.completed)


async def test_a_scorer_may_return_several_scores(disk: SimulatedDisk) -> None:
    """A mapping gives several named scores."""
    defined = define(Scripted({"a": [Return("x")]}), [Case(name="a", input="a")])

    @defined.score
    def judge(output: str, case: Any) -> dict[str, float]:
        return {"tone": 0.25, "facts": 1.0}

    await run_virtual(defined, disk)

    scores = {event.scorer: event.value for event in events(disk, TrialScored)}
    assert {"judge.tone": 0.25, "judge.facts": 1.0} == scores


class Unauthorized(Exception):
    """What the client of an endpoint raises that rejects the API key."""

    status_code = 401


async def test_an_unauthorized_key_stops_the_run(disk: SimulatedDisk) -> None:
    """A 401 would fail every trial: the run stops with one message instead of fifty failures."""
    outcome = await run_virtual(
        define(Scripted(lambda *_: Fail(Unauthorized("bad key"), 0.1)), numbered_cases(50), slots=2), disk
    )

    assert "unauthorized" == outcome.stop_reason
    assert "bad key" in outcome.detail
    assert 1 == str(outcome).count("bad key")
    assert (0, 2) == (outcome.state.failed, count(disk, AttemptStarted))


async def test_a_second_unauthorized_call_does_not_shorten_the_grace(disk: SimulatedDisk) -> None:
    """A second 401 does not shorten the grace period of calls in flight."""

    def step(value: str, _: int) -> Action:
        return Return(1, 2) if value == "case-2" else Fail(Unauthorized("bad key"), 0.5 if value == "case-0" else 1.0)

    outcome = await run_virtual(define(Scripted(step), numbered_cases(4), slots=3), disk, policy="fixed", grace=5)

    assert ("unauthorized", 1, 0) == (outcome.stop_reason, outcome.state.completed, outcome.state.failed)
    assert 0 == count(disk, AttemptInterrupted)


@pytest.mark.parametrize("read", [list, iter])
async def test_a_stop_with_the_last_trial_leaves_nothing_to_resume(read: Callable[[Any], Any], disk: SimulatedDisk) -> None:
    """A run that is stopped when everything is done is finished, even if its last trial failed."""
    task = Scripted(lambda value, _: Fail(Fatal("no"), 2) if value == "case-2" else Return(1, 1))
    outcome = await run_virtual(define(task, read(numbered_cases(3)), slots=3), disk, policy="fixed", fail_fast=True)

    assert ("", "finished", 2, 1) == (outcome.stop_reason, outcome.state.outcome, outcome.state.completed, outcome.state.failed)


def fail_at_one_line(value: str) -> str:
    """Fail with an error that depends on the input, always at the same line."""
    raise {"6": OSError, "7": EOFError}.get(value[5:], RuntimeError)


def fail_at_two_lines(value: str) -> str:
    """Fail at another line for one input."""
    if value == "case-6":
        raise RuntimeError
    raise RuntimeError


async def run_failing(disk: SimulatedDisk, fail: Callable[[str], str], cases: Any, **options: Any) -> Outcome:
    """Run a task that fails after a second, in two slots."""

    async def task(value: str) -> str:
        await trio.sleep(1)
        return fail(value)

    defined = define(task, cases, slots=2, retry=Retry(errors=0))
    return await run_virtual(defined, disk, policy="fixed", **options)


@pytest.mark.parametrize("read_cases", [list, iter])
async def test_the_same_error_stops_the_run(read_cases: Callable[[Any], Any]) -> None:
    """If the first 20 trials fail with one error at one line, the run stops; each session that resumes it does too."""
    disk, cases = SimulatedDisk(), numbered_cases(90, 100)
    outcome = await run_failing(disk, fail_at_one_line, read_cases(cases))

    assert ("same_error", 20) == (outcome.stop_reason, outcome.state.failed)
    assert outcome.detail.startswith("the first 20 trials ended with RuntimeError at ")
    assert outcome.detail.endswith("; fix it, then resume")
    assert f"'{PATH}', resume=True, adopt=True, retry_failed=True)" in next_command(outcome.state, PATH)

    outcome = await run_failing(disk, fail_at_one_line, read_cases(cases), resume=True)

    assert ("same_error", 40) == (outcome.stop_reason, outcome.state.failed)
    assert [RunStopped(reason="same_error")] * 2 == events(disk, RunStopped)
    audited = audit(read(PATH, files=disk), rules=retry_rules)
    assert ((), ()) == (audited.findings, audited.notes)


@pytest.mark.parametrize(
    ("fail", "count", "options"),
    [
        (fail_at_one_line, 30, {"stop_on_same_error": None}),
        (fail_at_one_line, 30, {"stop_on_same_error": 31}),
        (fail_at_one_line, 30, {}),  # Cases 6 and 7 fail with other errors.
        (fail_at_two_lines, 30, {}),
        (lambda value: value if value == "case-6" else fail_at_two_lines(value), 30, {}),
        (fail_at_two_lines, 6, {"stop_on_same_error": 6}),
    ],
    ids=["off", "more", "another error", "another line", "an output", "the last trial"],
)
async def test_other_failures_do_not_stop_the_run(fail: Callable[[str], str], count: int, options: dict[str, Any]) -> None:
    """Different errors, errors at different lines, or a single output let the run continue; so does its last trial."""
    cases = numbered_cases(count, 100 if "stop_on_same_error" in options and count > 6 else 0)
    outcome = await run_failing(SimulatedDisk(), fail, cases, **options)

    assert "" == outcome.stop_reason
    assert count == outcome.state.totals.done


@pytest.mark.parametrize(
    ("policy", "cases", "expected_calls"), [("adaptive", 1_000, 180), ("adaptive", 1_001, 125), ("fixed", 1_000, 180)]
)
async def test_only_the_first_trials_with_the_same_error_are_retried(
    policy: str, cases: int, expected_calls: int, disk: SimulatedDisk
) -> None:
    """Until something succeeds, the first 20 trials that failed are retried, and all others wait; so 100 slots cost little."""
    task = Scripted(lambda *_: Fail(RuntimeError("no"), 1))
    outcome = await run_virtual(define(task, numbered_cases(cases), slots=100), disk, policy=policy)

    assert ("same_error", 20) == (outcome.stop_reason, outcome.state.failed)
    assert (expected_calls, []) == (count(disk, AttemptStarted), findings(disk))


@pytest.mark.parametrize("second", [Return("yes", 3), Fail(OSError("no"), 3)], ids=["output", "other error"])
async def test_trials_wait_only_until_something_else_happens(second: Action, disk: SimulatedDisk) -> None:
    """An output or another error ends the wait for the first trials that failed."""

    def step(value: str, times: int) -> Action:
        return second if value == "case-30" and times == 1 else Fail(RuntimeError("no"), 1) if times == 1 else Return("yes", 1)

    outcome = await run_virtual(define(Scripted(step), numbered_cases(60), slots=60, timeout=3), disk, policy="fixed")

    assert ("", 60, []) == (outcome.stop_reason, outcome.state.completed, findings(disk))


@pytest.mark.parametrize(("slots", "expected_calls"), [(1, 2), (8, 8)])
async def test_two_answers_that_the_model_does_not_exist_stop_the_run(
    slots: int, expected_calls: int, disk: SimulatedDisk
) -> None:
    """After the first 404, nothing starts until another call has ended; the second one stops the run."""
    delays = iter([1.0, *[2.0] * 50])
    task = Scripted(lambda *_: Fail(Fatal("404 Not Found: no such model"), next(delays)))
    outcome = await run_virtual(define(task, numbered_cases(50), slots=slots), disk, policy="fixed")

    assert ("same_error", expected_calls, []) == (outcome.stop_reason, count(disk, AttemptStarted), findings(disk))
    assert outcome.detail.startswith("the first 2 trials ended with evaljournal.Fatal")


async def test_a_later_error_does_not_undo_the_stop(disk: SimulatedDisk) -> None:
    """Errors of calls in flight that do not name the model end after the decision, which an audit still finds."""
    delays = iter([1.0, 2.0, *[3.0] * 6])
    task = Scripted(lambda *_: Fail(Fatal("404: no such model" if (delay := next(delays)) < 3 else "400"), delay))
    outcome = await run_virtual(define(task, numbered_cases(50), slots=8), disk, policy="fixed")

    assert ("same_error", 8, []) == (outcome.stop_reason, outcome.state.failed, findings(disk))


async def test_one_answer_that_something_does_not_exist_stops_nothing(disk: SimulatedDisk) -> None:
    """A 404 of one input stops nothing if the next call has an output."""
    task = Scripted(
        lambda value, _: Fail(Fatal("404 from http://h/v1/chat/completions"), 1) if value < "case-3" else Return("yes", 0.5)
    )
    cases = [numbered_cases(1, 0)[0], *numbered_cases(4, 3), *numbered_cases(2, 1)]
    outcome = await run_virtual(define(task, cases, slots=1), disk)

    assert ("", 4, 3) == (outcome.stop_reason, outcome.state.completed, outcome.state.failed)


async def test_a_deadline_stops_the_run(disk: SimulatedDisk) -> None:
    """After its deadline a run starts nothing more, and can be resumed."""
    defined = define(Scripted(lambda *_: Return(1, 10)), numbered_cases(20), slots=1, deadline=35)
    outcome = await run_virtual(defined, disk, grace=20)

    assert ("deadline", 4) == (outcome.stop_reason, outcome.state.completed)
    outcome = await run_virtual(defined, disk, resume=True, grace=20)
    assert ("deadline", 8) == (outcome.stop_reason, outcome.state.completed)


async def test_a_dataset_that_fails_half_way_stops_the_run(disk: SimulatedDisk) -> None:
    """If reading the cases fails in the middle, the run stops with the error; once it works, the other trials are run."""
    is_broken = True

    def cases() -> Any:
        yield from numbered_cases(30)
        if is_broken:
            raise OSError("the network share went away")
        yield from numbered_cases(10, 30)

    task = Scripted(lambda *_: Return(1, 1))
    outcome = await run_virtual(define(task, cases, slots=2), disk)

    assert "dataset_failed" == outcome.stop_reason
    assert "network share" in outcome.detail
    assert 0 < outcome.state.completed <= 30
    assert verify(PATH, files=disk).ok
    is_broken = False
    outcome = await run_virtual(define(task, cases, slots=2), disk, resume=True)
    assert ("", 40, 40) == (outcome.stop_reason, outcome.state.completed, task.calls.total())


@pytest.mark.parametrize(("seconds", "cases", "slots"), [(1, 100, 10), (60, 8, 6)])
async def test_an_outage_loses_nothing(seconds: int, cases: int, slots: int, disk: SimulatedDisk) -> None:
    """It costs backoff, not trials. The probes of a long one are spread over the trials, so that none uses up its retries."""
    endpoint = SimulatedEndpoint(lambda value: value, latency=0.05)
    endpoint.down_until = trio.current_time() + seconds
    outcome = await run_virtual(define(endpoint, numbered_cases(cases), slots=slots), disk)

    assert (cases, 0) == (outcome.state.completed, outcome.state.failed)


async def test_attempts_start_beside_those_that_hang(disk: SimulatedDisk) -> None:
    """When no call ends for a while, a probe starts beside those that hang; once it is answered, the others follow."""
    cases = numbered_cases(40)
    hanging = {case.input for case in cases[8:12]}
    task = Scripted(lambda value, n: Hang() if value in hanging and n == 1 else Return("yes", 1.0))
    await run_virtual(define(task, cases, slots=4, timeout=60.0), disk)

    (pause,) = events(disk, IntakePaused)
    (probe,) = [event for event in events(disk, AttemptStarted) if event.probe]
    assert ("no_response", 4) == (pause.reason, probe.slot)
    assert 40 > [record.t for record in read(PATH, files=disk) if isinstance(record.event, AttemptSucceeded)][35]


async def test_trials_that_always_fail_do_not_delay_others(disk: SimulatedDisk) -> None:
    """One case in twenty always fails with a connection reset: those fail, and all others are done soon."""
    cases = numbered_cases(400)
    failing_inputs = {case.input for case in cases[::20]}
    task = Scripted(lambda value, _: Fail(ConnectionResetError("reset"), 0.5) if value in failing_inputs else Return(1, 0.5))
    before = trio.current_time()
    outcome = await run_virtual(define(task, cases, slots=120), disk)

    assert (380, 20) == (outcome.state.completed, outcome.state.failed)
    assert 60 > trio.current_time() - before


async def test_a_probe_is_made_by_a_trial_that_has_not_failed(disk: SimulatedDisk) -> None:
    """After an outage, probes are made by trials that have not failed, so that failing trials do not prolong it."""
    cases = numbered_cases(300)
    failing_inputs = {case.input for case in cases[:30]}
    start = trio.current_time()

    def script(value: str, _: int) -> Action:
        down = trio.current_time() < start + 3
        return Fail(ConnectionResetError("reset"), 0.1) if down or value in failing_inputs else Return(1, 0.1)

    outcome = await run_virtual(define(Scripted(script), cases, slots=50), disk)

    assert (270, 30) == (outcome.state.completed, outcome.state.failed)
    assert 300 > trio.current_time() - start


async def test_a_retry_after_beyond_the_budget_fails_its_trial_only(disk: SimulatedDisk) -> None:
    """A trial whose Retry-After exceeds its budget fails; a single 429 does not delay the others."""
    task = Scripted({"a": [Fail(RateLimited(3600))], "b": [Fail(RateLimited(1)), Return(1)]})
    cases = [Case(name=name, input=name) for name in "ab"]
    outcome = await run_virtual(define(task, cases, retry=Retry(rate_limits=60)), disk, slots=1)

    assert [TrialFailed(trial="a", attempts=1, reason="exhausted")] == events(disk, TrialFailed)
    assert (1, True) == (outcome.state.completed, outcome.state.t < 5)


STEPS = st.one_of(
    st.builds(Return, st.just("yes"), st.sampled_from([0.0, 0.1, 3.0])),
    st.builds(Fail, st.sampled_from([ConnectionError("c"), ValueError("v"), RateLimited(1.5), RateLimited()]), st.just(0.1)),
    st.just(Hang()),
)


@given(
    scripts=st.lists(st.lists(STEPS, min_size=1, max_size=4), min_size=1, max_size=12),
    slots=st.integers(1, 5),
    policy=st.sampled_from(["adaptive", "fixed"]),
)
def test_every_trial_reaches_an_end(scripts: list[list[Action]], slots: int, policy: str) -> None:
    """Whatever the tasks do, under every policy, each trial is completed or failed, and the limit is never exceeded."""
    task = Scripted({f"case-{number}": steps for number, steps in enumerate(scripts)})
    defined = define(task, numbered_cases(len(scripts)), slots=slots, timeout=2, retry=Retry(rate_limits=20))
    disk = SimulatedDisk()

    async def main() -> Outcome:
        return await run_virtual(defined, disk, policy=policy)

    outcome = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    assert outcome.state.completed + outcome.state.failed == len(scripts)
    assert task.max_in_flight <= slots
    limit, in_flight = 0, 0
    for event in events_of(PATH, files=disk):
        if isinstance(event, LimitChanged):
            limit = event.after
        elif isinstance(event, AttemptStarted):
            in_flight += 1
            assert in_flight <= limit
        elif isinstance(event, AttemptSucceeded | AttemptFailed | AttemptTimedOut):
            in_flight -= 1


def test_live_state_is_folded_state(disk: SimulatedDisk) -> None:
    """After every record the live state equals the state folded from the journal."""
    defined, _ = flaky_evaluation(10)
    snapshots: dict[int, tuple[Any, ...]] = {}

    apply = RunState.apply

    def apply_and_summarize(self: RunState, record: Record) -> None:
        apply(self, record)
        snapshots[record.seq] = summary(self)

    RunState.apply = apply_and_summarize  # type: ignore[method-assign]
    try:
        assert run_until_power_failure(defined, disk, 10**9) is not None
    finally:
        RunState.apply = apply  # type: ignore[method-assign]

    for seq, live in snapshots.items():
        assert live == summary(fold(read(PATH, files=disk), at=seq))


def summary(state: RunState) -> tuple[Any, ...]:
    tallies = {name: (tally.scored, tally.total) for name, tally in state.scores.items()}
    stages = {stage: number for stage, number in state.totals.stages.items() if number}
    open_trials = sorted(state.trials.running), sorted(state.trials.backing_off)
    return state.seq, stages, *open_trials, tallies, state.totals.attempts, dict(state.policy.limits)


def test_the_same_seed_gives_the_same_bytes() -> None:
    """Two runs with the same seed on the same clock write the same journal, byte for byte."""
    disks = [SimulatedDisk(), SimulatedDisk()]
    for disk in disks:
        from trio._core import _run as scheduler

        scheduler._r.seed(0)
        defined, _ = flaky_evaluation(15)
        assert run_until_power_failure(defined, disk, 10**9) is not None

    first, second = ({name: bytes(inode.visible) for name, inode in disk.files() if "LOCK" not in name} for disk in disks)
    assert first == second


@pytest.mark.parametrize(
    "options",
    [{"policy": "bold"}, {"grace": -1}, {"max_failures": -1}, {"max_failures": 5.0}, {"durability": "none"}, {"slotz": 4}],
    ids=str,
)
async def test_invalid_options_are_rejected(options: dict[str, Any], disk: SimulatedDisk) -> None:
    """An invalid option is rejected before anything is written."""
    with pytest.raises(UsageError):
        await run_virtual(define(Scripted(lambda *_: Return(1)), numbered_cases(1)), disk, **options)
    assert not disk.is_directory("/runs")


async def test_trials_are_enqueued_only_a_little_ahead(disk: SimulatedDisk) -> None:
    """A generator of a million cases is read as the slots need it."""
    read_so_far = 0

    def endless() -> Any:
        nonlocal read_so_far
        for number in range(1_000_000):
            read_so_far += 1
            yield Case(name=f"n{number}", input=number)

    outcome = await run_virtual(define(Scripted(lambda *_: Return(1, 1)), endless, slots=4, deadline=10), disk)

    assert "deadline" == outcome.stop_reason
    assert read_so_far <= outcome.state.completed + 2 * 4 + 16 + 8
    assert count(disk, TrialEnqueued) == read_so_far


def shielding(*, seconds: float) -> Callable[[str], Any]:
    """Return a task that shields itself from cancellation for one input."""

    async def task(value: str) -> str:
        await trio.sleep(1)
        if value == "case-0":
            with trio.CancelScope(shield=True):
                await trio.sleep(seconds)
        return value

    return task


async def test_a_trio_task_that_shields_itself_is_abandoned(disk: SimulatedDisk) -> None:
    """A trio task that shields itself times out, others use its slot, and its late result is recorded and discarded."""
    defined = define(shielding(seconds=20), numbered_cases(40), slots=1, timeout=3, retry=Retry(timeouts=0))
    outcome = await run_virtual(defined, disk, policy="fixed", grace=2)

    assert ("", 39, 1) == (outcome.stop_reason, outcome.state.completed, outcome.state.failed)
    timed_out = AttemptTimedOut(trial="case-0", attempt=1, timeout=3.0, elapsed=6.0)  # 2 s of grace, and 1 s to respond.
    assert [timed_out] == events(disk, AttemptTimedOut)
    assert [AttemptReturnedLate(trial="case-0", attempt=1, outcome="succeeded", elapsed=21.0)] == events(
        disk, AttemptReturnedLate
    )
    assert {0} == {event.slot for event in events(disk, AttemptStarted)}
    audited = audit(read(PATH, files=disk), rules=retry_rules)
    assert ((), ()) == (audited.findings, audited.notes)


async def test_the_end_of_a_run_does_not_wait_for_an_abandoned_task() -> None:
    """After the grace period, the end is recorded and the caller may exit; otherwise the task is waited for, once."""
    disk, outcomes = SimulatedDisk(), list[tuple[float, Outcome]]()
    defined = define(shielding(seconds=1_000), numbered_cases(2), slots=1, timeout=3, retry=Retry(timeouts=0))
    session = Session(defined, PATH, **deterministic_options(), files=disk, policy="fixed", grace=2)
    start = trio.current_time()
    session.on_unresponsive = lambda outcome: outcomes.append((trio.current_time() - start, outcome))
    outcome = await session.run()

    assert [(9.0, "")] == [(round(seconds, 6), outcome.stop_reason) for seconds, outcome in outcomes]
    assert (1, 1, "finished") == (outcome.state.completed, outcome.state.failed, outcome.state.outcome)
    assert 1 == count(disk, RunFinished)
    assert 1_001 == trio.current_time() - start
    assert verify(PATH, files=disk, expect_head=outcome.head).ok


async def test_the_time_of_all_sessions_is_recorded() -> None:
    """The time between sessions does not count, nor what follows the end of one; the audit compares the sum."""
    disk, defined = SimulatedDisk(), define(Scripted(lambda *_: Return(1, 2)), numbered_cases(5), slots=1)
    stopped = await run_virtual(defined, disk, policy="fixed", deadline=3, grace=0)
    await trio.sleep(100)
    finished = await run_virtual(defined, disk, policy="fixed", deadline=None, resume=True)

    assert (3.0, 11.0) == (round(stopped.state.elapsed, 3), round(finished.state.elapsed, 3))
    assert finished.state.elapsed == fold(read(PATH, files=disk)).elapsed
    assert [11.0] == [round(event.elapsed or 0, 3) for event in events(disk, RunFinished)]
    assert " · took 11 s in 2 sessions\n" in str(finished)
    records = list(read(PATH, files=disk))
    index = next(index for index, record in enumerate(records) if isinstance(record.event, RunFinished))
    forged = records[index]._replace(event=attrs.evolve(records[index].event, elapsed=5.0))  # type: ignore[misc]  # an attrs class
    assert audit(records, rules=retry_rules).ok
    assert ["totals"] == [finding.check for finding in audit([*records[:index], forged], rules=retry_rules).findings]
