"""Errors of OpenAI and Azure OpenAI.

Sources: OpenAI's guide to error codes, captured replies of Azure OpenAI.
"""

from typing import Final

from evaljournal.runner.retries.providers.rule import Rule

RULES: Final = (
    Rule("unauthorized", statuses=(429,), fields={"code": r"^(insufficient_quota|billing_\w+)$"}),
    Rule("fatal", statuses=(429,), fields={"message": r"request too large"}),  # Above the limit of a whole minute.
    Rule("quota", statuses=(429,), fields={"message": r"per day \((RPD|TPD)\)"}),
    Rule("unavailable", statuses=(503,), fields={"code": r"^slow_down$"}),
    Rule("declined", statuses=(400,), fields={"code": r"^(content_filter|content_policy_violation)$"}),
)
