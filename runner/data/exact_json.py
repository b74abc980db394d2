"""JSON parsing that keeps integers of more than 64 bits, which orjson would convert to floats.

Where such a number cannot be stored, as in the journal, it is rejected by name instead of being changed.
"""

import json
import re
from typing import Any, Final

import orjson

_LONG: Final = re.compile(rb"\d{19}")
"""May be too long for 64 bits."""


def read_json(text: bytes | str) -> Any:
    """Parse a JSON value; raise a ValueError if it is invalid."""
    content = text.encode() if isinstance(text, str) else text
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        content.decode()  # Raises a better error for invalid UTF-8.
        raise
    if _LONG.search(content) is None:
        return value
    try:
        return json.loads(content)
    except RecursionError as exc:  # It supports fewer levels than orjson.
        raise ValueError("nested too deeply") from exc
