"""A model server for benchmarks, in its own process on the loopback address: `python -m benchmarks._server` prints its port.

POST /fast…                   a fixed reply
POST /NAME/SECONDS/…          a chat completion after so many seconds
GET /NAME                     the first message of each request under this name, as a JSON list
"""

import asyncio
import http.client
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.request import urlopen

import attrs

ROOT: Final = Path(__file__).parent.parent
_FAST = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 17\r\n\r\n{"output":"LIMA"}'
_messages: dict[str, list[str]] = defaultdict(list)


class Connection(asyncio.Protocol):
    """A connection of a client; subclasses answer its requests."""

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each complete request."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n") + 4) >= 4:
            head = self._buffer[:end]
            length_start = head.lower().find(b"\r\ncontent-length:")
            length = int(head[length_start + 17 :].split(b"\r\n", 1)[0]) if length_start >= 0 else 0
            if len(self._buffer) < end + length:
                return
            body, self._buffer = self._buffer[end : end + length], self._buffer[end + length :]
            self.answer(head, body)

    def answer(self, head: bytes, body: bytes) -> None:
        """Answer a request, now or later."""
        raise NotImplementedError

    def send(self, value: Any, status: int = 200, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        """Send a value as JSON."""
        body = json.dumps(value).encode()
        all_headers = {"content-type": "application/json", "content-length": str(len(body)), **headers}
        lines = [f"HTTP/1.1 {status} {http.client.responses.get(status, '')}", *(f"{k}: {v}" for k, v in all_headers.items())]
        self._transport.write("\r\n".join([*lines, "", ""]).encode() + body)


class _ModelConnection(Connection):
    def answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"POST /fast"):
            self._transport.write(_FAST)
            return
        _, name, *more = head.split(b" ", 2)[1].decode().split("/")
        if not more:
            self.send(_messages[name])
            return
        message = json.loads(body)["messages"][0]["content"]
        _messages[name].append(message)
        choice = {"index": 0, "message": {"role": "assistant", "content": message}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
        reply = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        asyncio.get_running_loop().call_later(float(more[0]), self.send, reply)


@attrs.frozen
class ModelServer:
    """A running server."""

    root: str
    """Its address, without a path."""

    def messages(self, name: str) -> list[str]:
        """Return the first message of each request under a name."""
        with urlopen(f"{self.root}/{name}", timeout=30) as reply:  # noqa: S310  # our own server
            return list(json.load(reply))


@contextmanager
def serving() -> Iterator[ModelServer]:
    """Run a server in its own process, which ends with the block or with this process."""
    command, pipe = [sys.executable, "-m", "benchmarks._server"], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe) as process:  # noqa: S603  # our own program
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield ModelServer(f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.stdin.close()


async def _main() -> None:
    server = await asyncio.get_running_loop().create_server(_ModelConnection, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main())
