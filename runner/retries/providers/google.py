"""Errors of Gemini, also from its OpenAI-compatible endpoint, whose body is a list.

Sources: Google's documentation of rate limits and errors, the error model of its APIs (`google.rpc.QuotaFailure`), the finish
reasons in its SDK, captured replies.
"""

from typing import Final

from evaljournal.runner.retries.providers.rule import Rule

_MIDNIGHT: Final = 8
"""Quotas of a day reset at midnight Pacific time; in summer an hour earlier."""

RULES: Final = (
    Rule("quota", statuses=(429,), fields={"quotaId": r"PerDay"}, reset_hour=_MIDNIGHT),
    Rule("unauthorized", statuses=(429,), fields={"quotaValue": r"^0$"}),  # The plan does not include the model.
    Rule("unauthorized", statuses=(429,), fields={"message": r"quota exceeded for metric: .{0,200}, limit: 0\b"}),
    Rule("unauthorized", statuses=(400,), fields={"reason": r"^API_KEY_INVALID$"}),
    Rule("unauthorized", statuses=(400,), fields={"message": r"^user location is not supported"}),
    Rule("unauthorized", fields={"code": r"^PUP_LIMITED_DISABLED$"}),  # These are reasons why an answer ended.
    Rule("fatal", fields={"code": r"^MISSING_THOUGHT_SIGNATURE$"}),
)
