"""Errors of OpenRouter, which also arrive with status 200, and in streams.

Source: OpenRouter's documentation of errors and limits.
"""

from typing import Final

from evaljournal.runner.retries.providers.rule import Rule

RULES: Final = (
    Rule("rate_limited", statuses=(402,), fields={"limit_source": r"in_flight_budget"}),
    Rule("quota", statuses=(429,), fields={"message": r"free-models-per-day"}),
    Rule("unauthorized", statuses=(403,), fields={"limit_source": ""}),  # The limit of a key or a budget.
    Rule("declined", statuses=(403,), fields={"flagged_input": ""}),
    Rule("declined", statuses=(403,), fields={"error_type": r"^content_policy_violation$"}),
    Rule("declined", statuses=(403,), fields={"message": r"^request blocked|input was flagged|requires moderation"}),
)
