"""Amounts as the user writes them, in any setting: `200k`, `1.5M`, `none`."""

import math
import re
from typing import Final

from evaljournal.runner.errors import UsageError

OFF: Final = "none"
"""Turns a setting off, or removes one of its parts."""

_NUMBER: Final = re.compile(r"((?:\d+(?:\.\d*)?|\.\d+)(?:e-?\d+)?)\s*([kKmM]?)", re.ASCII)
_MAX_AMOUNT: Final = 10**12
_FACTORS: Final = {"": 1, "k": 1_000, "m": 1_000_000}


def parse_amount(value: object, *, setting: str, shown: object) -> float:
    """Return a number above 0, written as 200000, `200k` or `1.5M`; an error shows the value as `shown`."""
    amount: object = value
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        amount = float(match[1]) * _FACTORS[match[2].lower()] if match else None
    if not isinstance(amount, int | float) or isinstance(amount, bool) or not 0 < amount < math.inf:  # Also if it is NaN.
        raise UsageError("must be a number above 0; k stands for thousands, M for millions", setting=setting, value=shown)
    if amount > _MAX_AMOUNT:
        raise UsageError(f"must be at most {_MAX_AMOUNT:,}", setting=setting, value=shown)
    return float(amount)
