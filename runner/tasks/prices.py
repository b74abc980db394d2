"""Prices of tokens, from a TOML file that the user can replace.

The calls of a model that is not in the file have no cost; prices are not guessed.
"""

import functools
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import attrs

from evaljournal.runner.data.toml_file import read_toml
from evaljournal.runner.errors import UsageError

DEFAULT_PRICES: Final = Path(__file__).with_name("prices.toml")

_DATE_SUFFIX: Final = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8}|\d{4}|latest)$")


@attrs.frozen(kw_only=True)
class Price:
    """The price of a model, in dollars per million tokens."""

    input: float
    output: float
    cached: float | None = None
    """Price of cached input tokens (default: that of input)."""

    def cost(self, *, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> float:
        """Return the cost in dollars; `input_tokens` includes the cached ones."""
        cached_tokens = min(cached_tokens, input_tokens)
        cached_price = self.input if self.cached is None else self.cached
        input_cost = (input_tokens - cached_tokens) * self.input + cached_tokens * cached_price
        return round((input_cost + output_tokens * self.output) / 1_000_000, 9)


def read_prices(path: Path) -> Mapping[str, Price]:
    """Read the prices by model from a TOML file, which is read once."""
    return _read_prices(path, None if path.is_absolute() else Path.cwd())


@functools.cache
def _read_prices(path: Path, _directory: Path | None) -> Mapping[str, Price]:
    """Read prices; `_directory` is part of the cache key, because a relative path depends on it."""
    models = read_toml(path).get("models")
    if not isinstance(models, dict) or not models:
        raise UsageError('no prices; add a table [models."NAME"]', path=path)
    return {name: _price(price, f"price of {name!r}", path) for name, price in cast("Any", models).items()}


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """Return the price of a model; a dated version has the price of its name without the date."""
    return prices.get(model) or prices.get(_DATE_SUFFIX.sub("", model))


def _price(value: object, label: str, path: Path) -> Price:
    table = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    names = {field.name for field in attrs.fields(Price)}
    if unknown_keys := set(table) - names:
        raise UsageError(f"{label}: unknown keys {sorted(unknown_keys)!r}; use input, output and cached", path=path)
    for name, price in table.items():
        if isinstance(price, bool) or not isinstance(price, int | float) or not (math.isfinite(price) and price >= 0):
            raise UsageError(f"{label}: {name} = {price!r}; expected dollars per million tokens, 0 or more", path=path)
    if not {"input", "output"} <= set(table):
        raise UsageError(f"{label} needs input and output", path=path)
    return Price(**cast("dict[str, float]", table))
