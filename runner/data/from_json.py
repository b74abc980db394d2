"""Conversion of recorded JSON values back to the classes that an annotation names: the inverse of `to_json`."""

import collections.abc
import dataclasses
import inspect
import types
import typing
from enum import Enum
from typing import Annotated, Any, Final, Union, cast

import attrs

from runner.data.fingerprint import unwrap_partial
from runner.data.to_json import to_json

_AWAITABLE: Final = (collections.abc.Awaitable, collections.abc.Coroutine)
_SEQUENCES: Final = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_MAPPINGS: Final = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def return_annotation(function: Any) -> Any:
    """Return the type of a function's outputs; None if it has no annotation, or one that cannot be resolved."""
    function = unwrap_partial(function)
    if not inspect.isroutine(function):
        function = getattr(type(function), "__call__", None)  # noqa: B004  # the function that is called
    try:
        annotation = typing.get_type_hints(function).get("return")
    except Exception:  # noqa: BLE001  # user code
        return None
    return typing.get_args(annotation)[-1] if typing.get_origin(annotation) in _AWAITABLE else annotation


def from_json(value: Any, annotation: Any) -> Any:
    """Convert a JSON value to dataclasses, attrs classes, pydantic models, enums and tuples as an annotation names them.

    Other values are returned unchanged. Raises a ValueError if the value cannot be of that type, or if `to_json` would not
    return it for the result.
    """
    try:
        result = _convert(value, annotation)
        is_exact = to_json(result) == value
    except Exception as exc:
        raise ValueError(f"{type(exc).__name__}: {exc}") from exc
    if not is_exact:
        raise ValueError("its fields would have other values")
    return result


def _convert(value: Any, annotation: Any) -> Any:  # noqa: PLR0911  # one return for each kind of annotation
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _convert(value, arguments[0])
    if origin in (Union, types.UnionType):
        return _first_match(value, arguments)
    if origin in _SEQUENCES and isinstance(value, list):
        return [_convert(item, arguments[0]) for item in value]
    if origin is tuple and isinstance(value, list):
        kinds = [arguments[0]] * len(value) if arguments[1:] == (...,) else arguments
        return tuple(_convert(item, kind) for item, kind in zip(value, kinds, strict=True))
    if origin in _MAPPINGS and isinstance(value, dict):
        return {key: _convert(item, arguments[1]) for key, item in cast("dict[str, Any]", value).items()}
    if not isinstance(annotation, type) or origin is not None:
        return value
    if annotation is tuple and isinstance(value, list):
        return tuple(value)
    return _to_class(value, annotation)


def _to_class(value: Any, cls: type) -> Any:
    if issubclass(cls, Enum) and not isinstance(value, dict | list | None):
        return cls(value)
    if not isinstance(value, dict):
        return value
    members = cast("dict[str, Any]", value)
    validate = getattr(cls, "model_validate", None)
    if callable(validate):
        return validate(members)
    if dataclasses.is_dataclass(cls):
        fields = [(field.name, field.name, field.init) for field in dataclasses.fields(cls)]
    elif attrs.has(cls):
        fields = [(field.name, field.alias or field.name, field.init) for field in attrs.fields(cls)]
    else:
        return members
    hints = typing.get_type_hints(cls)
    values = {name: _convert(members[name], hints.get(name)) for name, _, _ in fields}
    if extra_members := members.keys() - values.keys():
        raise ValueError(f"{cls.__name__} has no field {min(extra_members)!r}")
    result = cls(**{alias: values[name] for name, alias, is_init in fields if is_init})
    for name, _, is_init in fields:
        if not is_init:
            object.__setattr__(result, name, values[name])
    return result


def _first_match(value: Any, kinds: tuple[Any, ...]) -> Any:
    """Convert to the first of several types that fits the value."""
    for kind in kinds:
        try:
            result = from_json(value, kind)
        except ValueError:
            continue
        expected = typing.get_origin(kind) or kind
        if not isinstance(expected, type) or isinstance(result, expected):
            return result
    return value
