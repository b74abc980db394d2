"""Random runs, as `python -m benchmarks events` compares them between two checkouts."""

import json

import pytest

from benchmarks.calls import ROOT
from benchmarks.events import events_of_runs

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("repeated", [4, pytest.param(20, marks=pytest.mark.exhaustive)])
def test_a_seed_determines_the_events_of_a_run(repeated: int) -> None:
    """The same seeds write the same events in another process, with retries, scores, steps and batches among them."""
    text = events_of_runs(ROOT, 0, 20, "plain")

    kinds = {event[0] for line in text.splitlines() for event in json.loads(line)}
    assert {"RetryScheduled", "AttemptTimedOut", "TrialScored", "StepCompleted", "BatchCollected", "RateLimitSeen"} <= kinds
    assert text.splitlines()[:repeated] == events_of_runs(ROOT, 0, repeated, "plain").splitlines()
