"""Responses as our parser and h11 read them: where both accept one, they agree on it."""

import random
from typing import Final

import h11
import httpcore2
import pytest

from evaljournal.runner.calls.http.heads import Body, MessageReader, ResponseHead

SAMPLE, ALL = 1_500, 300_000
"""Responses that are read."""
STATUS_LINES: Final = (
    b"HTTP/1.1 200 OK",
    b"HTTP/1.1 204 No Content",
    b"HTTP/1.0 200 OK",
    b"HTTP/1.1 503",
    b"HTTP/1.1 404 \xff",
)
HEADERS: Final = (b"X: a", b"x-empty:", b"X: a\r\n b", b"Connection: close", b"Connection: keep-alive", b"Server:  y \t")
PIECES: Final = (b"\r", b"\n", b"\r\n", b" ", b":", b"0", b"1", b"\x00", b"chunked", b"Content-Length: 3\r\n", b";a=b", b"\xff")

Message = tuple[int, dict[bytes, bytes], bytes, bytes]
"""Status, headers, body, and what follows it."""


def response(rng: random.Random) -> bytes:
    """Return a response that is usually valid."""
    body = rng.randbytes(rng.randrange(30))
    lines = [rng.choice(STATUS_LINES), *rng.choices(HEADERS, k=rng.randrange(4))]
    if rng.random() < 0.4:
        lines.append(b"Transfer-Encoding: chunked")
        parts = [body[start : start + 7] for start in range(0, len(body), 7)]
        body = b"".join(b"%x%b\r\n%b\r\n" % (len(part), rng.choice((b"", b";a=b", b" ")), part) for part in parts)
        body += b"0\r\n" + rng.choice((b"", b"Trailer: x\r\n")) + b"\r\n"
    elif rng.random() < 0.8:
        lines.append(b"Content-Length: %d" % len(body))
    end = rng.choice((b"\r\n", b"\r\n", b"\r\n", b"\n"))
    message = end.join([*lines, b"", b""]) + body + rng.choice((b"", b"", b"HTTP/1.1 200 OK\r\n"))
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        place = rng.randrange(len(message))
        message = message[:place] + rng.choice(PIECES) + message[place + rng.randrange(3) :]
    return message


def read_by_h11(message: bytes) -> Message | None:
    """Return the first response in a message, after which the server closes the connection; None if it is invalid."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(message)
    connection.receive_data(b"")
    head, body = None, b""
    try:
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.Response):
                head = event
            else:
                return None
    except h11.RemoteProtocolError:
        return None
    assert head is not None
    return head.status_code, dict(head.headers), body, connection.trailing_data[0]


class Parts(MessageReader):
    """Receives a message in parts."""

    def __init__(self, parts: list[bytes]) -> None:
        super().__init__()
        self.parts = parts

    async def receive(self) -> bool:
        if not self.parts:
            return False
        self.buffer += self.parts.pop(0)
        return True


def read_by_us(message: bytes, rng: random.Random) -> Message | None:
    """Return what our parser reads if the message arrives in random parts."""
    places = sorted(rng.choices(range(1, len(message)), k=rng.randrange(6)))
    bounds = zip([0, *places], [*places, len(message)], strict=True)
    reader = Parts([message[start:end] for start, end in bounds if start < end])

    async def read() -> Message | None:
        try:
            head = ResponseHead.parse(await reader.read_head(1_000))
            body, content = Body(reader, is_chunked=head.is_chunked, length=head.length), b""
            while part := await body.read():
                content += part
        except httpcore2.RemoteProtocolError:
            return None
        trailing_data = bytes(reader.buffer) + b"".join(reader.parts)
        return None if head.status < 200 else (head.status, dict(head.headers), content, trailing_data)

    try:
        read().send(None)  # It never waits.
    except StopIteration as end:
        result: Message | None = end.value
        return result
    raise AssertionError


@pytest.mark.parametrize("count", [SAMPLE, pytest.param(ALL, marks=pytest.mark.exhaustive)])
def test_responses_are_read_as_by_h11(count: int) -> None:
    """We accept only what h11 accepts, with the same status, headers, body and trailing data, and reject little else."""
    accepted = rejected = 0
    for seed in range(count):
        rng = random.Random(seed)
        message = response(rng)
        expected, actual = read_by_h11(message), read_by_us(message, rng)
        if actual is None:
            rejected += expected is not None
        else:
            accepted += 1
            assert expected == actual, (seed, message)
    assert accepted > 0.6 * count
    assert rejected < 0.01 * count
