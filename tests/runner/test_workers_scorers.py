"""Scorers in workers: their scores, failures and deaths, with attempts there or in the process of the run."""

from typing import Any

import attrs
import trio

from evaljournal import Score, note
from evaljournal.journal.events import AttemptSucceeded, ScorerCallFailed, ScoringFailed, TrialScored
from evaljournal.runner.calls.notes import engine_note
from evaljournal.runner.sessions.rescore import Rescoring
from evaljournal.runner.testing import Return, Scripted, inline
from tests import runs
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, define, numbered_cases
from tests.workers import RETRY, MemoryWorkers, die, run_in, worker_name

ECHO = Scripted(lambda value, _: Return(value, 0.1))


async def test_a_scorer_runs_in_a_worker() -> None:
    """Scores, notes and failures are as in the process of the run; a scorer that ends its worker is retried in its own."""
    disk, pool = SimulatedDisk(), MemoryWorkers(workers=1)
    deaths = 1

    defined = define(ECHO, numbered_cases(3), retry=RETRY)

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
    assert "ended, last: exit code 3" in str(outcome)


async def test_scorer_calls_of_a_dead_worker_are_repeated_alone() -> None:
    """After a worker has ended with two calls, each of them is called again in a worker of its own."""
    defined = define(ECHO, numbered_cases(2), retry=RETRY)
    counts: list[int] = []
    in_flight = 0

    @defined.score(workers=True)
    async def unit_tests(output: str) -> bool:
        nonlocal in_flight
        in_flight += 1
        try:
            await trio.sleep(1)
            counts.append(in_flight)
            if len(counts) == 1:
                await die()
            return bool(output)
        finally:
            in_flight -= 1

    outcome = await run_in(MemoryWorkers(workers=1), defined, SimulatedDisk())

    assert 2 == outcome.state.completed
    assert [2, 1, 1] == counts


async def test_a_scorer_in_a_worker_gets_the_outcome() -> None:
    """The parameters `declined` and `truncated` say how the answer of an attempt, also one in a worker, ended."""
    disk, outcomes = SimulatedDisk(), {"case-0": "declined", "case-1": "truncated", "case-2": ""}

    async def task(value: str) -> str:
        await trio.sleep(0.1)
        engine_note(answer={"outcome": outcomes[value], "model": "m"})
        return value

    defined = define(task, numbered_cases(3))

    @defined.score(workers=True)
    async def flags(*, declined: bool, truncated: bool) -> str:
        await trio.sleep(0.1)
        return "declined" * declined + "truncated" * truncated

    outcome = await run_in(MemoryWorkers(workers=1), defined, disk)

    assert outcomes == {event.trial: event.value for event in runs.events(disk, TrialScored)}
    assert {"m": 3} == dict(outcome.state.totals.models)


async def test_only_scorers_run_in_workers() -> None:
    """Attempts run in the process of the run, even after one that ended with its worker in an earlier session."""
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
    outcome = await run_in(attrs.evolve(pool, runs_tasks=False, pipes=[]), defined, disk, resume=True, deadline=1000)

    assert 3 == outcome.state.completed
    assert {"task": [""] * 3, "scorer": ["process 1"] * 3} == places
    assert {""} == {event.worker for event in runs.events(disk, AttemptSucceeded)}


async def test_a_scorer_runs_in_a_worker_when_a_run_is_re_scored() -> None:
    """The workers of the evaluation are started, and only the scorer is called in them."""
    disk, pool = SimulatedDisk(), MemoryWorkers(workers=1)

    before = define(ECHO, numbered_cases(2))
    await run_in(None, before, disk)
    pool.evaluation = defined = define(ECHO, numbered_cases(2), workers=pool)

    @defined.score(workers=True)
    async def length(output: str) -> int:
        await trio.sleep(0.1)
        return len(output)

    done = await Rescoring(defined, PATH, files=disk, in_thread=inline, task="it.py:it").rescore()

    assert 2 == done.outputs
    assert {6.0} == {event.value for event in runs.events(disk, TrialScored)}
