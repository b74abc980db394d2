"""Conversion of recorded JSON values back to the classes that an annotation names: the inverse of `to_json`."""

import collections.abc
import dataclasses
import inspect
import types
import typing
from enum import Enum
from typing import Any, Final, Union

import attrs
from cattrs import Converter, transform_error
from cattrs.gen import make_dict_structure_fn

from evaljournal.runner.data.fingerprint import unwrap_partial
from evaljournal.runner.data.to_json import to_json

_AWAITABLE: Final = (collections.abc.Awaitable, collections.abc.Coroutine)


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
        result = value if annotation is None else _converter.structure(value, annotation)
        is_exact = to_json(result) == value
    except Exception as exc:
        raise ValueError("; ".join(transform_error(exc))) from exc
    if not is_exact:
        raise ValueError("its fields would have other values")
    return result


def _first_match(value: Any, union: Any) -> Any:
    for kind in typing.get_args(union):
        try:
            result = from_json(value, kind)
        except ValueError:
            continue
        expected = typing.get_origin(kind) or kind
        if not isinstance(expected, type) or isinstance(result, expected):
            return result
    return value


def _is_abstract_sequence(kind: Any) -> bool:
    return typing.get_origin(kind) in (collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (Union, types.UnionType)


def _new_converter() -> Converter:
    converter = Converter(structure_fallback_factory=lambda _: lambda value, _: value)
    for scalar in (int, float, str, bytes):
        converter.register_structure_hook(scalar, lambda value, kind: kind(value) if issubclass(kind, Enum) else value)
    converter.register_structure_hook_func(_is_union, _first_match)
    converter.register_structure_hook_func(
        lambda kind: callable(getattr(kind, "model_validate", None)), lambda value, kind: kind.model_validate(value)
    )
    converter.register_structure_hook_factory(
        lambda kind: dataclasses.is_dataclass(kind) or attrs.has(kind),
        lambda kind: make_dict_structure_fn(kind, converter, _cattrs_include_init_false=True),
    )
    converter.register_structure_hook_func(
        _is_abstract_sequence, lambda value, kind: [converter.structure(item, typing.get_args(kind)[0]) for item in value]
    )
    return converter


_converter: Final = _new_converter()
