"""The limit on attempts in flight: overloads and checks of a lower load."""

import pytest

from evaljournal.runner.concurrency.constants import (
    CEILING_LATEST,
    CEILING_SOONEST,
    GROUP_SMALLEST,
    LIMIT_TEST_CALLS,
    LIMIT_TEST_CHEAP,
    LIMIT_TEST_LATEST,
    LIMIT_TEST_TIMEOUT,
    MEASURED_CALLS,
    OTHER_LOAD,
)
from evaljournal.runner.concurrency.in_flight import InFlight, higher_load, lower_load
from evaljournal.runner.concurrency.latency import Latency
from evaljournal.runner.concurrency.start import Group, Start, Wave


def _start(order: int, in_flight: int, limit: int = 64) -> Start:
    group, wave = Group(first_start=1, size=32), Wave(0.0, in_flight)
    return Start(trial=str(order), order=order, t=0.0, in_flight=in_flight, limit=limit, group=group, wave=wave)


@pytest.mark.parametrize(("share", "is_certain"), [(1.0, True), (0.3, False)])
def test_a_limit_is_certain_when_a_test_confirms_it(share: float, *, is_certain: bool) -> None:
    """From then on 429s at any load mean a lower limit; not if the 429s that showed the limit may have been random."""
    machine = InFlight(slots=100, limit=33, phase="trying", known_limit=32, highest_accepted_load=32, limited_share=share)
    machine.record_rate_limit(_start(40, 33), 10.0, last_start=40)

    assert (32, is_certain) == (machine.limit, machine.is_certain)
    assert is_certain == machine.is_above(_start(50, 20), 11.0) == machine.explains(_start(50, 20), 11.0)
    assert machine.is_below(_start(51, 20))  # A few 429s that may be random do not lower it again and again.
    machine.doubt(12.0)
    assert not machine.is_certain


def test_a_429_at_a_higher_load_that_is_compared_confirms_a_limit() -> None:
    """A higher load is also tried for its latency; a 429 there shows the same."""
    machine = InFlight(slots=100, limit=40, phase="trying", known_limit=32, highest_accepted_load=32, by_latency=True)
    machine.record_rate_limit(_start(40, 33), 10.0, last_start=40)

    assert machine.is_certain


def test_one_call_beyond_the_limit_may_have_been_accepted() -> None:
    """A call that starts just before another end is seen may be accepted; the 429s at the same load still show the limit."""
    machine = InFlight(slots=100, limit=32)
    machine.accept(8)

    assert machine.is_above(_start(9, 8), 1.0)
    assert not machine.is_above(_start(10, 7), 1.0)


def test_the_share_of_429s_does_not_depend_on_the_order_of_their_replies() -> None:
    """If the reply of a later start arrives first, the rate-limited starts still range from the earliest to the latest."""
    evidence = []
    for orders in ([9, 10, 11], [10, 11, 9], [11, 10, 9]):
        machine = InFlight(slots=100, limit=64, highest_accepted_load=8)
        assert all(machine.explains(_start(order, 20), 1.0) for order in orders)
        machine.record_rate_limit(_start(orders[-1], 20), 1.0, last_start=11)
        evidence.append((machine.first_limited_above, machine.last_limited_above, machine.limited_share))

    assert [(9, 11, 1.0)] * 3 == evidence


def test_a_second_overload_at_no_higher_load_is_remembered_for_longer() -> None:
    """The first may have been an outage."""
    machine = InFlight(slots=100, limit=64)
    machine.record_overload(64, 10.0, last_start=80)
    first = machine.ceiling_until
    machine.record_overload(40, 90.0, last_start=200)

    assert (10.0 + CEILING_SOONEST, 90.0 + CEILING_LATEST) == (first, machine.ceiling_until)


def test_a_hundred_slow_successes_do_not_become_usual() -> None:
    """A small server that is overloaded from the first second answers slowly; its first few calls show how quick it is."""
    latency = Latency()
    first = [latency.record_success(1.0) for _ in range(4)]
    then = [latency.record_success(8.0) for _ in range(100)]

    assert all(first)
    assert not any(then)


def test_a_lower_load_that_brings_less_lets_the_limit_climb() -> None:
    """Measuring a lower load while climbing does not end the climb."""
    machine = InFlight(slots=1000, limit=120)
    machine.measure_lower(10.0, 500, 70)
    machine.end_comparison(18.0, 640, raises_throughput=True)

    assert ("climbing", 120) == (machine.phase, machine.limit)


def test_a_lower_load_that_brings_as_much_is_kept() -> None:
    """The limit stays there, and the next test has an even lower load."""
    machine = InFlight(slots=1000, limit=120)
    machine.measure_lower(10.0, 500, 70)
    machine.end_comparison(18.0, 640, raises_throughput=False)

    assert ("holding", 70, False) == (machine.phase, machine.limit, machine.is_upward)


@pytest.mark.parametrize("load", range(2, 65))
def test_a_load_is_compared_with_one_that_is_clearly_different(load: int) -> None:
    """At a smaller distance there is no comparison, and the test would be abandoned without a result."""
    assert higher_load(load) >= OTHER_LOAD * load
    assert load >= OTHER_LOAD * lower_load(load)


def test_a_group_ends_when_the_limit_is_lowered() -> None:
    """Calls from before are not compared, so a group that contains some would only delay the comparison."""
    latency = Latency()
    group = latency.group_for_start(1, 32, last_lowered=0)

    assert group is latency.group_for_start(2, 32, last_lowered=0)
    assert (3, GROUP_SMALLEST) == ((lower := latency.group_for_start(3, 7, last_lowered=2)).first_start, lower.size)
    assert lower is latency.group_for_start(4, 7, last_lowered=2)


def test_a_comparison_without_a_result_is_abandoned() -> None:
    """A pace may keep most slots idle; then no load is measured, and the comparison would never end."""
    machine = InFlight(slots=1000, limit=120)
    machine.measure_lower(10.0, 500, 70)
    idle = _start(600, 9, 70)
    machine.record_success(idle, 10.0 + LIMIT_TEST_TIMEOUT - 0.1, 100, patience=1.0)

    assert machine.is_comparing

    machine.record_success(idle, 10.0 + LIMIT_TEST_TIMEOUT, 100, patience=1.0)

    assert ("holding", 120) == (machine.phase, machine.limit)


def test_a_higher_limit_is_kept_after_two_round_trips_without_a_429() -> None:
    """A test is decided by accepted calls, not by time: random 429s would end every long test."""
    machine = InFlight(slots=100, limit=32, phase="holding", known_limit=32)
    machine.record_success(_start(1, 32, 32), 10.0, 100, patience=1.0)
    for _ in range(63):
        machine.accept(33)
    machine.record_success(_start(2, 33, 33), 11.0, 100, patience=1.0)

    assert ("trying", 33) == (machine.phase, machine.limit)

    machine.accept(33)
    machine.record_success(_start(3, 33, 33), 12.0, 100, patience=1.0)

    assert "climbing" == machine.phase


@pytest.mark.parametrize(("successes", "phase"), [(LIMIT_TEST_CALLS, "trying"), (LIMIT_TEST_CALLS - 2, "holding")])
def test_after_many_successes_a_higher_limit_is_tried_sooner(successes: int, phase: str) -> None:
    """A test costs one 429, which is a small share of many calls; on a slow endpoint it waits for the whole period."""
    machine = InFlight(slots=100, limit=32, phase="holding", known_limit=32, period=LIMIT_TEST_LATEST, successes=successes)
    machine.record_success(_start(1, 32, 32), LIMIT_TEST_CHEAP, 100, patience=1.0)

    assert phase == machine.phase


def test_after_several_accepted_calls_one_429_does_not_end_a_test() -> None:
    """A real limit rejects the first calls above it; a 429 after that may be random."""
    machine = InFlight(slots=100, limit=33, phase="trying", known_limit=32)
    ends = [machine.ends_test(_start(1, 33, 33))]
    for _ in range(MEASURED_CALLS):
        machine.accept(33)
    ends.append(machine.ends_test(_start(9, 33, 33)))

    assert [True, False] == ends
