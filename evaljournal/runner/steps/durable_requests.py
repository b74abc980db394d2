"""The setting `durable`: which requests of a task's HTTP clients are steps."""

from collections.abc import Iterable
from typing import Final, Self
from urllib.parse import urlsplit

import attrs

from evaljournal.runner.calls.http.identity import MODEL_ENDPOINTS, PORTS
from evaljournal.runner.errors import UsageError
from evaljournal.runner.secrets.masking import mask

MODEL_CALLS: Final = "http"
"""Stands for the model calls in the setting; its other values are addresses."""

_GEMINI_METHODS: Final = ("generateContent", "streamGenerateContent")
_Origin = tuple[str, str, int]


@attrs.frozen
class DurableRequests:
    """Requests that are steps: model calls, requests to some addresses, or both."""

    has_model_calls: bool
    _addresses: tuple[tuple[_Origin, str], ...]
    """Origin and path of each; requests below the path belong to it."""

    @classmethod
    def parse(cls, values: Iterable[str]) -> Self:
        """Parse the setting; raise a `UsageError` if a value is neither `http` nor an address."""
        values = tuple(values)
        return cls(MODEL_CALLS in values, tuple(_address(value) for value in values if value != MODEL_CALLS))

    def includes(self, method: str, url: str) -> bool:
        parts = urlsplit(url)
        if self.has_model_calls and model_endpoint(method, parts.path) is not None:
            return True
        if not self._addresses or method.upper() == "HEAD":  # Its reply has no body.
            return False
        origin, path = (parts.scheme, parts.hostname or "", parts.port or PORTS.get(parts.scheme, 0)), f"{parts.path}/"
        return any(origin == listed_origin and path.startswith(f"{prefix}/") for listed_origin, prefix in self._addresses)


def model_endpoint(method: str, path: str) -> str | None:
    """Return which endpoint of the API of OpenAI, Anthropic or Gemini, or a compatible one, is called; None: no model call."""
    if method.upper() != "POST":
        return None
    path = path.rstrip("/")
    if is_gemini(path):
        return path.rpartition(":")[2]
    return next((endpoint for endpoint in MODEL_ENDPOINTS if path.endswith(f"/{endpoint}")), None)


def is_gemini(path: str) -> bool:
    """Return whether a path is that of a model of Gemini's API, `/v1beta/models/MODEL:generateContent`."""
    return path.rpartition(":")[2] in _GEMINI_METHODS


def _address(value: object) -> tuple[_Origin, str]:
    try:
        parts = urlsplit(str(value))
        if parts.scheme in PORTS and parts.hostname and parts.username is None and not parts.query and not parts.fragment:
            return (parts.scheme, parts.hostname, parts.port or PORTS[parts.scheme]), parts.path.rstrip("/")
    except ValueError:  # An invalid port.
        pass
    problem = "must be 'http' for model calls, or the address of other requests such as 'https://tools.example/'"
    raise UsageError(problem, setting="durable", value=mask(str(value)))
