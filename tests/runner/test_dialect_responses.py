"""The Responses API: requests, replies and streams, compared with OpenAI's SDK, which reads the same bytes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from evaljournal import Case, UsageError
from evaljournal.journal.events import AttemptFailed
from evaljournal.runner.http.reply import ErrorReply, IncompleteReply, InvalidReply, Reply
from evaljournal.runner.retries.classify import classify
from evaljournal.runner.tasks.chat import Chat
from evaljournal.runner.tasks.dialects.dialect import Answer
from evaljournal.runner.tasks.dialects.responses import Responses
from tests.programs import import_optional
from tests.runs import define_real, events, run_real
from tests.security.replies import replying

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
    "empty": response(message()),
}
OUTCOMES: Final = {
    "refusal": "declined",
    "filtered": "declined",
    "only reasoning": "truncated",
    "truncated": "truncated",
    "another reason": "truncated",
}


def stream_of(reply: dict[str, Any]) -> bytes:
    """Return the events of a response, as the API sends them: several before its first token."""
    started = {**reply, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    events_of_stream: list[dict[str, Any]] = [
        {"type": "response.created", "response": started},
        {"type": "response.in_progress", "response": started},
    ]
    for index, item in enumerate(reply["output"]):
        position = {"item_id": item["id"], "output_index": index}
        events_of_stream.append({"type": "response.output_item.added", "output_index": index, "item": {**item, "content": []}})
        for content_index, part in enumerate(item.get("content", [])):
            place = {**position, "content_index": content_index}
            delta = {"type": "response.output_text.delta", **place, "logprobs": []}
            events_of_stream += [{**delta, "delta": letter} for letter in part.get("text", "")]
        if "arguments" in item:
            events_of_stream.append({"type": "response.function_call_arguments.delta", **position, "delta": item["arguments"]})
        events_of_stream.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events_of_stream.append({"type": f"response.{reply['status']}", "response": reply})
    return encode(events_of_stream)


def encode(events_of_stream: Sequence[dict[str, Any]]) -> bytes:
    texts = [
        f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n"
        for number, event in enumerate(events_of_stream)
    ]
    return "".join(texts).encode()


def read_stream(content: bytes) -> Answer:
    reply = Reply(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
    reply.feed(content)
    return Responses().read_stream(reply.chunks())


def read_by_sdk(content: bytes, *, stream: bool) -> Any:
    """Return what OpenAI's SDK reads: the response, or that of the last event."""
    openai = import_optional("openai")
    with replying(content, "text/event-stream" if stream else "application/json") as server:
        client = openai.OpenAI(base_url=server.url, api_key="key", max_retries=0)
        reply = client.responses.create(model="m", input="q", stream=stream)
        return list(reply)[-1].response if stream else reply


@pytest.mark.parametrize("stream", [False, True], ids=["reply", "stream"])
@pytest.mark.parametrize("name", REPLIES)
def test_the_sdk_reads_the_same(name: str, *, stream: bool) -> None:
    """Text, tool calls, usage, model and status are those that OpenAI's SDK reads from the same bytes."""
    reply = REPLIES[name]
    content = stream_of(reply) if stream else json.dumps(reply).encode()
    answer = read_stream(content) if stream else Responses().read(json.loads(content))
    expected = read_by_sdk(content, stream=stream)
    calls = [item for item in expected.output if item.type == "function_call"]
    refusals = [
        part.refusal for item in expected.output if item.type == "message" for part in item.content if part.type == "refusal"
    ]

    assert (expected.output_text or "".join(refusals)) == answer.text
    assert [(call.call_id, call.name, call.arguments) for call in calls] == [
        (call["id"], call["function"]["name"], call["function"]["arguments"]) for call in answer.tool_calls
    ]
    assert expected.usage.model_dump(exclude_none=True) == answer.usage
    assert (expected.model, expected.service_tier) == (answer.model, answer.service_tier)
    assert OUTCOMES.get(name, "complete") == answer.outcome
    assert (expected.status == "incomplete") == bool(answer.finish_reason)


@pytest.mark.parametrize(
    ("code", "category"),
    [
        ("server_error", "unavailable"),
        ("rate_limit_exceeded", "rate_limited"),
        ("vector_store_timeout", "unavailable"),
        ("invalid_prompt", "fatal"),
        ("invalid_base64_image", "fatal"),
        ("image_content_policy_violation", "fatal"),
        ("failed_to_download_image", "error"),
    ],
)
def test_a_failed_response(code: str, category: str) -> None:
    """A response that failed, and the events `error` and `response.failed`, are classified by the code of the error."""
    error = {"code": code, "message": "no"}
    reply = response(status="failed", error=error)
    failures: list[str] = []
    for content in (
        encode([{"type": "response.failed", "response": reply}]),
        encode([{"type": "error", **error, "param": None}]),
        f"data: {json.dumps({'type': 'error', **error})}\n\n".encode(),
    ):
        with pytest.raises(ErrorReply) as caught:
            read_stream(content)
        failures.append(classify(caught.value, now=0.0).category)

    assert [category] * 3 == failures


def test_an_error_with_status_200(path: Path) -> None:
    """A failed response is an error of the attempt, whatever the status of the reply."""
    reply = json.dumps(response(status="failed", error={"code": "invalid_prompt", "message": "no"})).encode()
    with replying(reply) as server:
        run_real(define_real(Chat("responses:m", base_url=server.url)), path)

    assert [("evaljournal.ErrorReply", "fatal")] == [(event.error, event.category) for event in events(path, AttemptFailed)]


@pytest.mark.parametrize(
    "reply",
    [
        [],
        {"choices": []},
        {"output": "Lima"},
        response(),
        response(REASONING),
        response(message(text_part("Lima")), status="queued"),
        response(message(text_part("Lima")), status=["completed"]),
        response({"type": "message", "content": "Lima"}),
        response(message({"type": "output_text", "text": 7})),
        response({**CALL, "arguments": {}}),
        response(None, 7, "message"),
    ],
)
def test_a_reply_without_an_answer(reply: Any) -> None:
    """A reply of another form, or one without a message and a tool call, is invalid."""
    with pytest.raises(InvalidReply):
        Responses().read(reply)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", IncompleteReply),
        (stream_of(REPLIES["several texts"]).rpartition(b"event:")[0], IncompleteReply),
        (b"data: [1]\n\n", InvalidReply),
        (b"data: x\n\n", InvalidReply),
        (b'data: {"choices": []}\n\n', InvalidReply),
        (b'data: {"type": "response.completed"}\n\n', InvalidReply),
    ],
)
def test_a_stream_without_its_end(content: bytes, error: type[Exception]) -> None:
    """A stream without its last event is incomplete; one of another API is invalid."""
    with pytest.raises(error):
        read_stream(content)


@pytest.mark.parametrize(("name", "event"), [("several texts", "output_text"), ("tool calls", "function_call_arguments")])
def test_the_first_token(name: str, event: str) -> None:
    """The events before the first delta have no token."""
    match = Responses.first_token.search(stream_of(REPLIES[name]))

    assert match is not None
    assert f'"response.{event}.delta"'.encode() == match[0]


def test_items_that_are_sent_once() -> None:
    """If the last event has no items, those of the earlier events are read."""
    reply = REPLIES["text and a tool call"]
    done = [
        {"type": "response.output_item.done", "output_index": index, "item": item} for index, item in enumerate(reply["output"])
    ]
    answer = read_stream(encode([*done, {"type": "response.completed", "response": {**reply, "output": []}}]))

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


def test_unsupported_parameters_and_messages() -> None:
    """A seed is a usage error when the task is defined, and an invalid tool call when the cases are checked."""
    with pytest.raises(UsageError, match="has no seed"):
        Chat("responses:m", base_url="http://h", seed=1)
    with pytest.raises(UsageError, match="invalid tool call"):
        Chat("responses:m", base_url="http://h").check(Case(input=[{"role": "assistant", "tool_calls": [{"id": 1}]}]))
