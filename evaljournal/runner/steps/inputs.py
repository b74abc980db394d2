"""The input of a step: its JSON, its fingerprint, and the part of it that follows the input of an earlier step.

An agent sends its whole conversation in every call. Recorded in full, 30 turns of 3 kB would take 1.4 MB per trial. So a list
in the input of a step that begins with the same list of an earlier step is recorded without those elements.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import attrs
import orjson

from evaljournal.runner.data.fingerprint import canonical, digest
from evaljournal.runner.data.to_json import to_json
from evaljournal.runner.errors import UsageError
from evaljournal.runner.secrets.masking import mask_values, may_contain_secrets

if TYPE_CHECKING:
    from hashlib import _Hash

_CANDIDATES: Final = 8
"""Earlier inputs that are compared: the last ones with lists, including those of concurrent agents."""
_EMPTY_LIST: Final = b"["
_AFTER_ELEMENT: Final = frozenset({b"", b","})
_NO_FIELDS: Final[Mapping[str, Any]] = {}
_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
_LONG_LIST: Final = 1_024
"""Lists with more bytes are compared with earlier ones before they are hashed and searched."""


@attrs.define(eq=False)
class _LongList:
    json: bytes
    """Without its closing bracket."""
    hash: "_Hash"
    """Hash of `json`; the hash of a longer list continues it."""
    digest: bytes
    elements: list[Any] | None
    """A copy if it contains only texts, otherwise None: 1 and True are equal, but their JSON is not."""

    def extend(self, json: bytes, value: Any) -> "_LongList":
        """Return a longer list that begins with the elements of this one."""
        if len(json) == len(self.json):
            return self
        longer_hash = self.hash.copy()
        longer_hash.update(json[len(self.json) :])
        can_copy = self.elements is not None and value.__class__ is list
        new_elements = _copy_texts(value[len(self.elements or ()) :]) if can_copy else None
        elements = new_elements and [*(self.elements or ()), *new_elements]
        return _LongList(json, longer_hash, longer_hash.hexdigest().encode(), elements)


_NO_LIST: Final = _LongList(b"", sha256(), b"", [])


@attrs.define  # Faster to create than a frozen class.
class StepInput:
    """The input of a step, with secrets masked, as canonical JSON: later changes by the caller are not recorded."""

    content: bytes
    """Its JSON, with a hash in place of each long list."""
    fields: Mapping[str, bytes]
    """The JSON of each field, that of a list without its closing bracket; empty if no field is a list or an object."""
    lists: Mapping[str, _LongList] = attrs.field(eq=False, repr=False)
    fingerprint: str
    is_plain: bool
    """Whether it has long lists, and nothing in it resembles a secret or NaN."""

    @property
    def value(self) -> Any:
        """The complete input, as the journal would return it."""
        if not self.fields:
            return orjson.loads(self.content)
        return {key: orjson.loads(_close(field)) for key, field in self.fields.items()}


def step_input(value: Any, name: str, *, key: bytes | None = None, earlier_inputs: "RecordedInputs | None" = None) -> StepInput:
    """Return the input of a step; raise `UsageError` or `Unserializable` if it is not JSON.

    `key` identifies it instead of its JSON. Elements that a list has in common with one in `earlier_inputs` are neither hashed
    nor searched for secrets again, and texts are not even serialized, because that takes longer than everything else.
    """
    try:
        content, fields, lists, new_json = _serialize(value, name, earlier_inputs)
    except UsageError:
        value = to_json(value)
        content, fields, lists, new_json = _serialize(value, name, earlier_inputs)
    is_plain = not may_contain_secrets(new_json.decode())
    if not is_plain:
        content, fields, lists, new_json = _serialize(mask_values(value), name, None)
    fingerprint = digest(content if key is None else key)
    return StepInput(content, fields, lists, fingerprint, is_plain and bool(lists) and b"null" not in new_json)


def _serialize(
    value: Any, step: str, earlier_inputs: "RecordedInputs | None"
) -> tuple[bytes, Mapping[str, bytes], Mapping[str, _LongList], bytes]:
    """Return the content, the fields and the long lists of an input, and the part of its JSON that no earlier input has."""
    if value.__class__ is not dict or _LEAVES.issuperset(map(type, value.values())):
        content = _json(value, step)
        if content.rfind(b"null") >= 0:  # Takes half the time of `in`.
            canonical(value, _label(step))  # Raises an error if null stands for NaN.
        return content, _NO_FIELDS, _NO_FIELDS, content

    for key in value:
        if not isinstance(key, str):
            raise UsageError(f"the input of step {step!r} has the key {key!r}; JSON keys must be strings")
    fields: dict[str, bytes] = {}
    lists: dict[str, _LongList] = {}
    parts, new_parts = list[bytes](), list[bytes]()

    for key in sorted(value):
        field, new_json, long_list = _serialize_field(value[key], step, key, earlier_inputs)
        if b"null" in new_json:
            canonical(value[key], _label(step, key))  # Raises an error if null stands for NaN.
        fields[key], part = field, new_json
        if long_list is not None:
            lists[key], fields[key], part = long_list, long_list.json, long_list.digest
        elif field[:1] == b"[":
            fields[key] = field[:-1]
        key_json = orjson.dumps(key)
        parts.append(b"%b:%b" % (key_json, part))
        new_parts.append(b"%b:%b" % (key_json, new_json))
    return b"{%b}" % b",".join(parts), fields, lists, b",".join(new_parts)


def _serialize_field(
    value: Any, step: str, key: str, earlier_inputs: "RecordedInputs | None"
) -> tuple[bytes, bytes, _LongList | None]:
    """Return the JSON of a field, the new part of it, and the long list, whose JSON has no closing bracket."""
    prefix = earlier_inputs.find_prefix(key, value) if earlier_inputs is not None else None
    if prefix is not None:
        tail = value[len(prefix.elements or ()) :]
        field = b"%b,%b" % (prefix.json, _json(tail, step, key)[1:-1]) if tail else prefix.json
    else:
        field = _json(value, step, key)
        if field[:1] != b"[" or len(field) <= _LONG_LIST:
            return field, field, None
        field = field[:-1]
        prefix = earlier_inputs.find_json_prefix(key, field) if earlier_inputs is not None else _NO_LIST
    return field, field[len(prefix.json) :], prefix.extend(field, value)


def _json(value: Any, step: str, field: str = "") -> bytes:
    """Return the canonical JSON of an input or of a field of it, with null in place of NaN."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return canonical(value, _label(step, field))  # It raises an error that names the position of the problem.


def _copy_texts(value: Any) -> Any:
    """Return a copy of a value that contains only texts, or None."""
    if value.__class__ is str:
        return value
    if value.__class__ is list:
        copies = [_copy_texts(item) for item in value]
        return None if None in copies else copies
    if value.__class__ is dict:
        fields = {key: _copy_texts(item) for key, item in value.items()}
        return None if None in fields.values() else fields
    return None


def _label(step: str, field: str = "") -> str:
    return f"the input of step {step!r}" + (f".{field}" if field else "")


class RecordedInputs:
    """The inputs of an attempt's steps that ended."""

    def __init__(self) -> None:
        self._recent_inputs: tuple[tuple[int, StepInput], ...] = ()
        """Number and input; replaced, not changed, because steps may end in several threads; one that is lost costs space."""

    def new_part(self, new_input: StepInput) -> tuple[Any, int]:
        """Return the part of an input to record, and the number of the step that it continues, or 0."""
        if not new_input.fields:
            return orjson.loads(new_input.content), 0
        tails, continues = self._tails(new_input)
        value = {key: orjson.loads(tails.get(key) or _close(field)) for key, field in new_input.fields.items()}
        return value, continues

    def add(self, number: int, recorded_input: StepInput) -> None:
        """Add the input of a step whose end was recorded. Not before: a step of another thread may be recorded in between."""
        if recorded_input.fields:
            self._recent_inputs = (*self._recent_inputs[1 - _CANDIDATES :], (number, recorded_input))

    def find_prefix(self, key: str, value: Any) -> _LongList | None:
        """Return an earlier input's list that this one begins with, if nothing in it resembles a secret; otherwise None."""
        if value.__class__ is list:
            for _, earlier_input in reversed(self._recent_inputs):
                prefix = earlier_input.lists.get(key) if earlier_input.is_plain else None
                if prefix is not None and prefix.elements and value[: len(prefix.elements)] == prefix.elements:
                    return prefix
        return None

    def find_json_prefix(self, key: str, field: bytes) -> _LongList:
        """Return an earlier list that a list's JSON, without its closing bracket, begins with; if none, an empty one."""
        for _, earlier_input in reversed(self._recent_inputs):
            prefix = earlier_input.lists.get(key)
            if prefix is not None and earlier_input.is_plain and field.startswith(prefix.json):
                return prefix
        return _NO_LIST

    def _tails(self, new_input: StepInput) -> tuple[dict[str, bytes], int]:
        for number, earlier_input in reversed(self._recent_inputs):
            if tails := _tails(new_input.fields, earlier_input.fields):
                return tails, number
        return {}, 0


def _close(field: bytes) -> bytes:
    return field + b"]" if field[:1] == b"[" else field


def _tails(fields: Mapping[str, bytes], earlier_fields: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return each list that is in both inputs, without the elements of the earlier one; empty if a list lacks them."""
    tails: dict[str, bytes] = {}
    for key, field in fields.items():
        prefix = earlier_fields.get(key, b"")
        if field[:1] != b"[" or prefix[:1] != b"[":
            continue
        tail = field[len(prefix) :]
        has_prefix = field is prefix or field.startswith(prefix)
        if prefix != _EMPTY_LIST and not (has_prefix and tail[:1] in _AFTER_ELEMENT):
            return {}
        tails[key] = b"[%b]" % tail.removeprefix(b",")
    return tails if any(earlier_fields[key] != _EMPTY_LIST for key in tails) else {}
