"""Rows on which an endpoint rejects everything for a while, several times: bursts, blips, cool-downs, bans, other tenants.

What a policy learned in the first episode must not spoil the rest of the run. Unless a row has other values: 100 slots,
600 s, median latency 2 s (log-normal, sigma 0.5), unlimited trials. The capacity is what the endpoint would serve outside the
bursts; bans and cool-downs are the client's own doing, so they are not subtracted.
"""

import random

from attrs import evolve

from benchmarks.simulated.endpoint import Ban, Burst, Curve, Endpoint
from benchmarks.simulated.rows import Row

SECONDS = 600.0
LEFT = 0.02
"""Part of a limit that remains while other tenants use all of it; with 0, Retry-After would be endless."""
PLACES = {
    "": Endpoint(),
    ", 20/s": Endpoint(rate=20, burst=20),
    ", 20/s, no Retry-After": Endpoint(rate=20, burst=20, retry_after=False),
    ", 48 in flight": Endpoint(cap=48),
}
"""Suffix of a name → endpoint."""


def _second_bursts() -> list[Row]:
    """Two or three bursts of 429s, far apart."""
    times = {
        "30 s at 100 s and 350 s": ((100.0, 30.0), (350.0, 30.0)),
        "10 s at 60 s, 240 s and 450 s": ((60.0, 10.0), (240.0, 10.0), (450.0, 10.0)),
        "60 s at 90 s, 5 s at 400 s": ((90.0, 60.0), (400.0, 5.0)),
    }
    return [
        Row(
            name=f"429s for {name}{_with(wait)}{suffix}",
            endpoint=evolve(
                endpoint,
                bursts=tuple(Burst(start=start, seconds=s, kind="rate_limited", retry_after=wait) for start, s in bursts),
            ),
        )
        for suffix, endpoint in PLACES.items()
        for name, bursts in times.items()
        for wait in (None, 2.0)
        if not (wait is not None and suffix.endswith("no Retry-After"))
    ]


def _blips() -> list[Row]:
    """429s for 1 to 3 s, at random times, about every 40 s or every 100 s."""
    return [
        Row(name=f"blips every {mean:.0f} s{_with(wait)}{suffix}", endpoint=evolve(endpoint, bursts=_random_blips(mean, wait)))
        for suffix, endpoint in PLACES.items()
        for mean in (40.0, 100.0)
        for wait in (None, 1.0)
        if not (wait is not None and suffix.endswith("no Retry-After"))
    ]


def _random_blips(mean: float, wait: float | None) -> tuple[Burst, ...]:
    chance = random.Random(round(mean))
    bursts, start = list[Burst](), 10.0
    while (start := start + 5.0 + chance.expovariate(1 / (mean - 5.0))) < SECONDS:
        bursts.append(Burst(start=start, seconds=chance.uniform(1.0, 3.0), kind="rate_limited", retry_after=wait))
    return tuple(bursts)


def _cool_downs() -> list[Row]:
    """A gateway that rejects everything for a while after three 429s in 5 s."""
    return [
        Row(
            name=f"cool-down of {seconds:.0f} s{', Retry-After' if wait else ''}: {name}",
            endpoint=evolve(endpoint, ban=Ban(after=3, within=5.0, seconds=seconds, retry_after=wait)),
        )
        for name, endpoint in {
            "5/s": Endpoint(rate=5, burst=10, retry_after=False),
            "20/s": Endpoint(rate=20, burst=40, retry_after=False),
            "16 in flight": Endpoint(cap=16),
            "48 in flight": Endpoint(cap=48),
        }.items()
        for seconds in (5.0, 30.0)
        for wait in (False, True)
    ]


def _bans() -> list[Row]:
    """An endpoint without headers that bans a client for a while after some 429s in 10 s."""
    bans = {
        "60 s after 3": Ban(),
        "60 s after 3, Retry-After": Ban(retry_after=True),
        "60 s after 3, extended": Ban(extends=True),
        "60 s after 5": Ban(after=5),
        "30 s after 3": Ban(seconds=30.0),
        "30 s after 5, Retry-After": Ban(after=5, seconds=30.0, retry_after=True),
    }
    return [
        Row(
            name=f"ban of {name}: {rate}/s, burst {rate * seconds}",
            endpoint=Endpoint(rate=rate, burst=rate * seconds, retry_after=False, ban=ban),
            slots=200 if rate > 40 else 100,
            has_capacity=not ban.extends,  # A client that asks again before its end is never let in.
        )
        for name, ban in bans.items()
        for rate, seconds in ((1, 5), (5, 1), (10, 2), (20, 10), (50, 1))
    ]


def _tenants() -> list[Row]:
    """Other tenants use all of a limit for 5 to 20 s, every 30 to 120 s at random."""
    rows = [
        Row(
            name=f"bursts of tenants, no. {number}: {name}{suffix}",
            endpoint=evolve(endpoint, retry_after=wait, rate_curve=_random_tenants(number)),
        )
        for name, endpoint in {
            "10/s": Endpoint(rate=10, burst=10),
            "30/s": Endpoint(rate=30, burst=30),
            "30/s, burst 300": Endpoint(rate=30, burst=300),
        }.items()
        for wait, suffix in ((True, ""), (False, ", no Retry-After"))
        for number in (1, 2)
    ]
    cap = Endpoint(cap=48, cap_curve=_random_tenants(3))
    return [*rows, Row(name="bursts of tenants, no. 3: 48 in flight", endpoint=cap)]


def _random_tenants(number: int) -> Curve:
    chance = random.Random(number)
    points, start = list[tuple[float, float]](), 0.0
    while (start := start + chance.uniform(30.0, 120.0)) < SECONDS:
        end = start + chance.uniform(5.0, 20.0)
        points += [(start, LEFT), (end, 1.0)]
        start = end
    return Curve(tuple(points))


def _with(wait: float | None) -> str:
    return "" if wait is None else f" + Retry-After {wait:.0f}"


EPISODES: dict[str, list[Row]] = {
    "second-bursts": _second_bursts(),
    "blips": _blips(),
    "cool-downs": _cool_downs(),
    "bans": _bans(),
    "tenants": _tenants(),
}
"""Family → its rows; other tenants are also in `families`."""
