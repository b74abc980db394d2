"""The input of a step: its JSON, its fingerprint, and the part of it that follows the input of an earlier step.

An agent sends its whole conversation in every call. Recorded in full, 30 turns of 3 kB would take 1.4 MB per trial. So a list
in the input of a step that begins with the same list of an earlier step is recorded without those elements.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs
import orjson

from runner.data.fingerprint import canonical, digest
from runner.data.to_json import to_json
from runner.errors import UsageError
from runner.secrets import mask_values, may_contain_secrets

_CANDIDATES: Final = 8
"""Earlier inputs that are compared: the last ones with lists, also of agents that run at the same time."""
_EMPTY: Final = b"["
_AFTER_ELEMENT: Final = frozenset({b"", b","})
_NO_MEMBERS: Final[Mapping[str, bytes]] = {}
_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
_LONG: Final = 1_024
"""Bytes from which a list is compared with earlier ones before it is searched."""


@attrs.define  # Faster to create than a frozen class.
class StepInput:
    """The input of a step, with secrets masked, as canonical JSON: what the caller changes later is not recorded."""

    content: bytes
    members: Mapping[str, bytes]
    """The JSON of each member, that of a list without its closing bracket; empty if no member is a list or an object."""
    fingerprint: str
    is_plain: bool = False
    """Whether nothing in it resembles a secret or NaN."""


def step_input(value: Any, name: str, *, key: bytes | None = None, earlier: "RecordedInputs | None" = None) -> StepInput:
    """Return the input of a step; raise `UsageError` or `Unserializable` if it is not JSON.

    `key` identifies it instead of its JSON. What a list has in common with one in `earlier` is not searched for secrets again,
    which takes longer than everything else.
    """
    described = f"the input of step {name!r}"
    try:
        content, members, new = _serialized(value, described, earlier)
    except UsageError:
        value = to_json(value)
        content, members, new = _serialized(value, described, earlier)
    has_secrets = may_contain_secrets(new.decode())
    if has_secrets:
        content, members, new = _serialized(mask_values(value), described, None)
    return StepInput(content, members, digest(content if key is None else key), not has_secrets and b"null" not in new)


def _serialized(value: Any, name: str, earlier: "RecordedInputs | None") -> tuple[bytes, Mapping[str, bytes], bytes]:
    """Return the JSON of a value, that of its members, and the former without what is in an earlier input."""
    if value.__class__ is not dict or _LEAVES.issuperset(map(type, value.values())):
        content = canonical(value, name)
        return content, _NO_MEMBERS, content
    for key in value:
        if not isinstance(key, str):
            raise UsageError(f"{name} has the key {key!r}; JSON keys must be strings")
    members: dict[str, bytes] = {}
    parts, new_parts = [b"{"], list[bytes]()  # Joined once: a conversation is long.
    for key in sorted(value):
        try:
            member = orjson.dumps(value[key], option=orjson.OPT_SORT_KEYS)
        except TypeError:
            member = canonical(value[key], f"{name}.{key}")  # It raises, and says where the problem is.
        closing, known = b",", 0
        if member[:1] == b"[":
            closing, member = b"],", member[:-1]
            known = earlier.common(key, member) if earlier is not None and len(member) > _LONG else 0
        if member.find(b"null", known) >= 0:
            canonical(value[key], f"{name}.{key}")  # It raises if this is NaN.
        members[key] = member
        quoted = orjson.dumps(key)
        parts += (quoted, b":", member, closing)
        new_parts += (quoted, b":", member[known:], closing)
    parts[-1] = parts[-1][:-1] + b"}"
    return b"".join(parts), members, b"".join(new_parts)


class RecordedInputs:
    """The inputs of an attempt's steps that ended."""

    def __init__(self) -> None:
        self._recent: tuple[tuple[int, StepInput], ...] = ()
        """Number and input; replaced, not changed, because steps may end in several threads."""

    def record(self, number: int, current: StepInput) -> tuple[Any, int]:
        """Add the input of a step that ended; return what is recorded of it, and the step that it continues; 0: none."""
        if not current.members:
            return orjson.loads(current.content), 0
        recorded, continues = self._shortened(current)
        self._recent = (*self._recent[1 - _CANDIDATES :], (number, current))
        return recorded, continues

    def common(self, key: str, member: bytes) -> int:
        """Return how many bytes a list has in common with one of an earlier input in which nothing resembles a secret."""
        for _, earlier in reversed(self._recent):
            before = earlier.members.get(key, b"") if earlier.is_plain else b""
            if before[:1] == b"[" and member.startswith(before):
                return len(before)
        return 0

    def _shortened(self, current: StepInput) -> tuple[Any, int]:
        for number, earlier in reversed(self._recent):
            tails = _tails(current.members, earlier.members)
            if tails:
                return {key: orjson.loads(tails.get(key) or _closed(member)) for key, member in current.members.items()}, number
        return orjson.loads(current.content), 0


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
        if before != _EMPTY and (tail[:1] not in _AFTER_ELEMENT or not member.startswith(before)):
            return {}
        tails[key] = b"[%b]" % tail.removeprefix(b",")
    return tails if any(earlier[key] != _EMPTY for key in tails) else {}
