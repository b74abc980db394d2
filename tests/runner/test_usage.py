"""Tokens and cost: what is priced, what is not, and what is counted separately."""

from pathlib import Path
from typing import Any

import attrs
import pytest

from evaljournal import Case, evaluation, note, scorers
from evaljournal.journal.events import AttemptSucceeded, Noted
from evaljournal.replay.render.summary import billed_usage, usage_text
from evaljournal.replay.results.summary import summarize
from evaljournal.replay.text import money
from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.calls.prices import Price
from evaljournal.runner.calls.usage import priced_usage
from evaljournal.runner.retries.classify import classify
from tests.replay.trial_events import answered, state_of
from tests.runs import define_real, events, run_real
from tests.server import Server

PRICES = {"small": Price(input=1.0, output=2.0, cached=0.5)}
CHAT = {"prompt_tokens": 1000, "completion_tokens": 0}
RESPONSE = {"input_tokens": 1000, "output_tokens": 0}
UNPRICED = {"unpriced_calls": 1, "unpriced_model": "small"}
NO_USAGE = {"unpriced_calls": 1, "unpriced_model": "small without usage"}


def tokens(sent: int, received: int, **others: Any) -> dict[str, Any]:
    """Return a usage."""
    return {"input_tokens": sent, "output_tokens": received, **others}


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ({**CHAT, "completion_tokens": 500}, tokens(1000, 500, cost=0.002)),
        ({**RESPONSE, "output_tokens": 500}, tokens(1000, 500, cost=0.002)),
        ({**CHAT, "prompt_tokens_details": {"cached_tokens": 400}}, tokens(1000, 0, cached_tokens=400, cost=0.0008)),
        (
            {**RESPONSE, "output_tokens": 90, "cache_read_input_tokens": 400, "output_tokens_details": {"thinking_tokens": 60}},
            tokens(1400, 90, cached_tokens=400, reasoning_tokens=60, cost=0.00138),
        ),
        ({**RESPONSE, "cache_creation_input_tokens": 400}, tokens(1400, 0, cache_write_tokens=400, **UNPRICED)),
        ({**CHAT, "cost": 0.25, "cost_details": {"upstream_inference_cost": 1}}, tokens(1000, 0, cost=0.25)),
        (
            {**RESPONSE, "output_tokens": 500, "output_tokens_details": {"reasoning_tokens": 400}},
            tokens(1000, 500, reasoning_tokens=400, cost=0.002),
        ),
        (
            {
                "promptTokenCount": 1000,
                "toolUsePromptTokenCount": 50,
                "cachedContentTokenCount": 400,
                "candidatesTokenCount": 100,
                "thoughtsTokenCount": 400,
            },
            tokens(1050, 500, cached_tokens=400, reasoning_tokens=400, cost=0.00185),
        ),
        ({"promptTokenCount": 1000, "totalTokenCount": 1000}, tokens(1000, 0, cost=0.001)),
        ({**RESPONSE, "service_tier": "priority"}, tokens(1000, 0, **UNPRICED)),
        (
            {**CHAT, "prompt_tokens_details": {"cached_tokens": 800}, "cache_read_input_tokens": 800},
            tokens(1000, 0, cached_tokens=800, cost=0.0006),
        ),
        ({**RESPONSE, "input_tokens_details": {"cached_tokens": 800}}, tokens(1000, 0, cached_tokens=800, cost=0.0006)),
        ({"cost": float("nan"), "prompt_tokens": 10**30}, NO_USAGE),
        ({"prompt_tokens": True, "completion_tokens": -1}, NO_USAGE),
        ("1000", NO_USAGE),
    ],
)
def test_usage_of_providers(reported: Any, expected: dict[str, Any]) -> None:
    """Token counts of all APIs are read; a reported cost wins; a call without a known cost is counted as an unpriced one."""
    assert expected == priced_usage(reported, "small", PRICES)


@pytest.mark.parametrize(
    ("reported", "tier", "cost"),
    [
        ({**CHAT, "prompt_tokens_details": {"cache_write_tokens": 1000}}, None, 0.0025),
        ({**RESPONSE, "input_tokens_details": {"cache_write_tokens": 1000}}, None, 0.0025),
        (CHAT, "flex", 0.001),
        (
            {
                "input_tokens": 0,
                "output_tokens": 0,
                "cache_creation_input_tokens": 1000,
                "cache_creation": {"ephemeral_5m_input_tokens": 600, "ephemeral_1h_input_tokens": 400},
            },
            None,
            0.0031,
        ),
    ],
)
def test_cost_of_cache_writes_and_tiers(reported: Any, tier: str | None, cost: float) -> None:
    """Tokens that are written to a cache, for minutes or an hour, and service tiers are priced."""
    prices = {"m": Price(input=2.0, output=10.0, cache_write=2.5, cache_write_1h=4.0, tiers={"flex": 0.5})}

    assert cost == priced_usage(reported, "m", prices, tier)["cost"]


def test_unpriced_calls_and_judges_are_shown(server: Server, path: Path, name: str) -> None:
    """An incomplete cost is marked as such, and a judge's cost is shown separately."""
    url = server.url(name, "ok", "v1")
    defined = define_real(Chat("no-such-model", base_url=url), [Case(name=name, input="lima") for name in "ab"])
    defined.score(name="judge")(
        scorers.judge("gpt-4o", base_url=url, rubric="{output}\n\nverdict: correct", choices={"correct": 1, "b": 0})
    )
    outcome = run_real(defined, path, retry={"errors": 0})

    usage = outcome.state.usage
    assert (2, 2000, 2000) == (usage["unpriced_calls"], usage["input_tokens"], usage["judge.input_tokens"])
    assert ("cost" not in usage, 0.007) == (True, round(usage["judge.cost"], 6))
    text = usage_text(billed_usage(usage), outcome.state.usage_parts.unpriced_models)
    assert "2 calls without a price (no-such-model)" in text
    assert "judge cost $0.00700" in text


def test_models_without_a_price_are_named() -> None:
    """A few models are named, those of judges separately; more are only counted."""
    usages = [{"unpriced_calls": 1, "unpriced_model": f"m{number % 5}"} for number in range(10)]
    judge = Noted(
        trial="c0", attempt=1, name="evaljournal.judge_usage", value={"usage": {"unpriced_calls": 1, "unpriced_model": "j"}}
    )
    trials = [answered(f"c{number}", usage=usage) for number, usage in enumerate(usages)]
    state = state_of([*(event for trial in trials for event in trial), judge])

    expected = "10 calls without a price (m0, m1, m2, 2 more) · 1 judge call without a price (j)"
    assert expected == usage_text(billed_usage(state.usage), state.usage_parts.unpriced_models)
    assert {"unpriced_calls": ["m0", "m1", "m2", "m3", "m4"], "judge.unpriced_calls": ["j"]} == summarize(state).unpriced_models


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "$0.00"), (2.34e-05, "$0.0000234"), (0.0342, "$0.0342"), (0.5, "$0.500"), (1234.5, "$1,234.50")]
)
def test_money(amount: float, text: str) -> None:
    """Amounts have a currency and no exponent."""
    assert text == money(amount)


@attrs.frozen
class Response:
    """An SDK's response, as a task may return it."""

    usage: dict[str, int]
    model: str = "gpt-4o-2024-11-20"


@pytest.mark.parametrize("noted", [False, True])
def test_usage_of_a_returned_response(path: Path, *, noted: bool) -> None:
    """The usage of a response that a task returns is recorded, unless the task has noted it."""

    @evaluation(cases=[Case(name="a", input="a")])
    def answer(_: str) -> Response:
        response = Response({"prompt_tokens": 1000, "completion_tokens": 100})
        if noted:
            note(usage=response.usage)
        return response

    run_real(answer, path)
    (ended,) = events(path, AttemptSucceeded)
    assert (None if noted else {"input_tokens": 1000, "output_tokens": 100, "cost": 0.0035}) == ended.usage


def test_litellm_retry_after() -> None:
    """With litellm, the headers of the response are in an attribute of its own."""

    class RateLimitError(Exception):
        litellm_response_headers = {"retry-after": "7"}  # noqa: RUF012  # as litellm does

    failure = classify(RateLimitError(), now=0.0)
    assert ("rate_limited", 7.0) == (failure.category, failure.retry_after)
