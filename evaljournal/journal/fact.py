"""`fact`, the decorator of event classes and other immutable values, and `Json`, the type of user data in them."""

from typing import Annotated, Any, TypeVar, dataclass_transform

import attrs

T = TypeVar("T")

PAYLOAD = object()
Json = Annotated[Any, PAYLOAD]
"""User data: any JSON. A large value is stored as a blob."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
def fact(cls: type[T]) -> type[T]:
    """Make an attrs class with keyword-only fields that type checkers treat as frozen.

    At run time it is not frozen, because that would make instances 50 % slower to build. All share one `__repr__`: attrs would
    compile one for each class, a third of the time that it takes to make the class.
    """
    cls.__repr__ = _repr  # type: ignore[method-assign]  # attrs keeps it
    return attrs.define(cls, kw_only=True)


def _repr(instance: object) -> str:
    values = ", ".join(f"{field.name}={getattr(instance, field.name)!r}" for field in fields_of(type(instance)))
    return f"{type(instance).__name__}({values})"


def evolve_fact(instance: T, **changes: object) -> T:
    return attrs.evolve(instance, **changes)  # type: ignore[misc]  # a fact is an attrs class


def fields_of(cls: Any) -> tuple["attrs.Attribute[Any]", ...]:
    fields: tuple[attrs.Attribute[Any], ...] = attrs.fields(cls)
    return fields


def non_default_fields(event: Any) -> dict[str, Any]:
    """Return the fields of a fact that do not have their default, as they are written to a journal line."""
    values = ((field, getattr(event, field.name)) for field in fields_of(type(event)))
    return {field.name: value for field, value in values if value != field.default}
