"""Replies and streams of the dialects, compared with the providers' SDKs, which read the same bytes; errors and keys."""

import json
from typing import Any

import pytest

from evaljournal import UsageError
from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.calls.http.reply import ErrorReply, IncompleteReply, InvalidReply
from evaljournal.runner.retries.classify import classify
from tests.dialects import encode, read_stream
from tests.runner import test_dialect_anthropic as anthropic
from tests.runner import test_dialect_gemini as gemini
from tests.runner import test_dialect_responses as responses

SAMPLES: list[Any] = [anthropic, gemini, responses]
"""Modules with replies of a dialect, and with what its SDK reads from them."""


@pytest.mark.parametrize("stream", [False, True], ids=["reply", "stream"])
@pytest.mark.parametrize(
    ("samples", "name"),
    [pytest.param(samples, name, id=f"{samples.NAME}-{name}") for samples in SAMPLES for name in samples.REPLIES],
)
def test_the_sdk_reads_the_same(samples: Any, name: str, *, stream: bool) -> None:
    """Text, tool calls, usage, model and finish reason are those that the SDK reads from the same bytes."""
    reply = samples.REPLIES[name]
    chunks = samples.chunks_of(reply)
    answer = read_stream(samples.DIALECT, chunks) if stream else samples.DIALECT.read(reply)
    calls = [(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])) for call in answer.tool_calls]

    facts = (answer.text, calls, answer.usage, answer.model, answer.finish_reason)
    assert samples.read_by_sdk(encode(chunks) if stream else json.dumps(reply).encode(), stream=stream) == facts
    assert samples.OUTCOMES.get(name, "complete") == answer.outcome


@pytest.mark.parametrize("samples", SAMPLES)
def test_the_stream_equals_the_reply(samples: Any) -> None:
    """An answer is the same with and without streaming, also the text of a tool's arguments."""
    assert [samples.DIALECT.read(reply) for reply in samples.REPLIES.values()] == [
        read_stream(samples.DIALECT, samples.chunks_of(reply)) for reply in samples.REPLIES.values()
    ]


@pytest.mark.parametrize(("samples", "reply"), [(samples, reply) for samples in SAMPLES for reply in samples.INVALID_REPLIES])
def test_a_reply_without_an_answer(samples: Any, reply: Any) -> None:
    """A reply of another form or API is invalid."""
    with pytest.raises(InvalidReply):
        samples.DIALECT.read(reply)


@pytest.mark.parametrize(("samples", "reply"), [(samples, reply) for samples in SAMPLES for reply in samples.EMPTY_REPLIES])
def test_a_reply_without_a_text(samples: Any, reply: Any) -> None:
    """A complete reply with neither a text nor a tool call, such as only reasoning, is invalid, and retried once."""
    with pytest.raises(InvalidReply, match=r"neither a text nor|has no answer") as caught:
        samples.DIALECT.read(reply)

    assert "parse_error" == classify(caught.value, now=0.0).category


@pytest.mark.parametrize(
    ("samples", "chunks", "error"),
    [
        *((samples, chunks, IncompleteReply) for samples in SAMPLES for chunks in samples.INCOMPLETE_STREAMS),
        *((samples, chunks, InvalidReply) for samples in SAMPLES for chunks in samples.INVALID_STREAMS),
        *((samples, [], IncompleteReply) for samples in SAMPLES),
        *((samples, [{"choices": []}], InvalidReply) for samples in SAMPLES),
    ],
)
def test_a_stream_without_its_end(samples: Any, chunks: list[Any], error: type[Exception]) -> None:
    """A stream without its end is incomplete; one with events of another form or API is invalid."""
    with pytest.raises(error):
        read_stream(samples.DIALECT, chunks)


@pytest.mark.parametrize(
    ("samples", "category", "error"),
    [
        (anthropic, "unavailable", {"type": "error", "error": {"type": "overloaded_error"}, "request_id": "req-1"}),
        (anthropic, "unavailable", {"type": "error", "error": {"type": "api_error"}}),
        (anthropic, "unavailable", {"type": "error", "error": {"type": "timeout_error"}}),
        (anthropic, "rate_limited", {"type": "error", "error": {"type": "rate_limit_error"}}),
        (gemini, "unavailable", {"error": {"code": 503, "message": "no", "status": "X"}}),
        (gemini, "unavailable", {"error": {"code": 500}}),
        (gemini, "rate_limited", {"error": {"code": 429}}),
        (gemini, "fatal", {"error": {"code": 400}}),
        *(
            (responses, category, error)
            for code, category in responses.ERROR_CODES.items()
            for error in (
                {"type": "error", "code": code, "message": "no", "param": None},
                {"type": "response.failed", "response": responses.response(status="failed", error={"code": code})},
            )
        ),
    ],
)
def test_an_error_within_a_stream(samples: Any, category: str, error: Any) -> None:
    """An error after the start of an answer is classified by its type or code, because the status was 200."""
    with pytest.raises(ErrorReply) as caught:
        read_stream(samples.DIALECT, [*samples.chunks_of(samples.REPLIES["truncated"])[:2], error])

    assert category == classify(caught.value, now=0.0).category


IMAGE, FILE = (
    {"type": "image_url", "image_url": {"url": "a.png"}},
    {"type": "file", "file": {"file_data": "data:a/b;base64,AA"}},
)


@pytest.mark.parametrize(
    ("model", "message", "error"),
    [
        ("anthropic:m", {"role": "assistant", "tool_calls": [{"id": 1}]}, "tool call"),
        ("gemini:m", {"role": "assistant", "tool_calls": [{"id": 1}]}, "tool call"),
        ("responses:m", {"role": "assistant", "tool_calls": [{"id": 1}]}, "invalid tool call"),
        ("anthropic:m", {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "["}}]}, "tool call"),
        ("anthropic:m", {"role": "user", "content": [IMAGE]}, "data:image/png;base64"),
        ("gemini:m", {"role": "user", "content": [IMAGE]}, "data:image/png;base64"),
        ("anthropic:m", {"content": [{**IMAGE, "image_url": "data:image/png,x"}]}, "base64"),
        ("anthropic:m", {"content": [FILE]}, "takes images, PDF"),
        ("anthropic:m", {"content": [{"type": "file", "file": {"file_data": "data:text/a;base64,A"}}]}, "not UTF-8"),
        ("gemini:m", {"role": "tool", "tool_call_id": "fc-1", "content": "x"}, "no tool call before the message"),
        ("gemini:m", {"role": "user", "content": [{"type": "hologram"}]}, "takes texts, images and files"),
    ],
)
def test_unsupported_messages(model: str, message: Any, error: str) -> None:
    """A message that cannot be converted is a usage error, which the check of the cases finds."""
    with pytest.raises(UsageError, match=error):
        Chat(model, base_url="http://h").body([message])


@pytest.mark.parametrize("dialect", ["anthropic", "responses"])
def test_unsupported_parameters(dialect: str) -> None:
    """A seed is a usage error when the task is defined, if the API has none."""
    with pytest.raises(UsageError, match="has no seed"):
        Chat(f"{dialect}:m", base_url="http://h", seed=1)


@pytest.mark.parametrize(
    ("dialect", "variables", "header"),
    [
        ("anthropic", ("ANTHROPIC_AUTH_TOKEN",), (b"Authorization", b"Bearer key-0")),
        ("anthropic", ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY"), (b"x-api-key", b"key-1")),
        ("gemini", ("GEMINI_API_KEY",), (b"x-goog-api-key", b"key-0")),
        ("gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY"), (b"x-goog-api-key", b"key-1")),
    ],
)
def test_the_key_is_sent_as_the_api_takes_it(
    dialect: str, variables: tuple[str, ...], header: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several variables, the one that is used is that of the SDK."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for number, name in enumerate(variables):
        monkeypatch.setenv(name, f"key-{number}")
    headers = Chat(f"{dialect}:m")._address.headers  # No call leaves this machine.

    assert [header] == [(name, value) for name, value in headers if b"key-" in value]
