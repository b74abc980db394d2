"""Messages and tool calls in the recorded input and output of a model call.

Requests and replies of OpenAI (chat completions, Responses) and Anthropic are recognized, including streamed replies. They are
untrusted: any value may have any type, and unrecognized parts are omitted.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any, Final, cast

import attrs
import orjson

from evaljournal.replay.provider.reports import LAST_EVENTS, fields_of, objects_of, text_field
from evaljournal.replay.provider.server_sent_events import parse_events
from evaljournal.replay.text import as_text

_DATA: Final = "data:"
_FINISH_REASONS: Final = {
    "completed": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "tool_use": "tool_call",
}
"""Names of the providers → those of OpenTelemetry's conventions, where they differ."""

_GEMINI_FUNCTIONS: Final = (("functionCall", "function_call"), ("functionResponse", "function_response"))
"""Keys of a part in Gemini's API and in its SDK."""


@attrs.frozen
class ToolCall:
    name: str
    arguments: Any
    """Parsed, if they were valid JSON."""
    id: str = ""


@attrs.frozen
class Message:
    role: str
    """`user`, `assistant`, `tool`, `system`, …; empty if unknown."""
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    """Of a tool's result: the id of its call; empty if unknown."""


def messages_of(recorded_input: object) -> list[Message]:
    """Return the messages of a request to a model; none if the input is not recognized."""
    request = fields_of(recorded_input)
    system = request.get("system", request.get("instructions")) or _from_gemini(request.get("systemInstruction"))["content"]
    system_messages = [Message("system", _text_of(system))] if system else []
    messages = request.get("messages", request.get("input"))
    if isinstance(contents := request.get("contents"), list):
        messages = [_from_gemini(content) for content in contents]
    if isinstance(messages, str):
        return [*system_messages, Message("user", messages)]
    return [*system_messages, *chain.from_iterable(map(_messages, messages))] if isinstance(messages, list) else system_messages


def reply_of(recorded_output: object) -> Message | None:
    """Return the reply of a model; None if the output is not recognized."""
    output = _body(recorded_output)
    if isinstance(output, Mapping):
        return _reply(fields_of(output))
    if isinstance(output, list):  # A stream of Gemini's API without `alt=sse`.
        return _join_candidates(objects_of(output))
    if not isinstance(output, str):
        return None
    events = list(_events(output)) if _DATA in output[:10_000] else []
    if not events:
        return Message("assistant", output)
    return _join_candidates(events) or _join_stream(events)


def finish_reason_of(recorded_output: object) -> str:
    """Return why a model stopped: `stop`, `length`, `tool_call`, or the provider's word; empty if it is unknown."""
    return next(filter(None, map(_finish_reason, reversed([*_parts_of(recorded_output)]))), "")


def response_id_of(recorded_output: object) -> str:
    """Return the provider's id of a reply, also of a streamed one; empty if it is unknown."""
    for event in _parts_of(recorded_output):
        for part in (event, *objects_of([event.get("message"), event.get("response")])):
            if response_id := text_field(part, "id") or text_field(part, "responseId"):
                return response_id
    return ""


def _parts_of(recorded_output: object) -> Iterable[Mapping[str, Any]]:
    """Return the events of a streamed reply; any other reply is its only part."""
    output = _body(recorded_output)
    return _events(output) if isinstance(output, str) else objects_of(output if isinstance(output, list) else [output])


def _finish_reason(reply: Mapping[str, Any]) -> str:
    candidates = objects_of(reply.get("candidates"))
    for part in (*_first_choice(reply), *candidates, *objects_of([reply.get("delta"), reply.get("response"), reply])):
        reason = part.get("finish_reason") or part.get("stop_reason") or part.get("finishReason")
        if reason is None and "output" in part:  # The Responses API.
            is_call = any(item.get("type") == "function_call" for item in objects_of(part.get("output")))
            details = part.get("incomplete_details")
            reason = details.get("reason") if isinstance(details, Mapping) else "tool_use" if is_call else part.get("status")
        if isinstance(reason, str):
            return _FINISH_REASONS.get(reason, reason)
    return ""


def _body(recorded_output: object) -> object:
    """Return the body of a recorded HTTP reply, and any other output unchanged."""
    if isinstance(recorded_output, Mapping) and "status" in recorded_output and "body" in recorded_output:
        return cast("Mapping[str, object]", recorded_output)["body"]
    return recorded_output


def _reply(output: Mapping[str, Any]) -> Message | None:
    for choice in sorted(objects_of(output.get("choices")), key=_index):
        if isinstance(message := choice.get("message"), Mapping):
            return _message(cast("Mapping[str, Any]", message))
    if candidates := objects_of(output.get("candidates")):
        return attrs.evolve(_message(_from_gemini(candidates[0].get("content"))), role="assistant")
    if items := objects_of(output.get("output")):  # The Responses API.
        parts = [_message(item) for item in items]
        text = "\n".join(part.text for part in parts if part.role == "assistant" and part.text)
        return Message("assistant", text, tuple(call for part in parts for call in part.tool_calls))
    return _message(output) if "content" in output or "tool_calls" in output else None


def _from_gemini(value: object) -> dict[str, Any]:
    """Return a content of Gemini's API as a message of Anthropic's; consecutive texts, as in a stream, are joined."""
    fields = fields_of(value)
    blocks: list[dict[str, Any]] = []
    for part in objects_of(fields.get("parts")):
        call, result = (part.get(name) or part.get(sdk_name) for name, sdk_name in _GEMINI_FUNCTIONS)
        if part.get("thought") or part.get("text") == "":
            continue
        if isinstance(call, Mapping):
            blocks.append({"type": "tool_use", "id": call.get("id"), "name": call.get("name"), "input": call.get("args")})
        elif isinstance(result, Mapping):
            response = result.get("response")
            content = response["result"] if isinstance(response, Mapping) and "result" in response else response
            blocks.append({"type": "tool_result", "tool_use_id": result.get("id"), "content": content})
        elif not isinstance(text := part.get("text"), str):
            blocks.append({"type": next((name for name, value in part.items() if value is not None), "part")})
        elif blocks and "text" in blocks[-1]:
            blocks[-1] = {"type": "text", "text": blocks[-1]["text"] + text}
        else:
            blocks.append({"type": "text", "text": text})

    role = fields.get("role")
    return {"role": "assistant" if role == "model" else role, "content": blocks}


def _messages(value: object) -> Iterator[Message]:
    """Yield a message of a request; each result of a tool is a message of its own."""
    content: Any = value.get("content") if isinstance(value, Mapping) else None
    results = [part for part in objects_of(content) if part.get("type") == "tool_result"]
    for part in results:
        yield Message("tool", _result_text(part.get("content")), (), text_field(part, "tool_use_id"))
    if not results or not isinstance(value, Mapping):
        yield _message(value)
    elif other_parts := [part for part in content if part not in results]:
        yield _message({**value, "content": other_parts})


def _message(value: object) -> Message:
    if not isinstance(value, Mapping):
        return Message("", as_text(value))
    message = fields_of(value)
    match message.get("type"):
        case "function_call":
            return Message("assistant", "", (_call(message),))
        case "function_call_output":
            return Message("tool", _text_of(message.get("output")), (), text_field(message, "call_id"))
        case "reasoning":
            return Message("", "")
        case _:
            pass

    content = message.get("content")
    calls = [_call(part) for part in objects_of(content) if part.get("type") == "tool_use"]
    calls += [_call(call.get("function"), call.get("id")) for call in objects_of(message.get("tool_calls"))]
    text = _text_of(content) or _text_of(message.get("refusal"))
    return Message(text_field(message, "role"), text, tuple(calls), text_field(message, "tool_call_id"))


def _call(value: object, call_id: object = None) -> ToolCall:
    call = fields_of(value)
    arguments = call.get("input", call.get("arguments"))
    if isinstance(arguments, str):
        with suppress(orjson.JSONDecodeError):
            arguments = orjson.loads(arguments or "{}")
    call_id = call_id or call.get("call_id") or call.get("id")
    return ToolCall(text_field(call, "name"), arguments, call_id if isinstance(call_id, str) else "")


def _text_of(content: Any) -> str:
    """Return the text of a message's content; parts without text are named, except tool calls and thinking."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return as_text(content)
    texts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(part, Mapping) or kind is None:
            texts.append(as_text(part))
        elif isinstance(text := part.get("text", part.get("refusal")), str):
            texts.append(text)
        elif kind not in ("tool_use", "thinking", "redacted_thinking"):
            texts.append(f"({as_text(kind)})")
    return "\n".join(texts)


def _result_text(content: Any) -> str:
    texts = (part.get("text", f"({as_text(part.get('type'))})") for part in objects_of(content))
    return "\n".join(map(as_text, texts)) if isinstance(content, list) else "" if content is None else as_text(content)


def _index(choice: Mapping[str, Any]) -> int:
    index = choice.get("index")
    return index if isinstance(index, int) else 0


def _first_choice(reply: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the choice of a reply, or of a chunk of one, that has the index 0."""
    return (choice for choice in objects_of(reply.get("choices")) if not choice.get("index"))


def _events(text: str) -> Iterator[Mapping[str, Any]]:
    for _, data in parse_events(text):
        with suppress(orjson.JSONDecodeError):
            value = orjson.loads(data)
            if isinstance(value, dict):
                yield value


def _join_candidates(events: list[Mapping[str, Any]]) -> Message | None:
    """Return the message of a stream of Gemini's API, whose events have some parts each; None if it is of another API."""
    candidates = [candidate for event in events for candidate in objects_of(event.get("candidates"))]
    contents = objects_of([candidate.get("content") for candidate in candidates])
    parts = [part for content in contents for part in objects_of(content.get("parts"))]
    return _message(_from_gemini({"role": "model", "parts": parts})) if candidates else None


def _join_stream(events: list[Mapping[str, Any]]) -> Message | None:
    for event in reversed(events):
        if text_field(event, "type") in LAST_EVENTS and (response := fields_of(event.get("response"))):
            return _reply(response)

    texts: list[str] = []
    calls: dict[object, dict[str, str]] = {}
    for event in events:
        for choice in _first_choice(event):
            delta = choice.get("delta")
            if isinstance(delta, Mapping):
                texts.append(_text_of(delta.get("content")))
                for piece in objects_of(delta.get("tool_calls")):
                    _extend(calls, piece.get("index"), piece.get("function"), piece.get("id"))

        delta, block, index = event.get("delta"), event.get("content_block"), event.get("index")
        if isinstance(block, Mapping) and block.get("type") == "tool_use":
            _extend(calls, index, {"name": block.get("name")}, block.get("id"))
        elif isinstance(delta, Mapping):
            texts.append(_text_of(delta.get("text")))
            if "partial_json" in delta:
                _extend(calls, index, {"arguments": delta["partial_json"]})
    return Message("assistant", "".join(texts), tuple(map(_call, calls.values())))


def _extend(calls: dict[object, dict[str, str]], index: object, piece: object, call_id: object = None) -> None:
    """Append a piece of a streamed tool call to the pieces before it."""
    call = calls.setdefault(index if isinstance(index, int) else len(calls), {"name": "", "arguments": ""})
    for name, value in {**fields_of(piece), "id": call_id}.items():
        if isinstance(value, str):
            call[name] = call.get(name, "") + value
