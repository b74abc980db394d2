"""Checks of outputs, as promptfoo calls them."""

from typing import Any


def get_assert(output: str, context: dict[str, Any]) -> bool:
    """Return whether the output is the text, and it is a capital that begins with L."""
    return output == context["vars"]["text"] and output.startswith("L")


def has_digit(output: str, context: dict[str, Any]) -> bool:
    """Return whether the output has a digit."""
    return bool(context) and any(char.isdigit() for char in output)


def share(output: str, context: dict[str, Any]) -> float:
    """Return the share of vowels."""
    return sum(char in "aeiou" for char in output) / len(output) if context else 0.0


def broken(output: str, context: dict[str, Any]) -> bool:
    """Raise an exception."""
    raise ValueError(output, context)
