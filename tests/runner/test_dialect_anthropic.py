"""Anthropic's Messages API: its requests, and replies that `test_dialect_replies` compares with its SDK."""

import json
from typing import Any, Final

import pytest

from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.calls.dialects.anthropic import Anthropic
from evaljournal.runner.calls.http.reply import InvalidReply
from evaljournal.runner.calls.prices import DEFAULT_PRICES, read_prices
from evaljournal.runner.calls.usage import priced_usage
from tests.dialects import read_stream
from tests.programs import import_optional
from tests.security.replies import replying

NAME: Final = "anthropic"
DIALECT: Final = Anthropic()
MODEL: Final = "claude-haiku-5-5"
USAGE: Final = {
    "input_tokens": 100,
    "cache_read_input_tokens": 600,
    "cache_creation_input_tokens": 300,
    "cache_creation": {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 100},
    "output_tokens": 90,
    "output_tokens_details": {"thinking_tokens": 60},
    "service_tier": "standard",
}
THINKING: Final = {"type": "thinking", "thinking": "Peru …", "signature": "c2lnbmF0dXJl"}
CALL: Final = {"type": "tool_use", "id": "toolu-1", "name": "weather", "input": {"city": "Lima", "days": [1, 2.5]}}
SEARCH: Final = {"type": "server_tool_use", "id": "srvtoolu-1", "name": "web_search", "input": {"query": "Lima"}}


def text_block(text: Any) -> dict[str, Any]:
    return {"type": "text", "text": text}


def message(*blocks: Any, **fields: Any) -> dict[str, Any]:
    return {
        "id": "msg-1",
        "type": "message",
        "role": "assistant",
        "model": f"{MODEL}-20261001",
        "content": list(blocks),
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": USAGE,
        **fields,
    }


REPLIES: Final = {
    "several texts": message(THINKING, text_block("Li"), text_block("ma"), THINKING, text_block(".")),
    "tool calls": message(CALL, {**CALL, "id": "toolu-2", "input": {}}, stop_reason="tool_use"),
    "text and a tool call": message(text_block("Let me look."), CALL, stop_reason="tool_use"),
    "unknown blocks": message({"type": "hologram", "rays": 7}, text_block("Lima")),
    "server tools": message(SEARCH, text_block("Lima")),
    "refusal": message(stop_reason="refusal"),
    "refusal within an answer": message(text_block("First, take"), stop_reason="refusal"),
    "only reasoning": message(THINKING, stop_reason="max_tokens"),
    "truncated": message(text_block("Li"), stop_reason="max_tokens"),
    "context exceeded": message(text_block("Li"), stop_reason="model_context_window_exceeded"),
    "paused": message(SEARCH, stop_reason="pause_turn"),
    "stop sequence": message(text_block("Lima"), stop_reason="stop_sequence", stop_sequence="."),
    "empty": message(text_block("")),
    "stop sequence without a text": message(stop_reason="stop_sequence", stop_sequence="."),
    "redacted thinking": message({"type": "redacted_thinking", "data": "eA=="}, text_block("Lima")),
}
OUTCOMES: Final = {
    "refusal": "declined",
    "refusal within an answer": "declined",
    "only reasoning": "truncated",
    "truncated": "truncated",
    "context exceeded": "truncated",
    "paused": "truncated",
}


def chunks_of(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a message, as the API sends them: counts are repeated at the end, where they are final."""
    first_usage = {**reply["usage"], "output_tokens": 1}
    first_usage.pop("output_tokens_details", None)
    started = {**reply, "content": [], "stop_reason": None, "usage": first_usage}
    stream: list[dict[str, Any]] = [{"type": "message_start", "message": started}, {"type": "ping"}]
    for index, block in enumerate(reply["content"]):
        empty = {"text": "", "thinking": "", "signature": "", "input": {}}
        start = {name: empty.get(name, value) for name, value in block.items()}
        stream.append({"type": "content_block_start", "index": index, "content_block": start})
        arguments = json.dumps(block["input"]) if block.get("input") else ""
        deltas = [{"type": "text_delta", "text": letter} for letter in block.get("text", "")]
        deltas += [
            {"type": "input_json_delta", "partial_json": piece} for piece in ("", arguments[:9], arguments[9:]) if arguments
        ]
        if "thinking" in block:
            deltas.append({"type": "thinking_delta", "thinking": block["thinking"]})
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        stream += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        stream.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": reply["stop_reason"], "stop_sequence": reply["stop_sequence"]}
    counts = {name: reply["usage"].get(name) for name in ("input_tokens", "output_tokens", "output_tokens_details")}
    return [*stream, {"type": "message_delta", "delta": delta, "usage": counts}, {"type": "message_stop"}]


def read_by_sdk(content: bytes, *, stream: bool) -> tuple[Any, ...]:
    """Return text, tool calls, usage, model and stop reason that Anthropic's SDK reads."""
    anthropic = import_optional("anthropic")
    options = {"model": MODEL, "max_tokens": 10, "messages": [{"role": "user", "content": "q"}]}
    with replying(content, "text/event-stream" if stream else "application/json") as server:
        client = anthropic.Anthropic(base_url=server.url, api_key="key", max_retries=0)
        if stream:
            with client.messages.stream(**options) as events:
                reply = events.get_final_message()
        else:
            reply = client.messages.create(**options)
    text = "".join(block.text for block in reply.content if block.type == "text")
    calls = [(block.id, block.name, block.input) for block in reply.content if block.type == "tool_use"]
    return text, calls, reply.usage.model_dump(exclude_none=True), reply.model, reply.stop_reason


def test_a_refusal_is_explained() -> None:
    """The explanation of a refusal is recorded apart from the text, which is the model's."""
    details = {"type": "refusal", "category": "cyber", "explanation": "It could enable harm."}
    answer = Anthropic().read(message(stop_reason="refusal", stop_details=details))

    assert ("", "It could enable harm.") == (answer.text, answer.explanation)


def test_a_truncated_tool_call_of_a_stream() -> None:
    """The arguments of a tool call that the token limit interrupts stay as they are; without a limit, they are invalid."""
    stream = chunks_of(message(CALL, stop_reason="max_tokens"))
    del stream[-4]  # The last part of the arguments.
    answer = read_stream(DIALECT, stream)
    stream[-2]["delta"]["stop_reason"] = "tool_use"

    assert ("truncated", '{"city": ') == (answer.outcome, answer.tool_calls[0]["function"]["arguments"])
    with pytest.raises(InvalidReply):
        read_stream(DIALECT, stream)


def test_the_fast_mode_has_no_price_of_the_table() -> None:
    """A call in the fast mode, which costs more, is not priced as others are."""
    answer = Anthropic().read(message(text_block("Lima"), usage={**USAGE, "speed": "fast"}))

    assert 1 == priced_usage(answer.usage, MODEL, read_prices(DEFAULT_PRICES), answer.service_tier)["unpriced_calls"]


INVALID_REPLIES: Final[list[Any]] = [
    None,
    [],
    {},
    {"choices": [{"message": {"content": "Lima"}, "finish_reason": "stop"}]},
    {"output": [], "status": "completed"},
    {"candidates": [{"content": {"parts": [{"text": "Lima"}]}, "finishReason": "STOP"}]},
    message(text_block("Lima"), stop_reason=None),
    message(text_block("Lima"), stop_reason=["end_turn"]),
    message(text_block("Lima"), content="Lima"),
    message(text_block(7)),
    message("Lima"),
    message({"type": ["text"], "text": "Lima"}),
    message({"text": "Lima"}),
    message({**CALL, "input": "{}"}),
    message({**CALL, "name": None}),
]
EMPTY_REPLIES: Final = [message(), message(THINKING), message(stop_reason="tool_use"), message({"type": "hologram"}, SEARCH)]
INCOMPLETE_STREAMS: Final = [chunks_of(REPLIES["several texts"])[:-1], [{"type": "ping"}]]
INVALID_STREAMS: Final = [
    [{"type": "message_stop"}],
    [{"type": "message_start", "message": 7}],
    [{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x"}}],
    [{"type": "content_block_start", "index": [0], "content_block": text_block("")}],
    [*chunks_of(REPLIES["truncated"])[:3], {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta"}}],
    [*chunks_of(REPLIES["truncated"])[:-2], {"type": "message_stop"}],
    *map(chunks_of, EMPTY_REPLIES),
]


def test_events_of_later_versions_are_skipped() -> None:
    """Events and deltas of unknown types do not change the answer."""
    stream = chunks_of(REPLIES["truncated"])
    stream.insert(1, {"type": "weather_report"})
    stream.insert(4, {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": {}}})

    assert "Li" == read_stream(DIALECT, stream).text


def test_the_request() -> None:
    """Messages, tool calls, images, files and parameters have the types of Anthropic's SDK."""
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    tool = {"name": "weather", "description": "The weather", "input_schema": schema}
    chat = Chat(
        f"anthropic:{MODEL}",
        base_url="http://h",
        max_tokens=50,
        effort="low",
        schema=schema,
        extra_body={"tools": [tool], "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
    )
    calls = [
        {"id": f"call-{number}", "type": "function", "function": {"name": "weather", "arguments": '{"day": 1}'}}
        for number in (1, 2)
    ]
    parts = [
        text_block("What is this?"),
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "https://h/a.png"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
        {"type": "file", "file": {"file_data": "data:text/markdown;charset=utf-8;base64,TGltYQ=="}},
        {**text_block("As it is."), "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ]
    body = chat.body(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": [text_block("Be exact.")]},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi"},
            {"role": "user", "content": parts},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call-1", "content": "sunny"},
            {"role": "tool", "tool_call_id": "call-2", "content": [text_block("rain")]},
            {"role": "user", "content": "And then?"},
        ]
    )

    assert {
        "model": MODEL,
        "max_tokens": 50,
        "system": [text_block("Be brief."), text_block("Be exact.")],
        "messages": [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi"},
            {
                "role": "user",
                "content": [
                    parts[0],
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                    {"type": "image", "source": {"type": "url", "url": "https://h/a.png"}},
                    {
                        "type": "document",
                        "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"},
                        "title": "a.pdf",
                    },
                    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Lima"}},
                    parts[5],
                ],
            },
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": call["id"], "name": "weather", "input": {"day": 1}} for call in calls],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "call-1", "content": "sunny"},
                    {"type": "tool_result", "tool_use_id": "call-2", "content": [text_block("rain")]},
                    text_block("And then?"),
                ],
            },
        ],
        "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": schema}},
        "tools": [tool],
        "thinking": {"type": "adaptive"},
    } == body
    assert body == checked_by_sdk(body)


def checked_by_sdk(body: dict[str, Any]) -> Any:
    """Return a body after validation by the SDK's types: keys that they do not have are lost, wrong values are errors."""
    pydantic, types = import_optional("pydantic"), import_optional("anthropic.types")
    config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    blocks = pydantic.TypeAdapter(types.ContentBlockParam, config=config)
    params = pydantic.TypeAdapter(pydantic.with_config(config)(types.message_create_params.MessageCreateParamsNonStreaming))

    def check(adapter: Any, value: Any) -> Any:
        return json.loads(adapter.dump_json(adapter.validate_python(value, strict=True)))

    messages = [
        {**message, "content": [check(blocks, block) for block in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in body["messages"]
    ]
    return {**check(params, {**body, "messages": []}), "messages": messages}


def test_a_limit_of_tokens_is_recorded() -> None:
    """The API requires a token limit; the default is part of the definition. A temperature is sent if there is one."""
    chat = Chat(f"anthropic:{MODEL}", base_url="http://h", system="Be brief.", temperature=0.5, stream=True)

    assert 4096 == chat.definition["max_tokens"]
    assert {
        "model": MODEL,
        "max_tokens": 4096,
        "messages": [{"role": "user", "content": "q"}],
        "system": "Be brief.",
        "temperature": 0.5,
        "stream": True,
    } == chat.body([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "q"}])
