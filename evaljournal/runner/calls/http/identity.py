"""Which API and which account a call uses; calls with the same identity share their rate limits.

No HTTP client is needed for it, which would be slow to import.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

PORTS: Final = {"http": 80, "https": 443}
MODEL_ENDPOINTS: Final = ("chat/completions", "responses", "messages", "embeddings")
"""Ends of the paths of model calls, in the APIs of OpenAI and Anthropic and compatible ones."""
_MODEL_PATH: Final = re.compile(rf"/(?:{'|'.join(MODEL_ENDPOINTS)}|models/[^/]+:\w+)/?$")
_DIGEST_KEY: Final = os.urandom(32)
"""Key of the digests in this process, so that no secret can be recognized by its digest."""


@lru_cache(maxsize=256)
def base_of(url: str) -> str:
    """Return a URL without a query as `scheme://host:port/path`, without the end of the path that names a model endpoint."""
    parts = urlsplit(url)
    path = _MODEL_PATH.sub("", parts.path).rstrip("/")
    return f"{parts.scheme}://{parts.hostname}:{parts.port or PORTS.get(parts.scheme)}{path}"


@lru_cache(maxsize=256)
def key_digest(key: bytes) -> str:
    """Return a digest of an API key, the same in all processes."""
    return hashlib.sha256(key).hexdigest()


def rate_limit_identity(base_url: str, key_digests: Iterable[str]) -> str:
    """Return a value that calls to the same API with the same API keys share, meaningless outside this process."""
    return hashlib.blake2b("\0".join([base_url, *sorted(key_digests)]).encode(), key=_DIGEST_KEY).hexdigest()
