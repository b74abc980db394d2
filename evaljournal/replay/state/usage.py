"""Sums of usage: tokens and cost."""

import math
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Final, TypeGuard

from evaljournal.journal.events import NOTE_PREFIX, LimitUnit
from evaljournal.journal.format.codec import MAX_INTEGER
from evaljournal.replay.state.answers import ANSWER

JUDGE_NOTE: Final = f"{NOTE_PREFIX}judge"
"""Name of the note with a judge's call: `scorer`, `model`, `prompt`, `reminder` and `reply`."""
JUDGE_USAGE: Final = f"{NOTE_PREFIX}judge_usage"

_NUMBER: Final = (int, float)


def is_amount(value: object) -> TypeGuard[float]:
    """Return whether a value is a number that can be added up; booleans are not."""
    return isinstance(value, _NUMBER) and not isinstance(value, bool)


def as_integer(amount: float) -> int:
    """Return an amount, such as tokens, as an integer that JSON can hold; in a foreign journal it may be any number."""
    return int(max(-MAX_INTEGER, min(amount, MAX_INTEGER)))


def noted_usage(name: str, value: Any) -> Any:
    """Return the usage in a note: that of an answer, the value of a note named `usage`, `{name: value}` for any other.

    A judge's usage is counted separately: `judge.cost`.
    """
    if name == ANSWER:
        return value.get("usage") if isinstance(value, dict) else None
    if name == JUDGE_USAGE:
        usage = value.get("usage") if isinstance(value, dict) else None
        return {f"judge.{unit}": amount for unit, amount in usage.items()} if isinstance(usage, dict) else None
    return value if name == "usage" else {name: value}


def unpriced_models(usage: Any) -> list[tuple[str, str]]:
    """Return each model without a price in some usage, after the name of the sum that counts its calls."""
    models: list[tuple[str, str]] = []
    if isinstance(usage, dict):
        if isinstance(model := usage.get("unpriced_model"), str):
            models.append(("unpriced_calls", model))
        if isinstance(model := usage.get("judge.unpriced_model"), str):
            models.append(("judge.unpriced_calls", model))
    return models


def add(sums: MutableMapping[str, Any], usage: Any) -> None:
    """Add usage to sums; values that are not numbers are ignored."""
    if isinstance(usage, dict):
        for name, value in usage.items():
            if isinstance(value, _NUMBER) and value.__class__ is not bool:  # `is_amount`, without a call for each value.
                sums[name] = sums.get(name, 0) + value


def summed(usages: Iterable[Any]) -> dict[str, Any]:
    """Return the sums of usage; values that are not numbers are ignored."""
    sums: dict[str, Any] = {}
    for usage in usages:
        add(sums, usage)
    return sums


def cost_of(usages: Iterable[Any]) -> float:
    """Return the sum of the costs; NaN if none is reported, or a call has no price."""
    sums: dict[str, Any] = {}
    for usage in usages:
        add(sums, usage)
    return math.nan if "cost" not in sums or sums.get("unpriced_calls") else float(sums["cost"])


def real_tokens(usage: Mapping[str, object] | None) -> dict[LimitUnit, float]:
    """Return the tokens of a call as rate limits count them: those that are read from a cache do not count.

    Replies and foreign journals are untrusted, so numbers that are no counts are ignored.
    """
    tokens: dict[LimitUnit, float] = {}
    if usage:
        if _is_count(input_tokens := usage.get("input_tokens")):
            tokens["input_tokens"] = input_tokens
            if (cached_tokens := usage.get("cached_tokens")) is not None and _is_count(cached_tokens):
                tokens["input_tokens"] = max(input_tokens - cached_tokens, 0)
        if _is_count(output_tokens := usage.get("output_tokens")):
            tokens["output_tokens"] = output_tokens
            if "input_tokens" in tokens:
                tokens["tokens"] = tokens["input_tokens"] + output_tokens
    return tokens


def _is_count(value: object) -> TypeGuard[float]:
    return isinstance(value, _NUMBER) and 0 <= value <= MAX_INTEGER and not isinstance(value, bool)


def total(usage: Mapping[str, float], name: str) -> float | None:
    """Return a sum over tasks and judges (`cost`, `judge.cost`); None if neither is recorded.

    `tokens` is the sum of input and output tokens, where they are recorded separately.
    """
    if name == "tokens":
        parts = [part for part in (total(usage, "input_tokens"), total(usage, "output_tokens")) if part is not None]
        if parts:
            return sum(parts)
    amounts = [amount for unit, amount in usage.items() if unit.rpartition(".")[2] == name]
    return sum(amounts) if amounts else None


def subtract(sums: MutableMapping[str, Any], usage: Any) -> None:
    """Subtract usage from sums that contain it; a sum that becomes 0 is removed."""
    for name, value in usage.items() if isinstance(usage, dict) else ():
        if is_amount(value):
            sums[name] = round(sums.get(name, 0) - value, 12)
            if not sums[name]:
                del sums[name]
