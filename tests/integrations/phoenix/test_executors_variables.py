"""What a function reads besides its input: the digests that a journal has of it."""

import functools
import itertools
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np
import pandas as pd  # type: ignore[import-untyped,unused-ignore]  # it has no stubs
import pytest

from evaljournal.integrations.phoenix.inputs import variable_digests

DAY = datetime(2026, 1, 1, tzinfo=UTC)


@attrs.define
class Row:
    """A record."""

    text: str


class Prompt:
    """An object with a text."""

    def __init__(self, text: str) -> None:
        self.text = text


class Evaluator:
    """An object with a prompt, and with state that is not its definition."""

    calls = itertools.count()

    def __init__(self, name: str, prompt: str = "Rate it.", choices: tuple[str, ...] = ("good", "bad")) -> None:
        self.name, self.prompt, self.choices = name, Prompt(prompt), choices
        self.count, self.lock, self.api_key = next(self.calls), threading.Lock(), f"sk-{next(self.calls)}"


def reading(value: Any) -> Callable[[int], Any]:
    """Return a function that reads a variable."""
    return lambda index: value[index]


def frame(text: str) -> Any:
    return pd.DataFrame({"text": ["a", text], "when": [DAY, None], "score": [0.5, float("nan")]})


PAIRS: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
    (lambda: "a prompt", lambda: "another prompt"),
    (lambda: {1: {"text": "a", "n": float("nan")}}, lambda: {1: {"text": "b", "n": float("nan")}}),
    (lambda: [1, None], lambda: [1, float("nan")]),
    (lambda: {("a", 1): [1], ("b", 2): {3: 4}}, lambda: {("a", 1): [1], ("b", 2): {3: 5}}),
    (lambda: MappingProxyType({"a": 1}), lambda: MappingProxyType({"a": 2})),
    (lambda: {"b", "a", "c"}, lambda: {"b", "a", "d"}),
    (lambda: frame("b"), lambda: frame("c")),
    (lambda: frame("b").text, lambda: frame("c").text),
    (lambda: np.array([1, 2]), lambda: np.array([1, 3])),
    (lambda: [Row("a")], lambda: [Row("b")]),
    (lambda: Row("a"), lambda: Row("b")),
    (lambda: [DAY, Decimal("0.1"), b"a"], lambda: [DAY, Decimal("0.1"), b"b"]),
    (lambda: [Evaluator("a"), Evaluator("b")], lambda: [Evaluator("b"), Evaluator("a")]),
    (lambda: [Evaluator("a")], lambda: [Evaluator("a", prompt="Rate that.")]),
    (lambda: [Evaluator("a")], lambda: [Evaluator("a", choices=("good",))]),
    (lambda: [len, Row], lambda: [len, Prompt]),
]


@pytest.mark.parametrize(("make", "make_other"), PAIRS)
def test_equal_content_has_equal_digests(make: Callable[[], Any], make_other: Callable[[], Any]) -> None:
    """The digest is the same for equal content in other objects, and another one for other content."""
    first, second, changed = (variable_digests(reading(value)) for value in (make(), make(), make_other()))

    assert ["value"] == list(first)
    assert first == second
    assert first != changed


def test_digests_are_the_same_in_every_process() -> None:
    """Digests do not depend on the hash seed or on addresses."""
    value = {"rows": {0: {"text": "é", "n": 0.1}}, "names": {"b", "a"}, "kinds": [Evaluator("a")]}

    assert {"value": "8ceb35a979cffe09"} == variable_digests(reading(value))


LIMIT, TEXT, CALLS, API_TOKEN = 3, "a prompt", list[int](), "secret"


def reads_globals(index: int) -> Any:
    """Read a number, a text, a container that is empty at first, and a secret."""
    CALLS.append(index)
    return LIMIT, TEXT, API_TOKEN


def itself() -> list[Any]:
    """Return a list that contains itself."""
    value: list[Any] = [1]
    value.append(value)
    return value


@pytest.mark.parametrize("value", [3, 0.5, None, True, [], {}, "", Evaluator("a"), threading.Lock(), len, Row, itself()])
def test_values_that_are_not_data_are_omitted(value: object) -> None:
    """Numbers, empty containers, objects such as clients, functions and classes are omitted."""
    assert {} == variable_digests(reading(value))


def test_global_variables_and_arguments() -> None:
    """Global variables count by the same rules; of a partial, all arguments count, numbers too."""
    assert ["TEXT"] == list(variable_digests(reads_globals))

    arguments = [functools.partial(reads_globals, *bound) for bound in ((1,), (2,), (frame("b"),), (frame("c"),))]
    digests = [variable_digests(function) for function in arguments]
    assert {"TEXT", "arguments of the partial"} == digests[0].keys()
    assert 4 == len({function["arguments of the partial"] for function in digests})


class Judge:
    """An object that is called like a function."""

    def __init__(self, prompt: str) -> None:
        self.prompt, self.count, self.api_key, self.seen = prompt, 0, prompt, list[int]()

    def __call__(self, index: int) -> str:
        self.seen.append(index)
        return f"{TEXT} {self.prompt}"

    judge = __call__


@pytest.mark.parametrize("function_of", [lambda judge: judge, lambda judge: judge.judge])
def test_fields_of_an_object(function_of: Callable[[Judge], Any]) -> None:
    """The fields of an object count by the same rules, whether it is called itself or one of its methods."""
    first, equal, different = (variable_digests(function_of(Judge(prompt))) for prompt in ("a", "a", "b"))

    assert {"self.prompt", "TEXT"} == first.keys()
    assert (True, False) == (first == equal, first["self.prompt"] == different["self.prompt"])


def test_a_function_with_a_fingerprint_defines_what_it_depends_on() -> None:
    """Objects with a fingerprint of their own have no variables; nor has a builtin function."""

    class Versioned(Judge):
        fingerprint = "version 2"

    assert [{}, {}] == [variable_digests(Versioned("a")), variable_digests(len)]
