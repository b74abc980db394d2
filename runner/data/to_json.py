"""Conversion of a task's output to JSON values."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import attrs


def to_json(value: Any) -> Any:  # noqa: PLR0911  # one return for each kind of value
    """Convert dataclasses, attrs classes, pydantic models, mappings and sequences to JSON values.

    Anything else is returned unchanged; the journal rejects what it cannot store.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if attrs.has(type(value)):
        return {field.name: to_json(getattr(value, field.name)) for field in attrs.fields(type(value))}
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return to_json(dump(mode="json"))
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value
