"""The evaluations of the benchmark of workers, in a file of their own: each worker imports it."""

import os
import time
from collections.abc import Iterator

import trio

from evaljournal import Case, Retry, evaluation

MEGABYTES = 50
count = 0
"""Number of cases."""
marks: list[tuple[float, float]] = []
"""Wall-clock and CPU time when the first case of a run is read: workers are ready by then."""


def _cases() -> Iterator[Case[int, None]]:
    marks.append((time.perf_counter(), time.process_time()))
    for number in range(count):
        yield Case(name=f"c{number}", input=number)


@evaluation(cases=_cases, loop="trio", timeout=None, policy="fixed")
async def instant(number: int) -> int:
    """Return immediately."""
    await trio.lowlevel.checkpoint()
    return number


@evaluation(cases=_cases, timeout=None, policy="fixed", slots=2)
def large(number: int) -> str:
    """Return a large output."""
    return f"{number}" + "x" * (MEGABYTES * 1_000_000)


@evaluation(cases=_cases, timeout=None, policy="fixed", slots=1, retry=Retry(deaths=0))
def deadly(number: int) -> int:
    """End the worker: the first call when a spare is ready, the second one immediately."""
    if number == 0:
        time.sleep(3)
    if number < 2:
        os._exit(3)
    return number
