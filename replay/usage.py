"""What attempts use, as far as they say: tokens, cost, whatever they note. Everything that adds it up does so here."""

from collections.abc import MutableMapping
from typing import Any, TypeGuard

from journal.events import Noted


def is_amount(value: object) -> TypeGuard[float]:
    """Say whether a value can be added up; true and false cannot."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def noted(event: Noted) -> Any:
    """Read a note as an account of what was used: `usage` is one, and any other is one of a single thing."""
    return event.value if event.name == "usage" else {event.name: event.value}


def add(sums: MutableMapping[str, Any], usage: Any) -> None:
    """Add an account to the sums; what is no number, or no account at all, counts for nothing."""
    if isinstance(usage, dict):
        for name, value in usage.items():
            if is_amount(value):
                sums[name] = sums.get(name, 0) + value
