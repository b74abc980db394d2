"""A server that answers as the APIs of providers do, by the host in its path: `/api.groq.com/openai/v1/chat/completions`."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import attrs

from tests.security.replies import Request, answering

ProviderReply = tuple[int, Mapping[str, str], Any]
"""Status, headers and body."""


@attrs.frozen
class ReceivedRequest:
    """A request that was received."""

    host: str
    target: str
    """Path and query."""
    headers: Mapping[str, str]
    body: Any


def _answer(request: ReceivedRequest) -> str:
    return "Lima" if "Peru" in json.dumps(request.body) else "Tokyo"


def _completion(request: ReceivedRequest, usage: Any = None, content: Any = None, **fields: Any) -> ProviderReply:
    message = {"role": "assistant", "content": _answer(request) if content is None else content}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100} if usage is None else usage
    reply = {"id": "c", "object": "chat.completion", "created": 1, "model": request.body["model"], "choices": [choice]}
    return 200, {}, {**reply, "usage": usage, **fields}


def _openai(request: ReceivedRequest, number: int) -> ProviderReply:
    if number == 1:
        error = {"message": "Rate limit reached. Please try again in 20ms.", "type": "requests", "code": "rate_limit_exceeded"}
        return 429, {"retry-after-ms": "20", "x-ratelimit-remaining-requests": "0"}, {"error": error}
    details = {"cached_tokens": 500, "cache_write_tokens": 200}
    if request.target.endswith("/responses"):
        content = [{"type": "output_text", "text": _answer(request), "annotations": []}]
        items = [{"type": "reasoning", "summary": []}, {"type": "message", "role": "assistant", "content": content}]
        usage = {"input_tokens": 1000, "input_tokens_details": details, "output_tokens": 100}
        reply = {"object": "response", "status": "completed", "error": None, "model": request.body["model"]}
        return 200, {}, {**reply, "output": items, "usage": usage}
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "prompt_tokens_details": details}
    return _completion(request, usage, service_tier="default", system_fingerprint="fp")


def _anthropic(request: ReceivedRequest, number: int) -> ProviderReply:
    if number == 1:
        return 529, {}, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    text = _answer(request)
    blocks = [
        {"type": "thinking", "thinking": "Hm", "signature": "s"},
        *({"type": "text", "text": part} for part in (text[:2], text[2:])),
    ]
    usage = {"input_tokens": 500, "cache_read_input_tokens": 500, "cache_creation_input_tokens": 0, "output_tokens": 100}
    reply = {"id": "m", "type": "message", "role": "assistant", "model": request.body["model"], "content": blocks}
    return 200, {}, {**reply, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}


def _gemini(request: ReceivedRequest, number: int) -> ProviderReply:
    if number == 1:
        details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.02s"}]
        error = {"error": {"code": 429, "message": "Quota exceeded", "status": "RESOURCE_EXHAUSTED", "details": details}}
        return 429, {}, [error] if "/openai/" in request.target else error
    if "/openai/" in request.target:
        return _completion(request)
    parts = [{"text": "Hm", "thought": True}, {"text": _answer(request)}]
    usage = {"promptTokenCount": 1000, "candidatesTokenCount": 60, "thoughtsTokenCount": 40, "totalTokenCount": 1100}
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
    return 200, {}, {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-3.8-flash"}


def _azure(request: ReceivedRequest, _: int) -> ProviderReply:
    if "Japan" in json.dumps(request.body):
        error = {"code": "content_filter", "message": "The response was filtered", "status": 400}
        return 400, {}, {"error": {**error, "innererror": {"code": "ResponsibleAIPolicyViolation"}}}
    return _completion(request, prompt_filter_results=[{"prompt_index": 0, "content_filter_results": {}}])


def _bedrock(request: ReceivedRequest, number: int) -> ProviderReply:
    if number == 1:
        return 429, {"x-amzn-errortype": "ThrottlingException", "retry-after": "0"}, {"message": "Too many tokens, please wait"}
    return _completion(request)


def _openrouter(request: ReceivedRequest, number: int) -> ProviderReply:
    if number == 1:
        return 200, {}, {"error": {"code": 502, "message": "Provider returned error", "metadata": {"provider_name": "X"}}}
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "cost": 0.25, "cost_details": {"upstream_inference_cost": None}}
    return _completion(request, usage, provider="X")


def _groq(request: ReceivedRequest, number: int) -> ProviderReply:
    if number == 1:
        return 498, {}, {"error": {"message": "Flex tier capacity exceeded", "type": "capacity", "code": "capacity_exceeded"}}
    usage = {"queue_time": 0.1, "prompt_tokens": 1000, "prompt_time": 0.01, "completion_tokens": 100, "total_time": 0.2}
    status, _, body = _completion(request, usage, x_groq={"id": "req"}, usage_breakdown=None)
    limits = {"limit-requests": "14400", "remaining-requests": "14399", "reset-requests": "6s", "remaining-tokens": "5900"}
    return status, {f"x-ratelimit-{name}": value for name, value in limits.items()}, body


def _together(request: ReceivedRequest, number: int) -> ProviderReply:
    if number == 1:
        return 503, {}, {"error": {"message": "The model is overloaded", "type": "service_unavailable"}}
    return _completion(request, prompt=[])


def _mistral(request: ReceivedRequest, __: int) -> ProviderReply:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}
    status, _, body = _completion(request, content=[thinking, {"type": "text", "text": _answer(request)}])
    return status, {"x-ratelimitbysize-limit-minute": "500000", "x-ratelimitbysize-remaining-minute": "499000"}, body


def _vllm(request: ReceivedRequest, _: int) -> ProviderReply:
    if "Japan" in json.dumps(request.body):
        message = "This model's maximum context length is 10 tokens. However, you requested 20 tokens"
        error = {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
        return 400, {}, {"error": error}
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "prompt_tokens_details": None}
    return _completion(request, usage, prompt_logprobs=None, kv_transfer_params=None)


def _ollama(request: ReceivedRequest, number: int) -> ProviderReply:
    return _completion(request, {"prompt_tokens": 4} if number == 1 else {})


def _litellm(request: ReceivedRequest, __: int) -> ProviderReply:
    status, _, body = _completion(request, model="claude-haiku-5-5")
    return status, {"x-litellm-response-cost": "0.1", "llm_provider-x-ratelimit-remaining-requests": "99"}, body


HOSTS: Final[Mapping[str, Callable[[ReceivedRequest, int], ProviderReply]]] = {
    "api.openai.com": _openai,
    "api.anthropic.com": _anthropic,
    "generativelanguage.googleapis.com": _gemini,
    "my-resource.openai.azure.com": _azure,
    "bedrock-runtime.us-east-1.amazonaws.com": _bedrock,
    "openrouter.ai": _openrouter,
    "api.groq.com": _groq,
    "api.together.xyz": _together,
    "api.mistral.ai": _mistral,
    "localhost:8000": _vllm,
    "localhost:11434": _ollama,
    "localhost:4000": _litellm,
}
"""Host → its reply to a request, given the number of the request."""


@attrs.frozen
class Providers:
    """A running server, and the requests that it has received."""

    root: str
    requests: list[ReceivedRequest]


@contextmanager
def serving_providers() -> Iterator[Providers]:
    """Serve on a port of this machine for the duration of the block; calls are made one after the other."""
    requests: list[ReceivedRequest] = []

    def answer(request: Request) -> tuple[int, Mapping[str, str], bytes]:
        _, host, path = request.path.split("/", 2)
        requests.append(ReceivedRequest(host, f"/{path}", request.headers, json.loads(request.body)))
        status, headers, reply = HOSTS[host](requests[-1], sum(request.host == host for request in requests))
        return status, headers, json.dumps(reply).encode()

    with answering(answer) as server:
        yield Providers(server.url.rstrip("/"), requests)
