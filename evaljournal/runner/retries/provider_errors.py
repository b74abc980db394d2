"""The errors of providers as data: which replies each rule is about, and what they mean."""

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
        return (not self.statuses or status in self.statuses) and all(
            any(pattern.search(value) for value in fields.get(name, ())) for name, pattern in self.fields.items()
        )


_MIDNIGHT: Final = 8
"""Gemini's quotas of a day reset at midnight Pacific time; in summer an hour earlier."""

_RULES: Final = (
    # OpenAI and Azure OpenAI. Sources: OpenAI's guide to error codes, captured replies of Azure OpenAI.
    Rule("unauthorized", statuses=(429,), fields={"code": r"^(insufficient_quota|billing_\w+)$"}),
    Rule("fatal", statuses=(429,), fields={"message": r"request too large"}),  # Above the limit of a whole minute.
    Rule("quota", statuses=(429,), fields={"message": r"per day \((RPD|TPD)\)"}),
    Rule("unavailable", statuses=(503,), fields={"code": r"^slow_down$"}),
    Rule("declined", statuses=(400,), fields={"code": r"^(content_filter|content_policy_violation)$"}),
    # Codes of failed responses, which have no status.
    Rule("declined", fields={"code": r"^(bio_policy|misalignment_policy_violation|image_content_policy_violation)$"}),
    Rule("declined", fields={"code": r"^invalid_prompt$", "message": r"usage policy"}),
    Rule("fatal", fields={"code": r"^(invalid_prompt|data_residency_mismatch)$"}),
    Rule("fatal", fields={"code": r"^(invalid(_base64)?_image\w*|image_\w+|unsupported_image_media_type|empty_image_file)$"}),
    Rule("unavailable", fields={"code": r"^vector_store_timeout$"}),
    # Anthropic. Sources: its documentation of errors and of rate limits, replies captured in issues of its SDK.
    Rule("quota", statuses=(429,), fields={"error_code": r"^enforced_spend_limit_reached$"}),
    Rule("quota", statuses=(400,), fields={"message": r"you have reached your specified .{0,40}usage limits"}),
    Rule("unauthorized", statuses=(400,), fields={"message": r"credit balance is too low"}),
    Rule("unauthorized", fields={"type": r"^billing_error$"}),
    # Gemini, also its OpenAI-compatible endpoint, whose body is a list. Sources: Google's documentation of rate limits and
    # errors, the error model of its APIs (`google.rpc.QuotaFailure`), the finish reasons in its SDK, captured replies.
    Rule("quota", statuses=(429,), fields={"quotaId": r"PerDay"}, reset_hour=_MIDNIGHT),
    Rule("unauthorized", statuses=(429,), fields={"quotaValue": r"^0$"}),  # The plan does not include the model.
    Rule("unauthorized", statuses=(429,), fields={"message": r"quota exceeded for metric: .{0,200}, limit: 0\b"}),
    Rule("unauthorized", statuses=(400,), fields={"reason": r"^API_KEY_INVALID$"}),
    Rule("unauthorized", statuses=(400,), fields={"message": r"^user location is not supported"}),
    Rule("unauthorized", fields={"code": r"^PUP_LIMITED_DISABLED$"}),  # These are reasons why an answer ended.
    Rule("fatal", fields={"code": r"^MISSING_THOUGHT_SIGNATURE$"}),
    # OpenRouter, whose errors also arrive with status 200, and in streams. Source: its documentation of errors and limits.
    Rule("rate_limited", statuses=(402,), fields={"limit_source": r"in_flight_budget"}),
    Rule("quota", statuses=(429,), fields={"message": r"free-models-per-day"}),
    Rule("unauthorized", statuses=(403,), fields={"limit_source": ""}),  # The limit of a key or a budget.
    Rule("declined", statuses=(403,), fields={"flagged_input": ""}),
    Rule("declined", statuses=(403,), fields={"error_type": r"^content_policy_violation$"}),
    Rule("declined", statuses=(403,), fields={"message": r"^request blocked|input was flagged|requires moderation"}),
    # Groq, whose messages are those of OpenAI. Source: its documentation of errors and rate limits.
    Rule("unavailable", statuses=(498,)),  # The capacity of the flex tier is exceeded.
    Rule("fatal", statuses=(413,)),  # One request is above the tokens of a whole minute; its code is that of a rate limit.
    # Together. Source: its documentation of error codes.
    Rule("fatal", statuses=(403,), fields={"message": r"max_(new_)?tokens|context length"}),
)


def matching_rule(status: int | None, fields: ErrorFields) -> Rule | None:
    """Return the first rule about an error with this status and these fields, or None.

    A provider cannot be told from its address (proxies, gateways), so the rules of all are tried; each requires a status or a
    field that only its provider uses with this meaning.
    """
    return next((rule for rule in _RULES if rule.matches(status, fields)), None)


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
