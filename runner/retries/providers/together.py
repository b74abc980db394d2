"""Errors of Together.

Source: Together's documentation of error codes.
"""

from typing import Final

from evaljournal.runner.retries.providers.rule import Rule

RULES: Final = (Rule("fatal", statuses=(403,), fields={"message": r"max_(new_)?tokens|context length"}),)
