"""Whether a value is so large that the loop should not wait for computing with it."""

from typing import Any, Final

MANY: Final = 1_000
"""Values inside a value from which on it counts as large."""


def is_large(value: Any, characters: int) -> bool:
    """Whether a value may have more than so many characters of text; at most `MANY` values inside it are examined."""
    if isinstance(value, str):
        return len(value) > characters
    if not isinstance(value, dict | list):
        return False
    left, texts, pending = MANY, characters, [value]
    while pending:
        inside = pending.pop()
        left -= 1
        if isinstance(inside, str):
            texts -= len(inside)
        elif isinstance(inside, dict | list):
            left -= len(inside)
            if left > 0:
                pending.extend(inside.values() if isinstance(inside, dict) else inside)
        if left <= 0 or texts < 0:
            return True
    return False
