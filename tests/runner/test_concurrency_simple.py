"""The two simple policies: a fixed number, and additive increase with multiplicative decrease."""

import pytest

from evaljournal.journal.events import FailureCategory, IntakePaused, LimitChanged
from evaljournal.runner.concurrency.aimd import Aimd
from evaljournal.runner.concurrency.fixed import Fixed
from evaljournal.runner.concurrency.policy import Policy
from tests.runner.call_events import ended, started


def attempt(policy: Aimd, t: float, *, succeeds: bool) -> int:
    """Start and end one attempt, and return the limit."""
    policy.observe(started("a"), t)
    policy.observe(ended("a", "succeeded", elapsed=1.0) if succeeds else ended("a", "timed_out"), t)
    return policy.limit


def test_fixed_allows_its_slots_and_no_more() -> None:
    """A fixed policy allows starts until every slot is taken, and again when one is free."""
    policy = Fixed(2)
    policy.observe(started("a"), 0.0)
    assert policy.may_start(0.0).open
    policy.observe(started("b"), 0.0)

    permit = policy.may_start(0.0)
    assert (permit.open, permit.check_at) == (False, None)
    policy.observe(ended("a", "succeeded", elapsed=1.0), 1.0)
    assert policy.limit == 2
    assert policy.may_start(1.0).open


@pytest.mark.parametrize("policy", [Fixed(2), Aimd(2)])
def test_retry_after_is_honored(policy: Policy) -> None:
    """A Retry-After pauses the whole key; the evidence names the failure."""
    categories: tuple[FailureCategory, ...] = ("rate_limited", "unavailable")
    evidence: list[str] = []
    for t, category in enumerate(categories):
        policy.observe(started("a"), t)
        changes = policy.observe(ended("a", category, retry_after=30.0), t)
        evidence += [change.evidence for change in changes if isinstance(change, IntakePaused)]

        assert policy.may_start(t).check_at == t + 30.0

    assert ["429 at 1 in flight; Retry-After: 30 s", "unavailable at 1 in flight; Retry-After: 30 s"] == evidence


@pytest.mark.parametrize("slots", [0, -1])
def test_no_slots_are_rejected(slots: int) -> None:
    """A policy without slots is rejected."""
    with pytest.raises(ValueError, match="at least one slot"):
        Fixed(slots)
    with pytest.raises(ValueError, match="at least one slot"):
        Aimd(slots)


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
