"""Ordinary endpoints: scenarios A-X, and random ones from a seed.

All of A-X have a median latency of 2 s with a log-normal spread of 0.5 (mean 2.3 s), attempts time out after 60 s, and a
429 takes 0.15 s. Buckets start full. Retry-After is in whole seconds, at least 1.

    A  10/s, burst 20                       F  100/s, burst 100
    B  the same without Retry-After         G  0.5/s, burst 2
    C  32 in flight                         H  10/s, a minute's burst, rate-limit headers
    D  A, outages of 30 s, 0.3 % hang       L  A, rate-limited calls are taken from the quota
    E  self-hosted: square law beyond 32    X  A, C, D and E (knee 28) together
    S  20/s without Retry-After, and 1 % random 429s
    T  C, and 1 % random 429s

A policy gets 1,000 slots, far too many, and has to find the right number. Random 429s are not counted as rate limited.
"""

import math
import random

from attrs import frozen

from benchmarks.simulated.endpoint import Endpoint
from benchmarks.simulated.rows import Row

SLOTS = 1000


@frozen(kw_only=True)
class Required:
    """Required figures of ours, in percent."""

    goodput: float = 92.0
    """Minimum share of what the endpoint could deliver while it was available."""
    rate_limited: float = 1.0
    """Maximum calls that met a limit, per completed trial."""
    unavailable: float = 4.0
    """Maximum calls that failed with a 5xx or timed out, per completed trial."""


SCENARIOS: dict[str, tuple[Endpoint, Required]] = {
    "A": (Endpoint(rate=10, burst=20), Required()),
    "B": (Endpoint(rate=10, burst=20, retry_after=False), Required()),
    "C": (Endpoint(cap=32), Required()),
    "D": (Endpoint(rate=10, burst=20, brownout_every=300, hangs=0.003), Required()),
    "E": (Endpoint(knee=32), Required(goodput=75.0)),
    "F": (Endpoint(rate=100, burst=100), Required()),
    "G": (Endpoint(rate=0.5, burst=2), Required(rate_limited=2.0)),
    "H": (Endpoint(rate=10, burst=600), Required()),
    "L": (Endpoint(rate=10, burst=20, burns=True), Required()),
    "X": (Endpoint(rate=10, burst=20, cap=32, knee=28, brownout_every=300, hangs=0.003), Required()),
    "S": (Endpoint(rate=20, burst=20, retry_after=False, random_429=0.01), Required(goodput=85.0, rate_limited=2.0)),
    "T": (Endpoint(cap=32, random_429=0.01), Required()),
}


def lettered(seconds: float = 1200.0) -> list[Row]:
    """Return A-X as rows; as many trials are open as there are slots."""
    return [
        Row(name=name, endpoint=endpoint, slots=SLOTS, ahead=1, seconds=seconds) for name, (endpoint, _) in SCENARIOS.items()
    ]


def randoms(seed: int, count: int = 51, seconds: float = 600.0) -> list[Row]:
    """Return random endpoints as rows. Use other seeds for development than for the final check."""
    chance = random.Random(seed)
    return [_row(k, random_endpoint(chance), seconds) for k in range(1, count + 1)]


def _row(k: int, e: Endpoint, seconds: float) -> Row:
    words = [f"random {k}:"]
    if e.rate is not None:
        words.append(f"{e.rate:.3g}/s" + (f" in {e.window:.0f} s windows" if e.window else f" burst {e.burst:.0f}"))
        words += [] if e.retry_after else ["no RA"]
        words += ["burns"] if e.burns else []
        words += [f"cost {e.cost_sigma:.1f}"] if e.cost_sigma else []
    words += [f"cap {e.cap}"] if e.cap else []
    words += [f"knee {e.knee}^{e.beyond:g}"] if e.knee else []
    words.append(f"{e.median:.1f} s")
    words += [f"outages {e.brownout:.0f}/{e.brownout_every:.0f} s"] if e.brownout_every else []
    words += [f"hangs {100 * e.hangs:.1f} %"] if e.hangs else []
    words += [f"5xx {100 * e.background_5xx:.0f} %"] if e.background_5xx else []
    return Row(name=" ".join(words), endpoint=e, slots=SLOTS, seconds=seconds)


def random_endpoint(chance: random.Random) -> Endpoint:
    """Return a random endpoint."""

    def log_uniform(low: float, high: float) -> float:
        return low * math.exp(chance.random() * math.log(high / low))

    kinds = chance.choice(["rate", "rate", "rate", "cap", "knee", "rate cap", "rate knee"]).split()
    rate = log_uniform(0.5, 150) if "rate" in kinds else None
    burst = max(1.0, rate * log_uniform(0.5, 20)) if rate else 0.0
    window = chance.choice([10.0, 60.0]) if rate and rate > 2 and chance.random() < 0.1 else None
    return Endpoint(
        rate=rate,
        burst=burst,
        window=window,
        cost_sigma=chance.uniform(0.5, 1.2) if burst >= 20 and window is None and chance.random() < 0.25 else 0.0,
        retry_after=chance.random() < 0.6,
        burns=window is None and chance.random() < 0.2,
        cap=round(log_uniform(4, 200)) if "cap" in kinds else None,
        knee=round(log_uniform(8, 128)) if "knee" in kinds else None,
        beyond=chance.choice([1.0, 2.0]),
        median=log_uniform(0.4, 6),
        sigma=chance.uniform(0.3, 0.9),
        brownout_every=chance.uniform(200, 600) if chance.random() < 0.4 else None,
        brownout=log_uniform(5, 60),
        hangs=chance.choice([0.0, 0.0, 0.001, 0.003]),
        background_5xx=chance.choice([0.0, 0.0, 0.0, 0.01, 0.02]),
    )
