"""What holds of every policy, whatever it is told."""

import math
from collections.abc import Callable, Iterator

import attrs
import cattrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.events import Kind
from runner.concurrency import (
    Adaptive,
    AdaptiveState,
    Aimd,
    AimdState,
    Failed,
    Fixed,
    FixedState,
    Interrupted,
    Policy,
    Quota,
    Signal,
    Started,
    Succeeded,
    TimedOut,
)

MOST = 40


def again(state: object) -> object:
    """Write a state as JSON and read it back."""
    data = orjson.loads(orjson.dumps(cattrs.unstructure(state)))
    return cattrs.structure(data, type(state))


def fixed(state: object = None) -> Policy:
    """Make a fixed policy, or go on with one."""
    assert state is None or isinstance(state, FixedState)
    return Fixed(MOST, state=state)


def aimd(state: object = None) -> Policy:
    """Make an additive one, or go on with it."""
    assert state is None or isinstance(state, AimdState)
    return Aimd(MOST, state=state)


def adaptive(state: object = None) -> Policy:
    """Make an adaptive one, or go on with it."""
    assert state is None or isinstance(state, AdaptiveState)
    return Adaptive(MOST, state=state)


EVERY = pytest.mark.parametrize("make", [fixed, aimd, adaptive])

seconds = st.one_of(st.sampled_from([0.0, 0.001, 0.1, 1.0, 5.0, 60.0]), st.floats(0, 1000))
quotas = st.builds(Quota, remaining=st.integers(0, 100), reset=seconds, limit=st.none() | st.integers(0, 100))
steps = st.tuples(
    st.sampled_from(["start", "start", "start", "ok", "ok", "refused", "refused", "ill", "error", "slow", "cut"]),
    st.floats(-1, 30) | st.sampled_from([0.0, 0.01, 0.2]),
    st.integers(0, 60),
    st.none() | seconds,
    st.none() | quotas,
)


def signals(script: list[tuple[str, float, int, float | None, Quota | None]]) -> Iterator[Signal]:
    """Turn a script into signals: attempts begin in order, and end in any order, some that never began."""
    failures: dict[str, Kind] = {"refused": "rate_limited", "ill": "unavailable", "error": "error"}
    t, begun = 0.0, 0
    for kind, dt, which, after, quota in script:
        t += dt
        attempt = str(begun - which)
        if kind == "start":
            begun += 1
            yield Started(t=t, attempt=str(begun))
        elif kind == "ok":
            yield Succeeded(t=t, attempt=attempt, elapsed=after or 0.0, quota=quota)
        elif kind in failures:
            yield Failed(t=t, attempt=attempt, failure=failures[kind], retry_after=after, quota=quota)
        elif kind == "slow":
            yield TimedOut(t=t, attempt=attempt)
        else:
            yield Interrupted(t=t, attempt=attempt)


def numbers(value: object) -> Iterator[float]:
    """Every number in a state."""
    if isinstance(value, dict):
        for part in value.values():
            yield from numbers(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from numbers(part)
    elif isinstance(value, int | float):
        yield value


@EVERY
@settings(max_examples=60, deadline=None, derandomize=True)
@given(script=st.lists(steps, max_size=150))
def test_the_limit_stays_within_bounds_and_the_state_is_finite(
    make: Callable[[], Policy], script: list[tuple[str, float, int, float | None, Quota | None]]
) -> None:
    """Whatever comes, the limit is between 1 and the most, and nothing in the state is infinite or undefined."""
    policy = make()
    for signal in signals(script):
        decision = policy.take(signal)
        assert 1 <= decision.limit <= MOST

    assert attrs.has(type(policy.state))
    assert all(math.isfinite(n) for n in numbers(cattrs.unstructure(policy.state)))


@EVERY
@settings(max_examples=60, deadline=None, derandomize=True)
@given(script=st.lists(steps, max_size=150))
def test_the_gate_is_never_shut_for_good(
    make: Callable[[], Policy], script: list[tuple[str, float, int, float | None, Quota | None]]
) -> None:
    """When all attempts have ended and nothing more happens, a start is allowed soon: nobody has to wake the policy."""
    policy = make()
    told = list(signals(script))
    for signal in told:
        policy.take(signal)
    now = max((signal.t for signal in told), default=0.0)
    for signal in told:
        if isinstance(signal, Started):
            policy.take(Interrupted(t=now, attempt=signal.attempt))
    gate = policy.may_start(now)
    if not gate.open:
        assert gate.at is not None
        assert gate.at - now <= 240
        gate = policy.may_start(gate.at)

    assert gate.open


@EVERY
@settings(max_examples=50, deadline=None, derandomize=True)
@given(script=st.lists(steps, max_size=150), cut=st.integers(0, 150))
def test_the_same_signals_give_the_same_decisions(
    make: Callable[..., Policy], script: list[tuple[str, float, int, float | None, Quota | None]], cut: int
) -> None:
    """Decisions follow from the signals alone, also when the state was written to JSON and read back on the way."""
    straight, resumed = make(), make()
    for k, signal in enumerate(signals(script)):
        if k == cut:
            resumed = make(again(resumed.state))
        assert straight.take(signal) == resumed.take(signal)

    assert straight.state == resumed.state
    assert orjson.dumps(cattrs.unstructure(straight.state)) == orjson.dumps(cattrs.unstructure(resumed.state))


@EVERY
def test_asking_changes_nothing(make: Callable[[], Policy]) -> None:
    """The gate can be asked any number of times, at any time, in any order."""
    policy = make()
    policy.take(Started(t=1.0, attempt="a"))
    before = cattrs.unstructure(policy.state)
    for t in (1.0, 100.0, 1.0):
        policy.may_start(t)

    assert before == cattrs.unstructure(policy.state)
