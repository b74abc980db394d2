"""Python calls of a trial, as `python -m benchmarks calls` counts them: the same in every measurement, unlike its time."""

from typing import Final

import pytest

from benchmarks._server import serving
from benchmarks.calls import ROOT, measure

pytestmark = pytest.mark.slow

MAX_CALLS: Final = {"trio": 120, "asyncio": 185, "plain function": 158, "plain scorer": 222, "chat": 380}
"""Kind of a trial → the Python calls that it may need: about 7 % more than when they were last counted.

Kinds with threads differ by their timing."""


@pytest.mark.parametrize("kind", MAX_CALLS)
def test_calls_of_a_trial(kind: str) -> None:
    """A trial does not need more Python calls than before: features that are off cost nothing."""
    with serving() as server:
        calls = measure(kind, "calls", ROOT, server.root)

    assert calls <= MAX_CALLS[kind]
