"""Heads of HTTP/1.1 requests and replies, checked with regular expressions.

h11 takes several times as long, which would delay every call.
"""

import re
from http import HTTPStatus
from typing import Final, Self

import attrs

Headers = list[tuple[bytes, bytes]]

_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP/1\.([01])\r\n")
_HEADERS: Final = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n")
_STATUSES: Final = range(200, 1000)
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")


class InvalidRequest(Exception):
    """A request that is not valid HTTP/1.1, or is not supported."""

    def __init__(self, message: str, status: int = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


@attrs.frozen
class RequestHead:
    """The first line and the headers of a request, and how its body is sent."""

    method: str
    target: str
    """Path and query, or another form, which the gateway rejects."""
    headers: Headers
    """Headers, with lower-case names."""
    length: int | None
    """Bytes of the body; None if it is sent in chunks."""
    is_chunkable: bool
    """Whether the reply may be sent in chunks."""
    keeps_alive: bool
    """Whether the connection is used for further requests."""
    expects_continue: bool
    """Whether the body is sent only after `100 Continue`."""

    @classmethod
    def parse(cls, head: bytes) -> Self:
        """Parse a head, which ends with an empty line."""
        line = _LINE.match(head)
        if line is None:
            raise InvalidRequest("the first line is not METHOD PATH HTTP/1.1")
        if _HEADERS.fullmatch(head, line.end()) is None:
            raise InvalidRequest("a header is not NAME: VALUE")
        headers: Headers = []
        for text in head[line.end() : -4].split(b"\r\n"):
            name, _, value = text.partition(b":")
            headers.append((name.lower(), value.strip(b" \t")))
        values = dict(headers)
        is_http_1_1 = line[3] == b"1"
        if is_http_1_1 and b"host" not in values:
            raise InvalidRequest("the header Host is missing")
        options = values.get(b"connection", b"").lower()
        return cls(
            method=line[1].decode("ascii"),
            target=line[2].decode("ascii"),
            headers=headers,
            length=_length(headers, values),
            is_chunkable=is_http_1_1,
            keeps_alive=is_http_1_1 and b"close" not in options,
            expects_continue=is_http_1_1 and values.get(b"expect", b"").lower() == b"100-continue",
        )


def _length(headers: Headers, values: dict[bytes, bytes]) -> int | None:
    lengths = {value for name, value in headers if name == b"content-length"}
    if b"transfer-encoding" in values:
        if values[b"transfer-encoding"].lower() != b"chunked":
            raise InvalidRequest("the only supported Transfer-Encoding is chunked", HTTPStatus.NOT_IMPLEMENTED)
        if lengths:
            raise InvalidRequest("Content-Length and Transfer-Encoding are mutually exclusive")
        return None
    if not lengths:
        return 0
    length = lengths.pop()
    if lengths or _LENGTH.fullmatch(length) is None:
        raise InvalidRequest("Content-Length is not one number")
    return int(length)


def reply_head(status: int, headers: Headers) -> bytes:
    """Return the head of a reply without invalid headers, which may come from another user's journal."""
    lines = [b"%b: %b\r\n" % header for header in headers]
    block = b"".join(lines) + b"\r\n"
    if _HEADERS.fullmatch(block) is None:
        block = b"".join(line for line in lines if _HEADERS.fullmatch(line + b"\r\n")) + b"\r\n"
    return b"HTTP/1.1 %d \r\n%b" % (status if status in _STATUSES else HTTPStatus.BAD_GATEWAY, block)
