"""Recorded outputs as the classes they were."""

import dataclasses
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Optional

import attrs
import pytest
from pydantic import BaseModel

from evaljournal.runner.data.from_json import from_json, return_annotation
from evaljournal.runner.data.to_json import to_json


class Level(StrEnum):
    """An enum of strings."""

    HIGH = "high"


@dataclasses.dataclass(frozen=True)
class Point:
    """A record with a default."""

    x: int
    y: float | None = None


@dataclasses.dataclass(init=False)
class Score:
    """A record with its own `__init__`, like Phoenix's."""

    name: str | None
    parts: list[Point]
    total: float = dataclasses.field(init=False)

    def __init__(self, *, name: str | None = None, parts: list[Point] | None = None) -> None:
        self.name = name
        self.parts = parts or []
        self.total = sum(point.x for point in self.parts)


@attrs.frozen
class Secret:
    """A record whose argument has a name other than its field's."""

    _text: str
    level: Level = Level.HIGH


class Model(BaseModel):
    """A model of pydantic."""

    points: tuple[int, ...]


@dataclasses.dataclass
class Doubled:
    """A record that cannot be made from its own fields."""

    value: int

    def __post_init__(self) -> None:
        self.value *= 2


SCORE = Score(name="exact", parts=[Point(1), Point(2, 0.5)])


@pytest.mark.parametrize(
    ("output", "annotation"),
    [
        (Point(1, 2.5), Point),
        (SCORE, Score),
        (Secret("a"), Secret),
        (Model(points=(1, 2)), Model),
        ([SCORE, SCORE], list[Score]),
        ([Point(1)], Sequence[Point]),
        ([Point(1)], Iterable[Point]),
        ({"a": Point(1)}, Mapping[str, Point]),
        ((1, Point(2)), tuple[int, Point]),
        ((Point(1), Point(2)), tuple[Point, ...]),
        ((1, 2), tuple),
        (Point(1), Optional[Point]),  # noqa: UP045  # both spellings
        (None, Point | None),
        (Secret("a"), Point | Secret),
        ({"x": 1}, Point | dict[str, int]),
        ("text", Point | str),
        (Level.HIGH, Level),
        (Point(1), Annotated[Point, "of a plane"]),
        ({"any": [1, None]}, Any),
        ({"any": [1, None]}, None),
        ([1, "a"], list),
        ("other than annotated", int),
    ],
)
def test_outputs_become_what_they_were(output: object, annotation: object) -> None:
    """An output that was recorded as JSON is equal to the original, and of its class."""
    restored = from_json(to_json(output), annotation)

    assert (output, type(output)) == (restored, type(restored))


@pytest.mark.parametrize(
    ("value", "annotation"),
    [({"x": 1}, Point), ({"x": 1, "y": 2, "z": 3}, Point), ([1, 2], tuple[int]), ({"value": 2}, Doubled), ("low", Level)],
)
def test_what_does_not_fit_is_an_error(value: object, annotation: object) -> None:
    """Missing and additional fields, and values that the class changes, are errors."""
    with pytest.raises(ValueError, match=r"\w"):
        from_json(value, annotation)


def _point(_: int) -> Point:
    return Point(1)


async def _points(_: int) -> list[Point]:
    return []


def _coroutine(_: int) -> Coroutine[Any, Any, list[Point]]:
    return _points(1)


class _Callable:
    def __call__(self, _: int) -> Point:
        return Point(1)


def test_the_type_of_the_outputs_is_the_return_annotation() -> None:
    """Functions, coroutine functions, partials and objects are supported; None if there is no annotation or it is unknown."""

    def unknown(_: int) -> "Missing":  # type: ignore[name-defined]  # noqa: F821
        return None

    functions = [_point, _points, _coroutine, partial(partial(_point)), _Callable(), lambda value: value, unknown, len]
    expected = [Point, list[Point], list[Point], Point, Point, None, None, None]

    assert expected == [return_annotation(function) for function in functions]
