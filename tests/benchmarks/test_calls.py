"""Python calls of a trial, as `python -m benchmarks calls` counts them: the same in every measurement, unlike its time."""

from typing import Final

import pytest

from benchmarks._server import serving
from benchmarks.calls import ROOT, measure

pytestmark = pytest.mark.slow

MAX_CHAT_CALLS: Final = 260
"""Calls that a chat trial may need besides those of a function that does nothing: 5 % more than when they were last counted."""


def test_calls_of_a_chat_trial() -> None:
    """Rendering, sending, reading and pricing one chat call takes few Python calls."""
    with serving() as server:
        chat = measure("chat", "calls", ROOT, server.root)

    assert chat - measure("trio", "calls", ROOT) <= MAX_CHAT_CALLS
