"""Durable steps: what is recorded, and which steps the next attempt executes again."""

import asyncio
import functools
import itertools
import json
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from evaljournal import Case, Outcome, RateLimited, Retry, UsageError, durable, step, verify
from evaljournal.journal import read
from evaljournal.journal.events import (
    AttemptStarted,
    AttemptTimedOut,
    Noted,
    StepCompleted,
    StepEvent,
    StepFailed,
    StepReused,
    TrialFailed,
)
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay.auditing.auditor import audit
from evaljournal.replay.runs.trajectory import Trajectory, recorded_step
from evaljournal.runner.retries.rules import retry_rules
from evaljournal.runner.steps.attempt_steps import AttemptSteps, Step
from evaljournal.runner.steps.inputs import step_input
from tests.journal.disk import SimulatedDisk
from tests.runs import (
    PATH,
    AnyEvaluation,
    define,
    define_real,
    events,
    findings,
    run_killed,
    run_real,
    run_until_power_failure,
    run_virtual,
)

STEPS = 6


class Agent:
    """An agent for trio that makes one call per step; some of them raise."""

    def __init__(self, errors: dict[int, list[Exception]] | None = None, seconds: float = 1.0) -> None:
        self.errors = errors or {}
        self.seconds = seconds
        self.calls: Counter[tuple[Any, int]] = Counter()
        self.__name__ = "agent"

    async def ask(self, question: Any, number: int, history: list[str]) -> str:
        """Call the model."""
        self.calls[question, number] += 1
        await trio.sleep(self.seconds)
        if self.errors.get(number):
            raise self.errors[number].pop(0)
        return f"{question}/{number}/{len(history)}"

    async def __call__(self, question: Any) -> str:
        """Take all steps."""
        history: list[str] = []
        for number in range(1, STEPS + 1):
            history.append(await step(f"turn {number}", self.ask, question, number, list(history)))
        return history[-1]


async def evaluate(agent: Any, disk: SimulatedDisk, cases: Any = "a", **options: Any) -> Outcome:
    """Run an agent on a virtual clock."""
    return await run_virtual(define_agent(agent, cases, **options), disk)


class FailOnce:
    """Raises an error at the first call."""

    def __init__(self) -> None:
        self._errors = [RateLimited(0.01)]

    def __call__(self) -> None:
        """Raise the error, if that was not done before."""
        if self._errors:
            raise self._errors.pop()


def define_agent(agent: Any, cases: Any = "a", **options: Any) -> AnyEvaluation:
    """Return the evaluation of an agent."""
    return define(agent, [Case(name=name, input=name) for name in cases], **{"policy": "fixed", **options})


async def test_steps_are_recorded(disk: SimulatedDisk) -> None:
    """Each step has its number, its name, its arguments by name, its result and its duration."""
    outcome = await evaluate(Agent(), disk)
    recorded = events(disk, StepCompleted)

    assert 1 == outcome.state.completed
    assert [(n, f"turn {n}", f"a/{n}/{n - 1}", 1.0) for n in range(1, STEPS + 1)] == [
        (event.step, event.name, event.output, event.elapsed) for event in recorded
    ]
    assert {"question": "a", "number": 2, "history": ["a/1/0"]} == recorded[1].input
    assert (STEPS, 0, {}) == (outcome.state.steps.completed, outcome.state.steps.reused, outcome.state.steps.open)


@pytest.mark.parametrize("at", range(1, STEPS + 1))
async def test_after_a_rate_limit_only_the_remaining_steps_are_executed(at: int) -> None:
    """The attempt ends at a 429 and frees its slot; the failed step is recorded, and the next attempt continues at it."""
    disk, agent = SimulatedDisk(), Agent({at: [RateLimited(2.0)]})
    outcome = await evaluate(agent, disk)
    failed = events(disk, StepFailed)

    assert [(at, f"turn {at}", "evaljournal.RateLimited")] == [(event.step, event.name, event.error) for event in failed]
    assert {("a", n): 1 + (n == at) for n in range(1, STEPS + 1)} == agent.calls
    assert [0, int(at > 1)] == [event.reuses for event in events(disk, AttemptStarted)]
    assert at - 1 == len(events(disk, StepReused)) == outcome.state.steps.reused
    assert 1 == outcome.state.completed
    assert [] == findings(disk)


@pytest.mark.parametrize(
    ("reuse", "error", "repeated"),
    [
        ("transient", ConnectionError("gone"), 0),
        ("transient", RuntimeError("a bug of the agent"), 1),
        ("interrupted", RateLimited(1.0), 1),
        ("always", RuntimeError("a bug of the agent"), 0),
        ("never", RateLimited(1.0), 1),
    ],
)
async def test_the_setting_decides_what_is_reused(reuse: str, error: Exception, repeated: int) -> None:
    """After its own error an agent starts again, unless `reuse_steps` is `always`."""
    disk, agent = SimulatedDisk(), Agent({4: [error]})
    await evaluate(agent, disk, reuse_steps=reuse)

    assert [1 + repeated] * 3 + [2, 1, 1] == [agent.calls["a", n] for n in range(1, STEPS + 1)]
    assert [] == findings(disk)


class Unauthorized(Exception):
    """The provider's exception for an invalid key."""

    status_code = 401


async def test_after_a_401_a_resumed_run_continues() -> None:
    """The run stops immediately; when it is resumed with a valid key, completed steps are not executed again."""
    disk, agent = SimulatedDisk(), Agent({4: [Unauthorized("no key")]})
    assert "unauthorized" == (await evaluate(agent, disk)).stop_reason
    await run_virtual(define_agent(agent), disk, resume=True)

    assert {("a", n): 1 + (n == 4) for n in range(1, STEPS + 1)} == agent.calls
    assert [] == findings(disk)


@pytest.mark.parametrize(
    ("seed", "stride"), [(0, 5), *(pytest.param(seed, 1, marks=pytest.mark.exhaustive) for seed in range(10))]
)
def test_power_failure_at_every_record(seed: int, stride: int) -> None:
    """The calls after a resume are exactly those whose steps were not on disk."""
    for seq in itertools.count(1, stride):
        disk, agent = SimulatedDisk(), Agent({2: [RateLimited(1.0)], 5: [ConnectionError("gone")]}, seconds=0.5 + seed / 10)
        defined = define_agent(agent, "ab", slots=2, retry=Retry(errors=3))
        if run_until_power_failure(defined, disk, seq) is not None:
            break
        image = disk.after_power_failure(random.Random(seed))
        has_journal = image.is_directory(str(PATH)) and any(
            name.startswith("journal-") for name in image.list_directory(str(PATH))
        )
        if not has_journal:
            continue
        recorded_steps = Counter((event.trial, event.name) for event in events(image, StepCompleted))
        before = Counter(agent.calls)
        agent.errors = {}
        resumed_agent = define_agent(agent, "ab", slots=2, retry=Retry(errors=3))
        trio.run(
            functools.partial(run_virtual, resumed_agent, image, resume=True),
            clock=trio.testing.MockClock(autojump_threshold=0),
        )
        called = agent.calls - before
        expected = {(case, n): 1 for case in "ab" for n in range(1, STEPS + 1) if not recorded_steps[case, f"turn {n}"]}
        assert expected == dict(called), f"after record {seq}"
        assert [] == findings(image)
    assert seq > 40


async def test_steps_of_other_trials_are_never_used(disk: SimulatedDisk) -> None:
    """Repeats of a case and other cases have equal inputs and get their own results."""
    numbers = iter(range(100))
    errors = {"a", "b"}

    def draw() -> int:
        return next(numbers)

    async def agent(question: str) -> int:
        await trio.lowlevel.checkpoint()
        drawn: int = step("draw", draw)
        if question in errors:
            errors.discard(question)
            raise RateLimited(1.0)
        return drawn

    await evaluate(agent, disk, "ab", repeats=2)

    assert 4 == len({event.output for event in events(disk, StepCompleted)}) == len(events(disk, StepCompleted))


async def test_a_step_with_side_effects_is_executed_again(disk: SimulatedDisk) -> None:
    """With `reuse=False` a step is recorded, and every attempt executes it."""
    written: list[str] = []
    fail_once = FailOnce()

    @durable(kind="tool", reuse=False)
    def write(text: str) -> int:
        written.append(text)
        return len(written)

    async def agent(_: Any) -> int:
        await trio.lowlevel.checkpoint()
        count: int = write("x")
        fail_once()
        return count

    await evaluate(agent, disk)

    assert ["x", "x"] == written
    assert [("tool", False)] * 2 == [(event.kind, event.reusable) for event in events(disk, StepCompleted)]
    assert [] == events(disk, StepReused)


async def test_the_first_result_is_what_the_journal_returns() -> None:
    """A tuple is a list the first time, too, so that code cannot fail only after a crash."""
    results: list[Any] = []

    async def agent(_: Any) -> str:
        await trio.lowlevel.checkpoint()
        results.append(step("pair", lambda: (1, {"b": 2, "a": (3,)})))
        return "done"

    await evaluate(agent, SimulatedDisk())

    assert [[1, {"b": 2, "a": [3]}]] == results


@pytest.mark.parametrize(
    ("arguments", "result"),
    [((object(),), 1), ((1,), object()), ((1,), float("nan")), ((1,), "\ud83d"), ((1,), 10**40), ((10**40,), 1)],
)
async def test_what_is_not_json_is_an_error_that_is_not_retried(
    arguments: tuple[Any, ...], result: Any, disk: SimulatedDisk
) -> None:
    """The trial fails as fatal, and the error names the step."""

    async def agent(_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return step("odd", lambda *_: result, *arguments)

    outcome = await evaluate(agent, disk)
    (failed,) = events(disk, TrialFailed)

    assert "fatal" == failed.reason
    assert "step 'odd'" in outcome.state.trials["a"].error


@pytest.mark.parametrize("usage", [object(), float("nan"), {"cost": 10**40}, KeyError("no usage")])
def test_usage_that_is_not_json_is_an_error_of_the_task(path: Path, usage: Any) -> None:
    """The step has failed, and the run continues, even if the step is recorded from another thread."""

    def read_usage(_: Any) -> Any:
        if isinstance(usage, Exception):
            raise usage
        return usage

    outcome = run_real(define_real(durable(usage=read_usage)(ask_plainly), [Case(name="a", input=1)]), path)

    assert 1 == outcome.state.failed
    assert ["ask_plainly"] == [event.name for event in events(path, StepFailed)]
    assert [] == events(path, StepCompleted)


@pytest.mark.parametrize("levels", [252, 253, 254])
def test_values_that_are_nested_too_deeply_for_a_record(path: Path, levels: int) -> None:
    """Values that are JSON, but too deep inside an event: the step is recorded as failed, and the run continues."""
    value: Any = json.loads("[" * levels + "]" * levels)

    def agent(_: Any) -> int:
        step("argument", lambda value: len(value), value)  # noqa: PLW0108  # its parameter has a name
        step("result", lambda: value)
        return 1

    outcome = run_real(define_real(agent, [Case(name="a", input=1)]), path)
    recorded = [event.name for event in events(path, StepCompleted)] + [event.name for event in events(path, StepFailed)]

    assert 1 == outcome.state.completed
    assert ["argument", "result"] == sorted(recorded)
    assert verify(path).ok


async def test_a_key_replaces_arguments_that_are_not_json() -> None:
    """`key` returns JSON that identifies a call."""
    clients = [object(), object()]
    calls: list[str] = []
    fail_once = FailOnce()

    @durable(key=lambda _, question: question)
    def ask(_: object, question: str) -> str:
        calls.append(question)
        return question.upper()

    async def agent(question: str) -> str:
        await trio.lowlevel.checkpoint()
        answer: str = ask(clients.pop(), question)
        fail_once()
        return answer

    await evaluate(agent, SimulatedDisk())

    assert ["a"] == calls


async def test_nested_steps(disk: SimulatedDisk) -> None:
    """A step inside another one names it."""

    @durable
    async def inner(number: int) -> int:
        await trio.lowlevel.checkpoint()
        return number

    @durable
    async def outer(number: int) -> int:
        return await inner(number) + await inner(number + 1)

    async def agent(_: Any) -> int:
        return await outer(1) + await inner(9)

    await evaluate(agent, disk)

    assert [("inner", 2, 1), ("inner", 3, 1), ("outer", 1, 0), ("inner", 4, 0)] == [
        (event.name, event.step, event.parent) for event in events(disk, StepCompleted)
    ]


@pytest.mark.parametrize("change", ["task", "file"])
async def test_a_changed_task_reuses_nothing(change: str, tmp_path: Path, disk: SimulatedDisk) -> None:
    """After a change of the task, or of a file that it depends on, its steps are executed again."""
    first, second = Agent(), Agent()
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("first")

    disk_after_kill = await run_killed(define_agent(first, depends=prompt), disk, after=3.5)
    if change == "task":
        second.fingerprint = "another"  # type: ignore[attr-defined]
    else:
        prompt.write_text("second")
    await run_virtual(define_agent(second, depends=prompt), disk_after_kill, resume=True, adopt=True)

    assert [] == events(disk_after_kill, StepReused)
    assert [1] * STEPS == [second.calls["a", n] for n in range(1, STEPS + 1)]


async def test_the_timeout_continues() -> None:
    """An attempt that reuses steps has the rest of the timeout."""
    disk, agent = SimulatedDisk(), Agent({4: [RateLimited(1.0)]}, seconds=2.0)
    await evaluate(agent, disk, timeout=10.0, retry=Retry(timeouts=0))
    started, timed_out = events(disk, AttemptStarted), events(disk, AttemptTimedOut)

    assert [0.0, 8.0] == [event.spent for event in started]
    assert [(2, 2.0)] == [(event.attempt, event.timeout) for event in timed_out]
    assert [] == findings(disk)


async def test_an_interrupted_attempt_has_its_full_timeout_again() -> None:
    """After an interruption, the next attempt has the full timeout, and not only the rest."""
    disk, agent = SimulatedDisk(), Agent(seconds=2.0)
    disk = await run_killed(define_agent(agent, timeout=2.0 * STEPS), disk, after=2.0 * STEPS - 1)
    outcome = await run_virtual(define_agent(agent, timeout=2.0 * STEPS), disk, resume=True)

    assert (1, [(0, 0.0), (1, 0.0)]) == (
        outcome.state.completed,
        [(one.reuses, one.spent) for one in events(disk, AttemptStarted)],
    )
    assert (STEPS - 1, []) == (len(events(disk, StepReused)), findings(disk))


async def test_an_audit_accepts_the_earlier_rule_about_time() -> None:
    """In older journals, the time before an interruption counts against the timeout; any other time is a finding."""
    agent = Agent(seconds=2.0)
    disk = await run_killed(define_agent(agent), SimulatedDisk(), after=5.0)
    await run_virtual(define_agent(agent), disk, resume=True)

    def checks(spent: float) -> list[str]:
        records = [
            record._replace(event=evolve_fact(record.event, spent=spent)) if getattr(record.event, "reuses", 0) else record
            for record in read(PATH, files=disk)
        ]
        return [finding.check for finding in audit(records, rules=retry_rules).findings]

    assert ([], [], ["steps"]) == (checks(0.0), checks(4.0), checks(3.0))


async def test_a_timeout_of_an_attempt_that_reuses_steps_keeps_them() -> None:
    """If an attempt that has steps to reuse is too slow to use them, the next one reuses them, with the full timeout."""
    disk, agent, slow_starts = SimulatedDisk(), Agent(), iter([0.0, 60.0, 0.0])

    async def import_first(value: str) -> Any:
        await trio.sleep(next(slow_starts))
        return await agent(value)

    disk = await run_killed(define_agent(import_first, timeout=60.0), disk, after=3.5)
    outcome = await run_virtual(define_agent(import_first, timeout=60.0), disk, resume=True)

    assert (1, 1) == (outcome.state.completed, len(events(disk, AttemptTimedOut)))
    assert [(0, 0.0), (1, 0.0), (1, 0.0)] == [(one.reuses, one.spent) for one in events(disk, AttemptStarted)]
    assert [] == findings(disk)


async def test_an_attempt_that_timed_out_starts_from_the_beginning() -> None:
    """A timeout discards the steps of an attempt that had none to reuse, because the task may have caused it."""
    disk, agent = SimulatedDisk(), Agent(seconds=2.0)
    await run_virtual(define_agent(agent, timeout=5.0, retry=Retry(timeouts=1)), disk)

    assert [(0, 0.0), (0, 0.0)] == [(one.reuses, one.spent) for one in events(disk, AttemptStarted)]


async def test_retry_budgets_restart_with_progress() -> None:
    """An agent that gets further each time does not run out of retries; one that does not, does."""
    retry = Retry(errors=2, base_delay=0.1)
    progress = SimulatedDisk()
    outcome = await evaluate(Agent({n: [ConnectionError("gone")] * 2 for n in range(1, STEPS + 1)}), progress, retry=retry)
    stuck = SimulatedDisk()
    failed = await evaluate(Agent({3: [ConnectionError("gone")] * 9}), stuck, retry=retry)

    assert (1, 0) == (outcome.state.completed, outcome.state.failed)
    assert (0, 1) == (failed.state.completed, failed.state.failed)
    assert [] == findings(progress)
    assert [] == findings(stuck)


async def test_usage_is_counted_once(disk: SimulatedDisk) -> None:
    """Tokens of a reused step belong to the trial's output, not to a lost attempt; the saved ones are counted separately."""
    fail_once = FailOnce()

    @durable(kind="model", usage=lambda reply: {"tokens": reply["tokens"], "cost": 0.25})
    def ask(question: str) -> dict[str, Any]:
        return {"text": question, "tokens": 10}

    async def agent(question: str) -> str:
        await trio.lowlevel.checkpoint()
        first = ask(question)
        fail_once()
        return str(ask(first["text"] + "?")["text"])

    state = (await evaluate(agent, disk)).state

    assert {"tokens": 20, "cost": 0.5} == dict(state.usage)
    assert {"tokens": 10, "cost": 0.25} == dict(state.steps.usage_saved)
    assert {} == state.usage_parts.without_output


def ask_plainly(number: int) -> int:
    """A plain function as a step."""
    return number + 1


async def ask_in_loop(number: int) -> int:
    """An async function of trio or asyncio as a step."""
    if trio.lowlevel.in_trio_task():
        await trio.lowlevel.checkpoint()
    else:
        await asyncio.sleep(0)
    return number + 1


@pytest.mark.parametrize("kind", ["asyncio", "trio", "thread"])
@pytest.mark.parametrize("options", [{}, {"write_ahead": True}])
def test_every_kind_of_task(path: Path, kind: str, options: dict[str, Any]) -> None:
    """Steps work in trio, in asyncio and in threads; with `write_ahead` each waits until it is on disk."""
    fail_once = FailOnce()

    async def in_loop(value: int) -> int:
        for _ in range(3):
            value = await step("ask", ask_in_loop, value)
        fail_once()
        return value

    def in_thread(value: int) -> int:
        assert threading.current_thread() is not threading.main_thread()
        for _ in range(3):
            value = step("ask", ask_plainly, value)
        fail_once()
        return value

    task, loop = (in_thread, None) if kind == "thread" else (in_loop, kind)
    defined = define_real(task, [Case(name="a", input=1)], retry=Retry(rate_limits=30.0), loop=loop)
    outcome = run_real(defined, path, durability="sync", **options)

    assert 1 == outcome.state.completed
    assert [4] == [event.output for event in events(path, StepCompleted)][-1:]
    assert (3, 3) == (len(events(path, StepCompleted)), len(events(path, StepReused)))
    assert verify(path).ok


def test_outside_an_attempt_a_step_is_a_plain_call() -> None:
    """A task with steps can be tested as a function."""

    @durable
    def double(number: int) -> tuple[int, int]:
        return number, number

    assert (2, 2) == double(2)
    assert 3 == step("add", ask_plainly, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: step(ask_plainly, 1),  # type: ignore[arg-type]
        lambda: step("", ask_plainly),
        lambda: step("\ud83d", ask_plainly),
        lambda: step(3, ask_plainly),  # type: ignore[arg-type]
        lambda: durable(name="")(ask_plainly),
        lambda: durable(name="\ud83d")(ask_plainly),
        lambda: step("a", 3),  # type: ignore[arg-type]
        lambda: durable(kind="x")(ask_plainly),  # type: ignore[call-overload]
    ],
)
def test_wrong_use_is_a_clear_error(wrong: Any) -> None:
    """A wrong argument is an error at the call."""
    with pytest.raises(UsageError):
        wrong()


def test_a_late_step_of_an_abandoned_thread_is_not_recorded(path: Path) -> None:
    """A thread that continues after its timeout records no step in a later attempt."""
    may_continue = threading.Event()
    attempts: list[int] = []

    def agent(value: int) -> int:
        attempts.append(value)
        if len(attempts) == 1:
            may_continue.wait(10)
            result: int = step("late", ask_plainly, value)
            return result
        may_continue.set()
        threading.Event().wait(0.3)
        return value

    defined = define_real(agent, [Case(name="a", input=1)], timeout=0.2, retry=Retry(timeouts=1))
    run_real(defined, path)

    assert [] == events(path, StepCompleted)


def test_a_missing_blob_is_executed_again(path: Path) -> None:
    """A step whose result cannot be read is executed again, and that is noted."""
    calls: list[int] = []

    def big(number: int) -> str:
        calls.append(number)
        return "x" * 400_000

    def agent(value: int) -> int:
        text = step("big", big, value)
        if len(calls) == 1 and is_first:
            raise RateLimited(1.5)
        return len(text)

    is_first = True
    defined = define_real(agent, [Case(name="a", input=1)], retry=Retry(rate_limits=30.0))
    run_real(defined, path, deadline=1.0)
    is_first = False
    for blob in (path / "blobs").glob("*/*"):
        blob.unlink()
    outcome = run_real(defined, path, resume=True, deadline=20.0)

    assert 1 == outcome.state.completed
    assert [1, 1] == calls
    assert ["evaljournal.step_not_reused"] == [event.name for event in events(path, Noted)]


async def test_a_conversation_is_recorded_once() -> None:
    """Each step records only the messages after those of the step before, and all of them can be read again."""
    disk, agent = SimulatedDisk(), Agent({3: [RateLimited(1.0)]})
    await evaluate(agent, disk)
    trajectory, recorded, complete = Trajectory(), [], []
    for record in read(PATH, files=disk):
        if isinstance(record.event, StepEvent):
            step = trajectory.add(*recorded_step(record))
            assert step is not None
            complete.append((step.number, step.reused_from, step.input["history"]))
        if isinstance(record.event, StepCompleted | StepFailed):
            recorded.append((record.event.step, record.event.continues, len(record.event.input["history"])))
    replies = [f"a/{n}/{n - 1}" for n in range(1, STEPS)]

    assert [(1, 0, 0), (2, 0, 1), (3, 2, 1), (3, 2, 1), (4, 3, 1), (5, 4, 1), (6, 5, 1)] == recorded
    first = [(n, 0, replies[: n - 1]) for n in range(1, 4)]
    reused = [(n, 0 if n > 2 else 1, replies[: n - 1]) for n in range(1, STEPS + 1)]
    assert [*first, *reused] == complete


async def test_what_a_step_changes_in_its_arguments_is_not_recorded(disk: SimulatedDisk) -> None:
    """The input is recorded as it was before the call, although the step appends its reply to the same list."""

    async def turn(messages: list[str]) -> int:
        await trio.sleep(0.1)
        messages.append("reply")
        return len(messages)

    async def agent(question: str) -> int:
        messages = [question]
        for _ in range(3):
            length: int = await step("turn", turn, messages)
        return length

    await evaluate(agent, disk)

    assert [(0, ["a"]), (1, ["reply"]), (2, ["reply"])] == [
        (event.continues, event.input["messages"]) for event in events(disk, StepCompleted)
    ]


async def test_a_step_continues_only_one_that_is_recorded_before_it() -> None:
    """A step of another thread ends while the end of one with the same list is being recorded."""
    recorded: list[tuple[int, int]] = []

    def record(event: StepEvent) -> None:
        assert isinstance(event, StepCompleted)
        if event.step == first.number:
            steps.complete(second, None, None)
        recorded.append((event.step, event.continues))

    token = trio.lowlevel.current_trio_token()
    steps = AttemptSteps("trial", 1, record=record, clock=trio.current_time, token=token)
    first, second = (Step("ask", "other", step_input({"messages": ["a", text]}, "ask"), reusable=True) for text in "bb")
    steps.begin(first)
    steps.begin(second)
    steps.complete(first, None, None)

    assert [(2, 0), (1, 0)] == recorded


def test_a_step_in_the_loop_continues_one_of_a_thread(path: Path) -> None:
    """The end of the step in the thread still waits for the loop when the step in the loop ends; its record comes first."""
    may_start, has_ended = threading.Event(), threading.Event()

    def count_messages(*, messages: list[str]) -> int:
        return len(messages)

    def end_in_thread(messages: list[str]) -> None:
        may_start.wait(10.0)
        step("in thread", count_messages, messages=messages)
        has_ended.set()

    async def agent(question: str) -> int:
        messages = [question, "b"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, end_in_thread, messages)
            await trio.testing.wait_all_tasks_blocked()
            may_start.set()
            has_ended.wait(10.0)
            length: int = step("in the loop", count_messages, messages=[*messages, "c"])
        return length

    run_real(define_real(agent, loop="trio"), path)

    assert [("in thread", 0), ("in the loop", 1)] == [(event.name, event.continues) for event in events(path, StepCompleted)]
    assert verify(path).ok
