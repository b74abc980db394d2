"""Tokens and cost of a model's reply, as the APIs of OpenAI and Anthropic report them."""

from collections.abc import Mapping
from typing import Final

from evaljournal.runner.tasks.prices import DEFAULT_PRICES, Price, price_of, read_prices

_MAX_COUNT: Final = 2**53
"""A larger count, or an infinite one, is an error of the server; the journal could not store every sum of them."""


def priced_usage(provider_usage: object, model: str, prices: Mapping[str, Price]) -> dict[str, float | str]:
    """Return the tokens and their cost; without a price, `unpriced_calls` is 1 and `unpriced_model` the model."""
    if not isinstance(provider_usage, Mapping):
        return {}
    cache_reads = _count(provider_usage, "cache_read_input_tokens") or 0
    cache_writes = _count(provider_usage, "cache_creation_input_tokens") or 0
    input_tokens = _count(provider_usage, "prompt_tokens", "input_tokens")
    if input_tokens is not None:
        input_tokens += cache_reads + cache_writes  # Anthropic counts them separately.
    output_tokens = _count(provider_usage, "completion_tokens", "output_tokens")
    cached_tokens = cache_reads + (
        _count(provider_usage, "prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens") or 0
    )
    counts = {"input_tokens": input_tokens, "output_tokens": output_tokens, "cached_tokens": cached_tokens or None}
    usage: dict[str, float | str] = {name: value for name, value in counts.items() if value is not None}
    if input_tokens is None or output_tokens is None:
        return usage
    price = price_of(model, prices)
    if price is None or cache_writes:  # Writing to the cache has a price of its own.
        return {**usage, "unpriced_calls": 1, **({"unpriced_model": model} if model else {})}
    return {**usage, "cost": price.cost(input_tokens=input_tokens, output_tokens=output_tokens, cached_tokens=cached_tokens)}


def usage_of_response(response: object) -> dict[str, float | str]:
    """Return the usage in an SDK's response that was returned as an output, converted to JSON."""
    if not isinstance(response, Mapping) or "usage" not in response:
        return {}
    return priced_usage(response["usage"], str(response.get("model") or ""), read_prices(DEFAULT_PRICES))


def _count(provider_usage: object, *paths: str) -> int | None:
    """Return the first count that is reported."""
    for path in paths:
        number = provider_usage
        for name in path.split("."):
            number = number.get(name) if isinstance(number, Mapping) else None
        if isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number <= _MAX_COUNT:
            return int(number)
    return None
