"""Phoenix's ConcurrencyController: windows, increase, decrease, collapse and smoothed latency, on a clock of the test."""

import random

import pytest

from evaljournal.integrations.phoenix import ConcurrencyController


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_initial_target() -> None:
    """The target starts at `initial_target`, within [1, max], and is an integer."""
    assert [3, 1, 10] == [ConcurrencyController(10, start).target_concurrency for start in (3.9, 0.0, 40)]
    assert 7 == ConcurrencyController(max_concurrency=10, initial_target=7).target_concurrency


@pytest.mark.parametrize("ratio", [0.5, 0.8])
def test_the_steady_state(ratio: float) -> None:
    """The mean target is a(1−r) / ((1−β)r), as in docs/migrating.md, if a fraction r of the windows has an error."""
    clock, generator, fraction, targets = Clock(), random.Random(1), 0.1, []
    steady_state = 0.5 * (1 - fraction) / ((1 - ratio) * fraction)
    controller = ConcurrencyController(1_000, steady_state, decrease_ratio=ratio, clock=clock)
    for _ in range(40_000):
        clock.now += 20  # More than the window in which errors collapse the target.
        controller.record_error() if generator.random() < fraction else controller.record_success(1.0)
        targets.append(controller._policy.target)  # Before it is rounded down.

    assert steady_state == pytest.approx(sum(targets) / len(targets), rel=0.05)


SUCCESS, ERROR, TIMEOUT = "success", "error", "timeout"


@pytest.mark.parametrize(
    ("arguments", "calls", "targets"),
    [
        # Every window of 5 s with a success and no failure adds 0.5.
        ({}, [(0, SUCCESS), *[(5, SUCCESS)] * 6], [40, 40, 41, 41, 42, 42, 43]),
        # The first window starts at construction.
        ({"increase_step": 1}, [(4, SUCCESS), (1, SUCCESS)], [40, 41]),
        # The call that ends a window belongs to it.
        ({}, [*[(5, SUCCESS)] * 4, (5, ERROR)], [40, 41, 41, 42, 21]),
        # A window ends with the first result after its time, however late, and adds one step.
        ({"increase_step": 1}, [(0, SUCCESS), (500, SUCCESS), (4, SUCCESS)], [40, 41, 41]),
        # A window with a failure halves the target once, at its end.
        ({}, [(0, SUCCESS), (0, ERROR), (5, SUCCESS)], [40, 40, 20]),
        ({}, [(0, SUCCESS), (0, TIMEOUT), (5, SUCCESS)], [40, 40, 20]),
        # Two failures within 15 s reduce the target to 1 immediately; further apart, they only halve it.
        ({}, [(0, ERROR), (14.9, TIMEOUT)], [40, 1]),
        ({}, [(0, ERROR), (15.1, TIMEOUT)], [40, 20]),
        ({"collapse_error_threshold": 4, "collapse_window_seconds": 60}, [(0, ERROR)] * 4, [40, 40, 40, 1]),
    ],
)
def test_windows(arguments: dict[str, float], calls: list[tuple[float, str]], targets: list[int]) -> None:
    """The target changes at the end of a window, or with the failure that collapses it."""
    clock = Clock()
    controller = ConcurrencyController(100, 40, clock=clock, **arguments)  # type: ignore[arg-type]
    reached = []
    for seconds, kind in calls:
        clock.now += seconds
        controller.record_success(1.0) if kind == SUCCESS else getattr(controller, f"record_{kind}")()
        reached.append(controller.target_concurrency)

    assert targets == reached


def test_the_target_stays_within_bounds() -> None:
    """After hours of success the target is the maximum, so the first failure takes effect; it is never below 1."""
    clock = Clock()
    controller = ConcurrencyController(10, 9, clock=clock)
    for _ in range(3000):
        controller.record_success(0.1)
        clock.now += 5.0
    assert 10 == controller.target_concurrency
    controller.record_error()
    clock.now += 5.0
    controller.record_success(0.1)
    assert 5 == controller.target_concurrency
    for _ in range(50):
        controller.record_error()
        clock.now += 5.0

    assert 1 == controller.target_concurrency


def test_latency_is_smoothed() -> None:
    """The average latency moves by `smoothing_factor` (default: 0.2) towards each new one."""
    controller, quick = ConcurrencyController(10, 3), ConcurrencyController(10, 3, smoothing_factor=0.5)
    for latency in (1.0, 2.0):
        controller.record_success(latency)
        quick.record_success(latency)

    assert [pytest.approx(1.2), pytest.approx(1.5)] == [controller.latency, quick.latency]
    assert ConcurrencyController(10, 3).latency is None


def test_no_concurrency_is_rejected() -> None:
    """A controller that allows nothing is rejected."""
    with pytest.raises(ValueError, match="at least one slot"):
        ConcurrencyController(0, 1)
