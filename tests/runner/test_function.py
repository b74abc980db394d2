"""Tasks that are plain functions or for asyncio or trio, in real threads and loops. The clock is real; every wait is short."""

import asyncio
import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

from evaljournal import Case, Outcome, Retry, UsageError, note, run
from evaljournal.journal import Record, verify
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptReturnedLate,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    Noted,
    TrialCompleted,
    TrialFailed,
    TrialScored,
)
from evaljournal.runner.calls.function import FunctionTask, detect_loops
from evaljournal.runner.calls.hand_over import MAX_RESULT_DELAY, FunctionThreads
from evaljournal.runner.testing import Return, Scripted, events_of
from tests.processes import TIMEOUT
from tests.runs import AnyEvaluation, define_real, events, run_real

Caller = Callable[[Callable[[], Any]], Any]

user: ContextVar[str] = ContextVar("user", default="nobody")


def define(task: Callable[[Any], Any], names: str, **options: Any) -> AnyEvaluation:
    """Return an evaluation with a case for each letter of `names`, without retries."""
    return define_real(task, [Case(name=name, input=name) for name in names], **{"timeout": TIMEOUT, **options})


def run_and_verify(defined: AnyEvaluation, path: Path, **options: Any) -> Outcome:
    """Run an evaluation; its journal verifies, and its event loop has ended."""
    outcome = run_real(defined, path, **{"grace": 0.2, **options})

    assert "evaljournal-asyncio" not in {thread.name for thread in threading.enumerate()}
    assert verify(path, expect_head=outcome.head).ok
    return outcome


def outputs(path: Path) -> dict[str, Any]:
    return {event.trial: event.output for event in events(path, AttemptSucceeded)}


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """An event that stuck threads wait for; set at the end, so that they end."""
    event = threading.Event()
    yield event
    event.set()


class Abandonment:
    """What a run records about an attempt that outlives its timeout, as soon as it is recorded."""

    def __init__(self) -> None:
        self.is_timed_out = threading.Event()
        self._has_returned = threading.Event()

    def listen(self, record: Record) -> None:
        """Process a record of the run."""
        if isinstance(record.event, AttemptTimedOut):
            self.is_timed_out.set()
        elif isinstance(record.event, AttemptReturnedLate):
            self._has_returned.set()

    async def wait_for_the_late_result(self) -> bool:
        """Score another trial when the late result is recorded, so that the run does not end before it."""
        await wait_until(self._has_returned.is_set)
        return True


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait in trio for a condition."""
    with trio.move_on_after(TIMEOUT):
        while not condition():  # noqa: ASYNC110  # a thread cannot set an event of trio
            await trio.sleep(0.005)


def test_a_plain_function_runs_in_threads(path: Path) -> None:
    """A `def` task runs in a thread for each slot, and never in the run's own thread."""
    barrier = threading.Barrier(4, timeout=TIMEOUT)
    threads: set[int] = set()

    def task(value: str) -> str:
        threads.add(threading.get_ident())
        barrier.wait()
        return value.upper()

    outcome = run_and_verify(define(task, "abcd", slots=4), path)

    assert {"a": "A", "b": "B", "c": "C", "d": "D"} == outputs(path)
    assert 4 == outcome.state.completed
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
def test_a_thread_that_outlives_its_timeout_is_abandoned(path: Path, outcome: str) -> None:
    """The attempt times out; a later result or exception of its thread is recorded as late and discarded."""
    abandonment = Abandonment()

    def task(value: str) -> str:
        if value == "a":
            abandonment.is_timed_out.wait(TIMEOUT)
            if outcome == "failed":
                raise ValueError("after all that")
        return value

    defined = define(task, "ab", slots=2, timeout=1.0)
    defined.score(timeout=None)(abandonment.wait_for_the_late_result)
    state = run_and_verify(defined, path, listener=abandonment.listen).state

    (timed_out,) = events(path, AttemptTimedOut)
    assert ("a", 1, 1.0) == (timed_out.trial, timed_out.attempt, timed_out.timeout)
    (late,) = events(path, AttemptReturnedLate)
    assert ("a", 1, outcome) == (late.trial, late.attempt, late.outcome)
    assert late.elapsed >= timed_out.elapsed
    assert ({"b": "b"}, []) == (outputs(path), events(path, AttemptFailed))
    assert TrialFailed(trial="a", attempts=1, reason="timed_out") in events_of(path)
    assert (1, 1) == (state.completed, state.failed)


def test_an_abandoned_thread_does_not_keep_its_slot(path: Path, released: threading.Event) -> None:
    """With one slot, the next trial starts although the thread of the previous one still hangs."""

    def task(value: str) -> str:
        if value == "a":
            released.wait(TIMEOUT)
        return value

    outcome = run_and_verify(define(task, "abc", slots=1, timeout=1.0), path)

    assert {"b": "b", "c": "c"} == outputs(path)
    assert (2, 1) == (outcome.state.completed, outcome.state.failed)


@pytest.mark.parametrize("loop", ["asyncio", None])
def test_asyncio_functions_share_one_loop_in_one_thread(path: Path, loop: str | None) -> None:
    """`async def` tasks for asyncio, declared or detected, run concurrently on one loop in its own thread."""
    barriers: list[asyncio.Barrier] = []
    loops: set[tuple[int, asyncio.AbstractEventLoop]] = set()

    async def task(value: str) -> str:
        loops.add((threading.get_ident(), asyncio.get_running_loop()))
        if not barriers:
            barriers.append(asyncio.Barrier(4))
        await barriers[0].wait()
        return value.upper()

    outcome = run_and_verify(define(task, "abcd", slots=4, loop=loop), path)

    assert {"a": "A", "b": "B", "c": "C", "d": "D"} == outputs(path)
    assert 4 == outcome.state.completed
    assert 1 == len(loops)
    assert threading.get_ident() != next(iter(loops))[0]


@pytest.mark.parametrize(
    ("wait", "loop", "words"),
    [
        (lambda: asyncio.sleep(0.01), "trio", ["asyncio", "loop"]),
        (lambda: asyncio.sleep(0), "trio", ["asyncio", "loop"]),
        (lambda: asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.01), "trio", ["asyncio", "loop"]),
        (partial(trio.sleep, 0.01), "asyncio", ["trio"]),
    ],
)
def test_code_declared_for_the_other_loop_fails_clearly(
    path: Path, wait: Callable[[], Awaitable[Any]], loop: str, words: list[str]
) -> None:
    """The attempt fails without a retry, and the record names the loop that the code is for."""

    async def task(_: str) -> None:
        await wait()

    outcome = run_and_verify(define(task, "a", loop=loop, retry=Retry(errors=1, base_delay=0.01)), path)

    assert all(word in failed.message for word in words for failed in events(path, AttemptFailed))
    assert ("", 1) == (outcome.stop_reason, outcome.state.failed)
    assert TrialFailed(trial="a", attempts=1, reason="fatal") in events_of(path)


def test_an_asyncio_task_is_cancelled_at_its_timeout(path: Path) -> None:
    """At its timeout a task gets a CancelledError, and its `finally` may await; what it returns instead is late."""
    log: list[str] = []

    async def task(value: str) -> str:
        try:
            await asyncio.sleep(TIMEOUT)
        except asyncio.CancelledError:
            if value == "a":
                raise
        finally:
            await asyncio.sleep(0.01)
            log.append(value)
        return "too late"

    run_and_verify(define(task, "ab", timeout=0.5), path, grace=TIMEOUT)

    assert ["a", "b"] == sorted(log)
    assert {"a": True, "b": True} == {event.trial: 0.5 <= event.elapsed < TIMEOUT for event in events(path, AttemptTimedOut)}
    assert [("b", "succeeded")] == [(late.trial, late.outcome) for late in events(path, AttemptReturnedLate)]
    assert {} == outputs(path)


def test_an_asyncio_task_that_swallows_cancellation_is_abandoned_after_the_grace(path: Path) -> None:
    """A task that ignores its cancellation is abandoned after the grace period; its result is recorded as late."""
    abandonment = Abandonment()

    async def task(value: str) -> str:
        while value == "a" and not abandonment.is_timed_out.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return value

    defined = define(task, "ab", timeout=1.0)
    defined.score(timeout=None)(abandonment.wait_for_the_late_result)
    run_and_verify(defined, path, grace=0.1, listener=abandonment.listen)

    (timed_out,) = events(path, AttemptTimedOut)
    (late,) = events(path, AttemptReturnedLate)
    assert ("a", 1, "succeeded") == (late.trial, late.attempt, late.outcome)
    assert 1.1 <= timed_out.elapsed <= late.elapsed
    assert {"b": "b"} == outputs(path)


def test_a_run_ends_although_an_asyncio_task_never_does(path: Path) -> None:
    """A task that ignores every cancellation delays neither other trials nor the end of the run."""
    is_over = False

    async def task(value: str) -> str:
        while value == "a" and not is_over:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        return value

    outcome = run(define(task, "abc", slots=1, timeout=1.0), path, grace=0.1, policy="fixed")
    is_over = True

    assert ("", 2, 1) == (outcome.stop_reason, outcome.state.completed, outcome.state.failed)
    for thread in threading.enumerate():
        if thread.name == "evaljournal-asyncio":
            thread.join(TIMEOUT)
            assert not thread.is_alive()


def test_background_tasks_end_with_the_run(path: Path) -> None:
    """A background task of asyncio is cancelled at the end of the run."""
    log: list[str] = []
    background_tasks: list[asyncio.Task[None]] = []

    async def background() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            log.append("cancelled")
            raise

    async def task(value: str) -> str:
        background_tasks.append(asyncio.create_task(background()))
        await asyncio.sleep(0)
        return value

    run_and_verify(define(task, "a"), path)

    assert ["cancelled"] == log


def test_trio_is_recognized_by_its_name(path: Path) -> None:
    """An `async def` that uses trio runs in the run's own loop and thread without a declaration."""
    threads: list[int] = []

    async def task(value: str) -> str:
        threads.append(threading.get_ident())
        with trio.move_on_after(1):
            await trio.sleep(0.01)
        return value

    run_and_verify(define(task, "abc"), path)

    assert {"a": "a", "b": "b", "c": "c"} == outputs(path)
    assert [threading.get_ident()] * 3 == threads


async def _through_a_function(value: str) -> str:
    await wait_until(lambda: True)
    return value


async def _through_two_functions(value: str) -> str:
    return await _through_a_function(value)


class _Client:
    async def answer(self, value: str) -> str:
        return await _through_two_functions(value)


_client = _Client()


async def _through_an_object(value: str) -> str:
    return await _client.answer(value)


async def _without_a_loop(value: str) -> str:
    return value


async def _with_both(value: str) -> str:
    if value == "a":
        await asyncio.sleep(0)
    else:
        await trio.lowlevel.checkpoint()
    return value


@pytest.mark.parametrize(
    ("task", "loop"),
    [
        (_through_a_function, "trio"),
        (_through_two_functions, "trio"),
        (_through_an_object, "trio"),
        (_without_a_loop, "asyncio"),
        (partial(_through_a_function), "trio"),
        (partial(partial(_without_a_loop)), "asyncio"),
        (Scripted(lambda value, _: Return(value, 0.001)), "trio"),
    ],
)
def test_the_loop_is_recognized_in_the_code_that_a_task_refers_to(path: Path, task: Callable[[Any], Any], loop: str) -> None:
    """Functions and classes that a task, an object or a partial names are read, too; if none names a loop, it is asyncio."""
    outcome = run_and_verify(define(task, "abc", name="task"), path)

    assert [loop] == detect_loops(task)
    assert (3, 3) == (outcome.state.completed, len(events(path, AttemptStarted)))


def test_a_task_that_uses_both_loops_must_declare_one(path: Path) -> None:
    """Code that names trio and asyncio is a usage error, unless `loop` is set."""
    with pytest.raises(UsageError, match="_with_both uses trio and asyncio; pass loop='trio' or loop='asyncio'"):
        run_and_verify(define(_with_both, "a"), path)

    assert not path.exists()
    assert 1 == run_and_verify(define(_with_both, "a", loop="asyncio"), path).state.completed


def _plain(act: Callable[[], Any]) -> Callable[[Any], Any]:
    def task(_: Any) -> Any:
        return act()

    return task


def _asyncio(act: Callable[[], Any]) -> Callable[[Any], Any]:
    async def task(_: Any) -> Any:
        await asyncio.sleep(0.001)
        return act()

    return task


def _trio(act: Callable[[], Any]) -> Callable[[Any], Any]:
    async def task(_: Any) -> Any:
        await trio.sleep(0.001)
        return act()

    return task


KINDS = [_plain, _asyncio, _trio]
Kind = Callable[[Callable[[], Any]], Callable[[Any], Any]]


class TaskError(Exception):
    """An exception of a task."""


class BaseError(BaseException):
    """An exception that is not an `Exception`."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "exc",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        BaseExceptionGroup("", [KeyboardInterrupt()]),
        GeneratorExit(),
        BaseError("all"),
        StopIteration(1),
        asyncio.CancelledError(),
    ],
    ids=repr,
)
def test_what_a_task_raises_ends_its_attempt_only(path: Path, kind: Kind, exc: BaseException) -> None:
    """SystemExit and other BaseExceptions fail their trial; the other trial continues."""
    turns = iter([exc, None])

    def act() -> str:
        turn = next(turns)
        if turn is not None:
            raise turn
        return "fine"

    outcome = run_and_verify(define(kind(act), "ab", slots=1), path)

    assert ("", 1, 1) == (outcome.stop_reason, outcome.state.completed, outcome.state.failed)
    assert ["a"] == [event.trial for event in events(path, AttemptFailed)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_is_freed_with_its_attempt(path: Path, kind: Kind) -> None:
    """An exception, and what the frames of its traceback hold, is freed without a garbage collection."""
    errors: list[weakref.ref[Exception]] = []

    def act() -> None:
        error = TaskError("x")
        errors.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    gc.disable()
    try:
        run_real(define_real(kind(act), retry=Retry(errors=0)), path)
        freed = [error() is None for error in errors]
    finally:
        gc.enable()

    assert [True] == freed


@pytest.mark.parametrize("values", [{"cost": -0.1}, {"usage": {"cost": -1}}])
def test_a_negative_cost_is_rejected(values: Any) -> None:
    """A cost below 0 would hide other costs in the sum, so a note rejects it."""
    with pytest.raises(UsageError, match="a cost cannot be negative"):
        note(**values)
    note(cost=0, usage={"cost": 0.0, "temperature": -1})


@pytest.mark.parametrize("kind", KINDS)
def test_notes_reach_their_attempt_from_everywhere(path: Path, kind: Kind) -> None:
    """Notes from threads and from either loop are recorded with their attempt, before the output; others are ignored."""
    note(tokens=1)

    def act() -> str:
        note(tokens=7)
        return "noted"

    outcome = run_and_verify(define(kind(act), "ab"), path)

    assert {("a", 1, "tokens", 7), ("b", 1, "tokens", 7)} == {
        (noted.trial, noted.attempt, noted.name, noted.value) for noted in events(path, Noted)
    }
    assert 14 == outcome.state.usage["tokens"]
    order = [type(event) for event in events_of(path) if isinstance(event, Noted | AttemptSucceeded) and event.trial == "a"]
    assert [Noted, AttemptSucceeded] == order


@pytest.mark.parametrize("kind", KINDS)
def test_scorers_of_every_kind_are_called_where_they_belong(path: Path, kind: Kind) -> None:
    """A task of any kind can have plain scorers and scorers for asyncio and trio."""
    defined = define(kind(lambda: "yes"), "ab")

    @defined.score
    def plain(output: str, case: Case) -> bool:
        time.sleep(0.001)
        return output == "yes"

    @defined.score
    async def by_asyncio(output: str, case: Case) -> float:
        await asyncio.sleep(0.001)
        return len(output) / 4

    @defined.score
    async def by_trio(output: str, case: Case) -> str:
        await trio.sleep(0.001)
        return case.name

    @defined.score
    async def in_either_loop(output: str, case: Case) -> dict[str, float]:
        return {"one": 1.0}

    outcome = run_and_verify(defined, path)

    scores = {(event.trial, event.scorer): event.value for event in events(path, TrialScored)}
    expected = {"plain": True, "by_asyncio": 0.75, "in_either_loop.one": 1.0}
    assert {(name, scorer): value for name in "ab" for scorer, value in {**expected, "by_trio": name}.items()} == scores
    assert 2 == outcome.state.completed


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_ends_every_kind_in_time(path: Path, kind: Kind, released: threading.Event) -> None:
    """At the deadline, attempts of every kind are interrupted after the grace period."""

    async def in_asyncio(_: Any) -> None:
        await asyncio.sleep(TIMEOUT)

    async def in_trio(_: Any) -> None:
        await trio.sleep(TIMEOUT)

    tasks: dict[Any, Callable[[Any], Any]] = {
        _plain: lambda _: released.wait(TIMEOUT),
        _asyncio: in_asyncio,
        _trio: in_trio,
    }
    start = time.monotonic()
    outcome = run_and_verify(define(tasks[kind], "ab", name="task", slots=1, deadline=1.0), path, grace=0.1)

    assert time.monotonic() - start < TIMEOUT / 2
    assert "deadline" == outcome.stop_reason
    assert [("a", 1, "stopped")] == [(event.trial, event.attempt, event.reason) for event in events(path, AttemptInterrupted)]


def _from_a_script(call: Callable[[], Any]) -> Any:
    return call()


def _from_a_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(TIMEOUT)


def _inside_asyncio(call: Callable[[], Any]) -> Any:
    async def main() -> Any:
        await asyncio.sleep(0)
        outcome = call()
        await asyncio.sleep(0)  # The loop still works.
        return outcome

    return asyncio.run(main())


def _inside_trio(call: Callable[[], Any]) -> Any:
    async def main() -> Any:
        await trio.lowlevel.checkpoint()
        outcome = call()
        await trio.lowlevel.checkpoint()
        return outcome

    return trio.run(main)


CALLERS = [_from_a_script, _from_a_thread, _inside_asyncio, _inside_trio]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("caller", CALLERS)
def test_run_can_be_called_from_everywhere(path: Path, caller: Caller, kind: Kind) -> None:
    """`run` works in a script, in a thread and inside a running loop of either kind, and passes context variables on."""

    def call() -> Outcome:
        user.set("me")
        return run_and_verify(defined, path)

    defined = define(kind(user.get), "ab")
    before = user.set("nobody")
    try:
        outcome = caller(call)
    finally:
        user.reset(before)

    assert ("", 2) == (outcome.stop_reason, outcome.state.completed)
    assert {"a": "me", "b": "me"} == outputs(path)


@pytest.mark.parametrize("caller", CALLERS)
def test_errors_are_raised_in_the_caller(path: Path, caller: Caller) -> None:
    """An error of the run itself is raised in the caller, wherever `run` is called."""
    path.parent.mkdir(exist_ok=True)
    defined = define(_plain(lambda: 1), "a")
    run_and_verify(defined, path)

    def call() -> Outcome:
        with pytest.raises(Exception, match="run"):
            run_and_verify(defined, path)
        return run_and_verify(defined, path, resume=True)

    outcome = caller(call)

    assert "already finished" == outcome.detail
    assert 1 == len(events(path, TrialCompleted))


@pytest.mark.parametrize("kind", KINDS)
def test_contexts_do_not_mix(path: Path, kind: Kind) -> None:
    """Context variables that one attempt sets are not visible to others."""

    def act() -> str:
        before = user.get()
        user.set("another user")
        return before

    run_and_verify(define(kind(act), "abcd", slots=1), path)

    assert dict.fromkeys("abcd", "nobody") == outputs(path)


async def call_together(function: Callable[[int], Any], count: int, wake_ups: list[str]) -> list[int]:
    """Call a function many times in one turn of trio; return the results in the order in which they come back."""
    results: list[int] = []

    async def call(number: int) -> None:
        results.append(await task.call(number, lambda _: None))

    async with FunctionThreads(grace=TIMEOUT) as threads:
        task = FunctionTask(function, loop="asyncio", threads=threads)
        await task.call(0, lambda _: None)  # Starts the thread.
        wake_ups.clear()
        with trio.fail_after(TIMEOUT):
            async with trio.open_nursery() as nursery:
                for number in range(count):
                    nursery.start_soon(call, number)
    return results


def test_calls_of_one_turn_cross_to_asyncio_and_back_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty asyncio calls that start in one turn and return in one turn wake asyncio once, and trio once."""
    wake_ups: list[str] = []
    wake_asyncio, wake_trio = asyncio.BaseEventLoop.call_soon_threadsafe, trio.lowlevel.TrioToken.run_sync_soon

    def spy_asyncio(loop: asyncio.BaseEventLoop, function: Any, *arguments: Any, **options: Any) -> Any:
        if function != loop.stop:
            wake_ups.append("asyncio")
        return wake_asyncio(loop, function, *arguments, **options)

    def spy_trio(token: trio.lowlevel.TrioToken, *arguments: Any, **options: Any) -> None:
        wake_ups.append("trio")
        wake_trio(token, *arguments, **options)

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_soon_threadsafe", spy_asyncio)
    monkeypatch.setattr(trio.lowlevel.TrioToken, "run_sync_soon", spy_trio)
    seen: list[str] = []

    async def function(number: int) -> int:
        seen[:] = wake_ups
        return number

    results = trio.run(call_together, function, 50, wake_ups)

    assert list(range(50)) == sorted(results)
    assert ["asyncio"] == seen
    assert ["asyncio", "trio"] == wake_ups[:2]


def test_a_result_does_not_wait_for_several_calls_that_block_asyncio() -> None:
    """The result of a call arrives while the second call after it, in the same turn of asyncio, still blocks the loop."""
    has_arrived = threading.Event()
    waited: list[bool] = []
    places = iter(range(3))

    async def function(_: None) -> int:
        place = next(places)
        await asyncio.sleep(0)
        if place == 1:
            time.sleep(10 * MAX_RESULT_DELAY)  # noqa: ASYNC251  # it blocks the loop
        elif place == 2:
            waited.append(has_arrived.wait(TIMEOUT))
        return place

    async def call(task: FunctionTask) -> None:
        if await task.call(None, lambda _: None) == 0:
            has_arrived.set()

    async def main() -> None:
        async with FunctionThreads(grace=TIMEOUT) as threads, trio.open_nursery() as nursery:
            task = FunctionTask(function, loop="asyncio", threads=threads)
            for _ in range(3):
                nursery.start_soon(call, task)

    trio.run(main)

    assert [True] == waited


def test_threads_of_plain_functions_are_reused() -> None:
    """Calls that follow each other share one thread; an abandoned call keeps its own."""
    released = threading.Event()
    late: list[str] = []

    def function(wait: bool) -> int:  # noqa: FBT001
        if wait:
            released.wait(TIMEOUT)
        return threading.get_ident()

    async def main() -> list[int]:
        async with FunctionThreads(grace=TIMEOUT) as threads:
            task = FunctionTask(function, loop=None, threads=threads)
            idents = [await task.call(False, late.append) for _ in range(10)]  # noqa: FBT003
            with trio.move_on_after(0.05):
                await task.call(True, late.append)  # noqa: FBT003
            idents.append(await task.call(False, late.append))  # noqa: FBT003
            released.set()
            await wait_until(lambda: bool(late))
            return idents

    *idents, other = trio.run(main)

    assert 1 == len(set(idents))
    assert other not in idents
    assert ["succeeded"] == late
