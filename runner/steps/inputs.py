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
"""Earlier inputs that are compared: the last ones with lists, also of agents that run at the same time."""
_EMPTY: Final = b"["
_AFTER_ELEMENT: Final = frozenset({b"", b","})
_NONE: Final[Mapping[str, Any]] = {}
_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
_NOTHING: Final = sha256()
_LONG: Final = 1_024
"""Bytes from which a list is compared with earlier ones before it is hashed and searched."""


@attrs.define  # Faster to create than a frozen class.
class StepInput:
    """The input of a step, with secrets masked, as canonical JSON: what the caller changes later is not recorded."""

    content: bytes
    """Its JSON, with a hash in place of each long list."""
    members: Mapping[str, bytes]
    """The JSON of each member, that of a list without its closing bracket; empty if no member is a list or an object."""
    hashes: "Mapping[str, _Hash]" = attrs.field(eq=False, repr=False)
    """The hash of each long list, without its closing bracket; that of a longer list continues it."""
    fingerprint: str
    is_plain: bool
    """Whether nothing in it resembles a secret or NaN."""


def step_input(value: Any, name: str, *, key: bytes | None = None, earlier: "RecordedInputs | None" = None) -> StepInput:
    """Return the input of a step; raise `UsageError` or `Unserializable` if it is not JSON.

    `key` identifies it instead of its JSON. What a list has in common with one in `earlier` is neither hashed nor searched for
    secrets again, which takes longer than everything else.
    """
    try:
        content, members, hashes, new = _serialized(value, name, earlier)
    except UsageError:
        value = to_json(value)
        content, members, hashes, new = _serialized(value, name, earlier)
    is_plain = not may_contain_secrets(new.decode())
    if not is_plain:
        content, members, hashes, new = _serialized(mask_values(value), name, None)
    return StepInput(content, members, hashes, digest(content if key is None else key), is_plain and b"null" not in new)


def _serialized(
    value: Any, step: str, earlier: "RecordedInputs | None"
) -> "tuple[bytes, Mapping[str, bytes], Mapping[str, _Hash], bytes]":
    """Return the content, the members and the hashes of an input, and its JSON without what is in an earlier one."""
    if value.__class__ is not dict or _LEAVES.issuperset(map(type, value.values())):
        content = _json(value, step)
        if b"null" in content:
            canonical(value, _described(step))  # It raises if this is NaN.
        return content, _NONE, _NONE, content
    for key in value:
        if not isinstance(key, str):
            raise UsageError(f"the input of step {step!r} has the key {key!r}; JSON keys must be strings")
    members: dict[str, bytes] = {}
    hashes: dict[str, _Hash] = {}
    parts, new_parts = list[bytes](), list[bytes]()
    for key in sorted(value):
        part = new = member = _json(value[key], step, key)
        if member[:1] == b"[" and len(member) > _LONG:
            before, hashed = earlier.common(key, member) if earlier is not None else (b"", _NOTHING)
            if len(before) == len(member) - 1:
                member, new = before, b""  # The list is shared by many steps, such as the tools of an agent.
            else:
                member = member[:-1]
                new = member[len(before) :]
                hashed = hashed.copy()
                hashed.update(new)
            hashes[key] = hashed
            part = hashed.hexdigest().encode()
        elif member[:1] == b"[":
            member = member[:-1]
        if b"null" in new:
            canonical(value[key], _described(step, key))  # It raises if this is NaN.
        members[key] = member
        quoted = orjson.dumps(key)
        parts.append(b"%b:%b" % (quoted, part))
        new_parts.append(b"%b:%b" % (quoted, new))
    return b"{%b}" % b",".join(parts), members, hashes, b",".join(new_parts)


def _json(value: Any, step: str, member: str = "") -> bytes:
    """Return the canonical JSON of an input or of a member of it, with null in place of NaN."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return canonical(value, _described(step, member))  # It raises an error that names the position of the problem.


def _described(step: str, member: str = "") -> str:
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

    def common(self, key: str, member: bytes) -> "tuple[bytes, _Hash]":
        """Return the list that this one begins with, of an earlier input in which nothing resembles a secret, and its hash."""
        for _, earlier in reversed(self._recent):
            if earlier.is_plain and key in earlier.hashes and member.startswith(earlier.members[key]):
                return earlier.members[key], earlier.hashes[key]
        return b"", _NOTHING

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
