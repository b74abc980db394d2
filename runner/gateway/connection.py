"""One HTTP/1.1 connection of an agent to the gateway: requests, replies, and whether the agent is still connected."""

import math
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Final

import orjson
import trio

from runner.gateway.heads import InvalidRequest, RequestHead, reply_head

MAX_HEAD: Final = 64 * 1024
"""Maximum bytes of a request's line and headers."""
TOKEN_TIMEOUT: Final = 10.0
"""Seconds in which a connection must send a request with the token of an attempt; otherwise, it is closed."""
IDLE_TIMEOUT: Final = 120.0
"""Seconds without a complete request head after which a connection is closed."""
LINGER: Final = 1.0
"""Seconds for which further data from an agent is discarded, so that it can read why it was rejected."""
_CHUNK: Final = 65_536
_MAX_LINE: Final = 1024
"""Maximum bytes of a chunk-size line or a trailer line."""
_END: Final = b"\r\n\r\n"


class Disconnected(Exception):
    """The agent has closed the connection, or the reply cannot be completed."""


class RequestTooLarge(InvalidRequest):
    """The body of a request is too large."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the request is larger than {limit // 1024 // 1024} MiB", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


class Connection:
    """A connection of an agent."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self.is_closed = False
        """Whether the agent has closed the connection."""
        self._activity = trio.Event()
        """Set when data arrives or the connection is closed."""
        self._demand = trio.Event()
        """Set when more data is needed."""
        self.call_scope: trio.CancelScope | None = None
        """Scope of the call in flight; cancelled when the agent disconnects."""
        self._scope = trio.CancelScope()
        self._idle_since = math.inf
        self._head: RequestHead | None = None
        self._is_body_read = False
        self.is_reply_started = False
        """Whether a part of the reply was sent."""
        self._is_reply_complete = False
        """Whether all of the reply was sent."""

    async def serve(self, answer: Callable[["Connection", RequestHead], Awaitable[None]]) -> None:
        """Answer requests until the agent or the gateway closes the connection."""
        try:
            async with self._stream, trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                self._scope.deadline = trio.current_time() + TOKEN_TIMEOUT
                nursery.start_soon(self._receive)
                while await self._serve_request(answer):
                    pass
                nursery.cancel_scope.cancel()
        except* (Disconnected, InvalidRequest, trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    def authorize(self) -> None:
        """Keep the connection open: it has sent the token of an attempt."""
        self._scope.deadline = math.inf

    def close_if_idle(self) -> None:
        """Close the connection if it has waited too long for a request."""
        if trio.current_time() - self._idle_since > IDLE_TIMEOUT:
            self._scope.cancel()

    async def _serve_request(self, answer: Callable[["Connection", RequestHead], Awaitable[None]]) -> bool:
        """Answer a request; return whether there may be another one."""
        self._head, self.is_reply_started, self._is_reply_complete = None, False, False
        try:
            self._idle_since = trio.current_time()
            self._head = head = RequestHead.parse(await self._receive_until(_END, MAX_HEAD))
            self._idle_since = math.inf
            self._is_body_read = head.length == 0
            await answer(self, head)
        except InvalidRequest as exc:
            if self.is_reply_started:
                raise
            await self.reject(exc.status, str(exc))
        if self._is_reply_complete and self._is_body_read and self._head is not None and self._head.keeps_alive:
            return True
        await self._linger()
        return False

    async def _receive(self) -> None:
        """Receive data, even during a call, to detect that the agent disconnects."""
        while True:
            try:
                data = await self._stream.receive_some(_CHUNK)
            except trio.BrokenResourceError:
                data = b""
            self.is_closed = not data
            self._buffer += data
            self._activity.set()
            if not data:
                if self.call_scope is not None:
                    self.call_scope.cancel()
                return
            if len(self._buffer) >= _CHUNK:
                self._demand = trio.Event()
                await self._demand.wait()

    async def _wait_for_data(self) -> None:
        if self.is_closed:
            raise Disconnected
        self._demand.set()
        self._activity = trio.Event()
        await self._activity.wait()

    def _take(self, count: int) -> bytes:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    async def _receive_until(self, end: bytes, limit: int) -> bytes:
        """Receive data up to and including `end`."""
        start = 0
        while (position := self._buffer.find(end, start)) < 0:
            start = max(0, len(self._buffer) - len(end) + 1)
            if start > limit:
                break
            await self._wait_for_data()
        if position > limit or position < 0:
            problem = f"the head of the request, or a chunk-size or trailer line, is longer than {limit:,} bytes"
            raise InvalidRequest(problem, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        return self._take(position + len(end))

    async def body(self, limit: int) -> bytes:
        """Read the body of the request; raise a `RequestTooLarge` if it has more than `limit` bytes."""
        head = self._head
        assert head is not None
        if head.expects_continue and not self._buffer:
            await self._stream.send_all(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await (self._receive_chunks(limit) if head.length is None else self._receive_exactly(head.length))
        self._is_body_read = True
        return body

    async def _receive_exactly(self, length: int) -> bytes:
        chunks: list[bytes] = []
        while length > 0:
            if not self._buffer:
                await self._wait_for_data()
            chunks.append(self._take(length))
            length -= len(chunks[-1])
        return b"".join(chunks)

    async def _receive_chunks(self, limit: int) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while True:
            text = (await self._receive_until(b"\r\n", _MAX_LINE)).partition(b";")[0].strip()
            if not text or len(text) > 16 or not all(byte in b"0123456789abcdefABCDEF" for byte in text):  # noqa: PLR2004  # 64 bits
                raise InvalidRequest("a chunk does not start with its size")
            length = int(text, 16)
            size += length
            if size > limit:
                raise RequestTooLarge(limit)
            if length == 0:
                break
            chunks.append(await self._receive_exactly(length))
            if await self._receive_exactly(2) != b"\r\n":
                raise InvalidRequest("a chunk is longer than its size")
        while await self._receive_until(b"\r\n", _MAX_LINE) != b"\r\n":
            pass  # Trailer fields.
        return b"".join(chunks)

    async def send(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a complete reply."""
        head = reply_head(status, [*headers, (b"content-length", b"%d" % len(body)), *self._close_header()])
        self.is_reply_started = self._is_reply_complete = True
        await self._stream.send_all(head + body)

    async def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Send the head of a reply whose length is unknown."""
        framing = [(b"transfer-encoding", b"chunked")] if self._is_chunked else []
        head = reply_head(status, [*headers, *framing, *self._close_header()])
        self.is_reply_started = True
        await self._stream.send_all(head)

    async def send_chunk(self, chunk: bytes) -> None:
        """Send a part of the body."""
        await self._stream.send_all(b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._is_chunked else chunk)

    async def finish(self) -> None:
        """Mark the end of a reply whose length was unknown."""
        self._is_reply_complete = self._is_chunked  # Otherwise, the closed connection marks it.
        if self._is_chunked:
            await self._stream.send_all(b"0\r\n\r\n")

    async def reject(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
        """Send an error in the form that the SDKs of OpenAI and Anthropic read."""
        error = {"type": "evaljournal_gateway", "code": "evaljournal_gateway", "message": f"evaljournal gateway: {message}"}
        body = orjson.dumps({"type": "error", "error": error})
        await self.send(status, [(b"content-type", b"application/json"), *headers], body)

    async def reject_cancelled_call(self, status: int, message: str) -> None:
        """Reject a request whose call was cancelled, if that is still possible; the connection cannot be used again."""
        if not self.is_closed and not self.is_reply_started:
            with trio.move_on_after(LINGER):
                await self.reject(status, message)
        raise Disconnected

    @property
    def _is_chunked(self) -> bool:
        return self._head is not None and self._head.is_chunkable

    def _close_header(self) -> list[tuple[bytes, bytes]]:
        """Return the header that announces the end of the connection, if it will be closed."""
        is_kept_open = self._is_body_read and self._head is not None and self._head.keeps_alive
        return [] if is_kept_open else [(b"connection", b"close")]

    async def _linger(self) -> None:
        """Close our side, and discard further data from the agent: closing immediately could destroy the reply in transit."""
        with trio.move_on_after(LINGER):
            await self._stream.send_eof()
            while not self.is_closed:
                self._buffer.clear()
                await self._wait_for_data()
