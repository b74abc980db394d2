"""Inputs of steps that continue the list of an earlier step: the same fingerprint, and nothing is overlooked."""

import math
from typing import Any

import pytest

from evaljournal import UsageError
from evaljournal.runner.steps.inputs import RecordedInputs, StepInput, step_input

LONG = [{"role": "user", "content": f"message {number} " + "words " * 40} for number in range(20)]


def after(messages: Any) -> tuple[RecordedInputs, StepInput]:
    """Return the inputs of an attempt whose first step has ended, and the input of that step."""
    inputs, first = RecordedInputs(), step_input({"messages": messages}, "ask")
    inputs.add(1, first)
    return inputs, first


def test_a_common_beginning_changes_nothing() -> None:
    """The input is the same as without an earlier step, and only the new elements are recorded."""
    inputs, _ = after(LONG)
    value = {"messages": [*LONG, {"role": "user", "content": "more"}], "seed": 1}
    request = step_input(value, "ask", earlier_inputs=inputs)

    assert step_input(value, "ask") == request
    assert ({"messages": [{"role": "user", "content": "more"}], "seed": 1}, 1) == inputs.new_part(request)


@pytest.mark.parametrize("messages", [LONG, LONG[:1], [{"role": "user", "content": "the password: hunter22"}, *LONG]])
def test_a_secret_after_a_common_beginning_is_masked(messages: list[Any]) -> None:
    """New elements are searched, whatever precedes them."""
    inputs, _ = after(messages)
    key = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
    request = step_input(
        {"messages": [*messages, {"role": "user", "content": key}], "model": "m"}, "ask", earlier_inputs=inputs
    )
    named = step_input({"messages": messages, "api_key": "abcdefgh12345678"}, "ask", earlier_inputs=inputs)

    recorded = repr((request, inputs.new_part(request), named, inputs.new_part(named)))
    assert not [secret for secret in (key, "abcdefgh12345678", "hunter22") if secret in recorded]


def test_lists_that_differ_have_different_fingerprints() -> None:
    """A long list is hashed from where an earlier one ends; its fingerprint is that of the whole list."""
    inputs, first = after(LONG)
    values = [[*LONG, "a"], [*LONG, "b"], [*LONG, "a", "b"], [*LONG[:-1], "a"], ["a", *LONG], LONG]
    with_earlier = [step_input({"messages": value}, "ask", earlier_inputs=inputs).fingerprint for value in values]

    assert with_earlier == [step_input({"messages": value}, "ask").fingerprint for value in values]
    assert len(set(with_earlier)) == len(values)
    assert with_earlier[-1] == first.fingerprint


@pytest.mark.parametrize(
    ("before", "changed"),
    [("a", "b"), (1, True), (1, 1.0), (None, "a"), (["a"], ["b"]), ({"a": "b"}, {"a": "c"}), ([{"a": ["b"]}], [{"a": [1]}])],
)
def test_an_element_that_is_changed_in_place_is_noticed(before: Any, changed: Any) -> None:
    """Equal values, such as 1 and True, are different inputs if their JSON differs."""
    messages: list[Any] = [{"content": [before]}, *LONG]
    inputs, first = after(messages)
    messages[0]["content"][0] = changed
    request = step_input({"messages": messages}, "ask", earlier_inputs=inputs)

    assert request == step_input({"messages": messages}, "ask")
    assert request.fingerprint != first.fingerprint
    assert inputs.new_part(request) == ({"messages": messages}, 0)


@pytest.mark.parametrize("element", ["a", 1, {"content": ["a", {"b": None}]}, {"content": ["a", {"b": "c"}]}, [], {}])
def test_each_step_records_only_what_it_adds(element: Any) -> None:
    """A conversation that grows by an element, whatever it contains, and one that did not grow."""
    inputs, _ = after(LONG)
    messages: list[Any] = LONG.copy()
    for number in range(2, 5):
        messages.append(element)
        request = step_input({"messages": messages}, "ask", earlier_inputs=inputs)
        assert request == step_input({"messages": messages}, "ask")
        assert inputs.new_part(request) == ({"messages": [element]}, number - 1)
        inputs.add(number, request)

    request = step_input({"messages": messages}, "ask", earlier_inputs=inputs)
    assert inputs.new_part(request) == ({"messages": []}, 4)


@pytest.mark.parametrize("before", [None, 1.5])
def test_nan_is_rejected(before: Any) -> None:
    """NaN is written as null; it is found after a common beginning, and in the place of a null."""
    inputs, _ = after([*LONG, before])

    with pytest.raises(UsageError):
        step_input({"messages": [*LONG, before, math.nan]}, "ask", earlier_inputs=inputs)
    with pytest.raises(UsageError):
        step_input({"messages": [*LONG, math.nan, "more"]}, "ask", earlier_inputs=inputs)
