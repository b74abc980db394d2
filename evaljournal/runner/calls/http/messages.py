"""Messages of HTTP/1.1 as they arrive: how heads and bodies are read from the bytes of a connection, on both sides."""

import re
from collections.abc import Awaitable
from http import HTTPStatus
from typing import Final

import httpcore2

from evaljournal.runner.calls.http.heads import InvalidMessage, is_header

_HEAD_END: Final = re.compile(rb"\r?\n\r?\n")
_LINE_END: Final = re.compile(rb"\r\n")
_CHUNK_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,16})(?:;[^\r\n]*)?[ \t]*\r\n")
_MAX_LINE: Final = 1024
"""Maximum bytes of a chunk-size line or a trailer line."""
_MAX_TRAILERS: Final = 100


class Disconnected(httpcore2.RemoteProtocolError):
    """The peer has closed the connection, or a message cannot be completed."""


class MessageReader:
    """Reads messages from a connection; a subclass receives its bytes."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        """Bytes that were received and not yet read."""

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
        """Return the first bytes of the buffer, and remove them."""
        data = bytes(self.buffer) if count >= len(self.buffer) else bytes(self.buffer[:count])
        del self.buffer[:count]
        return data


class Body:
    """The body of a message, which is read as it arrives."""

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
            if not is_header(line):
                raise InvalidMessage("a trailer is not NAME: VALUE")
        raise InvalidMessage(f"a chunked body has more than {_MAX_TRAILERS} trailers")
