"""How a pace is measured: which 429s are measurements, and which may be random."""

import pytest

from evaljournal.runner.concurrency.background import Background
from evaljournal.runner.concurrency.pace import Pace
from evaljournal.runner.concurrency.start import Group, Start, Wave

RATE = 10.0


def start(order: int, t: float) -> Start:
    return Start(trial=str(order), order=order, t=t, in_flight=5, limit=10, group=Group(first_start=1, size=1), wave=Wave(t))


def plateau(*, period: float) -> Pace:
    """Return a plateau at a measured rate, with a 429 of the start 100 at 10 s as the anchor."""
    return Pace(
        estimate=RATE, measured_rate=RATE, phase_start=10.0, period=period, anchor=start(100, 10.0), lowest_estimate=RATE
    )


@pytest.mark.parametrize(
    ("period", "granted", "needed"),
    [(20.0, 100, 1), (3.0, 100, 1), (20.0, 80, 3)],
    ids=["due, measurements agree", "due, the first measurement", "before it is due"],
)
def test_429s_that_a_plateau_needs(period: float, granted: int, needed: int) -> None:
    """One 429 is enough where all was granted that the measured rate allows; earlier ones may be random, so it takes three."""
    pace = plateau(period=period)
    confirmed = [pace.is_confirmed(start(100 + granted + n + 1, 20.0)) for n in range(needed)]

    assert [False] * (needed - 1) + [True] == confirmed


def test_a_rate_that_was_measured_too_high_is_measured_again() -> None:
    """A pace slightly above the limit gets a 429 every 11 starts, each before one is due; the third is a measurement."""
    pace = plateau(period=20.0)
    confirmed = [pace.is_confirmed(start(100 + 11 * n, 10.0 + 11 * n / RATE + 5.0)) for n in (1, 2, 3)]

    assert [False, False, True] == confirmed


def test_a_short_measurement_continues() -> None:
    """What was granted in less than two seconds is not a measurement: the search and the count continue."""
    pace = plateau(period=3.0)
    pace.learn(start(113, 11.0), 11.1, flow=10.0, pause=0.0)

    assert pace.is_searching
    assert pace.anchor is not None
    assert 100 == pace.anchor.order

    pace.learn(start(136, 14.0), 14.1, flow=10.0, pause=0.0)

    assert not pace.is_searching
    assert 136 == pace.anchor.order


def test_the_pause_counts_in_the_first_measurement() -> None:
    """An endpoint that accepted 2 calls and asks to wait for 2 s grants about 2 in 2.2 s, not 2 in 0.2 s."""
    pace = Pace()
    pace.starts_without_token = 2
    pace.learn(start(5, 0.2), 0.4, flow=0.0, pause=2.0)

    assert pytest.approx(0.7 * 2 / 2.2) == pace.estimate


def test_a_429_soon_after_a_measurement_confirms_it() -> None:
    """In a search one 429 may be random, unless the last measurement was a few starts ago."""
    pace = plateau(period=3.0)
    pace.learn(start(113, 11.0), 11.1, flow=10.0, pause=0.0)

    assert pace.is_confirmed(start(120, 12.0))
    assert not pace.is_confirmed(start(200, 20.0))


def test_after_the_only_accepted_call_comes_a_gap() -> None:
    """When every call was rate limited and a probe was accepted, the bucket is empty again."""
    pace = Pace(estimate=0.5, is_searching=True)
    pace.resume(start(7, 9.0), 10.0)

    assert 12.0 == pace.next_start


def test_a_search_ends_where_slots_are_the_limit() -> None:
    """Without a rate limit, a search would not end, and would record higher and higher paces."""
    pace = Pace(estimate=RATE, is_searching=True)
    for n in range(20_000):
        pace.record_start(0.02 * n, 50.0)

    assert pace.estimate is not None
    assert 100.0 <= pace.estimate < 110.0


def test_a_pause_does_not_count_as_search_time() -> None:
    """The growth of a search depends on the time in which starts were possible."""
    pace = Pace(estimate=RATE, is_searching=True, phase_start=1.0, next_start=1.0)
    pace.postpone(31.0)

    assert (31.0, 31.0) == (pace.phase_start, pace.next_start)


@pytest.mark.parametrize(("limited", "is_random", "share"), [(0, False, 0.0), (2, False, 0.02), (8, True, 0.1)])
def test_a_test_distinguishes_random_429s_from_a_rate_limit(limited: int, is_random: bool, share: float) -> None:  # noqa: FBT001
    """Few 429s in a test are random ones besides a rate limit; as many as before the test are all random."""
    background = Background(longest_test=1e9, observed_share=0.1, unexplained_429s=4)
    background.begin_test(1000)
    background.unexplained_429s = limited

    assert 100 == background.last_test_start - background.first_test_start + 1
    assert is_random == background.end_test(background.last_test_start)
    assert share == pytest.approx(background.share)


@pytest.mark.parametrize(("limited", "is_unclear"), [(0, False), (1, True), (2, True), (3, False)])
def test_a_test_with_an_unclear_result_continues_once(limited: int, *, is_unclear: bool) -> None:
    """A test begins where random 429s happen to be frequent, so there may be few in it even if all are random."""
    background = Background(longest_test=1e9, observed_share=0.1)
    background.begin_test(1000)
    background.unexplained_429s = limited

    assert is_unclear == background.extend_test(1120)
    assert (1220 if is_unclear else 1100) == background.last_test_start
    assert not background.extend_test(1220)


@pytest.mark.parametrize(("limited", "is_random"), [(4, False), (5, True)])
def test_a_test_of_twice_as_many_starts_tolerates_twice_as_many_429s(limited: int, *, is_random: bool) -> None:
    """Otherwise a few poisoned cases besides a rate limit would look like random 429s."""
    background = Background(longest_test=1e9, observed_share=0.1)
    background.begin_test(1000)
    background.unexplained_429s = 1
    background.extend_test(1120)
    background.unexplained_429s = limited

    assert is_random == background.end_test(background.last_test_start)
    assert 1 == background.parts


def test_429s_after_a_measurement_do_not_lower_the_pace_forever() -> None:
    """If nothing was granted since the last 429, only probes start, even if calls were granted since the measurement."""
    pace = plateau(period=3.0)
    some_granted = pace.learn(start(104, 10.4), 10.5, flow=10.0, pause=0.0)
    none_granted = pace.learn(start(105, 11.0), 11.1, flow=10.0, pause=0.0)

    assert some_granted is not None
    assert none_granted is None


def test_the_sixth_unexplained_429_begins_a_test() -> None:
    """Four or five of 1 % random 429s are often close together, and a test of those finds fewer."""
    background = Background(longest_test=1e9)
    begins = [background.count(start(20 * n, float(n)), 1, n) for n in range(1, 7)]

    assert [False] * 5 + [True] == begins


def test_a_pace_is_steady_after_three_measurements_that_agree() -> None:
    """Until then the endpoint's limit may change often, and the slots are not lowered to what the pace needs."""
    pace = plateau(period=3.0)
    steady = [pace.is_steady]
    for n in (1, 2):
        pace.learn(start(100 + 101 * n, 10.0 + 10 * n), 10.1 + 10 * n, flow=10.0, pause=0.0)
        steady.append(pace.is_steady)

    assert [False, False, True] == steady
