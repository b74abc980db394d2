"""The adaptive policy: its limits, paces and pauses after the events of attempts."""

import itertools
import random
from collections.abc import Callable, Sequence

import pytest

from evaljournal.journal import read
from evaljournal.journal.events import AttemptFailed, IntakePaused, IntakeResumed, LimitChanged, PaceChanged, PolicyEvent
from evaljournal.runner.concurrency.adaptive import Adaptive
from evaljournal.runner.concurrency.breaker import PROBE_SOONEST, Breaker
from evaljournal.runner.concurrency.in_flight import FIRST_LIMIT, SHORT_RUN, InFlight
from evaljournal.runner.concurrency.latency import LatencyBaseline, LoadComparison
from evaljournal.runner.concurrency.policy import FULL, CallEvent, Change
from evaljournal.runner.concurrency.start import LONG_TIME, MANY, WINDOW, Group, Start
from evaljournal.runner.retries.probes import Probes
from evaljournal.runner.testing import SimulatedEndpoint
from tests.journal.disk import SimulatedDisk
from tests.runner.call_events import ended, started
from tests.runs import PATH, define, numbered_cases, run_virtual

Answer = Callable[[float, int], float | None]
"""Given the time and the calls that the endpoint is busy with, the latency of a call; None: 429 after 0.1 s."""


class Drive:
    """A minimal executor."""

    def __init__(self, slots: int = 100, *, trials: int | None = None, is_spread: bool = False) -> None:
        self.policy = Adaptive(slots, trials=trials)
        if not is_spread:
            self.policy._pace.fixed_pace = None  # The first starts of a long run are spread, which has a test of its own.
        self.t = 0.0
        self.in_flight: dict[str, float] = {}
        self.events: list[tuple[CallEvent, float]] = []
        self.decisions: list[Sequence[Change]] = []
        self.count = 0
        self.permit = FULL
        """The permit of the last start."""

    def observe(self, event: CallEvent) -> Sequence[Change]:
        self.events.append((event, self.t))
        self.decisions.append(self.policy.observe(event, self.t))
        return self.decisions[-1]

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.t += seconds
        self.decisions.append(self.policy.elapse(self.t))

    def start(self, trial: str = "") -> str:
        """Start an attempt as soon as the policy allows it."""
        while not (permit := self.policy.may_start(self.t)).open:
            assert permit.check_at is not None, "the limit is reached"
            self.wait(permit.check_at - self.t)
        self.permit = permit
        self.count += 1
        name = trial or f"trial-{self.count}"
        self.in_flight[name] = self.t
        self.observe(started(name))
        return name

    def fill(self) -> list[str]:
        """Start as many attempts as may start now."""
        names = []
        while self.policy.may_start(self.t).open:
            names.append(self.start())
        return names

    def succeed(self, name: str) -> Sequence[Change]:
        return self.observe(ended(name, "succeeded", elapsed=self.t - self.in_flight.pop(name)))

    def rate_limit(self, name: str, retry_after: float | None = None) -> Sequence[Change]:
        del self.in_flight[name]
        return self.observe(ended(name, "rate_limited", retry_after=retry_after))

    def fail(self, name: str) -> Sequence[Change]:
        del self.in_flight[name]
        return self.observe(ended(name, "unavailable"))

    def run(self, until: float, answer: Answer) -> int:
        """Start attempts whenever the policy allows it; return how many calls were rate limited."""
        ends: list[tuple[float, str, bool]] = []
        limited = 0
        while self.t < until:
            permit = self.policy.may_start(self.t)
            if permit.open:
                name = self.start()
                seconds = answer(self.t, 1 + sum(accepted for _, _, accepted in ends))
                ends.append((self.t + (0.1 if seconds is None else seconds), name, seconds is not None))
                ends.sort()
            elif permit.check_at is not None and (not ends or permit.check_at < ends[0][0]):
                self.wait(max(permit.check_at - self.t, 1e-6))
            else:
                self.t, name, accepted = ends.pop(0)
                limited += not accepted
                self.succeed(name) if accepted else self.rate_limit(name)
        return limited

    def changes(self) -> list[Change]:
        return [change for changes in self.decisions for change in changes]

    @property
    def pauses(self) -> list[IntakePaused]:
        return [change for change in self.changes() if isinstance(change, IntakePaused)]


@pytest.mark.parametrize(
    ("slots", "trials", "first"),
    [(100, None, FIRST_LIMIT), (8, None, 8), (100, 60, 100), (100, SHORT_RUN, 100), (100, SHORT_RUN + 1, FIRST_LIMIT)],
)
def test_the_first_limit(slots: int, trials: int | None, first: int) -> None:
    """A run of at most 1,000 trials starts in all slots immediately; the first limit of a longer one is 32."""
    assert first == Adaptive(slots, trials=trials).limit == len(Drive(slots, trials=trials).fill())
    assert 100 == len(Drive(100, trials=SHORT_RUN, is_spread=True).fill())


def test_the_first_starts_of_a_long_run_are_spread() -> None:
    """A run of more than 1,000 trials starts 20 a second, and a quarter more after each success; the ninth ends that."""
    drive = Drive(is_spread=True)
    names = [drive.start() for _ in range(21)]

    assert 1.0 == pytest.approx(drive.t)
    for name in names[:9]:
        drive.succeed(name)
    assert 20 == len(drive.fill())
    paces = [(change.after, change.reason) for change in drive.changes() if isinstance(change, PaceChanged)]
    assert [(20.0, "start"), (25.0, "start"), (31.25, "start")] == paces[:3]
    assert [(119.209, "start"), (None, "no_limit")] == paces[8:]


def test_after_the_first_429_of_a_long_run_the_slots_are_filled_slowly() -> None:
    """If it was a rate limit, few calls are rate limited until that is known; calls from before the 429 do not end the pace."""
    drive = Drive(100)
    names = drive.fill()
    drive.wait(0.15)
    drive.rate_limit(names.pop())
    drive.wait(0.5)
    for name in names[:16]:
        drive.succeed(name)
    began = drive.t
    later = [drive.start() for _ in range(5)]

    assert 0.2 == pytest.approx(drive.t - began)
    assert 20.0 == drive.policy._pace.fixed_pace
    for name in later:
        drive.succeed(name)
    assert 20.0 * 1.25**5 == pytest.approx(drive.policy._pace.fixed_pace)


def test_after_the_first_429_of_a_short_run_the_slots_are_filled_at_once() -> None:
    """A short run would be over before a rate is measured."""
    drive = Drive(32, trials=1_000)
    names = drive.fill()
    drive.wait(0.15)
    drive.rate_limit(names.pop())
    drive.wait(0.5)

    assert 1 == len(drive.fill())
    assert drive.policy._pace.fixed_pace is None


def test_the_limit_grows_while_calls_succeed() -> None:
    """Against an endpoint without a limit every slot is soon in use, and each growth is recorded with its cause."""
    drive = Drive(100)
    drive.run(30.0, lambda _, __: 1.0)

    moves = [change for change in drive.changes() if isinstance(change, LimitChanged)]
    assert 100 == max(move.after for move in moves)
    assert all(move.before < move.after and move.reason == "climbing" for move in moves[:3])


def test_unused_slots_do_not_grow() -> None:
    """A success while few slots are in use is no evidence for a higher limit."""
    drive = Drive(100)
    for _ in range(200):
        name = drive.start()
        drive.t += 0.1
        drive.succeed(name)

    assert FIRST_LIMIT == drive.policy.limit


def test_a_limit_on_calls_in_flight_is_found_and_kept() -> None:
    """Against 12 in flight the limit settles at 12, and trying more costs few 429s."""
    drive = Drive(100)
    limited = drive.run(300.0, lambda _, busy: None if busy > 12 else 1.0)

    assert 11 <= drive.policy.limit <= 13
    assert limited < 0.04 * drive.count


def bucket(rate: float, burst: float, seconds: Callable[[], float]) -> Answer:
    """Return an endpoint with a rate limit."""
    tokens, filled = burst, 0.0

    def answer(t: float, _: int) -> float | None:
        nonlocal tokens, filled
        tokens, filled = min(burst, tokens + rate * (t - filled)), t
        if tokens < 1:
            return None
        tokens -= 1
        return seconds()

    return answer


def test_a_rate_limit_is_paced() -> None:
    """Against a bucket of 10/s most starts are accepted, the pace is recorded, and unused slots are not kept."""
    drive = Drive(100)
    limited = drive.run(300.0, bucket(10, 20.0, lambda: 1.0))

    accepted = drive.count - limited
    assert accepted > 0.97 * 10 * 300
    assert limited < 0.03 * accepted
    paces = [change.after for change in drive.changes() if isinstance(change, PaceChanged) and change.after is not None]
    assert 8 < paces[-1] < 13
    assert all(change.evidence for change in drive.changes() if isinstance(change, PaceChanged))
    assert drive.policy.limit < 26


def test_a_rate_limit_without_retry_after_is_not_taken_for_one_on_calls_in_flight() -> None:
    """Once most calls are rate limited, the rate is the reason; the limit in flight is not lowered step by step before."""
    drive, chance = Drive(1000), random.Random(3)
    limited = drive.run(60.0, bucket(22, 31.0, lambda: chance.uniform(1.0, 6.0)))

    lowered = [change for change in drive.changes() if isinstance(change, LimitChanged) and change.reason == "in_flight"]
    assert len(lowered) < 6
    assert limited < 100


def test_a_single_429_does_not_lower_the_limit() -> None:
    """A single 429 among many successes does not lower the limit, and pauses nothing."""
    drive = Drive(20)
    names = drive.fill()
    drive.t += 0.1
    drive.rate_limit(names.pop(), retry_after=30.0)
    drive.wait(0.2)
    before = drive.policy.limit
    drive.start()
    for name in names:
        drive.t += 0.05
        drive.succeed(name)

    assert [] == drive.pauses
    assert before <= drive.policy.limit


def test_a_short_run_that_starts_immediately_tolerates_random_429s_in_a_row() -> None:
    """Of 32 concurrent calls, three in a row may be rate limited at random; only spread calls show a small bucket."""
    drive = Drive(trials=500)
    names = drive.fill()
    drive.wait(0.1)
    for name in names[2:5]:
        drive.rate_limit(name)
    drive.wait(0.3)

    assert [] == [change for change in drive.changes() if isinstance(change, PaceChanged)]


def test_random_429s_do_not_lower_the_limit_again_and_again() -> None:
    """429s at a full limit may be random as long as most calls there are accepted; a test shows that they are."""
    drive, chance = Drive(32), random.Random(11)
    drive.run(120.0, lambda _t, _busy: None if chance.random() < 0.05 else chance.uniform(1.0, 3.0))

    assert 32 == drive.policy.limit
    assert pytest.approx(0.05, abs=0.03) == drive.policy._random_429s.share


def test_random_429s_do_not_limit_a_short_run() -> None:
    """A run of 1,000 trials grows to all slots; a limit rejects most calls above it, random 429s do not."""
    drive, chance = Drive(200, trials=1_000), random.Random(5)
    drive.run(12.0, lambda _t, _busy: None if chance.random() < 0.05 else chance.uniform(1.0, 3.0))

    assert 200 == drive.policy.limit
    limited = Drive(200, trials=1_000)
    limited.run(12.0, lambda _t, busy: None if busy > 40 else 2.0)
    assert 36 <= limited.policy.limit <= 40


def test_retry_after_pauses_the_key_when_most_calls_are_rate_limited() -> None:
    """Once most of the latest starts are rate limited, nothing starts until the endpoint's time."""
    drive = Drive(32)
    names = drive.fill()
    drive.t += 0.1
    for name in names[4:]:
        drive.rate_limit(name, retry_after=7.0)

    permit = drive.policy.may_start(drive.t)
    assert not permit.open
    assert permit.check_at is not None
    assert permit.check_at >= 7.1
    assert "retry_after" == drive.pauses[-1].reason
    assert pytest.approx(7.1) == drive.pauses[-1].until
    drive.wait(permit.check_at - drive.t)
    assert IntakeResumed(reason="retry_after", evidence="pause over") in drive.changes()
    assert drive.policy.may_start(drive.t).open


@pytest.mark.parametrize(("seconds", "pause"), [(60.0, 60.0), (3600.0, LONG_TIME)])
def test_a_long_retry_after_is_a_ban(seconds: float, pause: float) -> None:
    """After a Retry-After of 30 s or more one call probes the endpoint, at the latest after two minutes."""
    drive = Drive(32)
    names = drive.fill()
    drive.t += 0.1
    for name in names[4:]:
        drive.rate_limit(name, retry_after=seconds)

    assert "all_rate_limited" == drive.pauses[-1].reason
    assert f"every call is rate limited; Retry-After: {seconds:.6g} s" == drive.pauses[-1].evidence
    assert pytest.approx(pause + 0.1) == drive.pauses[-1].until
    drive.wait(pause)
    assert drive.policy.may_start(drive.t).probe


def test_a_key_that_others_use_up_is_used_fully_again() -> None:
    """After each time in which every call is rate limited, all slots are in use again within a minute."""
    bursts, starts = [(10.0, 20.0), (150.0, 160.0)], list[float]()

    def answer(t: float, _: int) -> float | None:
        if any(start <= t < end for start, end in bursts):
            return None
        starts.append(t)
        return 1.0

    drive = Drive(40)
    drive.run(280.0, answer)

    assert "all_rate_limited" in {pause.reason for pause in drive.pauses}
    for begin in (80.0, 220.0):
        assert sum(begin <= t < begin + 60.0 for t in starts) >= 0.95 * 40 * 60.0


def test_a_poisoned_trial_does_not_pause_the_key() -> None:
    """A trial that is rate limited again and again, while others are accepted, does not pause the key."""
    drive = Drive(10)
    for _ in range(50):
        poisoned = drive.start("poisoned")
        names = [drive.start() for _ in range(5)]
        drive.t += 0.1
        drive.rate_limit(poisoned, retry_after=5.0)
        drive.wait(0.2)
        for name in names:
            drive.t += 0.01
            drive.succeed(name)

    assert [] == [pause for pause in drive.pauses if pause.reason == "retry_after"]


def open_breaker(drive: Drive) -> None:
    """Let every call fail until the breaker opens."""
    for _ in range(40):
        name = drive.start()
        drive.t += 0.05
        drive.fail(name)
        drive.wait(0.05)
        if drive.pauses:
            return
    raise AssertionError("the breaker did not open")


def test_the_breaker_opens_when_every_call_fails() -> None:
    """After several failures in a row only probes start, one at a time, with gaps; an answered one closes the breaker.

    The limit is not changed.
    """
    drive = Drive(8)
    open_breaker(drive)

    assert ("unavailable", 8) == (drive.pauses[-1].reason, drive.policy.limit)
    permit = drive.policy.may_start(drive.t)
    assert not permit.open
    assert permit.check_at == pytest.approx(drive.t + PROBE_SOONEST, abs=0.1)
    name = drive.start()
    assert drive.permit.probe
    assert not drive.policy.may_start(drive.t).open
    drive.t += 0.05
    drive.fail(name)
    drive.wait(0.05)
    assert not drive.policy.may_start(drive.t).open
    name = drive.start()
    assert drive.permit.probe
    drive.t += 0.05
    drive.succeed(name)
    assert isinstance(drive.changes()[-1], IntakeResumed)
    assert 8 == len(drive.fill())


def test_background_errors_do_not_open_the_breaker() -> None:
    """Two failures in five, however quick, do not open the breaker; their trials are retried."""
    drive = Drive(20)
    ends: list[tuple[float, str]] = []
    while drive.count < 3_000:
        if drive.policy.may_start(drive.t).open:
            name = drive.start()
            ends.append((drive.t + (0.1 if drive.count % 5 in (0, 2) else 2.0), name))
            ends.sort()
        else:
            drive.t, name = ends.pop(0)
            drive.fail(name) if drive.t - drive.in_flight[name] < 1 else drive.succeed(name)

    assert [] == drive.pauses


def test_inputs_that_fail_are_no_outage() -> None:
    """Calls that were in flight when the breaker opened show that inputs fail, not the endpoint; then it stays closed."""
    drive = Drive(20, trials=40)
    names = drive.fill()
    drive.t += 0.1
    for name in names[::2]:
        drive.fail(name)
    retried = [drive.start(name) for name in names[::2]]
    drive.t += 0.1
    for name in retried:
        drive.fail(name)
    drive.t += 1.0
    for name in names[1::2]:
        drive.succeed(name)

    for _ in range(4):
        drive.wait(0.5)
        for name in [drive.start(name) for name in names[::2]]:
            drive.fail(name)
    assert not drive.permit.probe
    assert drive.policy.may_start(drive.t).open


def test_a_trial_that_fails_again_and_again_closes_the_breaker() -> None:
    """If a call was answered since the trials first failed, their own failed probes show that they are the cause."""
    drive = Drive(8, trials=8)
    names = drive.fill()
    drive.t += 0.1
    for name in names[2:]:
        drive.fail(name)
    drive.t += 1.0
    drive.succeed(names[0])
    drive.succeed(names[1])
    evidence = [change.evidence for change in drive.changes() if isinstance(change, IntakePaused)]
    assert ["6 calls failed in 0.1 s, and none was answered"] == evidence

    probes = 0
    while not drive.policy.may_start(drive.t).open or drive.policy.may_start(drive.t).probe:
        name = drive.start(names[2 + probes % 6])
        assert drive.permit.probe
        drive.fail(name)
        probes += 1
        assert probes < 24, "the breaker does not close"

    resumed = [change for change in drive.changes() if isinstance(change, IntakeResumed)]
    assert "only inputs fail that have failed while others were answered" == resumed[-1].evidence


def test_probes_count_if_the_trial_may_be_the_cause() -> None:
    """In an outage no trial loses retries; if a call was answered since a trial first failed, its probes count."""
    probes = Probes(patience=600.0)
    probes.record_end("a", "unavailable", 1.0)
    probes.record_start("a", 2.0, probe=True)
    assert {"a"} == probes.free

    probes.record_end("a", "unavailable", 3.0)
    probes.record_end("b", "succeeded", 4.0)
    probes.record_start("a", 5.0, probe=True)
    assert set() == probes.free


def test_calls_that_never_end_count_as_no_response() -> None:
    """If no call ends for several mean latencies, only probes start, next to the calls that hang."""
    drive = Drive(16)
    for name in drive.fill():
        drive.t += 0.1
        drive.succeed(name)
    drive.fill()
    permit = drive.policy.may_start(drive.t)
    assert permit.check_at is not None
    drive.wait(permit.check_at - drive.t)

    assert "no_response" == drive.pauses[-1].reason
    assert drive.policy.may_start(drive.t).probe


def test_many_timeouts_lower_the_limit() -> None:
    """When most calls time out and the endpoint rejects none, the limit is lowered."""
    drive = Drive(32)
    names = drive.fill()
    drive.t += 2.0
    for name in names[:4]:
        drive.succeed(name)
    drive.t += 58.0
    for name in names[4:]:
        del drive.in_flight[name]
        drive.observe(ended(name, "timed_out"))

    assert drive.policy.limit < 20


@pytest.mark.parametrize(("began", "is_single"), [(0.0, True), (60.0, False)])
def test_a_failure_after_answers_to_others(began: float, *, is_single: bool) -> None:
    """A call that hung while a later one was answered fails alone; one that fails after that may be the first of an outage."""
    breaker = Breaker()
    group = Group(first_start=1, size=WINDOW)
    first, second = (Start(trial=f"{n}", order=n, t=0.0, in_flight=n, limit=2, group=group) for n in (1, 2))
    breaker.answer(second, 2.0, 2)

    assert breaker.count(first, began, breaker.newest_answered) == 0
    assert (is_single, is_single) == (breaker.is_cause("1"), breaker.single_share > 0.0)
    breaker.answer(second, 61.0, 2)
    assert breaker.single_share > 0.0


def test_an_outage_with_many_calls_in_flight() -> None:
    """Calls that were sent before an answered one fail with all others in an outage: they are no sign of single failures."""
    drive = Drive(300, trials=SHORT_RUN)
    names = drive.fill()
    drive.wait(3.0)
    for name in names[-10:]:
        drive.succeed(name)
    for name in names[:-10]:
        drive.wait(0.001)
        drive.fail(name)
    for _ in range(MANY):
        name = drive.start(names[0])  # A trial that failed before, too, whose first failure came after the last answer.
        drive.wait(0.1)
        drive.fail(name)

    assert ["unavailable"] == [pause.reason for pause in drive.pauses]


def test_inputs_that_time_out_are_no_overload() -> None:
    """Calls that time out while calls that were sent later are answered quickly do not lower the limit."""
    drive = Drive(32)
    names = drive.fill()
    drive.t += 2.0
    for name in names[16:]:
        drive.succeed(name)
    drive.t += 8.0
    for name in names[:16]:
        del drive.in_flight[name]
        drive.observe(ended(name, "timed_out"))

    assert 32 <= drive.policy.limit
    assert [] == drive.pauses


def test_single_timeouts_do_not_add_up() -> None:
    """Timeouts that no later answer explains, with others between them that one does, do not lower the limit."""
    drive = Drive(8)
    for _ in range(4):
        names = drive.fill()
        drive.t += 1.0
        for name in names[1:-1]:
            drive.succeed(name)
        drive.t += 9.0
        for name in (names[0], names[-1]):
            del drive.in_flight[name]
            drive.observe(ended(name, "timed_out"))

    assert 8 == drive.policy.limit
    assert [] == drive.pauses


def test_slow_answers_do_not_explain_timeouts() -> None:
    """If calls that were sent later are answered after half of the timeout, the load is the reason for timeouts."""
    drive = Drive(32)
    names = drive.fill()
    drive.t += 30.0
    for name in names[16:]:
        drive.succeed(name)
    drive.t += 30.0
    for name in names[:16]:
        del drive.in_flight[name]
        drive.observe(ended(name, "timed_out"))

    assert drive.policy.limit < 20


def test_an_overload_does_not_slow_growth_down_for_good() -> None:
    """Once all slots are used again, the limit grows as fast as at first."""
    drive = Drive(64)
    drive.run(120.0, lambda t, _: 1000.0 if 20.0 < t < 22.0 else 1.0)

    assert "no_response" in {change.reason for change in drive.changes() if isinstance(change, LimitChanged)}
    assert 64 == drive.policy.limit
    assert drive.policy._in_flight.threshold is None


def test_growth_without_throughput_is_undone() -> None:
    """Against a server whose latency grows with the square of the load beyond 20, the limit does not stay at 100."""
    drive = Drive(100)
    drive.run(400.0, lambda _, busy: 1.0 if busy <= 20 else (busy / 20) ** 2)

    assert drive.policy.limit <= 40


def test_loads_are_compared_for_a_small_part_of_the_time() -> None:
    """If a comparison of two loads took long, the better one is kept for three times as long before the next."""
    in_flight = InFlight(slots=100, limit=30)
    in_flight.measure_lower(100.0, 50, 20)
    in_flight.end_comparison(140.0, 90, raises_throughput=True)
    call = Start(trial="", order=100, t=0.0, in_flight=30, limit=30, group=Group(first_start=91, size=30))

    for t, phase in ((259.0, "holding"), (260.0, "comparing")):
        in_flight.record_success(call, t, 0)
        assert phase == in_flight.phase


def test_two_loads_are_compared_whenever_a_comparison_begins() -> None:
    """A comparison ends, also if it began when most calls of a group had started: the other load has groups of its own."""
    latency = LatencyBaseline()
    starts = itertools.count(1)

    def call(load: int) -> LoadComparison | None:
        order = next(starts)
        group = latency.group_for_start(order, load, 0)
        start = Start(trial="", order=order, t=0.0, in_flight=load, limit=load, group=group)
        return latency.record_end(start, 3.0, 0)

    for _ in range(64 + 52):
        call(78)
    latency.refresh()
    comparisons = [comparison for _ in range(64) if (comparison := call(98)) is not None]

    assert [(78.0, 98.0)] == [(comparison.low, comparison.high) for comparison in comparisons]


def test_a_few_slow_calls_do_not_end_the_growth() -> None:
    """Calls that are slow for a while, whatever the load, do not limit it for good."""
    drive = Drive(250)
    drive.run(30.0, lambda t, _: 1.2 if 7.0 < t < 10.0 else 1.0)

    assert 250 == drive.policy.limit


def test_only_the_first_end_counts() -> None:
    """A late or unknown end changes nothing."""
    drive = Drive(8)
    name = drive.start()
    drive.t += 1.0
    drive.succeed(name)
    before = drive.policy.may_start(drive.t)

    assert [] == drive.policy.observe(ended(name, "unavailable"), drive.t)
    assert [] == drive.policy.observe(ended("unknown", "rate_limited", retry_after=60.0), drive.t)
    assert before == drive.policy.may_start(drive.t)


@pytest.mark.parametrize(
    "limits", [{"rate": 8.0, "burst": 4}, {"rate": 8.0, "burst": 4, "retry_after": 1.0}, {"max_in_flight": 6}]
)
async def test_the_decision_that_a_429_causes_is_the_next_record(limits: dict[str, float], disk: SimulatedDisk) -> None:
    """In a journal, a pause, or a limit because of 429s, follows the 429 directly."""
    endpoint = SimulatedEndpoint(lambda _: "yes", latency=0.5, **limits)  # type: ignore[arg-type]  # of the table above
    await run_virtual(define(endpoint, numbered_cases(120), slots=20, policy="adaptive"), disk)
    events = [record.event for record in read(PATH, files=disk)]
    causes = [
        next(earlier for earlier in reversed(events[:place]) if not isinstance(earlier, PolicyEvent))
        for place, event in enumerate(events)
        if isinstance(event, IntakePaused | LimitChanged) and event.reason in ("retry_after", "rate_limited", "in_flight")
    ]

    assert causes
    assert {"rate_limited"} == {cause.category if isinstance(cause, AttemptFailed) else cause for cause in causes}
