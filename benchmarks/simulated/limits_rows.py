"""Rows of `python -m benchmarks limits`: a provider, a workload, what is known of its limits, and the required figures.

Unless a row has other values: 100 slots, 600 s, a median latency of 2 s (log-normal, sigma 0.5), 30 ms of network each way. The
headers of a provider are computed at admission in one row, at the reply in the next.
"""

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

from attrs import evolve, field, frozen

from benchmarks.simulated import altered
from benchmarks.simulated.altered import Altered, Banning, Gateway, Provider
from benchmarks.simulated.endpoint import Curve, Endpoint
from benchmarks.simulated.endpoint import Server as SimulatedEndpoint
from benchmarks.simulated.executor import Lane, Timeline
from benchmarks.simulated.limited import LimitedRun, Workload
from benchmarks.simulated.meter import DAY, Limit
from benchmarks.simulated.providers import Anthropic, Azure, Gemini, Groq, Mistral, OpenAI, Server, per_minute
from evaljournal.runner.concurrency.limits import Limits
from evaljournal.runner.concurrency.policy import Policy

Known = Literal["advertised", "declared", "nothing"]
MakeProvider = Callable[[int], Provider]
"""Seed → provider."""
SETTLED = 5.0
"""Seconds after which the used share is required."""
AHEAD = 3
"""Trials that may be open at the same time, per slot: a client that ignores Retry-After does not flood without end."""


@frozen(kw_only=True)
class Required:
    """The required figures of a row, in percent."""

    rate_limited: float = 0.5
    """429s per accepted call, at most."""
    used: float = 97.0
    """Used share after 5 s, and in the second half, at least."""
    first_minute: float = 90.0
    """Used share in the first minute, at least; 0: not required."""
    bans: int = 0
    """At most."""
    smallest_share: float = 0.0
    """Of the calls of the run with the most, at least: for runs at the same time."""


@frozen(kw_only=True)
class LimitsRow:
    """A provider and a workload."""

    name: str
    provider: MakeProvider
    required: Required | None = field(factory=Required)
    """None: only shown, and the run must not stall."""
    known: Known = "advertised"
    declared: Mapping[str, float] = field(factory=dict[str, float])
    """Declared limits by option, if they are known."""
    workload: Workload = field(factory=Workload)
    slots: int = 100
    seconds: float = 600.0
    runs: int = 1
    """Runs at the same time, each with its own limits and its own policy: several processes."""
    network: float = 0.03
    network_sigma: float = 0.5


@frozen(kw_only=True)
class LimitsResult:
    """The result of a row, in percent."""

    rate_limited: float
    """429s per accepted call."""
    used: float
    """Used share after 5 s."""
    first_minute: float
    """Used share in the first minute."""
    second_half: float
    """Used share in the second half, where a bucket that was full at the start no longer counts."""
    completed: int
    lost: int
    """Trials that failed."""
    bans: int
    smallest_share: float
    """Calls of the run with the fewest, divided by those of the run with the most."""


MakePolicy = Callable[[int], Policy]
"""Slots → policy."""


def measure(row: LimitsRow, make_policy: MakePolicy, seed: int, *, use_limits: bool = True) -> LimitsResult:
    """Run a row with a policy, behind the limits that the row knows or without any."""
    timeline, provider, runs = Timeline(), row.provider(seed), list[LimitedRun]()
    for k in range(row.runs):
        limits = Limits(provider.host) if use_limits and row.known != "nothing" else None
        if limits is not None and row.known == "declared":
            limits.declare(row.declared, 0.0)
        run = LimitedRun(
            timeline,
            Lane(make_policy(row.slots), SimulatedEndpoint(Endpoint(), seed)),
            seed,
            timeout=600.0,
            ahead=AHEAD,
            first=10_000_000 * k,
            provider=provider,
            workload=row.workload,
            limits=limits,
            reads_headers=row.known == "advertised",
            network=row.network,
            network_sigma=row.network_sigma,
        )
        run.start()
        runs.append(run)
    timeline.run(row.seconds)
    calls = [run.tally.work for run in runs]
    return LimitsResult(
        rate_limited=100 * provider.rejected / max(provider.accepted, 1),
        used=100 * provider.used_share(SETTLED, row.seconds),
        first_minute=100 * provider.used_share(0.0, 60.0),
        second_half=100 * provider.used_share(row.seconds / 2, row.seconds),
        completed=sum(run.tally.completed for run in runs),
        lost=sum(run.tally.failed for run in runs),
        bans=provider.bans,
        smallest_share=100 * min(calls) / max(*calls, 1),
    )


def _make(server: type[Server], limits: tuple[Limit, ...], **options: object) -> MakeProvider:
    return lambda seed: server(limits=limits, seed=seed, **options)  # type: ignore[arg-type]  # as each class declares


def _altered(provider: MakeProvider, alter: Callable[[], altered.Alter]) -> MakeProvider:
    def make(seed: int) -> Provider:
        server = provider(seed)
        assert isinstance(server, Server)
        return Altered(server, alter())

    return make


def _banning(provider: MakeProvider) -> MakeProvider:
    def make(seed: int) -> Provider:
        server = provider(seed)
        assert isinstance(server, Server)
        return Banning(server)

    return make


def _varying(seed: int) -> Curve:
    """Return the share of another tenant: between a quarter and three quarters, another one every 10 s."""
    chance = random.Random(seed)
    return Curve(tuple((10.0 * k, 0.25 + 0.5 * chance.random()) for k in range(60)))


BURSTS = Curve(((0.0, 0.0), (100.0, 6.0), (115.0, 0.0), (400.0, 6.0), (415.0, 0.0)))
"""Another tenant that uses nothing, except for two bursts, each of which empties a bucket of a minute."""


def _shared(server: type[Server], limits: tuple[Limit, ...], **options: object) -> MakeProvider:
    return lambda seed: server(limits=limits, seed=seed, others=_varying(seed), **options)  # type: ignore[arg-type]


def _window(kind: Literal["requests", "tokens"], amount: float, window: float) -> Limit:
    """Return a fixed window that the headers state."""
    return Limit(kind=kind, amount=amount, window=window, period=window)


class UnknownHost(OpenAI):
    """OpenAI behind a proxy."""

    host = ""


TWO = per_minute(requests=500, tokens=200_000)
REQUESTS = per_minute(requests=600, tokens=2_000_000)
PER_SECOND = Limit(kind="requests", amount=600, holds=10, is_advertised=False)
"""600 per minute, enforced as 10 per second."""
ONE_PER_SECOND = Limit(kind="requests", amount=60, holds=1)
"""60 per minute, enforced as one per second."""
MISTRAL = Limit(kind="tokens", amount=500_000, period=60.0, phase=25.0)
GROQ = (
    Limit(kind="requests", amount=14_400, window=DAY),
    Limit(kind="requests", amount=1000, is_advertised=False),
    Limit(kind="tokens", amount=300_000),
)
TIER_2 = per_minute(requests=1000, input_tokens=450_000, output_tokens=90_000)
WIDE = Workload(input_tokens=(100, 8000), output_tokens=(50, 1000), max_tokens=1000)
SHORT = Workload(input_tokens=(100, 300), output_tokens=(20, 100), max_tokens=100)
ADMISSION: dict[str, object] = {"headers_at": "admission"}


def _advertised() -> list[LimitsRow]:
    """Providers that state their limits on every reply."""
    row = LimitsRow
    day_of_requests = (Limit(kind="requests", amount=10_000, window=DAY), *per_minute(tokens=200_000))
    project = per_minute(requests=5000, tokens=2_000_000, project_tokens=200_000)
    large = per_minute(requests=6000, tokens=30_000_000)
    return [
        row(name="OpenAI, 600 requests", provider=_make(OpenAI, REQUESTS)),
        row(name="OpenAI, 600 requests, at admission", provider=_make(OpenAI, REQUESTS, **ADMISSION)),
        row(name="OpenAI, 200k tokens", provider=_make(OpenAI, TWO)),
        row(name="OpenAI, 200k tokens, at admission", provider=_make(OpenAI, TWO, **ADMISSION)),
        row(name="OpenAI, 200k tokens, max_tokens x 4", provider=_make(OpenAI, TWO), workload=Workload(max_tokens=1600)),
        row(name="OpenAI, no max_tokens", provider=_make(OpenAI, TWO), workload=Workload(max_tokens=None)),
        row(
            name="OpenAI, 200k tokens, no Retry-After",
            provider=_altered(_make(OpenAI, TWO), lambda: altered.without_retry_after),
        ),
        row(name="OpenAI, 60 requests", provider=_make(OpenAI, per_minute(requests=60, tokens=1_000_000))),
        row(name="OpenAI, 6,000 requests", provider=_make(OpenAI, large), slots=500, seconds=120.0),
        row(name="OpenAI, enforced per second", provider=_make(OpenAI, (*REQUESTS, PER_SECOND))),
        row(name="OpenAI, requests of the day stated", provider=_make(OpenAI, day_of_requests)),
        row(name="OpenAI behind an unknown host", provider=_make(UnknownHost, TWO)),
        row(name="OpenAI, tokens of a project", provider=_make(OpenAI, project)),
        row(name="OpenAI, heavy-tailed latency", provider=_make(OpenAI, TWO, tail=0.2)),
        row(name="OpenAI, replies out of order", provider=_make(OpenAI, TWO), network=0.4, network_sigma=1.0),
        row(
            name="OpenAI, at admission, out of order", provider=_make(OpenAI, TWO, **ADMISSION), network=0.4, network_sigma=1.0
        ),
        row(
            name="OpenAI, latency of 20 s",
            provider=_make(OpenAI, TWO, median=20.0),
            required=Required(first_minute=0.0),  # The first headers arrive after 10 s.
        ),
        row(
            name="Azure, windows of 10 s",
            provider=_make(Azure, (_window("requests", 100, 10.0), *per_minute(tokens=2_000_000))),
        ),
        row(
            name="Azure, windows of 1 s",
            provider=_make(Azure, (_window("requests", 100, 10.0), evolve(_window("requests", 10, 1.0), is_advertised=False))),
        ),
        row(
            name="Azure, tokens in 60 s",
            provider=_make(Azure, (_window("tokens", 300_000, 60.0), _window("requests", 300, 10.0))),
        ),
        row(
            name="Azure, tokens in 10 s",
            provider=_make(Azure, (_window("tokens", 100_000, 10.0), _window("requests", 300, 10.0))),
        ),
        row(
            name="Azure, -1 and 0 in one of ten replies",
            provider=_make(Azure, (_window("requests", 100, 10.0), _window("tokens", 3_000_000, 60.0)), faults=0.1),
        ),
        row(name="Groq, 300k tokens", provider=_make(Groq, GROQ)),
        row(name="Groq, 300k tokens, at admission", provider=_make(Groq, GROQ, **ADMISSION)),
    ]


def _small() -> list[LimitsRow]:
    """Buckets that hold less than a minute's worth, sliding windows, and Mistral's fixed ones."""
    row = partial(LimitsRow, required=Required(rate_limited=1.0, used=92.0, first_minute=0.0))
    second = partial(LimitsRow, required=Required(rate_limited=1.0, used=88.0, first_minute=0.0))
    sliding = partial(LimitsRow, required=Required(rate_limited=1.0, used=80.0, first_minute=0.0))
    requests = Limit(kind="requests", amount=600)
    rejected = (MISTRAL, Limit(kind="requests", amount=600, holds=10, is_advertised=False))
    return [
        second(name="bucket of 1 s", provider=_make(OpenAI, (evolve(requests, holds=10),))),
        second(name="bucket of 1 s, at admission", provider=_make(OpenAI, (evolve(requests, holds=10),), **ADMISSION)),
        second(name="bucket of 1 s, unknown host", provider=_make(UnknownHost, (evolve(requests, holds=10),))),
        second(name="bucket of 1 s, 60 requests", provider=_make(OpenAI, (ONE_PER_SECOND,))),
        row(name="bucket of 10 s", provider=_make(OpenAI, (evolve(requests, holds=100),))),
        row(name="bucket of 10 s, at admission", provider=_make(OpenAI, (evolve(requests, holds=100),), **ADMISSION)),
        row(name="bucket of 10 s, tokens", provider=_make(OpenAI, (Limit(kind="tokens", amount=300_000, holds=50_000),))),
        sliding(name="sliding window", provider=_make(OpenAI, (evolve(requests, is_sliding=True),))),
        sliding(name="sliding window, at admission", provider=_make(OpenAI, (evolve(requests, is_sliding=True),), **ADMISSION)),
        row(name="Mistral, windows of a minute", provider=_make(Mistral, (MISTRAL,))),
        row(name="Mistral, at admission", provider=_make(Mistral, (evolve(MISTRAL, phase=50.0),), **ADMISSION)),
        row(name="Mistral, requests per second", provider=_make(Mistral, rejected)),
        row(name="Mistral, 100-8,000 tokens", provider=_make(Mistral, (MISTRAL,)), workload=WIDE),
        row(name="nearly empty at the start", provider=_make(OpenAI, REQUESTS, initial=0.01), seconds=40.0),
        row(name="nearly empty, tokens", provider=_make(OpenAI, TWO, initial=0.02), seconds=120.0),
        row(name="nearly empty, at admission", provider=_make(OpenAI, REQUESTS, initial=0.01, **ADMISSION), seconds=40.0),
    ]


def _anthropic() -> list[LimitsRow]:
    """Anthropic: times of whole seconds, rounded tokens, acceleration limits."""
    required = Required(first_minute=75.0)
    row = partial(LimitsRow, required=required)
    first_tier = per_minute(requests=50, input_tokens=50_000, output_tokens=10_000)
    return [
        row(name="Anthropic, 450k input tokens", provider=_make(Anthropic, TIER_2), workload=Workload(output_tokens=(50, 150))),
        row(
            name="Anthropic, 450k input tokens, at admission",
            provider=_make(Anthropic, TIER_2, **ADMISSION),
            workload=Workload(output_tokens=(50, 150)),
        ),
        row(
            name="Anthropic, 90k output tokens",
            provider=_make(Anthropic, TIER_2),
            workload=Workload(output_tokens=(200, 1000), max_tokens=8000),
        ),
        row(name="Anthropic, 1,000 requests", provider=_make(Anthropic, TIER_2), workload=SHORT),
        row(name="Anthropic, 50 requests", provider=_make(Anthropic, first_tier), workload=SHORT),
    ]


def _declared() -> list[LimitsRow]:
    """Declared limits only: the headers are not read, or there are none."""
    requests = partial(LimitsRow, known="declared", required=Required(used=92.0, first_minute=0.0))
    tokens = partial(LimitsRow, known="declared", required=Required(used=88.0, first_minute=0.0))
    minute = Limit(kind="requests", amount=600, period=60.0)
    return [
        requests(name="declared 600 rpm, OpenAI", provider=_make(OpenAI, REQUESTS), declared={"rpm": 600}),
        requests(
            name="declared 600 rpm, enforced per second", provider=_make(OpenAI, (*REQUESTS, PER_SECOND)), declared={"rpm": 600}
        ),
        requests(name="declared 600 rpm, Gemini", provider=_make(Gemini, (minute,)), declared={"rpm": 600}),
        requests(
            name="declared 600 rpm, Azure, windows of 1 s",
            provider=_make(Azure, (_window("requests", 10, 1.0),)),
            declared={"rpm": 600},
        ),
        requests(
            name="declared 60 rpm",
            provider=_make(OpenAI, per_minute(requests=60, tokens=1_000_000)),
            declared={"rpm": 60},
            seconds=600.0,
        ),
        requests(
            name="declared 60 rpm, enforced per second",
            provider=_make(OpenAI, (ONE_PER_SECOND,)),
            declared={"rpm": 60},
            required=Required(rate_limited=1.0, used=92.0, first_minute=0.0),
        ),
        requests(
            name="declared 30 rpm, enforced per 2 s",
            provider=_make(OpenAI, (evolve(ONE_PER_SECOND, amount=30),)),
            declared={"rpm": 30},
            required=Required(rate_limited=1.0, used=92.0, first_minute=0.0),
        ),
        tokens(name="declared 200k tpm, OpenAI", provider=_make(OpenAI, TWO), declared={"rpm": 500, "tpm": 200_000}),
        tokens(name="declared 300k tpm, Groq", provider=_make(Groq, GROQ), declared={"tpm": 300_000}),
        tokens(
            name="declared 300k tpm, Azure",
            provider=_make(Azure, (_window("tokens", 300_000, 60.0),)),
            declared={"tpm": 300_000},
        ),
        tokens(
            name="declared itpm, otpm, Anthropic",
            provider=_make(Anthropic, TIER_2, acceleration=False),
            declared={"rpm": 1000, "itpm": 450_000, "otpm": 90_000},
        ),
        tokens(
            name="declared itpm, Gemini",
            provider=_make(Gemini, (Limit(kind="input_tokens", amount=500_000, period=60.0),)),
            declared={"itpm": 500_000},
        ),
    ]


def _sizes() -> list[LimitsRow]:
    """Requests of 100 to 8,000 tokens, max_tokens counted at admission."""
    adverts = partial(LimitsRow, workload=WIDE)
    declared = partial(LimitsRow, workload=WIDE, known="declared", required=Required(used=88.0, first_minute=0.0))
    azure = (_window("tokens", 1_000_000, 60.0),)
    return [
        adverts(name="100-8,000 tokens, OpenAI", provider=_make(OpenAI, TWO)),
        adverts(name="100-8,000 tokens, OpenAI, at admission", provider=_make(OpenAI, TWO, **ADMISSION)),
        adverts(name="100-8,000 tokens, Azure", provider=_make(Azure, azure)),
        adverts(name="100-8,000 tokens, Groq", provider=_make(Groq, GROQ)),
        declared(name="100-8,000 tokens, declared, OpenAI", provider=_make(OpenAI, TWO), declared={"tpm": 200_000}),
        declared(name="100-8,000 tokens, declared, Azure", provider=_make(Azure, azure), declared={"tpm": 1_000_000}),
    ]


def _agents() -> list[LimitsRow]:
    """Agents: attempts of 8 or 20 calls of about 2 s, one after the other in one slot."""
    rows: list[LimitsRow] = []
    for calls in (8, 20):
        workload = evolve(SHORT, calls=calls)
        required = Required(used=95.0, first_minute=0.0)
        row = partial(LimitsRow, workload=workload, required=required)
        rows += [
            row(name=f"agents, {calls} calls, advertised", provider=_make(OpenAI, REQUESTS)),
            row(
                name=f"agents, {calls} calls, declared",
                provider=_make(OpenAI, REQUESTS),
                known="declared",
                declared={"rpm": 600},
            ),
            row(
                name=f"agents, {calls} calls, tokens advertised",
                provider=_make(OpenAI, TWO),
                workload=Workload(calls=calls),
            ),
            row(
                name=f"agents, {calls} calls, Anthropic",
                provider=_make(Anthropic, TIER_2),
                workload=Workload(calls=calls, output_tokens=(50, 150)),
            ),
            row(
                name=f"agents, {calls} calls, nothing known",
                provider=_altered(_make(OpenAI, REQUESTS), lambda: altered.without_headers),
                known="nothing",
                required=Required(rate_limited=100.0, used=60.0, first_minute=0.0),
            ),
        ]
    return rows


def _others() -> list[LimitsRow]:
    """Another tenant uses a varying half of the limit; four processes share a key."""
    tenant = Required(rate_limited=2.0, used=90.0, first_minute=0.0)
    four = Required(rate_limited=2.0, used=90.0, first_minute=0.0, smallest_share=50.0)
    row = LimitsRow
    return [
        row(name="another tenant, 600 requests", provider=_shared(OpenAI, REQUESTS), required=tenant),
        row(name="another tenant, 200k tokens", provider=_shared(OpenAI, TWO), required=tenant),
        row(name="another tenant, at admission", provider=_shared(OpenAI, TWO, **ADMISSION), required=tenant),
        row(
            name="another tenant, Anthropic",
            provider=_shared(Anthropic, TIER_2),
            workload=Workload(output_tokens=(50, 150)),
            required=tenant,
        ),
        row(
            name="another tenant, Azure, 10 s",
            provider=_shared(Azure, (_window("requests", 100, 10.0), _window("tokens", 3_000_000, 60.0))),
            required=None,  # What remains of a window does not say when the next begins.
        ),
        row(name="two bursts, 600 requests", provider=_make(OpenAI, REQUESTS, others=BURSTS), required=tenant),
        row(name="two bursts, 200k tokens", provider=_make(OpenAI, TWO, others=BURSTS), required=tenant),
        row(
            name="two bursts, enforced per second",
            provider=_make(OpenAI, (*REQUESTS, PER_SECOND), others=BURSTS),
            required=tenant,
        ),
        row(
            name="two bursts, declared",
            provider=_make(OpenAI, REQUESTS, others=BURSTS),
            known="declared",
            declared={"rpm": 600},
            required=tenant,
        ),
        row(name="four processes, 600 requests", provider=_make(OpenAI, REQUESTS), runs=4, required=four),
        row(name="four processes, 200k tokens", provider=_make(OpenAI, TWO), runs=4, required=four),
        row(name="four processes, at admission", provider=_make(OpenAI, TWO, **ADMISSION), runs=4, required=four),
        row(
            name="four processes, Anthropic",
            provider=_make(Anthropic, TIER_2, acceleration=False),
            workload=Workload(output_tokens=(50, 150)),
            runs=4,
            required=four,
        ),
    ]


def _bans() -> list[LimitsRow]:
    """A ban of 60 s after three 429s in 10 s."""
    known = partial(LimitsRow, required=Required(used=88.0, first_minute=0.0, bans=0))
    without = Required(rate_limited=100.0, used=0.0, first_minute=0.0, bans=1)
    banning = _banning(_make(OpenAI, REQUESTS))
    return [
        known(name="bans, advertised", provider=banning),
        known(name="bans, 200k tokens advertised", provider=_banning(_make(OpenAI, TWO))),
        known(name="bans, declared", provider=banning, known="declared", declared={"rpm": 600}),
        known(
            name="bans, declared, enforced per second",
            provider=_banning(_make(OpenAI, (*REQUESTS, PER_SECOND))),
            known="declared",
            declared={"rpm": 600},
        ),
        LimitsRow(name="bans, nothing known", provider=banning, known="nothing", required=without),
        LimitsRow(
            name="bans, nothing known, 120 requests",
            provider=_banning(_make(OpenAI, per_minute(requests=120, tokens=1_000_000))),
            known="nothing",
            required=without,
            seconds=600.0,
        ),
    ]


def _wrong() -> list[LimitsRow]:
    """Headers that are wrong, missing or late; a gateway. Most are only shown: a run must not stall or flood the provider."""
    row = partial(LimitsRow, required=None)
    refuted = partial(LimitsRow, required=Required(rate_limited=10.0, used=80.0, first_minute=0.0))

    def set_to(server: type[Server], limits: tuple[Limit, ...], **headers: str) -> MakeProvider:
        return _altered(_make(server, limits), lambda: altered.replaced(**headers))

    def rewritten(**values: Callable[[float], float]) -> MakeProvider:
        return _altered(_make(OpenAI, REQUESTS), lambda: altered.rewrite(**values))

    deployments = (per_minute(requests=amount, tokens=2_000_000) for amount in (300, 180, 90, 30))
    servers = tuple(deployments)

    def gateway(seed: int) -> Provider:
        return Gateway([OpenAI(limits=limits, seed=seed + k) for k, limits in enumerate(servers)], seed)

    return [
        row(name="headers never change", provider=_altered(_make(OpenAI, REQUESTS), altered.Constant)),
        row(
            name="remaining is always 0",
            provider=rewritten(remaining=lambda _: 0),
            required=Required(rate_limited=1.0, used=50.0, first_minute=0.0),  # The resets allow more.
        ),
        refuted(
            name="remaining is always 0 of 100, for a day",
            provider=set_to(
                OpenAI,
                REQUESTS,
                x_ratelimit_limit_requests="100",
                x_ratelimit_remaining_requests="0",
                x_ratelimit_reset_requests="24h0m0s",
            ),
        ),
        refuted(
            name="a limit of 2 tokens",
            provider=set_to(OpenAI, REQUESTS, x_ratelimit_limit_tokens="2", x_ratelimit_remaining_tokens="1"),
        ),
        refuted(
            name="a renewal period of 27,777 hours",
            provider=set_to(
                Azure,
                (_window("requests", 100, 10.0),),
                x_ratelimit_limit_requests="20",
                x_ratelimit_renewalperiod_requests="100000000",
            ),
        ),
        row(name="limits are huge", provider=rewritten(limit=lambda _: 1e12, remaining=lambda _: 1e12 - 1)),
        row(name="limits are a tenth", provider=rewritten(limit=lambda n: n / 10, remaining=lambda n: n / 10)),
        row(
            name="headers on one of three replies",
            provider=_altered(_make(OpenAI, TWO), lambda: altered.sometimes_without_headers),
        ),
        row(name="no headers in the first minute", provider=_altered(_make(OpenAI, TWO), lambda: altered.late_headers)),
        row(name="headers are 10 s old", provider=_altered(_make(OpenAI, TWO), altered.Stale)),
        row(
            name="requests per minute not stated, Groq",
            provider=_make(Groq, (GROQ[0], evolve(GROQ[1], amount=120), GROQ[2])),
            workload=SHORT,
        ),
        row(name="four uneven deployments", provider=gateway),
    ]


LIMITS_ROWS: dict[str, list[LimitsRow]] = {
    "advertised": _advertised(),
    "small": _small(),
    "Anthropic": _anthropic(),
    "declared": _declared(),
    "sizes": _sizes(),
    "agents": _agents(),
    "others": _others(),
    "bans": _bans(),
    "wrong": _wrong(),
}
"""Family → its rows."""
