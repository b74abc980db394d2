"""The maximum that an endpoint can deliver to a client with a number of slots: the 100 % of the tables.

It is computed, not measured: the tightest of the rate limit, the in-flight limit or knee, and the client's own slots, less
the calls that fail at random and the places that hung calls occupy, second by second.
"""

import heapq

from benchmarks.simulated.endpoint import TIMEOUT, Curve, Endpoint

ERRORS, TIMEOUTS = 5, 3
"""Attempts that a poisoned case makes before it fails. A rate-limited attempt takes almost no time in a slot."""


def capacity(endpoint: Endpoint, seconds: float, *, slots: int, timeout: float = TIMEOUT, calls: int = 1) -> float:
    """Return the trials that can be completed in a run; a trial takes `calls` calls to this endpoint (task and judge).

    If the row counts work (see `rows`), return the calls that can be served, including those with an error of their own.
    """
    e = endpoint
    ok = (1 - e.hangs) * (1 - e.background_5xx)
    """Fraction of accepted calls that succeed."""
    poison = e.poison
    swallowed = poison.odds if poison is not None and poison.kind == "hung" else 0.0
    quick = ERRORS * e.reply() * poison.odds if poison is not None and (poison.kind == "unavailable" or poison.quick) else 0.0
    failed = quick + e.reply() * (e.random_429 / (1 - e.random_429) + e.background_5xx / (1 - e.background_5xx))
    """Seconds in a slot of the client, but not of the server, for each call that succeeds."""
    delivered = hung = 0.0
    holding: list[tuple[float, float]] = []
    """(End, number of places) that hung calls occupy."""
    for second in range(int(seconds)):
        t = second + 0.5
        while holding and holding[0][0] <= t:
            hung -= heapq.heappop(holding)[1]
        burst = e.burst_at(t)
        if burst is not None and burst.start <= t:
            continue
        served = (e.mean() - e.network) * _at(e.latency_curve, t) + e.network
        bounds = [max(slots - hung, 0.0) / (served + failed)]
        if e.rate is not None:
            bounds.append(e.rate * _at(e.rate_curve, t) * ok)
        if e.cap is not None:
            bounds.append(max(e.cap * _at(e.cap_curve, t) - hung, 0.0) / served)
        if e.workers is not None:
            bounds.append(e.workers / served)
        if e.knee is not None:
            bounds.append(max(e.knee - hung, 0.0) / served)
        rate = min(bounds)
        delivered += rate / calls
        for part, until in ((e.hangs / ok, t + timeout), (swallowed, t + TIMEOUTS * timeout)):
            if part:
                heapq.heappush(holding, (until, rate * part))
                hung += rate * part
    return delivered


def _at(curve: Curve | None, t: float) -> float:
    return 1.0 if curve is None else curve.at(t)
