"""The agent of the benchmark `gateway`: calls a model directly and through the gateway, and prints its figures as JSON."""

import asyncio
import json
import os
import socket
import statistics
import sys
import time
from typing import Final
from urllib.parse import urlsplit

CONNECTIONS: Final = 32
BODY: Final = json.dumps(
    {"model": "gpt-5.6-luna", "messages": [{"role": "user", "content": "What is the capital of Peru? " * 40}]}
)
HEADERS: Final = (
    "Accept: application/json",
    "Content-Type: application/json",
    "User-Agent: OpenAI/Python 3.0.0",
    "Authorization: Bearer sk-dummy",
    "X-Stainless-Lang: python",
    "X-Stainless-Package-Version: 3.0.0",
    "X-Stainless-OS: Linux",
    "X-Stainless-Arch: arm64",
    "X-Stainless-Runtime: CPython",
    "X-Stainless-Runtime-Version: 3.11.2",
    "X-Stainless-Async: false",
    "x-stainless-retry-count: 0",
    "x-stainless-read-timeout: 600",
    f"Content-Length: {len(BODY)}",
)
"""Headers that the SDK of OpenAI sends."""


class Target:
    """An address to call."""

    def __init__(self, base: str) -> None:
        url = urlsplit(f"{base}/chat/completions")
        assert url.hostname is not None
        self.address = url.hostname, url.port or 80
        self.request = "\r\n".join([f"POST {url.path} HTTP/1.1", f"Host: {url.netloc}", *HEADERS, "", BODY]).encode()

    def latencies(self, count: int) -> list[float]:
        """Make calls one after the other; return the seconds of each."""
        seconds = []
        with socket.create_connection(self.address, timeout=60) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(count):
                start = time.perf_counter()
                connection.sendall(self.request)
                received = b""
                while not _is_complete(received):
                    received += connection.recv(65_536)
                seconds.append(time.perf_counter() - start)
        return seconds

    async def call(self, count: int) -> None:
        """Make calls on one connection."""
        reader, writer = await asyncio.open_connection(*self.address)
        for _ in range(count):
            writer.write(self.request)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(_length(head))
        writer.close()


def _length(head: bytes) -> int:
    assert head.startswith(b"HTTP/1.1 200 "), head
    return int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])


def _is_complete(received: bytes) -> bool:
    head, end, body = received.partition(b"\r\n\r\n")
    return bool(end) and len(body) >= _length(head)


async def _rate(target: Target, count: int) -> float:
    start = time.perf_counter()
    await asyncio.gather(*(target.call(count // CONNECTIONS) for _ in range(CONNECTIONS)))
    return (count // CONNECTIONS) * CONNECTIONS / (time.perf_counter() - start)


def main() -> None:
    """Measure what the first argument names, with as many calls as the second argument."""
    measurement, count = sys.argv[1], int(sys.argv[2])
    gateway, direct = Target(os.environ["OPENAI_BASE_URL"]), Target(os.environ["DIRECT_BASE_URL"])
    if measurement == "rate":
        print(json.dumps({"rate": asyncio.run(_rate(gateway, count))}))
        return
    pairs = [(gateway.latencies(50), direct.latencies(50)) for _ in range(count // 50)]
    through, bare = ([seconds for pair in pairs for seconds in pair[side]] for side in (0, 1))
    quiet_through, quiet_bare = (statistics.quantiles(seconds, n=20)[0] for seconds in (through, bare))
    figures = {"gateway": statistics.median(through), "direct": statistics.median(bare)}
    print(json.dumps({**figures, "quiet": quiet_through - quiet_bare}))


if __name__ == "__main__":
    main()
