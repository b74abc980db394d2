"""Errors of Anthropic.

Sources: Anthropic's documentation of errors and of rate limits, replies captured in issues of its SDK.
"""

from typing import Final

from evaljournal.runner.retries.providers.rule import Rule

RULES: Final = (
    Rule("quota", statuses=(429,), fields={"error_code": r"^enforced_spend_limit_reached$"}),
    Rule("quota", statuses=(400,), fields={"message": r"you have reached your specified .{0,40}usage limits"}),
    Rule("unauthorized", statuses=(400,), fields={"message": r"credit balance is too low"}),
    Rule("unauthorized", fields={"type": r"^billing_error$"}),
)
