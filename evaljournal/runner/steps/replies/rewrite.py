"""Model calls that are sent to another model, or with another system prompt, from some step of an attempt on.

A request is rewritten before it is identified, so what is recorded, and reused after an interruption, is what was sent. Only
the requests of the dialects below are known; a call of another shape is not sent, because it would be the old one. Calls of
embeddings stay as they are.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import orjson

from evaljournal.runner.calls.dialects import split_model
from evaljournal.runner.data.exact_json import read_json
from evaljournal.runner.errors import UsageError
from evaljournal.runner.steps.attempt_steps import NotSent
from evaljournal.runner.steps.durable_requests import is_gemini, model_endpoint

DIALECTS: Final[Mapping[str, str]] = {
    "chat/completions": "chat",
    "responses": "responses",
    "messages": "anthropic",
    "generateContent": "gemini",
    "streamGenerateContent": "gemini",
}
_SYSTEM_ROLES: Final = ("system", "developer")


class CannotRewrite(NotSent):
    """A model call cannot be sent to the other model, so it was not made."""


@attrs.frozen
class Rewrite:
    from_step: int
    model: str | None = None
    """With the prefix of its dialect, if it has one; None: as the task asks."""
    system: str | None = None

    def check(self, endpoint: str) -> None:
        """Raise a `UsageError` if the requests of an endpoint cannot be rewritten."""
        dialect, own = split_model(self.model or "")[0], DIALECTS.get(endpoint)
        if own is None:
            raise UsageError(
                f"calls of {endpoint} cannot be rewritten; only those of {', '.join(sorted(set(DIALECTS.values())))}"
            )
        if dialect and dialect != own:
            raise UsageError(f"the task calls {endpoint}, whose requests cannot be sent to {self.model}: it is another API")

    def __call__(self, number: int, method: str, url: str, body: bytes) -> tuple[str, bytes]:
        """Return URL and body of a request as the step with this number sends it; raise `CannotRewrite` if that is unknown."""
        endpoint = model_endpoint(method, urlsplit(url).path)
        if number < self.from_step or endpoint in {None, "embeddings"}:
            return url, body

        try:
            self.check(str(endpoint))
            content = read_json(body)
            if not isinstance(content, dict):
                raise ValueError("it is no JSON object")  # noqa: TRY004  # as for other text
        except (UsageError, ValueError) as exc:
            raise CannotRewrite(f"step {number} cannot be rewritten: {exc}") from exc

        if self.system is not None:
            content = _with_system(content, str(endpoint), self.system)
        if self.model is not None:
            name = split_model(self.model)[1]
            if is_gemini(urlsplit(url).path):
                address, mark, query = url.partition("?")
                models, _, method_name = address.rpartition(":")
                url = f"{models.rpartition('/')[0]}/{name}:{method_name}{mark}{query}"
            else:
                content = {**content, "model": name}
        return url, orjson.dumps(content)


def _with_system(content: dict[str, Any], endpoint: str, system: str) -> dict[str, Any]:
    match DIALECTS[endpoint]:
        case "anthropic":
            return {**content, "system": system}
        case "gemini":
            others = {name: value for name, value in content.items() if name not in {"systemInstruction", "system_instruction"}}
            return {**others, "systemInstruction": {"parts": [{"text": system}]}}
        case "responses":
            items = content.get("input")
            kept = {"input": [item for item in items if not _is_system(item)]} if isinstance(items, list) else {}
            return {**content, **kept, "instructions": system}
        case _:
            messages = content.get("messages")
            turns = [message for message in messages if not _is_system(message)] if isinstance(messages, list) else []
            return {**content, "messages": [{"role": "system", "content": system}, *turns]}


def _is_system(message: object) -> bool:
    return isinstance(message, dict) and message.get("role") in _SYSTEM_ROLES
