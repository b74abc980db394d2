"""Gemini's generateContent API."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from evaljournal.replay.provider.reports import fields_of, text_field
from evaljournal.replay.text import as_text
from evaljournal.runner.calls.dialects.dialect import Answer, AnswerOutcome, ChatRequest, without_none
from evaljournal.runner.calls.dialects.messages import (
    attachment_of,
    calls_of,
    join_turns,
    parts_of,
    split_system,
    tool_call,
)
from evaljournal.runner.calls.http.reply import EmptyReply, ErrorReply, IncompleteReply, InvalidReply
from evaljournal.runner.errors import UsageError
from evaljournal.runner.secrets.masking import excerpt

_OUTCOMES: Final[Mapping[str, AnswerOutcome]] = {
    "STOP": "complete",
    **dict.fromkeys(("MAX_TOKENS", "CONTINUATION", "TOO_MANY_TOOL_CALLS"), "truncated"),
    **dict.fromkeys(
        ("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "ESCALATION", "MODEL_ARMOR"), "declined"
    ),
    **dict.fromkeys(("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"), "declined"),
}
"""All other reasons are errors: OTHER, MALFORMED_FUNCTION_CALL, …"""
_MODEL_COLLECTIONS: Final = ("models/", "tunedModels/")
IDENTITY_FIELDS: Final = frozenset[str]()
"""No field of a request names its caller."""
_CALLS: Final = ("functionCall", "functionResponse")
_NO_CONTENT: Final = frozenset({"thought", "thoughtSignature"})
"""Keys of a part that are not content."""


class Gemini:
    base_url = "https://generativelanguage.googleapis.com"
    url_variable = "GOOGLE_GEMINI_BASE_URL"
    key_variables: Final = {"GOOGLE_API_KEY": ("x-goog-api-key", ""), "GEMINI_API_KEY": ("x-goog-api-key", "")}
    headers: Final[Mapping[str, str]] = {}
    first_token: Final = re.compile(rb'"text":\s{0,9}"[^"]|"functionCall"')

    def takes_temperature(self, _model: str) -> bool:
        return True

    def path(self, model: str, *, stream: bool) -> str:
        name = model if model.startswith(_MODEL_COLLECTIONS) else f"models/{model}"
        return f"/v1beta/{name}:streamGenerateContent?alt=sse" if stream else f"/v1beta/{name}:generateContent"

    def body(self, request: ChatRequest) -> dict[str, Any]:
        """Return the body of a call; the model is in the path."""
        system, messages = split_system(request.messages)
        parameters = {
            "temperature": request.temperature,
            "maxOutputTokens": request.max_tokens,
            "seed": request.seed,
            "thinkingConfig": None if request.effort is None else {"thinkingLevel": request.effort.upper()},
            "responseMimeType": None if request.schema is None else "application/json",
            "responseJsonSchema": request.schema,
        }
        config = without_none(parameters)
        instruction = [_part(part) for content in system for part in parts_of(content)]

        return {
            "contents": _contents(messages),
            **({"systemInstruction": {"parts": instruction}} if instruction else {}),
            **({"generationConfig": config} if config else {}),
        }

    def read(self, reply: Any) -> Answer:
        """Return the first candidate; if there is none because the prompt was blocked, an empty answer."""
        fields = fields_of(reply)
        usage = fields.get("usageMetadata")
        counts = fields_of(usage)
        outcome: AnswerOutcome | None = "declined"

        match fields:
            case {"candidates": [{"finishReason": str(reason)} as first, *_]}:
                candidate, outcome = fields_of(first), _OUTCOMES.get(reason)
                explanation = text_field(candidate, "finishMessage")
            case {"promptFeedback": {"blockReason": str(reason)} as feedback} if not fields.get("candidates"):
                candidate, explanation = {}, text_field(fields_of(feedback), "blockReasonMessage")
            case _:
                raise _invalid("the reply", reply)

        if outcome is None:
            error = {"code": reason, "message": explanation}
            details = f": {excerpt(explanation, 300)}" if explanation else ""
            raise ErrorReply(f"the reply ended with finishReason {excerpt(reason, 100)!r}{details}", error)

        texts, calls, other_keys = _read_parts(_parts_of(candidate))
        if not texts and not calls and outcome == "complete":
            keys = f", only {excerpt(', '.join(other_keys), 200)}" if other_keys else ""
            raise EmptyReply(f"the reply has neither a text nor a function call{keys}")
        return Answer(
            text="".join(texts),
            tool_calls=calls,
            outcome=outcome,
            finish_reason=reason,
            model=text_field(fields, "modelVersion"),
            service_tier=(text_field(counts, "serviceTier") or text_field(counts, "trafficType")).lower(),
            usage=usage,
            explanation=explanation if outcome == "declined" else "",
        )

    def read_stream(self, chunks: Iterable[Any]) -> Answer:
        """Return the first candidate, joined from chunks that are replies with some of its parts each."""
        fields: dict[str, Any] = {}
        parts: list[Any] = []
        candidate: dict[str, Any] = {}

        for chunk in chunks:
            match chunk:
                case {"candidates": [dict(), *_] as pieces}:
                    for piece in (piece for piece in map(fields_of, pieces) if not piece.get("index")):
                        parts += _parts_of(piece)
                        candidate |= without_none(piece)
                case {"usageMetadata": _} | {"promptFeedback": _} | {"modelVersion": _}:
                    pass
                case _:
                    raise _invalid("a chunk of the stream", chunk)
            fields |= without_none(chunk)

        if not candidate:
            if "promptFeedback" in fields:
                return self.read({**fields, "candidates": []})
            raise IncompleteReply("the stream ended without a candidate")
        if "finishReason" not in candidate:
            raise IncompleteReply("the stream ended without a finishReason")
        return self.read({**fields, "candidates": [{**candidate, "content": {"parts": parts}}]})


def _invalid(label: str, value: object) -> InvalidReply:
    return InvalidReply(f"{label} is not one of Gemini's generateContent: {excerpt(as_text(value), 200)!r}")


def _parts_of(candidate: Mapping[str, Any]) -> list[Any]:
    match candidate.get("content"):
        case None | {"parts": None}:
            return []
        case {"parts": list(parts)}:
            return parts
        case Mapping() as content if "parts" not in content:
            return []
        case _:
            raise _invalid("a candidate of the reply", candidate)


def _contents(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert messages; results of tools are parts of the user's next message."""
    turns: list[tuple[str, list[Any]]] = []
    names: dict[str, str] = {}

    for message in messages:
        role, parts = as_text(message.get("role")), []
        if role == "tool":
            role, parts = "user", [_result(message, names)]
        else:
            calls = calls_of(message)
            names |= {call_id: name for call_id, name, _ in calls}
            parts = [part for part in map(_part, parts_of(message.get("content"))) if part != {"text": ""} or not calls]
            parts += [
                {"functionCall": {"id": call_id, "name": name, "args": arguments}, **_signature(call)}
                for (call_id, name, arguments), call in zip(calls, message.get("tool_calls") or (), strict=True)
            ]
        turns.append(("model" if role == "assistant" else role, parts))
    return [{"role": role, "parts": parts} for role, parts in join_turns(turns)]


def _result(message: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    call_id = as_text(message.get("tool_call_id"))
    if call_id not in names:
        raise UsageError(f"no tool call before the message with the role 'tool' has its id {excerpt(call_id, 100)!r}")
    response = {"result": message.get("content")}
    return {"functionResponse": {"id": call_id, "name": names[call_id], "response": response}}


def _signature(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the signature of a call's reasoning, which some models require; see `_read_parts`."""
    match call:
        case {"extra_content": {"google": {"thought_signature": str(signature)}}}:
            return {"thoughtSignature": signature}
        case _:
            return {}


def _part(part: Any) -> Any:
    """Convert a part of a message; one without a type is sent as it is, so that a case may have parts of this API."""
    match part:
        case {"type": "text", "text": str(text)}:
            return {"text": text}
        case Mapping() if "type" not in part:
            return part
        case _:
            attachment = attachment_of(part)

    if attachment is None:
        raise UsageError(f"Gemini's API takes texts, images and files, not the part {excerpt(as_text(part), 200)!r}")
    if attachment.url:
        return {"fileData": {"fileUri": attachment.url}}
    return {"inlineData": {"mimeType": attachment.media_type, "data": attachment.data}}


def _read_parts(parts: list[Any]) -> tuple[list[str], list[dict[str, Any]], list[str]]:
    """Return texts, tool calls and the keys of other parts; thoughts are none of them.

    The signature of a call is where Gemini's OpenAI-compatible endpoint has it.
    """
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    other_keys: list[str] = []

    for part in parts:
        match part:
            case {"thought": True}:
                pass
            case {"text": str(text)}:
                texts.append(text)
            case {"functionCall": {"name": str(name), **fields}} if "partialArgs" not in fields and not fields.get(
                "willContinue"
            ):
                call_id, arguments = fields.get("id") or f"call-{len(calls) + 1}", fields.get("args") or {}
                if not isinstance(call_id, str) or not isinstance(arguments, dict):
                    raise _invalid("a part of the reply", part)
                call = tool_call(call_id, name, arguments)
                if "thoughtSignature" in part:
                    call["extra_content"] = {"google": {"thought_signature": part["thoughtSignature"]}}
                calls.append(call)
            case Mapping() if "text" not in part and "functionCall" not in part:
                other_keys += sorted(set(map(str, part)) - _NO_CONTENT)
            case _:
                raise _invalid("a part of the reply", part)
    return texts, calls, other_keys


def with_call_numbers(contents: list[Any]) -> list[Any]:
    """Return the messages of a request with numbers in place of the ids of tool calls; a call and its result have the same.

    If the reply with a call has no id, the client makes one, which is new in every process.
    """
    numbers: dict[str, str] = {}

    def numbered(call: Any) -> Any:
        if not isinstance(call, dict) or not isinstance(call.get("id"), str):
            return call
        return {**call, "id": numbers.setdefault(call["id"], str(len(numbers)))}

    def with_numbers(part: Any) -> Any:
        return part | {name: numbered(part[name]) for name in _CALLS if name in part} if isinstance(part, dict) else part

    return [
        {**message, "parts": [*map(with_numbers, message["parts"])]}
        if isinstance(message, dict) and isinstance(message.get("parts"), list)
        else message
        for message in contents
    ]
