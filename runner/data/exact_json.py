"""JSON from somebody else, read to the last digit.

orjson makes floats of integers that have more than 64 bits. Such a number is somebody's id or amount: it is given as it is, and
whoever cannot keep it (the journal, say) refuses it by its name, instead of keeping another.
"""

import json
import re
from typing import Any, Final

import orjson

_LONG: Final = re.compile(rb"\d{19}")
"""What may be too long for 64 bits."""


def read_json(text: bytes | str) -> Any:
    """Read a JSON value; raise a ValueError where it is none."""
    written = text.encode() if isinstance(text, str) else text
    try:
        value = orjson.loads(written)
    except orjson.JSONDecodeError:
        written.decode()  # Of bytes that are no UTF-8, orjson says neither which nor where.
        raise
    return value if _LONG.search(written) is None else json.loads(written)
