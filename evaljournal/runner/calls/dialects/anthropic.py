"""Anthropic's Messages API."""

import base64
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
from evaljournal.runner.calls.http.reply import EmptyReply, IncompleteReply, InvalidReply
from evaljournal.runner.data.exact_json import read_json
from evaljournal.runner.errors import UsageError
from evaljournal.runner.secrets.masking import excerpt

IDENTITY_FIELDS: Final = frozenset({"metadata"})
"""Fields of a request that name its caller. They cannot change the answer: requests that differ only in them are the same."""
_MAX_TOKENS: Final = 4_096
"""The API requires a limit."""
_OUTCOMES: Final[Mapping[str, AnswerOutcome]] = {
    "max_tokens": "truncated",
    "model_context_window_exceeded": "truncated",
    "pause_turn": "truncated",  # A tool of the server reached its limit of rounds; another call would reach it too.
    "refusal": "declined",
}
_READ_EVENTS: Final = ("message_start", "content_block_start", "content_block_delta", "message_delta")


class Anthropic:
    base_url = "https://api.anthropic.com"
    url_variable = "ANTHROPIC_BASE_URL"
    key_variables: Final = {"ANTHROPIC_API_KEY": ("x-api-key", ""), "ANTHROPIC_AUTH_TOKEN": ("Authorization", "Bearer ")}
    first_token: Final = re.compile(rb'"(?:text|thinking|input_json)_delta"')
    headers: Final[Mapping[str, str]] = {"anthropic-version": "2023-06-01"}  # Later versions reject a temperature.

    def takes_temperature(self, _model: str) -> bool:
        """Return False: newer models, and all in later versions of the API, reject a temperature."""
        return False

    def path(self, _model: str, *, stream: bool) -> str:
        del stream
        return "/v1/messages"

    def body(self, request: ChatRequest) -> dict[str, Any]:
        if request.seed is not None:
            raise UsageError("Anthropic's API has no seed; remove model-seed (seed)")

        system, messages = split_system(request.messages)
        output_format = None if request.schema is None else {"type": "json_schema", "schema": request.schema}
        output_config = {"effort": request.effort, "format": output_format}
        parameters = {
            "system": _system(system),
            "temperature": request.temperature,
            "output_config": without_none(output_config) or None,
            "stream": request.stream or None,
        }

        return {
            "model": request.model,
            "max_tokens": _MAX_TOKENS if request.max_tokens is None else request.max_tokens,
            "messages": _messages(messages),
            **without_none(parameters),
        }

    def read(self, reply: Any) -> Answer:
        if not isinstance(reply, Mapping):
            raise _invalid("the reply", reply)
        content, stop_reason = reply.get("content"), reply.get("stop_reason")
        if not isinstance(content, list) or not isinstance(stop_reason, str):
            raise _invalid("the reply", reply)

        outcome: AnswerOutcome = _OUTCOMES.get(stop_reason, "complete")
        texts, calls, other_types = _read_blocks(content, is_complete=outcome == "complete")
        if not texts and not calls and outcome == "complete" and stop_reason != "stop_sequence":  # It may be the first token.
            types = f", only {excerpt(', '.join(other_types), 200)}" if other_types else ""
            raise EmptyReply(f"the message has neither a text nor a tool call{types}")

        usage = reply.get("usage")
        counts: Mapping[str, Any] = usage if isinstance(usage, Mapping) else {}
        is_fast = counts.get("speed") == "fast"  # It has another price.
        return Answer(
            text="".join(texts),
            tool_calls=calls,
            outcome=outcome,
            finish_reason=stop_reason,
            model=text_field(reply, "model"),
            service_tier="fast" if is_fast else text_field(counts, "service_tier"),
            usage=usage,
            explanation=text_field(fields_of(reply.get("stop_details")), "explanation"),
        )

    def read_stream(self, chunks: Iterable[Any]) -> Answer:
        message: dict[str, Any] = {}
        blocks: dict[int, tuple[Mapping[str, Any], list[str]]] = {}

        for event in chunks:
            match event:
                case {"type": "message_start", "message": dict(start)}:
                    message, blocks = start, {}
                case {"type": "content_block_start", "index": int(index), "content_block": dict(block)}:
                    blocks[index] = (block, [])
                case {"type": "content_block_delta", "index": int(index), "delta": dict(delta)} if index in blocks:
                    blocks[index][1].extend(_piece(delta))
                case {"type": "message_delta", "delta": dict(delta)}:
                    counts = without_none(fields_of(event.get("usage")))
                    message |= {**delta, "usage": {**fields_of(message.get("usage")), **counts}}
                case {"type": "message_stop"}:
                    return self.read({**message, "content": [_join(*blocks[index]) for index in sorted(blocks)]})
                case {"type": str(name)} if name not in _READ_EVENTS:
                    pass  # A ping, the end of a block, or an event of a later version.
                case _:
                    raise _invalid("an event of the stream", event)
        raise IncompleteReply("the stream ended without message_stop")


def _invalid(label: str, value: object) -> InvalidReply:
    return InvalidReply(f"{label} is not one of Anthropic's Messages API: {excerpt(as_text(value), 200)!r}")


def _system(contents: Sequence[Any]) -> Any:
    """Return the system prompts: as a text if there is one, otherwise as blocks; None if there is none."""
    if len(contents) == 1 and isinstance(contents[0], str):
        return contents[0]
    return [part for content in contents for part in parts_of(content)] or None


def _messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert messages; tool results are blocks of the user's next message."""
    turns: list[tuple[str, list[Any]]] = []
    for message in messages:
        role, blocks = message.get("role"), [_block(part) for part in parts_of(message.get("content"))]
        if role == "tool":
            content = blocks[0]["text"] if isinstance(message.get("content"), str) else blocks
            blocks = [{"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": content}]
        elif calls := calls_of(message):
            blocks = [block for block in blocks if block != {"type": "text", "text": ""}]
            blocks += [{"type": "tool_use", "id": call_id, "name": name, "input": value} for call_id, name, value in calls]
        turns.append(("user" if role == "tool" else as_text(role), blocks))
    return [{"role": role, "content": _content(blocks)} for role, blocks in join_turns(turns)]


def _content(blocks: list[Any]) -> Any:
    """Return blocks as the content of a message; a single text as it is."""
    match blocks:
        case [{"type": "text", "text": text, **further}] if not further:
            return text
        case _:
            return blocks


def _block(part: Any) -> Any:
    """Convert an image or a file; any other part is sent as it is, so that a case may have blocks of this API."""
    attachment = attachment_of(part)
    if attachment is None:
        return part

    media_type, data = attachment.media_type, attachment.data
    if attachment.url:
        return {"type": "image" if attachment.is_image else "document", "source": {"type": "url", "url": attachment.url}}
    if media_type.startswith("image/"):
        return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}
    title = {"title": attachment.name} if attachment.name else {}
    if media_type == "application/pdf":
        return {"type": "document", "source": {"type": "base64", "media_type": media_type, "data": data}, **title}
    if not media_type.startswith("text/"):
        raise UsageError(f"Anthropic's API takes images, PDF and text files, not {excerpt(media_type, 100)!r}")
    try:
        text = base64.b64decode(data, validate=True).decode()
    except ValueError as exc:
        raise UsageError(f"a text file in a message is not UTF-8 in base64: {exc}") from exc
    return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}, **title}


def _read_blocks(content: list[Any], *, is_complete: bool) -> tuple[list[str], list[dict[str, Any]], list[str]]:
    """Return texts, tool calls and the types of other blocks; thinking is none of them."""
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    other_types: list[str] = []

    for block in content:
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "tool_use", "id": str(call_id), "name": str(name), "input": dict(arguments)}:
                calls.append(tool_call(call_id, name, arguments))
            case {"type": "tool_use", "id": str(call_id), "name": str(name), "input": str(arguments)} if not is_complete:
                calls.append(tool_call(call_id, name, arguments))
            case {"type": "thinking" | "redacted_thinking"}:
                pass
            case {"type": str(name)} if name not in {"text", "tool_use"}:
                other_types.append(name)
            case _:
                raise _invalid("a block of the message", block)
    return texts, calls, other_types


def _piece(delta: Mapping[str, Any]) -> list[str]:
    """Return the text, or the part of a tool's arguments, in a delta; none if it is of another kind."""
    match delta:
        case {"type": "text_delta", "text": str(text)} | {"type": "input_json_delta", "partial_json": str(text)}:
            return [text]
        case {"type": str(name)} if name not in {"text_delta", "input_json_delta"}:
            return []
        case _:
            raise _invalid("a delta of the stream", delta)


def _join(block: Mapping[str, Any], pieces: Sequence[str]) -> Mapping[str, Any]:
    """Return a block with the pieces of its deltas; incomplete arguments of a tool stay a text."""
    text = "".join(pieces)
    match block:
        case {"type": "text", "text": str(start)}:
            return {**block, "text": start + text}
        case {"type": "tool_use"} if text:
            try:
                return {**block, "input": read_json(text)}
            except ValueError:
                return {**block, "input": text}
        case _:
            return block
