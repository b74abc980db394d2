"""Servers modelled on real ones that state nothing about their limits: what a policy meets without headers.

Hosted providers count requests and tokens at once, in buckets or windows; only the Retry-After of a 429 is read, and some have
none. Self-hosted servers saturate, queue or collapse; gateways spread calls over deployments; agents make many calls in one
slot. Unless a row has other values: the default 100 slots, 600 s, a median latency of 2 s, unlimited trials.
"""

from collections.abc import Callable
from functools import partial

from attrs import evolve

from benchmarks.simulated.altered import Alter, Altered, Provider, without_retry_after
from benchmarks.simulated.endpoint import Endpoint
from benchmarks.simulated.gateways import cooling_gateway, plain_gateway
from benchmarks.simulated.limited import Workload
from benchmarks.simulated.limits_rows import AHEAD, GROQ, PER_SECOND, REQUESTS, SHORT, TIER_2, TWO, WIDE
from benchmarks.simulated.meter import Kind, Limit
from benchmarks.simulated.providers import Anthropic, Azure, Gemini, Groq, OpenAI, Server, per_minute
from benchmarks.simulated.rows import Row

SELF_HOSTED, GATEWAYS, RANDOM_429S, AGENTS = "self-hosted", "gateways", "random 429s", "agents"
"""Groups on which a policy has to be better than a fixed limit or a simple one."""


def _altered(alter: Alter, server: type[Server], limits: tuple[Limit, ...], seed: int) -> Provider:
    return Altered(server(limits=limits, seed=seed), alter)


def _window(kind: Kind, amount: float, seconds: float) -> Limit:
    return Limit(kind=kind, amount=amount, window=seconds, period=seconds)


def _hosted() -> list[Row]:
    """Several limits at once, none of them known."""
    few_outputs = Workload(output_tokens=(50, 150))
    many_outputs = Workload(output_tokens=(200, 1000), max_tokens=8000)
    first_tier = per_minute(requests=50, input_tokens=50_000, output_tokens=10_000)
    servers: list[tuple[str, type[Server], tuple[Limit, ...], Workload]] = [
        ("OpenAI, 600 requests", OpenAI, REQUESTS, Workload()),
        ("OpenAI, 200k tokens", OpenAI, TWO, Workload()),
        ("OpenAI, 600 requests, enforced per second", OpenAI, (*REQUESTS, PER_SECOND), Workload()),
        ("OpenAI, 60 requests", OpenAI, per_minute(requests=60, tokens=1_000_000), Workload()),
        ("OpenAI, 100-8,000 tokens", OpenAI, TWO, WIDE),
        ("Azure, 10 in windows of 1 s", Azure, (_window("requests", 10, 1.0),), Workload()),
        ("Azure, 100 in windows of 10 s", Azure, (_window("requests", 100, 10.0),), Workload()),
        ("Azure, 300k tokens in 60 s", Azure, (_window("tokens", 300_000, 60.0), _window("requests", 300, 10.0)), Workload()),
        ("Azure, 100k tokens in 10 s", Azure, (_window("tokens", 100_000, 10.0),), Workload()),
        ("Groq, 300k tokens", Groq, GROQ, Workload()),
        ("Groq, 1,000 requests", Groq, GROQ, SHORT),
        ("Anthropic, 450k input tokens", Anthropic, TIER_2, few_outputs),
        ("Anthropic, 90k output tokens", Anthropic, TIER_2, many_outputs),
        ("Anthropic, 1,000 requests", Anthropic, TIER_2, SHORT),
        ("Anthropic, 50 requests", Anthropic, first_tier, SHORT),
        ("Gemini, 600 requests", Gemini, (Limit(kind="requests", amount=600, period=60.0),), Workload()),
        ("Gemini, 500k input tokens", Gemini, (Limit(kind="input_tokens", amount=500_000, period=60.0),), Workload()),
    ]
    rows = [
        Row(name=name, provider=partial(server, limits=limits), workload=workload, ahead=AHEAD)
        for name, server, limits, workload in servers
    ]
    silent = [
        Row(
            name=f"{name}, no Retry-After",
            provider=partial(_altered, without_retry_after, server, limits),
            workload=workload,
            ahead=AHEAD,
        )
        for name, server, limits, workload in servers
        if name.startswith(("OpenAI, 200k", "OpenAI, 600 requests", "Azure, 100 in"))
    ]
    return [*rows, *silent]


def _gateways() -> list[Row]:
    """Four uneven deployments; after a 429, the next one is tried, or the deployment is not used for a while."""
    uneven, even = (300, 180, 90, 30), (300, 300)
    gateways: dict[str, Callable[..., Provider]] = {
        "gateway, four uneven deployments": partial(plain_gateway, requests=uneven),
        "gateway, two even deployments": partial(plain_gateway, requests=even),
        "gateway, four, cool-down of 5 s": partial(cooling_gateway, requests=uneven),
        "gateway, four, cool-down of 5 s, no Retry-After": partial(cooling_gateway, requests=uneven, retry_after=False),
        "gateway, four, cool-down of 5 s, not weighted": partial(cooling_gateway, requests=uneven, weighted=False),
        "gateway, two, cool-down of 30 s": partial(cooling_gateway, requests=even, cool_down=30.0),
        "gateway, two, cool-down of 30 s, no Retry-After": partial(
            cooling_gateway, requests=even, cool_down=30.0, retry_after=False
        ),
    }
    return [Row(name=name, provider=provider, ahead=AHEAD, group=GATEWAYS) for name, provider in gateways.items()]


def _self_hosted() -> list[Row]:
    """vLLM: latency grows with the load; llama.cpp: a few parallel slots and a queue; and servers that collapse."""
    servers = {
        "vLLM, saturates at 16": Endpoint(knee=16, beyond=1.0),
        "vLLM, saturates at 64": Endpoint(knee=64, beyond=1.0),
        "vLLM, saturates at 32, 6 s": Endpoint(knee=32, beyond=1.0, median=6.0),
        "llama.cpp, 1 slot and a queue": Endpoint(workers=1),
        "llama.cpp, 4 slots and a queue": Endpoint(workers=4),
        "llama.cpp, 8 slots, 16 in the queue": Endpoint(workers=8, cap=24),
        "collapses at 24": Endpoint(knee=24, beyond=2.0),
        "collapses at 8, 6 s": Endpoint(knee=8, beyond=2.0, median=6.0),
    }
    return [Row(name=name, endpoint=endpoint, group=SELF_HOSTED) for name, endpoint in servers.items()]


def _random_429s() -> list[Row]:
    """429s at any load."""
    rows = [
        Row(name=f"{100 * part:.0f} % random 429s", endpoint=Endpoint(random_429=part), group=RANDOM_429S)
        for part in (0.01, 0.05, 0.1, 0.2)
    ]
    limited = Endpoint(rate=20, burst=20, retry_after=False, random_429=0.05)
    return [*rows, Row(name="5 % random 429s, 20/s, no Retry-After", endpoint=limited, group=RANDOM_429S)]


def _agents() -> list[Row]:
    """Attempts of 8 or 20 calls, one after the other, behind 10 requests per second."""
    limits = (*REQUESTS, PER_SECOND)
    row = partial(Row, ahead=AHEAD, group=AGENTS, timeout=600.0)
    silent = partial(_altered, without_retry_after, OpenAI, limits)
    return [
        row(name="agents, 8 calls, 10/s", provider=partial(OpenAI, limits=limits), workload=evolve(SHORT, calls=8)),
        row(name="agents, 20 calls, 10/s", provider=partial(OpenAI, limits=limits), workload=evolve(SHORT, calls=20)),
        row(name="agents, 20 calls, 10/s, no Retry-After", provider=silent, workload=evolve(SHORT, calls=20)),
    ]


PROVIDER_LIKE: list[Row] = [*_hosted(), *_gateways(), *_self_hosted(), *_random_429s(), *_agents()]
