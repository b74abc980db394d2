"""Replies of chat APIs, one of each kind, and random changes of them; nothing here asserts anything."""

import copy
import json
import random
from collections.abc import Mapping
from typing import Any, Final

TOOL_CALL: Final = {"id": "call-1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Lima"}'}}


def _completion(message: Mapping[str, Any], finish_reason: str = "stop", **fields: Any) -> dict[str, Any]:
    usage = {
        "prompt_tokens": 40,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 7},
        "cost": 0.25,
    }
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return {"id": "c-1", "model": "gpt-5.6-luna", "service_tier": "default", "choices": [choice], "usage": usage, **fields}


def _response(*items: Mapping[str, Any], status: str = "completed", **fields: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 40,
        "input_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 5},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 7},
    }
    reasoning = {"type": "reasoning", "id": "r-1", "summary": []}
    return {"id": "r", "model": "gpt-5.6-luna", "status": status, "output": [reasoning, *items], "usage": usage, **fields}


def _output(*parts: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": list(parts)}


def _text(text: str, part_type: str = "output_text") -> dict[str, Any]:
    return {"type": part_type, "text": text, "annotations": []}


def _message(*blocks: Mapping[str, Any], stop_reason: str = "end_turn", **fields: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 25,
        "cache_read_input_tokens": 10,
        "cache_creation_input_tokens": 5,
        "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 2},
        "output_tokens": 20,
        "service_tier": "standard",
    }
    identity = {"id": "msg", "type": "message", "role": "assistant", "model": "claude-haiku-5-5"}
    return {**identity, "content": list(blocks), "stop_reason": stop_reason, "stop_sequence": None, "usage": usage, **fields}


def _generated(*parts: Mapping[str, Any], finish_reason: str = "STOP", **fields: Any) -> dict[str, Any]:
    usage = {"promptTokenCount": 40, "cachedContentTokenCount": 10, "candidatesTokenCount": 13, "thoughtsTokenCount": 7}
    candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": finish_reason, "index": 0}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-3.8-flash", "responseId": "g", **fields}


REPLIES: Final[Mapping[str, list[Any]]] = {
    "chat": [
        _completion({"content": "Lima is the capital."}),
        _completion({"content": [{"type": "text", "text": "Lima "}, {"type": "text", "text": "it is."}]}),
        _completion({"content": "", "reasoning_content": "I think"}, "length"),
        _completion({"content": None, "tool_calls": [TOOL_CALL]}, "tool_calls"),
        _completion({"content": None, "refusal": "I cannot help."}),
        _completion({"content": None}, "content_filter"),
        {"error": {"message": "The provider is down", "code": 502}},
    ],
    "responses": [
        _response(_output(_text("Lima "), _text("it is."))),
        _response(_output(_text("Lima")), _output(_text(", Peru"))),
        _response({"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"}),
        _response(_output({"type": "refusal", "refusal": "I cannot help."})),
        _response(status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
        _response(status="failed", error={"code": "server_error", "message": "failed"}),
    ],
    "anthropic": [
        _message({"type": "thinking", "thinking": "Hm", "signature": "s"}, _text("Lima ", "text"), _text("it is.", "text")),
        _message({"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "Lima"}}, stop_reason="tool_use"),
        _message(stop_reason="max_tokens"),
        _message(stop_reason="refusal"),
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    ],
    "gemini": [
        _generated({"text": "I think", "thought": True}, {"text": "Lima "}, {"text": "it is."}),
        _generated({"functionCall": {"name": "weather", "args": {"city": "Lima"}}}),
        _generated(finish_reason="MAX_TOKENS"),
        _generated(finish_reason="SAFETY"),
        {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 40}},
        {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}},
    ],
}
"""Dialect → replies: texts in parts, a tool call, a refusal, a truncated answer, an error with status 200."""


def _delta(delta: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"model": "gpt-5.6-luna", "choices": [{"index": 0, "delta": dict(delta), "finish_reason": finish_reason}]}


def _block(index: int, block: Mapping[str, Any], *deltas: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": dict(block)},
        *({"type": "content_block_delta", "index": index, "delta": dict(delta)} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


_TOOL_DELTAS: Final = [
    _delta({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "weather", "arguments": ""}}]}),
    _delta({"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "Lima"}'}}]}),
]
STREAMS: Final[Mapping[str, list[list[Any]]]] = {
    "chat": [
        [
            *(_delta({"content": text}) for text in ("", "Li", "ma")),
            _delta({}, "stop"),
            {"choices": [], "usage": _completion({})["usage"]},
        ],
        [*_TOOL_DELTAS, _delta({}, "tool_calls")],
    ],
    "responses": [
        [
            {"type": "response.created", "response": _response(status="in_progress")},
            {"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "content_index": 0, "delta": "Lima"},
            {"type": "response.output_item.done", "output_index": 0, "item": _output(_text("Lima"))},
            {"type": "response.completed", "response": _response(_output(_text("Lima")))},
        ],
        [{"type": "response.failed", "response": _response(status="failed", error={"code": "server_error"})}],
    ],
    "anthropic": [
        [
            {"type": "message_start", "message": {**_message(), "stop_reason": None}},
            {"type": "ping"},
            *_block(
                0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Li"}, {"type": "text_delta", "text": "ma"}
            ),
            *_block(
                1, {"type": "tool_use", "id": "t", "name": "f", "input": {}}, {"type": "input_json_delta", "partial_json": "{}"}
            ),
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 20}},
            {"type": "message_stop"},
        ],
        [{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}],
    ],
    "gemini": [
        [
            {"candidates": [{"content": {"role": "model", "parts": [{"text": "Li"}]}, "index": 0}]},
            _generated({"text": "ma"}),
        ],
        [_generated({"functionCall": {"name": "weather", "args": {}}})],
    ],
}

JUNK: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1.5, 1e308, -1e308, float("inf"), float("nan"), 2**53 + 1, 10**30, "NaN", "Infinity", "1e999"),
    *("", "0", "null", [], {}, [[]], [None], {"text": 1}, {"text": None}, {"type": "new_block", "data": 1}, "\ud7ff\U0001f600"),
    *({"error": 1}, {"index": 0}, {"type": "text"}, [1, "a", {}], "x" * 3_000, [[[[[[{}]]]]]]),
)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return each container in a value with each of its keys."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


def _changed(value: Any, rng: random.Random) -> Any:
    """Return a copy with some values missing, replaced, retyped, nested or repeated."""
    root = {"": copy.deepcopy(value)}
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        container, key = rng.choice(_places(root))
        old_value = container[key]
        match rng.randrange(6):
            case 0 if container is not root:
                del container[key]
            case 1:
                container[key] = rng.choice([[old_value], {"a": old_value}, [old_value, old_value], {"text": old_value}])
            case 2:
                container[key] = str(old_value) if not isinstance(old_value, str) else len(old_value)
            case 3:
                container[key] = copy.deepcopy(rng.choice(_places(rng.choice(ANY_REPLY)))[0])
            case _:
                container[key] = copy.deepcopy(rng.choice(JUNK))
    return root[""]


ANY_REPLY: Final = [reply for replies in (*REPLIES.values(), *STREAMS.values()) for reply in replies]


def random_reply(dialect: str, rng: random.Random) -> tuple[bytes, bool]:
    """Return the body of a reply of a dialect, or of another one, and whether it is a stream."""
    dialect = rng.choice(list(REPLIES)) if rng.random() < 0.1 else dialect
    is_stream = rng.random() < 0.5
    value = _changed(rng.choice((STREAMS if is_stream else REPLIES)[dialect]), rng)
    if is_stream:
        chunks = value if isinstance(value, list) else [value]
        if rng.random() < 0.1:
            rng.shuffle(chunks)
        name = "event: {}\n" if dialect in {"anthropic", "responses"} and rng.random() < 0.8 else ""
        events = [
            f"{name.format(chunk.get('type') if isinstance(chunk, dict) else '')}data: {json.dumps(chunk)}\n\n"
            for chunk in chunks
        ]
        body = "".join([*events, *(["data: [DONE]\n\n"] if rng.random() < 0.4 else [])]).encode()
    else:
        body = json.dumps(value).encode()
    if rng.random() < 0.1:
        body = body[: rng.randrange(len(body) + 1)]
    if rng.random() < 0.05:
        place = rng.randrange(len(body) + 1)
        body = body[:place] + rng.randbytes(rng.randrange(1, 4)) + body[place + rng.randrange(3) :]
    return body, is_stream
