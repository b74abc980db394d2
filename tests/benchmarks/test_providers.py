"""The simulated providers: what they count, what their headers state, and the same behind HTTP."""

import json
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import pytest

from benchmarks._provider_server import Served, serving
from benchmarks.simulated.endpoint import Curve
from benchmarks.simulated.formats import duration
from benchmarks.simulated.meter import DAY, Limit, Meter
from benchmarks.simulated.providers import Anthropic, Azure, Gemini, Groq, Mistral, OpenAI, Reply, Request, Server, per_minute


def request(number: int = 1, *, tokens: int = 1000, output: int = 100, max_tokens: int | None = 500) -> Request:
    return Request(characters=4 * tokens, input_tokens=tokens, output_tokens=output, max_tokens=max_tokens, key=(number, 1))


def reply_to(server: Server, t: float = 0.0, **options: Any) -> Reply:
    """Return the reply to one request that arrives at `t`."""
    call = server.start(t, request(**options))
    return server.finish(t + call.seconds, call)


def rate_limits(reply: Reply, *names: str) -> list[str]:
    return [reply.headers[f"x-ratelimit-{name}"] for name in names]


@pytest.mark.parametrize(
    ("seconds", "text"), [(360, "6m0s"), (0.12, "120ms"), (1, "1s"), (7.66, "7.66s"), (0, "0s"), (3661.5, "1h1m1.5s")]
)
def test_durations(seconds: float, text: str) -> None:
    """Durations are written as OpenAI and Groq write them."""
    assert text == duration(seconds)


def test_openai_counts_the_larger_of_max_tokens_and_estimate() -> None:
    """Headers from the moment of admission state what was taken; the reset is the time until the bucket is full."""
    server = OpenAI(limits=per_minute(requests=600, tokens=60_000), headers_at="admission")
    reply = reply_to(server, max_tokens=4000)

    assert ["600", "599", "100ms"] == rate_limits(reply, "limit-requests", "remaining-requests", "reset-requests")
    assert ["60000", "56000", "4s"] == rate_limits(reply, "limit-tokens", "remaining-tokens", "reset-tokens")
    assert {"prompt_tokens": 1000, "completion_tokens": 100} == reply.usage


def test_headers_of_the_reply_describe_its_moment() -> None:
    """Headers from the moment of the reply include what flowed in, and what later calls took."""
    server = OpenAI(limits=per_minute(requests=600), sigma=0.0)
    first = server.start(0.0, request(1))
    for number in range(2, 12):
        server.start(1.9, request(number))

    assert ["591"] == rate_limits(server.finish(2.0, first), "remaining-requests")


def test_a_rejected_call_counts() -> None:
    """OpenAI counts failed calls: each takes what is left."""
    server = OpenAI(limits=per_minute(tokens=6000))
    server.start(0.0, request(1, tokens=4000))
    rejected = server.start(0.0, request(2, tokens=4000)).reply

    assert rejected is not None
    assert (429, "20", "20000") == (rejected.status, rejected.headers["retry-after"], rejected.headers["retry-after-ms"])
    assert server.start(0.0, request(3)).reply is not None
    assert (1, 2) == (server.accepted, server.rejected)


def test_a_sliding_window_returns_what_was_taken() -> None:
    """What was taken is available again after the length of the window."""
    server = OpenAI(limits=(Limit(kind="requests", amount=2, is_sliding=True),), sigma=0.0)
    replies = [server.start(t, request(number)).reply for number, t in enumerate((0.0, 10.0, 59.9, 60.1, 69.0, 70.1))]

    assert [None, None, 429, None, 429, None] == [None if reply is None else reply.status for reply in replies]
    assert server.meters[0].seconds_until(2) == pytest.approx(60.0)


def test_mistral_states_the_end_of_its_window() -> None:
    """The reset is rounded up to seconds; a window that began before the run ends earlier."""
    limit = Limit(kind="tokens", amount=60_000, period=60.0, phase=25.0)
    server = Mistral(limits=(limit,), headers_at="admission", initial=0.5)
    names = ("x-ratelimitbysize-remaining-minute", "ratelimitbysize-reset")
    replies = [reply_to(server, t) for t in (4.5, 35.0)]
    values = [[reply.headers[name] for name in names] for reply in replies]

    assert [["28500", "31"], ["58500", "60"]] == values


def test_azure_has_windows_and_renewal_periods() -> None:
    """Ten requests in a second are allowed; the headers state the window of 10 s, and -1 where something is unknown."""
    windows = (
        Limit(kind="requests", amount=100, window=10.0, period=10.0),
        Limit(kind="requests", amount=10, window=1.0, period=1.0, is_advertised=False),
    )
    server = Azure(limits=windows, headers_at="admission")
    calls = [server.start(0.5, request(number)) for number in range(11)]
    reply = reply_to(server, 4.0)

    assert [*[False] * 10, True] == [call.reply is not None for call in calls]
    assert ["100", "88", "10"] == rate_limits(reply, "limit-requests", "remaining-requests", "renewalperiod-requests")
    assert ["0", "-1"] == rate_limits(reply_to(Azure(limits=windows, faults=1.0)), "limit-requests", "remaining-requests")


def test_groq_states_the_requests_of_the_day() -> None:
    """`-requests` is the limit of the day; the limit per minute is enforced, but not stated."""
    limits = (Limit(kind="requests", amount=14_400, window=DAY), Limit(kind="requests", amount=30, is_advertised=False))
    server = Groq(limits=limits, headers_at="admission")
    calls = [server.start(0.0, request(number)) for number in range(31)]
    reply = server.finish(9.0, calls[29])

    assert ["14400", "14370", "3m0s"] == rate_limits(reply, "limit-requests", "remaining-requests", "reset-requests")
    assert calls[30].reply is not None
    assert "2.000" == calls[30].reply.headers["retry-after"]


def test_anthropic_counts_output_as_it_is_generated() -> None:
    """Input is estimated and corrected, output counts while it is generated, max_tokens does not; tokens are rounded."""
    limits = per_minute(requests=60, input_tokens=60_000, output_tokens=60_000)
    server = Anthropic(limits=limits, median=4.0, sigma=0.0)
    call = server.start(0.0, Request(characters=40_000, input_tokens=14_000, output_tokens=8000, max_tokens=50_000))
    halfway = server.headers(2.0)
    server.advance(2.0)
    taken = [meter.total for meter in server.meters]
    reply = server.finish(4.0, call)

    assert "anthropic-ratelimit-tokens-limit" not in halfway
    assert [1, 10_000, 4000] == taken
    assert [1, 14_000, 8000] == [meter.total for meter in server.meters]
    assert "50000" == reply.headers["anthropic-ratelimit-input-tokens-remaining"]
    assert "2026-11-01T00:00:14Z" == reply.headers["anthropic-ratelimit-input-tokens-reset"]
    assert "Sun, 01 Nov 2026 00:00:04 GMT" == reply.headers["date"]


def test_anthropic_limits_acceleration() -> None:
    """The limit of use in the first 10 s is 0.6 of the rate, also if the buckets are full; a slow start has no 429s."""
    quick, slow = (Anthropic(limits=per_minute(requests=600)) for _ in range(2))
    for number in range(100):
        quick.start(number / 10, request(number))
        slow.start(number / 5, request(number))

    assert (60, 40) == (quick.accepted, quick.rejected)
    assert (100, 0) == (slow.accepted, slow.rejected)


def test_gemini_names_the_quota_in_the_body() -> None:
    """Gemini has no headers; a 429 has a delay and the name of a quota in its body. A quota of the day has another name."""
    server = Gemini(limits=(Limit(kind="requests", amount=5, period=60.0),), quota=6)
    calls = [server.start(t, request(number)) for number, t in enumerate([15.0] * 6 + [60.0] * 2)]
    details = [call.reply.error["error"]["details"] for call in calls if call.reply is not None]

    assert {"date"} == server.finish(60.0, calls[0]).headers.keys()
    assert ["45s", "46s"] == [entries[1]["retryDelay"] for entries in details]
    assert ["Minute", "Day"] == [entries[0]["violations"][0]["quotaId"][19:].partition("PerProject")[0] for entries in details]


@pytest.mark.parametrize(
    ("server", "status"),
    [(OpenAI(limits=(), quota=0), 429), (Anthropic(limits=(), quota=0), 400), (Groq(limits=(), quota=0), 429)],
    ids=["OpenAI", "Anthropic", "Groq"],
)
def test_a_used_up_quota_rejects_every_call(server: Server, status: int) -> None:
    """After its quota, a provider rejects every call; only Groq says when to call again."""
    reply = reply_to(server)

    assert status == reply.status
    assert isinstance(server, Groq) == ("retry-after" in reply.headers)


def test_a_request_above_the_limit_never_fits() -> None:
    """A request that needs more than the limit is rejected by a full bucket too."""
    limits = per_minute(tokens=6000, input_tokens=6000)

    assert [429, 413, 429, 400] == [
        reply_to(provider(limits=limits), tokens=7000).status for provider in (OpenAI, Groq, Anthropic, Gemini)
    ]


def test_used_share_is_measured_by_what_flows_in() -> None:
    """Used share: what was admitted divided by what flowed in, without what another tenant used."""
    meter = Meter(Limit(kind="requests", amount=600), Curve(((0.0, 0.5),)))
    for second in range(60):
        meter.advance(float(second))
        meter.take(4)

    assert 0.8 == meter.used_share(0.0, 60.0)
    assert 596 == meter.level


def post(served: Served, path: str, model: str = "m", **fields: Any) -> tuple[int, dict[str, str], Any]:
    connection = HTTPConnection(served.root.removeprefix("http://"), timeout=30)
    body = {"model": model, "messages": [{"role": "user", "content": "lima"}], **fields}
    connection.request("POST", path, json.dumps(body), {"authorization": "Bearer k"})
    reply = connection.getresponse()
    result = reply.status, {name.lower(): value for name, value in reply.getheaders()}, json.loads(reply.read())
    connection.close()
    return result


def test_providers_over_http() -> None:
    """Behind HTTP, a provider has the same headers, errors and limits, for each API key and model."""
    limits = per_minute(requests=2)
    with serving(lambda: OpenAI(limits=limits, median=0.01, headers_at="admission")) as served:
        replies = [post(served, "/v1/chat/completions", max_tokens=8) for _ in range(3)]
        other = post(served, "/v1/chat/completions", "other")

    assert [200, 200, 429, 200] == [status for status, _, _ in [*replies, other]]
    assert ["1", "0", "0", "1"] == [headers["x-ratelimit-remaining-requests"] for _, headers, _ in [*replies, other]]
    assert "LIMA" == replies[0][2]["choices"][0]["message"]["content"]
    assert {"prompt_tokens": 1, "completion_tokens": 8} == replies[0][2]["usage"]
    assert {("Bearer k", "m"): (2, 1), ("Bearer k", "other"): (1, 0)} == {
        key: (server.accepted, server.rejected) for key, server in served.servers.items()
    }


@pytest.mark.parametrize(
    ("provider", "path"),
    [(Anthropic, "/v1/messages"), (Gemini, "/v1beta/models/m:generateContent"), (Azure, "/v1/chat/completions")],
)
def test_providers_over_http_have_their_dialect(provider: type[Server], path: str) -> None:
    """Each provider answers in its dialect, calls at the same time too."""
    with serving(lambda: provider(limits=per_minute(requests=60), median=0.05)) as served, ThreadPoolExecutor(5) as pool:
        replies = list(pool.map(lambda _: post(served, path), range(5)))

    assert {200} == {status for status, _, _ in replies}
    assert all("LIMA" in json.dumps(body) and "usage" in json.dumps(body) for _, _, body in replies)
