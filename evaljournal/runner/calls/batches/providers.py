"""Which endpoints have batches, and how they differ. An endpoint that is not listed is taken to have those of OpenAI."""

import re
from typing import Final

from evaljournal.runner.calls.batches.anthropic import AnthropicBatches
from evaljournal.runner.calls.batches.api import BatchApi, BatchCalls
from evaljournal.runner.calls.batches.openai import OpenAiBatches
from evaljournal.runner.calls.http.address import Address
from evaljournal.runner.errors import UsageError

_HINT: Final = "remove --batch (batch), or use OpenAI, Azure, Groq, Together or Anthropic"
_DEPLOYMENT: Final = re.compile(r"/deployments/([^/]+)$")
_ONLY_CHAT: Final = ("api.groq.com", "api.together.xyz", "api.together.ai")
_WITHOUT_BATCHES: Final = (
    "api.anthropic.com",
    "api.deepseek.com",
    "api.mistral.ai",
    "generativelanguage.googleapis.com",
    "openrouter.ai",
)
"""Hosts with chat completions, but without batches in this shape."""


def batch_api(dialect: str, path: str, address: Address) -> BatchApi:
    """Return the batches beside the live calls to an address in a dialect; `path`: the end of its path, `/chat/completions`.

    Raise a `UsageError` if there are none.
    """
    if dialect == "anthropic":
        return AnthropicBatches(calls=BatchCalls.beside(address, re.escape(path)))
    if dialect not in {"chat", "responses"}:
        raise UsageError(f"batches are not supported for the dialect {dialect!r}", hint=_HINT)

    calls = BatchCalls.beside(address, re.escape(path))
    if calls.host in _WITHOUT_BATCHES or (dialect == "responses" and calls.host in _ONLY_CHAT):
        raise UsageError(f"{calls.host} has no batches of {path.strip('/')}", hint=_HINT)
    if deployment := _DEPLOYMENT.search(calls.root):  # Azure
        azure_calls = BatchCalls.beside(address, f"/deployments/[^/]+{re.escape(path)}")
        return OpenAiBatches(calls=azure_calls, endpoint=path, deployment=deployment[1])

    endpoint = f"/v1{path}"
    if "together" in calls.host:
        return OpenAiBatches(
            calls=calls, endpoint=endpoint, purpose="batch-api", upload_path="/files/upload", has_metadata=False
        )
    return OpenAiBatches(calls=calls, endpoint=endpoint)
