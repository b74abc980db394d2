"""Budgets as the user writes them: units and amounts."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from evaljournal.replay.state.budget import UNITS, Amounts
from evaljournal.runner.definition.amounts import OFF, parse_amount
from evaljournal.runner.errors import UsageError, suggest

BudgetValue = Mapping[str, float | str | None] | list[str] | tuple[str, ...] | str | None
"""A budget as a user may write it: `{"cost": 5}`, `"cost=5"` or several such strings."""


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
