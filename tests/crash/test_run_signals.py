"""Runs from a script, next to an event loop and in a thread: signals stop them gracefully, then take their usual effect."""

import signal
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from evaljournal import Case, UsageError, evaluation, run
from evaljournal.journal import verify
from evaljournal.journal.events import AttemptFailed, AttemptInterrupted, AttemptStarted, RunStopped
from evaljournal.runner.testing import events_of
from tests.processes import TIMEOUT, run_forked, start_forked

pytestmark = pytest.mark.slow

SCRIPT = textwrap.dedent(
    """
    import asyncio, signal, sys
    import trio
    from evaljournal import evaluation, run

    @evaluation(cases=[1, 2, 3], slots=2)
    async def task(number):
        print("called", flush=True)
        with trio.CancelScope(shield=sys.argv[2] == "stuck"):
            await trio.sleep_forever()

    def run_here():
        print("outcome", run(task, "run", grace=0, policy="fixed", quiet=True).stop_reason, flush=True)

    async def cell():
        try:
            run_here()
        except KeyboardInterrupt as exc:
            print(*exc.__notes__)

    async def coroutine():
        run_here()
        await asyncio.sleep(0)
        print("not reached")

    match sys.argv[1]:
        case "script":
            run_here()
        case "asyncio":
            asyncio.run(coroutine())
        case "cell":  # As in a notebook: a loop is running, and Ctrl-C has its usual handler.
            asyncio.new_event_loop().run_until_complete(cell())
            print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    """
)


@pytest.mark.parametrize(
    ("place", "number", "code", "out"),
    [
        ("script", signal.SIGINT, -signal.SIGINT, ""),
        pytest.param("script", signal.SIGTERM, -signal.SIGTERM, "", marks=pytest.mark.exhaustive),
        ("asyncio", signal.SIGINT, -signal.SIGINT, "outcome interrupted\n"),
        ("cell", signal.SIGINT, 0, "run was stopped gracefully; `run(…, resume=True)` resumes it\nTrue\n"),
    ],
)
@pytest.mark.parametrize("response", ["cancelled", "stuck"])
def test_a_signal_stops_a_run_and_is_passed_on(  # noqa: PLR0917  # parametrized
    tmp_path: Path, place: str, number: signal.Signals, code: int, out: str, response: str
) -> None:
    """Wherever `run` is called, a signal stops it gracefully, and then takes its usual effect.

    If an attempt does not respond to cancellation, the process exits; next to an event loop, its thread is abandoned.
    """
    (tmp_path / "task.py").write_text(SCRIPT)
    with start_forked(["python", "task.py", place, response]) as process:
        assert ["called\n", "called\n"] == [process.stdout.readline(), process.stdout.readline()]
        process.send_signal(number)
        printed, err = process.communicate()

    if (place, response) == ("script", "stuck"):
        code, out = 3, ""
    assert (code, out) == (process.returncode, printed)
    assert ("stuck" == response) == ("not responding to cancellation, abandoned: " in err)
    events = events_of(tmp_path / "run")
    assert 2 == sum(isinstance(event, AttemptInterrupted) for event in events)
    assert RunStopped(reason="interrupted") == events[-1]
    assert verify(tmp_path / "run").ok


SIGNAL_IN_TASK = textwrap.dedent(
    """
    import signal, sys
    import trio
    from evaljournal import arun, evaluation, run

    @evaluation(cases=[1, 2, 3], slots=1)
    async def task(number):
        if sys.argv[2] == "nursery":
            async with trio.open_nursery():
                signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    match sys.argv[1]:
        case "arun":
            trio.run(arun, task, "run")
        case "run":
            run(task, "run", signals=False)
    """
)


@pytest.mark.parametrize("place", ["arun", "run"])
@pytest.mark.parametrize("source", ["plain", "nursery"])
def test_the_caller_that_handles_signals_is_interrupted(tmp_path: Path, place: str, source: str) -> None:
    """Where the caller handles signals, Ctrl-C inside a task ends the run, and is not recorded as a failure of the task."""
    (tmp_path / "task.py").write_text(SIGNAL_IN_TASK)
    code, _, err = run_forked(["python", "task.py", place, source])

    assert "KeyboardInterrupt" in err
    assert code in {1, -signal.SIGINT}  # It may be in a group of trio's.
    events = events_of(tmp_path / "run")
    assert (1, 0) == tuple(sum(isinstance(event, kind) for event in events) for kind in (AttemptStarted, AttemptFailed))
    assert verify(tmp_path / "run").ok


def thread_name_evaluation() -> Any:
    """An evaluation whose task returns the name of its thread."""

    @evaluation(cases=[Case(name="a", input="a")], loop="trio")
    async def task(_: str) -> str:
        await trio.lowlevel.checkpoint()
        return threading.current_thread().name

    return task


def test_run_in_a_thread(tmp_path: Path) -> None:
    """A run works in a thread; `signals=True` is rejected there."""
    outcomes: list[Any] = []

    def run_here() -> None:
        outcomes.append(run(thread_name_evaluation(), tmp_path / "run").state.completed)
        with pytest.raises(UsageError, match="signals=True: signals are handled in the main thread only"):
            run(thread_name_evaluation(), tmp_path / "other", signals=True)

    thread = threading.Thread(target=run_here)
    thread.start()
    thread.join(TIMEOUT)

    assert [1] == outcomes
    assert not (tmp_path / "other").exists()


async def test_run_next_to_a_loop(tmp_path: Path) -> None:
    """Inside a running event loop, a run gets its own thread, and its errors are raised in the caller's."""
    outcome = run(thread_name_evaluation(), tmp_path / "run")

    assert 1 == outcome.state.completed
    with pytest.raises(UsageError, match="slots=0"):
        run(thread_name_evaluation(), tmp_path / "other", slots=0)
