"""The policy of Phoenix's executors: additive increase, multiplicative decrease."""

import pytest

from evaljournal.integrations.phoenix.aimd import Aimd
from evaljournal.journal.events import IntakePaused, LimitChanged
from tests.runner.call_events import ended, started


def attempt(policy: Aimd, t: float, *, succeeds: bool) -> int:
    """Start and end one attempt, and return the limit."""
    policy.observe(started("a"), t)
    policy.observe(ended("a", "succeeded", elapsed=1.0) if succeeds else ended("a", "timed_out"), t)
    return policy.limit


@pytest.mark.parametrize("slots", [0, -1])
def test_no_slots_are_rejected(slots: int) -> None:
    """A policy without slots is rejected."""
    with pytest.raises(ValueError, match="at least one slot"):
        Aimd(slots)


def test_retry_after_pauses() -> None:
    """A Retry-After pauses the whole key, as with the other policies."""
    policy = Aimd(2)
    policy.observe(started("a"), 0.0)
    changes = policy.observe(ended("a", "rate_limited", retry_after=30.0), 0.0)

    assert [30.0] == [change.until for change in changes if isinstance(change, IntakePaused)]
    assert policy.may_start(0.0).check_at == 30.0


def test_aimd_collapses_after_frequent_failures() -> None:
    """Two errors within 15 s collapse the target to 1, with evidence."""
    policy = Aimd(100, initial=40.0)
    attempt(policy, 0.0, succeeds=False)
    policy.observe(started("b"), 14.0)
    changes = policy.observe(ended("b", "unavailable"), 14.9)

    assert policy.limit == 1
    assert changes[-1] == LimitChanged(before=40, after=1, reason="window", evidence="2 overloads in 14.9 s")


def test_aimd_does_not_count_a_tasks_own_error() -> None:
    """A fatal error of the task is no evidence about the load."""
    policy = Aimd(100, initial=8.0)
    for number in range(20):
        policy.observe(started("a"), float(number))
        policy.observe(ended("a", "error"), float(number))

    assert policy.target == 8.0
