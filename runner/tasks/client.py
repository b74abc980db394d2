"""How a task calls somebody over HTTP: one client, whose connections are kept, and what can be wrong with a reply.

A call takes the connection that was used last, or opens one; so there are never more of them than calls at one time, and none
is looked for. Nothing here tries again: a stale connection, a refusal, a reply cut short is raised, and the run's own retry
decides.
"""

import codecs
import functools
import math
import re
import ssl
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from http.client import responses
from typing import Any, Final, Self, TypeVar, cast

import attrs
import httpcore2
import orjson
import trio

from runner.data.exact_json import read_json
from runner.retries.classify import Fatal
from runner.secrets import mask
from runner.tasks.address import Address

T = TypeVar("T")

LARGEST: Final = 64 * 1024 * 1024
"""Bytes of a reply that are taken in; a stream without an end must not fill the memory."""

_IDLE: Final = 60.0
"""Seconds after which a connection that nobody needed is closed."""

_MOMENT: Final = 0.001
"""Seconds for which a connection is taken to be as it was."""

_EXCERPT: Final = 500
_LINE_END: Final = re.compile(r"\r\n|\n|\r")
_EVENT_ENDS: Final = ("\n\n", "\r\n\r\n", "\r\r")
_NO_TEXT: Final = frozenset({"idna", "punycode", "raw-unicode-escape", "unicode-escape", "undefined"})
"""Encodings of Python's that no reply is in; some take a time that grows with the square of its length."""
_CHARSET: Final = re.compile(r"""charset\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE)
_DONE: Final = re.compile(rb"^data: ?\[DONE\]\s*$", re.MULTILINE)
_PACKED: Final = ("gzip", "x-gzip", "deflate")
_STREAMS: Final = ("text/event-stream", "ndjson", "jsonl", "stream+json", "jsonlines", "json-seq")
_FAILURES: Final = (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError, httpcore2.ProxyError)


class BadStatus(Exception):
    """The other side answered with a status that is no success."""

    def __init__(self, reply: "Reply", url: str) -> None:
        self.status_code = reply.status
        self.headers = reply.headers
        self.code = _code(reply)
        """The other side's own word for it, where it has one."""
        phrase = responses.get(reply.status, "")
        said = f": {_excerpt(reply.body)}" if reply.body else ""
        where = f" (it points to {mask(reply.headers['location'])})" if "location" in reply.headers else ""
        super().__init__(f"{reply.status} {phrase} from {url}{where}{said}".replace("  ", " "))


class Redirected(BadStatus, Fatal):
    """The other side points elsewhere; a redirected POST would lose its body, so the address is for the user to change."""


class NoResponse(Exception):
    """No whole answer came; what that means is said by the cause."""

    def __init__(self, exc: BaseException, url: str) -> None:
        super().__init__(f"no answer from {url}: {_reason(exc)}")


def _reason(exc: BaseException) -> str:
    """Find the words for it: those of the innermost cause that has any."""
    words = type(exc).__name__
    link: BaseException | None = None if isinstance(exc, httpcore2.TimeoutException) else exc
    while link is not None:
        words = str(link) or words
        inside = link.exceptions[0] if isinstance(link, BaseExceptionGroup) else None  # Each address of a host was tried.
        link = inside or link.__cause__ or link.__context__
    return words


class InvalidReply(Exception):
    """The call went well, and its reply is not what was asked for; the next may be."""


class ErrorReply(Exception):
    """The status says success, and the reply says that it went wrong."""

    def __init__(self, message: str, code: object = None) -> None:
        super().__init__(message)
        self.code = code


class TruncatedReply(ConnectionError):
    """The reply came to an end before it was complete."""


class ReplyTooLarge(Fatal):
    """The reply does not come to an end."""


def _code(reply: "Reply") -> object:
    try:
        said = orjson.loads(reply.body)["error"]
    except (ValueError, TypeError, KeyError):
        return None
    return code_in(said) or (said.get("type") if isinstance(said, dict) else None)


def code_in(error: object) -> object:
    """Find the other side's own word, or number, for an error that it tells."""
    while isinstance(error, dict) and isinstance(error.get("error"), dict):
        error = error["error"]
    return error.get("code") if isinstance(error, dict) else None


def _excerpt(body: bytes) -> str:
    text = body[: 4 * _EXCERPT].decode("utf-8", "replace").strip()
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}…"


@attrs.define
class Reply:
    """What came back, whole."""

    status: int
    headers: dict[str, str]
    """With lower-case names."""
    body: bytes
    """Without what is secret."""
    first_byte: float
    """Seconds from the call to the first byte of the body, or to its end if there was none."""

    @property
    def media(self) -> str:
        """The media type, in lower case and without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_stream(self) -> bool:
        """Whether it came as a stream of events or of lines."""
        media = self.media
        return media != "application/json" and any(kind in media for kind in _STREAMS)

    @property
    def ends_by_closing(self) -> bool:
        """Whether nothing but the end of the connection says where it ends: a cut would look the same."""
        return "content-length" not in self.headers and "transfer-encoding" not in self.headers

    @property
    def is_done(self) -> bool:
        """Whether a stream says, as many do, that nothing more comes."""
        return _DONE.search(self.body) is not None

    def json(self) -> Any:
        """Read it as JSON."""
        try:
            return read_json(self.body)
        except ValueError as exc:
            raise InvalidReply(f"the reply is not JSON ({exc}): {_excerpt(self.body)!r}") from exc

    def text(self) -> str:
        """Read it as text, in the encoding that it names; without one, in UTF-8."""
        named = _CHARSET.search(self.headers.get("content-type", ""))
        encoding = named[1] if named else "UTF-8"
        try:
            if codecs.lookup(encoding).name in _NO_TEXT:
                raise LookupError(f"unknown encoding: {encoding}")
            return self.body.decode(encoding)
        except (ValueError, LookupError) as exc:  # Other bytes; or a name that nobody knows, or that is not one of a text's.
            raise InvalidReply(f"the reply is not text in {encoding} ({exc}), but {self.media or 'of no stated type'}") from exc

    def pieces(self) -> Iterator[Any]:
        """Read a stream: what each event or line holds, as JSON where it is JSON, up to `[DONE]`."""
        in_events = self.media == "text/event-stream"
        text = self.text()
        is_torn = self.ends_by_closing and not self.is_done and not text.endswith(_EVENT_ENDS if in_events else "\n")
        if is_torn and (in_events or not text):
            raise TruncatedReply(f"the stream was cut off in the middle of {text[-_EXCERPT // 5 :]!r}")
        for event, data in _events(text) if in_events else _lines(text):
            if data == "[DONE]":
                return
            try:
                piece = read_json(data)
            except ValueError as exc:
                if is_torn:
                    raise TruncatedReply(f"the stream was cut off in the middle of {data[-_EXCERPT // 5 :]!r}") from exc
                if not in_events:
                    raise InvalidReply(f"a line of the stream is not JSON ({exc}): {data[:_EXCERPT]!r}") from exc
                piece = data
            if event == "error":
                raise ErrorReply(f"the stream ended with an error: {data[:_EXCERPT]}", code_in(piece))
            yield piece


def _events(text: str) -> Iterator[tuple[str, str]]:
    """Read server-sent events: fields a line each, an empty line after each event; comments begin with a colon."""
    event, data = "", list[str]()
    for line in [*_LINE_END.split(text), ""]:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield event, "\n".join(data)
            event, data = "", []
        elif name == "data":
            data.append(value)
        elif name == "event":
            event = value


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.split("\n"):
        if stripped := line.strip(" \t\r\x1e"):
            yield "", stripped


@functools.cache
def _tls() -> ssl.SSLContext:
    """What certificates are checked with; it takes long to build, and all share it."""
    context = httpcore2.default_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class _Stream(httpcore2.AsyncNetworkStream):
    """A stream that sends what is written when an answer is waited for: a request at once, not its head and body apart."""

    def __init__(self, stream: trio.abc.Stream, socket: trio.SocketStream) -> None:
        self._stream = stream
        self._socket = socket
        self._written: list[bytes] = []

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109  # as it is called
        self._written.append(buffer)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109  # the same
        try:
            if self._written:
                written, self._written = b"".join(self._written), []
                with suppress(trio.BrokenResourceError):  # Who does not want to hear us out may have said why.
                    await _within(timeout, self._stream.send_all, written)
            return bytes(await _within(timeout, self._stream.receive_some, max_bytes))
        except trio.TooSlowError as exc:
            raise httpcore2.ReadTimeout from exc
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            raise httpcore2.ReadError from exc

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._socket.socket.is_readable() if info == "is_readable" else None


async def _within(seconds: float | None, call: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Wait no longer than that. Most calls have no limit of their own, and a scope costs as much as a call of the system."""
    if seconds is None:
        return await call(*arguments)
    with trio.fail_after(seconds):
        return await call(*arguments)


class _Body:
    """The bytes of a request, as a connection wants them."""

    def __init__(self, content: bytes | None) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        if self._content is not None:
            yield self._content


class _Url(httpcore2.URL):
    """A URL that knows its origin, which is asked for several times a call, without making it each time."""

    def __init__(self, origin: httpcore2.Origin, target: str) -> None:
        super().__init__(scheme=origin.scheme, host=origin.host, port=origin.port, target=target)
        self._origin = origin

    @property
    def origin(self) -> httpcore2.Origin:
        return self._origin


class _Request(httpcore2.Request):
    """A request that is made of what was checked before, or is checked when it is sent: not each part each time."""

    def __init__(
        self, method: str, url: _Url, headers: list[tuple[bytes, bytes]], content: bytes | None, extensions: dict[str, Any]
    ) -> None:
        self.method = method.encode()
        self.url = url
        self.headers = headers
        self.stream = _Body(content)
        self.extensions = extensions


class Client:
    """The connections to one address: the idle ones, the one used last on top."""

    def __init__(self, address: Address, *, connect_timeout: float | None, read_timeout: float | None) -> None:
        self._address = address
        self._timeouts = {"connect": connect_timeout, "read": read_timeout, "write": read_timeout}
        self._idle: deque[tuple[float, httpcore2.AsyncConnectionInterface]] = deque()
        self._proxied: httpcore2.AsyncHTTPProxy | None = None
        """Makes connections, where somebody passes calls on."""
        self._url = _Url(address.origin, address.target)
        self._extensions = {"timeout": self._timeouts}

    async def __aenter__(self) -> Self:
        proxy, is_secure = self._address.proxy, self._address.origin.scheme == b"https"
        if is_secure or (proxy is not None and proxy.is_secure):
            await trio.to_thread.run_sync(_tls)
        if proxy is not None:
            self._proxied = httpcore2.AsyncHTTPProxy(
                proxy.url,
                proxy.login,
                ssl_context=_tls() if is_secure else None,
                proxy_ssl_context=_tls() if proxy.is_secure else None,
                network_backend=cast("httpcore2.AsyncNetworkBackend", httpcore2.TrioBackend()),
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._idle:
            await _drop(self._idle.pop()[1])

    async def call(self, method: str, content: bytes | None, *headers: tuple[bytes, bytes], target: str | None = None) -> Reply:
        """Make one call, and take its reply in; raise what is wrong with it."""
        began = trio.current_time()
        try:
            connection = await self._connection()
        except _FAILURES as exc:
            raise NoResponse(exc, self._address.shown) from exc
        sent = [*self._address.headers, *headers]
        if content is not None:
            sent.append((b"Content-Length", b"%d" % len(content)))
        url = self._url if target is None else _Url(self._address.origin, target)
        try:
            response = await connection.handle_async_request(_Request(method, url, sent, content, self._extensions))
            body, first_byte = await _body(response, began)
        except BaseException as exc:
            await _drop(connection)
            if isinstance(exc, _FAILURES):
                raise NoResponse(exc, self._address.shown) from exc
            raise
        await self._keep(connection)
        known = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        reply = Reply(response.status, known, body, first_byte)
        if "content-encoding" in known:
            _unpack(reply)
        for secret in self._address.secrets:
            reply.body = reply.body.replace(secret, b"***")
        return self._judged(reply)

    def _judged(self, reply: Reply) -> Reply:
        if reply.status >= HTTPStatus.BAD_REQUEST:
            raise BadStatus(reply, self._address.shown)
        if reply.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise Redirected(reply, self._address.shown)
        return reply

    async def _connection(self) -> httpcore2.AsyncConnectionInterface:
        while self._idle:
            since, connection = self._idle.pop()
            # The other side may have closed it meanwhile; to look costs a call of the system.
            if trio.current_time() - since < _MOMENT or not connection.has_expired():
                return connection
            await _drop(connection)
        if self._proxied is not None:
            return self._proxied.create_connection(self._address.origin)
        return httpcore2.AsyncHTTP11Connection(self._address.origin, await self._connect())

    async def _connect(self) -> httpcore2.AsyncNetworkStream:
        origin, timeout = self._address.origin, self._timeouts["connect"]
        host = origin.host.decode()
        try:
            socket = await _within(timeout, trio.open_tcp_stream, host, origin.port)
            if origin.scheme != b"https":
                return _Stream(socket, socket)
            stream = trio.SSLStream(socket, _tls(), server_hostname=host, https_compatible=True)
            try:
                await _within(timeout, stream.do_handshake)
            except BaseException:  # Cancelled in the middle of the handshake, say.
                await _drop(socket)
                raise
        except trio.TooSlowError as exc:
            raise httpcore2.ConnectTimeout from exc
        except (OSError, trio.BrokenResourceError) as exc:
            raise httpcore2.ConnectError from exc
        return _Stream(stream, socket)

    async def _keep(self, connection: httpcore2.AsyncConnectionInterface) -> None:
        """Put a connection back on top, and close the undermost if it was not needed for long: there are fewer slots now."""
        if connection.is_closed():
            return  # The reply was the last on it.
        now = trio.current_time()
        self._idle.append((now, connection))
        if self._idle[0][0] < now - _IDLE:
            await _drop(self._idle.popleft()[1])


async def _drop(connection: httpcore2.AsyncConnectionInterface | trio.abc.AsyncResource) -> None:
    """Close a connection at once: a polite goodbye may wait for somebody who does not listen."""
    with trio.CancelScope(deadline=-math.inf, shield=True):
        await connection.aclose()


def _unpack(reply: Reply) -> None:
    """Unpack what was packed although we had not asked for it; of a refusal, its status is enough."""
    try:
        for coding in reversed(reply.headers["content-encoding"].lower().replace(" ", "").split(",")):
            if reply.body and coding not in {"", "identity"}:
                reply.body = _unpacked(reply.body, coding)
    except (InvalidReply, TruncatedReply, ReplyTooLarge):
        if reply.status < HTTPStatus.MULTIPLE_CHOICES:
            raise
        reply.body = b""


def _unpacked(body: bytes, coding: str) -> bytes:
    if coding not in _PACKED:
        raise InvalidReply(f"the reply is packed as {coding!r}, which was not asked for; {', '.join(_PACKED)} are understood")
    is_bare = coding == "deflate" and body[0] & 15 != zlib.DEFLATED  # Some leave the head away that the standard wants.
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS if is_bare else zlib.MAX_WBITS | 32)
    try:
        unpacked = unpacker.decompress(body, LARGEST + 1)  # A few bytes may stand for any number of them.
    except zlib.error as exc:
        raise InvalidReply(f"the reply says that it is packed as {coding!r}, and cannot be unpacked: {exc}") from exc
    if len(unpacked) > LARGEST:
        raise ReplyTooLarge(f"the reply, unpacked, is longer than {LARGEST // 1024 // 1024} MiB")
    if not unpacker.eof:
        raise TruncatedReply(f"the reply, packed as {coding!r}, was cut off")
    return unpacked


async def _body(response: httpcore2.Response, began: float) -> tuple[bytes, float]:
    """Take a body in; a reply that does not end is not waited for to the end."""
    chunks: list[bytes] = []
    size, first = 0, 0.0
    try:
        async for chunk in response.aiter_stream():
            if not chunks:
                first = trio.current_time() - began
            chunks.append(chunk)
            size += len(chunk)
            if size > LARGEST:
                raise ReplyTooLarge(
                    f"the reply is longer than {LARGEST // 1024 // 1024} MiB; was it to be a stream without an end?"
                )
    finally:
        await response.aclose()
    return b"".join(chunks), first or trio.current_time() - began
