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
_EMPTY: Final = b"[]"
_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
_LONG: Final = 1_024
"""Bytes from which a list is compared with earlier ones before it is searched."""


@attrs.frozen
class StepInput:
    """The input of a step, with secrets masked, as canonical JSON: what the caller changes later is not recorded."""

    content: bytes
    members: Mapping[str, bytes]
    """The JSON of each member, if it is an object."""
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


def _serialized(value: Any, name: str, earlier: "RecordedInputs | None") -> tuple[bytes, dict[str, bytes], bytes]:
    """Return the JSON of a value, that of its members, and the former without what is in an earlier input."""
    if value.__class__ is not dict or _LEAVES.issuperset(map(type, value.values())):
        content = canonical(value, name)
        return content, {}, content
    for key in value:
        if not isinstance(key, str):
            raise UsageError(f"{name} has the key {key!r}; JSON keys must be strings")
    members: dict[str, bytes] = {}
    common: dict[str, int] = {}
    for key in sorted(value):

        def checked(content: bytes, key: str = key) -> int:
            if earlier is not None and len(content) > _LONG:
                common[key] = earlier.common(key, content)
            return common.get(key, 0)

        members[key] = canonical(value[key], f"{name}.{key}", checked)
    names = {key: orjson.dumps(key) for key in members}
    content = b"{%b}" % b",".join([b"%b:%b" % (names[key], member) for key, member in members.items()])
    if not any(common.values()):
        return content, members, content
    return content, members, b",".join([b"%b:%b" % (names[key], members[key][common.get(key, 0) :]) for key in members])


class RecordedInputs:
    """The inputs of an attempt's steps that ended."""

    def __init__(self) -> None:
        self._recent: tuple[tuple[int, StepInput], ...] = ()
        """Number and input; replaced, not changed, because steps may end in several threads."""

    def add(self, number: int, current: StepInput) -> None:
        """Add the input of a step that ended."""
        if b"[" in current.content:
            self._recent = (*self._recent[1 - _CANDIDATES :], (number, current))

    def common(self, key: str, content: bytes) -> int:
        """Return how many bytes a list has in common with one of an earlier input in which nothing resembles a secret."""
        for _, earlier in reversed(self._recent):
            before = earlier.members.get(key, b"") if earlier.is_plain else b""
            if before[:1] == b"[" and content.startswith(before[:-1]):
                return len(before) - 1
        return 0

    def shortened(self, current: StepInput) -> tuple[Any, int]:
        """Return what is recorded of an input, and the number of the step that it continues; 0: none."""
        for number, earlier in reversed(self._recent):
            tails = _tails(current.members, earlier.members)
            if tails:
                return {key: orjson.loads(tails.get(key, content)) for key, content in current.members.items()}, number
        return orjson.loads(current.content), 0


def _tails(members: Mapping[str, bytes], earlier: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return each list that is in both inputs without the elements of the earlier one.

    Return nothing if one of them does not begin with those elements.
    """
    tails: dict[str, bytes] = {}
    for key, content in members.items():
        before = earlier.get(key, b"")
        if content[:1] != b"[" or before[:1] != b"[":
            continue
        tail = content[len(before) - 1 :]
        if before != _EMPTY and (tail[:1] not in {b",", b"]"} or not content.startswith(before[:-1])):
            return {}
        tails[key] = b"[" + (tail[1:] if tail[:1] == b"," else tail)
    return tails if any(earlier[key] != _EMPTY for key in tails) else {}
