"""OpenAI's chat completions, which most servers and gateways offer."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from evaljournal.replay.provider.reports import text_field
from evaljournal.replay.text import as_text
from evaljournal.runner.calls.dialects.dialect import Answer, AnswerOutcome, ChatRequest, without_none
from evaljournal.runner.calls.endpoint import raise_error_in
from evaljournal.runner.calls.http.reply import EmptyReply, ErrorReply, IncompleteReply, InvalidReply
from evaljournal.runner.data.templates import MissingField, value_at
from evaljournal.runner.errors import is_whole_number
from evaljournal.runner.secrets.masking import excerpt

IDENTITY_FIELDS: Final = frozenset({"metadata", "prompt_cache_key", "safety_identifier", "store", "user"})
"""Fields of a request that name its caller. They cannot change the answer: requests that differ only in them are the same."""
_REASONING_MODELS: Final = re.compile(r"o\d|gpt-[5-9]")
"""OpenAI models that reject a temperature, and whose token limit includes reasoning: `max_completion_tokens`."""
_OUTCOMES: Final[Mapping[str, AnswerOutcome]] = {
    "length": "truncated",
    "model_length": "truncated",  # Mistral: the context window is full.
    "content_filter": "declined",
}


class Completions:
    base_url = "https://api.openai.com/v1"
    url_variable = "OPENAI_BASE_URL"
    key_variables: Final = {"OPENAI_API_KEY": ("Authorization", "Bearer ")}
    headers: Final[Mapping[str, str]] = {}
    first_token = re.compile(rb'"(?:content|refusal|reasoning|reasoning_content|arguments)":\s{0,9}"[^"]')

    def takes_temperature(self, model: str) -> bool:
        return _REASONING_MODELS.match(model) is None

    def path(self, _model: str, *, stream: bool) -> str:
        del stream
        return "/chat/completions"

    def body(self, request: ChatRequest) -> dict[str, Any]:
        max_tokens = "max_completion_tokens" if _REASONING_MODELS.match(request.model) else "max_tokens"
        parameters = {
            "temperature": request.temperature,
            max_tokens: request.max_tokens,
            "seed": request.seed,
            "reasoning_effort": request.effort,
        }
        body: dict[str, Any] = {"model": request.model, "messages": request.messages, **without_none(parameters)}

        if request.schema is not None:
            json_schema = {"name": "output", "strict": True, "schema": request.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": json_schema}
        if request.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    def read(self, reply: Any) -> Answer:
        """Return the first choice of a reply."""
        try:
            choice = _first_choice(value_at(reply, "choices"))
            raise_error_in(choice, "error")
            message = value_at(choice, "message")
        except MissingField as exc:
            raise InvalidReply(f"the reply is not a chat completion: {exc}") from exc
        if not isinstance(message, dict):
            raise InvalidReply(f"the reply is not a chat completion: its message is {excerpt(as_text(message), 200)!r}")
        if choice.get("finish_reason", "") is None:  # Some servers omit it.
            raise InvalidReply("the finish_reason of the reply is null, so its answer may be incomplete")
        return _answer(reply, message, choice.get("finish_reason"))

    def read_stream(self, chunks: Iterable[Any]) -> Answer:
        """Return the first choice, joined from its deltas."""
        deltas: list[Mapping[str, Any]] = []
        fields: dict[str, Any] = {}
        finish_reason: object = None

        for chunk in chunks:
            try:
                fields |= {name: value for name, value in chunk.items() if value}
                for choice in [choice for choice in chunk.get("choices") or [] if not choice.get("index")]:
                    raise_error_in(choice, "error")
                    deltas.append(choice.get("delta") or {})
                    finish_reason = choice.get("finish_reason") or finish_reason
            except (AttributeError, TypeError) as exc:
                raise InvalidReply(f"a chunk of the stream is not a chat completion: {excerpt(as_text(chunk), 200)!r}") from exc

        if finish_reason is None:
            raise IncompleteReply("the stream ended without a finish_reason")
        try:
            message = _joined_message(deltas)
        except (AttributeError, TypeError) as exc:
            raise InvalidReply(f"a message of the stream is not a chat completion: {excerpt(as_text(deltas), 200)!r}") from exc
        return _answer(fields, message, finish_reason)


def _first_choice(choices: Any) -> Any:
    """Return the choice with the lowest `index`; choices may have any order."""
    if choices.__class__ is list and len(choices) == 1:
        return choices[0]
    choice = value_at(choices, "0")
    if all(isinstance(item, Mapping) and is_whole_number(item.get("index"), 0) for item in choices):
        return min(choices, key=lambda item: item["index"])
    return choice


def _joined_message(deltas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the message of a stream: its texts joined, and its tool calls by their `index`."""
    texts = [text for delta in deltas if (text := _text(delta.get("content"))) is not None]
    content = "".join(texts) if texts else None
    message: dict[str, Any] = {"content": content, "refusal": "".join(text_field(delta, "refusal") for delta in deltas)}
    calls: dict[Any, dict[str, Any]] = {}
    for part in (part for delta in deltas for part in delta.get("tool_calls") or []):
        call = calls.setdefault(part.get("index"), {"type": "function", "function": {"name": "", "arguments": ""}})
        call |= {name: part[name] for name in ("id", "type") if part.get(name)}
        for name, text in (part.get("function") or {}).items():
            call["function"][name] = call["function"].get(name, "") + (text or "")
    return {**message, "tool_calls": list(calls.values())}


def _answer(reply: Mapping[str, Any], message: Mapping[str, Any], finish_reason: object) -> Answer:
    if finish_reason == "error":  # OpenRouter: the provider failed after it had begun to answer.
        raise ErrorReply("the reply ended with finish_reason 'error'")

    text, refusal, calls = _text(message.get("content")), text_field(message, "refusal"), message.get("tool_calls") or ()
    if calls and (not isinstance(calls, list | tuple) or not all(isinstance(call, Mapping) for call in calls)):
        raise InvalidReply(f"the reply is not a chat completion: its tool_calls are {excerpt(as_text(calls), 200)!r}")
    outcome: AnswerOutcome = "declined" if refusal else _OUTCOMES.get(str(finish_reason), "complete")
    if text is None and not calls and outcome == "complete":
        raise EmptyReply("the message has neither a text nor a tool call")

    return Answer(
        text=text or refusal,
        tool_calls=calls,
        outcome=outcome,
        finish_reason=finish_reason if isinstance(finish_reason, str) else "",
        model=text_field(reply, "model"),
        fingerprint=text_field(reply, "system_fingerprint"),
        service_tier=text_field(reply, "service_tier"),
        usage=reply.get("usage"),
    )


def _text(content: Any) -> str | None:
    """Return a text, which Mistral sends in parts; None if there is none, as in parts of other types (reasoning)."""
    if isinstance(content, list) and all(isinstance(part, Mapping) for part in content):
        texts = [text for part in content if (text := _text(part.get("text"))) is not None]
        return "".join(texts) if texts else None
    if content is not None and not isinstance(content, str):
        raise InvalidReply(f"the reply is not a chat completion: its content is {excerpt(as_text(content), 200)!r}")
    return content
