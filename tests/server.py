"""An HTTP server for tests, in its own process: `python -m tests.server` prints its port.

The path defines its replies: `/NAME/STEPS/END`. Each request takes the next step, the last step is repeated; the name separates
tests. `/NAME/429:3,500,ok/generate` answers 429, then 500, then normally. `GET /NAME` returns its requests. Steps:

    ok            {"output": INPUT in capitals}, or in the dialect of a chat API that the end of the path names:
                  `chat/completions`, `messages`, `responses`, `MODEL:generateContent`
    tools         calls the first tool of the request whose result is missing; when all were called, answers as ok. A prompt of
                  DSPy has no list of tools: the reply has the fields that it asks for
    401, 404, …   that status, with an error in JSON
    429:3         with `Retry-After: 3`; `429:date` with a date two seconds ahead; `429:quota` with x-ratelimit headers
    reply:TEXT    that text, in the same dialects. Chat completions: `reply:another` reports another model, `reply:nonsense` an
                  invalid usage
    echo          the request's headers and body
    target        {"output": path and query of the request}
    empty         no body; `empty:204` with that status, `empty:text` and `empty:sse` with another media type
    text, notjson, latin (not UTF-8), error (with status 200), redirect, nooutput, spent (no credit),
    day (a quota per day)
    charset:NAME  text in Latin-1, with this name as its charset
    number:N      {"output": N}, verbatim
    raw:BODY      that body, as JSON if it begins with a brace, otherwise as a stream; `%2C` stands for a comma
    gzip          a compressed answer; `gzip:cut` is incomplete, `gzip:wrong` not compressed, `gzip:bomb` 2 MB when decompressed
    deflate, br   the same with another encoding (br: its name only); `deflate:bare` without a header
    sse, ndjson   a stream; `sse:cut` and `ndjson:cut` end half-way; `:error` sends an error event, `:chunk` a chunk with one;
                  `:close` ends by closing the connection; `:torn` closes within a chunk, `:short` before the last one,
                  `:unended` without a line break, `:nothing` immediately
    quota         an answer with x-ratelimit headers that are nearly used up
    hang          no answer
    reset, close  resets or closes the connection without an answer
    cut           sends less than its Content-Length

It is also a proxy: for http addresses, and for tunnels to ports of this machine.
"""

import asyncio
import email.utils
import json
import re
import socket
import ssl
import struct
import subprocess
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote
from urllib.request import urlopen

import orjson

from tests.processes import ROOT, Process

_NAMED_EVENTS = ("messages", "responses")
_GEMINI = (":generateContent", ":streamGenerateContent")
_MODEL_ENDS = ("chat/completions", *_NAMED_EVENTS, *_GEMINI)

_DAY = b'{"violations": [{"quotaId": "GenerateRequestsPerDay-FreeTier"}]}'
_CONSTANT_REPLIES = {
    "text": (200, "text/plain; charset=utf-8", b"Lima, naturally"),
    "notjson": (200, "application/json", b"<html>all is well</html>"),
    "latin": (200, "application/json", '{"output": "Bogotá"}'.encode("latin-1")),
    "nooutput": (200, "application/json", b'{"answer": "LIMA"}'),
    "spent": (429, "application/json", b'{"error": {"message": "pay first", "code": "insufficient_quota"}}'),
    "day": (429, "application/json", b'{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [%b]}}' % _DAY),
}
"""Step → status, media type and body."""

_requests: dict[str, list[dict[str, Any]]] = defaultdict(list)


class Connection(asyncio.Protocol):
    """One client connection."""

    def __init__(self) -> None:
        self._buffer = b""
        self._tunnelled: asyncio.StreamWriter | None = None
        """The target of the tunnel, after CONNECT."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._tunnelled is not None:
            self._tunnelled.write(data)
            return
        self._buffer += data
        if self._buffer[0] == 0x16:  # The first byte of TLS, which this port does not support.
            self._send(400, "text/plain", b"plain HTTP only")
            self._transport.close()
            return
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._buffer[:end]
            length_start = head.lower().find(b"\r\ncontent-length:")
            length = int(head[length_start + 17 :].split(b"\r\n", 1)[0]) if length_start >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            body = self._buffer[end + 4 : end + 4 + length]
            self._buffer = self._buffer[end + 4 + length :]
            self._request(head.decode("latin-1"), body)

    def _request(self, head: str, body: bytes) -> None:
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if method == "CONNECT":
            self._relay = asyncio.ensure_future(self._tunnel(int(target.rpartition(":")[2])))
            return
        path = target.split("/", 3)[3] if "://" in target else target  # A proxy gets the absolute URL.
        name, _, script_and_end = unquote(path).lstrip("/").partition("/")
        if not script_and_end:
            self._json(200, _requests[name])
            return
        steps, _, end = script_and_end.partition("?")[0].partition("/")
        request = {"method": method, "target": target, "headers": headers, "body": body.decode()}
        peer = self._transport.get_extra_info("peername")[1]
        _requests[name].append({**request, "connection": peer, "at": time.time()})
        script = steps.split(",")
        step, _, argument = script[min(len(_requests[name]), len(script)) - 1].partition(":")
        if step == "target":
            self._json(200, {"output": target})
        else:
            self._do(step, argument, end, headers, body)

    async def _tunnel(self, port: int) -> None:
        """Connect to a port of this machine, whatever the host name."""
        try:
            reader, self._tunnelled = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            self._fail(502, "")
            return
        self._transport.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        while data := await reader.read(65_536):
            self._transport.write(data)
        self._transport.close()

    def _do(self, step: str, argument: str, end: str, headers: dict[str, str], body: bytes) -> None:  # noqa: C901, PLR0912, PLR0915  # a list
        transport = self._transport
        if step.isdecimal():
            self._fail(int(step), argument)
        elif step == "hang":
            pass
        elif step == "reset":
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        elif step == "close":
            transport.close()
        elif step == "cut":
            self._send(200, "application/json", b'{"output": "LI', length=100)
            transport.close()
        elif step in {"sse", "ndjson"}:
            self._stream(step, argument, end, body)
        elif step == "echo":
            self._json(200, {"output": headers, "body": body.decode()})
        elif step == "reply":
            answer = _answer(end, body, argument)
            if end.endswith("chat/completions"):
                answer["choices"][0]["message"]["content"] = argument
                answer["model"] = "another" if argument == "another" else answer["model"]
            if argument == "nonsense":
                answer["usage"] = {"prompt_tokens": "many", "completion_tokens": -2}
            self._json(200, answer)
        elif step == "empty":
            media_type = {"text": "text/plain", "sse": "text/event-stream"}.get(argument, "application/json")
            self._send(204 if argument == "204" else 200, media_type, b"")
        elif step in _CONSTANT_REPLIES:
            self._send(*_CONSTANT_REPLIES[step])
        elif step == "charset":
            self._send(200, f"text/plain; charset={argument}", "Bogotá".encode("latin-1"))
        elif step == "error":
            self._json(200, {"error": {"message": "the model is asleep", "code": argument and int(argument)}})
        elif step == "number":
            self._send(200, "application/json", b'{"output": %b}' % argument.encode())
        elif step == "raw":
            body = unquote(argument).encode()
            self._send(200, "application/json" if body[:1] == b"{" else "text/event-stream", body)
        elif step in {"gzip", "deflate", "br"}:
            content = orjson.dumps(_answer(end, body)) if end.endswith(_MODEL_ENDS) else b'{"output": "LIMA"}'
            self._send(200, "application/json", _compressed(step, argument, content), {"content-encoding": step})
        elif step == "tools":
            self._json(200, _tool_call(end, body))
        elif step == "redirect":
            self._send(307, "text/plain", b"", {"location": "http://elsewhere.test/?key=abcdefgh12345678"})
        elif step == "quota":
            limits = {"limit": "100", "remaining": "1", "reset": "2s"}
            self._json(200, _answer(end, body), {f"x-ratelimit-{name}-requests": value for name, value in limits.items()})
        else:
            self._json(200, _answer(end, body))

    def _fail(self, status: int, argument: str) -> None:
        more_headers = {}
        if argument == "date":
            now = time.time()
            times = {"date": now, "retry-after": now + 2}
            more_headers = {name: email.utils.formatdate(seconds, usegmt=True) for name, seconds in times.items()}
        elif argument == "quota":
            more_headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1s500ms"}
        elif argument:
            more_headers = {"retry-after": argument}
        self._json(status, {"error": {"message": f"no: {status}", "type": "error"}}, more_headers)

    def _stream(self, kind: str, argument: str, end: str, body: bytes) -> None:
        kinds = {"sse": "text/event-stream; charset=utf-8", "ndjson": "application/x-ndjson"}
        is_closing = argument in {"close", "torn", "short", "unended", "nothing"}
        framing = "connection: close" if is_closing else "transfer-encoding: chunked"
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kinds[kind]}\r\n{framing}\r\n\r\n"
        self._transport.write(head.encode())
        chunks = list(_chunks_of(end, body))
        form = "data: {}\r\n\r\n" if kind == "sse" else "{}\n"
        has_names, is_gemini = end.endswith(_NAMED_EVENTS), end.endswith(_GEMINI)
        texts = [": hello\n\n"] if kind == "sse" and not is_gemini else []  # Google's SDK does not skip comments.
        names = [f"event: {chunk['type']}\n" if has_names else "" for chunk in chunks]
        texts += [name + form.format(json.dumps(chunk, ensure_ascii=False)) for name, chunk in zip(names, chunks, strict=True)]
        if argument == "error":
            texts[2:] = ['event: error\ndata: {"message": "overloaded"}\n\n']
        elif argument == "chunk":
            texts[3:] = [form.format('{"error": {"message": "overloaded", "code": 503}}')]
        elif kind == "sse" and not is_closing and not has_names and not is_gemini:
            texts.append("data: [DONE]\n\n")
        if is_closing:
            data = "".join(texts[:-1] if argument == "short" else texts).encode()
            data = {"torn": data[:-6], "unended": data.rstrip(), "nothing": b""}.get(argument, data)
            self._transport.write(data)
            self._transport.close()
        else:
            self._chunk(texts, cut=argument == "cut")

    def _chunk(self, texts: list[str], *, cut: bool) -> None:
        """Send the chunks of a stream with a short delay, each in two HTTP chunks; with `cut`, close half-way."""
        if self._transport.is_closing():
            return
        if cut and len(texts) <= 2:
            self._transport.close()
            return
        if not texts:
            self._transport.write(b"0\r\n\r\n")
            return
        data = texts[0].encode()
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            self._transport.write(b"%x\r\n%b\r\n" % (len(part), part))
        asyncio.get_running_loop().call_later(0.002, lambda: self._chunk(texts[1:], cut=cut))

    def _json(self, status: int, value: Any, more_headers: dict[str, str] | None = None) -> None:
        self._send(status, "application/json", orjson.dumps(value), more_headers)

    def _send(
        self, status: int, media_type: str, body: bytes, more_headers: dict[str, str] | None = None, length: int | None = None
    ) -> None:
        lines = [f"HTTP/1.1 {status} Whatever", f"content-type: {media_type}", f"content-length: {length or len(body)}"]
        lines += [f"{name}: {value}" for name, value in (more_headers or {}).items()]
        self._transport.write("\r\n".join([*lines, "", ""]).encode() + body)


def _compressed(coding: str, argument: str, content: bytes) -> bytes:
    """Compress an answer, correctly or not."""
    content = content if argument != "bomb" else b"0" * 2_000_000
    compressor = zlib.compressobj(wbits={"gzip": 31, "deflate": -15 if argument == "bare" else 15}.get(coding, 15))
    compressed = compressor.compress(content) + compressor.flush()
    if argument == "wrong":
        return content
    return compressed[: len(compressed) // 2] if argument == "cut" else compressed


def _question(body: bytes) -> str:
    """Return the question in a request body of any supported shape."""
    try:
        request = orjson.loads(body)
    except ValueError:
        return ""
    if "messages" in request:
        content = request["messages"][-1]["content"]
        return content if isinstance(content, str) else str(content[-1].get("text") or content[-1].get("content"))
    if isinstance(request.get("input"), list):
        return str(request["input"][-1].get("content") or request["input"][-1].get("output"))
    if "contents" in request:
        part = request["contents"][-1]["parts"][-1]
        return str(part.get("text") or part.get("functionResponse"))
    return str(request.get("input") or request.get("question") or request)


def _answer(end: str, body: bytes, text: str | None = None) -> Any:
    """Return a text (default: the question in capitals), in the shape that the end of the path selects."""
    text = _question(body).upper() if text is None else text
    model = "small"
    if end.endswith("chat/completions"):
        request = orjson.loads(body)
        model = request.get("model", model)
        if "response_format" in request:
            text = json.dumps({"answer": text})
        return {
            "id": "chat-1",
            "object": "chat.completion",
            "created": 1,
            "model": model,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100},
        }
    if end.endswith("messages"):
        return {
            "id": "msg-1",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 1000, "output_tokens": 100},
        }
    if end.endswith("responses"):
        return _response(text, orjson.loads(body)["model"])
    if end.endswith(_GEMINI):
        model = end.rpartition("/")[2].partition(":")[0]
        content = {"role": "model", "parts": [{"text": text}]}
        counts = {"promptTokenCount": 1000, "candidatesTokenCount": 100, "totalTokenCount": 1100}
        candidate = {"content": content, "finishReason": "STOP", "index": 0}
        return {"candidates": [candidate], "usageMetadata": counts, "modelVersion": model, "responseId": "response-1"}
    return {"output": text, "detail": {"steps": [1, 2, {"name": "last"}]}}


def _response(text: str, model: str) -> dict[str, Any]:
    """Return a reply of OpenAI's Responses API."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {
        "id": "resp-1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "error": None,
        "model": model,
        "output": [{"type": "message", "id": "msg-1", "status": "completed", "role": "assistant", "content": content}],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 1000,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 100,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 1100,
        },
    }


def _tool_call(end: str, body: bytes) -> Any:
    """Return a call of the next tool, with a string for each of its parameters; if all were called, an answer."""
    request, answer = orjson.loads(body), _answer(end, body)
    if "contents" in request:
        return _gemini_tool_call(request, answer)
    if "tools" not in request:
        answer["choices"][0]["message"]["content"] = _fields(request["messages"][-1]["content"])
        return answer
    results = sum(
        message.get("type") == "function_call_output"
        or message.get("role") == "tool"
        or (isinstance(message.get("content"), list) and message["content"][-1].get("type") == "tool_result")
        for message in request.get("messages") or request["input"]
    )
    if results == len(request["tools"]):
        return answer
    tool, call = request["tools"][results], f"call-{results + 1}"
    if end.endswith("messages"):
        arguments = dict.fromkeys(tool["input_schema"]["properties"], "lima")
        answer["content"] = [{"type": "tool_use", "id": call, "name": tool["name"], "input": arguments}]
        answer["stop_reason"] = "tool_use"
        return answer
    function = tool.get("function", tool)
    call_arguments = json.dumps(dict.fromkeys(function["parameters"]["properties"], "lima"))
    if end.endswith("responses"):
        identity = {"type": "function_call", "id": f"item-{call}", "call_id": call, "status": "completed"}
        answer["output"] = [{**identity, "name": function["name"], "arguments": call_arguments}]
        return answer
    answer["choices"][0] |= {"finish_reason": "tool_calls"}
    answer["choices"][0]["message"] |= {
        "content": None,
        "tool_calls": [{"id": call, "type": "function", "function": {"name": function["name"], "arguments": call_arguments}}],
    }
    return answer


def _gemini_tool_call(request: Any, answer: Any) -> Any:
    """Return a call of the next tool of a request to Gemini, or the answer."""
    tools = request["tools"][0]["functionDeclarations"]
    results = sum("functionResponse" in part for content in request["contents"] for part in content["parts"])
    if results < len(tools):
        arguments = dict.fromkeys(tools[results]["parameters"]["properties"], "lima")
        call = {"id": f"call-{results + 1}", "name": tools[results]["name"], "args": arguments}
        answer["candidates"][0]["content"]["parts"] = [{"functionCall": call}]
    return answer


def _fields(prompt: str) -> str:
    """Return a reply with the fields that the end of a DSPy prompt asks for: `weather` is called once, then `finish`."""
    is_called = "observation_0" in prompt
    values = {
        "next_tool_name": "finish" if is_called else "weather",
        "next_tool_args": "{}" if is_called else '{"city": "lima"}',
        "completed": "",
    }
    names = re.findall(r"\[\[ ## (\w+) ## \]\]", prompt.rpartition("Respond with")[2])
    return "\n\n".join(f"[[ ## {name} ## ]]\n{values.get(name, 'a jacket')}" for name in names)


def _chunks_of(end: str, body: bytes) -> Iterator[Any]:
    text = _question(body).upper()
    if end.endswith("chat/completions"):
        model = orjson.loads(body)["model"]
        for content in ({"role": "assistant", "content": ""}, *({"content": letter} for letter in text)):
            yield {"model": model, "choices": [{"index": 0, "delta": content, "finish_reason": None}]}
        yield {"model": model, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        yield {"model": model, "choices": [], "usage": {"prompt_tokens": 1000, "completion_tokens": 100}}
    elif end.endswith("messages"):
        start: dict[str, Any] = {"content": [], "stop_reason": None, "usage": {"input_tokens": 1000, "output_tokens": 1}}
        yield {"type": "message_start", "message": {**_answer(end, body), **start}}
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        for letter in text:
            yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": letter}}
        yield {"type": "content_block_stop", "index": 0}
        delta = {"stop_reason": "end_turn", "stop_sequence": None}
        yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 100}}
        yield {"type": "message_stop"}
    elif end.endswith("responses"):
        response = _answer(end, body)
        yield {"type": "response.created", "sequence_number": 0, "response": {**response, "output": [], "usage": None}}
        position = {"item_id": "msg-1", "output_index": 0, "content_index": 0}
        for number, letter in enumerate(text, 1):
            part: dict[str, Any] = {"sequence_number": number, "delta": letter, "logprobs": []}
            yield {"type": "response.output_text.delta", **position, **part}
        yield {"type": "response.completed", "sequence_number": len(text) + 1, "response": response}
    elif end.endswith(_GEMINI):
        for letter in text:
            candidate = {"content": {"role": "model", "parts": [{"text": letter}]}, "index": 0}
            yield {**_answer(end, body), "candidates": [candidate]}
        yield _answer(end, body, "")
    else:
        yield {"start": True}
        for letter in text:
            yield {"output": letter}
        yield {"output": "\u2028é", "done": True}


async def _main() -> None:
    tls = None
    if sys.argv[1:]:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(sys.argv[1])
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1000, ssl=tls)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201  # read by `serving`
    closing = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # Ends when the parent closes the pipe or dies.
    await asyncio.wait([closing])
    server.close()


class Server:
    """A running server, as tests use it."""

    def __init__(self, port: int, scheme: str = "http") -> None:
        self.root = f"{scheme}://127.0.0.1:{port}"

    def url(self, name: str, steps: str, end: str = "generate") -> str:
        """Return the URL for these steps."""
        return f"{self.root}/{name}/{steps}/{end}"

    def requests(self, name: str) -> list[dict[str, Any]]:
        """Return the requests under a name."""
        with urlopen(f"{self.root}/{name}", timeout=30) as reply:  # noqa: S310  # our own server
            return list(orjson.loads(reply.read()))


@contextmanager
def serving(certificate: str = "") -> Iterator[Server]:
    """Run a server in its own process; with TLS if `certificate` names a file with a certificate and its key."""
    command = [sys.executable, "-m", "tests.server", *([certificate] if certificate else [])]
    with Process(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield Server(int(process.stdout.readline()), "https" if certificate else "http")
        finally:
            assert process.stdin is not None
            process.stdin.close()


if __name__ == "__main__":
    asyncio.run(_main())
