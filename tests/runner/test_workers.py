"""Attempts in workers: what is recorded, which retries are used up, and that workers behave as the process of the run does."""

from typing import Any

import attrs
import pytest
import trio

from evaljournal import Fatal, RateLimited, Score, note, step
from evaljournal.journal import read
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    Noted,
    RetryScheduled,
    StepCompleted,
    StepReused,
    TrialFailed,
    TrialScored,
)
from evaljournal.runner.testing import Return, Scripted, events_of
from tests import runs
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, define, numbered_cases
from tests.workers import RETRY, MemoryWorkers, die, run_in

MAY_DIFFER = {"elapsed", "delay", "traceback", "worker", "slot"}
"""Fields of events that are not compared."""


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

    def attempt_events(disk: SimulatedDisk) -> list[str]:
        recorded = [attrs.asdict(event) for event in events_of(PATH, files=disk) if isinstance(event, kinds)]  # type: ignore[arg-type]
        return sorted(str({name: value for name, value in fields.items() if name not in MAY_DIFFER}) for fields in recorded)

    disks: list[SimulatedDisk] = []
    for pool in (None, MemoryWorkers()):
        defined = define(everything, numbered_cases(13), timeout=1, retry=RETRY, slots=20)

        @defined.score
        def length(output: Any) -> dict[str, Any]:
            return {"items": len(output), "kind": Score("list" if isinstance(output, list) else "other", "because")}

        disks.append(SimulatedDisk())
        await run_in(pool, defined, disks[-1])

    assert attempt_events(disks[0]) == attempt_events(disks[1])
    assert {""} == {event.worker for event in runs.events(disks[0], AttemptSucceeded)}
    assert {"process 1", "process 2"} == {event.worker for event in runs.events(disks[1], AttemptSucceeded)}


async def test_an_attempt_that_ends_its_worker_uses_up_a_retry(disk: SimulatedDisk) -> None:
    """Two deaths are retried after a backoff, and the third fails the trial; with `on_ambiguous="fail"`, the first."""

    async def ends_worker(_: str) -> None:
        await die("signal 11 (SIGSEGV)")

    defined = define(ends_worker, numbered_cases(1), retry=RETRY)
    await run_in(MemoryWorkers(), defined, disk)

    assert [("case-0", "worker_died")] * 3 == ends(disk)
    assert {"signal 11 (SIGSEGV)"} == {event.detail for event in runs.events(disk, AttemptInterrupted)}
    assert ["process 1", "process 2", "process 3"] == sorted(event.worker for event in runs.events(disk, AttemptInterrupted))
    assert ["worker_died"] * 2 == [event.reason for event in runs.events(disk, RetryScheduled)]
    assert ["exhausted"] == [event.reason for event in runs.events(disk, TrialFailed)]

    ambiguous = SimulatedDisk()
    await run_in(MemoryWorkers(), defined, ambiguous, on_ambiguous="fail")
    assert (["ambiguous"], []) == (
        [event.reason for event in runs.events(ambiguous, TrialFailed)],
        runs.events(ambiguous, RetryScheduled),
    )


async def test_other_attempts_of_a_dead_worker_are_repeated_alone() -> None:
    """Only the trial that ends its workers fails; the others are repeated once each, one at a time in their worker."""
    disk, pool = SimulatedDisk(), MemoryWorkers(workers=2, concurrency=5)
    counts: list[int] = []
    in_flight = 0

    async def ends_worker(value: str) -> str:
        nonlocal in_flight
        in_flight += 1
        try:
            await trio.sleep(0.5 if value == "case-3" else 1)
            counts.append(in_flight)
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
    assert 2 >= max(counts[5:])  # One in each worker.
    assert {0.0} == {event.delay for event in runs.events(disk, RetryScheduled) if event.reason == "worker_lost"}
    ends_of_workers = [totals.ends for totals in outcome.state.workers.values() if totals.ends]
    assert ["worker died", "worker died", "worker lost"] == sorted(ends_of_workers)
    assert 5 + 2 + 9 == sum(totals.attempts for totals in outcome.state.workers.values())
    assert f"3 of {len(outcome.state.workers)} workers ended, last: exit code 3" in str(outcome)


async def test_lost_machines_use_up_no_retries_up_to_a_limit(disk: SimulatedDisk) -> None:
    """At the eleventh lost worker the trial fails, so that a run ends."""

    async def lost(_: str) -> None:
        await die("exit code 255", is_external=True)

    await run_in(MemoryWorkers(), define(lost, numbered_cases(1), retry=attrs.evolve(RETRY, deaths=0)), disk)

    assert [("case-0", "worker_lost")] * 11 == ends(disk)
    assert ["exhausted"] == [event.reason for event in runs.events(disk, TrialFailed)]


async def test_a_worker_that_does_not_respond_to_a_timeout_is_killed() -> None:
    """The attempt has timed out at the end of the grace period; one that had ended before keeps its output."""
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
    slow = Scripted(lambda value, _: Return(value, 4))
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


async def test_an_attempt_over_the_budget_names_its_worker(disk: SimulatedDisk) -> None:
    """The end of every attempt in a worker has the worker's name."""

    async def agent(value: str) -> str:
        note(usage={"output_tokens": 2})
        await trio.sleep(5 if value == "case-0" else 0)
        return value

    await run_in(MemoryWorkers(workers=1), define(agent, numbered_cases(2)), disk, budget_per_trial="output_tokens=1")

    assert ["process 1"] * 2 == [event.worker for event in runs.events(disk, AttemptFailed)]


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
