"""Tokens and cost of a model's reply, as the APIs of OpenAI, Anthropic, Gemini and OpenRouter report them."""

from collections.abc import Mapping
from typing import Final

from evaljournal.replay.provider.reports import Report
from evaljournal.runner.calls.prices import DEFAULT_PRICES, Price, Tokens, price_of, read_prices

_OBJECT: Final = (dict, Mapping)
"""A JSON object is a dict; the check for an abstract class takes much longer."""
_Path = tuple[str, str]
"""Name of a count, or of an object and of the count in it."""
_CACHED: Final[tuple[_Path, ...]] = (
    ("prompt_tokens_details", "cached_tokens"),
    ("input_tokens_details", "cached_tokens"),
    ("cachedContentTokenCount", ""),
    ("cache_read_input_tokens", ""),
)
_WRITTEN: Final[tuple[_Path, ...]] = (
    ("prompt_tokens_details", "cache_write_tokens"),
    ("input_tokens_details", "cache_write_tokens"),
    ("cache_creation_input_tokens", ""),
)
_WRITTEN_1H: Final[tuple[_Path, ...]] = (("cache_creation", "ephemeral_1h_input_tokens"),)
_INPUT_WITH_CACHES: Final[tuple[_Path, ...]] = (("prompt_tokens", ""), ("promptTokenCount", ""))
"""They include caches; so do OpenAI's responses."""
_INPUT: Final[tuple[_Path, ...]] = (("input_tokens", ""),)
_TOOL_USE: Final[tuple[_Path, ...]] = (("toolUsePromptTokenCount", ""),)
_OUTPUT: Final[tuple[_Path, ...]] = (("completion_tokens", ""), ("output_tokens", ""), ("candidatesTokenCount", ""))
_THOUGHTS: Final[tuple[_Path, ...]] = (("thoughtsTokenCount", ""),)
_REASONING: Final[tuple[_Path, ...]] = (
    ("completion_tokens_details", "reasoning_tokens"),
    ("output_tokens_details", "reasoning_tokens"),
    ("output_tokens_details", "thinking_tokens"),
    *_THOUGHTS,
)
"""Where the APIs report a count: the first that is reported applies."""
_ALWAYS_RECORDED: Final = ("input_tokens", "output_tokens")
"""Counts that are recorded even if they are 0."""
_MAX_COUNT: Final = 2**53
"""A larger count, or an infinite one, is an error of the server; the journal could not store every sum of them."""


def priced_usage(
    provider_usage: object, model: str, prices: Mapping[str, Price], tier: object = None
) -> dict[str, float | str]:
    """Return the tokens and their cost; without a price, `unpriced_calls` is 1 and `unpriced_model` the model.

    The same applies if a model has a price, but its reply no count of tokens. The cost that the provider itself reports wins.
    `tier` is the service tier of the reply.
    """
    price = price_of(model, prices)
    if not isinstance(provider_usage, _OBJECT):
        return _unknown_cost(f"{model} without usage") if price else {}

    tokens = _tokens(provider_usage)
    reasoning = _count(provider_usage, _REASONING)
    usage: dict[str, float | str] = {
        name: value for name, value in tokens.items() if value or (value is not None and name in _ALWAYS_RECORDED)
    }
    if reasoning:
        usage["reasoning_tokens"] = reasoning

    cost = provider_usage.get("cost")
    if isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost <= _MAX_COUNT:
        return {**usage, "cost": float(cost)}

    input_tokens, output_tokens = tokens["input_tokens"], tokens["output_tokens"]
    if input_tokens is None or output_tokens is None:
        return {**usage, **(_unknown_cost(f"{model} without usage") if price else {})}
    if price is None:
        return {**usage, **_unknown_cost(model)}

    written = tokens["cache_write_tokens"] or 0
    writes_1h = min(one_hour_writes(provider_usage), written) if written else 0
    counts = Tokens(
        input=input_tokens,
        output=output_tokens,
        cached=tokens["cached_tokens"] or 0,
        cache_writes=written - writes_1h,
        cache_writes_1h=writes_1h,
    )
    tier = tier or provider_usage.get("service_tier")
    dollars = price.cost(counts, tier if isinstance(tier, str) else "")
    if dollars is None:
        return {**usage, **_unknown_cost(model)}
    return {**usage, "cost": dollars}


def one_hour_writes(provider_usage: Mapping[str, object]) -> int:
    """Return how many tokens were written to a cache that keeps them for an hour."""
    return _count(provider_usage, _WRITTEN_1H) or 0


def _unknown_cost(model: str) -> dict[str, float | str]:
    return {"unpriced_calls": 1, **({"unpriced_model": model} if model else {})}


def _tokens(provider_usage: Mapping[str, object]) -> dict[str, int | None]:
    """Return the tokens in one meaning: input includes those of caches, output those of reasoning."""
    cached, written = _count(provider_usage, _CACHED) or 0, _count(provider_usage, _WRITTEN) or 0
    input_tokens = _count(provider_usage, _INPUT_WITH_CACHES)
    if input_tokens is not None:
        if "toolUsePromptTokenCount" in provider_usage:
            input_tokens += _count(provider_usage, _TOOL_USE) or 0  # Gemini counts them separately.
    elif (input_tokens := _count(provider_usage, _INPUT)) is not None:
        is_apart = not isinstance(provider_usage.get("input_tokens_details"), Mapping)  # Anthropic counts caches separately.
        input_tokens += cached + written if is_apart else 0

    output_tokens = _count(provider_usage, _OUTPUT)
    if output_tokens is None and "promptTokenCount" in provider_usage:
        output_tokens = 0  # Gemini omits counts of 0.
    if output_tokens is not None and "thoughtsTokenCount" in provider_usage:
        output_tokens += _count(provider_usage, _THOUGHTS) or 0  # Gemini counts them separately.

    return {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "cached_tokens": cached,
        "cache_write_tokens": written,
    }


def usage_of_response(response: object) -> dict[str, float | str]:
    """Return the usage in an SDK's response that was returned as an output, converted to JSON."""
    if not isinstance(response, _OBJECT):
        return {}
    report = Report()
    report.add(response)
    return reported_usage(report)


def reported_usage(report: Report) -> dict[str, float | str]:
    """Return the tokens that a reply reports, and their cost by the built-in prices."""
    return priced_usage(report.usage, report.model, read_prices(DEFAULT_PRICES), report.tier)


def _count(provider_usage: Mapping[str, object], paths: tuple[_Path, ...]) -> int | None:
    """Return the first count that is reported."""
    for name, detail in paths:
        number = provider_usage.get(name)
        if detail and number is not None:
            number = number.get(detail) if isinstance(number, _OBJECT) else None
        if number is None:
            continue
        if isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number <= _MAX_COUNT:
            return int(number)
    return None
