"""What the key of a model call leaves out, so that the next attempt at a trial is recognized as the same.

A key is what was asked, byte by byte, with two exceptions. Fields and ids that name the caller cannot change the answer, but
are new in every process: each dialect lists its own in `IDENTITY_FIELDS`, and knows which ids a client makes. And paths that
this run chose itself, such as the workspace of an attempt, are replaced by constants. Users can leave out more with
`--key-without`, such as a date.

Nothing else may ever be left out: two requests with one key get one answer.
"""

import functools
import json
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, Final, Self

import attrs
import orjson

from evaljournal.runner.errors import UsageError

_GEMINI: Final = ("generateContent", "streamGenerateContent")
_DIALECTS: Final[Mapping[str, str]] = {
    "messages": "anthropic",
    "chat/completions": "completions",
    "embeddings": "completions",
    "responses": "responses",
    **dict.fromkeys(_GEMINI, "gemini"),
}
"""Endpoint → the module of its dialect, which is imported with the first call: a run without any does not need it."""
ITEM_IDS: Final = "id of input items"
CALL_IDS: Final = "ids of tool calls"
_MAX_SHOWN: Final = 80
_SHOWN_BEFORE: Final = 20
"""Characters of a difference that are shown, and those of them before it."""


@attrs.frozen
class KeyRules:
    """What the keys of the model calls of an attempt leave out, besides the fields that name the caller."""

    patterns: tuple[re.Pattern[str], ...] = ()
    paths: tuple[tuple[str, str], ...] = ()
    """Path → the constant that replaces it, the longest path first."""

    @classmethod
    def parse(cls, patterns: Iterable[str]) -> Self:
        """Parse the setting `key_without`; raise a `UsageError` if a pattern is invalid."""
        compiled: list[re.Pattern[str]] = []
        for pattern in patterns:
            try:
                compiled.append(re.compile(pattern))
            except re.error as exc:
                raise UsageError(f"is not a regular expression: {exc}", setting="key_without", value=pattern) from exc
        return cls(tuple(compiled))

    def with_paths(self, paths: Mapping[str, str]) -> "KeyRules":
        """Return these rules with paths that are replaced: as they are, and with - for all but letters and digits."""
        forms: dict[str, str] = {}
        for path, constant in paths.items():
            forms |= {json.dumps(path)[1:-1]: constant, json.dumps(path, ensure_ascii=False)[1:-1]: constant}
            forms[re.sub(r"[^A-Za-z0-9]", "-", path)] = constant
        return attrs.evolve(self, paths=tuple(sorted(forms.items(), key=lambda form: -len(form[0]))))

    def body(self, endpoint: str, content: Any, body: bytes) -> bytes:
        """Return the part of a request's body that is compared; `content` is the body as a JSON value."""
        compared, omitted = without_identity(endpoint, content)
        if omitted:
            try:
                body = orjson.dumps(compared)
            except TypeError:  # A number of more than 64 bits.
                return body
        return self.shorten(body.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape") if self else body

    def request_text(self, name: str, value: Any) -> str:
        """Return the request of a recorded step as text, without what is left out."""
        compared, _ = without_identity(endpoint_of_step(name), value)
        return self.shorten(orjson.dumps(compared, default=repr, option=orjson.OPT_SORT_KEYS).decode())

    def shorten(self, text: str) -> str:
        """Return a text as it is compared."""
        for path, constant in self.paths:
            text = text.replace(path, constant)
        for pattern in self.patterns:
            text = pattern.sub("", text)
        return text

    def __bool__(self) -> bool:
        return bool(self.patterns or self.paths)


NO_RULES: Final = KeyRules()


@functools.cache
def _dialect(endpoint: str) -> Any:
    name = _DIALECTS.get(endpoint)
    return None if name is None else import_module(f"evaljournal.runner.calls.dialects.{name}")


def without_identity(endpoint: str, content: Any) -> tuple[Any, list[str]]:
    """Return a request without the fields that name its caller, and what was left out; the request itself is not changed."""
    dialect = _dialect(endpoint)
    if dialect is None or not isinstance(content, dict):
        return content, []

    fields = dialect.IDENTITY_FIELDS
    omitted = sorted(fields & content.keys())
    compared = {name: value for name, value in content.items() if name not in fields} if omitted else content

    items = content.get("input")
    if endpoint == "responses" and isinstance(items, list):
        plain_items = [_without_id(item) if dialect.is_client_item(item) else item for item in items]
        if any(plain is not item for plain, item in zip(plain_items, items, strict=True)):
            compared, omitted = {**compared, "input": plain_items}, [*omitted, ITEM_IDS]

    messages = content.get("contents")
    if endpoint in _GEMINI and isinstance(messages, list):
        numbered_messages = dialect.with_call_numbers(messages)
        if numbered_messages != messages:
            compared, omitted = {**compared, "contents": numbered_messages}, [*omitted, CALL_IDS]
    return compared, omitted


def _without_id(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name != "id"} if "id" in item else item


def endpoint_of_step(name: str) -> str:
    """Return the endpoint that a recorded step has called: `chat.completions gpt-5.6-luna` has called `chat/completions`."""
    return name.partition(" ")[0].replace(".", "/")


def common_length(first: str, second: str) -> int:
    """Return how many characters two texts begin with alike."""
    shorter = min(len(first), len(second))
    return next((index for index in range(shorter) if first[index] != second[index]), shorter)


def first_difference(old: str, new: str) -> tuple[str, str] | None:
    """Return where two texts differ first, with a few characters before it; None if they are equal."""
    if old == new:
        return None
    start = max(0, common_length(old, new) - _SHOWN_BEFORE)
    return old[start : start + _MAX_SHOWN], new[start : start + _MAX_SHOWN]
