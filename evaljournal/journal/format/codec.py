"""Encoding of records as JSON, without their hashes, and decoding of events.

An event is tagged by the field `type`. For speed, the encoder and the decoder of each event type are generated from its fields,
when it is first used. This module decides which values a payload may contain; `journal.format.blobs` stores the large ones.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NoReturn, cast, get_args, get_origin

import attrs
import orjson

from evaljournal.journal.disk.files import MAX_SIZE
from evaljournal.journal.errors import Unserializable
from evaljournal.journal.events import Event, Extension, KnownEvent
from evaljournal.journal.fact import PAYLOAD, fields_of

RECORD_FIELDS: Final = frozenset({"seq", "at", "t", "type", "d", "h", "blobs"})
"""Fields of a line that belong to the record, not to its event."""

Blobs = Mapping[str, Mapping[str, Any]]
"""Field → reference to the blob with its value; the line's field `blobs`."""

Decoder = Callable[[dict[str, Any]], Event]
Encoder = Callable[[Any, int, str, float, int | None, Blobs | None], bytes]
"""Takes an event, `seq`, `at`, `t`, `d` and `blobs`; see `encode`."""

RECORD_LIMIT: Final = 1 << 20
"""Maximum length of a line in bytes, without its hash."""
MAX_TIME: Final = 1e12
"""Bound of times and durations in seconds, so that their sums and differences are finite and exact to a millisecond."""
MAX_INTEGER: Final = 1 << 53
"""Bound of integers, which every JSON parser reads exactly up to here."""
_MAX_REPR: Final = 80
_MAX_DEPTH: Final = 255
"""Maximum depth of the search for a value that JSON cannot represent; orjson supports one level less."""
_OPTIONS: Final = orjson.OPT_PASSTHROUGH_DATACLASS
"""Rejects dataclasses: orjson would not check their values, and they would be read back as objects."""
_OPEN_LISTS: Final = frozenset({"reason", "category"})
"""Fields of which a later minor version may have further values; readers and copies accept any text."""
_UNCHANGED_BY_JSON: Final = frozenset({str, int, float, bool})
_MINIMA: Final = {"until": -MAX_TIME, "step": 1}
"""Minimum of a number, if it is not 0; `until` is a time on the clock of `t`, all other numbers of seconds are durations."""
_EARLIER_STEPS: Final = frozenset({"parent"})
"""Fields with the number of a step that started before the step of the event; 0: none. The step that `continues` names has
ended before, but may have started later."""
_SMALL: Final = frozenset({type(None), int, float, bool})
_CONTAINERS: Final = frozenset({dict, list, tuple})
_WITH_LENGTH: Final = _CONTAINERS | {str}
_MANY: Final = 100
"""Number of values from which a faster check of all of them pays off."""


def type_name(event: type[Event]) -> str:
    """Return the type of an event class: `attempt_started` for `AttemptStarted`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", event.__name__).lower()


def event_type(event: Event) -> str:
    """Return the type of an event, as in its line."""
    return event.type if isinstance(event, Extension) else TYPE_NAMES[type(event)]


def is_payload(field: "attrs.Attribute[Any]") -> bool:
    """Whether the field contains user data: any JSON, possibly large."""
    return PAYLOAD in getattr(field.type, "__metadata__", ())


EVENT_TYPES: Final[dict[str, type[KnownEvent]]] = {type_name(cls): cls for cls in get_args(KnownEvent)}
TYPE_NAMES: Final[dict[type[Event], str]] = {cls: name for name, cls in EVENT_TYPES.items()}
PAYLOAD_FIELDS: Final[dict[type[Event], tuple[str, ...]]] = {
    cls: tuple(field.name for field in fields_of(cls) if is_payload(field)) for cls in EVENT_TYPES.values()
}
_MAY_CONTAIN_NAN: Final = frozenset(
    cls for cls in EVENT_TYPES.values() if any(is_payload(field) or "float" in str(field.type) for field in fields_of(cls))
)


def _decoder(cls: type[KnownEvent]) -> Decoder:
    """Generate a function that sets the fields directly, which takes half the time of calling the class.

    It checks every value, because the correct hashes of a foreign journal do not imply correct values; readers rely on that.
    """
    names: dict[str, Any] = {"new": object.__new__, "cls": cls, "invalid": _invalid_value, **_CHECKS}
    lines = ["def decode_event(fields):", "event = new(cls)"]
    for field in fields_of(cls):
        name, indent = field.name, ""
        if field.default is not attrs.NOTHING:
            names[f"default_{name}"] = field.default
            lines += [f"if {name!r} not in fields: event.{name} = default_{name}", "else:"]
            indent = "    "
        lines.append(f"{indent}event.{name} = value = fields[{name!r}]")
        if not is_payload(field):
            check, names[f"legal_{name}"] = _check(field)
            condition = check.format(value="value", legal=f"legal_{name}")
            lines.append(f"{indent}if {condition}: raise invalid({name!r}, value)")
    exec("\n    ".join([*lines, "return event"]), names)  # noqa: S102  # built from our own field names
    return cast("Decoder", names["decode_event"])


def _check(field: "attrs.Attribute[Any]") -> tuple[str, Any]:
    """Return an expression that is true if `{value}` is invalid, and the types or values that are `{legal}` in it."""
    origin, annotation = get_origin(field.type), cast("Any", field.type)
    if origin is Literal and field.name not in _OPEN_LISTS:
        return "{value} not in {legal}", get_args(annotation)
    if origin is Mapping:
        return "{value}.__class__ is not {legal} or not mapping({value})", dict
    if origin is list:
        return "{value}.__class__ is not {legal} or not texts({value})", list
    types = {str} if origin is Literal else set(get_args(annotation) or (annotation,))
    is_number, is_optional = types <= {int, float, type(None)}, type(None) in types
    check = "{value}.__class__ not in {legal}"
    if is_number:
        minimum = _MINIMA.get(field.name, 0)
        maximum = "event.step - 1" if field.name in _EARLIER_STEPS else MAX_TIME if float in types else MAX_INTEGER
        check += f" or not {minimum} <= {{value}} <= {maximum}"
    if len(types) == 1 and float not in types:
        return check.replace("not in", "is not", 1), types.pop()
    legal = types - {type(None)} | ({int} if float in types else set())
    return f"{{value}} is not None and ({check})" if is_optional else check, frozenset(legal)


def _is_mapping_of_text(value: dict[str, Any]) -> bool:
    return _are_texts(value.values())


def _are_texts(values: Iterable[Any]) -> bool:
    return all(value.__class__ is str for value in values)


_CHECKS: Final[dict[str, Any]] = {"mapping": _is_mapping_of_text, "texts": _are_texts}


def _invalid_value(field: str, value: Any) -> ValueError:
    return ValueError(f"{field} is {_short_repr(value)}")


def reject_large(value: Any, event: str, field: str = "") -> None:
    """Raise if a value is too large for a file of the journal: orjson crashes if there is not enough memory for its JSON."""
    if exceeds(value, MAX_SIZE):
        raise _too_large(event, field)


def _too_large(event: str, field: str) -> Unserializable:
    problem = f"has more than {MAX_SIZE:,} bytes as JSON; write it to a file, and use its path instead"
    return Unserializable(event, field, problem)


def exceeds(value: Any, size: int) -> bool:
    """Return whether the JSON of a value has more than `size` bytes, by a lower bound: one byte for each character."""
    if value.__class__ is str:
        return len(value) > size
    try:
        return value.__class__ in _CONTAINERS and _remaining_size(value, size, _MAX_DEPTH) < 0
    except (TypeError, RecursionError):
        return False  # A key is not a string, or the value is nested too deeply: the encoder rejects it.


def _remaining_size(value: Any, size: int, depth: int) -> int:
    """Return `size` minus a lower bound of the bytes of an object or a list; negative if it is larger than `size`."""
    if not depth:
        raise RecursionError
    size -= 2 * len(value)  # A comma or a bracket after each value.
    if value.__class__ is dict:
        if len(value) > _MANY:  # A small object is not worth the time.
            size -= sum(map(len, value))
        value = value.values()
    if size < 0 or (len(value) > _MANY and _WITH_LENGTH.isdisjoint(map(type, value))):
        return size
    for item in value:
        kind = item.__class__
        if kind is str:
            size -= len(item)
        elif kind in _CONTAINERS:
            size = _remaining_size(item, size, depth - 1)
            if size < 0:
                break
    return size


def _encoder(cls: type[KnownEvent], name: str) -> Encoder:
    """Generate the function that encodes the events of a class; a loop over the fields would take three times as long.

    It checks types, because an invalid record could not be removed from the journal, and omits fields that have their default.
    Of payloads, only the size is checked. They are omitted only if they are None: an array has no truth value.
    """
    names: dict[str, Any] = {
        "invalid": _invalid_field,
        **_CHECKS,
        "small": _SMALL,
        "exceeds": exceeds,
        "too_large": _too_large,
        "dumps": orjson.dumps,
        "options": _OPTIONS,
        "reject": _reject,
        "reject_non_finite": _reject_non_finite,
    }
    required: list[str] = []
    literal_items = ["'seq': seq", "'at': at", "'t': t", f"'type': {name!r}"]
    payloads: list[str] = []
    optional: list[str] = []
    for field in fields_of(cls):
        key = field.name
        load, assignment = f"{key} = event.{key}", f"fields[{key!r}] = {key}"
        if is_payload(field):
            is_too_large = f"{key}.__class__ not in small and exceeds({key}, {MAX_SIZE})"
            check = f"if {is_too_large}: raise too_large({cls.__name__!r}, {key!r})"
        else:
            is_invalid, names[f"legal_{key}"] = _check(field)
            check = f"if {is_invalid.format(value=key, legal=f'legal_{key}')}: raise invalid(event, {key!r})"
        if field.default is attrs.NOTHING:
            required += [load, check]
            if payloads:
                payloads.append(assignment)
            else:
                literal_items.append(f"{key!r}: {key}")
        else:  # What a capability that is off would record costs one comparison.
            names[f"default_{key}"] = field.default
            differs = f"{key} is not None" if field.default is None else f"{key} != default_{key}"
            (payloads if is_payload(field) else optional).extend([load, f"if {differs}:", f"    {check}", f"    {assignment}"])
    body = [*required, f"fields = {{{', '.join(literal_items)}}}", *payloads, *optional]
    body += ["if in_blobs:", "    for field in in_blobs: del fields[field]", "    fields['blobs'] = in_blobs"]
    body += ["if d is not None: fields['d'] = d"]
    body += ["try: text = dumps(fields, option=options)", f"except TypeError as exc: reject(fields, {cls.__name__!r}, exc)"]
    if cls in _MAY_CONTAIN_NAN:
        # orjson writes NaN as null, and a search of all values is slow. `rfind` takes half the time of `in`.
        body += [f"if text.rfind(b'null') >= 0: reject_non_finite(fields, {cls.__name__!r})"]
    lines = ["def encode_event(event, seq, at, t, d, in_blobs):", *body, "return text[:-1]"]
    exec("\n    ".join(lines), names)  # noqa: S102  # built from our own field names
    return cast("Encoder", names["encode_event"])


def _reject(fields: Mapping[str, Any], event: str, exc: TypeError) -> NoReturn:
    """Raise the error of a value that JSON cannot represent."""
    raise _unserializable(fields, event, str(exc)) from exc


def _invalid_field(event: Event, field: str) -> Unserializable:
    return Unserializable(type(event).__name__, field, f"has the invalid value {_short_repr(getattr(event, field))}")


class _Encoders(dict[type, Encoder]):
    """Event class → its encoder, generated when it is first used."""

    def __missing__(self, cls: type) -> Encoder:
        name = TYPE_NAMES.get(cls)
        encoder = self[cls] = _encode_extension if name is None else _encoder(EVENT_TYPES[name], name)
        return encoder


class _Decoders(dict[str, Decoder | None]):
    """Event type → its decoder, generated when it is first used; None for the type of an extension."""

    def __missing__(self, name: str) -> Decoder | None:
        cls = EVENT_TYPES.get(name)
        if cls is None:
            return None  # Not stored: a foreign journal may have any number of types.
        decoder = self[name] = _decoder(cls)
        return decoder


ENCODERS: Final = _Encoders()
DECODERS: Final = _Decoders()


def encode(event: Event, seq: int, at: str, t: float, d: int | None = None, *, in_blobs: Blobs | None = None) -> bytes:
    """Encode a record as a JSON object without hash and closing brace; fields `in_blobs` are replaced by references."""
    return ENCODERS[event.__class__](event, seq, at, t, d, in_blobs)


def encode_payloads(event: Event) -> dict[str, bytes]:
    """Encode the user data of an event, field by field; fields that are None are omitted."""
    texts: dict[str, bytes] = {}
    for field in PAYLOAD_FIELDS.get(type(event), ()):
        value = getattr(event, field)
        if value is not None:
            reject_large(value, _name(event), field)
            try:
                text = texts[field] = orjson.dumps(value, option=_OPTIONS)
            except TypeError as exc:
                raise _unserializable({field: value}, _name(event), str(exc)) from exc
            if b"null" in text:
                _reject_non_finite({field: value}, _name(event))
    return texts


def _name(event: Event) -> str:
    return event.type if isinstance(event, Extension) else type(event).__name__


def _encode_extension(event: Any, seq: int, at: str, t: float, d: int | None, _: Blobs | None) -> bytes:
    if not isinstance(event, Extension):
        raise Unserializable(_short_repr(event), "", "is not an event")
    if event.type in EVENT_TYPES:
        raise Unserializable(repr(event.type), "", "is not a type for an extension; a type of your own starts with 'x-'")
    if reserved_fields := RECORD_FIELDS & event.data.keys():
        raise Unserializable(event.type, min(reserved_fields), "is reserved for the record")
    fields = {"seq": seq, "at": at, "t": t, "type": event.type, **event.data}
    if d is not None:
        fields["d"] = d
    try:
        text = orjson.dumps(fields, option=_OPTIONS)
    except TypeError as exc:
        _reject(fields, event.type, exc)
    if b"null" in text:
        _reject_non_finite(fields, event.type)
    return text[:-1]


def json_round_trip(value: Any) -> Any:
    """Return a value as it will be read back: a tuple as a list, a date as text."""
    if value is None or value.__class__ in _UNCHANGED_BY_JSON:
        return value
    return orjson.loads(orjson.dumps(value, option=_OPTIONS))


def decode(fields: dict[str, Any]) -> Event:
    """Return the event in the fields of a line."""
    type_ = fields["type"]
    decoder = DECODERS[type_]
    if decoder is not None:
        return decoder(fields)
    if not isinstance(type_, str):
        raise TypeError(f"type is {_short_repr(type_)}")
    return Extension(type=type_, data={name: value for name, value in fields.items() if name not in RECORD_FIELDS})


def _unserializable(fields: Mapping[str, Any], event: str, reason: str) -> Unserializable:
    field, value = _find_unserializable("", fields)
    field = field.encode(errors="backslashreplace").decode()
    text = f"cannot be written as JSON: {type(value).__name__} {_short_repr(value)} ({reason})"
    return Unserializable(event, field, text)


def _find_unserializable(path: str, value: Any, depth: int = 0) -> tuple[str, Any]:
    """Return path and value of the innermost value that JSON cannot represent, or that is nested too deeply."""
    if depth > _MAX_DEPTH:
        return f"{path[:_MAX_REPR]}…", value
    children: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        children = [(f"{path}.{key}" if path else str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        children = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    for child, item in children:
        try:
            orjson.dumps(item, option=_OPTIONS)
        except TypeError:
            return _find_unserializable(child, item, depth + 1)
    return path, value


def _reject_non_finite(value: Any, event: str, path: str = "") -> None:
    """Raise if there is a NaN or an infinity, which orjson would silently write as null."""
    if isinstance(value, float) and not math.isfinite(value):
        raise Unserializable(event, path, f"is {value!r}, which JSON cannot represent")
    if isinstance(value, dict):
        for key, item in value.items():
            _reject_non_finite(item, event, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _reject_non_finite(item, event, f"{path}[{index}]")


def _short_repr(value: Any) -> str:
    try:
        text = repr(value)
    except (Exception, SystemExit) as exc:  # noqa: BLE001  # user code
        return f"(repr() raised {type(exc).__name__})"
    return text if len(text) <= _MAX_REPR else f"{text[:_MAX_REPR]}…"
