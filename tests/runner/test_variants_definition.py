"""Definitions of variants: names, products, and parameters that are checked against the task."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaljournal import Case, UsageError, evaluation
from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.definition.variants import product

CASES = [Case(name="fr", input="France?", expected="Paris")]
NAME = re.compile(r"[A-Za-z0-9._-]+")


async def answer(question: str, *, model: str, prompt: str = "") -> str:
    """Answer with what it was called with."""
    return f"{model} {prompt}{question}"


def define(variants: Any, task: Any = answer) -> Any:
    """Return an evaluation with variants."""
    return evaluation(cases=CASES, variants=variants)(task)


async def test_named_variants() -> None:
    """Each variant is the task with its parameters; the evaluation itself can be called with any."""
    defined = define({"mini": {"model": "m"}, "large": {"model": "l", "prompt": "P "}})

    assert ["m France?", "l P France?"] == [await task("France?") for task in defined.tasks.values()]
    assert "x ?" == await defined("?", model="x")


def test_a_product_of_lists() -> None:
    """Lists give all combinations; a name consists of the values that differ."""
    defined = define({"model": ["gpt-5", "gpt-5-mini"], "prompt": ["Be brief."]})

    assert ["gpt-5", "gpt-5-mini"] == list(defined.variants)
    assert [{"model": "gpt-5", "prompt": "Be brief."}, {"model": "gpt-5-mini", "prompt": "Be brief."}] == [
        variant.parameters for variant in defined.variants.values()
    ]


def test_derived_names() -> None:
    """Strings are shortened to words, numbers follow their parameter, and equal words get digits of a digest."""
    values: dict[str, list[Any]] = {"model": ["openai/gpt-5", "o3"], "temperature": [0, 0.7]}
    texts = {"prompt": ["Answer briefly, please: {question}", "Answer briefly, please, and in French: {question}", "¿?"]}

    assert ["openai-gpt-5-temperature-0", "openai-gpt-5-temperature-0.7", "o3-temperature-0", "o3-temperature-0.7"] == list(
        product(values)
    )
    names = list(product(texts))
    assert [True, True, True] == [bool(NAME.fullmatch(name)) for name in names]
    assert names[0].startswith("Answer-briefly-please-")
    assert 3 == len(set(names))
    assert ["only"] == list(product({"model": ["m"]}))


VALUES = st.lists(st.text(max_size=40) | st.integers(-9, 9) | st.booleans() | st.none(), min_size=1, max_size=4, unique_by=repr)


@given(st.dictionaries(st.text("abc_", min_size=1, max_size=5), VALUES, min_size=1, max_size=3))
def test_names_of_a_product_are_valid_unique_and_do_not_depend_on_the_order(values: dict[str, list[Any]]) -> None:
    """Whatever the values, names are valid and unique, ignoring capitalization; reversed lists of values do not change them."""
    variants = product(values)
    others = product({name: options[::-1] for name, options in values.items()})

    assert all(NAME.fullmatch(name) and name.strip(".") for name in variants)
    assert len(variants) == len({name.lower() for name in variants})
    assert {name: repr(variants[name]) for name in variants} == {name: repr(others[name]) for name in others}
    count = 1
    for options in values.values():
        count *= len(options)
    assert count == len(variants)


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ({}, "variants is empty"),
        ([], "variants must be a mapping"),
        ([{"model": "a"}], "variants must be a mapping"),
        (5, "variants must be a mapping"),
        ({"model": "gpt-5"}, r"variants\['model'\] is 'gpt-5'; write .*for named variants, or .*to run every combination"),
        ({"model": ["a"], "mini": {"model": "a"}}, r"variants\['mini'\] is"),
        ({"model": []}, r"variants\['model'\] has no values"),
        ({"model": ["a", "a"]}, "two variants are equal"),
        ({"a b": {"model": "m"}}, "variant 'a b': a name consists of letters"),
        ({"..": {"model": "m"}}, r"variant '\.\.': a name consists of letters"),
        ({"": {"model": "m"}}, "variant '': a name consists of letters"),
        ({"x" * 201: {"model": "m"}}, "the name has 201 characters"),
        ({"mini": {"model": "m"}, "Mini": {"model": "m"}}, "'mini' differs only in capitalization"),
        ({"mini": {"modle": "m"}}, "variant 'mini' of 'answer': the task has no parameter 'modle'; did you mean 'model'"),
        ({"mini": {"prompt": "m"}}, "variant 'mini' of 'answer': parameter 'model' of the task has no value"),
        ({"mini": {"model": "m", "question": "?"}}, "cannot set 'question', which gets the case's input; remove it"),
        ({"mini": {"model": {1, 2}}}, "variant 'mini' of 'answer': parameters.model is of type set"),
        ({f"p{axis}": list(range(10)) for axis in range(6)}, "the product has 1,000,000 variants"),
    ],
)
def test_mistakes_are_reported_before_anything_starts(variants: Any, message: str) -> None:
    """A mistake in the variants is an error of the definition that names the variant, the parameter and a similar one."""
    with pytest.raises(UsageError, match=message):
        define(variants).check_parameters()


def test_parameters_of_a_function_without_variants() -> None:
    """Without variants, a task with another required parameter is rejected."""
    with pytest.raises(UsageError, match="task 'answer': parameter 'model' of the task has no value"):
        evaluation(cases=CASES)(answer).check_parameters()


def test_any_parameter() -> None:
    """A task with keyword arguments takes any parameter."""

    def task(question: str, **parameters: Any) -> Any:
        return question, parameters

    defined = define({"a": {"x": 1}}, task)
    assert ("?", {"x": 1}) == defined.tasks["a"]("?")


def test_the_variants_of_a_chat_are_its_fields() -> None:
    """The parameters of a chat model's variants are its fields; each variant has the fingerprint of its own definition."""
    defined = define({"model": ["a", "b"], "temperature": [0.5]}, Chat("a", base_url="http://127.0.0.1:9/v1"))

    assert [("a", 0.5), ("b", 0.5)] == [(chat.model, chat.temperature) for chat in defined.tasks.values()]
    assert [chat.fingerprint for chat in defined.tasks.values()] == [
        variant["fingerprint"] for variant in defined.definition["variants"].values()
    ]
    with pytest.raises(UsageError, match="Chat has no field 'modle'; did you mean 'model'"):
        define({"x": {"modle": "a"}}, Chat("a", base_url="http://127.0.0.1:9/v1"))


def test_secrets_in_parameters_are_masked() -> None:
    """A key in a parameter is neither in the recorded definition nor does it change the fingerprint."""
    keys = [f"sk-proj-{digit * 40}" for digit in "ab"]
    first, second = (define({"mini": {"model": key}}) for key in keys)

    assert keys[0] not in repr(first.definition)
    assert first.definition["variants"]["mini"]["fingerprint"] == second.definition["variants"]["mini"]["fingerprint"]


def test_the_task_is_fingerprinted_without_its_variants() -> None:
    """What all variants share has one fingerprint, whatever their parameters."""
    assert define({"a": {"model": "1"}}).fingerprint == define({"b": {"model": "2"}}).fingerprint


def test_async_is_recognized_behind_parameters() -> None:
    """An async function with parameters is recognized as one."""
    assert define({"a": {"model": "1"}}).is_async
