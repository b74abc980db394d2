"""Gemini's generateContent API: requests, replies and streams, compared with Google's SDK, which reads the same bytes."""

import base64
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from evaljournal import UsageError
from evaljournal.journal.events import AttemptFailed, StepCompleted
from evaljournal.replay import model_messages
from evaljournal.runner.http.reply import ErrorReply, IncompleteReply, InvalidReply, Reply
from evaljournal.runner.retries.classify import classify
from evaljournal.runner.tasks.chat import Chat
from evaljournal.runner.tasks.dialects.dialect import Answer
from evaljournal.runner.tasks.dialects.gemini import Gemini
from tests.programs import import_optional
from tests.runs import define_real, events, outputs, run_real
from tests.security.replies import replying
from tests.server import Server

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
    "empty": reply_of(),
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
        for letter in (part.get("text") or "x")
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


def encode(chunks: Sequence[dict[str, Any]]) -> bytes:
    return "".join(f"data: {json.dumps(chunk)}\r\n\r\n" for chunk in chunks).encode()


def read_stream(content: bytes) -> Answer:
    reply = Reply(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
    reply.feed(content)
    return Gemini().read_stream(reply.chunks())


def read_by_sdk(content: bytes, *, stream: bool) -> list[Any]:
    """Return the replies that Google's SDK reads: one, or those of a stream."""
    genai = import_optional("google.genai")
    with replying(content, "text/event-stream" if stream else "application/json") as server:
        client = genai.Client(api_key="key", http_options={"base_url": server.url})
        if stream:
            return list(client.models.generate_content_stream(model=MODEL, contents="q"))
        return [client.models.generate_content(model=MODEL, contents="q")]


@pytest.mark.parametrize("stream", [False, True], ids=["reply", "stream"])
@pytest.mark.parametrize("name", REPLIES)
def test_the_sdk_reads_the_same(name: str, *, stream: bool) -> None:
    """Text, function calls, usage, model and finish reason are those that Google's SDK reads from the same bytes."""
    content = encode(chunks_of(REPLIES[name])) if stream else json.dumps(REPLIES[name]).encode()
    answer = read_stream(content) if stream else Gemini().read(json.loads(content))
    expected = read_by_sdk(content, stream=stream)
    parts = [part for reply in expected for part in reply.candidates[0].content.parts or ()]
    calls = [part.function_call for part in parts if part.function_call]

    assert "".join(part.text for part in parts if part.text and not part.thought) == answer.text
    assert [(call.id or f"call-{number}", call.name, call.args or {}) for number, call in enumerate(calls, 1)] == [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])) for call in answer.tool_calls
    ]
    assert expected[-1].usage_metadata.model_dump(by_alias=True, exclude_none=True) == answer.usage
    assert (expected[-1].model_version, expected[-1].candidates[0].finish_reason.value) == (answer.model, answer.finish_reason)
    assert (OUTCOMES.get(name, "complete"), "") == (answer.outcome, answer.fingerprint)


def test_the_stream_equals_the_reply() -> None:
    """An answer is the same with and without streaming."""
    assert [Gemini().read(reply) for reply in REPLIES.values()] == [
        read_stream(encode(chunks_of(reply))) for reply in REPLIES.values()
    ]


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

    assert ("Lima", "complete") == ((answer := read_stream(encode(chunks))).text, answer.outcome)


@pytest.mark.parametrize("stream", [False, True], ids=["reply", "stream"])
def test_a_blocked_prompt(*, stream: bool) -> None:
    """A reply without candidates, whose prompt was blocked, is declined, with an empty text."""
    counts = {"promptTokenCount": 1000, "totalTokenCount": 1000}
    feedback = {"blockReason": "PROHIBITED_CONTENT", "blockReasonMessage": "The prompt was blocked."}
    reply = {"promptFeedback": feedback, "usageMetadata": counts, "modelVersion": MODEL}
    answer = read_stream(encode([reply])) if stream else Gemini().read(reply)

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
def test_reasons_that_are_errors(path: Path, reason: str) -> None:
    """An answer that failed, or that ended for an unknown reason, is an error of the attempt, which is retried."""
    with replying(json.dumps(reply_of(*text("Li"), reason=reason)).encode()) as server:
        run_real(define_real(Chat("gemini:m", base_url=server.url)), path)

    assert [("evaljournal.ErrorReply", "error")] == [(event.error, event.category) for event in events(path, AttemptFailed)]


@pytest.mark.parametrize(
    ("code", "category"), [(503, "unavailable"), (500, "unavailable"), (429, "rate_limited"), (400, "fatal")]
)
def test_an_error_within_a_stream(code: int, category: str) -> None:
    """An error after the start of a stream is classified by its code."""
    error = {"error": {"code": code, "message": "no", "status": "X"}}
    with replying(encode([*chunks_of(REPLIES["truncated"])[:1], error]), "text/event-stream") as server:
        chat = Chat("gemini:m", base_url=server.url, stream=True)
        with pytest.raises(ErrorReply) as caught:
            trio.run(chat, "lima")

    assert category == classify(caught.value, now=0.0).category


@pytest.mark.parametrize(
    "reply",
    [
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
        reply_of({"functionCall": {"name": None}}),
        reply_of({"functionCall": {"name": "f", "args": "{}"}}),
        reply_of({"functionCall": {"name": "f", "id": 7}}),
        reply_of({"functionCall": {"name": "f", "partialArgs": []}}),
        reply_of({"hologram": {}}),
    ],
)
def test_a_reply_without_an_answer(reply: Any) -> None:
    """A reply of another form, or one that has only parts of unknown types, is invalid."""
    with pytest.raises(InvalidReply):
        Gemini().read(reply)


@pytest.mark.parametrize(
    ("chunks", "error"),
    [
        ([], IncompleteReply),
        (chunks_of(REPLIES["several texts"])[:-1], IncompleteReply),
        ([{"usageMetadata": USAGE}], IncompleteReply),
        ([{"candidates": [{"content": {"parts": 7}}]}], InvalidReply),
        ([{"candidates": [{"content": "Lima", "finishReason": "STOP"}]}], InvalidReply),
        ([{"choices": []}], InvalidReply),
        ([{"candidates": [{"finishReason": 7}]}], InvalidReply),
    ],
)
def test_a_stream_without_its_end(chunks: list[dict[str, Any]], error: type[Exception]) -> None:
    """A stream without a finish reason is incomplete; one with chunks of another form is invalid."""
    with pytest.raises(error):
        read_stream(encode(chunks))


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
    types = genai.types
    calls = [types.FunctionCall(id=call_id, name="weather", args={"city": "Lima"}) for call_id in ("fc-1", "fc-2")]
    results = [
        types.FunctionResponse(id=call_id, name="weather", response={"result": result})
        for call_id, result in (("fc-1", "sunny"), ("fc-2", "rain"))
    ]
    contents = [
        types.Content(role="user", parts=[types.Part(text="Hello")]),
        types.Content(role="model", parts=[types.Part(text="Hi")]),
        types.Content(
            role="user",
            parts=[
                types.Part(text="What is this?"),
                types.Part.from_bytes(data=base64.b64decode("AAAA"), mime_type="image/png"),
                types.Part.from_bytes(data=base64.b64decode("BBBB"), mime_type="application/pdf"),
                types.Part(file_data=types.FileData(file_uri="https://h/a.png")),
                types.Part(text="As it is."),
            ],
        ),
        types.Content(
            role="model",
            parts=[types.Part(function_call=calls[0], thought_signature=b"signature"), types.Part(function_call=calls[1])],
        ),
        types.Content(
            role="user", parts=[*(types.Part(function_response=result) for result in results), types.Part(text="And then?")]
        ),
    ]
    declaration = {
        "name": TOOL["name"],
        "description": TOOL["description"],
        "parameters_json_schema": TOOL["parametersJsonSchema"],
    }
    config = types.GenerateContentConfig(
        system_instruction=types.Content(parts=[types.Part(text="Be brief."), types.Part(text="Be exact.")]),
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=50,
        seed=7,
        thinking_config=types.ThinkingConfig(thinking_level="low"),
        response_mime_type="application/json",
        response_json_schema=SCHEMA,
        tools=[types.Tool(function_declarations=[types.FunctionDeclaration(**declaration)])],
    )
    client = genai.Client(api_key="key", http_options={"base_url": server.url(name, "ok", "")})
    client.models.generate_content(model=MODEL, contents=contents, config=config)
    (request,) = server.requests(name)
    return json.loads(request["body"])


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([{"role": "assistant", "tool_calls": [{"id": 1}]}], "tool call"),
        ([{"role": "tool", "tool_call_id": "fc-1", "content": "x"}], "no tool call before the message"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}}]}], "data:image/png;base64"),
        ([{"role": "user", "content": [{"type": "hologram"}]}], "takes texts, images and files"),
    ],
)
def test_unsupported_messages(messages: list[Any], error: str) -> None:
    """A message that cannot be converted is a usage error, which the check of the cases finds."""
    with pytest.raises(UsageError, match=error):
        Chat("gemini:m", base_url="http://h").body(messages)


def test_the_key_is_sent_as_the_api_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either variable is read; `GOOGLE_API_KEY` comes first, as in the SDK."""
    monkeypatch.setenv("GEMINI_API_KEY", "a-key-of-gemini")
    headers = dict(Chat("gemini:m")._address.headers)  # No call leaves this machine.
    monkeypatch.setenv("GOOGLE_API_KEY", "a-key-of-google")

    assert b"a-key-of-gemini" == headers[b"x-goog-api-key"]
    assert b"a-key-of-google" == dict(Chat("gemini:m")._address.headers)[b"x-goog-api-key"]


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
    assert [model_messages.Message("user", "lima")] == model_messages.messages_of(step.input)
    assert model_messages.Message("assistant", "LIMA") == model_messages.reply_of(step.output)
    assert (1000, 100) == (step.usage["input_tokens"], step.usage["output_tokens"])
    assert step.usage["cost"] > 0
