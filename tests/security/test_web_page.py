"""A web page, or any program that connects to `view`: it cannot end the server. Its token and host checks: test_view.py."""

import socket
import struct
from pathlib import Path

import pytest
import trio

from evaljournal.runner.cli.servers.server import serve
from tests.processes import TIMEOUT
from tests.replay.eventful_run import eventful_run

TOKEN = "a-token-for-tests"  # noqa: S105  # it opens nothing


@pytest.mark.parametrize(
    "request_",
    ["", "GET ", f"GET /{TOKEN}/ HTTP/1.1\r\nHost: HOST\r\n\r\n", f"GET /{TOKEN}/events HTTP/1.1\r\nHost: HOST\r\n\r\n"],
)
def test_a_reset_connection_does_not_end_the_server(tmp_path: Path, request_: str) -> None:
    """A client may reset its connection before, during or after its request."""
    run = eventful_run(tmp_path / "run")

    async def main() -> bytes:
        started = trio.Event()
        address: list[str] = []

        def ready(text: str) -> None:
            address.append(text.split("/")[2])
            started.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: serve(run, 0, 0, on_ready=ready, token=TOKEN))
            await started.wait()
            host, port = address[0].split(":")
            for wait in (0.0, 0.02, 0.2):
                async with await trio.open_tcp_stream(host, int(port)) as stream:
                    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # Close with a reset.
                    await stream.send_all(request_.replace("HOST", address[0]).encode())
                    await trio.sleep(wait)
            await trio.sleep(0.2)
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                await stream.send_all(f"GET /{TOKEN}/ HTTP/1.1\r\nHost: {address[0]}\r\n\r\n".encode())
                with trio.fail_after(TIMEOUT):
                    status = bytes(await stream.receive_some(15))
            nursery.cancel_scope.cancel()
        return status

    assert b"HTTP/1.1 200" == trio.run(main)[:12]
