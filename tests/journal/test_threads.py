"""Blocking calls where the system allows no more threads."""

from typing import Any

import pytest
import trio

from evaljournal.journal.threads import run_in_thread
from evaljournal.runner.engine import admission
from tests.journal.disk import SimulatedDisk
from tests.runs import define, numbered_cases, run_virtual


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no thread be started."""

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", fail)


@pytest.mark.parametrize("abandon_on_cancel", [False, True])
async def test_a_cancelled_call_is_made(no_threads: None, *, abandon_on_cancel: bool) -> None:
    """Without threads, a call is made although its scope is cancelled, as a thread would make it."""
    calls: list[int] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await run_in_thread(lambda: calls.append(1), abandon_on_cancel=abandon_on_cancel)

    assert [1] == calls


async def test_slow_cases_are_read(no_threads: None, disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without threads, a run whose cases take longer than one read may take is completed."""

    async def task(value: str) -> str:
        return value

    monkeypatch.setattr(admission, "READ_TIME", 0.0)
    outcome = await run_virtual(define(task, numbered_cases(3)), disk, in_thread=run_in_thread)

    assert ("", 3) == (outcome.stop_reason, outcome.state.completed)
