"""The server of the gateway and of `view`: one connection, its requests and replies, and whether the client is still there."""

import math
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Final

import trio

from evaljournal.runner.calls.http.heads import (
    Body,
    Disconnected,
    Headers,
    InvalidMessage,
    MessageReader,
    RequestHead,
    reply_head,
)

MAX_HEAD: Final = 64 * 1024
"""Maximum bytes of a request's line and headers."""
TOKEN_TIMEOUT: Final = 10.0
"""Seconds in which a connection must send a request with a valid token; otherwise, it is closed."""
MAX_WITHOUT_TOKEN: Final = 64
"""Maximum connections that have not sent a valid token; further ones are not accepted yet."""
CROWDED_TIMEOUT: Final = 1.0
"""Seconds after which the oldest of that many connections is closed, so that the next one can be accepted."""
IDLE_TIMEOUT: Final = 120.0
"""Seconds without a complete request head after which a connection is closed."""
LINGER: Final = 1.0
"""Seconds for which further data from a client is discarded, so that it can read why it was rejected."""
_CHUNK: Final = 65_536


class ReplyAborted(Exception):
    """The reply cannot be completed; the connection is closed."""


CONNECTION_ERRORS: Final = (Disconnected, ReplyAborted, InvalidMessage, trio.BrokenResourceError, trio.ClosedResourceError)
"""Errors that end a connection, and nothing else."""


class RequestTooLarge(InvalidMessage):
    def __init__(self, limit: int) -> None:
        size = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit >> 10} KiB"
        super().__init__(f"the request is larger than {size}", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


class TokenListener(trio.abc.Listener[trio.abc.HalfCloseableStream]):
    """Accepts connections, of which at most `MAX_WITHOUT_TOKEN` have not sent a valid token.

    Further ones wait in the queue of the system, where they take no file descriptor. Rejecting them would hit agents of many
    slots that connect at the same time. Idle connections cannot block the queue, because the oldest is closed.
    """

    def __init__(self, listener: trio.abc.Listener[trio.abc.HalfCloseableStream]) -> None:
        self._listener = listener
        self._accepted_at: dict[trio.abc.Stream, float] = {}
        """Connections without a token → time, the oldest first."""
        self._waiters = trio.lowlevel.ParkingLot()

    async def accept(self) -> trio.abc.HalfCloseableStream:
        while len(self._accepted_at) >= MAX_WITHOUT_TOKEN:
            oldest, accepted_at = next(iter(self._accepted_at.items()))
            with trio.move_on_at(accepted_at + CROWDED_TIMEOUT) as wait:
                await self._waiters.park()
            if wait.cancelled_caught:
                self.release(oldest)
                await trio.aclose_forcefully(oldest)
        stream = await self._listener.accept()
        self._accepted_at[stream] = trio.current_time()
        return stream

    def release(self, stream: trio.abc.Stream) -> None:
        """Free the place of a connection that has sent a valid token, or was closed."""
        if self._accepted_at.pop(stream, None) is not None:
            self._waiters.unpark()

    async def aclose(self) -> None:
        await self._listener.aclose()


class ClientConnection(MessageReader):
    def __init__(
        self,
        stream: trio.abc.HalfCloseableStream,
        headers: Iterable[tuple[bytes, bytes]] = (),
        *,
        keeps_alive: bool = True,
        listener: TokenListener | None = None,
    ) -> None:
        """Serve a connection; all replies have these headers. `keeps_alive`: whether several requests are answered."""
        super().__init__()
        self._listener = listener
        self._stream = stream
        self._headers = tuple(headers)
        self._keeps_alive = keeps_alive

        self.is_closed = False
        """Whether the client has closed the connection."""
        self._activity = trio.Event()
        """Set when data arrives or the connection is closed."""
        self._demand = trio.Event()
        """Set when more data is needed."""

        self.call_scope = trio.CancelScope()
        """Scope of the request that is being answered; cancelled when the client disconnects."""
        self._scope = trio.CancelScope()
        self._idle_since = math.inf
        self._head: RequestHead | None = None
        self._is_body_read = False
        self.is_reply_started = False
        self._is_reply_complete = False

    async def serve(self, answer: Callable[[RequestHead], Awaitable[None]]) -> None:
        """Answer requests until the client or the server closes the connection."""
        try:
            async with self._stream, trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                self._scope.deadline = trio.current_time() + TOKEN_TIMEOUT
                nursery.start_soon(self._receive)
                while await self._serve_request(answer):
                    pass
                nursery.cancel_scope.cancel()
        except* CONNECTION_ERRORS:
            pass
        finally:
            self._release_place()

    def authorize(self) -> None:
        """Keep the connection open: it has sent a valid token."""
        self._scope.deadline = math.inf
        self._release_place()

    def _release_place(self) -> None:
        if self._listener is not None:
            self._listener.release(self._stream)

    def close_if_idle(self) -> None:
        if trio.current_time() - self._idle_since > IDLE_TIMEOUT:
            self._scope.cancel()

    async def _serve_request(self, answer: Callable[[RequestHead], Awaitable[None]]) -> bool:
        """Answer a request; return whether there may be another one."""
        self._head, self.is_reply_started, self._is_reply_complete = None, False, False
        try:
            self._idle_since = trio.current_time()
            self._head = head = RequestHead.parse(await self.read_head(MAX_HEAD))
            self._idle_since = math.inf
            self._is_body_read = head.length == 0
            with trio.CancelScope() as self.call_scope:
                if self.is_closed:
                    self.call_scope.cancel()
                await answer(head)
            if self.call_scope.cancelled_caught:
                await self._reject_cancelled_call()
        except InvalidMessage as exc:
            if self.is_reply_started:
                raise
            await self.reject(exc.reply_status, str(exc))

        if self._is_reply_complete and self._is_kept_open:
            return True
        await self._linger()
        return False

    async def _receive(self) -> None:
        """Receive data, even during a call, to detect that the client disconnects."""
        while True:
            try:
                data = await self._stream.receive_some(_CHUNK)
            except trio.BrokenResourceError:
                data = b""
            self.is_closed = not data
            self.buffer += data
            self._activity.set()

            if not data:
                self.call_scope.cancel()
                return
            if len(self.buffer) >= _CHUNK:
                self._demand = trio.Event()
                await self._demand.wait()

    async def receive(self) -> bool:
        if self.is_closed:
            return False
        self._demand.set()
        self._activity = trio.Event()
        await self._activity.wait()
        return not self.is_closed

    async def read_body(self, limit: int) -> bytes:
        """Read the body of the request; raise a `RequestTooLarge` if it has more than `limit` bytes."""
        head = self._head
        assert head is not None
        if head.expects_continue and not self.buffer:
            await self._stream.send_all(b"HTTP/1.1 100 Continue\r\n\r\n")

        body = Body(self, is_chunked=head.length is None, length=head.length)
        parts: list[bytes] = []
        size = 0
        while part := await body.read():
            parts.append(part)
            size += len(part)
            if size > limit:
                raise RequestTooLarge(limit)
        self._is_body_read = True
        return b"".join(parts)

    async def send(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a complete reply; in answer to HEAD, without the body."""
        sent_body = b"" if self._head is not None and self._head.method == "HEAD" else body
        await self._send_head(status, [*headers, (b"content-length", b"%d" % len(body))], sent_body)
        self._is_reply_complete = True

    async def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Send the head of a reply whose length is unknown."""
        await self._send_head(status, [*headers, *([(b"transfer-encoding", b"chunked")] if self._is_chunked else [])])

    async def _send_head(self, status: int, headers: Headers, body: bytes = b"") -> None:
        self.is_reply_started = True
        closing = [] if self._is_kept_open else [(b"connection", b"close")]
        await self._stream.send_all(reply_head(status, [*self._headers, *headers, *closing]) + body)

    async def send_chunk(self, chunk: bytes) -> None:
        await self._stream.send_all(b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._is_chunked else chunk)

    async def finish(self) -> None:
        """Mark the end of a reply whose length was unknown."""
        self._is_reply_complete = self._is_chunked  # Otherwise, the closed connection marks it.
        if self._is_chunked:
            await self._stream.send_all(b"0\r\n\r\n")

    async def reject(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
        await self.send(status, [(b"content-type", b"text/plain; charset=utf-8"), *headers], f"{message}\n".encode())

    async def _reject_cancelled_call(self) -> None:
        """Reject a request whose call was cancelled, if that is still possible; the connection cannot be used again."""
        if not self.is_closed and not self.is_reply_started:
            with trio.move_on_after(LINGER):
                await self.reject(HTTPStatus.FORBIDDEN, "the call was cancelled")
        raise ReplyAborted

    @property
    def _is_chunked(self) -> bool:
        return self._head is not None and self._head.is_chunkable

    @property
    def _is_kept_open(self) -> bool:
        """Whether another request may follow the one that is being answered."""
        return self._keeps_alive and self._is_body_read and self._head is not None and self._head.keeps_alive

    async def _linger(self) -> None:
        """Close our side, and discard further data from the client: closing immediately could destroy the reply in transit."""
        with trio.move_on_after(LINGER):
            await self._stream.send_eof()
            while await self.receive():
                self.buffer.clear()
