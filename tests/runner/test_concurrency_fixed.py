"""The policy with a fixed number of slots."""

import pytest

from evaljournal.journal.events import FailureCategory, IntakePaused
from evaljournal.runner.concurrency.fixed import Fixed
from tests.runner.call_events import ended, started


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


def test_retry_after_is_honored() -> None:
    """A Retry-After pauses the whole key; the evidence names the failure."""
    policy = Fixed(2)
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
