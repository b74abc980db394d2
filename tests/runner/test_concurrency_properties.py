"""Properties of every policy, for any signals."""

import copy
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaljournal.journal.events import FailureCategory
from evaljournal.runner.concurrency import POLICIES
from evaljournal.runner.concurrency.policy import Decision, Ended, Policy, Signal, Started

SLOTS = 40
EVERY_POLICY = pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in POLICIES.items()])

Action = tuple[str, float, int, float | None]
seconds = st.one_of(st.sampled_from([0.0, 0.001, 0.1, 1.0, 5.0, 60.0]), st.floats(0, 1000))
scripts = st.tuples(
    st.sampled_from(
        ["start", "start", "start", "ok", "ok", "limited", "limited", "unavailable", "error", "slow", "interrupted"]
    ),
    st.floats(-1, 30) | st.sampled_from([0.0, 0.01, 0.2]),
    st.integers(0, 60),
    st.none() | seconds,
)


def signals(script: list[Action]) -> Iterator[Signal]:
    """Return the signals of a script: attempts start in order and end in any order, some that never started."""
    failures: dict[str, FailureCategory] = {"limited": "rate_limited", "unavailable": "unavailable", "error": "error"}
    t, started = 0.0, 0
    for kind, dt, index, after in script:
        t += dt
        attempt = str(started - index)
        if kind == "start":
            started += 1
            yield Started(t=t, attempt=str(started))
        elif kind == "ok":
            yield Ended(t=t, outcome="succeeded", attempt=attempt, elapsed=after or 0.0)
        elif kind in failures:
            yield Ended(t=t, attempt=attempt, outcome=failures[kind], retry_after=after)
        elif kind == "slow":
            yield Ended(t=t, outcome="timed_out", attempt=attempt)
        else:
            yield Ended(t=t, outcome="interrupted", attempt=attempt)


@EVERY_POLICY
@settings(max_examples=60, deadline=None, derandomize=True)
@given(script=st.lists(scripts, max_size=150))
def test_the_limit_stays_within_bounds(make: Callable[[int], Policy], script: list[Action]) -> None:
    """For any signals, the limit is between 1 and the slots."""
    policy = make(SLOTS)
    for signal in signals(script):
        assert 1 <= policy.observe(signal).limit <= SLOTS


@EVERY_POLICY
@settings(max_examples=60, deadline=None, derandomize=True)
@given(script=st.lists(scripts, max_size=150))
def test_a_start_is_allowed_again(make: Callable[[int], Policy], script: list[Action]) -> None:
    """When all attempts have ended and nothing more happens, a start is allowed within minutes."""
    policy = make(SLOTS)
    sent = list(signals(script))
    for signal in sent:
        policy.observe(signal)
    now = max((signal.t for signal in sent), default=0.0)
    for signal in sent:
        if isinstance(signal, Started):
            policy.observe(Ended(t=now, outcome="interrupted", attempt=signal.attempt))
    asked_at, permit = now, policy.may_start(now)
    for _ in range(20):
        if permit.open:
            break
        assert permit.check_at is not None
        asked_at = permit.check_at
        policy.elapse(asked_at)
        permit = policy.may_start(asked_at)

    assert permit.open
    assert asked_at - now <= 240


@EVERY_POLICY
@settings(max_examples=60, deadline=None, derandomize=True)
@given(script=st.lists(scripts, max_size=150), elapse_at=st.lists(st.integers(0, 150), max_size=20))
def test_elapsed_time_is_processed_by_the_next_call(
    make: Callable[[int], Policy], script: list[Action], elapse_at: list[int]
) -> None:
    """Calling `elapse` between signals changes when a decision is returned, and nothing else."""
    untimed, timed = make(SLOTS), make(SLOTS)
    changes: tuple[list[object], list[object]] = ([], [])
    t = 0.0
    for place, signal in enumerate(signals(script)):
        if place in elapse_at and signal.t > t:
            changes[1].extend(timed.elapse(t + (signal.t - t) / 2).changes)
        t = max(t, signal.t)
        first, second = untimed.observe(signal), timed.observe(signal)
        changes[0].extend(first.changes)
        changes[1].extend(second.changes)
        assert first.limit == second.limit

    assert changes[0] == changes[1]


@EVERY_POLICY
@settings(max_examples=30, deadline=None, derandomize=True)
@given(script=st.lists(scripts, max_size=150))
def test_the_same_signals_give_the_same_decisions(make: Callable[[int], Policy], script: list[Action]) -> None:
    """Decisions follow from the signals alone, and asking whether something may start changes nothing."""

    def decisions(policy: Policy, *, asks: bool) -> Iterator[Decision]:
        for signal in signals(script):
            if asks:
                for t in (signal.t, signal.t + 100.0, signal.t):
                    policy.may_start(t)
            yield policy.observe(signal)

    first = make(SLOTS)
    second = copy.deepcopy(first)
    assert list(decisions(first, asks=False)) == list(decisions(second, asks=True))
