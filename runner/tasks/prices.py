"""What tokens cost, from a table in a file that the user can replace.

A model that the table does not know costs an unknown amount, and nothing is said; a guess would be added up with the rest.
"""

import functools
import math
import re
import tomllib
from pathlib import Path
from typing import Any, Final, cast

import attrs

from runner.errors import UsageError

OURS: Final = Path(__file__).with_name("prices.toml")

_DATED: Final = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8}|\d{4}|latest)$")


@attrs.frozen(kw_only=True)
class Price:
    """The price of one model, in dollars for a million tokens."""

    input: float
    output: float
    cached: float | None = None
    """Of input that the maker had seen before."""

    def cost(self, *, asked: int, answered: int, cached: int = 0) -> float:
        """Dollars for so many tokens; those of `asked` that were cached are among them."""
        cached = min(cached, asked)
        rate = self.input if self.cached is None else self.cached
        return round(((asked - cached) * self.input + cached * rate + answered * self.output) / 1_000_000, 9)


class Prices:
    """A table of prices."""

    def __init__(self, models: dict[str, Price]) -> None:
        self._models = models

    @classmethod
    def read(cls, path: Path = OURS) -> "Prices":
        """Read a table from a file."""
        try:
            table = tomllib.loads(path.read_text())
        except OSError as exc:
            raise UsageError(f"the prices in {path} cannot be read: {exc.strerror}") from exc
        except ValueError as exc:  # not TOML, or not text
            raise UsageError(f"the prices in {path} are not TOML: {exc}") from exc
        models = table.get("models")
        if not isinstance(models, dict) or not models:
            raise UsageError(f'the prices in {path} have no [models."NAME"]')
        return cls({name: _price(each, f"{path}: the price of {name!r}") for name, each in cast("Any", models).items()})

    def of(self, model: str) -> Price | None:
        """Find the price of a model; of a dated version, that of its name without the date."""
        return self._models.get(model) or self._models.get(_DATED.sub("", model))


def _price(given: object, what: str) -> Price:
    said = cast("dict[str, object]", given) if isinstance(given, dict) else {}
    known = {field.name for field in attrs.fields(Price)}
    if unknown := set(said) - known:
        raise UsageError(f"{what} has {sorted(unknown)!r}; there are input, output and cached")
    for name, value in said.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
            raise UsageError(f"{what}: {name} = {value!r}; give dollars for a million tokens, 0 or more")
    if not {"input", "output"} <= set(said):
        raise UsageError(f"{what} needs input and output")
    return Price(**cast("dict[str, float]", said))


@functools.cache
def read_prices(path: Path) -> Prices:
    """Read a table once."""
    return Prices.read(path)
