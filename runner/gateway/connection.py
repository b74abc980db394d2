"""One HTTP/1.1 connection of an agent to the gateway: requests in, replies out, and whether the agent is still there."""

from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Final

import h11
import orjson
import trio

MAX_HEAD: Final = 64 * 1024
"""Bytes of a request's line and headers."""
IDLE_TIMEOUT: Final = 120.0
"""Seconds without a complete request head after which a connection is closed."""
LINGER: Final = 1.0
"""Seconds for which what an agent still sends is discarded, so that it can read why it was rejected."""
_CHUNK: Final = 65_536

Headers = Iterable[tuple[bytes, bytes]]


class Disconnected(Exception):
    """The agent has closed the connection, or does not speak HTTP."""


class RequestTooLarge(Exception):
    """The body of a request is too large."""


class Connection:
    """A connection of an agent."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._received = bytearray()
        self.is_closed = False
        """Whether the agent has closed the connection."""
        self._changed = trio.Event()
        """Set when something was received, or the connection was closed."""
        self._consumed = trio.Event()
        self._call: trio.CancelScope | None = None

    async def serve(self, answer: Callable[["Connection", h11.Request], Awaitable[None]]) -> None:
        """Answer requests until the agent or the gateway closes the connection."""
        try:
            async with self._stream, trio.open_nursery() as nursery:
                nursery.start_soon(self._receive)
                await self._serve(answer)
                nursery.cancel_scope.cancel()
        except* (Disconnected, trio.BrokenResourceError, trio.ClosedResourceError, h11.LocalProtocolError):
            pass

    async def _serve(self, answer: Callable[["Connection", h11.Request], Awaitable[None]]) -> None:
        request: object = None
        while True:
            try:
                with trio.move_on_after(IDLE_TIMEOUT):
                    request = await self._next_event()
                if not isinstance(request, h11.Request):
                    return
                await answer(self, request)
            except h11.RemoteProtocolError as exc:
                await self.reject(exc.error_status_hint, f"not a valid HTTP request: {exc}")
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                await self._linger()
                return
            self._http.start_next_cycle()
            request = None

    async def _receive(self) -> None:
        """Read what arrives, also during a call, to notice that the agent disconnects."""
        while True:
            try:
                data = await self._stream.receive_some(_CHUNK)
            except trio.BrokenResourceError:
                data = b""
            self.is_closed = not data
            self._received += data
            self._changed.set()
            if not data:
                if self._call is not None:
                    self._call.cancel()
                return
            if len(self._received) >= _CHUNK:
                self._consumed = trio.Event()
                await self._consumed.wait()

    async def _next_event(self) -> object:
        """Return the next event of h11, other than `NEED_DATA`."""
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if not self._received and not self.is_closed:
                self._changed = trio.Event()
                await self._changed.wait()
            if self.is_closed and not self._received:
                raise Disconnected
            self._http.receive_data(bytes(self._received))
            self._received.clear()
            self._consumed.set()

    @contextmanager
    def cancel_on_disconnect(self, call: trio.CancelScope) -> Generator[None]:
        """Cancel a call if the agent disconnects during the block."""
        self._call = call
        if self.is_closed:
            call.cancel()
        try:
            yield
        finally:
            self._call = None

    async def body(self, limit: int) -> bytes:
        """Read the body of the request; raise a `RequestTooLarge` if it has more than `limit` bytes."""
        if self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        chunks: list[bytes] = []
        size = 0
        while not isinstance(event := await self._next_event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise Disconnected
            size += len(event.data)
            if size > limit:
                raise RequestTooLarge(f"the request is larger than {limit // 1024 // 1024} MiB")
            chunks.append(bytes(event.data))
        return b"".join(chunks)

    @property
    def has_begun(self) -> bool:
        """Whether a part of the reply was sent."""
        return self._http.our_state is not h11.SEND_RESPONSE

    async def send(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a complete reply."""
        head = h11.Response(status_code=status, headers=[*headers, (b"content-length", b"%d" % len(body))])
        await self._send(head, h11.Data(data=body), h11.EndOfMessage())

    async def begin(self, status: int, headers: Headers) -> None:
        """Send the head of a reply whose length is unknown."""
        await self._send(h11.Response(status_code=status, headers=list(headers)))

    async def send_chunk(self, chunk: bytes) -> None:
        """Send a part of the body."""
        await self._send(h11.Data(data=chunk))

    async def finish(self) -> None:
        """Mark the end of a reply whose length was unknown."""
        await self._send(h11.EndOfMessage())

    async def reject(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
        """Send an error in the form that the SDKs of OpenAI and Anthropic read."""
        error = {"type": "evaljournal_gateway", "code": "evaljournal_gateway", "message": f"evaljournal gateway: {message}"}
        body = orjson.dumps({"type": "error", "error": error})
        await self.send(status, [(b"content-type", b"application/json"), *headers], body)

    async def end_cancelled(self, status: int, message: str) -> None:
        """Reject a request whose call was cancelled, if that is still possible; the connection cannot be used again."""
        if not self.is_closed and not self.has_begun:
            with trio.move_on_after(LINGER):
                await self.reject(status, message, (b"connection", b"close"))
        raise Disconnected

    async def _send(self, *events: h11.Event) -> None:
        await self._stream.send_all(b"".join(self._http.send(event) or b"" for event in events))

    async def _linger(self) -> None:
        """Close our side, and discard what the agent still sends: closing at once could destroy the reply on its way."""
        with trio.move_on_after(LINGER):
            await self._stream.send_eof()
            while not self.is_closed:
                self._received.clear()
                self._consumed.set()
                self._changed = trio.Event()
                await self._changed.wait()
