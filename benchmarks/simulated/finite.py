"""Finite runs, each measured by its time divided by that of `-s policy=fixed` with the same slots.

Where the fixed limit loses trials, its time says nothing: such rows are shown, but not in the figures.
"""

from benchmarks.simulated.endpoint import Burst, Endpoint, Poison
from benchmarks.simulated.rows import Row

MINUTES = 60
"""Minutes for which a burst of 429s each minute goes on: longer than any of these runs takes."""


def _poison() -> list[Row]:
    """A part of the cases never succeeds, whatever the load: no sign of an outage."""

    def rows(name: str, poison: Poison, trials: int, timeout: float = 60.0) -> list[Row]:
        return [
            Row(
                name=f"{share // 10} % of {trials} {name}, {latency:g} s, {slots} slots",
                endpoint=Endpoint(median=latency, poison=_with_share(poison, share)),
                slots=slots,
                trials=trials,
                timeout=timeout * latency if poison.kind == "hung" else timeout,
                baseline="fixed",
            )
            for share in (200, 500, 800)
            for latency in (0.5, 2.0, 6.0)
            for slots in (100, 32)
        ]

    own = Poison(per_thousand=0, kind="error")
    return [
        *rows("always 500", Poison(per_thousand=0, kind="unavailable"), 200),
        *rows("always 503 + Retry-After 1", Poison(per_thousand=0, kind="unavailable", retry_after=1.0), 200),
        *rows("always time out", Poison(per_thousand=0, kind="hung"), 200, timeout=5.0),
        *rows("raise their own error", own, 200),
        *rows("raise their own error", own, 1000),
        *rows("raise their own error at once", Poison(per_thousand=0, kind="error", quick=True), 200),
    ]


def _with_share(poison: Poison, per_thousand: int) -> Poison:
    return Poison(per_thousand=per_thousand, kind=poison.kind, retry_after=poison.retry_after, quick=poison.quick)


def _small_runs() -> list[Row]:
    """Runs of 20 to 1,000 trials on endpoints of all kinds."""
    minutes = tuple(Burst(start=20.0 + 60 * k, seconds=5, kind="rate_limited") for k in range(MINUTES))
    kinds: list[tuple[str, dict[str, object]]] = [
        ("no limit", {}),
        ("1 % random 429s", {"random_429": 0.01}),
        ("5 % random 429s", {"random_429": 0.05}),
        ("5/s", {"rate": 5, "burst": 10}),
        ("20/s", {"rate": 20, "burst": 20}),
        ("100/s, no Retry-After", {"rate": 100, "burst": 100, "retry_after": False}),
        ("16 in flight", {"cap": 16}),
        ("64 in flight", {"cap": 64}),
        ("1 % 5xx", {"background_5xx": 0.01}),
        ("5 % 5xx", {"background_5xx": 0.05}),
        ("429s for 5 s of each minute", {"bursts": minutes}),
        ("saturates at 8", {"knee": 8, "beyond": 1.0}),
    ]
    latencies = ((0.05, 0.5), (0.3, 0.0), (2.0, 0.5), (10.0, 0.8))
    return [
        Row(
            name=f"{kind}: {trials} x {latency:g} s, {slots} slots",
            endpoint=Endpoint(median=latency, sigma=sigma, **options),  # type: ignore[arg-type]  # fields of an endpoint
            slots=slots,
            trials=trials,
            timeout=600.0,
            baseline="fixed",
        )
        for kind, options in kinds
        for trials in (20, 50, 100, 200, 500, 1000)
        for slots in (32, 100)
        for latency, sigma in latencies
    ]


FINITE: dict[str, list[Row]] = {
    "poison": _poison(),
    "small-runs": _small_runs(),
}
"""Family → its rows."""
