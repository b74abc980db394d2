"""Properties of every policy, for any events."""

import copy
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaljournal.journal.events import FailureCategory
from evaljournal.runner.concurrency import POLICIES
from evaljournal.runner.concurrency.policy import STARTS, CallEvent, Change, Policy, call_of
from tests.runner.call_events import ended, started

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


def call_events(script: list[Action]) -> Iterator[tuple[CallEvent, float]]:
    """Return the events of a script with their times: attempts start in order and end in any order, some never started."""
    failures: dict[str, FailureCategory] = {"limited": "rate_limited", "unavailable": "unavailable", "error": "error"}
    t, start_count = 0.0, 0
    for kind, dt, index, after in script:
        t += dt
        trial = str(start_count - index)
        if kind == "start":
            start_count += 1
            yield started(str(start_count)), t
        elif kind == "ok":
            yield ended(trial, "succeeded", elapsed=after or 0.0), t
        elif kind in failures:
            yield ended(trial, failures[kind], retry_after=after), t
        else:
            yield ended(trial, "timed_out" if kind == "slow" else "interrupted"), t


@EVERY_POLICY
@given(script=st.lists(scripts, max_size=150))
def test_the_limit_stays_within_bounds(make: Callable[[int], Policy], script: list[Action]) -> None:
    """For any events, the limit is between 1 and the slots."""
    policy = make(SLOTS)
    for event, t in call_events(script):
        policy.observe(event, t)
        assert 1 <= policy.limit <= SLOTS


@EVERY_POLICY
@given(script=st.lists(scripts, max_size=150))
def test_a_start_is_allowed_again(make: Callable[[int], Policy], script: list[Action]) -> None:
    """When all attempts have ended and nothing more happens, a start is allowed within minutes."""
    policy = make(SLOTS)
    sent = list(call_events(script))
    for event, t in sent:
        policy.observe(event, t)
    now = max((t for _, t in sent), default=0.0)
    for event, _ in sent:
        if isinstance(event, STARTS):
            policy.observe(ended(call_of(event), "interrupted"), now)
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
@given(script=st.lists(scripts, max_size=150), elapse_at=st.lists(st.integers(0, 150), max_size=20))
def test_elapsed_time_is_processed_by_the_next_call(
    make: Callable[[int], Policy], script: list[Action], elapse_at: list[int]
) -> None:
    """Calling `elapse` between events changes when a decision is returned, and nothing else."""
    untimed, timed = make(SLOTS), make(SLOTS)
    changes: tuple[list[object], list[object]] = ([], [])
    latest = 0.0
    for place, (event, t) in enumerate(call_events(script)):
        if place in elapse_at and t > latest:
            changes[1].extend(timed.elapse(latest + (t - latest) / 2))
        latest = max(latest, t)
        first, second = untimed.observe(event, t), timed.observe(event, t)
        changes[0].extend(first)
        changes[1].extend(second)
        assert untimed.limit == timed.limit

    assert changes[0] == changes[1]


@EVERY_POLICY
@given(script=st.lists(scripts, max_size=150))
def test_the_same_events_give_the_same_decisions(make: Callable[[int], Policy], script: list[Action]) -> None:
    """Decisions follow from the events alone, and asking whether something may start changes nothing."""

    def decisions(policy: Policy, *, asks: bool) -> Iterator[tuple[int, Sequence[Change]]]:
        for event, t in call_events(script):
            if asks:
                for time in (t, t + 100.0, t):
                    policy.may_start(time)
            changes = policy.observe(event, t)
            yield policy.limit, changes

    first = make(SLOTS)
    second = copy.deepcopy(first)
    assert list(decisions(first, asks=False)) == list(decisions(second, asks=True))
