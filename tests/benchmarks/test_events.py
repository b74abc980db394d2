"""Random runs, as `python -m benchmarks events` compares them between two checkouts."""

import json

import pytest

from benchmarks.calls import ROOT
from benchmarks.events import events_of_runs

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("first", "count"), [(4, 6), pytest.param(0, 20, marks=pytest.mark.exhaustive)])
def test_a_seed_determines_the_events_of_a_run(first: int, count: int) -> None:
    """The same seeds write the same events in another process, with retries, scores, steps and batches among them."""
    text = events_of_runs(ROOT, first, count, "plain")

    kinds = {event[0] for line in text.splitlines() for event in json.loads(line)}
    assert {"RetryScheduled", "AttemptTimedOut", "TrialScored", "StepCompleted", "BatchCollected", "RateLimitSeen"} <= kinds
    assert text == events_of_runs(ROOT, first, count, "plain")
