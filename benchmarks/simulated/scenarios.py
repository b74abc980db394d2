"""The endpoints that a policy has to cope with, and what is required of ours on each.

All have a median latency of 2 s with a log-normal spread of 0.5 (mean 2.3 s), attempts time out after 60 s, and a
refusal takes 0.15 s to come back. A bucket is full at first. Retry-After is in whole seconds, at least 1.

    A  10/s, burst 20                       F  100/s, burst 100
    B  the same without Retry-After         G  0.5/s, burst 2
    C  32 in flight                         H  10/s, a minute's burst, rate-limit headers
    D  A, brown-outs of 30 s, 0.3 % hang    L  A, refused calls are taken from the quota
    E  self-hosted: square law beyond 32    X  A, C, D and E (knee 28) at once
    S  20/s without Retry-After, and 1 % of the calls refused by chance
    T  C, and 1 % of the calls refused by chance

What is refused by chance counts neither as refused nor as possible to avoid. `STRAYS` are endpoints that refuse for no
other reason, with calls so short that a policy which takes each refusal for a lesson never finishes.
"""

import math
import random

from attrs import frozen

from benchmarks.simulated.endpoint import Endpoint


@frozen(kw_only=True)
class Required:
    """What ours must reach, in per cent."""

    goodput: float = 92.0
    """Of what the endpoint could deliver while it was well; at least."""
    refused: float = 1.0
    """Calls refused by a limit, per completed trial; at most."""
    ill: float = 4.0
    """Calls that met illness, per completed trial; at most."""


SCENARIOS: dict[str, tuple[Endpoint, Required]] = {
    "A": (Endpoint(rate=10, burst=20), Required()),
    "B": (Endpoint(rate=10, burst=20, retry_after=False), Required()),
    "C": (Endpoint(cap=32), Required()),
    "D": (Endpoint(rate=10, burst=20, brownout_every=300, hangs=0.003), Required()),
    "E": (Endpoint(knee=32), Required(goodput=75.0)),
    "F": (Endpoint(rate=100, burst=100), Required()),
    "G": (Endpoint(rate=0.5, burst=2), Required(refused=2.0)),
    "H": (Endpoint(rate=10, burst=600, headers=True), Required(refused=0.0)),
    "L": (Endpoint(rate=10, burst=20, burns=True), Required()),
    "X": (Endpoint(rate=10, burst=20, cap=32, knee=28, brownout_every=300, hangs=0.003), Required()),
    "S": (Endpoint(rate=20, burst=20, retry_after=False, strays=0.01), Required(goodput=85.0, refused=2.0)),
    "T": (Endpoint(cap=32, strays=0.01), Required()),
}

STRAYS: dict[str, tuple[Endpoint, int]] = {
    f"strays {100 * strays:.1f} %, {slots} x {1000 * seconds:.0f} ms": (
        Endpoint(median=0.9 * seconds, sigma=0.1, network=0.1 * seconds, strays=strays),
        slots,
    )
    for seconds in (0.02, 0.05, 2.0)
    for slots in (10, 50, 200)
    for strays in (0.002, 0.01, 0.03)
}
"""Name → endpoint and slots."""


def random_endpoint(chance: random.Random) -> Endpoint:
    """Roll an endpoint. Nothing is tuned on these, and nothing may be."""

    def log_uniform(low: float, high: float) -> float:
        return low * math.exp(chance.random() * math.log(high / low))

    kinds = chance.choice(["rate", "rate", "rate", "cap", "knee", "rate cap", "rate knee"]).split()
    rate = log_uniform(0.5, 150) if "rate" in kinds else None
    return Endpoint(
        rate=rate,
        burst=max(1.0, rate * log_uniform(0.5, 20)) if rate else 0.0,
        retry_after=chance.random() < 0.6,
        burns=chance.random() < 0.2,
        cap=round(log_uniform(4, 200)) if "cap" in kinds else None,
        knee=round(log_uniform(8, 128)) if "knee" in kinds else None,
        median=log_uniform(0.4, 6),
        sigma=chance.uniform(0.3, 0.9),
        brownout_every=chance.uniform(200, 600) if chance.random() < 0.4 else None,
        brownout=log_uniform(5, 60),
        hangs=chance.choice([0.0, 0.0, 0.001, 0.003]),
    )
