"""A value where only text can stand: in a cell, a prompt, a label, a line for people."""

import json
from typing import Any

import orjson


def as_text(value: Any) -> str:
    """Write a value into a text: a text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # It holds an integer of more than 64 bits.
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def escaped(char: str) -> str:
    r"""Write a character that cannot be shown as Python does: `\x1b`, `\u202e`, `\n`."""
    return char.encode("unicode_escape").decode()
