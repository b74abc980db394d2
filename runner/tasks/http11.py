"""A connection to an HTTP/1.1 server: one call at a time, whose response is read as it arrives.

It has the interface of httpcore's connections and raises the same errors; calls through a proxy use httpcore's connections
instead. A response with a Content-Length and nothing unusual in its head is read here, which takes a fraction of h11's CPU
time; h11 reads the others.
"""

import re
from collections.abc import AsyncGenerator
from typing import Any, Final

import attrs
import h11
import httpcore2

_MAX_HEAD: Final = 100 * 1024
"""Maximum bytes of a response's status line and headers."""
_CHUNK: Final = 64 * 1024
_HEADERS: Final = rb"((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n)*)\r\n"
_REQUEST_HEAD: Final = re.compile(rb"[A-Z]+ [\x21-\x7e]+ HTTP/1\.1\r\n" + _HEADERS)
_RESPONSE_HEAD: Final = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9])(?: [\t\x20-\x7e\x80-\xff]*)?\r\n" + _HEADERS)
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_STATUSES_WITHOUT_BODY: Final = (b"204", b"304")
_UNUSUAL_HEADERS: Final = frozenset({b"connection", b"transfer-encoding"})
"""Headers that change how a response ends, or whether the connection can be used again."""


class _Body:
    """The body of a request as an async iterable."""

    def __init__(self, content: bytes | None) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        if self._content is not None:
            yield self._content


class Request(httpcore2.Request):
    """A request without httpcore's validation: `Address` checks the task's URL and headers, `Http11Connection` each head."""

    def __init__(
        self,
        method: str,
        url: httpcore2.URL,
        headers: list[tuple[bytes, bytes]],
        content: bytes | None,
        extensions: dict[str, Any],
    ) -> None:
        self.method = method.encode()
        self.url = url
        self.target = url.target
        self.headers = headers
        self.content = content
        self.stream = _Body(content)
        self.extensions = extensions
        self.read_timeout: float | None = extensions["timeout"]["read"]


@attrs.define(eq=False)
class Response:
    """A response without its body, which `aiter_stream` reads."""

    _connection: "Http11Connection"
    status: int
    headers: list[tuple[bytes, bytes]]
    _read_timeout: float | None

    async def aiter_stream(self) -> AsyncGenerator[bytes]:
        """Yield the body as it arrives."""
        while data := await self._connection.next_data(self._read_timeout):
            yield data

    async def aclose(self) -> None:
        """End the call; the connection is closed, too, unless the body was read to its end."""
        await self._connection.end_call()


class Http11Connection:
    """A connection to a server."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._http: h11.Connection | None = None
        """Reads the current response; None if it is read here."""
        self._buffer = b""
        """Bytes received but not yet returned: of the body, or beyond its end."""
        self._remaining_bytes = 0
        """Number of bytes of the body that are not yet returned."""
        self._is_closed = False

    @property
    def has_unread_data(self) -> bool:
        """Whether something was received after the end of the response."""
        return bool(self._buffer) if self._http is None else self._http.trailing_data != (b"", False)

    def has_expired(self) -> bool:
        """Return whether the server has closed the connection, or sent something, since the last call."""
        return bool(self._stream.get_extra_info("is_readable"))

    def is_closed(self) -> bool:
        """Return whether it cannot be used again."""
        return self._is_closed

    async def handle_async_request(self, request: Request) -> Response:
        """Send a request; return the response without its body."""
        lines = b"".join([b"%b: %b\r\n" % header for header in request.headers])
        head = b"%b %b HTTP/1.1\r\n%b\r\n" % (request.method, request.target, lines)
        if _REQUEST_HEAD.fullmatch(head) is None:
            raise httpcore2.LocalProtocolError(_describe_invalid(request))
        await self._stream.write(head + (request.content or b""))
        self._http = None
        data = await self._receive(request.read_timeout)
        if (response := _simple_response(data)) is not None:
            status, headers, self._remaining_bytes, self._buffer = response
            return Response(self, status, headers, request.read_timeout)
        self._http = _h11_connection(request)
        self._http.receive_data(data)
        while not isinstance(event := await self._next_event(self._http, request.read_timeout), h11.Response):
            pass  # 100 Continue, for example.
        return Response(self, event.status_code, event.headers.raw_items(), request.read_timeout)

    async def _receive(self, timeout: float | None) -> bytes:  # noqa: ASYNC109  # the stream enforces it
        data = await self._stream.read(_CHUNK, timeout)
        if not data and (self._http is None or self._http.their_state is h11.SEND_RESPONSE):
            raise httpcore2.RemoteProtocolError("Server disconnected without sending a response.")
        return data

    async def _next_event(self, http: h11.Connection, timeout: float | None) -> object:  # noqa: ASYNC109  # the stream enforces it
        """Return the next event of h11, other than `NEED_DATA`."""
        try:
            while (event := http.next_event()) is h11.NEED_DATA:
                http.receive_data(await self._receive(timeout))
        except h11.RemoteProtocolError as exc:
            raise httpcore2.RemoteProtocolError(str(exc)) from exc
        return event

    async def next_data(self, timeout: float | None) -> bytes:  # noqa: ASYNC109  # the stream enforces it
        """Return the next part of the body; empty at its end."""
        if self._http is not None:
            event = await self._next_event(self._http, timeout)
            return bytes(event.data) if isinstance(event, h11.Data) else b""
        if not self._remaining_bytes:
            return b""
        buffer = self._buffer or await self._stream.read(_CHUNK, timeout)
        if not buffer:
            raise httpcore2.RemoteProtocolError("peer closed connection without sending complete message body")
        data, self._buffer = buffer[: self._remaining_bytes], buffer[self._remaining_bytes :]
        self._remaining_bytes -= len(data)
        return data

    async def end_call(self) -> None:
        """Prepare the connection for the next call, or close it."""
        http = self._http
        is_complete = not self._remaining_bytes if http is None else http.our_state is http.their_state is h11.DONE
        if not is_complete:
            await self.aclose()

    async def aclose(self) -> None:
        """Close the connection."""
        self._is_closed = True
        await self._stream.aclose()


def _describe_invalid(request: Request) -> str:
    """Describe why a request cannot be sent, without the values of its headers, which may be keys."""
    for name, value in request.headers:
        if re.fullmatch(_HEADERS, b"%b: %b\r\n\r\n" % (name, value)) is None:
            return f"header {name.decode('latin-1')!r} contains characters that HTTP does not allow; remove them"
    return "the method, path or query of the request contains characters that HTTP does not allow; escape or remove them"


def _simple_response(data: bytes) -> tuple[int, list[tuple[bytes, bytes]], int, bytes] | None:
    """Return status, headers, length and beginning of the body; None if the head is incomplete or not simple."""
    head = _RESPONSE_HEAD.match(data)
    if head is None or head[1] in _STATUSES_WITHOUT_BODY:
        return None
    headers: list[tuple[bytes, bytes]] = []
    length: bytes | None = None
    for line in head[2].split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        value = value.strip(b" \t")
        lower_name = name.lower()
        if lower_name == b"content-length":
            if length is not None or _LENGTH.fullmatch(value) is None:
                return None
            length = value
        elif lower_name in _UNUSUAL_HEADERS:
            return None
        headers.append((name, value))
    return None if length is None else (int(head[1]), headers, int(length), data[head.end() :])


def _h11_connection(request: Request) -> h11.Connection:
    """Return an h11 connection in the state after the request; nothing is written to the stream."""
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD)
    try:
        http.send(h11.Request(method=request.method, target=request.target, headers=request.headers))
        if request.content:
            http.send(h11.Data(data=request.content))
        http.send(h11.EndOfMessage())
    except h11.LocalProtocolError as exc:
        raise httpcore2.LocalProtocolError(str(exc)) from exc
    return http
