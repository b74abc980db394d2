"""Model calls: which requests they are, when two are the same, and what is recorded and replayed of a reply."""

import codecs
import json
import math
import zlib
from typing import Any, Final

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaljournal.runner.secrets.masking import add_secret
from evaljournal.runner.steps.durable_requests import model_endpoint
from evaljournal.runner.steps.model_calls import StepReply, reply_from_output, step_of_request

URL: Final = "https://api.example/v1/chat/completions"
JSON: Final = {"content-type": "application/json", "content-length": "1"}
STREAM: Final = {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"}
CHAT: Final = (
    b'data: {"model":"gpt-4o-mini","choices":[{"index":0,"delta":{"content":"message_stop [DONE]"}}],"usage":null}\n\n'
    b'data: {"model":"gpt-4o-mini","choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":100}}\n\n'
    b"data: [DONE]\n\n"
)
MESSAGE: Final = (
    b'event: message_start\ndata: {"type":"message_start","message":{"model":"claude-3-5-haiku-latest",'
    b'"usage":{"input_tokens":1000,"output_tokens":1}}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"event: message_stop"}}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","usage":{"input_tokens":null,"output_tokens":100}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
RESPONSE: Final = (
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"Lima"}\n\n'
    b'event: response.completed\ndata: {"type":"response.completed","response":{"model":"gpt-4o-mini","error":null,'
    b'"usage":{"input_tokens":1000,"output_tokens":100}}}\n\n'
)


def ask(body: bytes = b"{}", *, method: str = "POST", url: str = URL, **headers: str) -> tuple[str, str]:
    """Return the key of a request."""
    request = step_of_request(method, url, {name.replace("_", "-"): value for name, value in headers.items()}, body)
    return request.name, request.input.fingerprint


def read(headers: dict[str, str], *chunks: bytes, status: int = 200, end: bool = True) -> StepReply:
    """Read a reply."""
    reader = StepReply(status, headers)
    for chunk in chunks:
        reader.feed(chunk)
    if end:
        reader.end()
    return reader


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/v1/chat/completions", True),
        ("post", "/openai/deployments/x/chat/completions/", True),
        ("POST", "/v1/responses", True),
        ("POST", "/v1/messages", True),
        ("POST", "/v1/embeddings", True),
        ("POST", "/v1beta/models/gemini-3.8-flash:generateContent", True),
        ("POST", "/v1beta/models/gemini-3.8-flash:streamGenerateContent", True),
        ("POST", "/v1beta/models/gemini-3.8-flash:countTokens", False),
        ("GET", "/v1/responses", False),
        ("POST", "/v1/messages/count_tokens", False),
        ("POST", "/v1/models", False),
        ("POST", "/my-messages", False),
    ],
)
def test_which_requests_are_model_calls(method: str, path: str, expected: bool) -> None:  # noqa: FBT001  # an example
    """A POST to an address of the APIs of OpenAI, Anthropic and Gemini is a model call."""
    assert expected is (model_endpoint(method, path) is not None)


def test_the_step_of_a_model_call() -> None:
    """A model call has a name, the kind `model`, and its body as input."""
    request = step_of_request("POST", URL, {}, b'{"model":"gpt-5-mini","messages":[{"role":"user","content":"Hi"}]}')

    assert ("chat.completions gpt-5-mini", "model", True) == (request.name, request.kind, request.reusable)
    assert {"model": "gpt-5-mini", "messages": [{"role": "user", "content": "Hi"}]} == orjson.loads(request.input.content)


def test_different_bodies_are_different_steps() -> None:
    """Bodies that are the same JSON in other bytes, or invalid JSON, are different steps."""
    bodies = [b"{}", b"{ }", b'{"a":1.0}', b'{"a":1}', b'{"a":1,"a":1}', b"{", b"", b"\xff", b"\xfe", b'"\\ud800"', b"9" * 40]

    assert len(bodies) == len({ask(body) for body in bodies})


def test_other_parts_of_a_request_that_identify_a_step() -> None:
    """Method, URL and version headers identify a step; a key, in a header or in the URL, does not."""
    questions: list[dict[str, Any]] = [
        {},
        {"method": "GET"},
        {"url": f"{URL}?api-version=1"},
        {"url": f"{URL}?api-version=2"},
        {"url": f"{URL}?author=me"},
        {"url": f"{URL}?author=you"},
        {"anthropic_version": "1"},
        {"anthropic_beta": "1"},
        {"content_type": "application/json"},
    ]

    assert len(questions) == len({ask(**question) for question in questions})
    assert ask() == ask(authorization="Bearer sk-12345678", x_stainless_retry_count="1")
    assert ask(url=f"{URL}?key=0123456789abcdef") == ask(url=f"{URL}?key=fedcba9876543210")


def test_keys_are_not_recorded() -> None:
    """Keys in a URL or in a body are not recorded."""
    add_secret("a-very-secret-value")
    request = step_of_request("GET", "https://tools.example/a-very-secret-value?api_key=sk-0123456789abcdef", {}, b"")
    body = step_of_request("POST", URL, {}, b'{"messages":"a-very-secret-value"}')
    reply = read(JSON, b'{"echo":"a-very-secret-value"}').step_output()

    assert b"0123456789abcdef" not in request.input.content
    assert "secret-value" not in request.name
    assert b"secret-value" not in request.input.content + body.input.content
    assert {"echo": "***"} == reply["body"]


@pytest.mark.parametrize(
    ("stream", "model"), [(CHAT, "gpt-4o-mini"), (MESSAGE, "claude-3-5-haiku-latest"), (RESPONSE, "gpt-4o-mini")]
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_a_stream_is_complete_with_its_last_event(stream: bytes, model: str, size: int, newline: bytes) -> None:
    """A stream is not complete earlier, although the text of the model contains the event's name; its usage is known then."""
    stream = stream.replace(b"\n", newline)
    reader, complete_after = StepReply(200, STREAM), 0
    for start in range(0, len(stream), size):
        reader.feed(stream[start : start + size])
        complete_after = complete_after or (start + size if reader.is_complete else 0)
    reader.end()

    assert complete_after >= len(stream) - len(newline) + 1
    assert reader.is_complete
    assert {"status": 200, "content_type": STREAM["content-type"], "body": stream.decode()} == reader.step_output()
    assert (1000, 100) == (reader.usage()["input_tokens"], reader.usage()["output_tokens"])
    assert reader.usage().get("cost", 0) or {"unpriced_calls": 1, "unpriced_model": model}.items() <= reader.usage().items()


@pytest.mark.parametrize("size", [1, 10_000])
def test_a_byte_order_mark_hides_no_event(size: int) -> None:
    """The first event after a byte order mark is read, even if the mark arrives in parts."""
    stream = codecs.BOM_UTF8 + b'data: {"model":"gpt-4o-mini","usage":{"prompt_tokens":1000,"completion_tokens":100}}\n\n'
    reader = StepReply(200, STREAM)
    for start in range(0, len(stream), size):
        reader.feed(stream[start : start + size])

    assert (1000, 100) == (reader.usage().get("input_tokens"), reader.usage().get("output_tokens"))


@pytest.mark.parametrize("stream", [CHAT, MESSAGE, RESPONSE])
def test_an_interrupted_stream_is_never_complete(stream: bytes) -> None:
    """A stream whose connection was closed, at any position, or that the client closed, is not complete."""
    closed = {"content-type": "text/event-stream"}
    end = len(stream.rstrip())

    assert not [length for length in range(end) if read(closed, stream[:length]).is_complete]
    assert not [length for length in range(end) if read(STREAM, stream[:length], end=False).is_complete]
    assert read(closed, stream[:end]).is_complete
    assert read(closed, stream, end=False).is_complete


def test_a_stream_that_ends_without_a_last_event() -> None:
    """A stream without a last event is complete if the server marked its end."""
    assert read(STREAM, b"data: {}\n\n").is_complete
    assert read({"content-type": "text/event-stream", "content-length": "10"}, b"data: {}\n\n").is_complete
    assert not read({"content-type": "text/event-stream"}, b"data: {}\n\n").is_complete


@pytest.mark.parametrize(
    "error",
    [
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n',
        b'data: {"error":{"message":"overloaded_error"}}\n\n',
        b'event: response.failed\ndata: {"type":"response.failed","response":{"error":"overloaded_error"}}\n\n',
        b'data: {"type":"response.failed","response":{"error":"overloaded_error"}}\n\n',
        b"event: error\ndata: overloaded_error\n\n",
    ],
)
def test_a_stream_with_an_error_is_never_complete(error: bytes) -> None:
    """A stream with an error is not complete, even if the last event follows."""
    reader = read(STREAM, CHAT[:50], b"\n\n", error, CHAT)

    assert not reader.is_complete
    assert "overloaded_error" in str(reader.error(URL))


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": [1, 2.50, null, "\\u00e9"], "b": {}}',
        b"[]",
        b'"text"',
        b"1",
        b'{"big": 123456789012345678901234567890}',
        b'{"float": 0.1234567890123456789012}',
        b"[" * 300 + b"]" * 300,
        b'{"logprob": NaN, "usage": {"prompt_tokens": 1}}',
        b'{"text": "\\ud83d"}',
    ],
)
def test_json_is_replayed_as_the_same_value(body: bytes) -> None:
    """A reply is recorded as JSON where the journal can store it, otherwise as text."""
    reader = read(JSON, body)
    stored = orjson.loads(orjson.dumps(reader.step_output()))
    status, headers, content = reply_from_output(stored)

    assert reader.is_complete
    assert (200, "application/json", len(content)) == (status, headers["content-type"], int(headers["content-length"]))
    assert repr(json.loads(body)) == repr(json.loads(content))


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"content-type": "text/plain; charset=latin-1"}, "Bogotá".encode("latin-1")),
        ({"content-type": "text/plain"}, "Bogotá\r\n".encode()),
        ({"content-type": "application/json", "content-encoding": "br"}, b"\x8b\x01\x80\xff{}\x03"),
        ({"content-type": "text/plain; name=\xe9\x7f"}, b"x"),
        ({}, b""),
    ],
)
def test_other_replies_are_replayed_byte_by_byte(headers: dict[str, str], body: bytes) -> None:
    """Other replies are replayed with the headers that are needed to read them."""
    reader = read(headers, body)
    status, replayed_headers, content = reply_from_output(orjson.loads(orjson.dumps(reader.step_output())))

    assert reader.is_complete
    assert (200, body) == (status, content)
    assert {name: value.replace("\xe9\x7f", "") for name, value in headers.items()}.items() <= replayed_headers.items()


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw"])
@pytest.mark.parametrize("size", [1, 1000])
def test_compressed_replies(coding: str, size: int) -> None:
    """Compressed replies are recorded as text; one whose compressed data is incomplete is not complete."""
    packer = zlib.compressobj(wbits={"gzip": 31, "deflate": 15, "raw": -15}[coding])
    packed = packer.compress(CHAT) + packer.flush()
    chunks = [packed[start : start + size] for start in range(0, len(packed), size)]
    encoding = {"content-encoding": coding.replace("raw", "deflate")}
    reader = read(STREAM | encoding, *chunks)

    assert reader.is_complete
    assert CHAT.decode() == reader.step_output()["body"]
    assert "content-encoding" not in reply_from_output(reader.step_output())[1]
    assert not read(STREAM | encoding, packed[: len(packed) // 2]).is_complete
    assert not read(JSON | encoding, b"not compressed").is_complete


def test_invalid_json_is_not_complete() -> None:
    """An incomplete reply whose length was not announced is recognized by that."""
    assert not read({"content-type": "application/json"}, b'{"choices": [').is_complete
    assert not read(JSON, b"").is_complete


def test_a_large_reply_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large reply is not recorded, even if it is small while it is compressed."""
    monkeypatch.setattr("evaljournal.runner.calls.http.reply.MAX_BYTES", 1024 * 1024)
    packer = zlib.compressobj(wbits=31)
    packed = packer.compress(bytes(1024 * 1024 + 1)) + packer.flush()
    reader = read({"content-type": "text/plain", "content-encoding": "gzip"}, packed)

    assert not reader.is_complete
    assert "larger than 1 MiB" in str(reader.error(URL))


@pytest.mark.parametrize(
    "recorded", [None, 3, [], {}, {"status": "x", "content_type": ""}, {"status": 200, "content_type": ""}]
)
def test_a_recorded_result_that_is_not_a_reply(recorded: Any) -> None:
    """A recorded result of another form is an error."""
    with pytest.raises(Exception, match="not a reply"):
        reply_from_output(recorded)


NUMBERS: Final[st.SearchStrategy[Any]] = st.sampled_from([0, -1, 7, 10**30, 1e300, math.inf, True, None, "x", [], {}])
PARTS: Final = st.sampled_from(
    [
        *(b"data: ", b"event: ", b"[DONE]", b"message_stop", b"error", b"\n", b"\r", b"\n\n", b"\x00", b"\xff", b'"\\ud83d"'),
        *(b"{", b"}", b'"usage"', b'"model"', b":", b",", b"NaN", b"Infinity", b"9" * 30, b'"type"', b'"message"', b"[", b"]"),
    ]
)


@given(
    st.sampled_from(["application/json", "text/event-stream", "text/plain", "é"]),
    st.sampled_from(["", "gzip", "deflate", "br"]),
    st.lists(st.one_of(PARTS, st.binary(max_size=6)), max_size=30),
    st.booleans(),
)
def test_any_reply(media: str, coding: str, parts: list[bytes], is_split: bool) -> None:  # noqa: FBT001
    """Whatever a server sends, reading it raises nothing; a complete reply can be stored and replayed."""
    headers = {"content-type": media, "content-encoding": coding, "content-length": "1"}
    reader = read(headers, *(parts if is_split else [b"".join(parts)]))
    stored = orjson.loads(orjson.dumps([reader.step_output(), reader.usage()]))[0]

    assert reader.is_complete is not reader.has_failed
    if reader.is_complete and not coding and media != "application/json":
        assert b"".join(parts) == reply_from_output(stored)[2]


@given(NUMBERS, NUMBERS, st.sampled_from(["gpt-4o-mini", "", 3, None, "\ud83d"]), st.booleans())
def test_any_usage(first: Any, second: Any, model: Any, is_stream: bool) -> None:  # noqa: FBT001
    """Counts that are not numbers, too large or infinite are ignored; the usage can always be stored."""
    reply = {"model": model, "usage": {"prompt_tokens": first, "completion_tokens": second, "input_tokens": first}}
    text = json.dumps(reply).encode()
    usage = (read(STREAM, b"data: " + text + b"\n\n") if is_stream else read(JSON, text)).usage()

    assert usage == orjson.loads(orjson.dumps(usage))
    assert all(value < 1e18 for value in usage.values() if isinstance(value, int | float))
