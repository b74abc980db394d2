"""Errors of Groq, whose messages are those of OpenAI.

Source: Groq's documentation of errors and rate limits.
"""

from typing import Final

from evaljournal.runner.retries.providers.rule import Rule

RULES: Final = (
    Rule("unavailable", statuses=(498,)),  # The capacity of the flex tier is exceeded.
    Rule("fatal", statuses=(413,)),  # One request is above the tokens of a whole minute; its code is that of a rate limit.
)
