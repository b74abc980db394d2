"""Sums of what attempts use (tokens, cost), as reported with attempts and in notes."""

from collections.abc import MutableMapping
from typing import Any, Final, TypeGuard

from journal.events import OWN_NOTE

_JUDGE: Final = f"{OWN_NOTE}judge"
"""The note of a judge's call."""


def is_amount(value: object) -> TypeGuard[float]:
    """Return whether a value is a number that can be added up; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def noted_usage(name: str, value: Any) -> Any:
    """Return a note as usage: the value of the note `usage` itself, and `{name: value}` for any other note.

    A judge's usage is counted separately: `judge.cost`.
    """
    if name == _JUDGE:
        usage = value.get("usage") if isinstance(value, dict) else None
        return {f"judge.{unit}": amount for unit, amount in usage.items()} if isinstance(usage, dict) else None
    return value if name == "usage" else {name: value}


def add(sums: MutableMapping[str, Any], usage: Any) -> None:
    """Add usage to sums; values that are not numbers are ignored."""
    if isinstance(usage, dict):
        for name, value in usage.items():
            if is_amount(value):
                sums[name] = sums.get(name, 0) + value
