"""Plain functions as scorers, which are called together in a thread: their ends, kills and what they do not delay."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import attrs
import outcome
import pytest
import trio
import trio.lowlevel

from evaljournal import RateLimited, Retry, note, verify
from evaljournal.journal import Record, read
from evaljournal.journal.events import (
    AttemptStarted,
    IntakePaused,
    LimitChanged,
    Noted,
    ScorerCallFailed,
    ScorerCallStarted,
    ScoringFailed,
    TrialCompleted,
    TrialScored,
)
from evaljournal.replay.auditing.auditor import audit
from evaljournal.runner.engine.plain_scorers import SLOW, PlainCalls
from evaljournal.runner.retries.rules import retry_rules
from evaljournal.runner.sessions.rescore import Rescoring
from tests.journal.disk import SimulatedDisk
from tests.runner.test_scoring import answer_immediately, evaluation_of, run_fixed
from tests.runs import (
    PATH,
    AnyEvaluation,
    audited,
    define_real,
    events,
    has_journal,
    numbered_cases,
    run_killed,
    run_real,
    run_until_power_failure,
)

T = TypeVar("T")
FOREVER = 10.0**6
"""Seconds of virtual time."""


class VirtualThreads:
    """Threads on a virtual clock: a function that has called `sleep` occupies its thread for so many seconds."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def sleep(self, seconds: float) -> None:
        """Let the function that is being called take so many seconds."""
        self._seconds = seconds

    async def __call__(self, call: Callable[[], T], /) -> T:
        """Make a blocking call, as `in_thread` does."""
        await trio.lowlevel.cancel_shielded_checkpoint()
        calls = getattr(call, "__self__", None)
        if isinstance(calls, PlainCalls):
            while (scorer := calls.begin()) is not None:
                self._seconds = 0.0
                result = calls.call(scorer)
                await trio.sleep(self._seconds)
                calls.end(scorer, result)
        self._seconds = 0.0
        value = outcome.capture(call)
        if self._seconds:
            await trio.sleep(self._seconds)
        return value.unwrap()


@pytest.fixture
def threads() -> VirtualThreads:
    return VirtualThreads()


def right(output: str, expected: str) -> bool:
    """Whether the output is as expected: a quick scorer."""
    return output == expected


def no_score() -> Any:
    """Return what is not a score."""


def scores(disk: SimulatedDisk) -> list[tuple[str, str]]:
    """Return the trial and the scorer of each score, sorted."""
    return sorted((event.trial, event.scorer) for event in events(disk, TrialScored))


def time_of(disk: SimulatedDisk, kind: type, **fields: Any) -> float:
    """Return when the only event of a kind with these fields was recorded."""
    (t,) = (
        record.t
        for record in read(PATH, files=disk)
        if isinstance(record.event, kind) and all(getattr(record.event, name) == value for name, value in fields.items())
    )
    return t


async def test_plain_functions_are_called_without_a_start_or_a_lane(disk: SimulatedDisk) -> None:
    """Plain functions have scores, but neither records of starts nor a limit of their own."""
    defined = evaluation_of(answer_immediately, 3)
    for name in ("first", "second"):
        defined.score(name=name)(right)
    result = await run_fixed(defined, disk)

    assert [(f"case-{number}", name) for number in range(3) for name in ("first", "second")] == scores(disk)
    assert [] == events(disk, ScorerCallStarted)
    assert {""} == {event.key for event in events(disk, LimitChanged)}
    assert (3, "") == (result.state.completed, result.stop_reason)
    assert () == audited(disk).findings


async def test_one_that_hangs_is_abandoned_and_delays_no_other(disk: SimulatedDisk, threads: VirtualThreads) -> None:
    """A function that hangs times out after its own timeout; the others of the output have their scores long before."""
    defined = evaluation_of(answer_immediately, 1)
    defined.score(name="before")(right)

    @defined.score(timeout=5, retry=Retry(timeouts=0))
    def hangs(output: str) -> bool:
        threads.sleep(FOREVER)
        return True

    @defined.score(timeout=2, retry=Retry(timeouts=0))
    def hangs_too(output: str) -> bool:
        threads.sleep(FOREVER)
        return True

    defined.score(name="after")(right)
    result = await run_fixed(defined, disk, in_thread=threads)

    assert [("case-0", "after"), ("case-0", "before")] == scores(disk)
    assert time_of(disk, TrialScored, scorer="before") <= SLOW
    assert time_of(disk, TrialScored, scorer="after") <= 3 * SLOW
    failed = sorted((event.scorer, event.category, event.elapsed) for event in events(disk, ScorerCallFailed))
    assert [("hangs", "timed_out", 5.0), ("hangs_too", "timed_out", 2.0)] == failed
    assert {"hangs", "hangs_too"} == {event.scorer for event in events(disk, ScoringFailed)}
    assert [] == events(disk, ScorerCallStarted)
    assert 1 == result.state.completed
    assert 5.0 <= time_of(disk, TrialCompleted) < 5.1
    assert () == audited(disk).findings


async def test_a_late_result_is_discarded(disk: SimulatedDisk, threads: VirtualThreads) -> None:
    """What a function returns after it was abandoned is not a score."""
    defined = evaluation_of(answer_immediately, 1)

    @defined.score(timeout=1, retry=Retry(timeouts=0))
    def late(output: str) -> bool:
        threads.sleep(3)
        return True

    @defined.score
    async def lasts(output: str) -> bool:
        await trio.sleep(10)
        return True

    await run_fixed(defined, disk, in_thread=threads)

    assert [("case-0", "lasts")] == scores(disk)
    assert ["late"] == [event.scorer for event in events(disk, ScoringFailed)]


async def test_one_that_fails_is_retried_alone(disk: SimulatedDisk) -> None:
    """The first failure has no start; its retry is call 2 in a lane, and the other functions are not called again."""
    calls = Counter[str]()
    defined = evaluation_of(answer_immediately, 2, retry=Retry(errors=2, base_delay=1))

    @defined.score
    def steady(output: str, case: Any) -> bool:
        calls[f"steady {case.name}"] += 1
        return True

    @defined.score
    def flaky(output: str, case: Any) -> bool:
        calls[f"flaky {case.name}"] += 1
        if case.name == "case-0" and calls["flaky case-0"] == 1:
            raise OSError("no")
        return True

    result = await run_fixed(defined, disk)
    (failed,) = events(disk, ScorerCallFailed)
    starts = [(event.trial, event.call) for event in events(disk, ScorerCallStarted) if event.trial == "case-0"]

    assert ("case-0", "flaky", 1, "OSError") == (failed.trial, failed.scorer, failed.call, failed.error)
    assert failed.delay is not None
    assert [("case-0", 2)] == starts
    assert {"steady case-0": 1, "steady case-1": 1, "flaky case-0": 2, "flaky case-1": 1} == calls
    assert (2, 4) == (result.state.completed, len(set(scores(disk))))
    assert () == audited(disk).findings


@pytest.mark.parametrize("value", [None, float("nan"), {}, {"": 1.0}, object()])
async def test_a_value_that_is_no_score_fails_alone(value: Any, disk: SimulatedDisk) -> None:
    """An invalid value is the failure of its scorer; the others of the output have their scores."""
    defined = evaluation_of(answer_immediately, 1)
    defined.score(name="before")(right)
    defined.score(name="invalid")(lambda: value)
    defined.score(name="after")(right)
    result = await run_fixed(defined, disk)

    assert [("case-0", "after"), ("case-0", "before")] == scores(disk)
    assert ["invalid"] == [event.scorer for event in events(disk, ScoringFailed)]
    assert 1 == result.state.completed
    assert () == audited(disk).findings


async def test_a_function_that_is_rate_limited_waits_like_a_judge(disk: SimulatedDisk) -> None:
    """After a failure, a function has a lane: a Retry-After pauses its calls, and a start is recorded for each."""
    calls = Counter[str]()

    async def task(name: str) -> str:
        await trio.sleep(int(name.removeprefix("case-")))
        return "yes"

    defined = evaluation_of(task, 12, slots=12, retry=Retry())

    @defined.score
    def judge(output: str, case: Any) -> bool:
        calls[case.name] += 1
        if case.name in {"case-0", "case-1"} and calls[case.name] == 1:
            raise RateLimited(20.0)
        return True

    result = await run_fixed(defined, disk)
    paused = [record.t for record in read(PATH, files=disk) if isinstance(record.event, IntakePaused)]
    scored = sorted(record.t for record in read(PATH, files=disk) if isinstance(record.event, TrialScored))

    assert [1] == [int(t) for t in paused]  # The first failure was that of a call without a lane.
    assert scored[0] >= 21.0
    assert (12, 12) == (result.state.completed, len(set(scores(disk))))
    assert () == audited(disk).findings


async def test_a_function_that_always_fails_stops_the_run(disk: SimulatedDisk) -> None:
    """If the first outputs of a function end with the same error, the run stops, and others are not called meanwhile."""
    calls = 0
    defined = evaluation_of(answer_immediately, 400, slots=10, retry=Retry())

    @defined.score
    def broken(output: str) -> bool:
        nonlocal calls
        calls += 1
        raise ValueError("no verdict")

    result = await run_fixed(defined, disk)

    assert "same_error" == result.stop_reason
    assert "scorer broken: the first 20 outputs ended with ValueError" in result.detail
    assert calls < 200
    assert [] == scores(disk)


async def test_an_invalid_value_of_every_output_stops_the_run(disk: SimulatedDisk) -> None:
    """A function that never returns a score stops the run, as one that raises does."""
    defined = evaluation_of(answer_immediately, 400, slots=10)
    defined.score(name="invalid")(no_score)
    result = await run_fixed(defined, disk)

    assert ("same_error", True) == (result.stop_reason, len(events(disk, ScoringFailed)) < 200)


async def test_a_score_before_the_failures_stops_nothing(disk: SimulatedDisk) -> None:
    """Outputs that fail after one has a score do not stop the run."""
    defined = evaluation_of(answer_immediately, 60, slots=1)

    @defined.score
    def often_fails(output: str, case: Any) -> bool:
        if case.name == "case-0":
            return True
        raise ValueError("no verdict")

    result = await run_fixed(defined, disk)

    assert ("", 60, 59) == (result.stop_reason, result.state.completed, len(events(disk, ScoringFailed)))


async def test_a_slow_function_is_queued_until_it_is_quick(disk: SimulatedDisk, threads: VirtualThreads) -> None:
    """While a function is slow, its calls are queued in its lane; they are handed over again once one was quick."""

    async def task(name: str) -> str:
        await trio.sleep(int(name.removeprefix("case-")))
        return "yes"

    defined = evaluation_of(task, 6, slots=6)

    @defined.score
    def warms_up(output: str, case: Any) -> bool:
        if case.name in {"case-0", "case-1"}:
            threads.sleep(0.2)
        return True

    await run_fixed(defined, disk, in_thread=threads)

    assert ["case-1", "case-2"] == [event.trial for event in events(disk, ScorerCallStarted)]
    assert 6 == len(set(scores(disk)))
    assert () == audited(disk).findings


async def test_what_a_function_notes_belongs_to_its_trial(disk: SimulatedDisk) -> None:
    """Notes of a scorer are recorded with the attempt that returned the output."""
    defined = evaluation_of(answer_immediately, 2)

    @defined.score
    def notes(output: str, case: Any) -> bool:
        note(seen=case.name)
        return True

    await run_fixed(defined, disk)

    assert {("case-0", 1, "case-0"), ("case-1", 1, "case-1")} == {
        (event.trial, event.attempt, event.value) for event in events(disk, Noted)
    }


async def test_a_process_killed_during_a_call_scores_the_output_later(disk: SimulatedDisk, threads: VirtualThreads) -> None:
    """A function that was interrupted is called again when the run is resumed; those with a score are not."""
    calls, seconds = Counter[str](), 5.0
    defined = evaluation_of(answer_immediately, 2)

    @defined.score
    def quick(output: str) -> bool:
        calls["quick"] += 1
        return True

    @defined.score(timeout=None)
    def slow(output: str) -> bool:
        calls["slow"] += 1
        threads.sleep(seconds)
        return True

    killed = await run_killed(defined, disk, after=1.0, policy="fixed", in_thread=threads)
    assert [("case-0", "quick"), ("case-1", "quick")] == scores(killed)
    result = await run_fixed(defined, killed, resume=True, in_thread=threads)

    assert {"quick": 2, "slow": 4} == calls
    assert [(f"case-{number}", name) for number in range(2) for name in ("quick", "slow")] == scores(killed)
    assert (2, 2) == (result.state.completed, len(events(killed, AttemptStarted)))
    assert () == audited(killed).findings


async def test_a_call_that_outlives_the_grace_is_left_for_the_next_session(
    disk: SimulatedDisk, threads: VirtualThreads
) -> None:
    """A stop waits for functions for the grace period; then their outputs are scored when the run is resumed."""
    seconds = FOREVER
    defined = evaluation_of(answer_immediately, 1)

    @defined.score(timeout=None)
    def stuck(output: str) -> bool:
        threads.sleep(seconds)
        return True

    stopped = await run_fixed(defined, disk, deadline=3.0, grace=2.0, in_thread=threads)
    assert ("deadline", 0, []) == (stopped.stop_reason, stopped.state.completed, scores(disk))
    assert 5.0 <= stopped.state.t < 7
    seconds = 0.0
    resumed = await run_fixed(defined, disk, resume=True, deadline=None, in_thread=threads)

    assert ("", 1, [("case-0", "stuck")]) == (resumed.stop_reason, resumed.state.completed, scores(disk))
    assert () == audited(disk).findings


async def test_one_that_hangs_for_ever_leaves_the_other_outputs(disk: SimulatedDisk, threads: VirtualThreads) -> None:
    """Without a timeout, a call that hangs takes one of the slots; all other outputs are scored."""
    defined = evaluation_of(answer_immediately, 20, slots=2)

    @defined.score(timeout=None)
    def hangs_once(output: str, case: Any) -> bool:
        if case.name == "case-0":
            threads.sleep(FOREVER)
        return True

    result = await run_fixed(defined, disk, deadline=60.0, grace=1.0, in_thread=threads)

    assert ("deadline", 19) == (result.stop_reason, result.state.completed)
    assert sorted((f"case-{number}", "hangs_once") for number in range(1, 20)) == scores(disk)


async def test_attempts_continue_once_functions_have_caught_up(disk: SimulatedDisk, threads: VirtualThreads) -> None:
    """While too many outputs wait for functions, no attempt starts; all trials are done in the end."""
    defined = evaluation_of(answer_immediately, 500, slots=3)

    @defined.score(timeout=None)
    def slow(output: str) -> bool:
        threads.sleep(1.0)
        return True

    result = await run_fixed(defined, disk, in_thread=threads)

    assert ("", 500) == (result.stop_reason, result.state.completed)
    assert 500 == len(set(scores(disk)))
    assert () == audited(disk).findings


def test_an_audit_finds_a_failure_of_a_call_that_never_started() -> None:
    """Only the first call of a scorer may have no start: a second one is found."""

    async def record() -> SimulatedDisk:
        disk = SimulatedDisk()
        defined = evaluation_of(answer_immediately, 1, retry=Retry(errors=1))

        @defined.score
        def fails(output: str) -> bool:
            raise OSError("no")

        await run_fixed(defined, disk)
        return disk

    disk = trio.run(record, clock=trio.testing.MockClock(autojump_threshold=0))
    records = [item for item in read(PATH, files=disk) if not isinstance(item.event, ScorerCallStarted)]

    def checks(records: list[Record]) -> set[str]:
        return {finding.check for finding in audit(records, rules=retry_rules).findings}

    assert [1, 2] == [event.call for event in events(disk, ScorerCallFailed)]
    assert () == audited(disk).findings
    assert "calls" in checks(records)
    first = next(index for index, item in enumerate(records) if isinstance(item.event, ScorerCallFailed))
    too_long = attrs.evolve(records[first].event, elapsed=100.0)  # type: ignore[misc]  # an event is an attrs class
    assert "elapsed" in checks([*records[:first], records[first]._replace(event=too_long)])


async def test_a_rescoring_calls_functions_too(disk: SimulatedDisk, threads: VirtualThreads) -> None:
    """A function added later scores the recorded outputs, once each."""
    defined = evaluation_of(answer_immediately, 5)
    defined.score(name="old")(right)
    await run_fixed(defined, disk)
    defined.score(name="new")(right)
    options: dict[str, Any] = {"files": disk, "in_thread": threads}
    done = await Rescoring(defined, PATH, **options).rescore()
    repeated = await Rescoring(defined, PATH, **options).rescore()

    assert (5, 0, 5) == (done.outputs, repeated.outputs, repeated.already_scored)
    assert [(f"case-{number}", name) for number in range(5) for name in ("new", "old")] == scores(disk)


# In real threads.


def test_functions_never_have_more_calls_than_slots(tmp_path: Path) -> None:
    """A function that waits never has more calls in flight than `slots`, in threads and in its lane together."""
    lock, in_flight, most = threading.Lock(), 0, 0
    defined = define_real(answer_immediately, numbered_cases(40), slots=3)

    @defined.score
    def waits(output: str, case: Any) -> bool:
        nonlocal in_flight, most
        with lock:
            in_flight += 1
            most = max(most, in_flight)
        time.sleep(0.03 if int(case.name.removeprefix("case-")) % 8 < 5 else 0.0)
        with lock:
            in_flight -= 1
        return True

    result = run_real(defined, tmp_path / "run")

    assert 40 == result.state.completed
    assert 1 < most <= 3


def test_a_thread_that_hangs_is_replaced(tmp_path: Path) -> None:
    """With one slot, a function that hangs is abandoned, and the other outputs are scored; the process does not wait for it."""
    released = threading.Event()
    defined = define_real(answer_immediately, numbered_cases(4), slots=1)

    @defined.score(timeout=0.3)
    def hangs(output: str, case: Any) -> bool:
        if case.name == "case-0":
            released.wait(60)
        return True

    defined.score(name="other")(right)
    started_at = time.monotonic()
    try:
        result = run_real(defined, tmp_path / "run")
    finally:
        released.set()

    assert time.monotonic() - started_at < 30
    scored = sorted((event.trial, event.scorer) for event in events(tmp_path / "run", TrialScored))
    assert sorted([(f"case-{n}", "hangs") for n in range(1, 4)] + [(f"case-{n}", "other") for n in range(4)]) == scored
    assert ["timed_out"] == [event.category for event in events(tmp_path / "run", ScorerCallFailed)]
    assert verify(tmp_path / "run", expect_head=result.head).ok


# Random functions and kills.


def random_evaluation(seed: int, threads: VirtualThreads) -> AnyEvaluation:
    """Return an evaluation with random functions: quick, slow, failing, hanging, and with invalid values."""
    choice = random.Random(seed)
    retry = Retry(errors=choice.randint(0, 2), timeouts=choice.randint(0, 1), base_delay=0.5)
    defined = evaluation_of(answer_immediately, choice.randint(1, 6), slots=choice.randint(1, 4), retry=retry)
    calls = Counter[tuple[str, int]]()
    for number in range(choice.randint(1, 4)):
        weights = [choice.random() for _ in range(6)]

        def scorer(case: Any, number: int = number, weights: list[float] = weights) -> Any:
            calls[case.name, number] += 1
            (kind,) = random.Random(f"{seed} {case.name} {number} {calls}").choices(range(6), weights)
            match kind:
                case 0:
                    return True
                case 1:
                    threads.sleep(choice.uniform(0.001, 3.0))
                    return 0.5
                case 2:
                    raise choice.choice([OSError("no"), KeyError("no"), RateLimited(0.7), RuntimeError("no")])
                case 3:
                    threads.sleep(FOREVER)
                case 4:
                    return choice.choice([None, {}, float("inf")])
                case _:
                    return {"a": True, "b": "label"}
            return None

        defined.score(name=f"s{number}", timeout=choice.choice([0.005, 1.0, 4.0]))(scorer)
    return defined


def assert_scored_once(disk: SimulatedDisk, defined: AnyEvaluation, trials: Collection[str]) -> None:
    """Each scorer has ended once for each trial, with its scores or a failure, and each trial is completed once."""
    ends = Counter((event.trial, event.scorer.partition(".")[0]) for event in events(disk, ScoringFailed))
    parts = Counter((event.trial, event.scorer) for event in events(disk, TrialScored))
    assert all(number == 1 for number in parts.values())
    ends.update({(trial, scorer.partition(".")[0]) for trial, scorer in parts})

    assert {(name, scorer) for name in trials for scorer in defined.scorers} == ends.keys()
    assert all(number == 1 for number in ends.values())
    assert Counter(trials) == Counter(event.trial for event in events(disk, TrialCompleted))


def check_random_kills(seed: int) -> None:
    """Run random functions, kill the run up to three times, resume it, and check that each trial has each score once."""
    choice, disk, threads = random.Random(seed), SimulatedDisk(), VirtualThreads()
    options = {"in_thread": threads, "stop_on_same_error": None, "grace": 1.0}
    last = choice.randint(4, 60)
    for number in range(choice.randint(0, 3)):
        defined = random_evaluation(seed, threads)
        if run_until_power_failure(defined, disk, last, resume=has_journal(disk), **options) is not None:
            break
        disk, last = disk.after_power_failure(random.Random(f"{seed} {number}")), last + choice.randint(3, 30)
    defined = random_evaluation(seed, threads)
    result = run_until_power_failure(defined, disk, 10**9, resume=has_journal(disk), **options)

    assert result is not None
    assert "" == result.stop_reason
    assert_scored_once(disk, defined, list(result.state.trials))
    assert () == audited(disk).findings


@pytest.mark.parametrize("seed", range(30))
def test_each_trial_has_each_score_once(seed: int) -> None:
    """Whatever functions do, and whenever the process dies: each trial ends with one score or failure of each function."""
    check_random_kills(seed)


@pytest.mark.exhaustive
def test_each_trial_has_each_score_once_in_many_runs() -> None:
    """The same for 3,000 seeds."""
    for seed in range(1_000, 4_000):
        check_random_kills(seed)
