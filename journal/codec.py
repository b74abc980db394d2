"""Records to JSON, but for their hashes, and events back.

The union of events is tagged by `type`. What writes a kind of event, and what reads it, is made once, here: to go through its
fields each time would cost more than to write them. What the user's data may look like is decided here too; what is done about
a value that is too large is not.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, cast, get_args, get_origin

import attrs
import orjson
from cattrs import Converter
from cattrs.gen import make_dict_structure_fn, override

from journal.errors import UnknownEvent, Unserialisable
from journal.events import PAYLOAD, Event, Extension, KnownEvent, fields_of

RECORD_MEMBERS: Final = frozenset({"seq", "at", "t", "type", "d", "h", "blobs"})
"""The members of a line that belong to the record and not to its event."""

Blobs = Mapping[str, Mapping[str, Any]]
"""Field → where its value is kept instead, as the line's member `blobs` says it."""

_SHOWN: Final = 80
_DEEP: Final = 255
"""The levels that orjson writes."""
_PLAIN: Final = orjson.OPT_PASSTHROUGH_DATACLASS
"""A dataclass is not JSON: what is inside it could not be checked, and it would come back as something else."""
_ALIKE: Final = frozenset({str, int, float, bool})
"""Types whose values are read as they were written."""


def type_of(event: type[Event]) -> str:
    """Name an event as its line does: `AttemptStarted` is `attempt_started`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", event.__name__).lower()


def event_type(event: Event) -> str:
    """Name the type of an event, as its line does."""
    return event.type if isinstance(event, Extension) else TYPE_NAMES[type(event)]


def is_payload(field: "attrs.Attribute[Any]") -> bool:
    """Say whether the field holds the user's data, which is never looked into and may be large."""
    return PAYLOAD in getattr(field.type, "__metadata__", ())


EVENT_TYPES: Final[dict[str, type[KnownEvent]]] = {type_of(kind): kind for kind in get_args(KnownEvent)}
TYPE_NAMES: Final[dict[type[Event], str]] = {kind: name for name, kind in EVENT_TYPES.items()}
PAYLOAD_FIELDS: Final[dict[type[Event], tuple[str, ...]]] = {
    kind: tuple(field.name for field in fields_of(kind) if is_payload(field)) for kind in EVENT_TYPES.values()
}
_MAY_HOLD_NAN: Final = frozenset(
    kind for kind in EVENT_TYPES.values() if any(is_payload(field) or "float" in str(field.type) for field in fields_of(kind))
)


def _as_it_is(value: Any, _: Any) -> Any:
    return value


def _checking_readers() -> dict[str, Callable[[dict[str, Any]], Event]]:
    """Fetch one hook per tag, which checks the type of every member."""
    converter = Converter()
    hooks: dict[str, Callable[[dict[str, Any]], Event]] = {}
    for name, kind in EVENT_TYPES.items():
        checks: dict[str, Any] = {field.name: override(struct_hook=_checked(field)) for field in fields_of(kind)}
        hooks[name] = make_dict_structure_fn(kind, converter, **checks)
    return hooks


def _trusting_reader(kind: type[KnownEvent]) -> Callable[[dict[str, Any]], Event]:
    """Write the function that makes an event of members as they are, for half the price of calling its class."""
    known: dict[str, Any] = {"new": object.__new__, "kind": kind}
    lines = ["def event_of(members):", "event = new(kind)"]
    for field in fields_of(kind):
        value = f"members[{field.name!r}]"
        if field.default is not attrs.NOTHING:
            known[f"default_{field.name}"] = field.default
            value = f"{value} if {field.name!r} in members else default_{field.name}"
        lines.append(f"event.{field.name} = {value}")
    exec("\n    ".join([*lines, "return event"]), known)  # noqa: S102  # the text is made of our own names
    return cast("Callable[[dict[str, Any]], Event]", known["event_of"])


def _checked(field: "attrs.Attribute[Any]") -> Callable[[Any, Any], Any]:
    """Refuse a value that is not of the field's own type."""
    fits = _fitting(field)

    def check(value: Any, _: Any) -> Any:
        if not fits(value):
            raise ValueError(f"{field.name} is {value!r}")
        return value

    return check if not is_payload(field) else _as_it_is


def _fitting(field: "attrs.Attribute[Any]") -> Callable[[Any], bool]:
    """Say which values a field may hold; JSON has few types, so few are told apart."""
    if get_origin(field.type) is Literal:
        return get_args(field.type).__contains__
    if get_origin(field.type) is Mapping:
        return lambda value: isinstance(value, dict) and all(type(each) is str for each in value.values())
    types = _types(field)
    return lambda value: value.__class__ in types


def _types(field: "attrs.Attribute[Any]") -> frozenset[type]:
    if get_origin(field.type) is Mapping:
        return frozenset({dict})
    kind: Any = field.type
    types = set(get_args(kind) or (kind,))
    return frozenset(types | {int} if float in types else types)


def _writer(kind: type[KnownEvent], name: str) -> Callable[[Any, dict[str, Any]], None]:
    """Write the function that adds one kind of event to the members of a line, field by field, as attrs writes its own.

    It checks types, for a record that breaks the rules could never be taken back; a loop would take three times as long. It
    leaves out what has its default. The user's data passes through untouched and is left out only where it is None: nobody
    compares it with a default, for an array would not say yes or no.
    """
    known: dict[str, Any] = {"misfit": _misfit}
    checks: list[str] = []
    always: list[str] = []
    otherwise: list[str] = []
    for field in fields_of(kind):
        member = field.name
        is_required, put = field.default is attrs.NOTHING, f"members[{member!r}] = {member}"
        checks.append(f"{member} = event.{member}")
        if is_payload(field):
            always.append(put if is_required else f"if {member} is not None: {put}")
            continue
        is_word = get_origin(field.type) is Literal
        known[f"legal_{member}"] = get_args(field.type) if is_word else _types(field)
        value = member if is_word else f"{member}.__class__"
        checks.append(f"if {value} not in legal_{member}: raise misfit(event, {member!r})")
        if is_required:
            always.append(put)
        else:
            known[f"default_{member}"] = field.default
            otherwise.append(f"if {member} != default_{member}: {put}")
    lines = ["def add(event, members):", *checks, f"members['type'] = {name!r}", *always, *otherwise]
    exec("\n    ".join(lines), known)  # noqa: S102  # the text is made of our own names
    return cast("Callable[[Any, dict[str, Any]], None]", known["add"])


def _misfit(event: Event, field: str) -> Unserialisable:
    value = _short(getattr(event, field))
    return Unserialisable(f"{field} of {type(event).__name__} may not be {value}; nothing was written")


_WRITERS: Final[dict[type[Event], tuple[Callable[[Any, dict[str, Any]], None], bool]]] = {
    kind: (_writer(kind, name), kind in _MAY_HOLD_NAN) for name, kind in EVENT_TYPES.items()
}
"""Kind → what writes it, and whether it may hold a number that JSON does not have."""
TRUSTING: Final = {name: _trusting_reader(kind) for name, kind in EVENT_TYPES.items()}
CHECKING: Final = _checking_readers()
"""Tag → hook. The first trusts the types, for the line's hash vouches for them; the second checks each."""


def encode(event: Event, seq: int, at: str, t: float, d: int | None = None, *, elsewhere: Blobs | None = None) -> bytes:
    """Write a record as a JSON object that is left open for its hash; of fields that are kept `elsewhere`, only say where."""
    members: dict[str, Any] = {"seq": seq, "at": at, "t": t}
    writer, may_hold_nan = _WRITERS.get(event.__class__, _EXTENSION)
    writer(event, members)
    if elsewhere:
        for field in elsewhere:
            del members[field]
        members["blobs"] = elsewhere
    if d is not None:
        members["d"] = d
    try:
        text = orjson.dumps(members, option=_PLAIN)
    except TypeError as exc:
        raise _unserialisable(members, _called(event), str(exc)) from exc
    if may_hold_nan and b"null" in text:  # To look for it costs as much as to write the text.
        _refuse_non_finite(members, _called(event))
    return text[:-1]


def _called(event: Event) -> str:
    return event.type if isinstance(event, Extension) else type(event).__name__


def _add_extension(event: Any, members: dict[str, Any]) -> None:
    if not isinstance(event, Extension):
        raise Unserialisable(f"{_short(event)} is not an event of the journal's; nothing was written")
    if not event.type.startswith("x-"):
        raise Unserialisable(f"an extension's type begins with 'x-', {event.type!r} does not; nothing was written")
    if taken := RECORD_MEMBERS & event.data.keys():
        raise Unserialisable(f"{event.type} may not have the record's own member {min(taken)!r}; nothing was written")
    members["type"] = event.type
    members.update(event.data)


_EXTENSION: Final = (_add_extension, True)


def json_round_trip(value: Any) -> Any:
    """Give a value that was written as whoever reads it will find it: a tuple as a list, a date as text."""
    if value is None or value.__class__ in _ALIKE:
        return value
    return orjson.loads(orjson.dumps(value, option=_PLAIN))


def decode(members: dict[str, Any]) -> Event:
    """Make an event from the members of a line."""
    kind = members["type"]
    hook = TRUSTING.get(kind)
    if hook is not None:
        return hook(members)
    if isinstance(kind, str) and kind.startswith("x-"):
        return Extension(type=kind, data={name: value for name, value in members.items() if name not in RECORD_MEMBERS})
    raise UnknownEvent(
        f"record {members.get('seq')} has the type {kind!r}, which this version of evaljournal does not know; "
        "a newer one wrote it",
    )


def _unserialisable(members: Mapping[str, Any], name: str, why: str) -> Unserialisable:
    where, value = _culprit("", members)
    where = where.encode(errors="backslashreplace").decode()
    return Unserialisable(
        f"{where or name} of {name} cannot be written as JSON: "
        f"{type(value).__name__} {_short(value)} ({why}); nothing was written"
    )


def _culprit(path: str, value: Any, depth: int = 0) -> tuple[str, Any]:
    """Find the innermost value that JSON cannot say, or one that is too deep."""
    if depth > _DEEP:
        return f"{path[:_SHOWN]}…", value
    children: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        children = [(f"{path}.{key}" if path else str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        children = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    for where, item in children:
        try:
            orjson.dumps(item, option=_PLAIN)
        except TypeError:
            return _culprit(where, item, depth + 1)
    return path, value


def _refuse_non_finite(value: Any, name: str, path: str = "") -> None:
    """Refuse NaN and infinity, which orjson would write as null: a journal does not change what it was told."""
    if isinstance(value, float) and not math.isfinite(value):
        raise Unserialisable(f"{path} of {name} is {value!r}, which JSON cannot say; nothing was written")
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_non_finite(item, name, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _refuse_non_finite(item, name, f"{path}[{index}]")


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as exc:  # noqa: BLE001  # a value that cannot even be shown is the user's, and no reason to crash
        return f"(its repr raised {type(exc).__name__})"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
