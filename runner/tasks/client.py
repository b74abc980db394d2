"""The HTTP client of tasks: it keeps connections open, and makes each call once.

A call uses the idle connection that was used last; if there is none, it opens one. A connection with unread bytes is closed:
they would be read as the next reply. Errors are raised; the run decides about retries. The one exception: a call that fails
without a byte of a reply, on a connection that was idle, is repeated on a new connection.
"""

import functools
import math
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, Final, Self, TypeVar, cast

import attrs
import httpcore2
import trio

from runner.notes import engine_note
from runner.tasks.address import Address
from runner.tasks.http11 import Http11Connection, Request, Response
from runner.tasks.reply import BadStatus, EmptyReply, NoResponse, Redirected, Reply
from runner.tasks.reply_memory import ReplyMemory

T = TypeVar("T")

AnyResponse = Response | httpcore2.Response
"""A response without its body; of httpcore's class if a proxy is used."""

_MAX_IDLE: Final = 60.0
"""Seconds after which an unused connection is closed."""

_FAILURES: Final = (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError, httpcore2.ProxyError)


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """Return the TLS context; it is slow to build, so all clients share it."""
    context = httpcore2.default_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class _Stream(httpcore2.AsyncNetworkStream):
    """A stream that buffers writes until the first read, so that head and body of a request are sent together."""

    def __init__(self, stream: trio.abc.Stream, socket: trio.SocketStream) -> None:
        self._stream = stream
        self._socket = socket
        self._write_buffer: list[bytes] = []
        self.has_received = False
        """Whether a byte was received since the last request."""

    @property
    def has_unread_data(self) -> bool:
        """Whether bytes were received that TLS has not decrypted yet; `is_readable` covers those on the socket."""
        return isinstance(self._stream, trio.SSLStream) and bool(self._stream._incoming.pending)  # noqa: SLF001  # no other way

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109  # httpcore's signature
        self._write_buffer.append(buffer)
        self.has_received = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109  # httpcore's signature
        try:
            if self._write_buffer:
                data_to_send, self._write_buffer = b"".join(self._write_buffer), []
                with suppress(trio.BrokenResourceError):  # A server that stops reading may have replied already.
                    await _with_timeout(timeout, self._stream.send_all, data_to_send)
            data = bytes(await _with_timeout(timeout, self._stream.receive_some, max_bytes))
        except trio.TooSlowError as exc:
            raise httpcore2.ReadTimeout from exc
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            raise httpcore2.ReadError from exc
        self.has_received = self.has_received or bool(data)
        return data

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._socket.socket.is_readable() if info == "is_readable" else None


def _make_url(origin: httpcore2.Origin, target: str) -> httpcore2.URL:
    return httpcore2.URL(scheme=origin.scheme, host=origin.host, port=origin.port, target=target)


async def _with_timeout(seconds: float | None, call: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Make a call with an optional timeout; without one, no cancel scope is created, which costs as much as a system call."""
    if seconds is None:
        return await call(*arguments)
    with trio.fail_after(seconds):
        return await call(*arguments)


@attrs.define(eq=False)
class _Connection:
    http: Http11Connection | httpcore2.AsyncConnectionInterface
    stream: _Stream | None
    """None if it goes through a proxy."""
    idle_since: float | None = None
    """None if it was not used yet."""

    @property
    def has_unread_data(self) -> bool:
        """Whether something was received after the end of the reply."""
        if self.stream is not None and self.stream.has_unread_data:
            return True
        if isinstance(self.http, Http11Connection):
            return self.http.has_unread_data
        http: Any = self.http
        while (inner_connection := getattr(http, "_connection", None)) is not None:  # A proxy's connection is wrapped.
            http = inner_connection
        return bool(http._h11_state.trailing_data != (b"", False))  # noqa: SLF001  # not in httpcore's API

    @property
    def may_have_closed_while_idle(self) -> bool:
        """Whether the connection was idle before the last call, and no byte of a reply has arrived."""
        return self.idle_since is not None and self.stream is not None and not self.stream.has_received


class Client:
    """The connections to one address."""

    def __init__(self, address: Address, *, connect_timeout: float | None, read_timeout: float | None) -> None:
        self._address = address
        self._timeouts = {"connect": connect_timeout, "read": read_timeout, "write": read_timeout}
        self._idle_connections: deque[_Connection] = deque()
        self._proxy: httpcore2.AsyncHTTPProxy | None = None
        """Opens connections through a proxy, if there is one."""
        self._url = _make_url(address.origin, address.target)
        self._extensions = {"timeout": self._timeouts}

    async def __aenter__(self) -> Self:
        proxy, is_secure = self._address.proxy, self._address.origin.scheme == b"https"
        if is_secure or (proxy is not None and proxy.is_secure):
            await trio.to_thread.run_sync(_tls_context)
        if proxy is not None:
            self._proxy = httpcore2.AsyncHTTPProxy(
                proxy.url,
                proxy.login,
                ssl_context=_tls_context() if is_secure else None,
                proxy_ssl_context=_tls_context() if proxy.is_secure else None,
                network_backend=cast("httpcore2.AsyncNetworkBackend", httpcore2.TrioBackend()),
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._idle_connections:
            await _drop(self._idle_connections.pop().http)

    async def call(
        self,
        method: str,
        content: bytes | None,
        *headers: tuple[bytes, bytes],
        read: Callable[[Reply], T],
        target: str | None = None,
    ) -> T:
        """Make one call and return the result of `read` for its reply; raise an error for any status but 2xx."""
        start_time = trio.current_time()
        request = self._request(method, content, headers, target)
        with ReplyMemory() as memory:
            response, body, first_byte = await self._exchange(request, start_time, memory)
            reply_headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            reply = Reply(response.status, reply_headers, body, first_byte)
            if "content-encoding" in reply_headers:
                await memory.take_place()  # Decompression may enlarge the body.
            if reply.is_stream and reply.status < HTTPStatus.MULTIPLE_CHOICES:
                engine_note(stream={"first_byte": round(first_byte, 6), "bytes": len(body)})
            return await memory.parse(lambda: self._parse(reply, read))

    def _parse(self, reply: Reply, read: Callable[[Reply], T]) -> T:
        if "content-encoding" in reply.headers:
            reply.decompress()
        if reply.status >= HTTPStatus.BAD_REQUEST:
            raise BadStatus(reply, self._address.masked_url)
        if reply.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise Redirected(reply, self._address.masked_url)
        if not reply.body and not (reply.is_stream and reply.ends_by_closing):  # Such a stream is incomplete.
            raise EmptyReply(reply, self._address.masked_url)
        return read(reply)

    @asynccontextmanager
    async def stream(
        self, method: str, content: bytes | None, *headers: tuple[bytes, bytes], target: str
    ) -> AsyncGenerator[AnyResponse]:
        """Make one call; yields the response, whatever its status. Its `aiter_stream` yields the body as it arrives."""
        try:
            connection, response = await self._send(self._request(method, content, headers, target))
            try:
                yield response
                await response.aclose()  # Closes the connection, too, unless the body was read to its end.
            except BaseException:
                await _drop(connection.http)
                raise
        except _FAILURES as exc:
            raise NoResponse(exc, self._address.masked_url) from exc
        await self._keep(connection)

    def _request(
        self, method: str, content: bytes | None, headers: tuple[tuple[bytes, bytes], ...], target: str | None
    ) -> Request:
        all_headers = [*self._address.headers, *headers]
        if content is not None:
            all_headers.append((b"Content-Length", b"%d" % len(content)))
        url = self._url if target is None else _make_url(self._address.origin, target)
        return Request(method, url, all_headers, content, self._extensions)

    async def _exchange(self, request: Request, start_time: float, memory: ReplyMemory) -> tuple[AnyResponse, bytes, float]:
        """Send a request; return the response, its body and the time to its first byte."""
        try:
            connection, response = await self._send(request)
            try:
                body, first_byte = await _read_body(response, start_time, memory)
            except BaseException:
                await _drop(connection.http)
                raise
        except _FAILURES as exc:
            raise NoResponse(exc, self._address.masked_url) from exc
        await self._keep(connection)
        return response, body, first_byte

    async def _send(self, request: Request) -> tuple[_Connection, AnyResponse]:
        """Send a request on an idle connection or a new one; return the connection, and the response without its body."""
        connection = await self._take_idle_connection() or await self._new_connection()
        try:
            return connection, await _send_on(connection, request)
        except (httpcore2.NetworkError, httpcore2.ProtocolError):
            if not connection.may_have_closed_while_idle:
                raise
        connection = await self._new_connection()
        return connection, await _send_on(connection, request)

    async def _take_idle_connection(self) -> _Connection | None:
        """Return the idle connection that was used last, or None; those that the server closed or wrote to are dropped."""
        while self._idle_connections:
            connection = self._idle_connections.pop()
            if not connection.http.has_expired():
                return connection
            await _drop(connection.http)
        return None

    async def _new_connection(self) -> _Connection:
        if self._proxy is not None:
            return _Connection(self._proxy.create_connection(self._address.origin), None)
        stream = await self._connect()
        return _Connection(Http11Connection(stream), stream)

    async def _connect(self) -> _Stream:
        origin, timeout = self._address.origin, self._timeouts["connect"]
        host = origin.host.decode()
        try:
            socket = await _with_timeout(timeout, trio.open_tcp_stream, host, origin.port)
            if origin.scheme != b"https":
                return _Stream(socket, socket)
            stream = trio.SSLStream(socket, _tls_context(), server_hostname=host, https_compatible=True)
            try:
                await _with_timeout(timeout, stream.do_handshake)
            except BaseException:  # Cancelled during the handshake, for example.
                await _drop(socket)
                raise
        except trio.TooSlowError as exc:
            raise httpcore2.ConnectTimeout from exc
        except (OSError, trio.BrokenResourceError) as exc:
            raise httpcore2.ConnectError from exc
        return _Stream(stream, socket)

    async def _keep(self, connection: _Connection) -> None:
        """Keep a connection for the next call; close the one that has been idle longest if it is too old."""
        if connection.http.is_closed():
            return
        if connection.has_unread_data:
            await _drop(connection.http)
            return
        connection.idle_since = now = trio.current_time()
        self._idle_connections.append(connection)
        if (self._idle_connections[0].idle_since or now) < now - _MAX_IDLE:
            await _drop(self._idle_connections.popleft().http)


async def _send_on(connection: _Connection, request: Request) -> AnyResponse:
    """Send a request; return the response without its body. The connection is closed on an error."""
    try:
        return await connection.http.handle_async_request(request)
    except BaseException:
        await _drop(connection.http)
        raise


async def _drop(connection: Http11Connection | httpcore2.AsyncConnectionInterface | trio.abc.AsyncResource) -> None:
    """Close a connection without waiting for the peer."""
    with trio.CancelScope(deadline=-math.inf, shield=True):
        await connection.aclose()


async def _read_body(response: AnyResponse, start_time: float, memory: ReplyMemory) -> tuple[bytes, float]:
    """Read a body up to the size limit; return it and the time to its first byte."""
    chunks: list[bytes] = []
    first_byte = 0.0
    try:
        async with aclosing(response.aiter_stream()) as stream:
            async for chunk in stream:
                if not chunks:
                    first_byte = trio.current_time() - start_time
                chunks.append(chunk)
                await memory.add(len(chunk))
    finally:
        await response.aclose()
    return b"".join(chunks), first_byte or trio.current_time() - start_time
