"""A connection to an HTTP/1.1 server, on h11: one call at a time, whose reply is read as it arrives.

It has the interface of httpcore's connections, which proxies use, and raises the same errors. Without their tracing, locks and
validation a call takes half the CPU time.
"""

from collections.abc import AsyncGenerator
from typing import Final, Protocol

import h11
import httpcore2

_MAX_HEAD: Final = 100 * 1024
"""Bytes of a reply's status line and headers."""
_CHUNK: Final = 64 * 1024


class Request(Protocol):
    """What is sent."""

    @property
    def method(self) -> bytes:
        """HTTP method."""
        ...

    @property
    def target(self) -> bytes:
        """Path and query."""
        ...

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """All headers, with the length of the content."""
        ...

    @property
    def content(self) -> bytes | None:
        """The body."""
        ...

    @property
    def read_timeout(self) -> float | None:
        """Seconds without data."""
        ...


class Response:
    """A reply without its body, which `aiter_stream` reads."""

    def __init__(self, connection: "Http11Connection", head: h11.Response, read_timeout: float | None) -> None:
        self.status = head.status_code
        self.headers = head.headers.raw_items()
        self._connection = connection
        self._read_timeout = read_timeout

    async def aiter_stream(self) -> AsyncGenerator[bytes]:
        """Yield the body as it arrives."""
        while isinstance(event := await self._connection.next_event(self._read_timeout), h11.Data):
            yield bytes(event.data)

    async def aclose(self) -> None:
        """End the call; the connection is closed, too, unless the body was read to its end."""
        await self._connection.end_call()


class Http11Connection:
    """A connection to a server."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD)
        self._is_closed = False

    @property
    def has_unread(self) -> bool:
        """Whether something was received after the end of the reply."""
        return self._http.trailing_data != (b"", False)

    def has_expired(self) -> bool:
        """Whether the server has closed the connection, or sent something, since the last call."""
        return bool(self._stream.get_extra_info("is_readable"))

    def is_closed(self) -> bool:
        """Whether it cannot be used again."""
        return self._is_closed

    async def handle_async_request(self, request: Request) -> Response:
        """Send a request; return the reply without its body."""
        try:
            head = h11.Request(method=request.method, target=request.target, headers=request.headers)
            sent = [self._http.send(head)]
            if request.content:
                sent.append(self._http.send(h11.Data(data=request.content)))
            sent.append(self._http.send(h11.EndOfMessage()))
        except h11.LocalProtocolError as exc:
            raise httpcore2.LocalProtocolError(str(exc)) from exc
        await self._stream.write(b"".join(data for data in sent if data))
        while not isinstance(event := await self.next_event(request.read_timeout), h11.Response):
            pass  # 100 Continue, for example.
        return Response(self, event, request.read_timeout)

    async def next_event(self, timeout: float | None) -> object:  # noqa: ASYNC109  # the stream enforces it
        """Return the next event of h11, other than `NEED_DATA`."""
        while True:
            try:
                event = self._http.next_event()
                if event is not h11.NEED_DATA:
                    return event
                data = await self._stream.read(_CHUNK, timeout)
                if not data and self._http.their_state is h11.SEND_RESPONSE:
                    raise httpcore2.RemoteProtocolError("Server disconnected without sending a response.")
                self._http.receive_data(data)
            except h11.RemoteProtocolError as exc:
                raise httpcore2.RemoteProtocolError(str(exc)) from exc

    async def end_call(self) -> None:
        """Prepare the connection for the next call, or close it."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        else:
            await self.aclose()

    async def aclose(self) -> None:
        """Close the connection."""
        self._is_closed = True
        await self._stream.aclose()
