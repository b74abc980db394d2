"""Budgets as the user writes them: units and amounts."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from evaljournal.replay.state.budget import UNITS, Amounts
from evaljournal.runner.errors import UsageError, suggest

OFF: Final = "none"
"""Turns a setting off, or removes one unit of a budget."""

BudgetValue = Mapping[str, float | str | None] | list[str] | tuple[str, ...] | str | None
"""A budget as a user may write it: `{"cost": 5}`, `"cost=5"` or several such strings."""

_NUMBER: Final = re.compile(r"((?:\d+(?:\.\d*)?|\.\d+)(?:e-?\d+)?)\s*([kKmM]?)", re.ASCII)
_MAX_AMOUNT: Final = 10**12
_FACTORS: Final = {"": 1, "k": 1_000, "m": 1_000_000}


def parse_budget(setting: str, value: BudgetValue, base: Mapping[str, float] | None = None) -> Amounts | None:
    """Parse a budget; units that it does not name are those of `base`. None removes a unit, or the whole budget."""
    if value is None or value == OFF or (isinstance(value, list | tuple) and list(cast("Iterable[str]", value)) == [OFF]):
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


def parse_amount(value: object, *, setting: str, shown: object) -> float:
    """Return a number above 0, written as 200000, `200k` or `1.5M`; an error shows the value as `shown`."""
    amount: object = value
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        amount = float(match[1]) * _FACTORS[match[2].lower()] if match else None
    is_number = isinstance(amount, int) or (
        isinstance(amount, float) and math.isfinite(amount)
    )  # `isfinite` fails for 10**400.
    if not isinstance(amount, int | float) or not is_number or isinstance(amount, bool) or amount <= 0:
        raise UsageError("must be a number above 0; k stands for thousands, M for millions", setting=setting, value=shown)
    if amount > _MAX_AMOUNT:
        raise UsageError(f"must be at most {_MAX_AMOUNT:,}", setting=setting, value=shown)
    return float(amount)
