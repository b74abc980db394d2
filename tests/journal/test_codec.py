"""Encoding of events: values are read back exactly; a value that JSON cannot represent is rejected with its position."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaljournal.journal.errors import Unserializable
from evaljournal.journal.events import AttemptFailed, AttemptSucceeded, Event, Extension, KnownEvent, Noted, TrialEnqueued
from evaljournal.journal.fact import evolve_fact, fields_of
from evaljournal.journal.format.codec import (
    EVENT_TYPES,
    MAX_INTEGER,
    MAX_TIME,
    RECORD_FIELDS,
    decode,
    encode,
    encode_payloads,
    event_type,
    exceeds,
    is_payload,
)
from tests.journal.samples import enqueued, event_fields, examples, started

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.integers(-(2**63), 2**64 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | NUMBERS | FLOATS | TEXTS
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Draw values of a field's type."""
    counts, durations = st.integers(0, MAX_INTEGER), st.floats(0, MAX_TIME) | st.integers(1, int(MAX_TIME))
    simple = {str: TEXTS, int: counts, float: durations, bool: st.booleans(), type(None): st.none(), Any: JSON}
    if kind in simple:
        return simple[kind]
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is Mapping:
        return st.dictionaries(*map(values_of, get_args(kind)), max_size=3)
    if get_origin(kind) is list:
        return st.lists(values_of(*get_args(kind)), max_size=3)
    return st.one_of(*map(values_of, get_args(kind)))


def events_of(kind: type[KnownEvent]) -> st.SearchStrategy[KnownEvent]:
    """Draw events of one kind."""
    fields = {field.name: JSON if is_payload(field) else values_of(field.type) for field in fields_of(kind)}
    others = {
        "until": st.floats(-MAX_TIME, MAX_TIME),
        "value": fields.get("value", JSON) | NUMBERS | FLOATS,
        "step": st.integers(8, MAX_INTEGER),
        "parent": st.integers(0, 7),
        "continues": st.integers(0, 7),
    }
    return st.builds(kind, **{name: others.get(name, values) for name, values in fields.items()})


def rejection(event: Event) -> Unserializable:
    """Return the error for an event that cannot be encoded."""
    with pytest.raises(Unserializable) as raised:
        encode(event, 1, "", 0.0)
    return raised.value


def success(output: Any) -> AttemptSucceeded:
    """Return an event with any value."""
    return AttemptSucceeded(trial="a", attempt=1, output=output, elapsed=0.5)


@pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=EVENT_TYPES)
@examples(40)
@given(data=st.data())
def test_events_round_trip(kind: type[KnownEvent], data: st.DataObject) -> None:
    """An event is read back equal, down to the sign of zero; an integer is valid where seconds are expected."""
    event = data.draw(events_of(kind))
    fields = event_fields(event)

    assert event == decode(fields)
    assert repr(event) == repr(decode(fields))


@pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=EVENT_TYPES)
@examples(10)
@given(data=st.data())
def test_numbers_out_of_range_are_rejected(kind: type[KnownEvent], data: st.DataObject) -> None:
    """A number that no run can have is neither written nor read, so that no view has to expect one; a score may be any."""
    event = data.draw(events_of(kind))
    too_large = {int: MAX_INTEGER + 1, float: 1.001 * MAX_TIME}
    for field in fields_of(kind):
        for number in {int, float} & {field.type, *get_args(field.type)} if field.name != "value" else ():
            minimum = -1.001 * MAX_TIME if field.name == "until" else -1
            maximum = event.step if field.name == "parent" else too_large[number]  # type: ignore[union-attr]  # it is a step
            for value in (minimum, maximum):
                with pytest.raises(ValueError, match=f"^{field.name} is"):
                    decode({**event_fields(event), field.name: value})
                assert field.name == rejection(evolve_fact(event, **{field.name: value})).field


@given(name=TEXTS, data=st.dictionaries(TEXTS.filter(lambda name: name not in RECORD_FIELDS), JSON, max_size=3))
@examples(100)
def test_extensions_round_trip(name: str, data: dict[str, Any]) -> None:
    """An extension keeps all of its fields."""
    event = Extension(type=f"x-{name}", data=data)

    assert repr(event) == repr(decode(event_fields(event)))


def test_event_types_are_in_snake_case() -> None:
    """The type of an event is its class name in snake case."""
    assert "attempt_timed_out" == event_type(
        decode({"type": "attempt_timed_out", "trial": "a", "attempt": 1, "timeout": 1, "elapsed": 1})
    )
    assert len(get_args(KnownEvent)) == len(EVENT_TYPES)
    assert all(name == name.lower() and not name.startswith("x-") for name in EVENT_TYPES)


def test_order_of_fields() -> None:
    """`seq`, `at` and `t` come first, then the type, then the event, and `d` at the end."""
    line = encode(success("Lima"), 7, "2026-11-15T00:00:00.000000Z", 0.25, 6)

    assert line.startswith(b'{"seq":7,"at":"2026-11-15T00:00:00.000000Z","t":0.25,"type":"attempt_succeeded",')
    assert line.endswith(b',"d":6')


@pytest.mark.parametrize("kind", [None, 5, ["x-a"], {"x-a": 1}])
def test_type_must_be_a_string(kind: Any) -> None:
    """A type that is not a string is rejected."""
    with pytest.raises(TypeError):
        decode({"seq": 7, "type": kind})


def test_unknown_fields_are_ignored() -> None:
    """A field of a later version is ignored."""
    event = success("Lima")
    fields = {**event_fields(event), "mood": "sunny"}

    assert event == decode(fields)


def test_missing_field_is_rejected() -> None:
    """An event without a required field is rejected."""
    fields = event_fields(success("Lima"))
    del fields["elapsed"]

    with pytest.raises(KeyError, match="elapsed"):
        decode(fields)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("trial", 5),
        ("trial", None),
        ("attempt", "1"),
        ("attempt", 1.5),
        ("attempt", True),
        ("elapsed", "1"),
        ("category", 5),
        ("scorers", []),
        ("scorers", "exact"),
        ("scorers", {"exact": 1}),
    ],
)
def test_wrong_types_are_rejected(field: str, value: Any) -> None:
    """A value of another type is rejected, also in a mapping of strings; a boolean is not a number."""
    failed = AttemptFailed(trial="a", attempt=1, error="E", message="m", category="fatal", elapsed=0.5)
    event = started() if field == "scorers" else failed

    with pytest.raises(ValueError, match=re.escape(f"{field} is {value!r}")):
        decode({**event_fields(event), field: value})


def test_defaults_are_omitted() -> None:
    """A field with its default is omitted from the line."""
    assert {"type", "trial", "case", "repeat", "input", "fingerprint"} == event_fields(enqueued("a")).keys()
    assert {"type": "noted", "name": "cost", "value": None} == event_fields(Noted(name="cost", value=None))


def test_fields_in_blobs_are_referenced() -> None:
    """For a field in a blob, the line has only the reference."""
    event = TrialEnqueued(trial="a", case="a", repeat=1, input="long", fingerprint="f")
    line = encode(event, 1, "", 0.0, in_blobs={"input": {"sha256": "0", "bytes": 6}})

    assert line.endswith(
        b'"type":"trial_enqueued","trial":"a","case":"a","repeat":1,"fingerprint":"f",'
        b'"blobs":{"input":{"sha256":"0","bytes":6}}'
    )


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("value", "path"),
    [
        (lambda number: number, "output"),
        (lambda number: {"scores": [1.0, None, {"p": number}]}, "output.scores[2].p"),
        (lambda number: ([], (1, number)), "output[1][1]"),
        (lambda number: {"null": {"": number}}, "output.null."),
    ],
)
def test_nan_and_infinity_are_rejected(number: float, value: Any, path: str) -> None:
    """NaN and infinity are rejected at any depth, because JSON would turn them into null."""
    error = rejection(success(value(number)))

    assert ("AttemptSucceeded", path) == (error.event, error.field)
    assert f"is {number!r}, which JSON cannot represent" == error.reason


@dataclasses.dataclass
class Point:
    """An object that is not JSON."""

    x: float = math.nan


class BrokenRepr:
    """An object whose repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Incomparable:
    """An object that cannot be compared, like a numpy array."""

    __hash__ = None  # type: ignore[assignment]  # what cannot be compared cannot be hashed

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth of this comparison is ambiguous")

    def __repr__(self) -> str:
        return "Incomparable()"


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (Point(), "Point", "Point(x=nan)"),
        (object, "type", "<class 'object'>"),
        (b"raw", "bytes", "b'raw'"),
        ({1}, "set", "{1}"),
        (1j, "complex", "1j"),
        ("\ud800", "str", r"'\ud800'"),
        (2**64, "int", "18446744073709551616"),
        (-(2**63) - 1, "int", "-9223372036854775809"),
        ({1: 2}, "dict", "{1: 2}"),
        (BrokenRepr(), "BrokenRepr", "(repr() raised RuntimeError)"),
        (Incomparable(), "Incomparable", "Incomparable()"),
        (b"x" * 1000, "bytes", repr(b"x" * 1000)[:80] + "…"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_what_is_not_json_is_rejected(value: Any, kind: str, shown: str) -> None:
    """A value that is not JSON is rejected with its position, its type and its repr."""
    error = rejection(success({"a": [0, value]}))

    assert ("AttemptSucceeded", "output.a[1]") == (error.event, error.field)
    assert error.reason.startswith(f"cannot be written as JSON: {kind} {shown} (")


@pytest.mark.parametrize(
    ("event", "field"),
    [
        *(
            (evolve_fact(enqueued("a"), metadata=value), "metadata")
            for value in (Point(), b"raw", BrokenRepr(), Incomparable())
        ),
        (AttemptSucceeded(trial="a", attempt=1, output=None, elapsed=math.nan), "elapsed"),
        (Extension(type="x-a", data={"b": [math.inf]}), "b[0]"),
        (Extension(type="x-a", data={"b": {"c": {1}}}), "b.c"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_json_is_rejected_in_other_fields(event: Event, field: str) -> None:
    """The value is also rejected in a field with a default, with which it is not compared, in others and in extensions."""
    assert field == rejection(event).field


def test_too_deep_value_is_rejected() -> None:
    """A list that contains itself, or has ten thousand levels, is rejected without a stack overflow."""
    endless: list[Any] = []
    endless.append(endless)
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]

    assert rejection(success(endless)).field.endswith("…")
    assert rejection(success(deep)).field.endswith("…")


@examples(50)
@given(depth=st.integers(1, 300))
def test_what_can_be_written_can_be_read(depth: int) -> None:
    """A value of any depth is either rejected or read back."""
    deep: Any = "bottom"
    for _ in range(depth):
        deep = {"a": deep}
    event = success(deep)
    try:
        fields = event_fields(event)
    except Unserializable:
        return

    assert event == decode(fields)


def test_errors_are_valid_unicode() -> None:
    """The error about a value with a lone surrogate can be encoded."""
    assert str(rejection(success({"\ud800": {"\udfff": b""}}))).encode()


def test_extension_types_have_a_prefix() -> None:
    """An extension whose type could be one of this package is rejected."""
    assert "'noted'" == rejection(Extension(type="noted", data={})).event


@pytest.mark.parametrize("field", sorted(RECORD_FIELDS))
def test_extension_cannot_use_fields_of_the_record(field: str) -> None:
    """An extension with a field of the record is rejected."""
    error = rejection(Extension(type="x-a", data={field: 1}))

    assert ("x-a", field) == (error.event, error.field)


LARGE = [
    ["x" * (1 << 20)] * 300,
    {"a": {"b": ({"c": "x" * (1 << 20)},) * 300}},
    [["x" * 1_000] * 1_000] * 300,
]


@pytest.mark.parametrize("value", LARGE, ids=["list", "nested", "lists"])
@pytest.mark.parametrize("call", [lambda event: encode(event, 1, "", 0.0), encode_payloads], ids=["record", "blob"])
def test_a_value_that_is_too_large_is_not_encoded(value: Any, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that certainly has more than 256 MiB of JSON is rejected before orjson gets it."""
    monkeypatch.setattr(orjson, "dumps", lambda *_, **__: pytest.fail("orjson was called"))
    with pytest.raises(Unserializable, match="has more than 268,435,456 bytes as JSON"):
        call(AttemptSucceeded(trial="a", attempt=1, output=value, elapsed=0.0))


@given(JSON)
def test_the_estimate_of_a_size_is_not_too_high(value: Any) -> None:
    """No value exceeds the size of its JSON."""
    assert not exceeds(value, len(orjson.dumps(value)))


def test_keys_count() -> None:
    """The keys of a large object are part of its size."""
    assert exceeds({f"key-{number}": 0 for number in range(200)}, 1_000)


def test_a_list_that_contains_itself_is_measured() -> None:
    """The search for large values ends in a list that contains itself."""
    value: list[Any] = []
    value += [value, value]

    assert not exceeds(value, 1 << 28)
