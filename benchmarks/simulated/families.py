"""Adversarial rows, in families: each family has one kind of difficulty.

Unless a row has other values: 100 slots, 600 s, median latency 2 s (log-normal, sigma 0.5), client timeout 60 s, unlimited
trials.
"""

import random

from attrs import evolve

from benchmarks.simulated.endpoint import Burst, Curve, Endpoint, Poison
from benchmarks.simulated.episodes import EPISODES
from benchmarks.simulated.finite import FINITE
from benchmarks.simulated.provider_like import PROVIDER_LIKE
from benchmarks.simulated.rows import Row

UNLIMITED = Endpoint()
TWENTY = Endpoint(rate=20, burst=20)
NO_RETRY_AFTER = evolve(TWENTY, retry_after=False)
CONSTANT = Endpoint(sigma=0.0)


def _scoring() -> list[Row]:
    """Scoring takes time; a judge has its own endpoint, or shares the task's."""

    def judge(latency: float) -> Endpoint:
        return Endpoint(median=latency)

    finite = [
        Row(name=f"judge {name}", endpoint=UNLIMITED, judge=judge(latency), trials=2000)
        for name, latency in (("same latency", 2.0), ("faster, 0.5 s", 0.5), ("slower, 6 s", 6.0))
    ]
    small = Row(name="judge same latency, 200 cases", endpoint=UNLIMITED, judge=judge(2.0), trials=200)
    return [
        *finite,
        small,
        Row(name="judge shares an unlimited endpoint", endpoint=UNLIMITED, judge="shared", trials=2000),
        Row(name="judge shares a 20/s endpoint", endpoint=TWENTY, judge="shared"),
        Row(name="judge shares a 20/s endpoint, no Retry-After", endpoint=NO_RETRY_AFTER, judge="shared"),
        Row(name="judge limited to 2/s", endpoint=UNLIMITED, judge=Endpoint(rate=2, burst=4), ahead=20),
        Row(
            name="judge limited to 2/s, no Retry-After",
            endpoint=UNLIMITED,
            judge=Endpoint(rate=2, burst=4, retry_after=False),
            ahead=20,
        ),
        Row(name="judge limited to 16 in flight", endpoint=UNLIMITED, judge=Endpoint(cap=16), ahead=20),
        Row(name="task limited to 10/s, judge slower", endpoint=Endpoint(rate=10, burst=20), judge=judge(6.0)),
    ]


def _poisoned() -> list[Row]:
    """Some cases never succeed, whatever the load."""
    kinds = {
        "429 + Retry-After 1": Poison(per_thousand=0, kind="rate_limited", retry_after=1.0),
        "429 + Retry-After 20": Poison(per_thousand=0, kind="rate_limited", retry_after=20.0),
        "429": Poison(per_thousand=0, kind="rate_limited"),
        "503": Poison(per_thousand=0, kind="unavailable"),
        "timeout": Poison(per_thousand=0, kind="hung"),
        "own error": Poison(per_thousand=0, kind="error"),
    }
    return [
        Row(
            name=f"{count} in 1,000 always {name}{suffix}", endpoint=evolve(endpoint, poison=evolve(poison, per_thousand=count))
        )
        for endpoint, suffix in ((UNLIMITED, ""), (TWENTY, ", 20/s"))
        for name, poison in kinds.items()
        for count in (1, 10)
        if not (suffix and count == 10 and name == "own error")
    ]


def _random_429() -> list[Row]:
    """Calls are randomly rate limited, in finite runs; measured against the best fixed limit."""
    return [
        Row(
            name=f"{100 * part:.0f} % 429{'' if wait is None else ' + Retry-After'}, {trials:,} x {latency:g} s, {slots} slots",
            endpoint=Endpoint(
                median=0.9 * latency,
                sigma=0.1 if latency < 1 else 0.5,
                network=0.1 * latency if latency < 1 else 0.03,
                random_429=part,
                random_retry_after=wait,
            ),
            slots=slots,
            trials=trials,
        )
        for wait in (None, 1.0)
        for part in (0.01, 0.05, 0.1, 0.2)
        for latency in (0.02, 0.2, 2.0)
        for slots in (32, 100)
        for trials in (200, 1000, 5000)
    ]


def _bursts() -> list[Row]:
    """For a while, every new call is rate limited."""
    rows = [
        Row(
            name=f"429s for {seconds:.0f} s{'' if wait is None else f' + Retry-After {wait:.0f}'}{suffix}",
            endpoint=evolve(endpoint, bursts=(Burst(start=120, seconds=seconds, kind="rate_limited", retry_after=wait),)),
        )
        for endpoint, suffix in ((UNLIMITED, ""), (TWENTY, ", 20/s"))
        for seconds in (30.0, 180.0)
        for wait in (None, 2.0)
    ]
    each_minute = tuple(Burst(start=45.0 + 60 * k, seconds=5, kind="rate_limited", retry_after=1.0) for k in range(10))
    silent = tuple(evolve(burst, retry_after=None) for burst in each_minute)
    return [
        *rows,
        Row(name="429s for 5 s each minute + Retry-After 1", endpoint=evolve(UNLIMITED, bursts=each_minute)),
        Row(name="429s for 5 s each minute", endpoint=evolve(UNLIMITED, bursts=silent)),
    ]


def _unavailable() -> list[Row]:
    """Quick background 5xx, and real outages."""
    background = [
        Row(name=f"{100 * part:.0f} % background 5xx{suffix}", endpoint=evolve(endpoint, background_5xx=part))
        for endpoint, suffix in ((UNLIMITED, ""), (TWENTY, ", 20/s"), (evolve(UNLIMITED, cap=32), ", cap 32"))
        for part in (0.05, 0.2, 0.4)
    ]
    outages = [
        Row(name=f"outages of {seconds:.0f} s{suffix}", endpoint=evolve(endpoint, brownout_every=150.0, brownout=seconds))
        for endpoint, suffix in ((UNLIMITED, ""), (TWENTY, ", 20/s"))
        for seconds in (5.0, 15.0, 30.0, 60.0)
    ]
    both = evolve(UNLIMITED, background_5xx=0.1, brownout_every=200.0, brownout=30.0)
    return [*background, *outages, Row(name="10 % background 5xx, outages of 30 s", endpoint=both)]


def _own_errors() -> list[Row]:
    """Many cases raise their own error."""
    return [
        Row(
            name=f"{part // 10} % of the cases raise their own error{', at once' if quick else ''}{suffix}",
            endpoint=evolve(endpoint, poison=Poison(per_thousand=part, kind="error", quick=quick)),
        )
        for endpoint, suffix in ((UNLIMITED, ""), (evolve(UNLIMITED, cap=48), ", cap 48"))
        for part in (300, 500)
        for quick in (False, True)
    ]


def _small() -> list[Row]:
    """Small runs without any limit, measured against a fixed limit; and a very large capacity."""
    rows = [
        Row(
            name=f"{trials} cases, {latency:g} s {'constant' if not sigma else 'log-normal'}, {slots} slots",
            endpoint=Endpoint(median=latency, sigma=sigma),
            slots=slots,
            trials=trials,
        )
        for trials in (20, 100)
        for slots in (32, 100)
        for latency in (0.3, 2.0)
        for sigma in (0.0, 0.5)
    ]
    return [
        *rows,
        Row(name="capacity 1,000, 1,000 slots, 120 s", endpoint=UNLIMITED, slots=1000, seconds=120.0),
        Row(name="capacity 5,000, 5,000 slots, 300 s", endpoint=UNLIMITED, slots=5000, seconds=300.0, ahead=3, slow=True),
    ]


def _moved() -> list[Row]:
    """A limit changes during the run."""
    up, down = Curve(((300.0, 3.0),)), Curve(((300.0, 1 / 3),))
    rows: list[Row] = []
    for wait, suffix in ((True, ""), (False, ", no Retry-After")):
        ten, thirty = Endpoint(rate=10, burst=20, retry_after=wait), Endpoint(rate=30, burst=30, retry_after=wait)
        rows += [
            Row(name=f"10/s raised to 30/s{suffix}", endpoint=evolve(ten, rate_curve=up)),
            Row(name=f"30/s lowered to 10/s{suffix}", endpoint=evolve(thirty, rate_curve=down)),
        ]
    return [
        *rows,
        Row(name="16 in flight raised to 48", endpoint=Endpoint(cap=16, cap_curve=up)),
        Row(name="48 in flight lowered to 16", endpoint=Endpoint(cap=48, cap_curve=down)),
        Row(name="30 in flight raised to 90", endpoint=Endpoint(cap=30, cap_curve=up)),
    ]


def _drift() -> list[Row]:
    """Latency changes independently of our load."""
    curves = {
        "doubles at once": Curve(((200.0, 2.0),)),
        "triples at once": Curve(((200.0, 3.0),)),
        "halves at once": Curve(((200.0, 0.5),)),
        "doubles slowly": Curve(((60.0, 1.0), (500.0, 2.0)), ramps=True),
        "triples slowly": Curve(((60.0, 1.0), (500.0, 3.0)), ramps=True),
        "halves slowly": Curve(((60.0, 1.0), (500.0, 0.5)), ramps=True),
        "doubles in the first 20 s": Curve(((0.0, 1.0), (20.0, 2.0)), ramps=True),
        "goes up and down": Curve(tuple((30.0 * k, 1.0 + 0.8 * (k % 2)) for k in range(1, 20)), ramps=True),
    }
    places = ((UNLIMITED, ""), (TWENTY, ", 20/s"), (evolve(UNLIMITED, cap=48), ", cap 48"))
    return [
        Row(name=f"latency {name}{suffix}", endpoint=evolve(endpoint, latency_curve=curve))
        for endpoint, suffix in places
        for name, curve in curves.items()
        if not (suffix and name.startswith("halves"))
    ]


def _overload() -> list[Row]:
    """Overload shows only as timeouts."""
    return [
        Row(name="calls beyond 32 in flight time out", endpoint=Endpoint(knee=32, overload_hangs="call"), seconds=900.0),
        Row(name="calls beyond 13 in flight time out", endpoint=Endpoint(knee=13, overload_hangs="call"), seconds=900.0),
        Row(
            name="calls beyond 32 time out and stay as load", endpoint=Endpoint(knee=32, overload_hangs="server"), seconds=900.0
        ),
        Row(
            name="calls beyond 64 time out and stay as load", endpoint=Endpoint(knee=64, overload_hangs="server"), seconds=900.0
        ),
        Row(name="2 workers and a queue, 60 s timeout", endpoint=Endpoint(knee=2, beyond=1.0), seconds=900.0),
        Row(name="8 workers, latency with the cube of the load", endpoint=Endpoint(knee=8, beyond=3.0), seconds=900.0),
    ]


def _hung() -> list[Row]:
    """Hung connections with the default timeout of 600 s; more slots than the endpoint needs."""
    holes = [
        Row(
            name=f"black hole of {seconds:.0f} s{suffix}",
            endpoint=evolve(endpoint, bursts=(Burst(start=150, seconds=seconds, kind="hung"),)),
            slots=slots,
            timeout=600.0,
            seconds=900.0,
            has_capacity=slots > 100,
        )
        for endpoint, suffix, slots in (
            (TWENTY, ", 20/s, 1,000 slots", 1000),
            (evolve(UNLIMITED, cap=48), ", cap 48, 1,000 slots", 1000),
            (TWENTY, ", 20/s, 100 slots", 100),
        )
        for seconds in (60.0, 120.0)
    ]
    hangs = [
        Row(
            name=f"{100 * part:g} % of the calls hang{suffix}",
            endpoint=evolve(endpoint, hangs=part),
            slots=slots,
            timeout=600.0,
            seconds=900.0,
        )
        for endpoint, suffix, slots in ((UNLIMITED, "", 100), (TWENTY, ", 20/s, 1,000 slots", 1000))
        for part in (0.003, 0.01)
    ]
    return [*holes, *hangs]


def _retry_after() -> list[Row]:
    """Retry-After is far too long."""
    return [
        Row(
            name=f"{rate}/s, every 429 with Retry-After: {wait:.0f}",
            endpoint=Endpoint(rate=rate, burst=burst, retry_after=wait),
        )
        for rate, burst, wait in ((10, 20, 60.0), (30, 30, 60.0), (10, 20, 15.0), (2, 10, 60.0))
    ]


def _tenants() -> list[Row]:
    """Other clients use a varying share of the limit; several runs share an endpoint."""

    def square(period: float, low: float) -> Curve:
        return Curve(tuple((period * k, low if k % 2 else 1.0) for k in range(1, int(600 / period) + 1)))

    def walking(seed: int) -> Curve:
        chance, factor, points = random.Random(seed), 0.6, list[tuple[float, float]]()
        for k in range(60):
            factor = min(max(factor * (0.75 + 0.55 * chance.random()), 0.2), 1.0)
            points.append((10.0 * k, factor))
        return Curve(tuple(points))

    rows: list[Row] = []
    for wait, suffix in ((True, ""), (False, ", no Retry-After")):
        thirty = Endpoint(rate=30, burst=30, retry_after=wait)
        rows += [
            Row(name=f"30/s and 8/s in turn, {p:.0f} s{suffix}", endpoint=evolve(thirty, rate_curve=square(p, 0.25)))
            for p in (20, 60, 150)
        ]
        rows += [
            Row(name=f"random walk of 6-30/s, no. {k}{suffix}", endpoint=evolve(thirty, rate_curve=walking(k))) for k in (1, 2)
        ]
    cap = Endpoint(cap=64)
    rows.append(Row(name="64 and 16 in flight in turn, 60 s", endpoint=evolve(cap, cap_curve=square(60, 0.25))))
    for runs in (2, 4):
        rows.append(Row(name=f"{runs} runs on 20/s", endpoint=TWENTY, runs=runs))
        rows.append(Row(name=f"{runs} runs on 20/s, no Retry-After", endpoint=NO_RETRY_AFTER, runs=runs))
        rows.append(Row(name=f"{runs} runs on 64 in flight", endpoint=cap, runs=runs))
    return rows


def _knees() -> list[Row]:
    """Servers that saturate (vLLM: throughput stays, latency grows with load) and that collapse (throughput falls)."""
    return [
        Row(
            name=f"{name} at {knee}",
            endpoint=Endpoint(knee=knee, beyond=power, median=2.0, sigma=sigma),
            slots=400 if knee > 100 else 100,
        )
        for name, power, sigma in (("saturates", 1.0, 0.5), ("collapses", 2.0, 0.5), ("collapses (constant latency)", 2.0, 0.0))
        for knee in (4, 13, 32, 128)
    ]


def _tokens() -> list[Row]:
    """Token buckets with heavy-tailed costs: whether a call is rate limited depends on its size."""
    return [
        Row(
            name=f"{rate}/s, cost sigma {sigma:g}, burst {seconds} s{'' if wait else ', no Retry-After'}",
            endpoint=Endpoint(rate=rate, burst=rate * seconds, cost_sigma=sigma, retry_after=wait),
        )
        for wait in (True, False)
        for rate, seconds in ((20, 3), (5, 20))
        for sigma in (1.0, 1.5)
    ]


def _windows() -> list[Row]:
    """Fixed windows: a number of calls in each, and none until the next."""
    return [
        Row(
            name=f"{count} calls in {window:.0f} s{'' if wait else ', no Retry-After'}",
            endpoint=Endpoint(rate=count / window, window=window, retry_after=wait),
        )
        for wait in (True, False)
        for count, window in ((600, 60.0), (60, 60.0), (1800, 60.0), (100, 10.0))
    ]


FAMILIES: dict[str, list[Row]] = {
    "scoring": _scoring(),
    "poisoned": _poisoned(),
    "random-429": _random_429(),
    "bursts": _bursts(),
    "unavailable": _unavailable(),
    "own-errors": _own_errors(),
    "small": _small(),
    "moved": _moved(),
    "drift": _drift(),
    "overload": _overload(),
    "hung": _hung(),
    "retry-after": _retry_after(),
    "tenants": [*_tenants(), *EPISODES["tenants"]],
    "knees": _knees(),
    "tokens": _tokens(),
    "windows": _windows(),
    **{name: rows for name, rows in EPISODES.items() if name != "tenants"},
    "provider-like": PROVIDER_LIKE,
    **FINITE,
}
"""Family → its rows. The ordinary endpoints (A-X, and random ones from a seed) are in `scenarios`."""
