"""The timer, and the timeouts of attempts."""

import functools
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from evaljournal import Retry, evaluation
from evaljournal.journal import read
from evaljournal.journal.events import AttemptSucceeded, AttemptTimedOut
from evaljournal.runner.api import arun
from evaljournal.runner.engine.recorder import Clock, Timer
from evaljournal.runner.testing import deterministic_options
from tests.journal.disk import SimulatedDisk

PATH = Path("/runs/it/0001")


async def test_a_timer_fires_at_the_earliest_scheduled_time() -> None:
    """A later time changes nothing, an earlier one does, and it fires once."""
    fired: list[float] = []
    clock = Clock()
    timer = Timer(clock, fired.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timer.run)
        for when in (5.0, 7.0, 3.0):
            timer.schedule(when)
        await trio.sleep(4)
        assert [3.0] == fired
        timer.schedule(6.0)
        await trio.sleep(96)
        nursery.cancel_scope.cancel()

    assert [3.0, 6.0] == fired


@pytest.mark.parametrize("timeout", [0.5, 2.0])
def test_every_attempt_has_its_own_timeout(timeout: float, disk: SimulatedDisk) -> None:
    """Attempts that start one after another in the same slots are each cancelled after their own timeout."""

    async def task(seconds: float) -> float:
        await trio.sleep(seconds)
        return seconds

    lengths = [0.1, 0.3, 9.0, 0.2, 0.4, 9.0, 9.0, 0.1]
    cases = [{"id": f"{place}", "input": length} for place, length in enumerate(lengths)]
    defined: Any = evaluation(cases=cases, slots=3, loop="trio", timeout=timeout, retry=Retry(timeouts=0))(task)
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(functools.partial(arun, defined, PATH, **deterministic_options(1), files=disk, policy="fixed"), clock=clock)
    events = [record.event for record in read(PATH, files=disk)]

    assert {"2": timeout, "5": timeout, "6": timeout} == {
        event.trial: pytest.approx(event.elapsed) for event in events if isinstance(event, AttemptTimedOut)
    }
    assert {"0", "1", "3", "4", "7"} == {event.trial for event in events if isinstance(event, AttemptSucceeded)}
