"""What a task returned, as plain JSON values where it can be said so."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import attrs


def plain(value: Any) -> Any:  # noqa: PLR0911  # one way out for each kind of value
    """Turn dataclasses, attrs classes, pydantic models and other mappings and sequences into what JSON can say.

    What is none of these is given back as it is; whether it can be written is for the journal to say.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if attrs.has(type(value)):
        return {field.name: plain(getattr(value, field.name)) for field in attrs.fields(type(value))}
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return plain(dump(mode="json"))
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
