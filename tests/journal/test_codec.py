"""Every event survives being written and read, exactly; what JSON cannot say is refused, and named."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.codec import CHECKED_DECODERS, EVENT_TYPES, RECORD_MEMBERS, decode, encode, event_type, is_payload
from journal.errors import UnknownEvent, Unserialisable
from journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptSucceeded,
    Event,
    Extension,
    KnownEvent,
    Noted,
    TrialEnqueued,
    fields_of,
)
from tests.journal.samples import enqueued, examples, members_of, started

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.integers(-(2**63), 2**64 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | NUMBERS | FLOATS | TEXTS
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Draw values of a field's type."""
    simple = {str: TEXTS, int: NUMBERS, float: FLOATS, bool: st.booleans(), type(None): st.none(), Any: JSON}
    if kind in simple:
        return simple[kind]
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is Mapping:
        return st.dictionaries(*map(values_of, get_args(kind)), max_size=3)
    return st.one_of(*map(values_of, get_args(kind)))


def events_of(kind: type[KnownEvent]) -> st.SearchStrategy[KnownEvent]:
    """Draw events of one kind."""
    fields = {field.name: JSON if is_payload(field) else values_of(field.type) for field in fields_of(kind)}
    return st.builds(kind, **fields)


def rejected(event: Event) -> Unserialisable:
    """Return the error for an event that cannot be encoded."""
    with pytest.raises(Unserialisable) as raised:
        encode(event, 1, "", 0.0)
    return raised.value


def answer(output: Any) -> AttemptSucceeded:
    """Make an event that holds any value."""
    return AttemptSucceeded(trial="a", attempt=1, output=output, elapsed=0.5)


@pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=EVENT_TYPES)
@examples(40)
@given(data=st.data())
def test_any_event_survives(kind: type[KnownEvent], data: st.DataObject) -> None:
    """An event that is written and read again is the same, down to the sign of a zero, whether types are checked or not."""
    event = data.draw(events_of(kind))
    members = members_of(event)

    assert event == decode(members)
    assert repr(event) == repr(decode(members))
    assert repr(event) == repr(CHECKED_DECODERS[event_type(event)](members))


@given(name=TEXTS, data=st.dictionaries(TEXTS.filter(lambda name: name not in RECORD_MEMBERS), JSON, max_size=3))
@examples(100)
def test_any_extension_survives(name: str, data: dict[str, Any]) -> None:
    """An event of somebody else's keeps every one of its members."""
    event = Extension(type=f"x-{name}", data=data)

    assert repr(event) == repr(decode(members_of(event)))


def test_every_kind_has_a_name_in_snake_case() -> None:
    """A line names its event in lower case, with underscores between the words."""
    assert "attempt_timed_out" == event_type(
        decode({"type": "attempt_timed_out", "trial": "a", "attempt": 1, "timeout": 1, "elapsed": 1})
    )
    assert len(get_args(KnownEvent)) == len(EVENT_TYPES)
    assert all(name == name.lower() and not name.startswith("x-") for name in EVENT_TYPES)


def test_type_stands_before_the_event() -> None:
    """What is true of every record comes first, then the type of its event, then the event."""
    line = encode(answer("Lima"), 7, "2026-11-15T00:00:00.000000Z", 0.25, 6)

    assert line.startswith(b'{"seq":7,"at":"2026-11-15T00:00:00.000000Z","t":0.25,"type":"attempt_succeeded",')
    assert line.endswith(b',"d":6')


def test_unknown_type_is_refused() -> None:
    """An event that this version does not know is an error that names the record and the type."""
    with pytest.raises(UnknownEvent, match="record 7 has the unknown event type 'trial_teleported'"):
        decode({"seq": 7, "type": "trial_teleported"})


@pytest.mark.parametrize("kind", [None, 5, ["x-a"], {"x-a": 1}])
def test_type_that_is_no_text_is_refused(kind: Any) -> None:
    """A type that is not even a text is no extension."""
    with pytest.raises((UnknownEvent, TypeError)):
        decode({"seq": 7, "type": kind})


def test_unknown_fields_are_ignored() -> None:
    """A field that a later version added does not disturb this one."""
    event = answer("Lima")
    members = {**members_of(event), "mood": "sunny"}

    assert event == decode(members)
    assert event == CHECKED_DECODERS["attempt_succeeded"](members)


def test_missing_field_is_not_invented() -> None:
    """An event without a field that it must have is not an event."""
    members = members_of(answer("Lima"))
    del members["elapsed"]

    with pytest.raises(KeyError, match="elapsed"):
        decode(members)
    with pytest.raises(Exception, match="AttemptSucceeded"):
        CHECKED_DECODERS["attempt_succeeded"](members)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("trial", 5),
        ("trial", None),
        ("attempt", "1"),
        ("attempt", 1.5),
        ("attempt", True),
        ("elapsed", "1"),
        ("category", "bad"),
    ],
)
def test_checking_refuses_wrong_types(field: str, value: Any) -> None:
    """Where types are checked, a value of another type is refused; a boolean is not a number."""
    event = AttemptFailed(trial="a", attempt=1, error="E", message="m", category="fatal", elapsed=0.5)

    with pytest.raises(Exception, match="AttemptFailed") as refusal:
        CHECKED_DECODERS["attempt_failed"]({**members_of(event), field: value})
    assert [f"{field} is {value!r}"] == [str(cause) for cause in refusal.value.exceptions]  # type: ignore[attr-defined]  # a group


@pytest.mark.parametrize("scorers", [[], "exact", {"exact": 1}])
def test_checking_looks_into_mappings(scorers: Any) -> None:
    """A mapping of names to versions is one of texts to texts."""
    with pytest.raises(Exception, match="RunStarted"):
        CHECKED_DECODERS["run_started"]({**members_of(started()), "scorers": scorers})


@pytest.mark.parametrize(
    "event",
    [
        AttemptSucceeded(trial="a", attempt=1, output=None, elapsed=2),
        AttemptFailed(trial="a", attempt=1, error="E", message="m", category="fatal", retry_after=30, elapsed=0.5),
        AttemptInterrupted(trial="a", attempt=1, why="stopped", elapsed=2),
    ],
)
def test_whole_number_is_a_float_too(event: KnownEvent) -> None:
    """Where seconds are expected, Python takes a whole number as well, and so does whoever checks the line."""
    assert event == CHECKED_DECODERS[event_type(event)](members_of(event))


def test_defaults_are_left_out() -> None:
    """What is as it mostly is takes no space in the line."""
    assert {"type", "trial", "case", "repeat", "input", "fingerprint"} == members_of(enqueued("a")).keys()
    assert {"type": "noted", "name": "cost", "value": None} == members_of(Noted(name="cost", value=None))


def test_fields_can_be_left_to_a_blob() -> None:
    """Of a field that is kept elsewhere, the line says only where."""
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
def test_numbers_that_are_none_are_refused(number: float, value: Any, path: str) -> None:
    """NaN and infinity are refused wherever they hide, for JSON would make them null."""
    error = rejected(answer(value(number)))

    assert ("AttemptSucceeded", path) == (error.event, error.member)
    assert f"is {number!r}, which JSON cannot represent" == error.reason


def test_numbers_that_are_none_are_refused_in_own_fields() -> None:
    """NaN is refused in a field of ours and in an extension too."""
    event = AttemptSucceeded(trial="a", attempt=1, output=None, elapsed=math.nan)

    assert "elapsed" == rejected(event).member
    assert "b[0]" == rejected(Extension(type="x-a", data={"b": [math.inf]})).member


@dataclasses.dataclass
class Point:
    """A thing of the user's that is not JSON."""

    x: float = math.nan


class Unshowable:
    """A thing whose repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Incomparable:
    """A thing that cannot be compared, as an array of numbers cannot."""

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
        (Unshowable(), "Unshowable", "(repr() raised RuntimeError)"),
        (Incomparable(), "Incomparable", "Incomparable()"),
        (b"x" * 1000, "bytes", repr(b"x" * 1000)[:80] + "…"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_what_is_not_json_is_refused(value: Any, kind: str, shown: str) -> None:
    """A value that JSON cannot say is refused with its place, its type and what it looks like."""
    error = rejected(answer({"a": [0, value]}))

    assert ("AttemptSucceeded", "output.a[1]") == (error.event, error.member)
    assert error.reason.startswith(f"cannot be written as JSON: {kind} {shown} (")


@pytest.mark.parametrize("value", [Point(), b"raw", Unshowable(), Incomparable()], ids=lambda value: type(value).__name__)
def test_what_is_not_json_is_refused_in_every_payload(value: Any) -> None:
    """It makes no difference which of an event's fields holds the value, one with a default or one without."""
    event = TrialEnqueued(trial="a", case="a", repeat=1, input=1, metadata=value, fingerprint="f")

    assert "metadata" == rejected(event).member


def test_what_is_not_json_is_refused_in_extensions() -> None:
    """An extension's data is checked like any other."""
    error = rejected(Extension(type="x-a", data={"b": {"c": {1}}}))

    assert ("x-a", "b.c") == (error.event, error.member)


def test_value_that_contains_itself_is_refused() -> None:
    """A list that is its own member is refused, and does not exhaust the stack."""
    endless: list[Any] = []
    endless.append(endless)

    assert rejected(answer(endless)).member.endswith("…")


def test_value_that_is_too_deep_is_refused() -> None:
    """A value of ten thousand levels is refused, and does not exhaust the stack."""
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]

    assert rejected(answer(deep)).member.endswith("…")


@examples(50)
@given(depth=st.integers(1, 300))
def test_depth_that_can_be_written_can_be_read(depth: int) -> None:
    """However deep a value is, it is either refused or comes back."""
    deep: Any = "bottom"
    for _ in range(depth):
        deep = {"a": deep}
    event = answer(deep)
    try:
        members = members_of(event)
    except Unserialisable:
        return

    assert event == decode(members)


def test_refusal_can_be_printed() -> None:
    """What is said about a value that is not Unicode is Unicode."""
    assert str(rejected(answer({"\ud800": {"\udfff": b""}}))).encode()


def test_extension_is_marked_as_one() -> None:
    """An extension whose type could be taken for one of ours is refused."""
    assert "'noted'" == rejected(Extension(type="noted", data={})).event


@pytest.mark.parametrize("member", sorted(RECORD_MEMBERS))
def test_extension_leaves_the_record_alone(member: str) -> None:
    """An extension cannot have a member that is the record's own."""
    error = rejected(Extension(type="x-a", data={member: 1}))

    assert ("x-a", member) == (error.event, error.member)
