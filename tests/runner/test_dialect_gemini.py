"""Gemini's generateContent API: its requests, and replies that `test_dialect_replies` compares with Google's SDK."""

import base64
import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from evaljournal.journal.events import StepCompleted
from evaljournal.replay.provider import messages
from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.calls.dialects.dialect import Answer
from evaljournal.runner.calls.dialects.gemini import Gemini
from evaljournal.runner.calls.http.reply import ErrorReply
from evaljournal.runner.steps.model_calls import StepReply
from tests.dialects import encode, read_stream
from tests.programs import import_optional
from tests.runs import define_real, events, outputs, run_real
from tests.security.replies import replying
from tests.server import Server

NAME: Final = "gemini"
DIALECT: Final = Gemini()
MODEL: Final = "gemini-3.8-flash"
USAGE: Final = {
    "promptTokenCount": 1000,
    "cachedContentTokenCount": 600,
    "toolUsePromptTokenCount": 50,
    "candidatesTokenCount": 30,
    "thoughtsTokenCount": 60,
    "totalTokenCount": 1140,
}
THOUGHT: Final = {"text": "Peru …", "thought": True}
SIGNATURE: Final = base64.b64encode(b"signature").decode()
CALL: Final = {"functionCall": {"id": "fc-1", "name": "weather", "args": {"city": "Lima", "days": [1, 2.5]}}}


def reply_of(*parts: Any, reason: Any = "STOP", **fields: Any) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": reason, "index": 0}
    return {
        "candidates": [candidate],
        "usageMetadata": USAGE,
        "modelVersion": f"{MODEL}-001",
        "responseId": "response-1",
        **fields,
    }


def text(*texts: str) -> list[dict[str, Any]]:
    return [{"text": item} for item in texts]


REPLIES: Final = {
    "several texts": reply_of(THOUGHT, *text("Li", "ma"), THOUGHT, *text(".")),
    "function calls": reply_of(THOUGHT, {**CALL, "thoughtSignature": SIGNATURE}, {"functionCall": {"name": "time"}}),
    "text and a function call": reply_of(*text("Let me look."), CALL),
    "unknown parts": reply_of({"executableCode": {"language": "PYTHON", "code": "1"}}, *text("Lima")),
    "only reasoning": reply_of(THOUGHT, reason="MAX_TOKENS"),
    "truncated": reply_of(*text("Li"), reason="MAX_TOKENS"),
    "filtered": reply_of(*text("First, take"), reason="SAFETY"),
    "recitation": reply_of(reason="RECITATION"),
    "private": reply_of(reason="SPII"),
    "too many rounds of tools": reply_of(*text("Li"), reason="TOO_MANY_TOOL_CALLS"),
    "empty": reply_of(*text("")),
}
OUTCOMES: Final = {
    "only reasoning": "truncated",
    "truncated": "truncated",
    "too many rounds of tools": "truncated",
    "filtered": "declined",
    "recitation": "declined",
    "private": "declined",
}


def chunks_of(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the chunks of a reply, as the API sends them: counts grow, and the last chunk has the reason."""
    (candidate,) = reply["candidates"]
    further = {name: reply[name] for name in ("modelVersion", "responseId")}
    pieces = [
        {**part, "text": letter} if "text" in part else part
        for part in candidate["content"]["parts"]
        for letter in (part.get("text", "x") or [""])
    ]
    chunks: list[dict[str, Any]] = [
        {
            "candidates": [{"content": {"role": "model", "parts": [piece]}, "index": 0}],
            "usageMetadata": {"promptTokenCount": 1000, "totalTokenCount": 1000 + number},
            **further,
        }
        for number, piece in enumerate(pieces)
    ]
    last = {**candidate, "content": {"role": "model", "parts": [{"text": ""}]}}
    return [*chunks, {"candidates": [last], "usageMetadata": reply["usageMetadata"], **further}]


def read_by_sdk(content: bytes, *, stream: bool) -> tuple[Any, ...]:
    """Return text, tool calls, usage, model and finish reason that Google's SDK reads."""
    genai = import_optional("google.genai")
    with replying(content, "text/event-stream" if stream else "application/json") as server:
        client = genai.Client(api_key="key", http_options={"base_url": server.url})
        if stream:
            replies = list(client.models.generate_content_stream(model=MODEL, contents="q"))
        else:
            replies = [client.models.generate_content(model=MODEL, contents="q")]
    parts = [part for reply in replies for part in reply.candidates[0].content.parts or ()]
    text = "".join(part.text for part in parts if part.text and not part.thought)
    function_calls = enumerate((part.function_call for part in parts if part.function_call), 1)
    calls = [(call.id or f"call-{number}", call.name, call.args or {}) for number, call in function_calls]
    usage = replies[-1].usage_metadata.model_dump(by_alias=True, exclude_none=True)
    return text, calls, usage, replies[-1].model_version, replies[-1].candidates[0].finish_reason.value


def test_the_first_candidate_of_a_stream() -> None:
    """Of several candidates, the one with index 0 is the answer, although a chunk may have only others."""
    other = {"content": {"parts": text("No")}, "finishReason": "MAX_TOKENS", "index": 1}
    chunks = chunks_of(reply_of(*text("Lima")))
    chunks = [
        chunks[0],
        {**chunks[0], "candidates": [other]},
        {**chunks[1], "candidates": [other, *chunks[1]["candidates"]]},
        *chunks[2:],
    ]

    assert ("Lima", "complete") == ((answer := read_stream(DIALECT, chunks)).text, answer.outcome)


@pytest.mark.parametrize("stream", [False, True], ids=["reply", "stream"])
def test_a_blocked_prompt(*, stream: bool) -> None:
    """A reply without candidates, whose prompt was blocked, is declined, with an empty text."""
    counts = {"promptTokenCount": 1000, "totalTokenCount": 1000}
    feedback = {"blockReason": "PROHIBITED_CONTENT", "blockReasonMessage": "The prompt was blocked."}
    reply = {"promptFeedback": feedback, "usageMetadata": counts, "modelVersion": MODEL}
    answer = read_stream(DIALECT, [reply]) if stream else DIALECT.read(reply)

    assert answer == Answer(
        text="",
        tool_calls=[],
        outcome="declined",
        finish_reason="PROHIBITED_CONTENT",
        explanation="The prompt was blocked.",
        model=MODEL,
        usage=counts,
    )


@pytest.mark.parametrize("reason", ["OTHER", "MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE", "NEW"])
def test_reasons_that_are_errors(reason: str) -> None:
    """An answer that failed, or that ended for an unknown reason, is an error."""
    with pytest.raises(ErrorReply):
        DIALECT.read(reply_of(*text("Li"), reason=reason))


INVALID_REPLIES: Final[list[Any]] = [
    None,
    [],
    {},
    {"choices": [{"message": {"content": "Lima"}, "finish_reason": "stop"}]},
    {"content": [{"type": "text", "text": "Lima"}], "stop_reason": "end_turn"},
    {"candidates": []},
    {"candidates": {}},
    {"candidates": [7]},
    {"promptFeedback": {}},
    {"promptFeedback": {"blockReason": 7}},
    reply_of(*text("Lima"), reason=None),
    reply_of(*text("Lima"), reason=["STOP"]),
    reply_of(candidates=[{"content": "Lima", "finishReason": "STOP"}]),
    reply_of(candidates=[{"content": {"parts": "Lima"}, "finishReason": "STOP"}]),
    reply_of({"text": 7}),
    reply_of("Lima"),
    *(reply_of({"functionCall": {"name": "f", **fields}}) for fields in ({"name": None}, {"args": "{}"}, {"id": 7})),
    reply_of({"functionCall": {"name": "f", "partialArgs": []}}),
]
EMPTY_REPLIES: Final = [
    reply_of(),
    reply_of({}),
    reply_of(THOUGHT, {"thoughtSignature": SIGNATURE}),
    reply_of({"hologram": {}}),
    reply_of(candidates=[{"finishReason": "STOP", "index": 0}]),
]
INCOMPLETE_STREAMS: Final = [chunks_of(REPLIES["several texts"])[:-1], [{"usageMetadata": USAGE}]]
INVALID_STREAMS: Final = [
    [{"candidates": [{"content": {"parts": 7}}]}],
    [{"candidates": [{"content": "Lima", "finishReason": "STOP"}]}],
    [{"candidates": [{"finishReason": 7}]}],
    *([reply] for reply in EMPTY_REPLIES),
]


SCHEMA: Final = {"type": "object", "properties": {"answer": {"type": "string"}}, "additionalProperties": False}
TOOL: Final = {
    "name": "weather",
    "description": "The weather",
    "parametersJsonSchema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def test_the_request(server: Server, name: str) -> None:
    """Messages, tool calls, images, files and parameters are sent as Google's SDK sends them."""
    chat = Chat(
        f"gemini:{MODEL}",
        base_url="http://h",
        temperature=0.5,
        max_tokens=50,
        effort="low",
        seed=7,
        schema=SCHEMA,
        extra_body={"tools": [{"functionDeclarations": [TOOL]}], "generationConfig": {"topP": 0.9}},
    )
    call = {"id": "fc-1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Lima"}'}}
    signed_call = {**call, "extra_content": {"google": {"thought_signature": SIGNATURE}}}
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,BBBB"}},
        {"type": "image_url", "image_url": {"url": "https://h/a.png"}},
        {"text": "As it is."},
    ]
    body = chat.body(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": "Be exact."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi"},
            {"role": "user", "content": parts},
            {"role": "assistant", "content": "", "tool_calls": [signed_call, {**call, "id": "fc-2"}]},
            {"role": "tool", "tool_call_id": "fc-1", "content": "sunny"},
            {"role": "tool", "tool_call_id": "fc-2", "content": "rain"},
            {"role": "user", "content": "And then?"},
        ]
    )

    assert _with_json_names(_sent_by_sdk(server, name)) == body


def _with_json_names(value: Any) -> Any:
    """Return a body with keys such as `mimeType`; the SDK also sends `mime_type`, and the API takes both."""
    if isinstance(value, list):
        return [_with_json_names(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {re.sub("_([a-z])", lambda match: match[1].upper(), name): _with_json_names(item) for name, item in value.items()}


def _sent_by_sdk(server: Server, name: str) -> Any:
    """Return the body that Google's SDK sends for the same conversation."""
    genai = import_optional("google.genai")
    call = {"id": "fc-1", "name": "weather", "args": {"city": "Lima"}}
    image, document = (
        {"inline_data": {"data": base64.b64decode(data), "mime_type": media_type}}
        for data, media_type in (("AAAA", "image/png"), ("BBBB", "application/pdf"))
    )
    file = {"file_data": {"file_uri": "https://h/a.png"}}
    calls = [{"function_call": call, "thought_signature": b"signature"}, {"function_call": {**call, "id": "fc-2"}}]
    results = [
        {"function_response": {"id": call_id, "name": "weather", "response": {"result": result}}}
        for call_id, result in (("fc-1", "sunny"), ("fc-2", "rain"))
    ]
    turns = [
        ("user", text("Hello")),
        ("model", text("Hi")),
        ("user", [*text("What is this?"), image, document, file, *text("As it is.")]),
        ("model", calls),
        ("user", [*results, *text("And then?")]),
    ]
    contents = [{"role": role, "parts": parts} for role, parts in turns]
    config = {
        "system_instruction": {"parts": text("Be brief.", "Be exact.")},
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 50,
        "seed": 7,
        "thinking_config": {"thinking_level": "low"},
        "response_mime_type": "application/json",
        "response_json_schema": SCHEMA,
        "tools": [{"function_declarations": [TOOL]}],
    }
    client = genai.Client(api_key="key", http_options={"base_url": server.url(name, "ok", "")})
    client.models.generate_content(model=MODEL, contents=contents, config=config)
    (request,) = server.requests(name)
    return json.loads(request["body"])


def test_the_model_is_part_of_the_definition() -> None:
    """Two models have two definitions, although the model is not in the body of a call."""
    assert ["a", "b"] == [Chat(f"gemini:{model}", base_url="http://h").definition["model"] for model in "ab"]


@pytest.mark.parametrize("stream", [False, True], ids=["reply", "stream"])
def test_calls_of_the_sdk_are_steps(server: Server, path: Path, name: str, *, stream: bool) -> None:
    """With `durable="http"`, a call of Google's SDK is a step with its messages and a priced usage."""
    genai = import_optional("google.genai")

    def ask(question: str) -> str:
        client = genai.Client(api_key="key", http_options={"base_url": server.url(name, "sse" if stream else "ok", "")})
        if stream:
            replies = client.models.generate_content_stream(model=MODEL, contents=question)
        else:
            replies = [client.models.generate_content(model=MODEL, contents=question)]
        return "".join(reply.text or "" for reply in replies)

    run_real(define_real(ask, durable="http"), path)

    (step,) = events(path, StepCompleted)
    method = "streamGenerateContent" if stream else "generateContent"
    assert ["LIMA"] == outputs(path)
    assert ("model", f"{method} {MODEL}") == (step.kind, step.name)
    assert [messages.Message("user", "lima")] == messages.messages_of(step.input)
    assert messages.Message("assistant", "LIMA") == messages.reply_of(step.output)
    assert (1000, 100) == (step.usage["input_tokens"], step.usage["output_tokens"])
    assert step.usage["cost"] > 0


@pytest.mark.parametrize("media_type", ["text/event-stream", "text/plain", "application/json"])
def test_the_media_type_of_a_stream(path: Path, media_type: str) -> None:
    """A stream is a step with its usage also if a proxy changes its media type."""
    genai = import_optional("google.genai")
    body = encode(chunks_of(reply_of(*text("Lima"))))
    with replying(body, media_type) as replies:
        options = {"base_url": replies.url}

        def ask(question: str) -> str:
            client = genai.Client(api_key="key", http_options=options)
            return "".join(reply.text or "" for reply in client.models.generate_content_stream(model=MODEL, contents=question))

        run_real(define_real(ask, durable="http"), path)

    (step,) = events(path, StepCompleted)
    assert ["Lima"] == outputs(path)
    assert (1050, 90) == (step.usage["input_tokens"], step.usage["output_tokens"])


def test_a_stream_without_events_is_a_list() -> None:
    """Without `alt=sse`, a stream is a JSON list of replies: its usage is that of the last one, its text that of all."""
    reply = StepReply(200, {"content-type": "application/json; charset=UTF-8", "transfer-encoding": "chunked"})
    reply.feed(json.dumps(chunks_of(reply_of(*text("Lima")))).encode())
    reply.end()
    output = reply.step_output()

    assert (1050, 90) == (reply.usage()["input_tokens"], reply.usage()["output_tokens"])
    assert messages.Message("assistant", "Lima") == messages.reply_of(output)
    assert "stop" == messages.finish_reason_of(output)


def test_a_stream_that_is_closed_before_its_end_is_no_step() -> None:
    """A stream that only its closed connection ends is complete if it has a finish reason."""
    chunks = chunks_of(reply_of(*text("Lima")))
    is_complete = []
    for stream in (chunks, chunks[:-1]):
        reply = StepReply(200, {"content-type": "text/event-stream"})
        reply.feed(encode(stream))
        reply.end()
        is_complete.append(reply.is_complete)

    assert [True, False] == is_complete


@pytest.mark.parametrize("stream", [False, True], ids=["reply", "stream"])
def test_async_calls_of_the_sdk_are_steps(server: Server, path: Path, name: str, *, stream: bool) -> None:
    """An async call of Google's SDK with an httpx client is a step, although aiohttp, which the SDK prefers, is installed."""
    genai, httpx, _ = map(import_optional, ("google.genai", "httpx", "aiohttp"))

    async def ask(question: str) -> str:
        url = server.url(name, "sse" if stream else "ok", "")
        async with httpx.AsyncClient() as http_client:
            client = genai.Client(api_key="key", http_options={"base_url": url, "httpx_async_client": http_client})
            if not stream:
                return str((await client.aio.models.generate_content(model=MODEL, contents=question)).text)
            replies = await client.aio.models.generate_content_stream(model=MODEL, contents=question)
            return "".join([reply.text or "" async for reply in replies])

    run_real(define_real(ask, durable="http"), path)

    assert ["LIMA"] == outputs(path)
    assert 1 == len(events(path, StepCompleted))
