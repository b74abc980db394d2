"""Limits in the headers of replies: the formats of providers, and headers that make no sense."""

import contextvars
from typing import Any

import pytest

from evaljournal.replay.state.known_limits import DAY, MINUTE
from evaljournal.runner.calls.notes import REPLY_NOTE, note_reply, set_note_sink
from evaljournal.runner.retries.limit_headers import advertised_limits
from tests.headers import advertised_limit

NOW = 1_794_934_800.0
"""2026-11-17T17:00:00Z"""
DATE = {"date": "Tue, 17 Nov 2026 17:00:00 GMT"}


def openai(**changes: str) -> dict[str, str]:
    """The headers of a reply of OpenAI; `changes` replaces values by the ends of their names."""
    headers = {
        "content-type": "application/json",
        "openai-processing-ms": "231",
        "x-ratelimit-limit-requests": "500",
        "x-ratelimit-limit-tokens": "200000",
        "x-ratelimit-remaining-requests": "499",
        "x-ratelimit-remaining-tokens": "199500",
        "x-ratelimit-reset-requests": "120ms",
        "x-ratelimit-reset-tokens": "6m0s",
        "x-request-id": "req_1",
    }
    return headers | {f"x-ratelimit-{name.replace('_', '-')}": value for name, value in changes.items()}


REQUESTS = advertised_limit("x-ratelimit-limit-requests", "requests", 500, MINUTE, 499, 0.12)
TOKENS = advertised_limit("x-ratelimit-limit-tokens", "tokens", 200_000, MINUTE, 199_500, 360.0)


def test_openai() -> None:
    """OpenAI sends requests and tokens per minute, with the time until each is full as a duration."""
    assert [REQUESTS, TOKENS] == advertised_limits(openai(), NOW, "api.openai.com")


def test_project_tokens_are_a_limit_of_their_own() -> None:
    """A project's tokens are counted beside those of the organization."""
    headers = openai(limit_project_tokens="1000", remaining_project_tokens="900", reset_project_tokens="6s")
    project = advertised_limit("x-ratelimit-limit-project-tokens", "tokens", 1000, MINUTE, 900, 6.0)
    assert [REQUESTS, TOKENS, project] == advertised_limits(headers, NOW)


def test_azure() -> None:
    """Azure sends the length of its window, and neither a reset nor a useful number for what is unknown."""
    headers = {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "9",
        "x-ratelimit-renewalperiod-requests": "10",
        "x-ratelimit-limit-tokens": "-1",
        "x-ratelimit-remaining-tokens": "-1",
        "x-ratelimit-renewalperiod-tokens": "60",
    }
    expected = [advertised_limit("x-ratelimit-limit-requests", "requests", 10, 10.0, 9, None)]
    assert expected == advertised_limits(headers, NOW, "me.openai.azure.com")


def anthropic(prefix: str = "") -> dict[str, str]:
    values = {"requests": ("50", "49"), "input-tokens": ("30000", "29000"), "output-tokens": ("8000", "8000")}
    values["tokens"] = ("38000", "37000")
    headers = dict(DATE)
    for unit, (size, remaining) in values.items():
        name = f"{prefix}anthropic-ratelimit-{unit}"
        headers |= {f"{name}-limit": size, f"{name}-remaining": remaining, f"{name}-reset": "2026-11-17T17:00:12Z"}
    return headers


@pytest.mark.parametrize("prefix", ["", "llm_provider-"])
def test_anthropic(prefix: str) -> None:
    """Anthropic's resets are dates, compared with the date of the reply, not with our clock; the sum of tokens is ignored.

    LiteLLM passes its headers on with a prefix.
    """
    name = f"{prefix}anthropic-ratelimit-"
    expected = [
        advertised_limit(f"{name}requests-limit", "requests", 50, MINUTE, 49, 12.0),
        advertised_limit(f"{name}input-tokens-limit", "input_tokens", 30_000, MINUTE, 29_000, 12.0),
        advertised_limit(f"{name}output-tokens-limit", "output_tokens", 8000, MINUTE, 8000, 12.0),
    ]
    assert expected == advertised_limits(anthropic(prefix), NOW + 3600)


def test_anthropic_tokens_alone() -> None:
    """The sum of tokens is a limit if there is no other one of tokens."""
    headers = {name: value for name, value in anthropic().items() if "put-tokens" not in name}
    assert ["requests", "tokens"] == [unit for _, unit, *_ in advertised_limits(headers, NOW)]


def test_groq_counts_requests_per_day() -> None:
    """Groq has the names of OpenAI, but its requests are those of a day."""
    windows = [window for _, _, _, window, *_ in advertised_limits(openai(), NOW, "api.groq.com")]
    assert [DAY, MINUTE] == windows


def test_mistral() -> None:
    """Mistral's tokens have names of their own, and a reset in seconds."""
    headers = {
        "x-ratelimitbysize-limit-minute": "500000",
        "x-ratelimitbysize-remaining-minute": "499900",
        "ratelimitbysize-reset": "21",
        "x-ratelimitbysize-limit-month": "1000000000",
    }
    expected = [advertised_limit("x-ratelimitbysize-limit-minute", "tokens", 500_000, MINUTE, 499_900, 21.0, is_window=True)]
    assert expected == advertised_limits(headers, NOW)


def test_litellm() -> None:
    """LiteLLM sends its own limits beside those of the provider; each is a limit."""
    headers = {f"llm_provider-{name}": value for name, value in openai().items()} | {
        "x-ratelimit-api_key-limit-requests": "100",
        "x-ratelimit-api_key-remaining-requests": "98",
        "x-litellm-version": "1.80",
    }
    expected = [
        ("llm_provider-x-ratelimit-limit-requests", *REQUESTS[1:]),
        ("llm_provider-x-ratelimit-limit-tokens", *TOKENS[1:]),
        advertised_limit("x-ratelimit-api_key-limit-requests", "requests", 100, MINUTE, 98, None),
    ]
    assert expected == advertised_limits(headers, NOW)


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [("30", 30.0), (f"{NOW + 45:.0f}", 45.0), (f"{(NOW + 45) * 1000:.0f}", 45.0)],
    ids=["seconds", "seconds since 1970", "milliseconds since 1970"],
)
@pytest.mark.parametrize("prefix", ["x-ratelimit", "ratelimit"])
def test_headers_without_a_unit(prefix: str, reset: str, seconds: float) -> None:
    """Headers without a unit are advice about requests; their window is the time until the reset."""
    headers = {f"{prefix}-limit": "60", f"{prefix}-remaining": "10", f"{prefix}-reset": reset}
    expected = [advertised_limit(f"{prefix}-limit", "requests", 60, seconds, 10, seconds, is_advice=True)]
    assert expected == advertised_limits(headers, NOW)


def test_ietf_draft() -> None:
    """The IETF draft has named policies in one header, and their state in another; each is a limit."""
    headers = {
        "ratelimit-policy": '"burst";q=100;w=60,"daily";q=1000;w=86400',
        "ratelimit": '"burst";r=50;t=30, "daily";r=900',
    }
    expected = [
        advertised_limit('ratelimit-policy "burst"', "requests", 100, MINUTE, 50, 30.0, is_advice=True),
        advertised_limit('ratelimit-policy "daily"', "requests", 1000, DAY, 900, None, is_advice=True),
    ]
    assert expected == advertised_limits(headers, NOW)


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("120ms", 0.12),
        ("1h2m3.5s", 3723.5),
        ("1d", 86_400.0),
        ("7.66", 7.66),
        ("0s", 0.0),
        ("0", 0.0),
        ("Tue, 17 Nov 2026 17:00:09 GMT", 9.0),
        ("2026-11-17T17:00:09.500Z", 9.5),
        ("2026-11-17T18:00:09+01:00", 9.0),
        ("2026-11-17T16:59:00Z", 0.0),
    ],
)
def test_forms_of_a_reset(reset: str, seconds: float) -> None:
    """A reset is a duration, a number of seconds or a date."""
    (*_, advertised, _, _), _ = advertised_limits(openai(reset_requests=reset), NOW)
    assert advertised == pytest.approx(seconds)


@pytest.mark.parametrize(
    "changes",
    [
        {"limit_requests": "0"},
        {"limit_requests": "-1"},
        {"limit_requests": "0.5"},
        {"limit_requests": "abc"},
        {"limit_requests": "nan"},
        {"limit_requests": "1e400"},
        {"limit_requests": "1e16", "remaining_requests": "1e16"},
        {"limit_requests": ""},
        {"remaining_requests": "501"},
        {"remaining_requests": "-1"},
        {"remaining_requests": "many"},
        {"reset_requests": "soon"},
        {"reset_requests": ""},
        {"reset_requests": "-5"},
        {"reset_requests": "s"},
        {"reset_requests": "5s."},
        {"reset_requests": "9" * 100 + "s"},
        {"reset_requests": "0000-99-99T99:99:99Z"},
    ],
    ids=str,
)
def test_never_a_limit(changes: dict[str, str]) -> None:
    """Values that make no sense are no limit; those of another unit still are."""
    assert [TOKENS] == advertised_limits(openai(**changes), NOW)


@pytest.mark.parametrize("period", ["100000000", "1e300", "2678401"])
def test_an_absurd_period(period: str) -> None:
    """A limit with a renewal period of 27,777 hours makes no sense, and is ignored."""
    assert [] == advertised_limits(openai(renewalperiod_requests=period, renewalperiod_tokens=period), NOW)


@pytest.mark.parametrize(
    ("period", "window"), [("1", 1.0), ("1e-300", 1.0), ("2678400", 31 * DAY), ("0", MINUTE), ("x", MINUTE)]
)
def test_windows_can_be_computed_with(period: str, window: float) -> None:
    """A window is between a second and a month, whatever a reply says."""
    headers = openai(renewalperiod_requests=period, renewalperiod_tokens=period)
    assert [window, window] == [item[3] for item in advertised_limits(headers, NOW)]


def test_names_that_are_ignored() -> None:
    """Headers with an unknown unit, an incomplete set, or a long name are no limit."""
    scope = "a" * 100
    headers = {
        "x-ratelimit-limit-images": "5",
        "x-ratelimit-remaining-images": "5",
        "x-ratelimit-limit-tokens": "5",
        "x-ratelimit-remaining-requests": "5",
        f"x-ratelimit-{scope}-limit-requests": "5",
        f"x-ratelimit-{scope}-remaining-requests": "5",
        "ratelimit": '"default";r=1',
    }
    assert [] == advertised_limits(headers, NOW)


@pytest.mark.parametrize(
    ("status", "headers", "read"),
    [
        (200, {}, None),
        (503, DATE, None),
        (429, {}, {}),
        (429, DATE | {"server": "x"}, DATE),
        (200, DATE | {"x-ratelimit-limit": "5", "server": "x"}, DATE | {"x-ratelimit-limit": "5"}),
    ],
    ids=str,
)
def test_heads_that_are_read(status: int, headers: dict[str, str], read: dict[str, str] | None) -> None:
    """The known limits get what a head says about limits; a 429 says something without such a header, too."""
    notes: list[dict[str, Any]] = []

    def note() -> None:
        set_note_sink(notes.append)
        note_reply(status, headers)

    contextvars.copy_context().run(note)

    assert notes == ([] if read is None else [{REPLY_NOTE: {"status": status, "headers": read}}])
