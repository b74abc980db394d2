"""Convert Python values to JSON values, and check whether a value is large."""

import contextlib
import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, Final

import attrs

from evaljournal.journal.errors import Unserializable
from evaljournal.journal.format.codec import reject_large
from evaljournal.runner.signals import is_from_signal

_MAX_VALUES: Final = 1_000
"""Number of values inside a value from which it counts as large."""


def to_json(value: Any) -> Any:
    """Convert dataclasses, attrs classes, pydantic models, mappings, lists and tuples to JSON values.

    Other values are returned unchanged; the journal rejects those that it cannot store. An exception from the value's class
    becomes an `Unserializable`, which is also raised if the value is too large for the journal.
    """
    reject_large(value, "the value")
    try:
        return _to_json(value)
    except BaseException as exc:
        if is_from_signal(exc):
            raise
        error = type(exc).__name__
        with contextlib.suppress(BaseException):  # Its `__str__` may raise, too.
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
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError("a coroutine was not awaited; call the async function with `await`, in an `async def`")
    return value


def is_large(value: Any, characters: int) -> bool:
    """Return whether a value has more characters than this in its strings, without keys, or at least `_MAX_VALUES` values."""
    if isinstance(value, str):
        return len(value) > characters
    if not isinstance(value, dict | list):
        return False

    remaining_values, remaining_characters, remaining_items = _MAX_VALUES, characters, [value]
    while remaining_items:
        item = remaining_items.pop()
        if isinstance(item, str):
            remaining_characters -= len(item)
        elif isinstance(item, dict | list):
            remaining_values -= len(item)
            if remaining_values > 0:
                remaining_items.extend(item.values() if isinstance(item, dict) else item)
        if remaining_values <= 0 or remaining_characters < 0:
            return True
    return False
