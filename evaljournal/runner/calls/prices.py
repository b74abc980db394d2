"""Prices of tokens, from a TOML file that the user can replace.

The calls of a model that is not in the file have no cost; prices are not guessed.
"""

import functools
import math
import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final, cast

import attrs

from evaljournal.runner.data.toml_file import read_toml
from evaljournal.runner.errors import UsageError, is_whole_number

DEFAULT_PRICES: Final = Path(__file__).with_name("prices.toml")

STANDARD_TIERS: Final = frozenset({"", "auto", "default", "standard", "on_demand"})
"""Names of the service tier with the prices of the table."""
BATCH: Final = "batch"
"""The service tier of a batch."""
BATCH_FACTOR: Final = 0.5
"""Factor of a batch where the table has none: all providers of batches charge half."""
_DATE_SUFFIX: Final = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8}|\d{4}|latest)$")


@attrs.frozen(kw_only=True)
class Tokens:
    """Tokens of a call, by what they cost; `input` includes those that were read from or written to a cache."""

    input: int
    output: int
    cached: int = 0
    cache_writes: int = 0
    cache_writes_1h: int = 0


@attrs.frozen(kw_only=True)
class Price:
    """The price of a model, in dollars per million tokens."""

    input: float
    output: float
    cached: float | None = None
    """Price of cached input tokens (default: that of input)."""
    cache_write: float | None = None
    """Price of input tokens that are written to a cache."""
    cache_write_1h: float | None = None
    """The same for a cache that keeps them for an hour."""
    tiers: Mapping[str, float] = attrs.field(factory=dict[str, float])
    """Service tier → factor for all prices."""
    above: "tuple[int, Price] | None" = None
    """Number of input tokens, and the prices of a request that has more."""

    def cost(self, tokens: Tokens, tier: str = "") -> float | None:
        """Return the cost in dollars; None if the tier, or a kind of tokens, has no price."""
        factor = 1.0 if tier in STANDARD_TIERS else self.tiers.get(tier, BATCH_FACTOR if tier == BATCH else None)
        price = self.above[1] if self.above and tokens.input > self.above[0] else self
        writes = ((tokens.cache_writes, price.cache_write), (tokens.cache_writes_1h, price.cache_write_1h))
        if factor is None or any(count and rate is None for count, rate in writes):
            return None
        write_cost = sum(count * (rate or 0) for count, rate in writes)
        written = tokens.cache_writes + tokens.cache_writes_1h
        cached = min(tokens.cached, max(0, tokens.input - written))  # The counts of a server may contradict each other.
        cached_cost = cached * (price.input if price.cached is None else price.cached)
        input_cost = max(0, tokens.input - cached - written) * price.input
        return round(factor * (input_cost + cached_cost + write_cost + tokens.output * price.output) / 1_000_000, 9)


def read_prices(path: Path) -> Mapping[str, Price]:
    """Read the prices by model from a TOML file, which is read once."""
    return _read_prices(path, None if path.is_absolute() else Path.cwd())[0]


def date_of_prices(path: Path) -> date | None:
    """Return the date of the prices in a file; None if it has none."""
    return _read_prices(path, None if path.is_absolute() else Path.cwd())[1]


@functools.cache
def _read_prices(path: Path, _directory: Path | None) -> tuple[Mapping[str, Price], date | None]:
    """Read prices; `_directory` is part of the cache key, because a relative path depends on it."""
    table = read_toml(path)
    models, day = table.get("models"), table.get("date")
    if not isinstance(models, dict) or not models:
        raise UsageError('no prices; add a table [models."NAME"]', path=path)
    if day is not None and not isinstance(day, date):
        raise UsageError(f"date = {day!r}; expected a date: 2026-11-17", path=path)
    return {name: _price(price, f"price of {name!r}", path) for name, price in cast("Any", models).items()}, day


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """Return the price of a model; a dated version has the price of its name without the date."""
    return prices.get(model) or prices.get(_DATE_SUFFIX.sub("", model))


def _price(value: object, label: str, path: Path) -> Price:
    table = dict(cast("dict[str, Any]", value)) if isinstance(value, dict) else {}
    names = [field.name for field in attrs.fields(Price)]
    if unknown_keys := set(table) - set(names):
        raise UsageError(f"{label}: unknown keys {sorted(unknown_keys)!r}; use {', '.join(names)}", path=path)

    tiers, above = table.pop("tiers", {}), table.pop("above", None)
    if not isinstance(tiers, dict):
        raise UsageError(f"{label}: tiers = {tiers!r}; expected a table: tiers = {{ batch = 0.5 }}", path=path)

    for name, number in {**table, **tiers}.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not (math.isfinite(number) and number >= 0):
            raise UsageError(f"{label}: {name} = {number!r}; expected dollars per million tokens, 0 or more", path=path)
    if not {"input", "output"} <= set(table):
        raise UsageError(f"{label} needs input and output", path=path)
    return Price(**table, tiers=tiers, above=_price_above(above, label, path))


def _price_above(table: object, label: str, path: Path) -> tuple[int, Price] | None:
    if table is None:
        return None
    rates = dict(cast("dict[str, Any]", table)) if isinstance(table, dict) else {}
    tokens = rates.pop("tokens", None)
    if not is_whole_number(tokens, 1):
        hint = "above = { tokens = 200_000, input = 2.50, output = 15.00 }"
        raise UsageError(f"{label}: above needs tokens, a whole number", path=path, hint=hint)
    return tokens, _price(rates, f"{label} above {tokens:,} tokens", path)
