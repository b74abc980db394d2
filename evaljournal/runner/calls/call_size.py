"""The size of a model call before it is made: the bytes of its text, and the maximum tokens of its reply.

Also whether a server has read a whole prompt: the words that were sent, compared with the tokens that it has counted.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from evaljournal.runner.errors import is_whole_number

TOKEN_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens")
"""Fields of a request with the maximum tokens of its reply, of all APIs."""
_MAX_TOKENS: Final = 10**15
"""A larger number cannot be computed with exactly."""
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/=]{1000,}")
"""An image or a file in a request: its tokens do not depend on its bytes."""

_MIN_CHARACTERS_PER_TOKEN: Final = 5
"""Prompts with fewer characters per counted token are not checked. Chinese has 1 to 2, English 4 to 5."""
_CJK: Final = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORDS: Final = re.compile(rf"[{_CJK}]{{1,4}}|[^\s{_CJK}]+")
"""Tokenizers do not join words, and have at most 2.2 Chinese characters per token. In 269 texts of prose, code and JSON, those
of OpenAI (cl100k, o200k), Anthropic and DeepSeek have at least 1.27 tokens per match, and at most 4.9 characters per token."""


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
    input_bytes: int = 0
    """Bytes of text in its request; 0: unknown."""
    max_output: int | None = None
    """Maximum tokens of its reply; None: the model's default."""


def unread_words(messages: Sequence[Mapping[str, Any]], usage: Mapping[str, Any]) -> int:
    """Return the number of words in the messages if the server counts fewer tokens; otherwise, or if it is unknown, 0."""
    input_tokens = usage.get("input_tokens")
    if not input_tokens:
        return 0
    tokens = input_tokens + usage.get("cached_tokens", 0) + usage.get("cache_write_tokens", 0)  # Some gateways exclude them.
    texts = list(_texts(messages))
    if tokens * _MIN_CHARACTERS_PER_TOKEN > sum(map(len, texts)):
        return 0
    words = sum(len(text.split() if text.isascii() else _WORDS.findall(text)) for text in texts)
    return words if words > tokens else 0


def _texts(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        if content.__class__ is str:
            yield content
            continue
        for part in content if isinstance(content, list) else [{"text": content}]:
            if isinstance(part, Mapping) and isinstance(text := part.get("text"), str):
                yield text
