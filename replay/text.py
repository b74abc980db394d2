"""A value where only text can stand: in a cell, a prompt, a label, a line for people."""

from typing import Any

import orjson


def as_text(value: Any) -> str:
    """Write a value into a text: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()
