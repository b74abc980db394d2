"""Heads of HTTP/1.1 requests and responses, checked with regular expressions.

h11 takes several times as long, which would delay every call. Invalid requests are rejected. Responses may have line feeds
without carriage returns, and folded lines: some servers send them.

**Messages** as they arrive: how heads and bodies are read from the bytes of a connection, on both sides.
"""

import re
from collections.abc import Awaitable
from http import HTTPStatus
from typing import Final, Self

import attrs
import httpcore2

Headers = list[tuple[bytes, bytes]]

_NAME: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_HEADERS: Final = re.compile(rb"(?:%b:[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n" % _NAME)
_RESPONSE_HEADERS: Final = re.compile(rb"(?:%b:[^\x00\r\n]*\r\n)*\r\n" % _NAME)
_REQUEST_LINE: Final = re.compile(rb"(%b) ([\x21-\x7e]+) HTTP/1\.([01])\r\n" % _NAME)
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [^\x00\r\n]*)?\r\n")
_FOLD: Final = re.compile(rb"\n[ \t]+")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_SENT_STATUSES: Final = range(200, 1000)
_STATUSES_WITHOUT_BODY: Final = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)

_HEAD_END: Final = re.compile(rb"\r?\n\r?\n")
_LINE_END: Final = re.compile(rb"\r\n")
_CHUNK_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,16})(?:;[^\r\n]*)?[ \t]*\r\n")
_MAX_LINE: Final = 1024
"""Maximum bytes of a chunk-size line or a trailer line."""
_MAX_TRAILERS: Final = 100


class InvalidMessage(httpcore2.RemoteProtocolError):
    """The peer sent what is not valid HTTP/1.1, or not supported."""

    def __init__(self, message: str, reply_status: int = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.reply_status = reply_status
        """Status of the reply to such a request."""


@attrs.frozen
class RequestHead:
    method: str
    target: str
    """Path and query, or another form, which servers here reject."""
    headers: Headers
    """Headers, with lower-case names."""
    length: int | None
    """Bytes of the body; None if it is sent in chunks."""
    is_chunkable: bool
    """Whether the reply may be sent in chunks."""
    keeps_alive: bool
    expects_continue: bool
    """Whether the body is sent only after `100 Continue`."""

    @classmethod
    def parse(cls, head: bytes) -> Self:
        """Parse a head, which ends with an empty line."""
        line = _REQUEST_LINE.match(head)
        if line is None:
            raise InvalidMessage("the first line is not METHOD PATH HTTP/1.1")
        if _HEADERS.fullmatch(head, line.end()) is None:
            raise InvalidMessage("a header is not NAME: VALUE")

        headers, values = _parse_headers(head, line.end())
        is_http_1_1 = line[3] == b"1"
        if sum(name == b"host" for name, _ in headers) != 1 and (is_http_1_1 or b"host" in values):
            raise InvalidMessage("there must be one header Host")
        is_chunked, length = _framing(headers, values)
        if is_chunked and length is not None:
            raise InvalidMessage("Content-Length and Transfer-Encoding are mutually exclusive")

        return cls(
            method=line[1].decode("ascii"),
            target=line[2].decode("ascii"),
            headers=headers,
            length=None if is_chunked else length or 0,
            is_chunkable=is_http_1_1,
            keeps_alive=is_http_1_1 and not _is_closing(headers, values),
            expects_continue=is_http_1_1 and values.get(b"expect", b"").lower() == b"100-continue",
        )


@attrs.define
class ResponseHead:
    status: int
    headers: Headers
    """Headers, with lower-case names."""
    is_chunked: bool
    length: int | None
    """Bytes of the body; None if it is sent in chunks, or ends with the connection."""
    keeps_alive: bool

    @property
    def text_headers(self) -> dict[str, str]:
        """The headers as text; of several with the same name, the last."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers}

    @classmethod
    def parse(cls, head: bytes) -> Self:
        """Parse a head, which ends with an empty line."""
        line = _STATUS_LINE.match(head)
        if line is None or _RESPONSE_HEADERS.fullmatch(head, line.end()) is None:
            first_line, _, lines = head.replace(b"\r\n", b"\n").partition(b"\n")
            head = (first_line + b"\n" + _FOLD.sub(b" ", lines)).replace(b"\n", b"\r\n")
            line = _STATUS_LINE.match(head)
            if line is None or _RESPONSE_HEADERS.fullmatch(head, line.end()) is None:
                raise InvalidMessage("the response is not HTTP/1.1")

        status = int(line[2])
        headers, values = _parse_headers(head, line.end())
        is_chunked, length = _framing(headers, values)
        if status in _STATUSES_WITHOUT_BODY:
            is_chunked, length = False, 0

        is_framed_once = is_chunked != (length is not None)  # Otherwise, the body ends with the connection, or is ambiguous.
        keeps_alive = line[1] == b"1" and is_framed_once and not _is_closing(headers, values)
        return cls(status, headers, is_chunked, None if is_chunked else length, keeps_alive)


def _parse_headers(head: bytes, start: int) -> tuple[Headers, dict[bytes, bytes]]:
    """Return the headers in a valid head, as a list and by name."""
    headers: Headers = []
    for line in head[start:-2].split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        headers.append((name.lower(), value.strip(b" \t")))
    return headers, dict(headers)


def _is_closing(headers: Headers, values: dict[bytes, bytes]) -> bool:
    """Return whether the peer will close the connection after this message."""
    name = b"connection"
    return name in values and any(header[0] == name and b"close" in header[1].lower() for header in headers)


def _framing(headers: Headers, values: dict[bytes, bytes]) -> tuple[bool, int | None]:
    """Return whether a body is sent in chunks, and its length; None without one."""
    is_chunked = b"transfer-encoding" in values
    if is_chunked and any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in headers):
        raise InvalidMessage("the only supported Transfer-Encoding is chunked", HTTPStatus.NOT_IMPLEMENTED)
    if b"content-length" not in values:
        return is_chunked, None
    lengths = {value for name, value in headers if name == b"content-length"}
    length = lengths.pop()
    if lengths or _LENGTH.fullmatch(length) is None:
        raise InvalidMessage("Content-Length is not one number")
    return is_chunked, int(length)


def request_head(method: str, target: str, headers: Headers) -> bytes:
    """Return the head of a request; raise a `LocalProtocolError` if it is invalid, without values, which may be keys."""
    block = b"".join([b"%b: %b\r\n" % header for header in headers])
    head = b"%b %b HTTP/1.1\r\n%b\r\n" % (method.encode(), target.encode(), block)
    is_valid = (line := _REQUEST_LINE.match(head)) is not None and _HEADERS.fullmatch(head, line.end()) is not None
    if is_valid and head.count(b"\r\n") == len(headers) + 2:  # No value contains another header.
        return head

    for name, value in headers:
        if b"\n" in value or _HEADERS.fullmatch(b"%b: %b\r\n\r\n" % (name, value)) is None:
            message = f"header {name.decode('latin-1')!r} contains characters that HTTP does not allow; remove them"
            raise httpcore2.LocalProtocolError(message)
    raise httpcore2.LocalProtocolError(
        "the method, path or query of the request contains characters that HTTP does not allow; escape or remove them"
    )


def reply_head(status: int, headers: Headers) -> bytes:
    """Return the head of a reply without invalid headers, which may come from another user's journal."""
    lines = [b"%b: %b\r\n" % header for header in headers]
    block = b"".join(lines) + b"\r\n"
    if _HEADERS.fullmatch(block) is None:
        block = b"".join(line for line in lines if _HEADERS.fullmatch(line + b"\r\n")) + b"\r\n"
    return b"HTTP/1.1 %d \r\n%b" % (status if status in _SENT_STATUSES else HTTPStatus.BAD_GATEWAY, block)


class Disconnected(httpcore2.RemoteProtocolError):
    """The peer has closed the connection, or a message cannot be completed."""


class MessageReader:
    """Reads messages from a connection; a subclass receives its bytes."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    async def receive(self) -> bool:
        """Add received bytes to the buffer; return False if the peer has closed the connection."""
        raise NotImplementedError

    def read_head(self, limit: int) -> Awaitable[bytes]:
        """Read the head of a message, up to and including the empty line."""
        return self._read_until(_HEAD_END, limit)

    def read_line(self) -> Awaitable[bytes]:
        """Read a line of a chunked body, with its end."""
        return self._read_until(_LINE_END, _MAX_LINE)

    async def _read_until(self, end: re.Pattern[bytes], limit: int) -> bytes:
        start = 0
        while (match := end.search(self.buffer, start)) is None and len(self.buffer) <= limit:
            start = max(0, len(self.buffer) - 3)
            if not await self.receive():
                raise Disconnected("peer closed connection without sending a complete head")
        if match is None or match.end() > limit:
            problem = f"the head of a message, or a line of a chunked body, is longer than {limit:,} bytes"
            raise InvalidMessage(problem, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        return self.pop(match.end())

    def pop(self, count: int) -> bytes:
        data = bytes(self.buffer) if count >= len(self.buffer) else bytes(self.buffer[:count])
        del self.buffer[:count]
        return data


class Body:
    def __init__(self, reader: MessageReader, *, is_chunked: bool, length: int | None) -> None:
        """Read a body of this length; None: until its last chunk, or until the peer closes the connection."""
        self._reader = reader
        self._is_chunked = is_chunked
        self._remaining = 0 if is_chunked else length
        """Bytes that are left of the body, or of the current chunk."""
        self._chunk_count = 0
        self.is_complete = length == 0 and not is_chunked
        """Whether it was read to its end."""

    async def read(self) -> bytes:
        """Return the next part; empty at the end."""
        if self._is_chunked and not self._remaining and not self.is_complete:
            await self._begin_chunk()
        if self.is_complete:
            return b""

        if not self._reader.buffer and not await self._reader.receive():
            if self._remaining is not None:
                raise Disconnected("peer closed connection without sending complete message body")
            self.is_complete = True

        data = self._reader.pop(len(self._reader.buffer) if self._remaining is None else self._remaining)
        if self._remaining is not None:
            self._remaining -= len(data)
            self.is_complete = not self._remaining and not self._is_chunked
        return data

    async def _begin_chunk(self) -> None:
        reader = self._reader
        if self._chunk_count and await reader.read_line() != b"\r\n":
            raise InvalidMessage("a chunk is longer than its size")
        self._chunk_count += 1
        size = _CHUNK_SIZE.fullmatch(await reader.read_line())
        if size is None:
            raise InvalidMessage("a chunk does not start with its size")
        self._remaining = int(size[1], 16)
        if not self._remaining:
            await self._skip_trailers()
            self.is_complete = True

    async def _skip_trailers(self) -> None:
        for _ in range(_MAX_TRAILERS):
            line = await self._reader.read_line()
            if line == b"\r\n":
                return
            if _RESPONSE_HEADERS.fullmatch(line + b"\r\n") is None:
                raise InvalidMessage("a trailer is not NAME: VALUE")
        raise InvalidMessage(f"a chunked body has more than {_MAX_TRAILERS} trailers")
