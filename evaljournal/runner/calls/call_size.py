"""The size of a model call before it is made: the bytes of its text, and the maximum tokens of its reply."""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from evaljournal.runner.errors import is_whole_number

TOKEN_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens")
"""Fields of a request with the maximum tokens of its reply, of all APIs."""
_MAX_TOKENS: Final = 10**15
"""A larger number cannot be computed with exactly."""
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/=]{1000,}")
"""An image or a file in a request: its tokens do not depend on its bytes."""


def text_bytes(content: bytes) -> int:
    """Return the bytes of a request without images and files."""
    return len(content) if len(content) < 1000 else len(_BASE64.sub(b"", content))  # noqa: PLR2004  # as above


def max_output(body: Mapping[str, Any]) -> int | None:
    """Return the maximum tokens of the reply in the body of a request; None if it has none."""
    config = body.get("generationConfig")
    parameters = {**body, **config} if isinstance(config, Mapping) else body
    limits = [parameters[name] for name in TOKEN_LIMITS if is_whole_number(parameters.get(name), 0)]
    return min(max(limits), _MAX_TOKENS) if limits else None


class CallSize(NamedTuple):
    """What is known of a call before it starts."""

    input_bytes: int = 0
    """Bytes of text in its request; 0: unknown."""
    max_output: int | None = None
    """Maximum tokens of its reply; None: the model's default."""
