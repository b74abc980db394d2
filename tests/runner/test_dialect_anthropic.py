"""Anthropic's Messages API: requests, replies and streams, compared with its SDK, which reads the same bytes."""

import json
from collections.abc import Sequence
from typing import Any, Final

import pytest

from evaljournal import UsageError
from evaljournal.runner.http.reply import ErrorReply, IncompleteReply, InvalidReply, Reply
from evaljournal.runner.retries.classify import classify
from evaljournal.runner.tasks.chat import Chat
from evaljournal.runner.tasks.dialects.anthropic import Anthropic
from evaljournal.runner.tasks.dialects.dialect import Answer
from evaljournal.runner.tasks.prices import DEFAULT_PRICES, read_prices
from evaljournal.runner.tasks.usage import priced_usage
from tests.programs import import_optional
from tests.security.replies import replying

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
    "empty": message(),
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


def events_of(reply: dict[str, Any]) -> list[dict[str, Any]]:
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


def encode(stream: Sequence[dict[str, Any]]) -> bytes:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in stream).encode()


def read_stream(content: bytes) -> Answer:
    reply = Reply(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
    reply.feed(content)
    return Anthropic().read_stream(reply.chunks())


def read_by_sdk(content: bytes, *, stream: bool) -> Any:
    """Return the message that Anthropic's SDK reads."""
    anthropic = import_optional("anthropic")
    options = {"model": MODEL, "max_tokens": 10, "messages": [{"role": "user", "content": "q"}]}
    with replying(content, "text/event-stream" if stream else "application/json") as server:
        client = anthropic.Anthropic(base_url=server.url, api_key="key", max_retries=0)
        if not stream:
            return client.messages.create(**options)
        with client.messages.stream(**options) as events_of_message:
            return events_of_message.get_final_message()


@pytest.mark.parametrize("stream", [False, True], ids=["reply", "stream"])
@pytest.mark.parametrize("name", REPLIES)
def test_the_sdk_reads_the_same(name: str, *, stream: bool) -> None:
    """Text, tool calls, usage, model and stop reason are those that Anthropic's SDK reads from the same bytes."""
    content = encode(events_of(REPLIES[name])) if stream else json.dumps(REPLIES[name]).encode()
    answer = read_stream(content) if stream else Anthropic().read(json.loads(content))
    expected = read_by_sdk(content, stream=stream)

    assert "".join(block.text for block in expected.content if block.type == "text") == answer.text
    assert [(block.id, block.name, block.input) for block in expected.content if block.type == "tool_use"] == [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])) for call in answer.tool_calls
    ]
    assert expected.usage.model_dump(exclude_none=True) == answer.usage
    assert (expected.model, expected.stop_reason) == (answer.model, answer.finish_reason)
    assert OUTCOMES.get(name, "complete") == answer.outcome


def test_the_stream_equals_the_reply() -> None:
    """An answer is the same with and without streaming, also the text of a tool's arguments."""
    assert [Anthropic().read(reply) for reply in REPLIES.values()] == [
        read_stream(encode(events_of(reply))) for reply in REPLIES.values()
    ]


def test_a_refusal_is_explained() -> None:
    """The explanation of a refusal is recorded apart from the text, which is the model's."""
    details = {"type": "refusal", "category": "cyber", "explanation": "It could enable harm."}
    answer = Anthropic().read(message(stop_reason="refusal", stop_details=details))

    assert ("", "It could enable harm.") == (answer.text, answer.explanation)


def test_a_truncated_tool_call_of_a_stream() -> None:
    """The arguments of a tool call that the token limit interrupts stay as they are; without a limit, they are invalid."""
    stream = events_of(message(CALL, stop_reason="max_tokens"))
    del stream[-4]  # The last part of the arguments.
    answer = read_stream(encode(stream))
    stream[-2]["delta"]["stop_reason"] = "tool_use"

    assert ("truncated", '{"city": ') == (answer.outcome, answer.tool_calls[0]["function"]["arguments"])
    with pytest.raises(InvalidReply):
        read_stream(encode(stream))


def test_the_fast_mode_has_no_price_of_the_table() -> None:
    """A call in the fast mode, which costs more, is not priced as others are."""
    answer = Anthropic().read(message(text_block("Lima"), usage={**USAGE, "speed": "fast"}))

    assert 1 == priced_usage(answer.usage, MODEL, read_prices(DEFAULT_PRICES), answer.service_tier)["unpriced_calls"]


@pytest.mark.parametrize(
    ("kind", "category"),
    [
        ("overloaded_error", "unavailable"),
        ("api_error", "unavailable"),
        ("timeout_error", "unavailable"),
        ("rate_limit_error", "rate_limited"),
    ],
)
def test_an_error_within_a_stream(kind: str, category: str) -> None:
    """An `error` event after the start of an answer is classified by its type, because the status was 200."""
    error = {"type": "error", "error": {"type": kind, "message": "no"}, "request_id": "req-1"}
    with pytest.raises(ErrorReply) as caught:
        read_stream(encode([*events_of(REPLIES["several texts"])[:5], error]))

    assert category == classify(caught.value, now=0.0).category


@pytest.mark.parametrize(
    "reply",
    [
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
        message({"type": "hologram"}, SEARCH),
    ],
)
def test_a_reply_without_an_answer(reply: Any) -> None:
    """A reply of another form, or one that has only blocks of unknown types, is invalid."""
    with pytest.raises(InvalidReply):
        Anthropic().read(reply)


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        ([], IncompleteReply),
        (events_of(REPLIES["several texts"])[:-1], IncompleteReply),
        ([{"type": "ping"}], IncompleteReply),
        ([{"type": "message_stop"}], InvalidReply),
        ([{"type": "message_start", "message": 7}], InvalidReply),
        ([{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x"}}], InvalidReply),
        ([{"type": "content_block_start", "index": [0], "content_block": text_block("")}], InvalidReply),
        (
            [
                *events_of(REPLIES["truncated"])[:3],
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta"}},
            ],
            InvalidReply,
        ),
        ([*events_of(REPLIES["truncated"])[:-2], {"type": "message_stop"}], InvalidReply),
    ],
)
def test_a_stream_without_its_end(stream: list[dict[str, Any]], error: type[Exception]) -> None:
    """A stream without `message_stop` is incomplete; one with events of another form is invalid."""
    with pytest.raises(error):
        read_stream(encode(stream))


def test_events_of_later_versions_are_skipped() -> None:
    """Events and deltas of unknown types do not change the answer."""
    stream = events_of(REPLIES["truncated"])
    stream.insert(1, {"type": "weather_report"})
    stream.insert(4, {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": {}}})

    assert "Li" == read_stream(encode(stream)).text


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


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([{"role": "assistant", "tool_calls": [{"id": 1}]}], "tool call"),
        ([{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "["}}]}], "tool call"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}}]}], "data:image/png;base64"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png,x"}}]}], "base64"),
        ([{"role": "user", "content": [{"type": "file", "file": {"file_data": "data:a/b;base64,AA"}}]}], "takes images, PDF"),
        ([{"role": "user", "content": [{"type": "file", "file": {"file_data": "data:text/a;base64,A"}}]}], "not UTF-8"),
    ],
)
def test_unsupported_messages(messages: list[Any], error: str) -> None:
    """A message that cannot be converted is a usage error, which the check of the cases finds."""
    with pytest.raises(UsageError, match=error):
        Chat("anthropic:m", base_url="http://h").body(messages)


def test_unsupported_parameters() -> None:
    """A seed is a usage error when the task is defined."""
    with pytest.raises(UsageError, match="no seed"):
        Chat("anthropic:m", base_url="http://h", seed=1)


def test_the_key_is_sent_as_the_api_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is sent as `x-api-key`, a token as a bearer token; the key comes first, as in the SDK."""
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "a-token-of-anthropic")
    headers = dict(Chat("anthropic:m")._address.headers)  # No call leaves this machine.
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key-of-anthropic")
    headers_with_key = dict(Chat("anthropic:m")._address.headers)

    assert (b"Bearer a-token-of-anthropic", None) == (headers[b"Authorization"], headers.get(b"x-api-key"))
    assert (b"a-key-of-anthropic", None) == (headers_with_key[b"x-api-key"], headers_with_key.get(b"Authorization"))
    assert b"2023-06-01" == headers[b"anthropic-version"]
