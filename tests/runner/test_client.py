"""Connections of the HTTP client: what a server sends without a request never becomes the reply of a later call."""

import re
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
import trustme

from evaljournal.runner.calls.http.address import Address
from evaljournal.runner.calls.http.client import Client
from evaljournal.runner.calls.http.reply import NoResponse
from evaljournal.runner.calls.notes import set_note_sink
from tests.processes import TIMEOUT

Handler = Callable[[trio.abc.Stream, int, int, bytes], Awaitable[bool]]
"""Handles a request: the connection, its number, the number of the request on it, the body. Returns whether to continue."""


def reply(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


async def _exchange(handler: Handler, count: int, pause: float, tls: ssl.SSLContext | None) -> tuple[list[bytes], int]:
    """Make calls with the bodies 0, 1, …; return the replies and the number of connections."""
    connections = 0

    async def serve(stream: trio.abc.Stream) -> None:
        with suppress(trio.BrokenResourceError):  # The client may reset a connection.
            await serve_connection(stream)

    async def serve_connection(stream: trio.abc.Stream) -> None:
        nonlocal connections
        connections, number, requests, read = connections + 1, connections, 0, b""
        async with stream:
            while chunk := bytes(await stream.receive_some()):
                read += chunk
                head, separator, body = read.partition(b"\r\n\r\n")
                if not separator or len(body) < int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0]):
                    continue
                read = b""
                if not await handler(stream, number, requests, body):
                    return
                requests += 1

    replies: list[bytes] = []
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            port = listener.socket.getsockname()[1]
            serving = listener if tls is None else trio.SSLListener(listener, tls, https_compatible=True)
            nursery.start_soon(trio.serve_listeners, serve, [serving])
            address = Address.parse(f"{'http' if tls is None else 'https'}://127.0.0.1:{port}/", {})
            try:
                async with Client(address, connect_timeout=TIMEOUT, read_timeout=TIMEOUT) as client:
                    for n in range(count):
                        replies.append(await client.call("POST", b"%d" % n, read=lambda reply: reply.body))
                        await trio.sleep(pause)
            finally:
                nursery.cancel_scope.cancel()
    return replies, connections


def exchange(
    handler: Handler, count: int = 5, *, pause: float = 0.0, tls: ssl.SSLContext | None = None
) -> tuple[list[bytes], int]:
    try:
        return trio.run(_exchange, handler, count, pause, tls)
    except ExceptionGroup as group:  # Python before 3.11.4 wraps again what an `except*` raises.
        raise group.exceptions[0] from None


@pytest.fixture
def tls(monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """The context of a server with a certificate that clients trust."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    monkeypatch.setattr("evaljournal.runner.calls.http.client._tls_context", lambda: trusted)
    return context


NUMBERS = [b"0", b"1", b"2", b"3", b"4"]


async def answer(stream: trio.abc.Stream, _: int, __: int, body: bytes) -> bool:
    await stream.send_all(reply(body))
    return True


async def answer_twice_in_one_write(stream: trio.abc.Stream, _: int, __: int, body: bytes) -> bool:
    await stream.send_all(reply(body) + reply(b"unsolicited"))
    return True


async def answer_twice(stream: trio.abc.Stream, _: int, __: int, body: bytes) -> bool:
    await stream.send_all(reply(body))
    await stream.send_all(reply(b"unsolicited"))
    return True


async def send_half_a_reply_too_many(stream: trio.abc.Stream, _: int, __: int, body: bytes) -> bool:
    await stream.send_all(reply(body) + b"HTTP/1.1 200 OK\r\nContent-Le")
    return True


async def answer_and_close(stream: trio.abc.Stream, _: int, __: int, body: bytes) -> bool:
    await stream.send_all(reply(body))
    return False


async def answer_in_chunks_after_100(stream: trio.abc.Stream, _: int, __: int, body: bytes) -> bool:
    await stream.send_all(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
    await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;a=b\r\n%b\r\n0\r\nTrailer: x\r\n\r\n" % body)
    return True


async def close_at_second_request(stream: trio.abc.Stream, _: int, request: int, body: bytes) -> bool:
    if not request:
        await stream.send_all(reply(body))
    return not request


@pytest.mark.parametrize("is_secure", [False, True], ids=["http", "https"])
@pytest.mark.parametrize(
    ("handler", "pause", "connections"),
    [
        (answer, 0.0, 1),
        (answer_in_chunks_after_100, 0.0, 1),
        (answer_twice_in_one_write, 0.0, 5),
        (send_half_a_reply_too_many, 0.0, 5),
        (answer_twice, 0.02, 5),
        (answer_and_close, 0.02, 5),
        (close_at_second_request, 0.0, 5),
    ],
)
def test_connections(handler: Handler, pause: float, connections: int, tls: ssl.SSLContext, *, is_secure: bool) -> None:
    """A connection is used again unless it has unread bytes, which may arrive later, or the server has closed it.

    Informational replies and trailers are skipped. If an idle connection is closed, the request is repeated on a new one.
    """
    assert (NUMBERS, connections) == exchange(handler, pause=pause, tls=tls if is_secure else None)


INCOMPLETE = [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n1", b"HTTP/1.1 200 OK\r\nContent-Length: 1"]


@pytest.mark.parametrize(
    "sent",
    [
        *INCOMPLETE,
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,
        b"HTTP/1.1 200 OK\r\nX\r\nContent-Length: 1\r\n\r\n1",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n1",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n1",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n12\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 200,
    ],
)
def test_invalid_replies(sent: bytes) -> None:
    """What is not HTTP, switches the protocol, has an ambiguous length, never ends or ends too early is an error."""

    async def handler(stream: trio.abc.Stream, *_: object) -> bool:
        await stream.send_all(sent)
        return sent not in INCOMPLETE

    with pytest.raises(NoResponse):
        exchange(handler)


@pytest.mark.parametrize(
    ("sent", "connections"),
    [
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n", b"%b"), 1),
        ((b"HTTP/1.1 200 OK\r\nContent-", b"Length: 1\r\n\r\n%b"), 1),
        ((b"HTTP/1.1 200\r\ncontent-length:1\r\n\r\n%b",), 1),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n%b",), 1),
        ((b"HTTP/1.1 200 OK\nContent-Length: 1\n\n%b",), 1),
        ((b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 1\r\n\r\n%b",), 1),
        ((b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\n%b",), 5),
        ((b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n%b",), 5),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n%b\r\n0\r\n\r\n",), 5),
    ],
    ids=["head first", "half a head", "terse", "two lengths", "line feeds", "folded", "close", "HTTP/1.0", "two framings"],
)
def test_forms_of_a_reply(sent: tuple[bytes, ...], connections: int) -> None:
    """Every form of a reply is read, and the connection is used again where HTTP allows it."""

    async def handler(stream: trio.abc.Stream, _: int, __: int, body: bytes) -> bool:
        for part in sent:
            await stream.send_all(part.replace(b"%b", body))
            await trio.sleep(0.002)
        return True

    assert (NUMBERS, connections) == exchange(handler)


async def close(*_: object) -> bool:
    return False


async def close_after_first_reply(stream: trio.abc.Stream, connection: int, request: int, body: bytes) -> bool:
    return connection == 0 and await close_at_second_request(stream, connection, request, body)


async def half_a_reply_to_the_second(stream: trio.abc.Stream, _: int, request: int, body: bytes) -> bool:
    await stream.send_all(reply(body) if not request else reply(body)[:20])
    return not request


@pytest.mark.parametrize(
    ("handler", "calls"),
    [(close, 1), (close_after_first_reply, 3), (half_a_reply_to_the_second, 2)],
    ids=["new", "twice", "half"],
)
def test_requests_that_may_have_been_processed_are_not_repeated(handler: Handler, calls: int) -> None:
    """On a new connection, after one repetition, or after the first byte of a reply, the call fails."""
    requests: list[bytes] = []

    async def count(stream: trio.abc.Stream, connection: int, request: int, body: bytes) -> bool:
        requests.append(body)
        return await handler(stream, connection, request, body)

    with pytest.raises(NoResponse):
        exchange(count)
    assert calls == len(requests)


@pytest.mark.parametrize(
    ("target", "header", "message"),
    [
        ("/", (b"X-Key", b"secret\n"), "header 'X-Key' contains characters that HTTP does not allow; remove them"),
        ("/", (b"X Key", b"secret"), "header 'X Key' contains characters that HTTP does not allow; remove them"),
        ("/", (b"X-Key", b"a\r\nX-Other: secret"), "header 'X-Key' contains characters that HTTP does not allow; remove them"),
        ("/ HTTP/1.1\r\nX: y", (b"X-Key", b"secret"), "the method, path or query of the request contains characters"),
        ("/a b", (b"X-Key", b"secret"), "the method, path or query of the request contains characters"),
    ],
)
def test_invalid_requests_are_not_sent(target: str, header: tuple[bytes, bytes], message: str) -> None:
    """The error names the invalid part of a request, without the value of a header."""

    async def call() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        address = Address.parse(f"http://127.0.0.1:{listener.socket.getsockname()[1]}/", {})
        async with listener, Client(address, connect_timeout=TIMEOUT, read_timeout=TIMEOUT) as client:
            await client.call("POST", b"", header, read=lambda reply: reply.body, target=target)

    with pytest.raises(NoResponse) as caught:
        trio.run(call)

    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("token", [b'"delta": "x"', b'"other": ""'])
def test_the_time_to_the_first_token(token: bytes) -> None:
    """The first event of a stream may have no token: the time to the first match is noted, even if two chunks contain it."""
    delay = 0.02
    notes: list[dict[str, Any]] = []

    async def serve(stream: trio.abc.Stream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for part in (b'data: {"delta": ""}\n\n', b"data: {%b" % token[:5], token[5:] + b"}\n\n"):
            await stream.send_all(part)
            await trio.sleep(delay)
        await stream.aclose()

    async def call() -> None:
        set_note_sink(notes.append)
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, serve, [listener])
            address = Address.parse(f"http://127.0.0.1:{listener.socket.getsockname()[1]}/", {})
            async with Client(address, connect_timeout=TIMEOUT, read_timeout=TIMEOUT) as client:
                pattern = re.compile(rb'"delta": "[^"]')
                await client.call("POST", b"", read=lambda reply: reply.body, first_token=pattern)
            nursery.cancel_scope.cancel()

    trio.run(call)
    (stream,) = [note["evaljournal.stream"] for note in notes]

    assert (b"delta" in token) == ("first_token" in stream)
    assert 0 < stream["first_byte"] <= stream.get("first_token", stream["first_byte"])
    assert stream.get("first_token", delay) >= delay


def test_a_request_larger_than_the_buffers_of_the_socket() -> None:
    """A large request is sent in parts while the server reads it, and its reply arrives complete."""
    body = bytes(range(256)) * 40_000
    received: list[int] = []

    async def serve(stream: trio.abc.Stream) -> None:
        read = b""
        while len(read.partition(b"\r\n\r\n")[2]) < len(body):
            read += bytes(await stream.receive_some(1 << 20))
        received.append(len(read.partition(b"\r\n\r\n")[2]))
        await stream.send_all(reply(read.partition(b"\r\n\r\n")[2]))

    async def main() -> bytes:
        with trio.fail_after(TIMEOUT):
            async with trio.open_nursery() as nursery:
                (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
                nursery.start_soon(trio.serve_listeners, serve, [listener])
                address = Address.parse(f"http://127.0.0.1:{listener.socket.getsockname()[1]}/", {})
                async with Client(address, connect_timeout=TIMEOUT, read_timeout=None) as client:
                    echo = await client.call("POST", body, read=lambda reply: reply.body)
                nursery.cancel_scope.cancel()
        return echo

    assert body == trio.run(main)
    assert [len(body)] == received


def test_a_cancelled_call_sends_nothing() -> None:
    """On an open connection, a call in a scope that is cancelled already does not send its request."""
    requests: list[bytes] = []

    async def handler(stream: trio.abc.Stream) -> None:
        while chunk := bytes(await stream.receive_some()):
            requests.append(chunk.partition(b" ")[2].partition(b" ")[0])
            await stream.send_all(reply(b"1"))

    async def main() -> None:
        with trio.fail_after(TIMEOUT):
            async with trio.open_nursery() as nursery:
                (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
                nursery.start_soon(trio.serve_listeners, handler, [listener])
                address = Address.parse(f"http://127.0.0.1:{listener.socket.getsockname()[1]}/", {})
                async with Client(address, connect_timeout=TIMEOUT, read_timeout=None) as client:
                    await client.call("GET", None, read=lambda reply: reply.body, target="/first")
                    with trio.CancelScope() as scope:
                        scope.cancel()
                        await client.call("GET", None, read=lambda reply: reply.body, target="/cancelled")
                    await client.call("GET", None, read=lambda reply: reply.body, target="/last")
                nursery.cancel_scope.cancel()

    trio.run(main)

    assert [b"/first", b"/last"] == requests
