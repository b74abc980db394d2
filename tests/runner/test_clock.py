"""A process that is preempted before any reading of its clock: a valid run has no findings."""

import functools
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing
from trio._core import _run as scheduler

from evaljournal import note, run
from evaljournal.runner.runs.verification import verify
from evaljournal.runner.testing import SimulatedEndpoint
from tests.journal.disk import SimulatedDisk
from tests.runs import audited, define, define_real, flaky_evaluation, numbered_cases, run_virtual

T = TypeVar("T")

PAUSE = 0.005
"""Seconds for which the process is preempted."""


class SteppingClock:
    """A virtual clock that advances before some of its readings."""

    def __init__(self, pauses: Callable[[int], float]) -> None:
        """Advance by `pauses(number)` seconds before each reading."""
        self.clock = trio.testing.MockClock(autojump_threshold=0)
        self.readings = 0
        self._pauses = pauses
        self._read = self.clock.current_time
        self.clock.current_time = self._current_time  # type: ignore[method-assign]  # the class is final

    def run(self, main: Callable[[], Awaitable[T]], seed: int = 0) -> T:
        """Run a coroutine function in a loop with this clock, in one order."""
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]  # trio's own switch for tests, declared Final
        scheduler._r.seed(seed)
        return trio.run(main, clock=self.clock)

    def _current_time(self) -> float:
        self.readings += 1
        self.clock.jump(self._pauses(self.readings))
        return self._read()


def flaky_run(pauses: Callable[[int], float]) -> tuple[int, SimulatedDisk]:
    """Run an evaluation with failures, retries and scores; return how often the clock was read, and the disk."""
    clock, disk = SteppingClock(pauses), SimulatedDisk()
    clock.run(functools.partial(run_virtual, flaky_evaluation(5)[0], disk))
    return clock.readings, disk


def paced_run(pauses: Callable[[int], float]) -> tuple[int, SimulatedDisk]:
    """Run an evaluation behind a rate limit."""
    endpoint = SimulatedEndpoint(lambda _: "yes", latency=0.5, rate=8.0, burst=4, retry_after=1.0)
    clock, disk = SteppingClock(pauses), SimulatedDisk()
    clock.run(functools.partial(run_virtual, define(endpoint, numbered_cases(24), slots=20, policy="adaptive"), disk))
    return clock.readings, disk


@pytest.mark.parametrize(
    ("runs", "first"),
    [
        (flaky_run, 14),
        pytest.param(flaky_run, None, marks=pytest.mark.exhaustive),
        pytest.param(paced_run, None, marks=pytest.mark.exhaustive),
    ],
)
def test_preempted_between_any_two_readings(runs: Callable[..., tuple[int, SimulatedDisk]], first: int | None) -> None:
    """A run that is preempted before the nth reading of the clock, for the `first` n or for any, has no findings."""
    readings, disk = runs(lambda _: 0.0)
    assert () == audited(disk).findings

    for place in range(1, (first or readings) + 1):
        assert () == audited(runs(lambda number, place=place: PAUSE if number == place else 0.0)[1]).findings, place


@pytest.mark.parametrize("runs", [flaky_run, paced_run])
def test_preempted_before_every_reading(runs: Callable[..., tuple[int, SimulatedDisk]]) -> None:
    """A run that is preempted before every reading of the clock, for a while each time, has no findings."""
    chance = random.Random(0)

    assert () == audited(runs(lambda _: chance.random() * PAUSE)[1]).findings


class NotingError(Exception):
    """An error whose text records a note."""

    def __str__(self) -> str:
        note(asked=True)
        return "talkative"


def test_a_note_while_an_ending_is_recorded(path: Path) -> None:
    """A note that is made after an attempt was measured and before it is recorded is not a finding."""

    async def task(value: str) -> str:
        await trio.lowlevel.checkpoint()
        raise NotingError

    run(define_real(task, loop="trio"), path, durability="os")

    assert () == verify(path).audit.findings
