"""The simulation behind `python -m benchmarks policy`."""

import pickle
import statistics
from typing import Any

import pytest
from attrs import evolve

from benchmarks.simulated.chance import log_normal, uniform
from benchmarks.simulated.compare import BEST, FIXED, OURS, compare, summary
from benchmarks.simulated.endpoint import Ban, Burst, Curve, Endpoint, Poison, Server
from benchmarks.simulated.families import FAMILIES
from benchmarks.simulated.gateways import cooling_gateway
from benchmarks.simulated.providers import Request
from benchmarks.simulated.real import measure_real
from benchmarks.simulated.rows import Row, best_fixed, measure, ours
from benchmarks.simulated.scenarios import SCENARIOS, randoms

pytestmark = pytest.mark.slow

A, X = SCENARIOS["A"][0], SCENARIOS["X"][0]
BROWNOUTS = evolve(X, brownout_every=100.0, brownout=5.0)


@pytest.mark.parametrize(
    "row",
    [
        Row(name="no limit", endpoint=Endpoint(), trials=100),
        Row(name="random 429s", endpoint=Endpoint(median=0.2, random_429=0.05), slots=32, trials=200),
        Row(name="a judge", endpoint=Endpoint(sigma=0.0), judge=Endpoint(median=1.0), trials=100),
        Row(name="A", endpoint=A, seconds=60.0),
        Row(name="X", endpoint=BROWNOUTS, seconds=120.0),
        pytest.param(Row(name="X, longer", endpoint=BROWNOUTS, seconds=240.0), marks=pytest.mark.exhaustive, id="X, longer"),
        Row(name="a knee", endpoint=Endpoint(knee=8), seconds=60.0),
        Row(name="timeouts", endpoint=Endpoint(cap=20, hangs=0.02), timeout=10.0, seconds=80.0),
        Row(name="own errors", endpoint=Endpoint(cap=20, poison=Poison(per_thousand=200, kind="error")), seconds=60.0),
        Row(name="poison", endpoint=Endpoint(poison=Poison(per_thousand=500, kind="unavailable")), slots=32, trials=100),
        Row(name="bans", endpoint=Endpoint(rate=10, burst=20, retry_after=False, ban=Ban(seconds=30.0)), seconds=200.0),
        Row(name="a queue", endpoint=Endpoint(workers=4), seconds=60.0),
    ],
    ids=lambda row: row.name,
)
def test_agrees_with_the_real_executor(row: Row) -> None:
    """On the same endpoint, the real executor and the simulated one complete as many trials in the same time."""
    simulated, real = measure(row, ours, 1), measure_real(row, seed=1)

    assert real.completed == pytest.approx(simulated.completed, rel=0.05)
    assert real.seconds == pytest.approx(simulated.seconds, rel=0.05)


ENDPOINTS = {
    "rate": Endpoint(rate=10, burst=10),
    "cap": Endpoint(cap=16),
    "knee": Endpoint(knee=16),
    "workers": Endpoint(workers=8),
    "window": Endpoint(rate=20, window=10.0),
    "background 5xx": Endpoint(rate=10, burst=10, background_5xx=0.2),
    "token costs": Endpoint(rate=10, burst=40, cost_sigma=1.0),
    "hangs": Endpoint(cap=16, hangs=0.01),
    "latency drift": Endpoint(cap=16, latency_curve=Curve(((60.0, 3.0),))),
    "lowered rate": Endpoint(rate=10, burst=10, rate_curve=Curve(((100.0, 0.3),))),
    "burst of 429s": Endpoint(cap=16, bursts=(Burst(start=50, seconds=60, kind="rate_limited"),)),
    "own errors": Endpoint(cap=16, poison=Poison(per_thousand=100, kind="error")),
}


@pytest.mark.parametrize(
    "endpoint",
    [
        pytest.param(endpoint, id=name, marks=pytest.mark.exhaustive if number % 3 else ())
        for number, (name, endpoint) in enumerate(ENDPOINTS.items())
    ],
)
def test_capacity_is_what_the_best_fixed_limit_reaches(endpoint: Endpoint) -> None:
    """The computed capacity is a bound that a fixed limit comes near to."""
    _, result = best_fixed(Row(name="", endpoint=endpoint, slots=32, seconds=200.0), seed=2)

    assert result.goodput is not None
    assert 90 < result.goodput < 110


def test_outcomes_do_not_depend_on_the_order_of_calls() -> None:
    """The outcome of an attempt depends on seed, trial and attempt alone."""
    endpoint = Endpoint(random_429=0.2, background_5xx=0.2, hangs=0.1)
    forwards, backwards = Server(endpoint, 3), Server(endpoint, 3)
    first = {trial: forwards.call(0.0, trial, 1) for trial in range(200)}
    second = {trial: backwards.call(9.0, trial, 1) for trial in reversed(range(200))}

    assert first == second


@pytest.mark.parametrize(
    ("endpoint", "kind", "mean"),
    [
        (Endpoint(sigma=0.0), "ok", 2.03),
        (Endpoint(cap=0), "rate_limited", 0.15),
        (Endpoint(random_429=1.0), "random_429", 0.15),
        (Endpoint(background_5xx=1.0), "unavailable", 0.15),
        (Endpoint(bursts=(Burst(start=0, seconds=60, kind="rate_limited"),)), "rate_limited", 0.15),
        (Endpoint(poison=Poison(per_thousand=1000, kind="unavailable")), "unavailable", 0.15),
        (Endpoint(rate=0.0), "rate_limited", 0.15),
    ],
    ids=["ok", "in-flight limit", "random 429", "background 5xx", "burst", "poison", "rate limit"],
)
def test_no_two_replies_take_the_same_time(endpoint: Endpoint, kind: str, mean: float) -> None:
    """Replies of every kind arrive in a different order than their calls started, also if the latency is constant."""
    server = Server(endpoint, 1)
    answers = [server.call(0.0, trial, 1) for trial in range(2000)]

    assert {kind} == {answer.kind for answer in answers}
    assert 2000 == len({answer.seconds for answer in answers})
    assert statistics.fmean(answer.seconds for answer in answers) == pytest.approx(mean, rel=0.05)


def test_random_numbers_are_independent() -> None:
    """Attempts of a trial, and trials of a run, are independent of each other."""
    draws = [[uniform(1, trial, attempt, 3) for attempt in range(1, 4)] for trial in range(5000)]

    assert statistics.fmean(row[0] for row in draws) == pytest.approx(0.5, abs=0.02)
    assert sum(all(u < 0.2 for u in row) for row in draws) == pytest.approx(5000 * 0.2**3, abs=20)
    assert statistics.median(log_normal(row[0], 2.0, 0.5) for row in draws) == pytest.approx(2.0, rel=0.03)


def test_a_curve_jumps_or_ramps() -> None:
    """A curve is 1 before its first point; then it jumps at each point, or moves linearly between them."""
    points = ((10.0, 1.0), (20.0, 3.0))

    assert [1.0, 1.0, 1.0, 3.0, 3.0] == [Curve(points).at(t) for t in (0, 10, 15, 20, 99)]
    assert [1.0, 1.0, 2.0, 3.0, 3.0] == [Curve(points, ramps=True).at(t) for t in (0, 10, 15, 20, 99)]


@pytest.mark.parametrize(
    ("ban", "retry_after"),
    [(Ban(), None), (Ban(retry_after=True), 50.0), (Ban(extends=True, retry_after=True), 60.0)],
    ids=["silent", "Retry-After", "extended"],
)
def test_a_ban_follows_several_429s(ban: Ban, retry_after: float | None) -> None:
    """After three 429s in 10 s, every call is rejected for a minute, or for a minute after the last call."""
    server = Server(Endpoint(rate=1.0, burst=1.0, retry_after=False, ban=ban), 1)
    first = [server.call(0.0, trial, 1).kind for trial in range(4)]
    banned = server.call(10.0, 5, 1)

    assert ["ok", *3 * ["rate_limited"]] == first
    assert ("rate_limited", retry_after) == (banned.kind, banned.retry_after)
    assert 1 == server.bans
    assert ("rate_limited" if ban.extends else "ok") == server.call(60.0, 6, 1).kind


def test_429s_far_apart_cause_no_ban() -> None:
    """Only the 429s of the last 10 s count towards a ban."""
    server = Server(Endpoint(cap=0, ban=Ban()), 1)
    for trial in range(20):
        server.call(6.0 * trial, trial, 1)

    assert 0 == server.bans


def test_workers_process_calls_in_order() -> None:
    """A call waits until one of the workers is free."""
    server = Server(Endpoint(workers=2, sigma=0.0, network=0.0), 1)

    assert [2.0, 2.0, 4.0, 4.0, 6.0] == [server.call(0.0, trial, 1).seconds for trial in range(5)]
    assert 2.0 == server.call(10.0, 6, 1).seconds


def test_a_gateway_cools_its_deployments_down() -> None:
    """After a 429 of every deployment, a gateway rejects all calls until a cool-down is over."""
    gateway = cooling_gateway(1, (60, 60), cool_down=20.0)

    def is_accepted(t: float, trial: int) -> bool:
        request = Request(characters=4, input_tokens=1, output_tokens=1, key=(trial, 1))
        return gateway.start(t, request).reply is None

    assert 20 == sum(is_accepted(0.0, trial) for trial in range(40))
    assert not is_accepted(19.0, 41)
    assert is_accepted(20.0, 42)


@pytest.mark.parametrize("baseline", [BEST, FIXED])
def test_a_finite_run_is_compared_with_its_baseline(baseline: Any) -> None:
    """The time of a finite run is divided by that of its baseline, which is run although only ours was asked for."""
    row = Row(name="saturates", endpoint=Endpoint(knee=4, beyond=2.0), slots=16, trials=50, baseline=baseline)
    comparison = compare(row, 1, [OURS])

    assert {OURS, baseline} == set(comparison.results)
    assert comparison.ratio(OURS) == comparison.results[OURS].seconds / comparison.results[baseline].seconds
    assert f"highest {comparison.ratio(OURS):.2f}: saturates" in summary("knees", [comparison], OURS)


def test_rows_can_be_sent_to_other_processes() -> None:
    """Every row survives pickling, so that several processes can share the work."""
    rows = [row for family in FAMILIES.values() for row in family]

    assert [row.name for row in rows] == [row.name for row in pickle.loads(pickle.dumps(rows))]  # noqa: S301  # our own


def test_the_used_share_of_a_provider_is_its_goodput() -> None:
    """A provider that states nothing is used up to its limit, and an initial full bucket does not exceed 100 %."""
    row = next(row for row in FAMILIES["provider-like"] if row.name == "OpenAI, 600 requests")
    result = measure(evolve(row, seconds=120.0), ours, 1)

    assert result.goodput is not None
    assert 80 < result.goodput <= 100


def test_families() -> None:
    """No family is empty, and its names are unique."""
    names = {family: [row.name for row in rows] for family, rows in FAMILIES.items()}

    assert all(names.values())
    assert {} == {family: rows for family, rows in names.items() if len(set(rows)) < len(rows)}
    assert [row.endpoint for row in randoms(7, 3)] == [row.endpoint for row in randoms(7, 51)][:3]
