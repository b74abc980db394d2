"""Phoenix's ConcurrencyController: windows, increase, decrease, collapse and smoothed latency, on a clock of the test."""

import pytest

from evaljournal.runner.executors import ConcurrencyController


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


def test_a_window_without_failures_adds_a_step() -> None:
    """Every window of 5 s with a success and no failure adds 0.5."""
    clock = Clock()
    controller = ConcurrencyController(10, 3, clock=clock)
    targets = []
    for _ in range(7):
        controller.record_success(1.0)
        targets.append(controller.target_concurrency)
        clock.now += 5.0

    assert [3, 3, 4, 4, 5, 5, 6] == targets


def test_the_first_window_starts_at_construction() -> None:
    """A success at 4 s and one at 5 s end the first window; counted from the first call, it would end at 9 s."""
    clock = Clock()
    controller = ConcurrencyController(10, 3, increase_step=1, clock=clock)
    targets = []
    for seconds in (4.0, 1.0):
        clock.now += seconds
        controller.record_success(latency_seconds=1.0)
        targets.append(controller.target_concurrency)

    assert [3, 4] == targets


def test_the_call_that_ends_a_window_belongs_to_it() -> None:
    """With one success per window, as with Phoenix, the first window has a success: 4, 4.5, 5."""
    clock = Clock()
    controller = ConcurrencyController(10, 4, clock=clock)
    targets = [controller.target_concurrency]
    for _ in range(4):
        clock.now += 5.0
        controller.record_success(1.0)
        targets.append(controller.target_concurrency)
    clock.now += 5.0
    controller.record_error()
    targets.append(controller.target_concurrency)

    assert [4, 4, 5, 5, 6, 3] == targets


def test_a_long_silence_is_one_window() -> None:
    """A window ends with the first result after its time, however late; it adds one step."""
    clock = Clock()
    controller = ConcurrencyController(10, 3, increase_step=1, clock=clock)
    controller.record_success(1.0)
    clock.now += 500.0
    controller.record_success(1.0)
    clock.now += 4.0
    controller.record_success(1.0)

    assert 4 == controller.target_concurrency


@pytest.mark.parametrize("failures", ["record_error", "record_timeout"])
def test_a_window_with_a_failure_halves(failures: str) -> None:
    """One error or timeout in a window multiplies the target by `decrease_ratio` once, at the end of the window."""
    clock = Clock()
    controller = ConcurrencyController(100, 40, clock=clock)
    controller.record_success(1.0)
    getattr(controller, failures)()
    assert 40 == controller.target_concurrency
    clock.now += 5.0
    controller.record_success(1.0)

    assert 20 == controller.target_concurrency


@pytest.mark.parametrize(("gap", "expected"), [(14.9, 1), (15.1, 20)])
def test_frequent_failures_collapse_the_target(gap: float, expected: int) -> None:
    """Two failures within 15 s reduce the target to 1 immediately; further apart, they only halve it."""
    clock = Clock()
    controller = ConcurrencyController(100, 40, clock=clock)
    controller.record_error()
    clock.now += gap
    controller.record_timeout()

    assert expected == controller.target_concurrency


def test_collapse_arguments() -> None:
    """`collapse_error_threshold` within `collapse_window_seconds`."""
    controller = ConcurrencyController(100, 40, collapse_error_threshold=4, collapse_window_seconds=60, clock=Clock())
    targets = []
    for _ in range(4):
        controller.record_error()
        targets.append(controller.target_concurrency)

    assert [40, 40, 40, 1] == targets


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
