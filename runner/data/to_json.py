"""Conversion of a task's output to JSON values, and whether one is large."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any, Final

import attrs

from journal.errors import Unserializable
from runner.signals import is_from_signal

_MANY: Final = 1_000
"""Number of inner values from which a value counts as large."""


def to_json(value: Any) -> Any:
    """Convert dataclasses, attrs classes, pydantic models, mappings and sequences to JSON values.

    Anything else is returned unchanged; the journal rejects what it cannot store. Whatever the value's class raises becomes an
    `Unserializable`.
    """
    try:
        return _to_json(value)
    except BaseException as exc:
        if is_from_signal(exc):
            raise
        error = type(exc).__name__
        with contextlib.suppress(BaseException):  # Its text may be the user's code as well.
            error += f": {exc}"
        raise Unserializable(type(value).__name__, "", f"cannot be converted: {error}") from exc


def _to_json(value: Any) -> Any:  # noqa: PLR0911  # one return for each kind of value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if attrs.has(type(value)):
        return {field.name: _to_json(getattr(value, field.name)) for field in attrs.fields(type(value))}
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return _to_json(dump(mode="json"))
    if isinstance(value, Mapping):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return value


def is_large(value: Any, characters: int) -> bool:
    """Whether a value may have more than this many characters of text; at most `_MANY` values inside it are examined."""
    if isinstance(value, str):
        return len(value) > characters
    if not isinstance(value, dict | list):
        return False
    left, texts, pending = _MANY, characters, [value]
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
