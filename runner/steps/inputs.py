"""The input of a step: its JSON, its fingerprint, and the part of it that follows the input of an earlier step.

An agent sends its whole conversation in every call. Recorded in full, 30 turns of 3 kB would take 1.4 MB per trial. So a list
in the input of a step that begins with the same list of an earlier step is recorded without those elements.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import attrs
import orjson

from runner.data.fingerprint import canonical, digest
from runner.data.to_json import to_json
from runner.errors import UsageError
from runner.secrets import mask_values, may_contain_secrets

if TYPE_CHECKING:
    from hashlib import _Hash

_CANDIDATES: Final = 8
"""Earlier inputs that are compared: the last ones with lists, including those of concurrent agents."""
_EMPTY: Final = b"["
_AFTER_ELEMENT: Final = frozenset({b"", b","})
_NO_MEMBERS: Final[Mapping[str, Any]] = {}
_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
_LONG: Final = 1_024
"""Bytes from which a list is compared with earlier ones before it is hashed and searched."""


@attrs.define(eq=False)
class _LongList:
    """A long list in the input of a step."""

    json: bytes
    """Without its closing bracket."""
    hash: "_Hash"
    """Hash of `json`; that of a longer list continues it."""
    digest: bytes
    elements: list[Any] | None
    """A copy if it contains only texts, otherwise None: 1 and True are equal, but their JSON is not."""

    def extended(self, json: bytes, value: Any) -> "_LongList":
        """Return the list that begins with the elements of this one."""
        if len(json) == len(self.json):
            return self
        hashed = self.hash.copy()
        hashed.update(json[len(self.json) :])
        is_copied = self.elements is not None and value.__class__ is list
        new = _copied(value[len(self.elements or ()) :]) if is_copied else None
        return _LongList(json, hashed, hashed.hexdigest().encode(), new and [*(self.elements or ()), *new])


_NO_LIST: Final = _LongList(b"", sha256(), b"", [])


@attrs.define  # Faster to create than a frozen class.
class StepInput:
    """The input of a step, with secrets masked, as canonical JSON: later changes by the caller are not recorded."""

    content: bytes
    """Its JSON, with a hash in place of each long list."""
    members: Mapping[str, bytes]
    """The JSON of each member, that of a list without its closing bracket; empty if no member is a list or an object."""
    lists: Mapping[str, _LongList] = attrs.field(eq=False, repr=False)
    """The members that are long lists."""
    fingerprint: str
    is_plain: bool
    """Whether it has long lists, and nothing in it resembles a secret or NaN."""


def step_input(value: Any, name: str, *, key: bytes | None = None, earlier: "RecordedInputs | None" = None) -> StepInput:
    """Return the input of a step; raise `UsageError` or `Unserializable` if it is not JSON.

    `key` identifies it instead of its JSON. What a list has in common with one in `earlier` is neither hashed nor searched for
    secrets again, and texts are not even serialized, because that takes longer than everything else.
    """
    try:
        content, members, lists, new = _serialized(value, name, earlier)
    except UsageError:
        value = to_json(value)
        content, members, lists, new = _serialized(value, name, earlier)
    is_plain = not may_contain_secrets(new.decode())
    if not is_plain:
        content, members, lists, new = _serialized(mask_values(value), name, None)
    fingerprint = digest(content if key is None else key)
    return StepInput(content, members, lists, fingerprint, is_plain and bool(lists) and b"null" not in new)


def _serialized(
    value: Any, step: str, earlier: "RecordedInputs | None"
) -> tuple[bytes, Mapping[str, bytes], Mapping[str, _LongList], bytes]:
    """Return the content, the members and the long lists of an input, and its JSON without what is in an earlier one."""
    if value.__class__ is not dict or _LEAVES.issuperset(map(type, value.values())):
        content = _json(value, step)
        if content.rfind(b"null") >= 0:  # Takes half the time of `in`.
            canonical(value, _label(step))  # It raises if this is NaN.
        return content, _NO_MEMBERS, _NO_MEMBERS, content
    for key in value:
        if not isinstance(key, str):
            raise UsageError(f"the input of step {step!r} has the key {key!r}; JSON keys must be strings")
    members: dict[str, bytes] = {}
    lists: dict[str, _LongList] = {}
    parts, new_parts = list[bytes](), list[bytes]()
    for key in sorted(value):
        member, new, long_list = _serialized_member(value[key], step, key, earlier)
        if b"null" in new:
            canonical(value[key], _label(step, key))  # It raises if this is NaN.
        members[key], part = member, new
        if long_list is not None:
            lists[key], members[key], part = long_list, long_list.json, long_list.digest
        elif member[:1] == b"[":
            members[key] = member[:-1]
        quoted = orjson.dumps(key)
        parts.append(b"%b:%b" % (quoted, part))
        new_parts.append(b"%b:%b" % (quoted, new))
    return b"{%b}" % b",".join(parts), members, lists, b",".join(new_parts)


def _serialized_member(
    value: Any, step: str, key: str, earlier: "RecordedInputs | None"
) -> tuple[bytes, bytes, _LongList | None]:
    """Return the JSON of a member, what is new in it, and the long list; the JSON of that has no closing bracket."""
    prefix = earlier.beginning_of(key, value) if earlier is not None else None
    if prefix is not None:
        tail = value[len(prefix.elements or ()) :]
        member = b"%b,%b" % (prefix.json, _json(tail, step, key)[1:-1]) if tail else prefix.json
    else:
        member = _json(value, step, key)
        if member[:1] != b"[" or len(member) <= _LONG:
            return member, member, None
        member = member[:-1]
        prefix = earlier.beginning_of_json(key, member) if earlier is not None else _NO_LIST
    return member, member[len(prefix.json) :], prefix.extended(member, value)


def _json(value: Any, step: str, member: str = "") -> bytes:
    """Return the canonical JSON of an input or of a member of it, with null in place of NaN."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return canonical(value, _label(step, member))  # It raises an error that names the position of the problem.


def _copied(value: Any) -> Any:
    """Return a copy of a value that contains only texts, or None."""
    if value.__class__ is str:
        return value
    if value.__class__ is list:
        copies = [_copied(item) for item in value]
        return None if None in copies else copies
    if value.__class__ is dict:
        members = {key: _copied(item) for key, item in value.items()}
        return None if None in members.values() else members
    return None


def _label(step: str, member: str = "") -> str:
    return f"the input of step {step!r}" + (f".{member}" if member else "")


class RecordedInputs:
    """The inputs of an attempt's steps that ended."""

    def __init__(self) -> None:
        self._recent: tuple[tuple[int, StepInput], ...] = ()
        """Number and input; replaced, not changed, because steps may end in several threads."""

    def record(self, number: int, current: StepInput) -> tuple[Any, int]:
        """Add the input of a step that ended; return what is recorded of it, and the step that it continues; 0: none."""
        if not current.members:
            return orjson.loads(current.content), 0
        tails, continues = self._tails(current)
        self._recent = (*self._recent[1 - _CANDIDATES :], (number, current))
        return {key: orjson.loads(tails.get(key) or _closed(member)) for key, member in current.members.items()}, continues

    def beginning_of(self, key: str, value: Any) -> _LongList | None:
        """Return an earlier input's list that this one begins with, if nothing in it resembles a secret; otherwise None."""
        if value.__class__ is list:
            for _, earlier in reversed(self._recent):
                prefix = earlier.lists.get(key) if earlier.is_plain else None
                if prefix is not None and prefix.elements and value[: len(prefix.elements)] == prefix.elements:
                    return prefix
        return None

    def beginning_of_json(self, key: str, member: bytes) -> _LongList:
        """Return the same for the JSON of a list, without its closing bracket; an empty list if there is none."""
        for _, earlier in reversed(self._recent):
            prefix = earlier.lists.get(key)
            if prefix is not None and earlier.is_plain and member.startswith(prefix.json):
                return prefix
        return _NO_LIST

    def _tails(self, current: StepInput) -> tuple[dict[str, bytes], int]:
        for number, earlier in reversed(self._recent):
            if tails := _tails(current.members, earlier.members):
                return tails, number
        return {}, 0


def _closed(member: bytes) -> bytes:
    return member + b"]" if member[:1] == b"[" else member


def _tails(members: Mapping[str, bytes], earlier: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return each list that is in both inputs without the elements of the earlier one.

    Return nothing if one of them does not begin with those elements.
    """
    tails: dict[str, bytes] = {}
    for key, member in members.items():
        before = earlier.get(key, b"")
        if member[:1] != b"[" or before[:1] != b"[":
            continue
        tail = member[len(before) :]
        if before != _EMPTY and (tail[:1] not in _AFTER_ELEMENT or not (member is before or member.startswith(before))):
            return {}
        tails[key] = b"[%b]" % tail.removeprefix(b",")
    return tails if any(earlier[key] != _EMPTY for key in tails) else {}
