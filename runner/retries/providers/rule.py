"""A rule about the errors of a provider: which replies it is about, and what they mean."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from attrs import field, frozen

Verdict = Literal["rate_limited", "unavailable", "fatal", "declined", "unauthorized", "quota"]
"""What an error means: `rate_limited` and `unavailable` are retried; `fatal` and `declined` (a content filter) end the trial
with an error; `unauthorized` (also: no credit) and `quota` (of a day or month) stop the run."""

ErrorFields = Mapping[str, Sequence[str]]
"""The values of an error by key, at any depth: `{"code": ["429"], "message": ["…"], "quotaId": ["…PerDay…"]}`."""

_MAX_VALUES: Final = 200
_MAX_LENGTH: Final = 2_000
"""Maximum values of an error, and characters of each, that are read: errors are untrusted."""


def _compile(fields: Mapping[str, str]) -> dict[str, re.Pattern[str]]:
    return {name: re.compile(pattern, re.IGNORECASE) for name, pattern in fields.items()}


@frozen
class Rule:
    """What a reply with one of these statuses means if each of these fields has a value that contains its pattern."""

    verdict: Verdict
    statuses: tuple[int, ...] = field(kw_only=True, default=())
    """HTTP statuses; empty: any, and errors without a status, as in streams."""
    fields: Mapping[str, re.Pattern[str]] = field(kw_only=True, converter=_compile, factory=dict[str, str])
    """Key of the error → regular expression, which ignores case; an empty one requires the key only."""
    reset_hour: int | None = field(kw_only=True, default=None)
    """Hour in UTC by which a quota of a day has been reset, by the provider's documentation; None: only the reply says it."""

    def matches(self, status: int | None, fields: ErrorFields) -> bool:
        """Return whether the rule is about an error with this status and these fields."""
        return (not self.statuses or status in self.statuses) and all(
            any(pattern.search(value) for value in fields.get(name, ())) for name, pattern in self.fields.items()
        )


def error_fields(error: Any) -> dict[str, list[str]]:
    """Return the values of an error by key, from objects and lists at any depth; a key without a text has an empty value."""
    fields: dict[str, list[str]] = {}
    open_values: list[tuple[str, Any]] = [("", error)]
    for _ in range(_MAX_VALUES):
        if not open_values:
            break
        key, value = open_values.pop(0)
        if isinstance(value, Mapping | list):
            open_values += _items(key, value)
        text = value if isinstance(value, str) else str(value) if isinstance(value, int | float) else ""
        fields.setdefault(key, []).append(text[:_MAX_LENGTH])
    return fields


def _items(key: str, value: Mapping[Any, Any] | list[Any]) -> Iterable[tuple[str, Any]]:
    if isinstance(value, list):
        return [(key, item) for item in value[:_MAX_VALUES]]
    return [(str(name)[:_MAX_LENGTH], item) for name, item in list(value.items())[:_MAX_VALUES]]
