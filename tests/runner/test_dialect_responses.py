"""The Responses API: its requests, and replies that `test_dialect_replies` compares with OpenAI's SDK."""

import json
from typing import Any, Final

import pytest

from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.calls.dialects.responses import Responses
from tests.dialects import encode, read_stream
from tests.programs import import_optional
from tests.security.replies import replying

NAME: Final = "responses"
DIALECT: Final = Responses()
USAGE: Final = {
    "input_tokens": 1000,
    "input_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 300},
    "output_tokens": 100,
    "output_tokens_details": {"reasoning_tokens": 60},
    "total_tokens": 1100,
}
REASONING: Final = {"type": "reasoning", "id": "rs-1", "summary": [{"type": "summary_text", "text": "Thinking."}]}
CALL: Final = {
    "type": "function_call",
    "id": "fc-1",
    "call_id": "call-1",
    "name": "weather",
    "arguments": '{"city": "Lima"}',
    "status": "completed",
}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def message(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "id": "msg-1", "role": "assistant", "status": "completed", "content": list(parts)}


def response(*items: Any, **fields: Any) -> dict[str, Any]:
    return {
        "id": "resp-1",
        "object": "response",
        "created_at": 1_790_000_000,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": "gpt-5.6-terra-2026-09-01",
        "service_tier": "default",
        "output": list(items),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": USAGE,
        **fields,
    }


def incomplete(reason: str, *items: Any) -> dict[str, Any]:
    return response(*items, status="incomplete", incomplete_details={"reason": reason})


REPLIES: Final = {
    "several texts": response(REASONING, message(text_part("Li"), text_part("ma")), message(text_part("."))),
    "tool calls": response(REASONING, CALL, {**CALL, "id": "fc-2", "call_id": "call-2", "arguments": "{}"}),
    "text and a tool call": response(message(text_part("Let me look.")), CALL),
    "unknown items and parts": response(
        {"type": "quantum_search", "id": "q-1"}, message({"type": "hologram"}, text_part("Lima"))
    ),
    "refusal": response(message({"type": "refusal", "refusal": "I cannot help with that."})),
    "only reasoning": incomplete("max_output_tokens", REASONING),
    "truncated": incomplete("max_output_tokens", message(text_part("Li"))),
    "filtered": incomplete("content_filter", message(text_part("Li"))),
    "another reason": incomplete("steered", message(text_part("Li"))),
    "empty": response(message(text_part(""))),
}
OUTCOMES: Final = {
    "refusal": "declined",
    "filtered": "declined",
    "only reasoning": "truncated",
    "truncated": "truncated",
    "another reason": "truncated",
}


ERROR_CODES: Final = {
    "server_error": "unavailable",
    "rate_limit_exceeded": "rate_limited",
    "vector_store_timeout": "unavailable",
    "invalid_prompt": "fatal",
    "invalid_base64_image": "fatal",
    "image_content_policy_violation": "fatal",
    "failed_to_download_image": "error",
}
"""Code of an error → category of the failure."""


def chunks_of(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a response, as the API sends them: several before its first token."""
    started = {**reply, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    chunks: list[dict[str, Any]] = [
        {"type": "response.created", "response": started},
        {"type": "response.in_progress", "response": started},
    ]
    for index, item in enumerate(reply["output"]):
        position = {"item_id": item["id"], "output_index": index}
        chunks.append({"type": "response.output_item.added", "output_index": index, "item": {**item, "content": []}})
        for content_index, part in enumerate(item.get("content", [])):
            place = {**position, "content_index": content_index}
            delta = {"type": "response.output_text.delta", **place, "logprobs": []}
            chunks += [{**delta, "delta": letter} for letter in part.get("text", "")]
        if "arguments" in item:
            chunks.append({"type": "response.function_call_arguments.delta", **position, "delta": item["arguments"]})
        chunks.append({"type": "response.output_item.done", "output_index": index, "item": item})
    chunks.append({"type": f"response.{reply['status']}", "response": reply})
    return [{**chunk, "sequence_number": number} for number, chunk in enumerate(chunks)]


def read_by_sdk(content: bytes, *, stream: bool) -> tuple[Any, ...]:
    """Return text, tool calls, usage, model and reason that OpenAI's SDK reads."""
    openai = import_optional("openai")
    with replying(content, "text/event-stream" if stream else "application/json") as server:
        client = openai.OpenAI(base_url=server.url, api_key="key", max_retries=0)
        reply = client.responses.create(model="m", input="q", stream=stream)
        reply = list(reply)[-1].response if stream else reply
    parts = [part for item in reply.output if item.type == "message" for part in item.content]
    text = reply.output_text or "".join(part.refusal for part in parts if part.type == "refusal")
    calls = [(item.call_id, item.name, json.loads(item.arguments)) for item in reply.output if item.type == "function_call"]
    reason = reply.incomplete_details.reason if reply.incomplete_details else ""
    return text, calls, reply.usage.model_dump(exclude_none=True), reply.model, reason


INVALID_REPLIES: Final[list[Any]] = [
    [],
    {"choices": []},
    {"output": "Lima"},
    response(message(text_part("Lima")), status="queued"),
    response(message(text_part("Lima")), status=["completed"]),
    response({"type": "message", "content": "Lima"}),
    response(message({"type": "output_text", "text": 7})),
    response({**CALL, "arguments": {}}),
]
EMPTY_REPLIES: Final = [
    response(),
    response(REASONING),
    response(message()),
    response(message({"type": "hologram"})),
    response(None, 7, "message"),
]
INCOMPLETE_STREAMS: Final = [chunks_of(REPLIES["several texts"])[:-1]]
INVALID_STREAMS: Final[list[Any]] = [
    [[1]],
    ["x"],
    [{"type": "response.completed"}],
    *([{"type": "response.completed", "response": reply}] for reply in EMPTY_REPLIES),
]


@pytest.mark.parametrize(("name", "event"), [("several texts", "output_text"), ("tool calls", "function_call_arguments")])
def test_the_first_token(name: str, event: str) -> None:
    """The events before the first delta have no token."""
    match = DIALECT.first_token.search(encode(chunks_of(REPLIES[name])))

    assert match is not None
    assert f'"response.{event}.delta"'.encode() == match[0]


def test_items_that_are_sent_once() -> None:
    """If the last event has no items, those of the earlier events are read."""
    reply = REPLIES["text and a tool call"]
    *chunks, completed = chunks_of(reply)
    answer = read_stream(DIALECT, [*chunks, {**completed, "response": {**reply, "output": []}}])

    assert ("Let me look.", ["call-1"]) == (answer.text, [call["id"] for call in answer.tool_calls])


def test_the_request() -> None:
    """Messages, tool calls, images, files and parameters have the types of OpenAI's SDK; nothing is stored."""
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    tool = {"type": "function", "name": "weather", "parameters": schema, "strict": True}
    chat = Chat(
        "responses:gpt-5.6-terra",
        base_url="http://h",
        temperature=0.5,
        max_tokens=50,
        effort="low",
        schema=schema,
        extra_body={"tools": [tool], "include": ["reasoning.encrypted_content"]},
    )
    call = {"id": "call-1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "http://h/a.png", "detail": "low"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
        {"type": "input_text", "text": "As it is."},
    ]
    body = chat.body(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello", "name": "u"},
            {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "user", "content": parts},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call-1", "content": "sunny"},
        ]
    )

    assert {
        "model": "gpt-5.6-terra",
        "input": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi"},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What is this?"},
                    {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
                    {"type": "input_image", "image_url": "http://h/a.png", "detail": "low"},
                    {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"},
                    {"type": "input_text", "text": "As it is."},
                ],
            },
            {"type": "function_call", "call_id": "call-1", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call-1", "output": "sunny"},
        ],
        "store": False,
        "temperature": 0.5,
        "max_output_tokens": 50,
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "output", "strict": True, "schema": schema}},
        "tools": [tool],
        "include": ["reasoning.encrypted_content"],
    } == body
    assert body == _checked_by_sdk(body)
    assert body["input"] == _checked_by_sdk({**body, "stream": True})["input"]


def _checked_by_sdk(body: dict[str, Any]) -> Any:
    """Return a body after validation by the SDK's types; a key or a type that they do not have raises an exception."""
    pydantic, params = import_optional("pydantic"), import_optional("openai.types.responses.response_create_params")
    name = "ResponseCreateParamsStreaming" if body.get("stream") else "ResponseCreateParamsNonStreaming"
    adapter = pydantic.TypeAdapter(pydantic.with_config(pydantic.ConfigDict(extra="forbid"))(getattr(params, name)))
    return json.loads(adapter.dump_json(adapter.validate_python(body, strict=True)))
