"""Set-up and teardown of attempts: what they get, what is recorded, when they run, and that their time does not count."""

import asyncio
import functools
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from evaljournal import (
    Case,
    Command,
    Outcome,
    RateLimited,
    Retry,
    UsageError,
    durable,
    evaluation,
    step,
)
from evaljournal.journal import verify
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    IntakePaused,
    Noted,
    StepCompleted,
    StepFailed,
    StepReused,
    TrialFailed,
)
from evaljournal.replay.results.warning_text import warnings_of
from evaljournal.replay.runs.trajectory import StepDetails
from evaljournal.runner.errors import RunChanged
from tests.journal.disk import SimulatedDisk
from tests.processes import TIMEOUT, wait_until
from tests.runner_cli.commands import process, wait_for
from tests.runs import (
    AnyEvaluation,
    audited,
    define,
    define_real,
    events,
    numbered_cases,
    outputs,
    run_killed,
    run_real,
    run_virtual,
    signal_after,
)
from tests.server import Server
from tests.workers import MemoryWorkers, run_in

POOLS = [None, MemoryWorkers]
"""Attempts run in the process of the run, or in workers."""


class Sandboxes:
    """A task for trio with a set-up and a teardown; each has a script: seconds to wait for, or an exception, per call."""

    def __init__(self, **scripts: list[float | Exception]) -> None:
        self.scripts = {role: list(script) for role, script in scripts.items()}
        self.log: list[str] = []
        """What was called, and what has ended."""

    async def act(self, role: str, name: str) -> None:
        """Do what the script defines for the next call; by default, wait for a second."""
        self.log.append(f"{role} {name}")
        script = self.scripts.get(role)
        match script.pop(0) if script else 1.0:
            case Exception() as exc:
                raise exc
            case seconds:
                await trio.sleep(float(seconds))
        self.log.append(f"end of {role}")

    def define(self, **options: Any) -> AnyEvaluation:
        """Return the evaluation."""

        async def agent(question: str, sandbox: str) -> str:
            await self.act("task", sandbox)
            return f"{question} in {sandbox}"

        async def sandbox(case: Case[Any, Any], trial: str) -> str:
            await self.act("setup", trial)
            return f"sandbox of {case.name}"

        async def remove(sandbox: str) -> None:
            await self.act("teardown", sandbox)

        defined = define(agent, [Case(name="peru", input="Lima?")], **{"policy": "fixed", **options})
        defined.setup(sandbox)
        defined.teardown(remove)
        return defined

    def run(self, disk: SimulatedDisk, pool: Callable[[], MemoryWorkers] | None = None, **options: Any) -> Outcome:
        """Run the evaluation on a virtual clock; its audit has no findings."""
        run_options = {name: options.pop(name) for name in ("signals", "observer") if name in options}
        call = functools.partial(run_in, pool and pool(), self.define(**options), disk, **run_options)
        return trio.run(call, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("pool", POOLS)
def test_the_start_is_on_disk_before_the_set_up(disk: SimulatedDisk, pool: Callable[[], MemoryWorkers] | None) -> None:
    """A kill in the middle of a set-up must not leave a sandbox that no record knows."""
    sandboxes, starts = Sandboxes(), list[str]()
    act = sandboxes.act

    async def note_starts(role: str, name: str) -> None:
        if role == "setup":
            starts.extend(event.trial for event in events(disk, AttemptStarted))
        await act(role, name)

    sandboxes.act = note_starts  # type: ignore[method-assign]
    sandboxes.run(disk, pool)

    assert ["peru"] == starts


@pytest.mark.parametrize("pool", POOLS)
def test_an_attempt_is_set_up_and_torn_down(disk: SimulatedDisk, pool: Any) -> None:
    """The set-up gets the case and the id of the trial; task and teardown get its value by its name.

    Both are steps of kind `other` that are never reused; the output of a set-up is its handle. Their time is part of neither
    latency nor timeout: an attempt of 85 s with a timeout of 30 s succeeds, because its task took 29 s.
    """
    sandboxes = Sandboxes(setup=[28.0], task=[29.0], teardown=[28.0])
    outcome = sandboxes.run(disk, pool)

    calls = ["setup peru", "task sandbox of peru", "teardown sandbox of peru"]
    assert calls == [entry for entry in sandboxes.log if not entry.startswith("end")]
    assert [("Lima? in sandbox of peru", 85.0)] == [(event.output, event.elapsed) for event in events(disk, AttemptSucceeded)]
    assert ([29.0], []) == (list(outcome.state.trials.attempts.latencies), outcome.problems)
    expected = [("setup sandbox", "other", "setup", 28.0), ("teardown remove", "other", "teardown", 28.0)]
    recorded = events(disk, StepCompleted)
    assert expected == [(event.name, event.kind, event.phase, event.elapsed) for event in recorded]
    outputs = [{"handle": "sandbox of peru"}, None]
    assert [(None, output, False) for output in outputs] == [(event.input, event.output, event.reusable) for event in recorded]
    assert (2, {}) == (outcome.state.steps.completed, outcome.state.steps.open)


@pytest.mark.parametrize("pool", POOLS)
def test_a_set_up_has_a_timeout_of_its_own(disk: SimulatedDisk, pool: Any) -> None:
    """A set-up that exceeds the timeout times its attempt out; the next attempt sets up again, and only that is torn down."""
    sandboxes = Sandboxes(setup=[31.0])
    outcome = sandboxes.run(disk, pool, retry=Retry(timeouts=1))

    assert [30.0] == [event.timeout for event in events(disk, AttemptTimedOut)]
    assert [("TimeoutError", "setup")] == [(event.error, event.phase) for event in events(disk, StepFailed)]
    assert ["setup peru", "setup peru", "end of setup", "task sandbox of peru", "end of task"] == sandboxes.log[:5]
    assert 1 == sandboxes.log.count("teardown sandbox of peru")
    assert (1, [1.0]) == (outcome.state.completed, list(outcome.state.trials.attempts.latencies))


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(
    ("first", "end"),
    [(60.0, AttemptTimedOut), (RuntimeError("no"), AttemptFailed), (RateLimited(1.0), AttemptFailed)],
)
def test_a_teardown_follows_every_end_of_the_task(disk: SimulatedDisk, pool: Any, first: Any, end: type) -> None:
    """After a timeout or an error, an attempt is torn down before the next one is set up."""
    sandboxes = Sandboxes(task=[first])
    sandboxes.run(disk, pool)

    roles = [entry.split()[0] for entry in sandboxes.log if not entry.startswith("end of")]
    assert ["setup", "task", "teardown"] * 2 == roles
    assert 2 == sandboxes.log.count("end of teardown")
    assert 1 == len(events(disk, end))


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("seconds", [6.0, 20.0])
@pytest.mark.parametrize("times", [1, 2])
def test_a_teardown_follows_a_stop(disk: SimulatedDisk, pool: Any, seconds: float, times: int) -> None:
    """Ctrl-C in the set-up or the task: what was set up is torn down within the grace period, even after a second Ctrl-C."""
    sandboxes = Sandboxes(setup=[5.0], task=[100.0], teardown=[4.0])
    outcome = sandboxes.run(disk, pool, grace=5.0, **signal_after(seconds, times=times))

    assert ["teardown sandbox of peru", "end of teardown"] == sandboxes.log[-2:]
    assert (["stopped"], "interrupted") == ([event.reason for event in events(disk, AttemptInterrupted)], outcome.stop_reason)
    assert ["setup", "teardown"] == [event.phase for event in events(disk, StepCompleted)]


@pytest.mark.parametrize("pool", POOLS)
def test_a_stop_during_the_teardown_keeps_the_output(disk: SimulatedDisk, pool: Any) -> None:
    """An attempt whose task has ended succeeds, even if its teardown is in flight when the grace period ends."""
    Sandboxes(teardown=[7.0]).run(disk, pool, grace=5.0, **signal_after(4.0, times=2))

    assert ["Lima? in sandbox of peru"] == [event.output for event in events(disk, AttemptSucceeded)]


async def test_a_cancelled_run_is_torn_down(disk: SimulatedDisk) -> None:
    """If the caller cancels the whole run, it waits for the teardown for the grace period."""
    sandboxes = Sandboxes(task=[100.0])
    with trio.move_on_after(10.0):
        await run_virtual(sandboxes.define(), disk)

    assert "end of teardown" == sandboxes.log[-1]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("seconds", [40.0, 10_000.0])
def test_a_teardown_that_does_not_end(disk: SimulatedDisk, pool: Any, seconds: float) -> None:
    """A teardown may take as long as the timeout; then it has failed, and the output is kept."""
    outcome = Sandboxes(teardown=[seconds]).run(disk, pool)

    assert [32.0] == [event.elapsed for event in events(disk, AttemptSucceeded)]
    note = {"error": "TimeoutError", "message": "it did not end within 30 s"}
    assert [("evaljournal.teardown_failed", note)] == [(event.name, event.value) for event in events(disk, Noted)]
    assert [1.0] == list(outcome.state.trials.attempts.latencies)


def test_a_teardown_that_does_not_end_after_a_timeout(disk: SimulatedDisk) -> None:
    """After a timeout of the task, it may take as long as the grace period."""
    outcome = Sandboxes(task=[60.0], teardown=[60.0]).run(disk, grace=5.0, retry=Retry(timeouts=0))

    assert [36.0] == [event.elapsed for event in events(disk, AttemptTimedOut)]
    assert (1, 1) == (outcome.state.failed, outcome.state.trials.warnings.failed_teardowns)


@pytest.mark.parametrize("pool", POOLS)
def test_a_failed_teardown_is_a_warning(disk: SimulatedDisk, pool: Any) -> None:
    """The output is kept, the step has failed, and a note and a warning name the error."""
    outcome = Sandboxes(teardown=[OSError("busy")]).run(disk, pool)

    assert (1, 0) == (outcome.state.completed, outcome.state.failed)
    assert [("teardown", "OSError", "busy")] == [
        (event.phase, event.error, event.message) for event in events(disk, StepFailed)
    ]
    assert [{"error": "OSError", "message": "busy"}] == [event.value for event in events(disk, Noted)]
    text = "1 teardown failed, the last one of trial peru; `evaljournal show peru` shows the error"
    assert [text] == warnings_of(outcome.state)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(
    ("error", "attempts", "category"), [(ConnectionError("down"), 2, "unavailable"), (AttributeError("typo"), 1, "fatal")]
)
def test_a_failed_set_up_fails_its_attempt(
    disk: SimulatedDisk, pool: Any, error: Exception, attempts: int, category: str
) -> None:
    """It is retried as an error of the task is, and nothing is torn down."""
    sandboxes = Sandboxes(setup=[error])
    sandboxes.run(disk, pool)

    assert attempts == len(events(disk, AttemptStarted))
    assert [category] == [event.category for event in events(disk, AttemptFailed)]
    assert attempts - 1 == sandboxes.log.count("teardown sandbox of peru")


def test_a_completed_set_up_does_not_restore_the_retries(disk: SimulatedDisk) -> None:
    """A trial ends after as many errors as without a set-up, even if completed steps are reused."""
    error = ConnectionError("no")
    Sandboxes(task=[error] * 9).run(disk, reuse_steps="always", retry=Retry(errors=2))

    assert 3 == len(events(disk, AttemptFailed))
    assert 1 == len(events(disk, TrialFailed))
    assert {0} == {event.reuses for event in events(disk, AttemptStarted)}


async def test_after_a_kill_an_attempt_is_set_up_again(disk: SimulatedDisk) -> None:
    """The next attempt reuses the steps of the task, but neither the set-up nor the calls inside it."""
    calls: list[str] = []

    @durable
    async def call(name: str) -> str:
        calls.append(name)
        await trio.sleep(1.0)
        return name

    async def agent(question: str, sandbox: str) -> str:
        first = await step("first", call, f"{question} 1")
        return f"{first} {await step('second', call, f'{question} 2')}"

    async def sandbox() -> str:
        return await call("create")

    async def remove(sandbox: str) -> None:
        await call("remove")

    def define_agent() -> AnyEvaluation:
        defined = define(agent, [Case(name="peru", input="a")], policy="fixed")
        defined.setup(sandbox)
        defined.teardown(remove)
        return defined

    killed = await run_killed(define_agent(), disk, after=2.5)
    calls.remove("remove")  # The test cancels the run instead of killing it, and that tears down.
    outcome = await run_virtual(define_agent(), killed, resume=True)

    assert ["create", "a 1", "a 2", "remove", "create", "a 2", "remove"] == calls
    assert (1, [2.0]) == (len(events(killed, StepReused)), list(outcome.state.trials.attempts.latencies))
    assert () == audited(killed).findings


async def test_a_set_up_that_times_out_does_not_end_its_worker(disk: SimulatedDisk) -> None:
    """The thread of a plain task was never started, so the worker does not wait for it."""

    def agent(question: str) -> str:
        return question

    async def sandbox() -> None:
        await trio.sleep(60.0)

    defined = define(agent, [Case(name="peru", input="a")], loop=None, retry=Retry(timeouts=0))
    defined.setup(sandbox)
    outcome = await run_in(MemoryWorkers(), defined, disk)

    assert (1, [30.0]) == (outcome.state.failed, [event.elapsed for event in events(disk, AttemptTimedOut)])
    assert [] == events(disk, Noted)  # No worker has ended.


async def test_long_set_ups_are_no_outage(disk: SimulatedDisk) -> None:
    """The policy does not take an endpoint for unresponsive because attempts are being set up for a minute."""

    async def agent(question: str) -> str:
        await trio.sleep(1.0)
        return question

    async def sandbox(input: str) -> None:  # noqa: A002  # the name that is passed
        await trio.sleep(60.0 + len(input))

    defined = define(agent, numbered_cases(120), slots=20, timeout=300.0)
    defined.setup(sandbox)
    outcome = await run_virtual(defined, disk)

    assert ([], 120) == (events(disk, IntakePaused), outcome.state.completed)
    assert {1.0} == set(outcome.state.trials.attempts.latencies)


async def test_scorers_get_the_trajectory_of_the_task(disk: SimulatedDisk) -> None:
    """Set-up and teardown are not steps of the agent."""
    trajectories: list[list[str]] = []

    async def agent(question: str) -> str:
        return await step("ask", trio.sleep, 1.0) or question

    defined = define(agent, [Case(name="peru", input="a")], policy="fixed")

    @defined.setup
    def sandbox() -> None:
        """Set up nothing."""

    @defined.teardown
    def remove() -> None:
        """Tear down nothing."""

    @defined.score
    def steps(trajectory: list[StepDetails]) -> int:
        trajectories.append([details.name for details in trajectory])
        return len(trajectory)

    await run_virtual(defined, disk)

    assert [["ask"]] == trajectories
    assert ["setup sandbox", "ask", "teardown remove"] == [event.name for event in events(disk, StepCompleted)]


async def in_asyncio(name: str) -> str:
    """Wait in asyncio."""
    await asyncio.sleep(0.001)
    return name


async def in_trio(name: str) -> str:
    """Wait in trio."""
    await trio.sleep(0.001)
    return name


def in_thread(name: str) -> str:
    """Wait for nothing."""
    return name


FUNCTIONS: dict[str, Any] = {"asyncio": in_asyncio, "trio": in_trio, "plain": in_thread}


def parts_of(kind: str, log: list[str]) -> Iterator[Callable[..., Any]]:
    """Yield a task, a set-up and a teardown that run in this loop, or in a thread."""
    act = FUNCTIONS[kind]
    if kind == "plain":

        def plain_agent(question: str, sandbox: str) -> str:
            return str(act(question + sandbox))

        def sandbox(input: str, expected: str, metadata: Any) -> str:  # noqa: A002  # the name that is passed
            return str(act(f" {input} {expected} {metadata['city']}"))

        def remove(sandbox: str) -> None:
            log.append(act(sandbox))

        yield from (plain_agent, sandbox, remove)
        return

    async def agent(question: str, sandbox: str) -> str:
        return str(await act(question + sandbox))

    async def async_sandbox(input: str, expected: str, metadata: Any) -> str:  # noqa: A002  # the name that is passed
        return str(await act(f" {input} {expected} {metadata['city']}"))

    async def async_remove(sandbox: str) -> None:
        log.append(await act(sandbox))

    async_sandbox.__name__ = "sandbox"
    yield from (agent, async_sandbox, async_remove)


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("hook_kind", FUNCTIONS)
def test_each_function_runs_in_its_own_loop(path: Path, kind: str, hook_kind: str) -> None:
    """Task, set-up and teardown may be plain, or written for asyncio or trio, in any combination."""
    log: list[str] = []
    agent, *_ = parts_of(kind, log)
    _, setup, teardown = parts_of(hook_kind, log)
    defined = define_real(agent, [Case(name="peru", input="a", expected="b", metadata={"city": "Lima"})])
    defined.setup(setup)
    defined.teardown(teardown)
    outcome = run_real(defined, path)

    assert (["a a b Lima"], [" a b Lima"], []) == (outputs(path), log, outcome.problems)


def test_a_plain_set_up_that_returns_late_is_torn_down(path: Path) -> None:
    """A plain function cannot be cancelled: when it returns after its timeout, the teardown gets its value."""
    log: list[str] = []

    def agent(question: str, sandbox: str) -> str:
        return question + sandbox

    def sandbox() -> str:
        time.sleep(0.3)  # From its call on, so that the timeout always ends first.
        return "it"

    def remove(sandbox: str) -> None:
        log.append(sandbox)

    defined = define_real(agent, timeout=0.1)
    defined.setup(sandbox)
    defined.teardown(remove)
    outcome = run_real(defined, path, grace=TIMEOUT)

    assert (["it"], [0.1]) == (log, [event.timeout for event in events(path, AttemptTimedOut)])
    assert (1, 0) == (outcome.state.failed, outcome.state.completed)


def test_a_changed_set_up_is_a_changed_task(path: Path) -> None:
    """A run is not resumed with another set-up or teardown, and the difference is shown."""

    def agent(question: str) -> str:
        raise ValueError(question)

    def sandbox() -> str:
        return "one"

    def other_sandbox() -> str:
        return "two"

    defined, changed = define_real(agent), define_real(agent)
    defined.setup(sandbox)
    changed.setup(other_sandbox)
    run_real(defined, path)
    with pytest.raises(RunChanged, match="the task has changed") as raised:
        run_real(changed, path, resume=True, retry_failed=True)

    assert '+        return "two"' in str(raised.value)


def test_objects_can_have_a_set_up(path: Path) -> None:
    """The set-up of a task that is not a function runs, and its value goes to the teardown only."""
    log: list[str] = []
    defined: AnyEvaluation = evaluation(cases=[Case(name="peru", input="a")])(Command("cat"))

    @defined.setup
    def database(trial: str) -> str:
        return f"database of {trial}"

    @defined.teardown
    def drop(database: str) -> None:
        log.append(database)

    outcome = run_real(defined, path)

    assert (['"a"'], ["database of peru"], []) == (outputs(path), log, outcome.problems)


LEDGER = """
import os, time
from urllib.request import urlopen
from evaljournal import evaluation

def call(name):
    urlopen(os.environ["LEDGER"], f"{name}-{os.getpid()}".encode(), timeout=30).read()

@evaluation(cases=["a", "b", "c", "d"], slots=2)
def agent(question, sandbox):
    call(f"task-{question}")
    if question > "b" and "HOLD" in os.environ:
        time.sleep(1_000)
    return sandbox

@agent.setup
def sandbox(input):
    call(f"setup-{input}")
    return input + input

@agent.teardown
def remove(sandbox):
    call(f"teardown-{sandbox[0]}")
"""


@pytest.mark.parametrize("workers", ["", "processes:2"])
def test_a_killed_run_sets_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server, name: str, workers: str
) -> None:
    """After `kill -9`, the attempts in flight are torn down with their handles, and only they are set up again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEDGER", server.url(name, "target"))
    Path("agent.py").write_text(LEDGER)
    options = ("--workers", workers) if workers else ()
    with process("run", "agent.py", "-s", "policy=fixed", *options, hold=True) as killed:
        wait_for(tmp_path / "runs/agent/0001", '"attempt_started"', 4)
        assert wait_until(lambda: sum("task-" in request["body"] for request in server.requests(name)) == 4)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
    with process("resume") as resumed:
        resumed.communicate()

    calls = [request["body"].split("-") for request in server.requests(name)]
    counts = Counter((role, question) for role, question, _ in calls)
    expected = {(role, question): 1 for role in ("setup", "task", "teardown") for question in "abcd"}
    assert expected | {(role, question): 2 for role in ("setup", "task", "teardown") for question in "cd"} == counts
    assert 0 == resumed.returncode
    assert len({(question, pid) for _, question, pid in calls}) == (8 if workers else 6)  # This process tears down the rest.
    assert verify("runs/agent/0001").ok


def agent(question: str, sandbox: str) -> str:
    """Answer in a sandbox."""
    return question + sandbox


def sandbox() -> str:
    """Return a sandbox."""
    return "s"


def generator() -> Iterator[str]:
    """Yield a sandbox."""
    yield "s"


def box(case: Any, output: Any) -> None:
    """Need an output."""


def remove(sandbx: str) -> None:
    """Need a value that is not there."""


def define_hooks(task: Any, *hooks: tuple[str, Any], variants: Any = None) -> None:
    """Define an evaluation, and check it as a run does."""
    defined: AnyEvaluation = evaluation(cases=[1], variants=variants)(task)
    for role, function in hooks:
        getattr(defined, role)(function)
    defined.check_parameters()


@pytest.mark.parametrize(
    ("hooks", "variants", "message"),
    [
        ([], None, "task 'agent': parameter 'sandbox' of the task has no value; give it a default, a value in the variant"),
        ([("setup", box)], None, "parameter 'sandbox' of the task has no value"),
        ([("setup", generator)], None, "setup 'generator' is a generator; return the value, and clean up in @agent.teardown"),
        ([("setup", 3)], None, "a setup is a function, not 3"),
        ([("setup", sandbox), ("setup", box)], None, "'agent' has a setup already, 'sandbox'; call both in one function"),
        ([("setup", lambda: 1)], None, "'<lambda>' is not a valid name"),
        (
            [("setup", sandbox), ("teardown", remove)],
            None,
            "teardown remove: parameter 'sandbx' is unknown; parameters are passed",
        ),
        ([("setup", sandbox), ("teardown", box)], None, "any of: sandbox, input, expected, metadata, case, trial"),
        ([("setup", sandbox)], {"a": {"sandbox": "v"}}, "parameter 'sandbox' is set by the variant and by the set-up"),
    ],
)
def test_mistakes_are_reported_before_anything_starts(hooks: Any, variants: Any, message: str) -> None:
    """A parameter without a value, a generator, or a second set-up is a usage error."""
    with pytest.raises(UsageError) as raised:
        define_hooks(agent, *hooks, variants=variants)

    assert message in str(raised.value)


def test_a_set_up_has_a_name_of_its_own() -> None:
    """A set-up that has the name of another parameter is a usage error: one of the two values would be lost."""

    def question() -> str:
        return "s"

    def expected() -> str:
        return "s"

    def echo(question: str) -> str:
        return question

    with pytest.raises(UsageError, match="the first parameter of the task gets the input, but has the name of the set-up"):
        define_hooks(echo, ("setup", question))
    with pytest.raises(UsageError, match="setup expected: a parameter named 'expected' has another value already"):
        define_hooks(echo, ("setup", expected))


def test_a_notebook_cell_may_be_run_again() -> None:
    """A new version of a set-up replaces the old one."""
    versions: list[Any] = []
    for value in ("one", "two"):
        namespace: dict[str, Any] = {"__name__": "notebook"}
        exec(compile(f"def sandbox():\n    return {value!r}", f"<cell {value}>", "exec"), namespace)  # noqa: S102  # as a notebook does
        versions.append(namespace["sandbox"])
    defined: AnyEvaluation = evaluation(cases=[1])(agent)
    for version in versions:
        defined.setup(version)

    assert versions[1] is defined.hooks["setup"].function
