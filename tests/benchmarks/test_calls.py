"""Python calls of a trial, as `python -m benchmarks calls` counts them: the same in every measurement, unlike its time."""

from typing import Final

import pytest

from benchmarks._server import serving
from benchmarks.calls import ROOT, measure

pytestmark = pytest.mark.slow

MAX_CALLS: Final = {"trio": 100, "asyncio": 155, "plain function": 148, "plain scorer": 166, "chat": 380}
"""Kind of a trial → the Python calls that it may need in the thread of the loop: 7 % more than when they were last counted,
because on a busy machine all measurements may have some more. `python -m benchmarks calls` has the figures of the design."""
ATTEMPTS: Final = 5
"""Measurements, until one is within the bound. Kinds with threads differ by their timing: a wake-up of the loop that comes too
early for a second result only adds calls, so a load on the machine adds some to most measurements, but a regression to all."""


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in {"trio", "chat"} else pytest.mark.exhaustive) for kind in MAX_CALLS]
)
def test_calls_of_a_trial(kind: str) -> None:
    """A trial does not need more Python calls than before: features that are off cost nothing."""
    with serving() as server:
        measurements = (measure(kind, "calls", ROOT, server.root) for _ in range(ATTEMPTS))
        fewest = next((calls for calls in measurements if calls <= MAX_CALLS[kind]), None)

    assert fewest is not None
