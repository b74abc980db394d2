"""Attempts in workers: what is recorded, which retries are used up, and that workers behave as the process of the run does."""

from typing import Any

import attrs
import pytest
import trio

from journal import read
from journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    Noted,
    RetryScheduled,
    RunStopped,
    ScorerCallFailed,
    ScoringFailed,
    StepCompleted,
    StepReused,
    TrialFailed,
    TrialScored,
)
from replay import audit
from runner import (
    CommandWorkers,
    Fatal,
    Outcome,
    ProcessWorkers,
    RateLimited,
    RayWorkers,
    Retry,
    Score,
    Settings,
    UsageError,
    note,
    step,
)
from runner.engine.changes import effective_settings
from runner.engine.rescore import rescore
from runner.engine.session_workers import scoring_workers
from runner.recompute.rules import session_rules
from runner.scorers import exact
from runner.testing import events_of, inline
from runner.worker.calls import open_evaluation
from runner.workers.pool import WorkerDied
from tests import runs
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, AnyEvaluation, define, numbered_cases
from tests.workers import MemoryPipe, MemoryWorkers, WorkerSide, die, worker_name

RETRY = Retry(errors=1, timeouts=0, rate_limits=5, base_delay=0.5)
TIMES = {"elapsed", "delay", "traceback", "worker", "slot"}


async def run_in(pool: MemoryWorkers | None, defined: AnyEvaluation, disk: SimulatedDisk, **options: Any) -> Outcome:
    """Run an evaluation in a pool of workers; its audit has no findings."""
    if pool is not None:
        pool.evaluation = defined
    outcome = await runs.run_virtual(defined, disk, task="it.py:it", workers=pool, policy="fixed", **options)
    assert () == audit(read(PATH, files=disk), rules=session_rules).findings
    return outcome


def ends(disk: SimulatedDisk) -> list[tuple[str, str]]:
    """Return the trials and reasons of the interrupted attempts."""
    return [(event.trial, event.reason) for event in runs.events(disk, AttemptInterrupted)]


class Response:
    """The response of an SDK."""

    def model_dump(self, *, mode: str) -> Any:
        return {"usage": {"prompt_tokens": 3}, "mode": mode}


class Unserializable:
    """An output that is not JSON."""

    def __repr__(self) -> str:
        return "unserializable"


class Unpicklable(Exception):
    """An exception that can be neither pickled nor created again from its arguments."""

    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{left} {right}")

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


class Response429(Exception):
    """A rate limit as SDKs raise it."""

    def __init__(self) -> None:
        super().__init__("slow down")
        self.status_code = 429
        self.headers = {"Retry-After": "2"}


ERRORS: dict[str, Exception | SystemExit] = {
    "case-1": ValueError("no answer"),
    "case-2": Unpicklable("two", "parts"),
    "case-3": Fatal("never"),
    "case-7": RateLimited(1.0),
    "case-8": Response429(),
    "case-10": SystemExit(4),
}
OUTPUTS = {"case-4": Response(), "case-5": {"unserializable": Unserializable()}, "case-6": float("nan"), "case-12": ("a", None)}


async def everything(value: str) -> Any:
    """Do what a task may do."""
    note(tokens=2, value={"of": value})
    await trio.sleep(100 if value == "case-9" else 0.1)
    if value in ERRORS:
        raise ERRORS[value].with_traceback(None)
    return await step("plan", plan, value) if value == "case-11" else OUTPUTS.get(value, value)


async def plan(value: str) -> Any:
    """Return a value that JSON changes."""
    await trio.sleep(0.1)
    return (1, value)


async def test_an_attempt_ends_in_a_worker_as_it_does_in_the_process_of_the_run() -> None:
    """Outputs, failures, notes, usage, steps and retries are the same."""
    kinds = (
        AttemptSucceeded | AttemptFailed | AttemptTimedOut | Noted | StepCompleted | RetryScheduled | TrialFailed | TrialScored
    )

    def facts(disk: SimulatedDisk) -> list[str]:
        recorded = [attrs.asdict(event) for event in events_of(PATH, files=disk) if isinstance(event, kinds)]  # type: ignore[arg-type]
        return sorted(str({name: value for name, value in members.items() if name not in TIMES}) for members in recorded)

    disks: list[SimulatedDisk] = []
    for pool in (None, MemoryWorkers()):
        defined = define(everything, numbered_cases(13), timeout=1, retry=RETRY, slots=20)

        @defined.score
        def length(output: Any) -> dict[str, Any]:
            return {"items": len(output), "kind": Score("list" if isinstance(output, list) else "other", "because")}

        disks.append(SimulatedDisk())
        await run_in(pool, defined, disks[-1])

    assert facts(disks[0]) == facts(disks[1])
    assert {""} == {event.worker for event in runs.events(disks[0], AttemptSucceeded)}
    assert {"process 1", "process 2"} == {event.worker for event in runs.events(disks[1], AttemptSucceeded)}


async def test_an_attempt_that_ends_its_worker_uses_up_a_retry() -> None:
    """Two deaths are retried after a backoff; the third fails the trial."""
    disk = SimulatedDisk()

    async def ends_worker(_: str) -> None:
        await die("signal 11 (SIGSEGV)")

    await run_in(MemoryWorkers(), define(ends_worker, numbered_cases(1), retry=RETRY), disk)

    assert [("case-0", "worker_died")] * 3 == ends(disk)
    assert {"signal 11 (SIGSEGV)"} == {event.detail for event in runs.events(disk, AttemptInterrupted)}
    assert ["process 1", "process 2", "process 3"] == sorted(event.worker for event in runs.events(disk, AttemptInterrupted))
    assert ["worker_died"] * 2 == [event.reason for event in runs.events(disk, RetryScheduled)]
    assert ["exhausted"] == [event.reason for event in runs.events(disk, TrialFailed)]


async def test_other_attempts_of_a_dead_worker_are_repeated_alone() -> None:
    """Only the trial that ends its workers fails; the others are repeated once each, one at a time in their worker."""
    disk, pool = SimulatedDisk(), MemoryWorkers(workers=2, concurrency=5)
    alone: list[int] = []
    in_flight = 0

    async def ends_worker(value: str) -> str:
        nonlocal in_flight
        in_flight += 1
        try:
            await trio.sleep(0.5 if value == "case-3" else 1)
            alone.append(in_flight)
            if value == "case-3":
                await die()
            return value
        finally:
            in_flight -= 1

    outcome = await run_in(pool, define(ends_worker, numbered_cases(10), slots=10, retry=attrs.evolve(RETRY, deaths=1)), disk)

    assert (9, 1) == (outcome.state.completed, outcome.state.failed)
    lost, died = (sorted(name for name, reason in ends(disk) if reason == cause) for cause in ("worker_lost", "worker_died"))
    assert ["case-3"] * 2 == died
    assert 5 == len(lost) == len(set(lost))
    assert 2 >= max(alone[5:])  # One in each worker.
    assert {0.0} == {event.delay for event in runs.events(disk, RetryScheduled) if event.reason == "worker_lost"}
    ends_of_workers = [totals.ends for totals in outcome.state.workers.values() if totals.ends]
    assert ["worker died", "worker died", "worker lost"] == sorted(ends_of_workers)
    assert 5 + 2 + 9 == sum(totals.attempts for totals in outcome.state.workers.values())
    assert f"{len(outcome.state.workers)} workers, 2 died, 1 lost:" in str(outcome)


async def test_lost_machines_use_up_no_retries_up_to_a_limit() -> None:
    """After ten lost workers the trial fails, so that a run ends."""
    disk = SimulatedDisk()

    async def lost(_: str) -> None:
        await die("exit code 255", is_external=True)

    await run_in(MemoryWorkers(), define(lost, numbered_cases(1), retry=attrs.evolve(RETRY, deaths=0)), disk)

    assert [("case-0", "worker_lost")] * 11 == ends(disk)
    assert ["exhausted"] == [event.reason for event in runs.events(disk, TrialFailed)]


async def test_a_worker_that_does_not_respond_to_a_timeout_is_killed() -> None:
    """The attempt has timed out, and the other attempts of the worker are repeated."""
    disk, pool = SimulatedDisk(), MemoryWorkers(workers=1)

    async def stubborn(value: str) -> str:
        if value == "case-0":
            with trio.CancelScope(shield=True):
                await trio.sleep(100)
        await trio.sleep(8 if value == "case-1" else 0.5)
        return value

    defined = define(stubborn, numbered_cases(2), timeout=10, retry=RETRY, grace=3)
    with trio.fail_after(200):
        outcome = await run_in(pool, defined, disk)

    assert ["case-0"] == [event.trial for event in runs.events(disk, AttemptTimedOut)]
    assert [13.0] == [round(event.elapsed, 1) for event in runs.events(disk, AttemptTimedOut)]
    assert (1, 1) == (outcome.state.completed, outcome.state.failed)


async def test_only_the_trial_that_blocks_a_worker_fails() -> None:
    """If several attempts do not respond to their timeouts, it is not known which one is the cause; each is repeated alone."""
    disk, pool = SimulatedDisk(), MemoryWorkers(workers=1)
    is_blocked = True

    async def blocking(value: str) -> str:
        with trio.CancelScope(shield=is_blocked or value == "case-0"):
            await trio.sleep(100 if is_blocked or value == "case-0" else 0.5)
        return value

    async def unblock() -> None:
        nonlocal is_blocked
        await trio.sleep(12)
        is_blocked = False

    defined = define(blocking, numbered_cases(2), timeout=10, retry=RETRY, grace=3)
    with trio.fail_after(200):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(unblock)
            outcome = await run_in(pool, defined, disk)

    assert ["case-0", "case-1"] == sorted(name for name, reason in ends(disk) if reason == "worker_lost")
    assert ["case-0"] == [event.trial for event in runs.events(disk, AttemptTimedOut)]
    assert (1, 1) == (outcome.state.completed, outcome.state.failed)


async def test_a_cancelled_attempt_cleans_up_and_its_worker_continues() -> None:
    """The `finally` of the task runs in the worker, which is not replaced."""
    disk, pool = SimulatedDisk(), MemoryWorkers(workers=1)
    cleaned_up: list[str] = []

    async def slow(value: str) -> None:
        try:
            await trio.sleep(100)
        finally:
            cleaned_up.append(value)

    await run_in(pool, define(slow, numbered_cases(3), timeout=1, retry=RETRY), disk)

    assert ["case-0", "case-1", "case-2"] == sorted(cleaned_up)
    assert {"process 1"} == {event.worker for event in runs.events(disk, AttemptTimedOut)}


async def test_no_attempt_starts_before_it_has_a_place() -> None:
    """Slots are not reduced to the places; the clock of an attempt does not run while it waits for a worker."""
    disk, pool = SimulatedDisk(), MemoryWorkers(workers=2, concurrency=1)

    async def slow(value: str) -> str:
        await trio.sleep(4)
        return value

    outcome = await run_in(pool, define(slow, numbered_cases(6), timeout=5, slots=6, retry=RETRY), disk)

    assert 6 == outcome.state.completed
    assert {4.0} == {round(event.elapsed, 3) for event in runs.events(disk, AttemptSucceeded)}
    assert [0.0, 0.0, 4.0, 4.0, 8.0, 8.0] == [
        round(record.t, 1) for record in read(PATH, files=disk) if isinstance(record.event, AttemptStarted)
    ]


@pytest.mark.parametrize("write_ahead", [False, True])
async def test_steps_survive_their_worker(*, write_ahead: bool) -> None:
    """The next attempt reuses the steps that the dead worker had completed."""
    disk = SimulatedDisk()
    calls: list[str] = []
    is_repeated = trio.Event()

    async def call(name: str) -> str:
        await trio.sleep(0.1)
        calls.append(name)
        return name

    async def agent(_: str) -> list[str]:
        results = [await step("model", call, "first"), await step("model", call, "second")]
        if not is_repeated.is_set():
            is_repeated.set()
            await die()
        return results

    await run_in(MemoryWorkers(), define(agent, numbered_cases(1), retry=RETRY), disk, write_ahead=write_ahead)

    assert ["first", "second"] == calls
    assert 2 == len(runs.events(disk, StepReused))
    assert [["first", "second"]] == [event.output for event in runs.events(disk, AttemptSucceeded)]


async def test_a_dead_worker_is_ambiguous_where_calls_must_not_be_repeated() -> None:
    """With `on_ambiguous="fail"` the trial fails instead of being repeated."""
    disk = SimulatedDisk()

    async def ends_worker(_: str) -> None:
        await die()

    await run_in(MemoryWorkers(), define(ends_worker, numbered_cases(1)), disk, on_ambiguous="fail")

    assert ["ambiguous"] == [event.reason for event in runs.events(disk, TrialFailed)]
    assert [] == runs.events(disk, RetryScheduled)


async def test_a_run_can_be_resumed_without_workers_and_with_others() -> None:
    """The pool is a setting of a session; deaths count in later sessions."""
    disk, deaths = SimulatedDisk(), 2

    async def ends_worker(_: str) -> str:
        nonlocal deaths
        deaths -= 1
        if deaths >= 0:
            await die()
        return "done"

    defined = define(ends_worker, numbered_cases(1), retry=attrs.evolve(RETRY, base_delay=100.0, max_delay=100.0))
    await run_in(MemoryWorkers(), defined, disk, deadline=1)
    await run_in(MemoryWorkers(workers=1), defined, disk, resume=True, deadline=300)
    await run_in(None, defined, disk, resume=True, deadline=300)

    assert [("case-0", "worker_died")] * 2 == ends(disk)
    assert ["done"] == [event.output for event in runs.events(disk, AttemptSucceeded)]


async def test_as_many_workers_as_the_attempts_need() -> None:
    """Without a number, workers are started while all places are taken, and not more than the slots can use."""
    disk, pool = SimulatedDisk(), MemoryWorkers(workers=0, concurrency=2, spares=0)

    async def slow(value: str) -> str:
        await trio.sleep(4)
        return value

    await run_in(pool, define(slow, numbered_cases(20), slots=10, retry=RETRY), disk)

    started = [round(record.t, 1) for record in read(PATH, files=disk) if isinstance(record.event, AttemptStarted)]
    assert [0.0] * 10 + [4.0] * 10 == started
    assert 5 == len(pool.pipes)


async def test_workers_are_added_and_replaced() -> None:
    """Workers that a pool cannot start are started when it can; lost ones are replaced."""
    disk, capacity = SimulatedDisk(), trio.CapacityLimiter(2)
    pool = MemoryWorkers(workers=0, concurrency=1, spares=0, capacity=capacity)
    lost = {"case-4", "case-9", "case-30"}

    async def task(value: str) -> str:
        await trio.sleep(1)
        if value == "case-20":
            capacity.total_tokens = 4
        if value in lost:
            lost.remove(value)
            await die("machine lost", is_external=True)
        return value

    outcome = await run_in(pool, define(task, numbered_cases(60), slots=8, retry=RETRY), disk)

    assert 60 == outcome.state.completed
    assert {("case-4", "worker_lost"), ("case-9", "worker_lost"), ("case-30", "worker_lost")} == set(ends(disk))
    assert 2 + 3 + 2 <= len(outcome.state.workers)
    assert 30 > outcome.state.elapsed > 15


async def test_a_worker_that_does_not_become_ready_is_killed() -> None:
    """An import that does not end is reported, and nothing is written."""

    class Silent(MemoryWorkers):
        async def _serve(self, pipe: MemoryPipe, _: int) -> None:
            await pipe.opened.wait()

    disk, pool = SimulatedDisk(), Silent(workers=1)

    async def task(value: str) -> str:
        return value

    with pytest.raises(UsageError, match="not ready within 120 s"):
        await run_in(pool, define(task, numbered_cases(1)), disk)

    assert [True] == [pipe.is_killed for pipe in pool.pipes]
    assert not disk.is_directory("/runs")


async def test_another_version_in_a_worker_is_rejected_before_anything_is_written() -> None:
    """The worker names the place where it imports the other version."""

    async def other(value: str) -> str:
        return f"other {value}"

    async def task(value: str) -> str:
        return value

    disk, pool = SimulatedDisk(), MemoryWorkers(define(other, numbered_cases(1)))

    with pytest.raises(UsageError, match="another version of the task"):
        await runs.run_virtual(define(task, numbered_cases(1)), disk, task="it.py:it", workers=pool)

    assert not disk.is_directory("/runs")


async def test_workers_that_cannot_be_replaced_stop_the_run() -> None:
    """A run whose file changes while it runs is stopped, and can be resumed."""

    async def changed(value: str) -> str:
        return f"changed {value}"

    async def task(value: str) -> str:
        await trio.sleep(1)
        pool.evaluation = define(changed, numbered_cases(4))
        await die()
        return value

    disk, pool = SimulatedDisk(), MemoryWorkers(workers=1, spares=0)

    outcome = await run_in(pool, define(task, numbered_cases(4), retry=RETRY), disk)

    assert "interrupted" == outcome.stopped
    assert "another version of the task" in outcome.detail
    assert ["interrupted"] == [event.reason for event in runs.events(disk, RunStopped)]


@attrs.define(eq=False)
class ShortLived(MemoryWorkers):
    """A pool whose workers end as soon as they are ready, except for the first one."""

    def started(self, pipe: MemoryPipe) -> None:
        if len(self.pipes) > 1:
            pipe.end(WorkerDied("exit code 1"))


@pytest.mark.parametrize("ending_case", ["", "case-2"])
async def test_workers_that_end_before_they_run_anything_are_not_replaced_forever(ending_case: str) -> None:
    """The run continues with the others; it is stopped if none is left."""

    async def task(value: str) -> str:
        await trio.sleep(1)
        if value == ending_case:
            await die()
        return value

    disk = SimulatedDisk()
    defined = define(task, numbered_cases(3), retry=RETRY)
    outcome = await run_in(ShortLived(workers=1, concurrency=1), defined, disk)

    assert ["exit code 1"] * 3 == [totals.detail for totals in outcome.state.workers.values() if totals.lost]
    if ending_case:
        assert (2, "interrupted") == (outcome.state.completed, outcome.stopped)
        assert "a worker ended before it ran anything" in outcome.detail
    else:
        assert 3 == outcome.state.completed


def test_a_worker_reports_what_it_cannot_load() -> None:
    """The session gets the message as data."""
    pipe = MemoryPipe("")

    def load(reference: str) -> AnyEvaluation:
        raise UsageError(f"{reference} does not exist")

    assert open_evaluation(WorkerSide(pipe), b'{"open":{"task":"it.py"}}', load) is None
    assert b'{"rejected":"it.py does not exist"}' == pipe.received()


async def test_a_scorer_runs_in_a_worker() -> None:
    """Scores, notes and failures are as in the process of the run; a scorer that ends its worker is retried in its own."""
    disk, pool = SimulatedDisk(), MemoryWorkers(workers=1)
    deaths = 1

    async def task(value: str) -> str:
        await trio.sleep(0.1)
        return value

    defined = define(task, numbered_cases(3), retry=RETRY)

    @defined.score(workers=True)
    async def unit_tests(output: str, expected: str) -> dict[str, Any]:
        nonlocal deaths
        note(scored=output)
        if output == "case-1":
            raise ValueError("does not compile")
        if output == "case-2" and deaths:
            deaths -= 1
            await die()
        return {"passed": Score(value=True, reason=f"{expected} it did"), "tests": 3}

    outcome = await run_in(pool, defined, disk)

    scored = {(event.trial, event.scorer): (event.value, event.reason) for event in runs.events(disk, TrialScored)}
    assert {
        ("case-0", "unit_tests.passed"): (True, "yes it did"),
        ("case-0", "unit_tests.tests"): (3.0, ""),
        ("case-2", "unit_tests.passed"): (True, "yes it did"),
        ("case-2", "unit_tests.tests"): (3.0, ""),
    } == scored
    failed = {(event.trial, event.error) for event in runs.events(disk, ScorerCallFailed)}
    assert {("case-1", "ValueError"), ("case-2", "evaljournal.WorkerEnded")} == failed
    assert ["case-1"] == [event.trial for event in runs.events(disk, ScoringFailed)]
    assert ["exit code 3"] == [totals.detail for totals in outcome.state.workers.values() if totals.died]
    assert "1 died" in str(outcome)


async def test_only_scorers_run_in_workers() -> None:
    """Attempts run in the process of the run, also after one that ended with its worker in an earlier session."""
    disk, pool = SimulatedDisk(), MemoryWorkers(workers=1)
    places: dict[str, list[str]] = {"task": [], "scorer": []}
    is_deadly = True

    async def task(value: str) -> str:
        await trio.sleep(0.1)
        if is_deadly:
            await die()
        places["task"].append(worker_name())
        return value

    defined = define(task, numbered_cases(3), retry=attrs.evolve(RETRY, base_delay=100.0, max_delay=100.0))

    @defined.score(workers=True)
    async def unit_tests(output: str) -> bool:
        await trio.sleep(0.1)
        places["scorer"].append(worker_name())
        return bool(output)

    await run_in(pool, defined, disk, deadline=1)
    is_deadly = False
    outcome = await run_in(attrs.evolve(pool, tasks=False, pipes=[]), defined, disk, resume=True, deadline=1000)

    assert 3 == outcome.state.completed
    assert {"task": [""] * 3, "scorer": ["process 1"] * 3} == places
    assert {""} == {event.worker for event in runs.events(disk, AttemptSucceeded)}


async def test_a_scorer_runs_in_a_worker_when_a_run_is_re_scored() -> None:
    """Without workers nothing is written; with them, only the scorer is called."""
    disk, pool = SimulatedDisk(), MemoryWorkers(workers=1)

    async def task(value: str) -> str:
        await trio.lowlevel.checkpoint()
        return value

    before = define(task, numbered_cases(2))
    await run_in(None, before, disk)
    pool.evaluation = defined = define(task, numbered_cases(2), workers=pool)

    @defined.score(workers=True)
    async def length(output: str) -> int:
        await trio.sleep(0.1)
        return len(output)

    scorers = list(defined.scorers.values())
    with pytest.raises(UsageError, match="runs in workers"):
        await rescore(PATH, scorers, files=disk, in_thread=inline)
    done = await rescore(PATH, scorers, files=disk, in_thread=inline, workers=scoring_workers(defined, "it.py:it"))

    assert 2 == done.outputs
    assert {6.0} == {event.value for event in runs.events(disk, TrialScored)}


async def test_what_cannot_run_in_workers_is_rejected() -> None:
    """Scorers without their workers, other rules for exceptions, and a gateway out of reach are rejected."""

    async def task(value: str) -> str:
        return value

    async def rejected(defined: AnyEvaluation, **options: Any) -> str:
        with pytest.raises(UsageError) as caught:
            await runs.run_virtual(defined, SimulatedDisk(), task="it.py:it", **options)
        return str(caught.value)

    scored = define(task, numbered_cases(1))
    scored.score(name="unit_tests", workers=True)(exact)
    plain = define(task, numbered_cases(1))

    assert "scorer 'unit_tests' runs in workers" in await rejected(scored)
    assert "retry=…" in await rejected(plain, workers=MemoryWorkers(plain), retry=Retry(fail_on=KeyError))
    assert "no scorer is defined with workers=True" in await rejected(plain, workers=MemoryWorkers(plain, tasks=False))
    assert "gateway" in await rejected(plain, workers=MemoryWorkers(plain), gateway=True)


def test_settings_of_workers() -> None:
    """Settings of workers are parsed from text and from what a journal records; a journal cannot name a command."""
    setting = Settings().changed

    assert ProcessWorkers(3) == setting({"workers": "processes:3"}).workers
    assert ProcessWorkers(3, concurrency=16) == setting({"workers": "processes:3x16"}).workers
    assert CommandWorkers("ssh a:b", workers=3) == setting({"workers": "command:3:ssh a:b"}).workers
    assert CommandWorkers("ssh a", workers=3, tasks=False) == setting({"workers": "scorers:command:3:ssh a"}).workers
    assert CommandWorkers("ssh a:b", workers=3, concurrency=2) == setting({"workers": "command:3x2:ssh a:b"}).workers
    assert CommandWorkers("ssh gpu1 work") == setting({"workers": "command:ssh gpu1 work"}).workers
    assert (RayWorkers(), RayWorkers("head:6379")) == tuple(
        setting({"workers": text}).workers for text in ("ray", "ray:head:6379")
    )
    assert setting({"workers": "none"}).workers is None
    recorded = setting({"workers": ProcessWorkers(3, concurrency=2, tasks=False)}).facts()["workers"]
    assert ProcessWorkers(3, concurrency=2, tasks=False) == setting({"workers": recorded}).workers
    for invalid in (
        "processes:",
        "processes:0",
        "processes:2x",
        "scorers:none",
        "scorers:",
        {"kind": "processes", "workers": 1, "concurrency": None, "tasks": "no"},
        "processes:2x0",
        "processes:٣",
        "command:0:ls",
        "command:2:",
        "rays",
        {"kind": "ray", "address": "head:6379"},
        "command:",
        {"kind": "command", "command": "ls", "workers": 1},
        8,
    ):
        with pytest.raises(UsageError):
            setting({"workers": invalid})
    with pytest.raises(UsageError, match="pass them again"):
        effective_settings(
            Settings(), {}, {"overridden": ["workers"], "workers": dict(CommandWorkers("ssh gpu1 work").describe())}
        )
