"""The HTTP client of tasks: it keeps connections open, and makes each call once.

A call uses the idle connection that was used last; if there is none, it opens one. A connection with unread bytes is closed:
they would be read as the next reply. Errors are raised; the run decides about retries. The one exception: a call that fails
without a byte of a reply, on a connection that was idle, is repeated on a new connection.
"""

import functools
import math
import re
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final, Self, TypeVar

import attrs
import httpcore2
import trio

from evaljournal.runner.calls.http.address import Address
from evaljournal.runner.calls.http.heads import Body, Disconnected, Headers, MessageReader, ResponseHead, request_head
from evaljournal.runner.calls.http.reply import BadStatus, EmptyReply, NoResponse, Redirected, Reply, ReplyMemory
from evaljournal.runner.calls.notes import engine_note, note_reply

T = TypeVar("T")

_MAX_IDLE: Final = 60.0
"""Seconds after which an unused connection is closed."""
_MAX_HEAD: Final = 100 * 1024
"""Maximum bytes of a response's status line and headers."""
_CHUNK: Final = 64 * 1024
_OK: Final = HTTPStatus.OK.value
_MULTIPLE_CHOICES: Final = HTTPStatus.MULTIPLE_CHOICES.value
"""Plain numbers: an attribute of an enumeration takes a call."""
_MAX_TOKEN_MATCH: Final = 256
"""Maximum bytes of a match of `first_token`, which two chunks may contain together."""

_FAILURES: Final = (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError, httpcore2.ProxyError)


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """Return the TLS context; it is slow to build, so all clients share it."""
    context = httpcore2.default_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


async def _with_timeout(seconds: float | None, call: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Make a call with an optional timeout; without one, no cancel scope is created, which costs as much as a system call."""
    if seconds is None:
        return await call(*arguments)
    with trio.fail_after(seconds):
        return await call(*arguments)


class SocketStream(trio.abc.Stream):
    """A connected socket, for one task at a time.

    That of trio waits for a turn of the loop when it sends, and asks for a reply that cannot be there yet. After a request, a
    call waits for its reply in any case, so `send_all` is cancelled like any other call, but lets no other task run.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._socket = socket.socket(fileno=stream.socket.detach())
        self._socket.setblocking(False)  # noqa: FBT003  # as the standard library has it

    @property
    def is_readable(self) -> bool:
        """Whether the peer has closed the connection, or sent something that was not received."""
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        sent = 0
        while sent < len(data):
            try:
                sent += self._socket.send(memoryview(data)[sent:] if sent else data)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
            except OSError as exc:
                raise trio.BrokenResourceError(f"socket connection broken: {exc}") from exc

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.wait_writable(self._socket)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for data, and return it; empty if the peer has closed the connection."""
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv(max_bytes or _CHUNK)
            except BlockingIOError:
                continue
            except OSError as exc:
                raise trio.BrokenResourceError(f"socket connection broken: {exc}") from exc

    async def aclose(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
        await trio.lowlevel.checkpoint()


async def open_socket(host: str, port: int) -> SocketStream:
    return SocketStream(await trio.open_tcp_stream(host, port))


class _Connection(MessageReader):
    """A connection to a server or a proxy: one call at a time."""

    def __init__(self, stream: SocketStream, read_timeout: float | None) -> None:
        super().__init__()
        self._stream: trio.abc.Stream = stream
        self._socket = stream
        self._read_timeout = read_timeout
        self._has_received = False
        """Whether a byte was received since the last request."""
        self.idle_since: float | None = None
        """None if it was not used yet."""

    @property
    def may_have_closed_while_idle(self) -> bool:
        """Whether the connection was idle before the last call, and no byte of a reply has arrived."""
        return self.idle_since is not None and not self._has_received

    @property
    def has_unread_data(self) -> bool:
        """Whether something was received after the end of the reply; `has_expired` covers what is on the socket."""
        if self._stream is self._socket:
            return bool(self.buffer)
        # There is no other way to see what TLS has not decrypted yet.
        return bool(self.buffer or (isinstance(self._stream, trio.SSLStream) and self._stream._incoming.pending))  # noqa: SLF001

    @property
    def has_expired(self) -> bool:
        """Whether the server has closed the connection, or sent something, since the last call."""
        return self._socket.is_readable

    async def call(self, request: bytes) -> ResponseHead:
        """Send a request; return the head of the response. The connection is closed on an error."""
        self._has_received = False
        try:
            try:
                if self._read_timeout is None:  # Checked here, too: a call of the helper would take longer than the check.
                    await self._stream.send_all(request)
                else:
                    await _with_timeout(self._read_timeout, self._stream.send_all, request)
            except trio.BrokenResourceError:
                pass  # A server that stops reading may have replied already.

            while True:
                head = ResponseHead.parse(await self.read_head(_MAX_HEAD))
                if head.status >= _OK:
                    return head
                if head.status == HTTPStatus.SWITCHING_PROTOCOLS:
                    raise httpcore2.RemoteProtocolError("the server switches to another protocol, which was not requested")
        except BaseException as exc:
            await self.drop()
            if isinstance(exc, trio.TooSlowError):
                raise httpcore2.ReadTimeout from exc
            raise

    async def receive(self) -> bool:
        try:
            if self._read_timeout is None:
                data = await self._stream.receive_some(_CHUNK)
            else:
                data = await _with_timeout(self._read_timeout, self._stream.receive_some, _CHUNK)
        except trio.TooSlowError as exc:
            raise httpcore2.ReadTimeout from exc
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            raise httpcore2.ReadError from exc

        if not data and not self._has_received:
            raise Disconnected("Server disconnected without sending a response.")
        self._has_received = True
        self.buffer += data
        return bool(data)

    async def start_tls(self, host: str, timeout: float | None) -> None:  # noqa: ASYNC109  # it may be None
        self._stream = stream = trio.SSLStream(self._stream, _tls_context(), server_hostname=host, https_compatible=True)
        await _with_timeout(timeout, stream.do_handshake)

    async def drop(self) -> None:
        """Close the connection without waiting for the peer."""
        with trio.CancelScope(deadline=-math.inf, shield=True):
            await self._stream.aclose()


@attrs.define
class Response:
    """A response whose body is read as it arrives, as a context manager that ends the call."""

    _client: "Client"
    _connection: _Connection
    head: ResponseHead
    _body: Body

    async def read(self) -> bytes:
        """Return the next part of the body; empty at its end."""
        try:
            return await self._body.read()
        except _FAILURES as exc:
            raise NoResponse(exc, self._client.masked_url) from exc

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Keep the connection for other calls if the body was read to its end; otherwise, close it."""
        if self._body.is_complete and self.head.keeps_alive and not self._connection.has_unread_data:
            await self._client.keep(self._connection)
        else:
            await self._connection.drop()


class Client:
    def __init__(self, address: Address, *, connect_timeout: float | None, read_timeout: float | None) -> None:
        self._address = address
        self._target = address.target
        self.masked_url = address.masked_url
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._idle_connections: deque[_Connection] = deque()

    async def __aenter__(self) -> Self:
        if self._address.uses_tls:
            await trio.to_thread.run_sync(_tls_context)
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._idle_connections:
            await self._idle_connections.pop().drop()

    async def call(
        self,
        method: str,
        content: bytes | None,
        *headers: tuple[bytes, bytes],
        read: Callable[[Reply], T],
        target: str | None = None,
        first_token: re.Pattern[bytes] | None = None,
    ) -> T:
        """Make one call and return the result of `read` for its reply; raise an error for any status but 2xx.

        For a stream, the time to its first byte is noted, and that to the first match of `first_token`.
        """
        start_time = trio.current_time()
        first_byte: float | None = None
        token_times: dict[str, float] = {}
        chunks, end = list[bytes](), b""

        with ReplyMemory() as memory:
            async with await self.send(method, content, *headers, target=target) as response:
                status, reply_headers = response.head.status, response.head.text_headers
                note_reply(status, reply_headers)
                while chunk := await response.read():
                    if first_byte is None:
                        first_byte = trio.current_time() - start_time
                    if first_token is not None and not token_times:
                        end += chunk
                        if first_token.search(end):
                            token_times["first_token"] = round(trio.current_time() - start_time, 6)
                        end = end[-_MAX_TOKEN_MATCH:]
                    chunks.append(chunk)
                    await memory.add(len(chunk))

            if first_byte is None:
                first_byte = trio.current_time() - start_time
            reply, body = Reply(status, reply_headers), b"".join(chunks)
            if reply.coding:
                await memory.take_place()  # Decompression may enlarge the body.
            if reply.is_stream and reply.status < _MULTIPLE_CHOICES:
                engine_note(stream={"first_byte": round(first_byte, 6), **token_times, "bytes": len(body)})
            return await memory.parse(functools.partial(self.parse, reply, body, read))

    def parse(self, reply: Reply, body: bytes, read: Callable[[Reply], T]) -> T:
        """Return the result of `read` for a reply with this body; raise an error for any status but 2xx."""
        reply.feed(body)
        if reply.status >= _MULTIPLE_CHOICES:
            error = BadStatus if reply.status >= HTTPStatus.BAD_REQUEST else Redirected
            raise error(reply, self.masked_url)
        reply.check_content()
        if reply.is_empty and not (reply.is_stream and reply.ends_by_closing):  # Such a stream is incomplete.
            raise EmptyReply(f"the reply from {self.masked_url} is empty (status {reply.status})")
        return read(reply)

    async def send(
        self, method: str, content: bytes | None, *headers: tuple[bytes, bytes], target: str | None = None
    ) -> Response:
        """Send a request; return the response, whatever its status, without its body."""
        address, all_headers = self._address, [*self._address.headers, *headers]
        if content is not None:
            all_headers.append((b"Content-Length", b"%d" % len(content)))
        target = self._target if target is None else target
        if address.proxy is not None and not address.is_secure:  # With TLS, there is a tunnel instead.
            target, all_headers = f"http://{address.authority}{target}", [*all_headers, *address.proxy.headers]

        head: ResponseHead | None = None
        try:
            request = request_head(method, target, all_headers) + (content or b"")
            connection = await self._take_idle_connection()
            if connection is not None:
                try:
                    head = await connection.call(request)
                except (httpcore2.NetworkError, httpcore2.ProtocolError):
                    if not connection.may_have_closed_while_idle:
                        raise
            if connection is None or head is None:
                connection = await self._connect()
                head = await connection.call(request)
        except _FAILURES as exc:
            raise NoResponse(exc, self.masked_url) from exc
        return Response(self, connection, head, Body(connection, is_chunked=head.is_chunked, length=head.length))

    async def _take_idle_connection(self) -> _Connection | None:
        """Return the idle connection that was used last, or None; those that the server closed or wrote to are dropped."""
        while self._idle_connections:
            connection = self._idle_connections.pop()
            if not connection.has_expired:
                return connection
            await connection.drop()
        return None

    async def _connect(self) -> _Connection:
        address, proxy, timeout = self._address, self._address.proxy, self._connect_timeout
        host, port = address.origin.host.decode(), address.origin.port
        peer = (host, port) if proxy is None else (proxy.host, proxy.port)

        try:
            connection = _Connection(await _with_timeout(timeout, open_socket, *peer), self._read_timeout)
            try:
                if proxy is not None and proxy.is_secure:
                    await connection.start_tls(proxy.host, timeout)
                if proxy is not None and address.is_secure:
                    await _with_timeout(timeout, _open_tunnel, connection, address.authority, proxy.headers)
                if address.is_secure:
                    await connection.start_tls(host, timeout)
            except BaseException:  # Cancelled during the handshake, for example.
                await connection.drop()
                raise
        except trio.TooSlowError as exc:
            raise httpcore2.ConnectTimeout from exc
        except (OSError, trio.BrokenResourceError) as exc:
            raise httpcore2.ConnectError from exc
        return connection

    async def keep(self, connection: _Connection) -> None:
        """Keep a connection for the next call; close the one that has been idle longest if it is too old."""
        connection.idle_since = now = trio.current_time()
        self._idle_connections.append(connection)
        if (self._idle_connections[0].idle_since or now) < now - _MAX_IDLE:
            await self._idle_connections.popleft().drop()


async def _open_tunnel(connection: _Connection, target: str, headers: Headers) -> None:
    head = await connection.call(request_head("CONNECT", target, [(b"Host", target.encode()), *headers]))
    if head.status >= HTTPStatus.MULTIPLE_CHOICES:
        raise httpcore2.ProxyError(f"{head.status} from the proxy")
    if connection.has_unread_data:
        raise httpcore2.ProxyError("the proxy sent data before the tunnel was used")
