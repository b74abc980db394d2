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
    # Codes of failed responses, which have no status.
    Rule("declined", fields={"code": r"^(bio_policy|misalignment_policy_violation|image_content_policy_violation)$"}),
    Rule("declined", fields={"code": r"^invalid_prompt$", "message": r"usage policy"}),
    Rule("fatal", fields={"code": r"^(invalid_prompt|data_residency_mismatch)$"}),
    Rule("fatal", fields={"code": r"^(invalid(_base64)?_image\w*|image_\w+|unsupported_image_media_type|empty_image_file)$"}),
    Rule("unavailable", fields={"code": r"^vector_store_timeout$"}),
)
