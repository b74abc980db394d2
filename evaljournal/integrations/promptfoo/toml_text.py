"""TOML as text: `tomllib` reads it, and the standard library does not write it."""

import json
import re
from typing import Any, Final, cast

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def toml_value(value: Any) -> str:
    """Return a value; one with null, which TOML does not have, as a string with JSON."""
    if _has_null(value):
        return toml_value(json.dumps(value, ensure_ascii=False))
    match value:
        case str():
            return _string(value)
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case dict():
            items = [f"{_key(key)} = {toml_value(item)}" for key, item in cast("dict[str, Any]", value).items()]
            return f"{{ {', '.join(items)} }}" if items else "{}"
        case _:
            return f"[{', '.join(map(toml_value, value))}]"


def toml_lines(table: dict[str, Any]) -> str:
    """Return the lines of a table."""
    return "".join(f"{_key(key)} = {toml_value(value)}\n" for key, value in table.items())


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _basic_string(key)


def _string(text: str) -> str:
    if "\n" in text and "'''" not in text and not text.endswith("'") and not _CONTROL.search(text):
        return f"'''\n{text}'''"
    return _basic_string(text)


def _basic_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _has_null(value: Any) -> bool:
    match value:
        case None:
            return True
        case dict():
            return any(map(_has_null, cast("dict[str, Any]", value).values()))
        case list():
            return any(map(_has_null, value))
        case _:
            return False
