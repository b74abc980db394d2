"""Declared rate limits and budgets as the user writes them.

Of rate limits also the values that apply to a model, and whether headers of replies count.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from evaljournal.replay.state.budget import UNITS, Amounts
from evaljournal.replay.text import as_words, rate_limit_text, window_text
from evaljournal.runner.calls.dialects import split_model
from evaljournal.runner.concurrency.limits import DECLARED
from evaljournal.runner.definition.amounts import OFF, parse_amount
from evaljournal.runner.errors import UsageError, suggest

LimitsValue = Mapping[str, Any] | None
"""Limits as a user may write them: `{"rpm": 500, "gpt-5.6-luna": {"rpm": 100}}`, or `{"rpm": ["500", "gpt-5.6-luna=100"]}`;
with `{"headers": "ignore"}`, only these apply."""
_HEADERS: Final = "headers"
HEADER_MODES: Final = ("read", "ignore")
"""Whether the limits in the headers of replies apply; the first is the default."""
_EXAMPLE: Final = "{'MODEL': {'rpm': 500}}"
_ORDER: Final = list(DECLARED)
_Sizes = dict[tuple[str, str], float]
"""Model (empty: all) and name of a limit → its size; infinite if the limit of all models does not apply to this one."""

BudgetValue = Mapping[str, float | str | None] | list[str] | tuple[str, ...] | str | None
"""A budget as a user may write it: `{"cost": 5}`, `"cost=5"` or several such strings."""


def parse_limits(value: LimitsValue, base: LimitsValue = None) -> Mapping[str, Any] | None:
    """Parse declared limits; those that `value` does not name are those of `base`. None removes one, or all of them.

    For a single model, it also exempts the model from the limit of all models.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise UsageError("must map names of limits to numbers, such as {'rpm': 500}", setting="limits", value=value)

    sizes, names = _flatten(base or {}), set[tuple[str, str]]()
    for model, name, amount in _items(value):
        shown = f"{model}={amount}" if model else amount
        if (model, name) in names:
            raise UsageError("is set twice", setting=f"limits.{name}", value=shown)
        names.add((model, name))
        if amount is None or amount == OFF:
            sizes[model, name] = math.inf
            continue
        sizes[model, name] = parse_amount(amount, setting=f"limits.{name}", shown=shown)
        if sizes[model, name] < 1:
            raise UsageError("must be at least 1", setting=f"limits.{name}", value=shown)

    limits: dict[str, Any] = {}
    for model, name in sorted(sizes, key=lambda key: (key[0], _ORDER.index(key[1]))):
        if (size := sizes[model, name]) < math.inf:
            (limits.setdefault(model, {}) if model else limits)[name] = size
        elif model and sizes.get(("", name), math.inf) < math.inf:
            limits.setdefault(model, {})[name] = OFF
    return limits | _parse_headers(value, base or {}) or None


def _parse_headers(value: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    mode = value.get(_HEADERS, base.get(_HEADERS, "read"))
    if mode in HEADER_MODES:
        return {_HEADERS: mode} if mode != "read" else {}
    if isinstance(mode, Mapping):
        return {}  # A model of this name.
    raise UsageError(f"must be {' or '.join(map(repr, HEADER_MODES))}", setting="limits.headers", value=mode)


def ignores_headers(limits: LimitsValue) -> bool:
    """Return whether the rate limits in the headers of replies do not apply."""
    return (limits or {}).get(_HEADERS) == "ignore"


def _items(value: Mapping[Any, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield the model (empty: all), the name and the amount of each limit as it is written."""
    for name, item in value.items():
        is_model = isinstance(item, Mapping)
        if name == _HEADERS and not is_model:
            continue
        names = cast("Mapping[str, Any]", item) if is_model else {name: item}
        if not item and isinstance(item, Mapping | list | tuple):
            raise UsageError(f"limits: {name!r} has no value; write {_EXAMPLE if is_model else {name: 500}}, or omit it")

        for limit, amounts in names.items():
            if limit not in DECLARED:
                hint = suggest(str(limit), [*DECLARED, _HEADERS]) or f"; use {', '.join(DECLARED)}, of one model {_EXAMPLE}"
                raise UsageError(f"limits: unknown limit {limit!r}{hint}")
            for amount in amounts if isinstance(amounts, list | tuple) and not is_model else [amounts]:
                model, separator, text = amount.rpartition("=") if isinstance(amount, str) else ("", "", amount)
                if separator and (is_model or not model.strip()):
                    raise UsageError("expected a number, or MODEL=NUMBER", setting=f"limits.{limit}", value=amount)
                yield str(name) if is_model else model.strip(), limit, text.strip() if isinstance(text, str) else text


def _flatten(limits: Mapping[str, Any]) -> _Sizes:
    return {(model, name): math.inf if size == OFF else size for model, name, size in _items(limits)}


def declared_limits(limits: LimitsValue, model: str = "", shards: int = 1) -> dict[str, float]:
    """Return the declared limits of a model: name → size. Each of several shards gets its part.

    `limits` are those of the settings. With a `limit_key`, `model` is its value. The prefix of a dialect does not matter.
    """
    sizes = _flatten(limits or {})
    own_sizes = {name: size for (key, name), size in sizes.items() if key and split_model(key)[1] == split_model(model)[1]}
    sizes_of_all = {name: size for (key, name), size in sizes.items() if not key}
    return {name: size / shards for name, size in (sizes_of_all | own_sizes).items() if size < math.inf}


def check_limits(limits: LimitsValue, *, models: set[str] | None, shards: int, problem: str) -> None:
    """Raise a `UsageError` if limits cannot apply.

    `models` are those that are called; None if they are unknown. `problem` says why tokens cannot be counted, empty if they
    can.
    """
    names = None if models is None else {split_model(model)[1] for model in models}
    for (model, name), size in _flatten(limits or {}).items():
        amount = f"{size:.15g}" if size < math.inf else OFF
        setting, shown = f"limits.{name}", f"{model}={amount}" if model else amount
        if model and names is not None and (own_name := split_model(model)[1]) not in names:
            hint = suggest(own_name, names) or f"; models: {', '.join(sorted(names)) or 'none'}"
            raise UsageError(f"no task or judge calls the model {own_name!r}{hint}", setting=setting, value=shown)
        if DECLARED[name][0] != "requests" and not model and problem:
            raise UsageError(problem, setting=setting, value=shown)
        if size < shards:
            raise UsageError(f"is less than 1 for each of {shards:,} shards", setting=setting, value=shown)


def describe_limits(limits: LimitsValue) -> str:
    """Return declared limits as text: `500 requests per minute, 200k tokens per minute; gpt-5.6-luna: …`."""
    by_model: dict[str, list[str]] = {}
    for (model, name), size in _flatten(limits or {}).items():
        unit, window = DECLARED[name]
        limit = (
            rate_limit_text(unit, size, window)
            if size < math.inf
            else f"any number of {as_words(unit)} per {window_text(window)}"
        )
        by_model.setdefault(model, []).append(limit)
    return "; ".join(f"{model}: {', '.join(texts)}" if model else ", ".join(texts) for model, texts in by_model.items())


def parse_budget(setting: str, value: BudgetValue, base: Mapping[str, float] | None = None) -> Amounts | None:
    """Parse a budget; units that it does not name are those of `base`. None removes a unit, or the whole budget."""
    if value in (None, OFF, [OFF], (OFF,)):
        return None
    amounts = dict(base or {})
    for unit, amount in _pairs(setting, value):
        if unit not in UNITS:
            hint = suggest(unit, UNITS) or f"; use {', '.join(UNITS)}"
            raise UsageError(f"unknown unit {unit!r}{hint}", setting=setting, value=f"{unit}={amount}")
        if amount is None or amount == OFF:
            amounts.pop(unit, None)
        else:
            amounts[unit] = _number(setting, unit, amount)
    return amounts or None


def _pairs(setting: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(unit), amount) for unit, amount in value.items()]
    pairs: dict[str, Any] = {}
    for text in [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else [None]:
        unit, separator, amount = text.partition("=") if isinstance(text, str) else ("", "", "")
        if not separator:
            raise UsageError("expected UNIT=AMOUNT, such as cost=5", setting=setting, value=value if text is None else text)
        if unit.strip() in pairs:
            raise UsageError(f"{unit.strip()} is set twice", setting=setting, value=text)
        pairs[unit.strip()] = amount.strip()
    return list(pairs.items())


def _number(setting: str, unit: str, value: Any) -> float:
    amount = value.removeprefix("$") if unit == "cost" and isinstance(value, str) else value
    return parse_amount(amount, setting=setting, shown=f"{unit}={value}")
