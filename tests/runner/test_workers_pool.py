"""The workers of a session: how many are started and replaced, which are rejected, and the setting."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
import trio

from evaljournal import Chat, CommandWorkers, ProcessWorkers, RayWorkers, Retry, Settings, UsageError
from evaljournal.journal import read
from evaljournal.journal.events import AttemptInterrupted, AttemptStarted, RunStopped
from evaljournal.runner.definition.loading import imports_for_worker
from evaljournal.runner.runs.changes import effective_settings
from evaljournal.runner.scorers.builtin import exact
from evaljournal.runner.sessions.worker.calls import _load, open_evaluation
from evaljournal.runner.sessions.workers import new_workers
from evaljournal.runner.testing import Return, Scripted
from evaljournal.runner.workers.pool import Pipe, StartWorker, WorkerDied
from evaljournal.runner.workers.streams import StderrPrinter
from tests import runs
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, AnyEvaluation, define, numbered_cases
from tests.workers import RETRY, MemoryPipe, MemoryWorkers, die, run_in


async def task(value: str) -> str:
    """Return the input."""
    return value


@pytest.mark.parametrize(("workers", "slots", "count"), [(0, 10, 5), (1_000, 3, 3)])
async def test_as_many_workers_as_the_attempts_need(workers: int, slots: int, count: int, disk: SimulatedDisk) -> None:
    """Without a number, workers are started while all places are taken; none is started that the slots cannot use."""
    pool = MemoryWorkers(workers=workers, concurrency=2, spares=0)
    slow = Scripted(lambda value, _: Return(value, 4))
    await run_in(pool, define(slow, numbered_cases(2 * slots), slots=slots, retry=RETRY), disk)

    started = [round(record.t, 1) for record in read(PATH, files=disk) if isinstance(record.event, AttemptStarted)]
    assert [0.0] * slots + [4.0] * slots == started
    assert count == len(pool.pipes)


def test_more_workers_than_slots() -> None:
    """Slots are per rate-limit key, so they do not limit the workers of variants with several keys."""
    variants = {"a": {}, "b": {"model": "b"}}
    defined = define(Chat("a", base_url="http://127.0.0.1:9"), numbered_cases(1), loop=None, slots=3, variants=variants)

    assert [8, 3] == [
        new_workers(ProcessWorkers(8), evaluation, evaluation.settings, list(evaluation.tasks), "it.py:it")._size
        for evaluation in (defined, defined.with_variants(["a"]))
    ]


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
    assert {("case-4", "worker_lost"), ("case-9", "worker_lost"), ("case-30", "worker_lost")} == {
        (event.trial, event.reason) for event in runs.events(disk, AttemptInterrupted)
    }
    assert 2 + 3 + 2 <= len(outcome.state.workers)
    assert 30 > outcome.state.elapsed > 15


async def test_a_pool_without_workers_stops_the_run(disk: SimulatedDisk) -> None:
    """If the only worker is lost, and no other can be started, the run stops, and can be resumed."""

    class Lost(MemoryWorkers):
        @asynccontextmanager
        async def open(self) -> AsyncGenerator[StartWorker]:
            async with super().open() as start_first:

                async def start(number: int) -> Pipe:
                    if number > 1:
                        await trio.sleep(30)
                        raise WorkerDied("no node has room")
                    return await start_first(number)

                yield start

    async def task(value: str) -> str:
        await trio.sleep(1)
        if value == "case-2":
            await die("machine lost")
        return value

    outcome = await run_in(Lost(workers=0, concurrency=1, spares=0), define(task, numbered_cases(5), slots=1), disk)

    assert ("interrupted", 2) == (outcome.stop_reason, outcome.state.completed)
    assert "no node has room" in outcome.detail
    assert 100 > outcome.state.elapsed > 90


async def test_a_worker_that_does_not_become_ready_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    """An import that does not end is reported while it is waited for, and nothing is written."""

    class Silent(MemoryWorkers):
        async def _serve(self, pipe: MemoryPipe, _: int) -> None:
            await pipe.opened.wait()

    disk, pool = SimulatedDisk(), Silent(workers=1)

    with pytest.raises(UsageError, match="not ready within 120 s"):
        await run_in(pool, define(task, numbered_cases(1)), disk)

    assert [True] == [pipe.is_killed for pipe in pool.pipes]
    assert not disk.is_directory("/runs")
    assert ["2", "32", "62", "92"] == re.findall("waiting for workers: 0 of 1 ready after ([0-9]+) s", capsys.readouterr().err)


async def test_workers_that_become_ready_late(capsys: pytest.CaptureFixture[str]) -> None:
    """Only a start that takes longer than usual is reported, with the number of workers that are ready."""

    class Late(MemoryWorkers):
        async def _serve(self, pipe: MemoryPipe, number: int) -> None:
            await trio.sleep(number)
            await super()._serve(pipe, number)

    await run_in(Late(workers=1, spares=0), define(task, numbered_cases(1)), SimulatedDisk())
    assert not capsys.readouterr().err

    await run_in(Late(workers=4, spares=0), define(task, numbered_cases(1)), SimulatedDisk())
    assert ["1 of 4 ready after 2 s"] == re.findall("waiting for workers: (.*);", capsys.readouterr().err)


async def test_another_version_in_a_worker_is_rejected_before_anything_is_written() -> None:
    """The fingerprint of the task in the worker is not that of the session."""

    async def other(value: str) -> str:
        return f"other {value}"

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

    assert "interrupted" == outcome.stop_reason
    assert "another version of the task" in outcome.detail
    assert ["interrupted"] == [event.reason for event in runs.events(disk, RunStopped)]


@attrs.define(eq=False)
class ShortLived(MemoryWorkers):
    """A pool whose workers end as soon as they are ready, except for the first one."""

    def started(self, pipe: MemoryPipe) -> None:
        if len(self.pipes) > 1:
            pipe.end(WorkerDied("exit code 1"))


@pytest.mark.parametrize("ending_case", ["", "case-2"])
async def test_workers_that_end_before_they_run_anything_are_not_replaced_forever(
    ending_case: str, disk: SimulatedDisk
) -> None:
    """The run continues with the others; it is stopped if none is left."""

    async def task(value: str) -> str:
        await trio.sleep(1)
        if value == ending_case:
            await die()
        return value

    defined = define(task, numbered_cases(3), retry=RETRY)
    outcome = await run_in(ShortLived(workers=1, concurrency=1), defined, disk)

    assert ["exit code 1"] * 3 == [totals.detail for totals in outcome.state.workers.values() if totals.lost]
    if ending_case:
        assert (2, "interrupted") == (outcome.state.completed, outcome.stop_reason)
        assert "a worker ended before it ran anything" in outcome.detail
    else:
        assert 3 == outcome.state.completed


def test_a_worker_reports_what_it_cannot_load() -> None:
    """The session gets the message as data."""
    pipe = MemoryPipe("")

    def load(opening: dict[str, Any]) -> AnyEvaluation:
        raise UsageError(f"{opening['task']} does not exist")

    assert open_evaluation(pipe.worker_side, b'{"open":{"task":"it.py"}}', load) is None
    received = pipe.received()
    assert isinstance(received, bytes)
    assert orjson.loads(received)["rejected"].endswith(f" in {Path.cwd()}: it.py does not exist")


async def test_what_cannot_run_in_workers_is_rejected() -> None:
    """Scorers without their workers, other rules for exceptions, and a gateway out of reach are rejected."""

    async def rejected(defined: AnyEvaluation, **options: Any) -> str:
        with pytest.raises(UsageError) as caught:
            await runs.run_virtual(defined, SimulatedDisk(), task="it.py:it", **options)
        return str(caught.value)

    scored = define(task, numbered_cases(1))
    scored.score(name="unit_tests", workers=True)(exact)
    plain = define(task, numbered_cases(1))

    assert "scorer 'unit_tests' runs in workers" in await rejected(scored)
    assert "retry=…" in await rejected(plain, workers=MemoryWorkers(plain), retry=Retry(fail_on=KeyError))
    assert "no scorer is defined with workers=True" in await rejected(plain, workers=MemoryWorkers(plain, runs_tasks=False))
    assert "gateway" in await rejected(plain, workers=MemoryWorkers(plain), gateway=True)


def test_what_a_worker_prints_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    """Long lines on a worker's standard error are split, not truncated; control characters are escaped."""
    printer = StderrPrinter()
    printer.print(b"a" * 9_000 + b"\n\nlast \x1b")
    printer.end()

    assert [4_000, 4_000, 1_000, 0, 9] == [len(line) for line in capsys.readouterr().err.split("\n")[:-1]]


def test_a_worker_that_has_imported_the_evaluation_may_start_runs() -> None:
    """A run is rejected while a worker imports a file, and not in the calls that follow."""
    Path("it.py").write_text(
        "from evaljournal import Case, evaluation, run\n"
        "@evaluation(cases=[Case(name='peru', input='Peru')])\n"
        "async def it(country):\n"
        "    return country\n"
        "if not __import__('pathlib').Path('imported').exists():\n"
        "    run(it)\n"
    )

    with pytest.raises(UsageError, match="a worker imports this file"):
        _load({"task": "it.py:it", "tasks": {}})
    Path("imported").touch()
    defined = _load({"task": "it.py:it", "tasks": {}})

    assert "it" == defined.name
    assert not imports_for_worker.get()


def test_settings_of_workers() -> None:
    """Settings of workers are parsed from text and from what a journal records; a journal cannot name a command."""
    setting = Settings().with_values

    assert ProcessWorkers(3) == setting({"workers": "processes:3"}).workers
    assert ProcessWorkers(3, concurrency=16) == setting({"workers": "processes:3x16"}).workers
    assert CommandWorkers("ssh a:b", workers=3) == setting({"workers": "command:3:ssh a:b"}).workers
    assert CommandWorkers("ssh a", workers=3, runs_tasks=False) == setting({"workers": "scorers:command:3:ssh a"}).workers
    assert CommandWorkers("ssh a:b", workers=3, concurrency=2) == setting({"workers": "command:3x2:ssh a:b"}).workers
    assert CommandWorkers("ssh gpu1 work") == setting({"workers": "command:ssh gpu1 work"}).workers
    assert (RayWorkers(), RayWorkers("head:6379")) == tuple(
        setting({"workers": text}).workers for text in ("ray", "ray:head:6379")
    )
    assert setting({"workers": "none"}).workers is None
    recorded = setting({"workers": ProcessWorkers(3, concurrency=2, runs_tasks=False)}).to_json()["workers"]
    assert ProcessWorkers(3, concurrency=2, runs_tasks=False) == setting({"workers": recorded}).workers
    for invalid in (
        "processes:",
        "processes:0",
        "processes:2x",
        "scorers:none",
        "scorers:scorers:processes:2",
        "ray:127.0.0.1",
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
        with pytest.raises(UsageError) as caught:
            setting({"workers": invalid})
        if isinstance(invalid, str):  # The error shows what the user wrote, not the part that is wrong.
            assert ("workers", invalid) == (caught.value.setting, caught.value.value)
    with pytest.raises(UsageError, match="pass them again"):
        effective_settings(
            Settings(), {}, {"overridden": ["workers"], "workers": dict(CommandWorkers("ssh gpu1 work").describe())}
        )
