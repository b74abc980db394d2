"""Events to JSON members and back.

The union of events is tagged by `type`. Every hook of cattrs is fetched once, here, because looking one up costs more than
using it. What the user's data may look like is decided here too; what is done about a value that is too large is not.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, cast, get_args, get_origin

import attrs
import orjson
from cattrs import Converter
from cattrs.fns import identity
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from journal.errors import UnknownEvent, Unserialisable
from journal.events import PAYLOAD, Event, Extension, Known, fields_of

OWN: Final = frozenset({"seq", "at", "t", "type", "d", "h", "blobs"})
"""The members of a line that belong to the record and not to its event."""

Blobs = Mapping[str, Mapping[str, Any]]
"""Field → where its value is kept instead, as the line's member `blobs` says it."""

_SHOWN: Final = 80
_DEEP: Final = 255
"""The levels that orjson writes."""
_PLAIN: Final = orjson.OPT_PASSTHROUGH_DATACLASS
_ALIKE: Final = frozenset({str, int, float, bool})
"""Types whose values are read as they were written."""
"""A dataclass is not JSON: what is inside it could not be checked, and it would come back as something else."""


def type_of(event: type[Event]) -> str:
    """Name an event as its line does: `AttemptStarted` is `attempt_started`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", event.__name__).lower()


def name_of(event: Event) -> str:
    """Name the type of an event, as its line does."""
    return event.type if isinstance(event, Extension) else NAMES[type(event)]


def is_payload(field: "attrs.Attribute[Any]") -> bool:
    """Say whether the field holds the user's data, which is never looked into and may be large."""
    return PAYLOAD in getattr(field.type, "__metadata__", ())


KINDS: Final[dict[str, type[Known]]] = {type_of(kind): kind for kind in get_args(Known)}
NAMES: Final[dict[type[Event], str]] = {kind: name for name, kind in KINDS.items()}
PAYLOADS: Final[dict[type[Event], tuple[str, ...]]] = {
    kind: tuple(field.name for field in fields_of(kind) if is_payload(field)) for kind in KINDS.values()
}
_PREFIX: Final[dict[type[Event], bytes]] = {kind: b'"type":"%b",' % name.encode() for name, kind in KINDS.items()}
_NULLABLE: Final[dict[type[Event], tuple[str, ...]]] = {
    kind: tuple(field.name for field in fields_of(kind) if is_payload(field) and field.default is None)
    for kind in KINDS.values()
}
"""Payloads that are left out where they are None. Nobody compares them with a default: an array would not say yes or no."""
_MAY_HOLD_NAN: Final = frozenset(
    kind for kind in KINDS.values() if any(is_payload(field) or "float" in str(field.type) for field in fields_of(kind))
)


def _as_it_is(value: Any, _: Any) -> Any:
    return value


def _writer() -> dict[type[Event], Callable[[Any], dict[str, Any]]]:
    """Fetch one hook per event; the user's data passes through untouched, and a default is left out."""
    converter = Converter()
    hooks: dict[type[Event], Callable[[Any], dict[str, Any]]] = {}
    for kind in KINDS.values():
        untouched: dict[str, Any] = {
            field.name: override(unstruct_hook=identity, omit_if_default=not is_payload(field)) for field in fields_of(kind)
        }
        hooks[kind] = make_dict_unstructure_fn(kind, converter, **untouched)
    return hooks


class _Trusting(Converter):
    """Takes every value as it is, with no call for it: the line's hash vouches for the types."""

    def get_structure_hook(self, type: Any, cache_result: bool = True) -> Any:  # noqa: A002, ARG002, FBT001, FBT002
        return None


def _readers(*, checking: bool) -> dict[str, Callable[[dict[str, Any]], Event]]:
    """Fetch one hook per tag."""
    converter = Converter() if checking else _Trusting()
    hooks: dict[str, Callable[[dict[str, Any]], Event]] = {}
    for name, kind in KINDS.items():
        checks: dict[str, Any] = {}
        if checking:
            checks = {field.name: override(struct_hook=_checked(field)) for field in fields_of(kind)}
        hooks[name] = make_dict_structure_fn(kind, converter, _cattrs_detailed_validation=checking, **checks)
    return hooks


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


# What a writer checks before it takes an event: a record that breaks the rules could never be taken back.
_TYPES: Final[dict[type[Event], tuple[tuple[str, frozenset[type]], ...]]] = {
    kind: tuple(
        (field.name, _types(field))
        for field in fields_of(kind)
        if not is_payload(field) and get_origin(field.type) is not Literal
    )
    for kind in KINDS.values()
}
_WORDS: Final[dict[type[Event], tuple[tuple[str, tuple[str, ...]], ...]]] = {
    kind: tuple((field.name, get_args(field.type)) for field in fields_of(kind) if get_origin(field.type) is Literal)
    for kind in KINDS.values()
}

_unstructure: Final = _writer()
TRUSTING: Final = _readers(checking=False)
CHECKING: Final = _readers(checking=True)
"""Tag → hook. The first trusts the types, for the line's hash vouches for them; the second checks each."""


def encode(event: Event, *, without: tuple[str, ...] = ()) -> bytes:  # noqa: C901  # one function, for the sake of speed
    """Write an event as the members of a JSON object, `type` first; the fields `without` are left out."""
    kind = event.__class__
    if kind is Extension:
        return _encode_extension(cast(Extension, event))
    hook = _unstructure.get(kind)
    if hook is None:
        raise Unserialisable(f"{_short(event)} is not an event of the journal's; nothing was written")
    members = hook(event)
    for field, types in _TYPES[kind]:
        if field in members and members[field].__class__ not in types:
            raise Unserialisable(f"{field} of {kind.__name__} may not be {_short(members[field])}; nothing was written")
    for field, words in _WORDS[kind]:
        if members[field] not in words:
            raise Unserialisable(f"{field} of {kind.__name__} may not be {_short(members[field])}; nothing was written")
    for field in _NULLABLE[kind]:
        if members[field] is None:
            del members[field]
    for field in without:
        del members[field]
    try:
        text = orjson.dumps(members, option=_PLAIN)
    except TypeError as exc:
        raise _unserialisable(members, kind.__name__, str(exc)) from exc
    if kind in _MAY_HOLD_NAN and b"null" in text:
        _refuse_non_finite(members, kind.__name__)
    return _PREFIX[kind] + text[1:-1]


def _encode_extension(event: Extension) -> bytes:
    if not event.type.startswith("x-"):
        raise Unserialisable(f"an extension's type begins with 'x-', {event.type!r} does not; nothing was written")
    if taken := OWN & event.data.keys():
        raise Unserialisable(f"{event.type} may not have the record's own member {min(taken)!r}; nothing was written")
    members = {"type": event.type, **event.data}
    try:
        text = orjson.dumps(members, option=_PLAIN)
    except TypeError as exc:
        raise _unserialisable(members, event.type, str(exc)) from exc
    _refuse_non_finite(members, event.type)
    return text[1:-1]


def as_read(value: Any) -> Any:
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
        return Extension(type=kind, data={name: value for name, value in members.items() if name not in OWN})
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
